"""A2A 1.0 as JSON, the same over JSON-RPC and HTTP+JSON: the spelling of `errands.model` itself.

Reading accepts what ProtoJSON allows: camelCase or snake_case keys, enums by name or number, numbers as strings, bytes
in the URL-safe alphabet or without padding, null for an empty field, and fields that are unknown. JSON values in
metadata and data parts are never touched. Writing is always camelCase and names, without empty fields.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from errands.errors import A2AError, InvalidParamsError, ParseError
from errands.model.base import A2AObject, encode
from errands.model.core import StreamResponse
from errands.model.requests import Empty
from errands.operations import OPERATIONS, Operation
from errands.wire.dialect import Dialect, Json, Located, MalformedAnswerError, Route, fill_path, path_segment
from errands.wire.status import from_http, from_jsonrpc, to_http, to_jsonrpc

M = TypeVar("M", bound=A2AObject)

# The end of a key from its last underscore: a search for one byte is fast, and each byte is looked at once. Keys in
# capitals, as in `"ROLE_USER":`, are not ours.
_SNAKE_KEY = re.compile(rb'_[a-z0-9]*+"\s*+:')
#: With more underscores than this, normalizing a body is faster than finding out whether it has such keys.
_MANY = 10_000


class V1_0(Dialect):  # noqa: N801
    version = "1.0"
    media_type = "application/a2a+json"
    methods = OPERATIONS
    routes = tuple(
        Route(
            operation,
            # The specification's text says POST, its proto GET.
            frozenset({"GET", "POST"} if operation.name == "SubscribeToTask" else {operation.http_method}),
            operation.path,
        )
        for operation in OPERATIONS.values()
    )
    takes_tenant = True
    copies_events = True

    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        return read_body(operation.request, body, fields)

    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        try:
            return msgspec.convert(normalize(dict(values), operation.request), operation.request, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_params(error) from None

    def write_response(self, operation: Operation, result: A2AObject) -> bytes:
        return encode(result)

    def write_event(self, data: bytes) -> bytes:
        return data

    def jsonrpc_error(self, error: A2AError) -> dict[str, Any]:
        return to_jsonrpc(error)

    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        return to_http(error)

    def write_request(self, operation: Operation, request: A2AObject) -> bytes:
        return encode(request)

    def locate(self, operation: Operation, request: A2AObject) -> Located:
        names = {field.name: field.encode_name for field in msgspec.structs.fields(request)}
        values = msgspec.to_builtins(request)
        fields = {name: values[key] for name, key in names.items() if key in values}
        path = fill_path(operation.path, fields)
        if tenant := fields.pop("tenant", None):
            path = f"/{path_segment(tenant)}{path}"
        rest = {names[name]: value for name, value in fields.items()}
        if operation.http_method == "POST":
            return Located("POST", path, {}, encode(rest))
        return Located(operation.http_method, path, {key: query_value(value) for key, value in rest.items()}, None)

    def read_response(self, operation: Operation, raw: Json) -> Any:
        if operation.response is Empty:
            return Empty()  # a2a-sdk writes null
        return read_answer(operation.response, raw)

    def read_event(self, raw: Json) -> StreamResponse:
        return read_answer(StreamResponse, raw)

    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        return from_jsonrpc(error)

    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        is_error = isinstance(body, dict) and isinstance(body.get("error"), dict)
        return from_http(status, body) if is_error else None


#: The only instance: a dialect has no state.
JSON = V1_0()


@cache
def _decoder_of(model: type[M]) -> msgspec.json.Decoder[M]:
    return msgspec.json.Decoder(model)


def read_body(model: type[M], body: bytes, fields: Mapping[str, str] | None = None) -> M:
    """Return what a client sent; `fields` win over those of the body. Raises `ParseError` or `InvalidParamsError`."""
    try:
        if fields or (len(body) > _MANY and body.count(b"_") > _MANY) or _SNAKE_KEY.search(body):
            values = normalize(read_json(body), model)
            if fields and isinstance(values, dict):
                values |= normalize(fields, model)
            body = encode(values)
        decoder: msgspec.json.Decoder[M] = _decoder_of(model)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        try:
            return msgspec.convert(normalize(read_json(body), model), model)
        except msgspec.ValidationError:
            raise invalid_params(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidParamsError("The request is nested too deeply") from None


def read_json(body: bytes) -> Any:
    """Return the JSON value that a client sent. Raises `ParseError` or `InvalidParamsError`."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidParamsError("The request is nested too deeply") from None


def read_answer(model: type[M], raw: Json) -> M:
    """Return what an agent sent. Raises `MalformedAnswerError` when it is not a `model`."""
    try:
        decoder: msgspec.json.Decoder[M] = _decoder_of(model)
        return decoder.decode(raw)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not valid JSON ({error})") from None
    try:
        return from_protojson(model, msgspec.json.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not a valid {model.__name__} ({error})") from None


def query_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def invalid_params(error: msgspec.ValidationError) -> InvalidParamsError:
    """Return msgspec's error as ours: the path becomes the field."""
    message = str(error)
    text, found, path = message.rpartition(" - at `$")
    text, path = (text, path[:-1].lstrip(".")) if found and path.endswith("`") else (message, "")
    return InvalidParamsError(f"{text} (at {path})" if path else text, field=path or None)


# ProtoJSON


def from_protojson(model: type[M], values: Any) -> M:
    """Return a model as protobuf agents write it. Raises `msgspec.ValidationError` when it is not one."""
    return msgspec.convert(_complete(normalize(values, model), _type_of(model)), model)


def normalize(value: Any, model: type[A2AObject]) -> Any:
    """Return `model`'s fields in camelCase, values as msgspec reads them and without nulls, at every level.

    What is not a field, or cannot be read, is left as it is.
    """
    if not isinstance(value, dict):
        return value
    names = _names_of(model)
    result: dict[str, Any] = {}
    for key, item in value.items():
        known = names.get(key)
        if known is None:
            result[key] = item
            continue
        if item is None and not known.is_any:
            continue
        nested = known.nested
        if known.read is not None:
            item = known.read(item)
        elif known.numbered:
            # In a query a number is a string. What is not a number of the enum is left as it is.
            if type(item) is int or (isinstance(item, str) and item.isdecimal() and len(item) <= 2):
                item = known.numbered[int(item)] if 0 <= int(item) < len(known.numbered) else item
        elif nested is not None:
            item = [normalize(i, nested) for i in item] if isinstance(item, list) else normalize(item, nested)
        result.setdefault(known.name, item)
    return result


class _KnownField(NamedTuple):
    name: str
    nested: type[A2AObject] | None
    #: Any JSON value, of which null is one.
    is_any: bool
    #: The names of a protobuf enum, each at the index that is its number; empty for other types.
    numbered: list[str]
    #: Returns a value of another form as msgspec reads it; None for types that have one form only.
    read: Callable[[Any], Any] | None


def _usual_base64(value: Any) -> Any:
    """Return base64 in the usual alphabet and with padding."""
    if not isinstance(value, str):
        return value
    if "-" in value or "_" in value:
        value = value.translate(_URL_SAFE)
    return value + "=" * (-len(value) % 4)


def _whole_number(value: Any) -> Any:
    """Return a whole number that is written as a string or with a fraction of zero."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.removeprefix("-").isdigit():
        return int(value)
    return value


_URL_SAFE = str.maketrans("-_", "+/")
_READ: dict[type, Callable[[Any], Any]] = {bytes: _usual_base64, int: _whole_number}


@cache
def _names_of(model: type[A2AObject]) -> dict[str, _KnownField]:
    names: dict[str, _KnownField] = {}
    for field in msgspec.structs.fields(model):
        kinds = list(_types_in(field.type))
        nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, A2AObject)), None)
        enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)]
        # The enums of protobuf begin with the unspecified value, which has the number 0.
        numbered = [[member.value for member in kind] for kind in enums if "UNSPECIFIED" in kind.__members__]
        read = next((_READ[kind] for kind in kinds if kind in _READ), None)
        known = _KnownField(field.encode_name, nested, Any in kinds, numbered[0] if numbered else [], read)
        names[field.name] = names[field.encode_name] = known
    return names


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield the types of which an annotation consists, apart from those in the JSON objects of users."""
    yield annotation
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType, list):
        for argument in typing.get_args(annotation):
            yield from _types_in(argument)


#: What makes the zero value of each type; that of other types is an object.
_ZEROS: dict[type, Callable[[], Any]] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.BoolType: bool,
    inspect.ListType: list,
}


_type_of = cache(inspect.type_info)


def _complete(value: Any, kind: inspect.Type) -> Any:
    """Return `value` with the required fields that are missing set to their zero values."""
    if isinstance(kind, inspect.UnionType):
        nested = [t for t in kind.types if isinstance(t, inspect.StructType | inspect.ListType | inspect.DictType)]
        return _complete(value, nested[0]) if nested else value
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return [_complete(item, kind.item_type) for item in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {key: _complete(item, kind.value_type) for key, item in value.items()}
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        if value and not any(field.encode_name in value for field in kind.fields):
            return value  # something else altogether, which nothing could complete
        completed = dict(value)
        for field in kind.fields:
            if field.encode_name in value:
                completed[field.encode_name] = _complete(value[field.encode_name], field.type)
            elif field.required:
                completed[field.encode_name] = _ZEROS.get(type(field.type), dict)()
                if isinstance(field.type, inspect.EnumType):
                    completed[field.encode_name] = next(iter(field.type.cls)).value
        return completed
    return value
