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
    ("127.0.0.1", "is this machine"),
    ("127.255.0.9", "is this machine"),
    ("::1", "is this machine"),
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
    ("fd00::1", "is private or reserved"),
    ("fd00:ec2::254", "belongs to the cloud's own services"),
    ("192.0.0.192", "belongs to the cloud's own services"),
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
    ("::ffff:127.0.0.1", "leads to 127.0.0.1, which is this machine"),
    ("::ffff:10.0.0.1", "leads to 10.0.0.1, which is private or reserved"),
    ("64:ff9b::a00:1", "leads to 10.0.0.1, which is private or reserved"),
    ("64:ff9b::a9fe:a9fe", "leads to 169.254.169.254, which is link-local"),
    ("2002:7f00:1::", "leads to 127.0.0.1, which is this machine"),
]


@pytest.mark.parametrize(("address", "reason"), REFUSED)
def test_only_public_addresses_are_open(address: str, reason: str) -> None:
    assert refusal(ipaddress.ip_address(address)) == reason


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_open(address: str) -> None:
    assert refusal(ipaddress.ip_address(address)) is None


#: Every range that is not public, from its first to its last address: IANA's special-purpose registries without the
#: ranges that are globally reachable, multicast, and what lies outside of the global unicast addresses of IPv6.
CLOSED = [
    ("0.0.0.0", "0.255.255.255"),
    ("10.0.0.0", "10.255.255.255"),
    ("100.64.0.0", "100.127.255.255"),
    ("127.0.0.0", "127.255.255.255"),
    ("168.63.129.16", "168.63.129.16"),
    ("169.254.0.0", "169.254.255.255"),
    ("172.16.0.0", "172.31.255.255"),
    ("192.0.0.0", "192.0.0.255"),
    ("192.0.2.0", "192.0.2.255"),
    ("192.88.99.0", "192.88.99.255"),
    ("192.168.0.0", "192.168.255.255"),
    ("198.18.0.0", "198.19.255.255"),
    ("198.51.100.0", "198.51.100.255"),
    ("203.0.113.0", "203.0.113.255"),
    ("224.0.0.0", "255.255.255.255"),
    # Mapped IPv4 and NAT64, which lie in this range, stand for an IPv4 address.
    ("::", "::fffe:ffff:ffff"),
    ("::1:0:0:0", "64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("64:ff9b:0:0:0:1::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
]
#: The ranges of the registries inside of the IPv6 ranges above, and the addresses of cloud services.
SPECIAL = [
    *("64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/32", "2001:2::/48", "2001:10::/28", "2001:20::/28"),
    *("5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "::127.0.0.1/128", "::ffff:0:127.0.0.1/128"),
    *("169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32"),
    *("fd00:ec2::254/128", "fd20:ce::254/128"),
]


@pytest.mark.parametrize(("first", "last"), CLOSED)
def test_a_closed_range_is_closed_from_its_first_to_its_last_address(first: str, last: str) -> None:
    lowest, highest = ipaddress.ip_address(first), ipaddress.ip_address(last)
    middle = type(lowest)((int(lowest) + int(highest)) // 2)
    assert all(refusal(address) for address in (lowest, middle, highest))


@pytest.mark.parametrize(
    "neighbour",
    [
        *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0"),
        *("168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0"),
        *("191.255.255.255", "192.0.1.0", "192.0.1.255", "192.0.3.0", "192.88.98.255", "192.88.100.0"),
        *("192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0"),
        *("203.0.112.255", "203.0.114.0", "223.255.255.255", "2000::", "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        *("2001:200::", "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::", "2003::", "3fff:1000::"),
        *("3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ],
)
def test_the_neighbours_of_a_closed_range_are_open(neighbour: str) -> None:
    assert refusal(ipaddress.ip_address(neighbour)) is None


@pytest.mark.parametrize("network", SPECIAL)
def test_special_ranges_and_addresses_of_clouds_are_closed(network: str) -> None:
    special = ipaddress.ip_network(network)
    assert refusal(special[0])
    assert refusal(special[-1])


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
        "127.0.0.1 is this machine, and only public addresses may be reached; "
        "the operator of this server can open it with ERRANDS_OUTBOUND_ALLOW=127.0.0.1"
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
        ConfigurationError, match=r"ERRANDS_OUTBOUND_ALLOW: .* is not an address, network or host name; write "
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
