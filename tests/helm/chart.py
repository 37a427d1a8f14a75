"""The chart, linted and rendered in process by Helm's own library."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from helm_python import Chart
from helm_python.chart import lint

CHART = Path(__file__).parents[2] / "helm" / "pilotfish"
KUBERNETES_VERSIONS = ("1.27", "1.30", "1.33", "1.37")
WITH_IMAGE: dict[str, Any] = {"image": {"repository": "registry.local/pilotfish"}}

# What people install: named, so that a failure says which.
EXAMPLES: Mapping[str, dict[str, Any]] = {
    "as it is": {},
    "draft model on a GPU": {
        "drafter": {"withTorch": True, "gpus": 1, "nodeSelector": {"gpu": "small"}},
        "verifier": {"gpus": 2, "nodeSelector": {"gpu": "large"}},
    },
    "no GPU": {"verifier": {"gpus": 0, "tolerations": []}},
    "everything else": {
        "image": {"tag": "1.2.3", "pullPolicy": "Always", "pullSecrets": ["key"]},
        "coordinator": {"replicas": 3},
        "modelCache": {"existingClaim": "models"},
        "telemetry": {"otlpEndpoint": "http://collector:4317"},
    },
}


def merged(values: Mapping[str, Any], base: Mapping[str, Any] = WITH_IMAGE) -> dict[str, Any]:
    """`values` on top of `base`, object by object."""
    result = copy.deepcopy(dict(base))
    for key, value in values.items():
        is_nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(value, result[key]) if is_nested else value
    return result


def rendered(values: Mapping[str, Any], *, name: str = "demo") -> list[dict[str, Any]]:
    """The manifests of the chart with an image and these values.

    Raises:
        HelmError: the schema or a template refuses the values.
    """
    with Chart.load(CHART) as chart:
        files = chart.render(merged(values), name=name)
    return [manifest for text in files.values() for manifest in yaml.safe_load_all(text) if manifest]


def complaints(values: Mapping[str, Any]) -> Iterator[str]:
    """What Helm's strict lint, or the API's schemas in any version, have against the chart with these values."""
    report = lint(CHART, merged(values), strict=True)
    yield from (message["error"] for message in report["messages"] if message["severity"] > 1)
    yield from report["errors"]
    for manifest in rendered(values):
        for version in KUBERNETES_VERSIONS:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{manifest['kind']} {manifest['metadata']['name']}, Kubernetes {version}: {error.message}"
