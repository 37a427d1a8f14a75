"""What the tests of several folders share: the device they run on, and the small real model."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from pilotfish import models

# The same examples every time, and no time limit: machines that run tests are busy.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where engine tests run: cpu (default), cuda, cuda:1, …")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the real model, so that `-m 'not model'` leaves it out."""
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device given by --device."""
    return str(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The directory of SmolLM2-135M-Instruct, fetched and converted where that was not done before."""
    return models.fetch("smollm2-135m")
