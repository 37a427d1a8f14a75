"""Lint and render the chart, and compare the manifests with the API's schemas: `python -m tests.helm.check`."""

from __future__ import annotations

import sys

from tests.helm.chart import EXAMPLES, KUBERNETES_VERSIONS, complaints


def main() -> int:
    """Print what is wrong; 1 where anything is."""
    found = [f"{example}: {complaint}" for example, values in EXAMPLES.items() for complaint in complaints(values)]
    print("\n".join(found) or f"chart: {len(EXAMPLES)} examples, Kubernetes {', '.join(KUBERNETES_VERSIONS)}: good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
