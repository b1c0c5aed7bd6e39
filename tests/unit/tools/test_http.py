"""`stateless_http` against a real service."""

from __future__ import annotations

import asyncio
import logging
import socket
import string
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from errands.agents.tools.base import Bounds, BrokenToolError, ToolError
from errands.agents.tools.http_actions import AddressValue, address, put_header
from errands.outbound import Outbound
from tests.ports import silent_port
from tests.unit.tools.support import NOW, Json, MemoryFiles, Service, action, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio

PARAMETERS: Json = {
    "id": {"type": "string", "default": ""},
    "n": {"type": "integer", "default": 0},
    "list": {"type": "array", "default": []},
}
SETTINGS = {
    "properties": {
        "base_url": {"type": "string", "default": ""},
        "api.key": {"type": "string", "format": "password", "default": "s3cr3t/key"},
    }
}


async def requested(folder: Path, request: Json, arguments: Json | None = None, **options: Any) -> Any:
    """The result of a tool whose one action is this request."""
    files = options.pop("files", None)
    agent = {"mount": "task"} if files else {}
    found = manifests(
        folder,
        tool(settings=SETTINGS, actions=[action("get", "stateless_http", request, **PARAMETERS)]),
        **agent,
    )
    async with calling(toolbox(found, **options), files) as caller:
        return await caller.call("crm", {"id": "", "n": 0, "list": [], **(arguments or {})})


def get(service: Service, path: str = "/", **more: Any) -> Json:
    return {"method": "GET", "url": service.url + path, **more}


def post(service: Service, body: Any = None, **more: Any) -> Json:
    return {"method": "POST", "url": f"{service.url}/", "body": body, **more}


# Requests


async def test_every_root_can_be_filled_in(tmp_path: Path, service: Service) -> None:
    body = {
        "parameters": "{parameters.id}",
        "settings": "{settings.base_url}",
        "context": "{context.user.email}",
        "runtime": "{runtime.version}",
        "now": "{now}",
        "agent": "{agent.namespace}/{agent.name}",
        "mount": "{mount.backend}:{mount.bucket}{mount.prefix}",
        "auth": "{auth.github()} {auth.github}",
    }
    await requested(
        tmp_path,
        post(service, body),
        {"id": "7"},
        settings={"crm": {"base_url": "https://b"}},
        auth={"github": "gh"},
        files=MemoryFiles(),
    )
    assert service.only.json == {
        "parameters": "7",
        "settings": "https://b",
        "context": "ann@example.com",
        "runtime": "1.2",
        "now": NOW,
        "agent": "shop/support",
        "mount": "local:files/shop/support/T-1/",
        "auth": "gh gh",
    }


async def test_a_service_gets_only_the_tokens_that_its_tool_names(tmp_path: Path, service: Service) -> None:
    body = {"one": "{auth.github}", "all": "{auth}"}
    await requested(tmp_path, post(service, body), auth={"github": "gh", "bank": "b"})
    assert service.only.json == {"one": "gh", "all": {"github": "gh"}}


async def test_a_text_of_a_body_that_is_one_expression_keeps_its_type(tmp_path: Path, service: Service) -> None:
    body = {"n": "{parameters.n}", "text": "n={parameters.n}", "deep": [{"list": "{parameters.list}"}], "fixed": 5}
    await requested(tmp_path, post(service, body), {"n": 3, "list": [1, "a"]})
    assert service.only.json == {"n": 3, "text": "n=3", "deep": [{"list": [1, "a"]}], "fixed": 5}
    assert service.only.header("content-type") == "application/json"


async def test_a_text_is_sent_as_it_is(tmp_path: Path, service: Service) -> None:
    await requested(tmp_path, post(service, "note: {parameters.id}"), {"id": "ä"})
    assert service.only.body == "note: ä".encode()
    assert service.only.header("content-type") == "text/plain; charset=utf-8"


async def test_a_form_is_sent_where_the_content_type_says_so(tmp_path: Path, service: Service) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    await requested(tmp_path, post(service, {"a": "{parameters.id}", "b": "1"}, headers=headers), {"id": "x&b=2"})
    assert parse_qsl(service.only.body.decode()) == [("a", "x&b=2"), ("b", "1")]


async def test_a_call_can_be_recognised_by_its_key(tmp_path: Path, service: Service) -> None:
    await requested(tmp_path, post(service))
    assert service.only.header("idempotency-key") == "call-1"


async def test_a_key_of_the_manifest_wins(tmp_path: Path, service: Service) -> None:
    await requested(tmp_path, post(service, headers={"idempotency-key": "own-{parameters.id}"}), {"id": "7"})
    assert service.only.header("idempotency-key") == "own-7"


async def test_reading_needs_no_key(tmp_path: Path, service: Service) -> None:
    await requested(tmp_path, get(service))
    assert service.only.header("idempotency-key") is None


async def test_the_whole_address_or_its_base_can_be_a_setting(tmp_path: Path, service: Service) -> None:
    settings = {"crm": {"base_url": f"{service.url}/v1/"}}
    await requested(tmp_path, {"method": "GET", "url": "{settings.base_url}"}, settings=settings)
    request = {"method": "GET", "url": "{settings.base_url}/orders/{parameters.id}"}
    await requested(tmp_path, request, {"id": "a/b"}, settings=settings)
    assert [seen.target for seen in service.seen] == ["/v1/", "/v1/orders/a%2Fb"]


async def test_a_host_with_its_port_can_be_a_setting(tmp_path: Path, service: Service) -> None:
    settings = {"crm": {"base_url": urlsplit(service.url).netloc}}
    await requested(tmp_path, {"method": "GET", "url": "http://{settings.base_url}/x"}, settings=settings)
    assert service.only.target == "/x"


async def test_the_method_can_be_filled_in_with_one_of_those_there_are(tmp_path: Path, service: Service) -> None:
    request = get(service, method="{parameters.id}")
    await requested(tmp_path, request, {"id": "delete"})
    assert service.only.method == "DELETE"
    with pytest.raises(ToolError, match=r"the method 'TRACE' cannot be used; it must be one of GET, POST"):
        await requested(tmp_path, request, {"id": "TRACE"})


async def test_a_value_that_is_missing_is_an_error_and_nothing_is_sent(tmp_path: Path, service: Service) -> None:
    with pytest.raises(ToolError, match=r"the request cannot be made: Key not found in map .*context.output"):
        await requested(tmp_path, get(service, "/{context.output[0].phone}"))
    assert service.seen == []


# Injection


@pytest.mark.parametrize("value", ["a/b", "a?b=1", "a#b", "a&b=1", "a%2Fb", "a b", "ä", "a@b", "a:b", "a;b", "a\\b"])
async def test_a_value_fills_its_place_in_an_address_and_nothing_else(
    tmp_path: Path, service: Service, value: str
) -> None:
    await requested(tmp_path, get(service, "/pages/{parameters.id}/text?q={parameters.id}&lang=en"), {"id": value})
    path, _, query = service.only.target.partition("?")
    assert [unquote(step) for step in path.split("/")] == ["", "pages", value, "text"]
    assert parse_qsl(query) == [("q", value), ("lang", "en")]


@pytest.mark.parametrize("value", ["..", ".", "../admin", "a/../../b", "..\\admin", ""])
async def test_a_value_leads_nowhere_else(tmp_path: Path, service: Service, value: str) -> None:
    with pytest.raises(ToolError, match=r"cannot be used in the address|is empty"):
        await requested(tmp_path, get(service, "/pages/{parameters.id}/text"), {"id": value})
    assert service.seen == []


@pytest.mark.parametrize("value", ["evil.com/", "a@evil.com", "evil.com#", "a.b", "a:1", "", "ä"])
async def test_a_value_is_one_part_of_a_host(tmp_path: Path, value: str) -> None:
    with pytest.raises(ToolError, match="it must be letters, digits"):
        await requested(tmp_path, {"method": "GET", "url": "https://{parameters.id}.example.com/"}, {"id": value})


def test_passwords_do_not_belong_into_addresses() -> None:
    with pytest.raises(BrokenToolError, match="put credentials into headers"):
        address([AddressValue("https://ann:pass@example.com/")])


PIECES: list[str | AddressValue] = ["https://example.com/pages/", "PATH", "/text?a=1&q=", "QUERY", "&z=1#", "FRAGMENT"]


def filled(path: str, query: str, fragment: str) -> Any:
    values = {"PATH": path, "QUERY": query, "FRAGMENT": fragment}
    return address([AddressValue(values[piece]) if piece in values else piece for piece in map(str, PIECES)])


@given(st.text(), st.text(), st.text())
async def test_no_value_changes_the_structure_of_an_address(path: str, query: str, fragment: str) -> None:
    try:
        url = filled(path, query, fragment)
    except ToolError:
        return
    assert (url.scheme, url.host, url.port) == ("https", "example.com", None)
    raw, _, parameters = url.raw_path.decode().partition("?")
    assert [unquote(step) for step in raw.split("/")] == ["", "pages", path, "text"]
    assert parse_qsl(parameters, keep_blank_values=True) == [("a", "1"), ("q", query), ("z", "1")]


@given(st.text(alphabet=string.printable))
async def test_no_value_adds_a_header(value: str) -> None:
    headers = httpx.Headers()
    try:
        put_header(headers, "X-Value", value)
    except ToolError:
        assert any(character in value for character in "\r\n\x0b\x0c")
        return
    assert headers.raw == [(b"X-Value", value.strip().encode())]


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\x00b"])
async def test_a_header_stays_one_header(tmp_path: Path, service: Service, value: str) -> None:
    if "\x00" in value:
        # The language replaces it before a header is made of it.
        await requested(tmp_path, get(service, headers={"X-Id": "{parameters.id}"}), {"id": value})
        assert "\x00" not in str(service.only.headers)
        return
    with pytest.raises(ToolError, match="the value of the header X-Id has line breaks or control characters"):
        await requested(tmp_path, get(service, headers={"X-Id": "{parameters.id}"}), {"id": value})
    assert service.seen == []


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Host", "a b", "a:b", ""])
def test_some_headers_are_not_the_tools(name: str) -> None:
    with pytest.raises(BrokenToolError, match=r"the header .* cannot be sent; remove it from the tool"):
        put_header(httpx.Headers(), name, "1")


# Answers


async def test_json_comes_back_as_json(tmp_path: Path, service: Service) -> None:
    service.answers({"items": [{"id": 1}, {"id": 2}], "total": 2.5})
    assert await requested(tmp_path, get(service)) == {"items": [{"id": 1}, {"id": 2}], "total": 2.5}


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("$.items[0].id", 1),
        ("$.items[*].id", [1, 2]),
        ("$.items[?@.id > 5]", []),
        ("$", {"items": [{"id": 1}, {"id": 2}]}),
    ],
)
async def test_a_part_of_an_answer_can_be_taken(tmp_path: Path, service: Service, path: str, result: Any) -> None:
    service.answers({"items": [{"id": 1}, {"id": 2}]})
    assert await requested(tmp_path, get(service, response_path=path)) == result


async def test_a_part_that_is_not_there_is_an_error_for_the_model(tmp_path: Path, service: Service) -> None:
    with pytest.raises(ToolError, match=r"the answer has nothing at \$\.data\.id"):
        await requested(tmp_path, get(service, response_path="$.data.id"))


@pytest.mark.parametrize("kind", ["text/plain", "text/html; charset=iso-8859-1", "application/xml", "image/svg+xml"])
async def test_text_comes_back_as_text(tmp_path: Path, service: Service, kind: str) -> None:
    charset = "latin-1" if "8859" in kind else "utf-8"
    service.sends("schön".encode(charset), kind)
    assert await requested(tmp_path, get(service)) == "schön"


@pytest.mark.parametrize("charset", ["undefined", "idna", "zip", "no-such", "unicode_escape", "utf-7"])
@pytest.mark.parametrize("status", [200, 500])
async def test_whatever_charset_a_service_names_there_is_a_text(
    tmp_path: Path, service: Service, charset: str, status: int
) -> None:
    service.sends(b"half \\ud83d +2D0-", f"text/plain; charset={charset}", status)
    try:
        told = str(await requested(tmp_path, get(service)))
    except ToolError as error:
        told = str(error)
    assert "half" in told
    assert told.encode()


async def test_nothing_comes_back_as_null(tmp_path: Path, service: Service) -> None:
    service.sends(b"", "text/plain", 204)
    assert await requested(tmp_path, get(service)) is None


async def test_what_is_neither_json_nor_text_cannot_be_used(tmp_path: Path, service: Service) -> None:
    service.sends(b"\x89PNG", "image/png")
    with pytest.raises(ToolError, match="the answer is image/png, and only JSON and text can be used"):
        await requested(tmp_path, get(service))


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000])
async def test_json_that_is_none_is_an_error_for_the_model(tmp_path: Path, service: Service, content: bytes) -> None:
    service.sends(content, "application/json")
    with pytest.raises(ToolError, match="the answer is not valid JSON"):
        await requested(tmp_path, get(service))


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_bad_status_is_an_error_for_the_model(tmp_path: Path, service: Service, status: int) -> None:
    service.sends(b"out of kettles " * 1000, "text/plain", status)
    with pytest.raises(ToolError) as raised:
        await requested(tmp_path, get(service))
    assert f"127.0.0.1 answered {status} " in str(raised.value)
    assert "out of kettles" in str(raised.value)
    assert len(str(raised.value)) < 600


async def test_redirects_are_not_followed(tmp_path: Path, service: Service) -> None:
    service.answers({}, 302, Location="http://169.254.169.254/latest")
    with pytest.raises(ToolError, match=r"302 Found and points to http://169.254.169.254/latest; redirects are not"):
        await requested(tmp_path, get(service))
    assert len(service.seen) == 1


async def test_an_answer_that_is_too_large_is_not_read(tmp_path: Path, service: Service) -> None:
    service.sends(b"x" * 2000, "text/plain")
    with pytest.raises(ToolError, match="has more than 1,000 bytes"):
        await requested(tmp_path, get(service), bounds=Bounds(max_bytes=1000))


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    writer.close()


async def test_a_service_that_does_not_answer_in_time_is_an_error_for_the_model(tmp_path: Path) -> None:
    async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(ToolError, match=r"127\.0\.0\.1 did not answer within 0\.1 s"):
            await requested(tmp_path, {"method": "GET", "url": url}, bounds=Bounds(timeout=0.1))


async def test_a_connection_that_breaks_is_an_error_for_the_model(tmp_path: Path) -> None:
    async with await asyncio.start_server(hanging_up, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(ToolError, match=r"the connection to 127\.0\.0\.1 broke"):
            await requested(tmp_path, {"method": "GET", "url": url})


async def test_a_port_where_nobody_listens_breaks_the_tool(tmp_path: Path) -> None:
    with silent_port() as port, pytest.raises(BrokenToolError, match=rf"cannot connect to 127\.0\.0\.1:{port}"):
        await requested(tmp_path, {"method": "GET", "url": f"http://127.0.0.1:{port}/"})


async def test_a_name_that_nobody_knows_breaks_the_tool(tmp_path: Path) -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(BrokenToolError, match=r"cannot connect to crm\.example:443 .*Name or service not known"):
        await requested(tmp_path, {"method": "GET", "url": "https://crm.example/"}, outbound=Outbound(resolve=unknown))


async def test_the_guard_stands_before_every_request(tmp_path: Path, service: Service) -> None:
    with pytest.raises(BrokenToolError, match=r"127\.0\.0\.1 is this machine.*ERRANDS_OUTBOUND_ALLOW=127"):
        await requested(tmp_path, get(service), outbound=Outbound())
    assert service.seen == []


# Secrets


async def test_secrets_are_sent_and_never_told(
    tmp_path: Path, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"Authorization": "Bearer {settings.api.key}", "X-Token": "{auth.github}"}
    service.answer = lambda request: JSONResponse({"echo": dict(request.headers), "url": str(request.url)})
    request = get(service, "/?key={settings.api.key}", headers=headers)
    result = await requested(tmp_path, request, auth={"github": "gh-token"})
    assert service.only.header("authorization") == "Bearer s3cr3t/key"
    assert service.only.header("x-token") == "gh-token"
    assert result["echo"]["authorization"] == "Bearer [secret]"
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("uvicorn")]
    assert logged, "what the connection logs is looked at, too"
    told = msgspec.json.encode([result, logged]).decode()
    assert "s3cr3t" not in told
    assert "gh-token" not in told


async def test_secrets_are_taken_out_of_errors(tmp_path: Path, service: Service) -> None:
    service.answers({"detail": 'no such key "s3cr3t/key"', "quoted": "s3cr3t%2Fkey"}, 401)
    with pytest.raises(ToolError) as raised:
        await requested(tmp_path, get(service, headers={"Authorization": "{settings.api.key}"}))
    assert "s3cr3t" not in str(raised.value)
    assert "[secret]" in str(raised.value)
    assert raised.value.__cause__ is None


async def test_what_is_cut_off_leaves_nothing_of_a_secret(tmp_path: Path, service: Service) -> None:
    request = get(service, headers={"Authorization": "{settings.api.key}"})
    for length in range(485, 505):
        service.sends(b"x" * length + b"s3cr3t/key", "text/plain", 500)
        with pytest.raises(ToolError) as raised:
            await requested(tmp_path, request)
        assert "s3" not in str(raised.value)
    for length in range(1985, 2005, 3):
        with pytest.raises(BrokenToolError) as broken:
            await requested(
                tmp_path,
                {"method": "GET", "url": "{parameters.id}{settings.api.key}"},
                {"id": "http://[" + "x" * length + "/"},
            )
        assert "s3" not in str(broken.value)
        assert len(str(broken.value)) <= 2001
