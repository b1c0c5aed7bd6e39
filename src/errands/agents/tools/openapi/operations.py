"""The operations of a document: what each is called, what it takes, and where each value goes."""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

import msgspec

from errands.agents.manifests.schemas import Schema
from errands.agents.tools.base import Discovered, optional
from errands.agents.tools.openapi.document import Document, Object, as_dict
from errands.agents.tools.openapi.schemas import Schemas, as_object

logger = logging.getLogger(__name__)

#: The parameter for a body that is no object.
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
