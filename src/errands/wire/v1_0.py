"""A2A 1.0 as JSON, the same over JSON-RPC and HTTP+JSON: the spelling of `errands.model` itself.

Reading is as generous as ProtoJSON asks: camelCase or snake_case keys, enums by name or number, null for an empty
field, unknown fields passed over. Writing is always camelCase and names, without empty fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from errands.errors import A2AError, InvalidParamsError, ParseError
from errands.model.base import Model, encode
from errands.model.core import StreamResponse
from errands.model.requests import Empty
from errands.operations import OPERATIONS, Operation
from errands.wire import generous
from errands.wire.dialect import Dialect, Json, Located, MalformedAnswerError, Route, fill_path, path_segment
from errands.wire.status import from_http, from_jsonrpc, to_http, to_jsonrpc

M = TypeVar("M", bound=Model)

# The end of a key from its last underscore: a search for one byte is fast, and each byte is looked at once. In
# capitals, as in `"ROLE_USER":`, it is no key of ours.
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

    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        return read_body(operation.request, body, fields)

    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        try:
            return msgspec.convert(generous.normalize(dict(values), operation.request), operation.request, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_params(error) from None

    def write_response(self, operation: Operation, result: Model) -> bytes:
        return encode(result)

    copies_events = True

    def write_event(self, data: bytes) -> bytes:
        return data

    def jsonrpc_error(self, error: A2AError) -> dict[str, Any]:
        return to_jsonrpc(error)

    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        return to_http(error)

    def method_of(self, operation: Operation) -> str:
        return operation.name

    def write_request(self, operation: Operation, request: Model) -> bytes:
        return encode(request)

    def locate(self, operation: Operation, request: Model) -> Located:
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
            return Empty()  # a2a-sdk says null here
        return read_answer(operation.response, raw)

    def read_event(self, raw: Json) -> StreamResponse:
        return read_answer(StreamResponse, raw)

    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        return from_jsonrpc(error)

    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        is_error = isinstance(body, dict) and isinstance(body.get("error"), dict)
        return from_http(status, body) if is_error else None


#: The one and only: a dialect holds no state.
JSON = V1_0()


@cache
def _decoder_of(model: type[M]) -> msgspec.json.Decoder[M]:
    return msgspec.json.Decoder(model)


def read_body(model: type[M], body: bytes, fields: Mapping[str, str] | None = None) -> M:
    """What a client sent; `fields` win over the body's. Raises `ParseError` or `InvalidParamsError`."""
    try:
        if fields or (len(body) > _MANY and body.count(b"_") > _MANY) or _SNAKE_KEY.search(body):
            values = generous.normalize(msgspec.json.decode(body), model)
            if fields and isinstance(values, dict):
                values |= generous.normalize(fields, model)
            body = encode(values)
        decoder: msgspec.json.Decoder[M] = _decoder_of(model)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if (read := _read_generously(model, body)) is not None:
            return read
        raise invalid_params(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidParamsError("The request is nested too deeply") from None


def _read_generously(model: type[M], body: bytes) -> M | None:
    try:
        return msgspec.convert(generous.normalize(msgspec.json.decode(body), model), model)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None


def read_answer(model: type[M], raw: Json) -> M:
    """What an agent sent. Raises `MalformedAnswerError` when it is no `model`."""
    try:
        decoder: msgspec.json.Decoder[M] = _decoder_of(model)
        return decoder.decode(raw)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"no JSON ({error})") from None
    try:
        return generous.decode(model, raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"no {model.__name__} ({error})") from None


def query_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def invalid_params(error: msgspec.ValidationError) -> InvalidParamsError:
    """msgspec's complaint as ours: the path becomes the field."""
    message = str(error)
    text, found, path = message.rpartition(" - at `$")
    text, path = (text, path[:-1].lstrip(".")) if found and path.endswith("`") else (message, "")
    return InvalidParamsError(f"{text} (at {path})" if path else text, field=path or None)
