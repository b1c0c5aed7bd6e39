"""The outbound guard, with real connections and resolvers that lie."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from errands.errors import ConfigurationError
from errands.outbound import Outbound, OutboundError, Resolve, refusal
from tests.live import live

pytestmark = pytest.mark.anyio

REFUSED = [
    ("127.0.0.1", "is this machine itself"),
    ("127.255.0.9", "is this machine itself"),
    ("::1", "is this machine itself"),
    ("10.1.2.3", "is private or reserved"),
    ("172.16.0.1", "is private or reserved"),
    ("192.168.1.1", "is private or reserved"),
    ("100.64.0.1", "is private or reserved"),
    ("100.100.100.200", "is private or reserved"),
    ("198.18.0.1", "is private or reserved"),
    ("192.0.2.1", "is private or reserved"),
    ("240.0.0.1", "is private or reserved"),
    ("255.255.255.255", "is private or reserved"),
    ("0.1.2.3", "is private or reserved"),
    ("fd00:ec2::254", "is private or reserved"),
    ("fec0::1", "is private or reserved"),
    ("2001:db8::1", "is private or reserved"),
    ("2001::1", "is private or reserved"),
    ("64:ff9b:1::1", "is private or reserved"),
    ("::7f00:1", "is private or reserved"),
    ("4000::1", "is private or reserved"),
    ("0.0.0.0", "is unspecified"),
    ("::", "is unspecified"),
    ("169.254.169.254", "is link-local"),
    ("fe80::1", "is link-local"),
    ("fe80::1%lo", "is link-local"),
    ("224.0.0.1", "is multicast"),
    ("ff02::1", "is multicast"),
    ("168.63.129.16", "belongs to the cloud's own services"),
    ("::ffff:127.0.0.1", "stands for 127.0.0.1, which is this machine itself"),
    ("::ffff:10.0.0.1", "stands for 10.0.0.1, which is private or reserved"),
    ("64:ff9b::a00:1", "stands for 10.0.0.1, which is private or reserved"),
    ("64:ff9b::a9fe:a9fe", "stands for 169.254.169.254, which is link-local"),
    ("2002:7f00:1::", "stands for 127.0.0.1, which is this machine itself"),
]


@pytest.mark.parametrize(("address", "reason"), REFUSED)
def test_only_public_addresses_are_open(address: str, reason: str) -> None:
    assert refusal(ipaddress.ip_address(address)) == reason


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_open(address: str) -> None:
    assert refusal(ipaddress.ip_address(address)) is None


@given(st.ip_addresses(v=4))
def test_an_address_in_disguise_is_judged_as_what_it_stands_for(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for disguise in ((0xFFFF << 32) + number, (0x64FF9B << 96) + number, (0x2002 << 112) + (number << 80)):
        assert (refusal(ipaddress.IPv6Address(disguise)) is None) == (refusal(address) is None)


# Connections


async def endpoint(request: Request) -> Response:
    if to := request.query_params.get("to"):
        return RedirectResponse(to)
    return JSONResponse({"host": request.headers["host"]})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(Starlette(routes=[Route("/", endpoint)])) as url:
        yield url


@pytest.fixture
def port(url: str) -> int:
    port = httpx.URL(url).port
    assert port
    return port


def resolving(*answers: list[str]) -> Resolve:
    """Gives one answer after the other, and the last one from then on."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


async def got(outbound: Outbound, url: str, **options: bool) -> httpx.Response:
    async with outbound.client(**options) as client:
        return await client.get(url)


async def test_this_machine_is_closed_and_the_error_says_how_it_is_opened(url: str) -> None:
    with pytest.raises(OutboundError) as raised:
        await got(Outbound(), url)
    assert str(raised.value) == (
        "127.0.0.1 is this machine itself, and only public addresses may be reached; "
        "whoever runs this server can open it with ERRANDS_OUTBOUND_ALLOW=127.0.0.1"
    )


async def test_a_name_is_judged_by_its_address(port: int) -> None:
    with pytest.raises(OutboundError) as raised:
        await got(Outbound(resolve=resolving(["10.0.0.5"])), f"http://crm.example:{port}/")
    assert str(raised.value).startswith("crm.example leads to 10.0.0.5, which is private or reserved, and only ")
    assert str(raised.value).endswith("ERRANDS_OUTBOUND_ALLOW=10.0.0.5 or ERRANDS_OUTBOUND_ALLOW=crm.example")


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.0.0.1", "0177.1", "[::1]", "0"])
async def test_other_spellings_of_this_machine_are_closed_too(port: int, host: str) -> None:
    with pytest.raises(OutboundError):
        await got(Outbound(), f"http://{host}:{port}/")


@pytest.mark.parametrize(
    "allow",
    [
        ["127.0.0.1"],
        ["127.0.0.0/8"],
        ["10.0.0.0/8", " 127.0.0.1/8 "],
        ["crm.example"],
        ["CRM.Example."],
        ["*.example"],
        ["*"],
    ],
)
async def test_the_operator_opens_addresses_networks_and_names(port: int, allow: list[str]) -> None:
    outbound = Outbound(allow, resolve=resolving(["127.0.0.1"]))
    response = await got(outbound, f"http://crm.example:{port}/")
    assert response.json() == {"host": f"crm.example:{port}"}


@pytest.mark.parametrize("allow", [["example"], ["*.crm.example"], ["10.0.0.0/8"], ["m.example"], ["::1"]])
async def test_what_the_operator_did_not_open_stays_closed(port: int, allow: list[str]) -> None:
    with pytest.raises(OutboundError):
        await got(Outbound(allow, resolve=resolving(["127.0.0.1"])), f"http://crm.example:{port}/")


async def test_an_open_network_is_open_in_disguise_too(port: int) -> None:
    outbound = Outbound(["127.0.0.0/8"], resolve=resolving(["::ffff:127.0.0.1"]))
    assert (await got(outbound, f"http://crm.example:{port}/")).status_code == 200


async def test_one_private_address_closes_a_name_that_has_a_public_one_too(port: int) -> None:
    for addresses in (["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]):
        with pytest.raises(OutboundError, match=r"crm\.example leads to 127\.0\.0\.1"):
            await got(Outbound(resolve=resolving(addresses)), f"http://crm.example:{port}/")


async def test_the_address_that_was_judged_is_the_one_that_is_used(port: int) -> None:
    """A name that is public when it is asked for first, and private a moment later."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    async with Outbound(["127.0.0.1"], resolve=rebinding).client() as client:
        assert (await client.get(f"http://crm.example:{port}/")).status_code == 200
        assert asked == ["crm.example"]
        await client.get(f"http://crm.example:{port}/", headers={"Connection": "close"})
        with pytest.raises(OutboundError, match=r"10\.0\.0\.1"):
            await client.get(f"http://crm.example:{port}/")


async def test_a_redirect_is_judged_like_any_other_address(url: str) -> None:
    outbound = Outbound(["127.0.0.1"])
    with pytest.raises(OutboundError, match=r"169\.254\.169\.254 is link-local"):
        await got(outbound, f"{url}/?to=http://169.254.169.254/latest", follow_redirects=True)


async def test_the_next_address_is_tried_when_nobody_answers_at_the_first(port: int) -> None:
    outbound = Outbound(["*"], resolve=resolving(["::1", "127.0.0.1"]))
    assert (await got(outbound, f"http://crm.example:{port}/")).status_code == 200


async def test_a_host_without_an_address_is_a_failure_to_connect() -> None:
    with pytest.raises(httpx.ConnectError, match="the name has no address"):
        await got(Outbound(resolve=resolving([])), "http://crm.example/")


async def test_a_name_that_cannot_be_resolved_is_a_failure_to_connect() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(httpx.ConnectError, match=r"crm\.example has no address .*Name or service not known"):
        await got(Outbound(resolve=unknown), "http://crm.example/")


async def test_nothing_but_http_is_spoken() -> None:
    async with Outbound(["*"]).client() as client:
        with pytest.raises((OutboundError, httpx.UnsupportedProtocol)):
            await client.get("ftp://example.com/")
    with pytest.raises(OutboundError, match="'ftp' may not be used, only http and https"):
        await Outbound(["*"]).transport().handle_async_request(httpx.Request("GET", "ftp://example.com/"))


async def test_proxies_of_the_environment_are_not_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await got(Outbound(["127.0.0.1"]), url)).status_code == 200


# The setting


OTHERS = "10.0.0.0/8,*.internal , db_1.internal,::1,fd00::/8"


@pytest.mark.parametrize("text", ["127.0.0.1", f"{OTHERS} , 127.0.0.0/8", f"*,{OTHERS}"])
async def test_the_setting_has_entries_with_commas_between_them(url: str, text: str) -> None:
    assert (await got(Outbound.from_setting(text), url)).status_code == 200


@pytest.mark.parametrize("text", [None, "", " , ", OTHERS])
async def test_what_the_setting_does_not_name_stays_closed(url: str, text: str | None) -> None:
    with pytest.raises(OutboundError):
        await got(Outbound.from_setting(text), url)


@pytest.mark.parametrize(
    "entry", ["http://a", "a:80", "127.0.0.1:80", "10.0.0.0/40", "1.2.3", "a b", "*.*", "a*", "[::1]"]
)
def test_an_entry_that_means_nothing_is_told(entry: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"ERRANDS_OUTBOUND_ALLOW: .* is no address, network or host name; write "
    ):
        Outbound([entry])


# Certificates


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of crm.example, signed by itself."""
    file = tmp_path / "crm.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=crm.example"]
    command += ["-addext", "subjectAltName=DNS:crm.example", "-keyout", str(file), "-out", str(tmp_path / "c")]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    file.write_text(file.read_text() + (tmp_path / "c").read_text())
    return file


async def test_a_certificate_is_compared_with_the_name_and_not_with_the_address(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    outbound = Outbound(["127.0.0.1"], resolve=resolving(["127.0.0.1"]))
    app = Starlette(routes=[Route("/", endpoint)])
    with live(app, ssl_certfile=str(certificate), ssl_cert_reqs=ssl.CERT_NONE) as url:
        port = httpx.URL(url).port
        assert (await got(outbound, f"https://crm.example:{port}/")).status_code == 200
        with pytest.raises(httpx.ConnectError, match=r"(?i)hostname mismatch|certificate"):
            await got(outbound, f"https://other.example:{port}/")
