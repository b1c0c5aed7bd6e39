"""An OpenAPI document: fetched within bounds, read, and looked up by reference."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote, unquote, urlencode, urljoin

import httpx
import msgspec

from errands.agents.manifests.documents import OpenApi
from errands.agents.manifests.findings import suggestion
from errands.agents.manifests.nodes import UnreadableError, documents
from errands.agents.manifests.schemas import Schema
from errands.agents.tools.base import (
    Backend,
    BrokenToolError,
    Discovered,
    Equipment,
    Invocation,
    ToolError,
    configuration,
    optional,
)
from errands.agents.tools.http import body, finished, parsed, put_header, segment, send
from errands.agents.tools.references import usable
from errands.policy.cel.values import Json, normalise

# document

Object = dict[str, Any]

METHODS = ("get", "put", "post", "patch", "delete")
#: References that lead to references.
_MAX_CHAIN = 20


class Document:
    """A document and the address it came from."""

    def __init__(self, url: str, root: Object) -> None:
        self.url = url
        self.root = root
        #: Schemas of it that were written out so far.
        self.written_out = 0

    def resolved(self, node: Any) -> Object:
        """An object, or the one that its `$ref` leads to; empty when it leads nowhere in this document."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, dict):
                return {}
            if not isinstance(node.get("$ref"), str):
                return node
            node = self.at(node["$ref"])
        return {}

    def at(self, reference: str) -> Any:
        """What a local reference such as `#/components/schemas/Pet` points at; None when there is nothing."""
        if not reference.startswith("#/"):
            return None
        node: Any = self.root
        for step in reference[2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict):
                node = node.get(name)
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node

    def paths(self) -> Iterator[tuple[str, str, Object, Object]]:
        """Path, method, what holds for the path, and the operation."""
        for path, item in _objects(self.root.get("paths")):
            shared = self.resolved(item)
            for method in METHODS:
                if isinstance(operation := shared.get(method), dict):
                    yield path, method, shared, operation

    def server(self, *holders: Object) -> str:
        """The address that paths are appended to: of the first holder that says one, seen from the document."""
        said = [holder["servers"][0] for holder in (*holders, self.root) if _is_list(holder.get("servers"))]
        first = as_dict(said[0]) if said else {}
        url = str(first.get("url", "/"))
        for name, variable in _objects(first.get("variables")):
            url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
        return str(parsed(urljoin(self.url, url))).rstrip("/")


def as_dict(value: Any) -> Object:
    """The same, or an empty one where a document has something else."""
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterator[tuple[str, Object]]:
    for name, item in as_dict(value).items():
        if isinstance(item, dict):
            yield name, item


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


async def fetch_document(equipment: Equipment, url: str) -> Document:
    """Raises `BrokenToolError` for what is no such document, and `ToolError` when it cannot be had now."""
    headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"}
    answer = await send(equipment, httpx.Request("GET", parsed(url), headers=headers))
    root = await asyncio.to_thread(_read, url, answer.content)
    version = root.get("openapi") if isinstance(root, dict) else None
    if not isinstance(version, str) or not version.startswith("3."):
        said = f"it says openapi: {version}" if version else "it has no field openapi"
        raise BrokenToolError(f"{url} is no OpenAPI 3 document; {said}")
    return Document(url, root)


def _read(url: str, content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise BrokenToolError(f"{url} is nested too deeply") from None
    except msgspec.DecodeError as error:
        if content.lstrip()[:1] in (b"{", b"["):
            raise BrokenToolError(f"{url} is no JSON ({error})") from None
    try:
        # Keys such as 200 are passed over; they stand in what we do not read.
        first = next(documents(content.decode("utf-8", "replace"), lambda line, problem, remedy: None), None)
    except UnreadableError as error:
        raise BrokenToolError(f"{url}, line {error.line}, {error.problem}") from None
    return first.plain() if first else None


# schemas

#: Schemas that one operation is made of, written out, and all of them; what comes after them is not described.
MAX_SCHEMAS = 2_000
MAX_SCHEMAS_IN_ALL = 100_000
_MAX_DEPTH = 12

_COPIED = frozenset(
    """
    type title description format default enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minLength maxLength minItems maxItems uniqueItems minProperties maxProperties
    """.split()  # noqa: SIM905 - it reads as a list of words
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not")


class Schemas:
    """Writes out the schemas of one operation. What it does not know is left out, patterns as well.

    A pattern comes from somebody else and would run here; the service looks at it in any case.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_SCHEMAS

    def parameter(self, schema: Any, description: Any = None) -> Schema:
        """The schema of one parameter; anything at all is allowed by one that no validator can use."""
        built = self.plain(schema)
        if isinstance(description, str) and description:
            built["description"] = description
        return usable(built)

    def plain(self, schema: Any, trail: tuple[str, ...] = ()) -> Schema:
        """Written out; a schema inside itself is not repeated."""
        self._left -= 1
        self._document.written_out += 1
        is_too_much = self._left < 0 or self._document.written_out > MAX_SCHEMAS_IN_ALL
        if not isinstance(schema, dict) or is_too_much or len(trail) > _MAX_DEPTH:
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            beside = {key: schema[key] for key in ("description", "default") if key in schema}
            found = {} if reference in trail else self.plain(self._document.at(reference), (*trail, reference))
            return {**found, **beside}
        built = {key: value for key, value in schema.items() if key in _COPIED}
        self._properties(schema, built, trail)
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                built[key] = [self.plain(inner, trail) for inner in schema[key]]
        for key in _SINGLE:
            if isinstance(schema.get(key), dict):
                built[key] = self.plain(schema[key], trail)
            elif isinstance(schema.get(key), bool):
                built[key] = schema[key]
        return _modern(built, nullable=schema.get("nullable") is True)

    def _properties(self, schema: Schema, built: Schema, trail: tuple[str, ...]) -> None:
        """Those that are sent."""
        declared = schema.get("properties")
        named = declared if isinstance(declared, dict) else {}
        unsent = {name for name, one in named.items() if self._document.resolved(one).get("readOnly")}
        if named:
            built["properties"] = {name: self.plain(one, trail) for name, one in named.items() if name not in unsent}
        if isinstance(required := schema.get("required"), list):
            built["required"] = [name for name in required if isinstance(name, str) and name not in unsent]


def _modern(schema: Schema, *, nullable: bool) -> Schema:
    """What OpenAPI 3.0 says in its own way."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    if nullable and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    return schema


def as_object(schema: Schema) -> Schema | None:
    """A schema as one object, with the properties of its `allOf`; None when it is something else."""
    kind = schema.get("type", "object")
    if "anyOf" in schema or "oneOf" in schema or "object" not in (kind if isinstance(kind, list) else [kind]):
        return None
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required: list[str] = list(schema.get("required", []))
    for part in schema.get("allOf", []):
        inner = as_object(part)
        if inner is None:
            return None
        properties.update(inner["properties"])
        required += inner["required"]
    return {"properties": properties, "required": required}


# operations

logger = logging.getLogger(__name__)

#: The parameter for a body that is not an object.
BODY = "body"

_LOCATIONS = ("path", "query", "header", "cookie")
_STYLES = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
#: Said by others: by the security of the operation, and by its body.
_NOT_PARAMETERS = frozenset({"accept", "content-type", "authorization"})
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]")
_FOREIGN_IN_PATH = re.compile(r"[^A-Za-z0-9]+")
#: Models take no longer names, and read no longer descriptions.
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_000


class Place(msgspec.Struct, frozen=True):
    """Where the value of a parameter goes."""

    location: Literal["path", "query", "header", "cookie", "body"]
    #: As the service calls it.
    name: str
    required: bool
    style: str = ""
    explode: bool = False
    #: Written as JSON.
    is_json: bool = False


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What can be called, written out so far that a call needs no document."""

    name: str
    description: str
    method: str
    server: str
    path: str
    #: By the names that the model uses, as those in `places`.
    parameters: dict[str, Schema]
    places: dict[str, Place]
    #: The media type of the body; None when there is none.
    media: str | None
    #: The body is the parameter `body`, and not made of several.
    whole_body: bool
    body_required: bool
    #: Alternatives of security schemes, by name, and the schemes.
    security: list[list[str]]
    schemes: dict[str, Object]

    @property
    def discovered(self) -> Discovered:
        return Discovered(name=self.name, description=self.description, parameters=self.parameters)


class Entry(msgspec.Struct, frozen=True):
    """An operation where it stands."""

    path: str
    method: str
    shared: Object
    operation: Object


class Catalogue:
    """All operations of a document by name: their `operationId`, or method and path. Each is written out once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._read: dict[str, Operation | None] = {}
        self._entries: dict[str, Entry] = {}
        for path, method, shared, operation in document.paths():
            name = operation.get("operationId")
            if not isinstance(name, str) or not name or name in self._entries:
                name = f"{method}_{_FOREIGN_IN_PATH.sub('_', path).strip('_')}".rstrip("_")
            self._entries.setdefault(name, Entry(path, method, shared, operation))

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def operation(self, name: str) -> Operation | None:
        """None when there is none of this name, or its body is of a kind that errands does not send."""
        if name not in self._read and name in self._entries:
            self._read[name] = read(self.document, name, self._entries[name])
        return self._read.get(name)


def read(document: Document, name: str, entry: Entry) -> Operation | None:
    """An operation written out; None when its body is of a kind that errands does not send."""
    operation = entry.operation
    body = document.resolved(operation.get("requestBody"))
    media = _media(body)
    if body and media is None:
        kinds = ", ".join(as_dict(body.get("content"))) or "nothing"
        logger.warning("%s: the operation %s is left out, because its body is %s", document.url, name, kinds)
        return None
    made = _Parameters(document)
    for parameter in _parameters(document, entry):
        made.add_parameter(parameter)
    whole = made.add_body(body, media) if media else False
    texts = [operation.get("summary"), operation.get("description")]
    description = "\n".join(text for text in texts if isinstance(text, str) and text) or f"{entry.method} {entry.path}"
    security = operation.get("security", document.root.get("security"))
    schemes = document.resolved(document.resolved(document.root.get("components")).get("securitySchemes"))
    return Operation(
        name=name,
        description=description[:_MAX_DESCRIPTION],
        method=entry.method.upper(),
        server=document.server(operation, entry.shared),
        path=entry.path,
        parameters=made.parameters,
        places=made.places,
        media=media,
        whole_body=whole,
        body_required=body.get("required") is True,
        security=[list(one) for one in security if isinstance(one, dict)] if isinstance(security, list) else [],
        schemes={scheme: document.resolved(schemes[scheme]) for scheme in schemes},
    )


def _parameters(document: Document, entry: Entry) -> list[Object]:
    """Those of the path and those of the operation, which win; by location."""
    found: dict[tuple[str, str], Object] = {}
    for holder in (entry.shared, entry.operation):
        listed = holder.get("parameters")
        for item in listed if isinstance(listed, list) else []:
            parameter = document.resolved(item)
            location, name = parameter.get("in"), parameter.get("name")
            if location in _LOCATIONS and isinstance(name, str) and name:
                found[location, name] = parameter
    return sorted(found.values(), key=lambda parameter: _LOCATIONS.index(parameter["in"]))


def _media(body: Object) -> str | None:
    """The media type to send a body in."""
    offered = list(as_dict(body.get("content")))
    for wanted in (
        r"application/json\b",
        r"[^;]+\+json\b",
        r"application/x-www-form-urlencoded",
        r"\*/\*",
        r"text/plain",
    ):
        if found := next((kind for kind in offered if re.match(wanted, kind)), None):
            return "application/json" if found == "*/*" else found
    return None


class _Parameters:
    """Collects parameters under names of their own."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._schemas = Schemas(document)
        self.parameters: dict[str, Schema] = {}
        self.places: dict[str, Place] = {}

    def add_parameter(self, parameter: Object) -> None:
        location, name = parameter["in"], parameter["name"]
        if location == "header" and name.lower() in _NOT_PARAMETERS:
            return
        style = str(parameter.get("style", _STYLES[location]))
        content = next(iter(as_dict(parameter.get("content")).values()), None)
        schema = parameter.get("schema") if content is None else self._document.resolved(content).get("schema")
        place = Place(
            location,
            name,
            required=location == "path" or parameter.get("required") is True,
            style=style,
            explode=parameter.get("explode", style == "form") is True,
            is_json=content is not None,
        )
        self._add(place, self._schemas.parameter(schema, parameter.get("description")))

    def add_body(self, body: Object, media: str) -> bool:
        """Whether it is one parameter as a whole."""
        required = body.get("required") is True
        schema = self._schemas.plain(self._document.resolved(body["content"][media]).get("schema"))
        fields = None if media.startswith("text/") else as_object(schema)
        if fields is None or not fields["properties"]:
            self._add(Place("body", BODY, required), self._schemas.parameter(schema, body.get("description")))
            return True
        for name, one in fields["properties"].items():
            self._add(Place("body", name, required and name in fields["required"]), self._schemas.parameter(one))
        return False

    def _add(self, place: Place, schema: Schema) -> None:
        name = self._free(_FOREIGN.sub("_", place.name)[:_MAX_NAME], place.location)
        self.places[name] = place
        self.parameters[name] = schema if place.required else optional(schema)

    def _free(self, name: str, location: str) -> str:
        """The name, or one with the location when another parameter has it already."""
        number, free = 1, name
        while free in self.places:
            suffix = f"_{location}" + (str(number) if number > 1 else "")
            free = name[: _MAX_NAME - len(suffix)] + suffix
            number += 1
        return free


def shown(value: Any) -> str:
    """A value as a part of a path, a query or a header."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# calling

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


# backend

#: No model chooses among more.
MAX_OPERATIONS = 300
_SHOWN = 50


class OpenApiBackend(Backend):
    async def discover(self, action: str | None) -> list[Discovered]:
        catalogue, wanted = await self._catalogue(action)
        names = catalogue.names if wanted is None else [wanted]
        if len(names) > MAX_OPERATIONS:
            raise BrokenToolError(
                f"{catalogue.document.url} has {len(names)} operations, and at most {MAX_OPERATIONS} can be offered "
                "at once; write actions that each name their operation"
            )
        # A large document takes its time.
        found = await asyncio.to_thread(lambda: [catalogue.operation(name) for name in names])
        if wanted is not None:
            _expect(catalogue, wanted)
        return [operation.discovered for operation in found if operation is not None]

    async def invoke(self, invocation: Invocation) -> Json:
        catalogue, wanted = await self._catalogue(invocation.action)
        operation = _expect(catalogue, invocation.operation or wanted or "")
        made = request(operation, invocation.arguments, self.equipment.settings, key=invocation.call)
        return await (await send(self.equipment, made)).result()

    async def _catalogue(self, action: str | None) -> tuple[Catalogue, str | None]:
        """The operations there are, found out once per process, and the one that the action is."""
        configured = configuration(self.equipment.tool, action, OpenApi)
        url = configured.url or ""

        async def fetch() -> Catalogue:
            return Catalogue(await fetch_document(self.equipment, url))

        return await self.equipment.shared.get(("openapi", url), fetch), configured.operation


def _expect(catalogue: Catalogue, name: str) -> Operation:
    operation = catalogue.operation(name)
    if operation is None:
        problem = "needs a body that cannot be sent" if name in catalogue.names else "is not there"
        remedy = suggestion(name, catalogue.names[:_SHOWN], "name another one")
        raise BrokenToolError(f"{catalogue.document.url}: the operation {name} {problem}; {remedy}")
    return operation
