"""errands' own client over gRPC: which address and version it can be made for."""

from __future__ import annotations

import pytest

from errands.client.grpc_transport import GrpcTransport, target_of
from errands.errors import ConfigurationError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "target", "is_secure"),
    [
        ("localhost:50051", "localhost:50051", False),
        ("127.0.0.1:50051", "127.0.0.1:50051", False),
        ("[::1]:50051", "[::1]:50051", False),
        ("http://agent.example.com:50051", "agent.example.com:50051", False),
        ("grpc://agent.example.com:50051/", "agent.example.com:50051", False),
        ("https://agent.example.com/a2a/grpc", "agent.example.com:443", True),
        ("grpcs://agent.example.com:8443", "agent.example.com:8443", True),
        ("dns:///agent.example.com:50051", "dns:///agent.example.com:50051", False),
        ("unix:/run/agent.sock", "unix:/run/agent.sock", False),
    ],
)
def test_an_address_says_where_and_whether_by_tls(url: str, target: str, is_secure: bool) -> None:
    assert target_of(url) == (target, is_secure)


@pytest.mark.parametrize("url", ["", "ftp://agent.example.com", "https://", "agent:port", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        target_of(url)


async def test_a_version_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected one of 1\.0, 0\.3"):
        GrpcTransport("localhost:1", "2.0", headers={}, timeout=None)
