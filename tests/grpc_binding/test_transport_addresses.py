"""errands' own client over gRPC: which address and version it can be made for."""

from __future__ import annotations

import pytest

from errands.client.credentials import Origins
from errands.client.grpc_transport import GrpcTransport
from errands.client.http_requests import grpc_origin, grpc_target
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
    assert grpc_target(url)[:2] == (target, is_secure)


@pytest.mark.parametrize("url", ["", "ftp://agent.example.com", "https://", "agent:port", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        grpc_target(url)


@pytest.mark.parametrize(
    "url",
    [
        "//198.51.100.1:50051/://agent.example.com",
        "dns://agent.example.com/198.51.100.1:50051",
        "unix:/run/agent.sock/://agent.example.com",
        "http://agent.example.com@198.51.100.1:50051",
        "http://[agent.example.com",
        "ftp://agent.example.com",
    ],
)
def test_secrets_do_not_go_to_a_host_that_is_only_mentioned_in_an_address(url: str) -> None:
    assert not Origins("http://agent.example.com").admits_grpc(url)
    assert "agent.example.com" not in grpc_origin(url)


async def test_a_version_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected one of 1\.0, 0\.3"):
        GrpcTransport("localhost:1", "2.0", headers={}, timeout=None)
