"""A2A 1.0 as JSON: requests in, answers out, and the other way round for the client.

Reading is as generous as ProtoJSON asks (camelCase or snake_case keys, unknown fields passed over); writing is
always camelCase without empty fields. JSON values in metadata and data parts are never touched.
"""

from __future__ import annotations

import re
import types
import typing
from typing import Any, TypeVar

import msgspec

from errands.errors import InvalidParamsError, ParseError
from errands.model.base import Model, encode
from errands.operations import OPERATIONS, Operation

VERSION = "1.0"
MEDIA_TYPE = "application/a2a+json"

M = TypeVar("M", bound=Model)

_SNAKE_KEY = re.compile(rb'"[a-z0-9]+_[a-z0-9_]*"\s*:')
_DECODERS: dict[type[Model], msgspec.json.Decoder[Any]] = {
    model: msgspec.json.Decoder(model)
    for operation in OPERATIONS.values()
    for model in (operation.request, operation.response)
}
_PATH = re.compile(r"^(?P<text>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)


def decode_request(operation: Operation, body: bytes, fields: dict[str, str] | None = None) -> Any:
    """The operation's request, validated; `fields` are values from elsewhere that win over the body's.

    Raises `ParseError` or `InvalidParamsError`.
    """
    try:
        if fields or _SNAKE_KEY.search(body):
            values = camelize(msgspec.json.decode(body), operation.request)
            if fields and isinstance(values, dict):
                values |= camelize(fields, operation.request)
            body = encode(values)
        return _DECODERS[operation.request].decode(body)
    except msgspec.ValidationError as error:
        raise invalid_params(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidParamsError("The request is nested too deeply") from None


def convert_request(operation: Operation, values: dict[str, Any]) -> Any:
    """The operation's request from query and path parameters, where everything is a string."""
    try:
        return msgspec.convert(camelize(values, operation.request), operation.request, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_params(error) from None


def decode(model: type[M], raw: bytes | msgspec.Raw) -> M:
    """An answer as the client reads it. Raises `msgspec.DecodeError` when it is none."""
    decoder = _DECODERS.get(model) or msgspec.json.Decoder(model)
    result: M = decoder.decode(raw)
    return result


def invalid_params(error: msgspec.ValidationError) -> InvalidParamsError:
    """msgspec's complaint as ours: the path becomes the field."""
    match = _PATH.match(str(error))
    assert match is not None
    path = (match["path"] or "").lstrip(".")
    text = match["text"]
    return InvalidParamsError(f"{text} (at {path})" if path else text, field=path or None)


def camelize(value: Any, model: type[Model]) -> Any:
    """Renames snake_case keys of `model`'s own fields, all the way down; everything else stays as it is."""
    if not isinstance(value, dict):
        return value
    names = _NAMES.get(model) or _names_of(model)
    result: dict[str, Any] = {}
    for key, item in value.items():
        known = names.get(key)
        if known is None:
            result[key] = item
            continue
        name, nested = known
        if nested is not None:
            item = [camelize(i, nested) for i in item] if isinstance(item, list) else camelize(item, nested)
        result.setdefault(name, item)
    return result


_NAMES: dict[type[Model], dict[str, tuple[str, type[Model] | None]]] = {}


def _names_of(model: type[Model]) -> dict[str, tuple[str, type[Model] | None]]:
    names: dict[str, tuple[str, type[Model] | None]] = {}
    for field in msgspec.structs.fields(model):
        known = (field.encode_name, _nested_model(field.type))
        names[field.name] = names[field.encode_name] = known
    _NAMES[model] = names
    return names


def _nested_model(annotation: Any) -> type[Model] | None:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    origin = typing.get_origin(annotation)
    if origin in (typing.Annotated, typing.Union, types.UnionType, list):
        for argument in typing.get_args(annotation):
            if (found := _nested_model(argument)) is not None:
                return found
    return None
