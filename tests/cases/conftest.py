"""Services started by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cases import services
from tests.cases.services import Services, Start

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[Services]]
Starting: TypeAlias = Callable[..., AbstractAsyncContextManager[Start]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """`services.serve` in a folder of the test's own."""
    return partial(services.serve, tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Starting:
    """`services.start` in a folder of the test's own."""
    return partial(services.start, tmp_path)
