"""The base of every struct that travels: camelCase on the wire, absent fields left out."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec


# gc=False: these are trees, never cycles, and a server holds very many of them.
class A2AObject(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """A protocol object in v1.0 spelling. Attributes are snake_case, JSON keys camelCase.

    msgspec checks types when it decodes. What Python code constructs is checked by `__post_init__` of the structs that
    authors of agents use; each has a fast path for its usual form and calls `check_fields` for every other.
    """

    def check_fields(self) -> None:
        """Raise `TypeError` for the first field whose value does not have the declared type.

        Items of lists are checked too. What is inside a JSON value is checked when it is written.
        """
        declared = _declared(type(self))
        kinds = tuple(map(type, msgspec.structs.astuple(self)))
        if kinds not in declared.seen:
            for name, expected in declared.fields.items():
                value = getattr(self, name)
                if type(value) not in expected:
                    setattr(self, name, _converted(self, name, value, expected))
            if kinds == tuple(map(type, msgspec.structs.astuple(self))):
                declared.seen.add(kinds)
        for name, items in declared.lists:
            values = getattr(self, name)
            if values is not None and not items.issuperset(map(type, values)):
                wrong = next(value for value in values if type(value) not in items)
                raise TypeError(_complaint(self, f"{name} must be a list of {_names(items)}", wrong))


class _Declared(NamedTuple):
    """The annotations of a model, without fields of any type."""

    fields: dict[str, frozenset[type]]
    #: The fields that are lists, with the types of their items.
    lists: list[tuple[str, frozenset[type]]]
    #: Combinations of field types that were found valid: most objects have one of a few.
    seen: set[tuple[type, ...]]


@functools.cache
def _declared(model: type[A2AObject]) -> _Declared:
    declared = _Declared({}, [], set())
    for name, hint in typing.get_type_hints(model).items():
        choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if Any in choices:
            continue
        declared.fields[name] = frozenset(typing.get_origin(choice) or choice for choice in choices)
        declared.lists.extend(
            (name, frozenset(typing.get_args(choice))) for choice in choices if typing.get_origin(choice) is list
        )
    return declared


def _converted(model: A2AObject, name: str, value: Any, expected: frozenset[type]) -> Any:
    """Return a value of a subclass as the declared type itself: encoders take no other. Raise `TypeError` otherwise."""
    if str in expected and isinstance(value, str):
        return str.__str__(value)
    if bytes in expected and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if dict in expected and isinstance(value, Mapping):
        return dict(value)
    if list in expected and isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value)
    raise TypeError(_complaint(model, f"{name} must be {_names(expected)}", value))


def _complaint(model: A2AObject, wanted: str, value: Any) -> str:
    given = repr(value) if isinstance(value, str) else type(value).__name__
    return f"{type(model).__name__}: {wanted}, not {given:.100}"


def _names(expected: frozenset[type]) -> str:
    return " or ".join(sorted("None" if one is types.NoneType else one.__name__ for one in expected))


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct. msgspec evaluates the annotations of their types again each time it is asked."""
    return msgspec.structs.fields(struct)


M = typing.TypeVar("M", bound=msgspec.Struct)


@functools.cache
def unchecked(model: type[M]) -> type[M]:
    """Return a struct with the fields of `model`, and of the models in it, but without their checks.

    For decoding what was checked before it was stored: the checks cost a twentieth of a stream over gRPC.
    """
    fields = [(field.name, _without_checks(field.type), field.default) for field in msgspec.structs.fields(model)]
    return msgspec.defstruct(  # type: ignore[return-value]
        model.__name__,
        [field[:2] if field[2] is msgspec.NODEFAULT else field for field in fields],
        rename="camel",
        kw_only=True,
        gc=False,
    )


def _without_checks(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, A2AObject):
        return unchecked(hint)
    arguments = tuple(map(_without_checks, typing.get_args(hint)))
    if not arguments:
        return hint
    return typing.Union[arguments] if isinstance(hint, types.UnionType) else typing.get_origin(hint)[arguments]  # noqa: UP007


#: Returns a shallow copy of a struct. It is not checked again, and takes a fraction of `msgspec.structs.replace`.
shallow_copy: typing.Callable[[M], M] = msgspec.Struct.__copy__  # type: ignore[attr-defined]

Metadata = dict[str, Any]

#: The names of JSON values in error messages.
JSON_NAMES: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

#: One encoder for the whole process: msgspec encoders hold no state between calls.
ENCODER = msgspec.json.Encoder()
encode = ENCODER.encode

#: What decoding and folding stored bytes raises when they are damaged.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
