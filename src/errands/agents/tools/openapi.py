"""`openapi`: the operations of a service that describes itself with OpenAPI 3.0 or 3.1."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote, urlencode, urljoin

import httpx
import msgspec

from errands.agents.manifests.documents import OpenApi
from errands.agents.manifests.findings import suggestion
from errands.agents.manifests.schemas import Schema, pointed, usable
from errands.agents.manifests.yaml_nodes import UnreadableError, documents
from errands.agents.tools import base
from errands.agents.tools.base import Backend, BrokenToolError, Discovered, Equipment, Invocation, ToolError
from errands.agents.tools.http_actions import body_of, finished, parsed, put_header, segment, send
from errands.policy.cel.values import Json, as_text, normalise

logger = logging.getLogger(__name__)

Object = dict[str, Any]

#: Models cannot choose among more.
MAX_OPERATIONS = 300
#: Schemas of one operation, and of all of them, with references written out; what comes after them is not described.
MAX_SCHEMAS = 2_000
MAX_SCHEMAS_IN_ALL = 100_000
#: The setting for the header `Authorization`, used if the document's own security does not apply.
AUTHORIZATION = "authorization"
#: The parameter for a body that is not an object.
BODY = "body"

_METHODS = ("get", "put", "post", "patch", "delete")
_MAX_REFERENCES = 20
_MAX_DEPTH = 12
#: Models accept names and read descriptions of this length.
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_000
_MAX_SUGGESTED = 50

#: Where parameters may be, and the style they have there by default.
_STYLES = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_SEPARATORS = {"spaceDelimited": " ", "pipeDelimited": "|"}
#: Headers that the security and the body of an operation set.
_NOT_PARAMETERS = frozenset({"accept", "content-type", "authorization"})
#: Media types of a body that can be sent, the best first.
_MEDIA = (r"application/json\b", r"[^;]+\+json\b", r"application/x-www-form-urlencoded", r"\*/\*", r"text/plain")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_NOT_IN_PATH_NAMES = re.compile(r"[^A-Za-z0-9]+")
_IN_PATH = re.compile(r"\{([^{}]+)\}")

#: Keywords that are copied. Patterns are not: the service checks them in any case.
_COPIED = frozenset(
    """
    type title description format default enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minLength maxLength minItems maxItems uniqueItems minProperties maxProperties
    """.split()  # noqa: SIM905 - it reads as a list of words
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not")


class OpenApiBackend(Backend):
    async def discover(self, action: str | None) -> list[Discovered]:
        document, wanted = await self._document(action)
        names = document.names if wanted is None else [wanted]
        if len(names) > MAX_OPERATIONS:
            raise BrokenToolError(
                f"{document.url} has {len(names)} operations, and at most {MAX_OPERATIONS} can be offered "
                "at once; write actions that each name their operation"
            )
        # A large document takes some time.
        found = await asyncio.to_thread(lambda: [document.operation(name) for name in names])
        if wanted is not None:
            _expect(document, wanted)
        return [
            Discovered(name=one.name, description=one.description, parameters=one.parameters) for one in found if one
        ]

    async def invoke(self, invocation: Invocation) -> Json:
        document, wanted = await self._document(invocation.action)
        operation = _expect(document, invocation.operation or wanted or "")
        made = build_request(operation, invocation.arguments, self.equipment.settings, key=invocation.call)
        return await (await send(self.equipment, made)).result()

    async def _document(self, action: str | None) -> tuple[ApiDocument, str | None]:
        """Return the document, fetched once per process, and the only operation of the action."""
        configured = base.configuration(self.equipment.tool, action, OpenApi)
        url = configured.url or ""
        found = await self.equipment.shared.get(("openapi", url), lambda: fetch_document(self.equipment, url))
        return found, configured.operation


def _expect(document: ApiDocument, name: str) -> ApiOperation:
    operation = document.operation(name)
    if operation is None:
        problem = "needs a body that cannot be sent" if name in document.names else "does not exist"
        remedy = suggestion(name, document.names[:_MAX_SUGGESTED], "name another one")
        raise BrokenToolError(f"{document.url}: the operation {name} {problem}; {remedy}")
    return operation


# Documents


class ParameterPlace(msgspec.Struct, frozen=True):
    """Where the value of a parameter is sent."""

    location: Literal["path", "query", "header", "cookie", "body"]
    #: As the service calls it.
    name: str
    required: bool
    style: str = ""
    explode: bool = False
    #: Whether it is sent as JSON.
    is_json: bool = False


class ApiOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation with everything that a call needs."""

    name: str
    description: str
    method: str
    server: str
    path: str
    #: By the names that the model uses, like `places`.
    parameters: dict[str, Schema]
    places: dict[str, ParameterPlace]
    #: The media type of the body; None without a body.
    media: str | None
    #: Whether the body is the parameter `body`, and not made of several.
    whole_body: bool
    body_required: bool
    #: Alternatives of security schemes, by name, and the schemes.
    security: list[list[str]]
    schemes: dict[str, Object]


async def fetch_document(equipment: Equipment, url: str) -> ApiDocument:
    """Raises `BrokenToolError` for anything but an OpenAPI document, and `ToolError` if it is not available now."""
    headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5"}
    answer = await send(equipment, httpx.Request("GET", parsed(url), headers=headers))
    root = await asyncio.to_thread(_read, url, answer.content)
    version = root.get("openapi") if isinstance(root, dict) else None
    if not isinstance(version, str) or not version.startswith("3."):
        said = f"it says openapi: {version}" if version else "it has no field openapi"
        raise BrokenToolError(f"{url} is not an OpenAPI 3 document; {said}")
    return ApiDocument(url, root)


def _read(url: str, content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise BrokenToolError(f"{url} is nested too deeply") from None
    except msgspec.DecodeError as error:
        if content.lstrip()[:1] in (b"{", b"["):
            raise BrokenToolError(f"{url} is not valid JSON ({error})") from None
    try:
        # Mistakes such as the key 200 are ignored; they are in parts that are not used.
        first = next(documents(content.decode("utf-8", "replace"), lambda line, problem, remedy: None), None)
    except UnreadableError as error:
        raise BrokenToolError(f"{url}, line {error.line}, {error.problem}") from None
    return first.plain() if first else None


class ApiDocument:
    """An OpenAPI document and its operations by name: their `operationId`, or method and path."""

    def __init__(self, url: str, root: Object) -> None:
        self.url = url
        self.root = root
        #: Schemas that were written out so far, of all operations.
        self.schemas_written = 0
        self._operations: dict[str, ApiOperation | None] = {}
        #: Path, method, what holds for the path, and the operation.
        self._entries: dict[str, tuple[str, str, Object, Object]] = {}
        for path, item in _dict(root.get("paths")).items():
            shared = self.resolved(item)
            for method in _METHODS:
                if not isinstance(operation := shared.get(method), dict):
                    continue
                name = operation.get("operationId")
                if not isinstance(name, str) or not name or name in self._entries:
                    name = f"{method}_{_NOT_IN_PATH_NAMES.sub('_', path).strip('_')}".rstrip("_")
                self._entries.setdefault(name, (path, method, shared, operation))

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def operation(self, name: str) -> ApiOperation | None:
        """Return None if the operation does not exist, or if its body is of a kind that errands does not send."""
        if name in self._operations or name not in self._entries:
            return self._operations.get(name)
        path, method, shared, operation = self._entries[name]
        body = self.resolved(operation.get("requestBody"))
        kinds = list(_dict(body.get("content")))
        sendable = (kind for wanted in _MEDIA for kind in kinds if re.match(wanted, kind))
        media = next(sendable, None)
        if body and media is None:
            offered = ", ".join(kinds) or "nothing"
            logger.warning("%s: the operation %s is left out because its body is %s", self.url, name, offered)
            self._operations[name] = None
            return None
        # The parameters of the operation win over those of the path.
        declared: dict[tuple[str, str], Object] = {}
        for holder in (shared, operation):
            listed = holder.get("parameters")
            for parameter in map(self.resolved, listed if isinstance(listed, list) else []):
                location, own_name = parameter.get("in"), parameter.get("name")
                if location in _STYLES and isinstance(own_name, str) and own_name:
                    declared[location, own_name] = parameter
        parameters = _OperationParameters(self)
        for parameter in sorted(declared.values(), key=lambda one: list(_STYLES).index(one["in"])):
            parameters.add_parameter(parameter)
        whole = parameters.add_body(body, media) if media else False
        texts = [operation.get("summary"), operation.get("description")]
        description = "\n".join(text for text in texts if isinstance(text, str) and text) or f"{method} {path}"
        security = operation.get("security", self.root.get("security"))
        schemes = self.resolved(self.resolved(self.root.get("components")).get("securitySchemes"))
        self._operations[name] = ApiOperation(
            name=name,
            description=description[:_MAX_DESCRIPTION],
            method=method.upper(),
            server=self._server(operation, shared),
            path=path,
            parameters=parameters.schemas,
            places=parameters.places,
            media="application/json" if media == "*/*" else media,
            whole_body=whole,
            body_required=body.get("required") is True,
            security=[list(one) for one in security if isinstance(one, dict)] if isinstance(security, list) else [],
            schemes={scheme: self.resolved(schemes[scheme]) for scheme in schemes},
        )
        return self._operations[name]

    def resolved(self, node: Any) -> Object:
        """Return an object, or the one that its `$ref` points to; empty if it is missing."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                break
            node = pointed(self.root, node["$ref"])
        return node if isinstance(node, dict) and not isinstance(node.get("$ref"), str) else {}

    def _server(self, *holders: Object) -> str:
        """Return the base address of the operation, relative to the document, from the first holder that has one."""
        lists = [holder.get("servers") for holder in (*holders, self.root)]
        first = next((_dict(servers[0]) for servers in lists if isinstance(servers, list) and servers), {})
        url = str(first.get("url", "/"))
        for name, variable in _dict(first.get("variables")).items():
            url = url.replace(f"{{{name}}}", str(_dict(variable).get("default", "")))
        return str(parsed(urljoin(self.url, url))).rstrip("/")


def _dict(value: Any) -> Object:
    """Return the value, or an empty dict if a document has something else there."""
    return value if isinstance(value, dict) else {}


class _OperationParameters:
    """Collects the parameters of one operation under unique names."""

    def __init__(self, document: ApiDocument) -> None:
        self._document = document
        self._schemas_left = MAX_SCHEMAS
        self.schemas: dict[str, Schema] = {}
        self.places: dict[str, ParameterPlace] = {}

    def add_parameter(self, parameter: Object) -> None:
        location, name = parameter["in"], parameter["name"]
        if location == "header" and name.lower() in _NOT_PARAMETERS:
            return
        style = str(parameter.get("style", _STYLES[location]))
        content = next(iter(_dict(parameter.get("content")).values()), None)
        schema = parameter.get("schema") if content is None else self._document.resolved(content).get("schema")
        place = ParameterPlace(
            location,
            name,
            required=location == "path" or parameter.get("required") is True,
            style=style,
            explode=parameter.get("explode", style == "form") is True,
            is_json=content is not None,
        )
        self._add(place, self._written_out(schema), parameter.get("description"))

    def add_body(self, body: Object, media: str) -> bool:
        """Return whether the body is one parameter as a whole."""
        required = body.get("required") is True
        schema = self._written_out(self._document.resolved(body["content"][media]).get("schema"))
        fields = None if media.startswith("text/") else _as_object(schema)
        if fields is None or not fields["properties"]:
            self._add(ParameterPlace("body", BODY, required), schema, body.get("description"))
            return True
        for name, one in fields["properties"].items():
            self._add(ParameterPlace("body", name, required and name in fields["required"]), one)
        return False

    def _add(self, place: ParameterPlace, schema: Schema, description: Any = None) -> None:
        if isinstance(description, str) and description:
            schema = {**schema, "description": description}
        name = free = _NOT_IN_NAMES.sub("_", place.name)[:_MAX_NAME]
        number = 1
        # Two parameters of one name are distinguished by their locations.
        while free in self.places:
            suffix = f"_{place.location}" + (str(number) if number > 1 else "")
            free = name[: _MAX_NAME - len(suffix)] + suffix
            number += 1
        self.places[free] = place
        self.schemas[free] = usable(schema) if place.required else base.optional(usable(schema))

    def _written_out(self, schema: Any, trail: tuple[str, ...] = ()) -> Schema:
        """Return JSON Schema without references and unknown keywords. A schema inside itself is not repeated."""
        self._schemas_left -= 1
        self._document.schemas_written += 1
        is_too_much = self._schemas_left < 0 or self._document.schemas_written > MAX_SCHEMAS_IN_ALL
        if not isinstance(schema, dict) or is_too_much or len(trail) > _MAX_DEPTH:
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            beside = {key: schema[key] for key in ("description", "default") if key in schema}
            target = None if reference in trail else pointed(self._document.root, reference)
            return {**self._written_out(target, (*trail, reference)), **beside}
        built = {key: value for key, value in schema.items() if key in _COPIED}
        named = _dict(schema.get("properties"))
        unsent = {name for name, one in named.items() if self._document.resolved(one).get("readOnly")}
        if named:
            built["properties"] = {
                name: self._written_out(one, trail) for name, one in named.items() if name not in unsent
            }
        if isinstance(required := schema.get("required"), list):
            built["required"] = [name for name in required if isinstance(name, str) and name not in unsent]
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                built[key] = [self._written_out(inner, trail) for inner in schema[key]]
        for key in _SINGLE:
            if isinstance(schema.get(key), dict):
                built[key] = self._written_out(schema[key], trail)
            elif isinstance(schema.get(key), bool):
                built[key] = schema[key]
        # OpenAPI 3.0 has its own way to say these.
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(built.get(exclusive), bool) and built.pop(exclusive) and bound in built:
                built[exclusive] = built.pop(bound)
        if schema.get("nullable") is True and isinstance(built.get("type"), str):
            built["type"] = [built["type"], "null"]
            if isinstance(built.get("enum"), list) and None not in built["enum"]:
                built["enum"] = [*built["enum"], None]
        return built


def _as_object(schema: Schema) -> Schema | None:
    """Return a schema as one object, with the properties of its `allOf`; None if it is something else."""
    kind = schema.get("type", "object")
    if "anyOf" in schema or "oneOf" in schema or "object" not in (kind if isinstance(kind, list) else [kind]):
        return None
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required: list[str] = list(schema.get("required", []))
    for part in schema.get("allOf", []):
        inner = _as_object(part)
        if inner is None:
            return None
        properties.update(inner["properties"])
        required += inner["required"]
    return {"properties": properties, "required": required}


# Requests


def build_request(
    operation: ApiOperation, arguments: Mapping[str, Json], settings: Mapping[str, Json], *, key: str
) -> httpx.Request:
    """Raises `ToolError` for values that cannot be sent in their place."""
    values = normalise(dict(arguments))
    given = [
        (place, values[name])
        for name, place in operation.places.items()
        if name in values and (values[name] is not None or place.required)
    ]
    headers = httpx.Headers()
    query: list[tuple[str, str]] = []
    cookies: list[tuple[str, str]] = []
    for place, value in given:
        if place.location == "query":
            query += _query_pairs(place, value)
        elif place.location == "header":
            put_header(headers, place.name, _simple(place, value))
        elif place.location == "cookie":
            cookies.append((place.name, _simple(place, value)))
    _authorize(operation, settings, headers, query, cookies)
    if cookies:
        pairs = (f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in cookies)
        put_header(headers, "Cookie", "; ".join(pairs))
    url = operation.server + _path(operation, given)
    if query:
        url += "?" + urlencode(query, quote_via=quote, safe="", errors="replace")
    content = _body(operation, given, headers)
    return finished(operation.method, parsed(url), headers, content, key=key)


def _path(operation: ApiOperation, given: list[tuple[ParameterPlace, Json]]) -> str:
    values = {place.name: _simple(place, value) for place, value in given if place.location == "path"}

    def fill(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise BrokenToolError(f"the operation {operation.name} does not declare {found[1]}, a part of its path")
        return segment(found[1], values[found[1]])

    path = _IN_PATH.sub(fill, operation.path)
    return path if path.startswith("/") else f"/{path}"


def _body(operation: ApiOperation, given: list[tuple[ParameterPlace, Json]], headers: httpx.Headers) -> bytes | None:
    values = {place.name: value for place, value in given if place.location == "body"}
    if operation.media is None or (not values and not operation.body_required):
        return None
    headers["Content-Type"] = operation.media
    if not operation.whole_body:
        return body_of(values, headers)
    [value] = values.values() or [None]
    if isinstance(value, str) and not operation.media.startswith("text/"):
        return msgspec.json.encode(value)
    return body_of(value, headers)


def _simple(place: ParameterPlace, value: Json) -> str:
    """Return one value in the styles `simple` and `form`."""
    if place.is_json or not isinstance(value, dict | list):
        return as_text(value)
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    return ",".join(f"{name}{'=' if place.explode else ','}{as_text(item)}" for name, item in value.items())


def _query_pairs(place: ParameterPlace, value: Json) -> Iterator[tuple[str, str]]:
    if place.is_json or not isinstance(value, dict | list):
        yield place.name, as_text(value)
    elif isinstance(value, list):
        if place.explode:
            yield from ((place.name, as_text(item)) for item in value)
        else:
            yield place.name, _SEPARATORS.get(place.style, ",").join(map(as_text, value))
    elif place.style == "deepObject":
        yield from ((f"{place.name}[{name}]", as_text(item)) for name, item in value.items())
    elif place.explode:
        yield from ((name, as_text(item)) for name, item in value.items())
    else:
        yield place.name, _simple(place, value)


def _authorize(
    operation: ApiOperation,
    settings: Mapping[str, Json],
    headers: httpx.Headers,
    query: list[tuple[str, str]],
    cookies: list[tuple[str, str]],
) -> None:
    """Use the first alternative for which the operator has given every credential."""
    for names in operation.security:
        if not names or not all(settings.get(name) and name in operation.schemes for name in names):
            continue
        for scheme, value in ((operation.schemes[name], str(settings[name])) for name in names):
            kind, where, name = scheme.get("type"), scheme.get("in"), str(scheme.get("name"))
            if kind == "apiKey" and where == "query":
                query.append((name, value))
            elif kind == "apiKey" and where == "cookie":
                cookies.append((name, value))
            elif kind == "apiKey":
                put_header(headers, name, value)
            elif kind == "http" and str(scheme.get("scheme")).lower() == "basic":
                put_header(headers, "Authorization", f"Basic {base64.b64encode(value.encode()).decode()}")
            elif kind in ("http", "oauth2", "openIdConnect"):
                put_header(headers, "Authorization", f"Bearer {value}")
            else:
                raise ToolError(f"the service requires security of the kind {kind}, which is not supported")
        return
    if settings.get(AUTHORIZATION):
        put_header(headers, "Authorization", str(settings[AUTHORIZATION]))
