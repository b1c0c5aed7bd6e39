"""Reading what ProtoJSON allows: snake_case keys, enums as numbers, and empty fields null or left out.

JSON values in metadata and data parts are never touched.
"""

from __future__ import annotations

import enum
import types
import typing
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from errands.model.base import Model

M = TypeVar("M", bound=Model)


def decode(model: type[M], raw: bytes | msgspec.Raw) -> M:
    """A model as protobuf agents write it. Raises `msgspec.MsgspecError` when it is none."""
    value = normalize(msgspec.json.decode(raw), model)
    return msgspec.convert(_complete(value, _type_of(model)), model)


def normalize(value: Any, model: type[Model]) -> Any:
    """Return `model`'s fields in camelCase, enums by name and without nulls, all the way down; the rest as it is."""
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
        if known.numbered:
            item = _named(item, known.numbered)
        elif nested is not None:
            item = [normalize(i, nested) for i in item] if isinstance(item, list) else normalize(item, nested)
        result.setdefault(known.name, item)
    return result


class _Field(NamedTuple):
    name: str
    nested: type[Model] | None
    #: Any JSON value, of which null is one.
    is_any: bool
    #: The names of a protobuf enum, each at the index that is its number; empty for other types.
    numbered: list[str]


@cache
def _names_of(model: type[Model]) -> dict[str, _Field]:
    names: dict[str, _Field] = {}
    for field in msgspec.structs.fields(model):
        is_any = Any in (field.type, *typing.get_args(field.type))
        known = _Field(field.encode_name, _nested_model(field.type), is_any, _numbered(field.type))
        names[field.name] = names[field.encode_name] = known
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


def _numbered(annotation: Any) -> list[str]:
    """Return the names of the enum. Those of protobuf start with the unspecified value, which has the number 0."""
    for kind in (annotation, *typing.get_args(annotation)):
        is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
        names: list[str] = [member.value for member in kind] if is_enum else list(typing.get_args(kind))
        if names and str(names[0]).endswith("_UNSPECIFIED"):
            return names
    return []


def _named(item: Any, names: list[str]) -> Any:
    """Return the name behind a number; in a query it is a string. Anything else is left for the model to judge."""
    if type(item) is int or (isinstance(item, str) and item.isdecimal() and len(item) <= 2):
        return names[int(item)] if 0 <= int(item) < len(names) else item
    return item


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
    if isinstance(kind, inspect.BoolType):
        return False
    if isinstance(kind, inspect.ListType):
        return []
    if isinstance(kind, inspect.EnumType):
        members: list[enum.Enum] = list(kind.cls)
        return members[0].value
    return {}
