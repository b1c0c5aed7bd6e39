"""gRPC runs in some of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.auth.issuer import Provider, provider


@pytest.fixture(autouse=True)
def loop_for_grpc(one_loop: None) -> None:
    """See `one_loop`."""


@pytest.fixture(scope="session")
def only_idp() -> Iterator[Provider]:
    with provider() as served:
        yield served


@pytest.fixture
def idp(only_idp: Provider) -> Provider:
    """An OpenID provider, as new."""
    only_idp.reset()
    return only_idp
