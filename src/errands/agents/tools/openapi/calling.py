"""From a call of an operation to the request that is sent."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode

import httpx
import msgspec

from errands.agents.tools.addresses import parsed, segment
from errands.agents.tools.base import BrokenToolError, ToolError
from errands.agents.tools.openapi.operations import Operation, Place, shown
from errands.agents.tools.requests import body, finished, put_header
from errands.policy.cel.values import Json, normalise

#: The setting that is the header `Authorization`, where the document's own security says nothing that fits.
AUTHORIZATION = "authorization"

_IN_PATH = re.compile(r"\{([^{}]+)\}")
_JOINED = {"spaceDelimited": " ", "pipeDelimited": "|"}


def request(
    operation: Operation, arguments: Mapping[str, Json], settings: Mapping[str, Json], *, key: str
) -> httpx.Request:
    """Raises `ToolError` for values that do not fit their place."""
    values = normalise(dict(arguments))
    given = [
        (place, values[name])
        for name, place in operation.places.items()
        if name in values and (values[name] is not None or place.required)
    ]
    headers = httpx.Headers()
    query: list[tuple[str, str]] = []
    cookies: list[str] = []
    for place, value in given:
        if place.location == "query":
            query += _pairs(place, value)
        elif place.location == "header":
            put_header(headers, place.name, _text(place, value))
        elif place.location == "cookie":
            cookies.append(f"{quote(place.name, safe='')}={quote(_text(place, value), safe='')}")
    _authorize(operation, settings, headers, query, cookies)
    if cookies:
        put_header(headers, "Cookie", "; ".join(cookies))
    url = operation.server + _path(operation, given)
    if query:
        url += "?" + urlencode(query, quote_via=quote, safe="", errors="replace")
    content = _body(operation, given, headers)
    return finished(operation.method, parsed(url), headers, content, key=key)


def _path(operation: Operation, given: list[tuple[Place, Json]]) -> str:
    values = {place.name: _text(place, value) for place, value in given if place.location == "path"}

    def fill(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise BrokenToolError(f"the operation {operation.name} does not declare {found[1]}, a part of its path")
        return segment(found[1], values[found[1]])

    path = _IN_PATH.sub(fill, operation.path)
    return path if path.startswith("/") else f"/{path}"


def _body(operation: Operation, given: list[tuple[Place, Json]], headers: httpx.Headers) -> bytes | None:
    values = {place.name: value for place, value in given if place.location == "body"}
    if operation.media is None or (not values and not operation.body_required):
        return None
    headers["Content-Type"] = operation.media
    if not operation.whole_body:
        return body(values, headers)
    [value] = values.values() or [None]
    if isinstance(value, str) and not operation.media.startswith("text/"):
        return msgspec.json.encode(value)
    return body(value, headers)


# How values are written


def _text(place: Place, value: Json) -> str:
    """The styles `simple` and `form` of one value."""
    if place.is_json or not isinstance(value, dict | list):
        return shown(value)
    if isinstance(value, list):
        return ",".join(map(shown, value))
    return ",".join(f"{name}{'=' if place.explode else ','}{shown(item)}" for name, item in value.items())


def _pairs(place: Place, value: Json) -> Iterator[tuple[str, str]]:
    if place.is_json or not isinstance(value, dict | list):
        yield place.name, shown(value)
    elif isinstance(value, list):
        if place.explode:
            yield from ((place.name, shown(item)) for item in value)
        else:
            yield place.name, _JOINED.get(place.style, ",").join(map(shown, value))
    elif place.style == "deepObject":
        yield from ((f"{place.name}[{name}]", shown(item)) for name, item in value.items())
    elif place.explode:
        yield from ((name, shown(item)) for name, item in value.items())
    else:
        yield place.name, _text(place, value)


# Security


def _authorize(
    operation: Operation,
    settings: Mapping[str, Json],
    headers: httpx.Headers,
    query: list[tuple[str, str]],
    cookies: list[str],
) -> None:
    """Uses the first alternative for which the operator has given every credential."""
    for names in operation.security:
        if names and all(settings.get(name) and name in operation.schemes for name in names):
            for name in names:
                _credential(operation.schemes[name], str(settings[name]), headers, query, cookies)
            return
    if settings.get(AUTHORIZATION):
        put_header(headers, "Authorization", str(settings[AUTHORIZATION]))


def _credential(
    scheme: Mapping[str, Json],
    value: str,
    headers: httpx.Headers,
    query: list[tuple[str, str]],
    cookies: list[str],
) -> None:
    kind, where, name = scheme.get("type"), scheme.get("in"), str(scheme.get("name"))
    if kind == "apiKey" and where == "query":
        query.append((name, value))
    elif kind == "apiKey" and where == "cookie":
        cookies.append(f"{quote(name, safe='')}={quote(value, safe='')}")
    elif kind == "apiKey":
        put_header(headers, name, value)
    elif kind == "http" and str(scheme.get("scheme")).lower() == "basic":
        put_header(headers, "Authorization", f"Basic {base64.b64encode(value.encode()).decode()}")
    elif kind in ("http", "oauth2", "openIdConnect"):
        put_header(headers, "Authorization", f"Bearer {value}")
    else:
        raise ToolError(f"the service wants security of the kind {kind}, which is not supported")
