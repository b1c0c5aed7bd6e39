"""A scripted agent on each binding in turn."""

from __future__ import annotations

import pytest

from tests.unit.client.agent import BINDINGS, ScriptedAgent


@pytest.fixture(params=BINDINGS)
def agent(request: pytest.FixtureRequest) -> ScriptedAgent:
    return ScriptedAgent(request.param)
