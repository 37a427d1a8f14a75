"""Write into the chart's schema which settings each service has: `python helm/settings.py`; `--check` only compares.

The settings classes are the source: what they lack the schema refuses, and what they say of a key is its description.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from coordinator.settings import CoordinatorSettings
from drafter.settings import DrafterSettings
from pilotfish.settings import ServiceSettings
from verifier.settings import VerifierSettings

SCHEMA = Path(__file__).parent / "pilotfish" / "values.schema.json"
CLASSES: dict[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "drafter": DrafterSettings,
    "verifier": VerifierSettings,
}
# What the chart sets itself, from other values.
OWN = {
    "coordinator": {"host", "port", "model", "verifiers", "drafters", "otlp_endpoint", "otlp_protocol"},
    "drafter": {"host", "port", "otlp_endpoint", "otlp_protocol"},
    "verifier": {"host", "port", "model", "otlp_endpoint", "otlp_protocol"},
}
_DROPPED = {"title", "default", "items"}


def properties(role: str) -> dict[str, Any]:
    """The schema of a role's settings."""
    whole = CLASSES[role].model_json_schema()
    named = whole.get("$defs", {})
    return {name: _property(entry, named) for name, entry in whole["properties"].items() if name not in OWN[role]}


def _property(entry: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """A field's own schema, as a value of a variable: a list is written with commas, absence by leaving it out."""
    alternatives = [other for other in entry.get("anyOf", [entry]) if other.get("type") != "null"]
    chosen = alternatives[0] if alternatives else {}
    chosen = named[chosen["$ref"].rpartition("/")[2]] if "$ref" in chosen else chosen
    flat = {**chosen, **{key: entry[key] for key in entry if key not in {"anyOf", "$ref"}}}
    if flat.get("type") == "array":
        flat["type"] = "string"
    return {key: value for key, value in flat.items() if key not in _DROPPED}


def updated(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the settings of today."""
    for role in CLASSES:
        schema["properties"][role]["properties"]["settings"] = {
            "type": "object",
            "description": f"Settings of the service: PILOTFISH_{role.upper()}_<KEY>. Absent: the service's default.",
            "additionalProperties": False,
            "properties": properties(role),
        }
    return schema


def main(arguments: list[str]) -> int:
    """Write the schema, or with --check say whether it is what would be written."""
    old = SCHEMA.read_text(encoding="utf-8")
    new = json.dumps(updated(json.loads(old)), indent=2) + "\n"
    if arguments == ["--check"]:
        if new != old:
            print(f"{SCHEMA} is not what the settings classes say; run: python helm/settings.py", file=sys.stderr)
        return int(new != old)
    SCHEMA.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
