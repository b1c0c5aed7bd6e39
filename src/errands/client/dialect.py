"""A protocol version as the client speaks it: names and paths here, the codecs in `errands.wire`."""

from __future__ import annotations

import enum
from functools import cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
from msgspec import inspect

from errands.client.errors import ProtocolError
from errands.model.base import Model, encode
from errands.operations import Operation
from errands.wire import v1_0


class Route(NamedTuple):
    """Where an operation is on the HTTP+JSON binding; `fields` is what remains for the query or the body."""

    http_method: str
    path: str
    fields: dict[str, Any]


class Dialect(Protocol):
    #: `Major.Minor`, as in the `A2A-Version` header.
    version: str
    media_type: str

    def method(self, operation: Operation) -> str:
        """The operation's JSON-RPC method."""
        ...

    def route(self, operation: Operation, request: Model) -> Route: ...

    def encode(self, request: Model) -> bytes: ...

    def decode(self, model: type[Model], raw: bytes | msgspec.Raw) -> Any:
        """An answer. Raises `ProtocolError` when it is none."""
        ...


class V1_0:  # noqa: N801
    """A2A 1.0."""

    version = v1_0.VERSION
    media_type = v1_0.MEDIA_TYPE

    def method(self, operation: Operation) -> str:
        return operation.name

    def route(self, operation: Operation, request: Model) -> Route:
        fields: dict[str, Any] = msgspec.to_builtins(request)
        path = operation.path
        for field in msgspec.structs.fields(request):
            if f"{{{field.name}}}" in path:
                value = fields.pop(field.encode_name, "")
                path = path.replace(f"{{{field.name}}}", path_segment(str(value)))
        if tenant := fields.pop("tenant", None):
            path = f"/{path_segment(tenant)}{path}"
        return Route(operation.http_method, path, fields)

    def encode(self, request: Model) -> bytes:
        return encode(request)

    def decode(self, model: type[Model], raw: bytes | msgspec.Raw) -> Any:
        try:
            return v1_0.decode(model, raw)
        except msgspec.ValidationError:
            return _decode_generously(model, raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"no JSON ({error})") from None


def path_segment(value: str) -> str:
    """`value` as one segment of a path, whatever is in it."""
    # A lone dot segment would be resolved away by the HTTP client.
    return value.replace(".", "%2E") if value in {".", ".."} else quote(value, safe="")


def _decode_generously(model: type[Model], raw: bytes | msgspec.Raw) -> Any:
    """Reads what ProtoJSON allows and protobuf agents do send: snake_case keys, empty fields left out."""
    try:
        value = v1_0.camelize(msgspec.json.decode(raw), model)
        return msgspec.convert(_complete(value, _type_of(model)), model)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no {model.__name__} ({error})") from None


@cache
def _type_of(model: type[Model]) -> inspect.Type:
    return inspect.type_info(model)


def _complete(value: Any, kind: inspect.Type) -> Any:
    """`value` with its missing required fields at their zero values."""
    if isinstance(kind, inspect.UnionType):
        nested = [t for t in kind.types if isinstance(t, inspect.StructType | inspect.ListType | inspect.DictType)]
        return _complete(value, nested[0]) if nested else value
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return [_complete(item, kind.item_type) for item in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {key: _complete(item, kind.value_type) for key, item in value.items()}
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        if value and not any(field.encode_name in value for field in kind.fields):
            return value  # something else altogether: nothing to complete
        completed = dict(value)
        for field in kind.fields:
            if field.encode_name in value:
                completed[field.encode_name] = _complete(value[field.encode_name], field.type)
            elif field.required:
                completed[field.encode_name] = _zero(field.type)
        return completed
    return value


def _zero(kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.StrType):
        return ""
    if isinstance(kind, inspect.IntType):
        return 0
    if isinstance(kind, inspect.ListType):
        return []
    if isinstance(kind, inspect.EnumType):
        members: list[enum.Enum] = list(kind.cls)
        return members[0].value
    return {}
