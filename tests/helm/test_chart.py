from __future__ import annotations

from typing import Any

import pytest
from helm_python.errors import HelmError

from coordinator.settings import CoordinatorSettings
from drafter.settings import DrafterSettings
from tests.helm.chart import EXAMPLES, complaints, rendered
from verifier.settings import VerifierSettings

ROLES = ("coordinator", "drafter", "verifier")


def by_role(kind: str, values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    return {
        manifest["metadata"]["labels"]["app.kubernetes.io/component"]: manifest
        for manifest in rendered(values or {})
        if manifest["kind"] == kind
    }


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(only)


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container(deployment)["env"]}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_chart_is_sound(example: str) -> None:
    """Helm's strict lint and the API's schemas, oldest to newest, have nothing against the chart."""
    assert list(complaints(EXAMPLES[example])) == []


def test_the_schemas_have_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt field in a manifest is found."""
    manifest = rendered({})[0]
    manifest["spec"]["replica"] = 1
    monkeypatch.setattr("tests.helm.chart.rendered", lambda values: [manifest])
    assert any("replica" in complaint for complaint in complaints({}))


def test_each_role_is_a_deployment_and_a_service() -> None:
    """Coordinator, drafter and verifier are a Deployment and a Service each, whose selectors find the pods."""
    deployments, services = by_role("Deployment"), by_role("Service")
    assert set(deployments) == set(services) == set(ROLES)
    for role in ROLES:
        labels = deployments[role]["spec"]["template"]["metadata"]["labels"]
        for selector in (deployments[role]["spec"]["selector"]["matchLabels"], services[role]["spec"]["selector"]):
            assert selector.items() <= labels.items()
    assert [services[role]["spec"].get("clusterIP") for role in ROLES] == [None, "None", "None"]


def test_probes_ask_what_is_served() -> None:
    """Liveness asks for the process, readiness for the service by its name, both on the port that it listens on."""
    for role, deployment in by_role("Deployment", {"verifier": {"port": 7000}}).items():
        only = container(deployment)
        port = only["ports"][0]["containerPort"]
        assert environment(deployment)[f"PILOTFISH_{role.upper()}_PORT"] == str(port)
        assert only["livenessProbe"]["grpc"] == only["startupProbe"]["grpc"] == {"port": port}
        assert only["readinessProbe"]["grpc"] == {"port": port, "service": f"pilotfish.v1.{role.title()}"}


def test_the_coordinator_finds_the_others() -> None:
    """The coordinator is given the addresses of the Services of drafter and verifier, and the verifier's model."""
    values = {"verifier": {"port": 7000}, "model": "owner/name"}
    services, deployments = by_role("Service", values), by_role("Deployment", values)
    given = environment(deployments["coordinator"])
    assert given["PILOTFISH_COORDINATOR_VERIFIERS"] == f"{services['verifier']['metadata']['name']}:7000"
    assert given["PILOTFISH_COORDINATOR_DRAFTERS"] == f"{services['drafter']['metadata']['name']}:50051"
    assert given["PILOTFISH_COORDINATOR_MODEL"] == environment(deployments["verifier"])["PILOTFISH_VERIFIER_MODEL"]


def test_gpus_are_asked_for_only_where_wanted() -> None:
    """GPUs are a limit of the containers that want them, beside their other limits, and of no other."""
    deployments = by_role("Deployment", {"verifier": {"gpus": 2}, "drafter": {"gpus": 0}})
    limits = {role: container(deployment)["resources"]["limits"] for role, deployment in deployments.items()}
    assert limits["verifier"] == {"memory": "16Gi", "nvidia.com/gpu": 2}
    assert "nvidia.com/gpu" not in limits["drafter"] | limits["coordinator"]


def test_nothing_runs_as_root() -> None:
    """No container runs as root, may become it, or may write to its root file system."""
    for deployment in by_role("Deployment").values():
        assert deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
        security = container(deployment)["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)


def test_the_image_is_required() -> None:
    """Without an image repository the chart refuses, with the commands that build and push the images."""
    with pytest.raises(HelmError, match=r"docker build --target [^\n]+ docker push"):
        rendered({"image": {"repository": ""}})


def test_the_drafter_with_a_model_has_its_own_image() -> None:
    """A drafter that runs a model gets the image with torch, another the one without."""
    plain, torch = by_role("Deployment"), by_role("Deployment", {"drafter": {"withTorch": True}, "image": {"tag": "9"}})
    assert container(plain["drafter"])["image"] == "registry.local/pilotfish-drafter:0.1.0"
    assert container(torch["drafter"])["image"] == "registry.local/pilotfish-drafter-torch:9"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"verifer": {}}, "verifer"),
        ({"verifier": {"gpu": 1}}, "gpu"),
        ({"verifier": {"port": 99_999}}, "/verifier/port"),
        ({"verifier": {"settings": {"max_session": 1}}}, "max_session"),
        ({"verifier": {"settings": {"max_sessions": 0}}}, "max_sessions"),
        ({"coordinator": {"settings": {"verifiers": "elsewhere:1"}}}, "verifiers"),
        ({"drafter": {"replicas": 2}}, "replicas"),
        ({"verifier": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}, "nvidia.com/gpu"),
        ({"model": ""}, "/model"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], named: str) -> None:
    """A key the chart does not know, or a value that cannot be, is refused by its name."""
    with pytest.raises(HelmError, match=named):
        rendered(values)


def test_settings_become_what_the_services_read() -> None:
    """Each service, started with exactly the variables of its container, has the settings that the values say."""
    values = {
        "model": "owner/name",
        "coordinator": {"settings": {"gamma": 2}},
        "drafter": {"settings": {"speculators": "ngram"}},
        "verifier": {"settings": {"reproducible": True, "max_nodes": 8, "metrics_port": 9100}},
    }
    deployments = by_role("Deployment", values)
    coordinator = CoordinatorSettings.load(environment=environment(deployments["coordinator"]))
    drafter = DrafterSettings.load(environment=environment(deployments["drafter"]))
    verifier = VerifierSettings.load(environment=environment(deployments["verifier"]))
    assert (coordinator.host, coordinator.port, str(coordinator.gamma)) == ("0.0.0.0", 50050, "2")
    assert coordinator.model == verifier.model == "owner/name"
    assert coordinator.verifiers == (f"demo-verifier:{verifier.port}",)
    assert coordinator.drafters == (f"demo-drafter:{drafter.port}",)
    assert (verifier.reproducible, verifier.max_nodes) == (True, 8)
    assert drafter.speculators == ("ngram",)
    assert {"name": "metrics", "containerPort": verifier.metrics_port} in container(deployments["verifier"])["ports"]
