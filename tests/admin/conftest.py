"""gRPC runs in the same process as some of these tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def loop_for_grpc(one_loop: None) -> None:
    """See `one_loop`."""
