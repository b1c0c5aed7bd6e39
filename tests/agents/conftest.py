"""What the tests of manifest agents share: the service that tools call, and models that know no key but the test's."""

from __future__ import annotations

import pytest

from tests.agents.shop import Shop
from tests.agents.support import Heard
from tests.unit.tools.conftest import running, service

__all__ = ["running", "service"]


@pytest.fixture(autouse=True)
def _no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=["streamed", "whole"])
def on_text(request: pytest.FixtureRequest) -> Heard | None:
    return Heard() if request.param == "streamed" else None


@pytest.fixture
def shop() -> Shop:
    return Shop()
