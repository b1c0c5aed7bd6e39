"""gRPC runs in these tests, in both versions."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def loop_for_grpc(one_loop: None) -> None:
    """See `one_loop`."""


@pytest.fixture(params=["1.0", "0.3"])
def version(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen
