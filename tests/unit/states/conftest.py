"""The states of a task do not depend on where it is stored: tests run on two engines unless they say `every_engine`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import STORAGES


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORAGES[request.param](tmp_path)
