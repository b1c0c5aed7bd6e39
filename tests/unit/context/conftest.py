"""What a handler may do does not depend on where its task is stored: two engines are enough to show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import STORAGES


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORAGES[request.param](tmp_path)
