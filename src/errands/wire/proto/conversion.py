"""Readers and writers between protobuf messages and the structs of `errands.model`, compiled from their fields.

A field of a message and an attribute of a struct belong together when they have the same name, or when the version's
table says so. Each pair of a message and a struct becomes one Python function, written and compiled at its first use,
so that nothing is looked up while messages are converted: a walk over the fields would cost 2 % of a stream. The writer
of a `TaskStatus`, for example, is:

    def convert(message, value):
        message.state = numbers_state[value.state]
        if (item := value.message) is not None:
            fill_message(message.message, item)
        if (item := value.timestamp) is not None:
            fill_timestamp(message.timestamp, item)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from google.protobuf.message_factory import GetMessageClass
from msgspec import UNSET, inspect

from errands.errors import InvalidParamsError
from errands.model.base import A2AObject
from errands.wire.proto.json_values import fill_struct, fill_time, fill_value, read_struct, read_time, read_value

T = TypeVar("T")

#: A generated protobuf message, and what describes its type.
Message = Any
Descriptor = Any


class Conversion(NamedTuple):
    """How a message is converted that the tables cannot describe."""

    read: Callable[[Message], Any]
    fill: Callable[[Message, Any], None]


class ProtoSchema:
    """One version of the protocol in protobuf. All tables are keyed by the name of a message.

    `renamed` has the field of each attribute that is called differently; `a.b` is field `b` of message `a`. `written`
    has functions from a struct to a field, `read` functions from a message to an attribute. What the version has no
    field for is left out.
    """

    def __init__(
        self,
        *,
        renamed: Mapping[str, Mapping[str, str]] | None = None,
        written: Mapping[str, Mapping[str, Callable[[Any], Any]]] | None = None,
        read: Mapping[str, Mapping[str, Callable[[Message], Any]]] | None = None,
        conversions: Mapping[str, Conversion] | None = None,
    ) -> None:
        self._renamed = renamed or {}
        self._written = written or {}
        self._read = read or {}
        self._conversions = conversions or {}
        self._functions: dict[tuple[object, ...], Callable[..., Any]] = {}

    def writer(self, descriptor: Descriptor, model: type[A2AObject]) -> Callable[[Any], Message]:
        """Return the function that makes a message of a struct."""
        make, fill = GetMessageClass(descriptor), self.filler(descriptor, model)

        def write(value: Any) -> Message:
            message = make()
            fill(message, value)
            return message

        return write

    def filler(self, descriptor: Descriptor, model: type[A2AObject]) -> Callable[[Message, Any], None]:
        """Return the function that fills a message in place: a nested message that is made first has to be copied."""
        if (conversion := self._conversions.get(descriptor.name)) is not None:
            return conversion.fill
        key = (descriptor.full_name, model)
        if key in self._functions:
            return self._functions[key]
        scope: dict[str, Any] = {"UNSET": UNSET}
        lines = ["def convert(message, value):", "    pass"]
        chosen = None
        for field in self._fields(descriptor, model):
            item = f"value.{field.attribute.name}"
            if not field.is_optional:
                lines.append(f"    {self._fill_statement(field, item, scope)}")
                continue
            # Of a oneof one field is set, so the others need not be looked at.
            word = "elif" if field.oneof is not None and field.oneof == chosen else "if"
            lines.append(f"    {word} (item := {item}) is not {field.absent}:")
            lines.append(f"        {self._fill_statement(field, 'item', scope)}")
            chosen = field.oneof
        for number, (path, function) in enumerate(self._written.get(descriptor.name, {}).items()):
            scope[f"written_{number}"] = function
            is_list = "." not in path and descriptor.fields_by_name[path].default_value == []
            put = "message.{}.extend({})" if is_list else "message.{} = {}"
            lines.append(f"    {put.format(path, f'written_{number}(value)')}")
        self._functions[key] = _compiled(lines, scope)
        return self._functions[key]

    def reader(
        self, descriptor: Descriptor, model: type[A2AObject], path: str | None = None
    ) -> Callable[[Message], Any]:
        """Return the function that makes a struct of a message. What is missing in the message is empty.

        Requests have a `path`, the place of the message in its request: they are held to the bounds that are declared
        on the struct, and refused with the place of what is wrong.
        """
        if (conversion := self._conversions.get(descriptor.name)) is not None:
            return conversion.read
        key = (descriptor.full_name, model, path)
        if key in self._functions:
            return self._functions[key]
        own = self._read.get(descriptor.name, {})
        scope: dict[str, Any] = {"UNSET": UNSET, "Struct": model, "absent": _absent}
        lines = ["def convert(message):"]
        arguments = []
        fields = self._fields(descriptor, model)
        # No message of the protocol has more than one.
        if oneof := next((field.oneof for field in fields if field.oneof), None):
            lines.append(f"    kind = message.WhichOneof({oneof!r})")
        for field in fields:
            name, place = field.attribute.name, None if path is None else path + field.attribute.encode_name
            if name in own:
                continue
            holder, proto = field.holder, field.proto
            item = self._read_expression(field, place, scope)
            has = f"{holder}.HasField({proto.name!r})"
            if field.oneof is not None:
                item = f"{item} if kind == {proto.name!r} else {field.absent}"
            elif not field.is_optional:
                if place is not None and proto.message_type is not None and not field.is_list:
                    item = f"{item} if {has} else absent({place!r})"
            elif proto.has_presence:
                item = f"{item} if {has} else None"
            elif proto.enum_type is not None:
                item = f"{item} if {field.place} else None"
            else:
                item = f"{item} or None"
            arguments.append(f"{name}={item}")
        for name, function in own.items():
            scope[f"own_{name}"] = function
            arguments.append(f"{name}=own_{name}(message)")
        lines.append(f"    return Struct({', '.join(arguments)})")
        self._functions[key] = _compiled(lines, scope)
        return self._functions[key]

    def _fields(self, descriptor: Descriptor, model: type[A2AObject]) -> list[_Field]:
        """Return the attributes of the struct that the message has a field for."""
        renamed = self._renamed.get(descriptor.name, {})
        found = []
        for attribute in cast(inspect.StructType, inspect.type_info(model)).fields:
            *holders, name = renamed.get(attribute.name, attribute.name).split(".")
            inner = descriptor
            for holder in holders:
                inner = inner.fields_by_name[holder].message_type
            proto = inner.fields_by_name.get(name)
            if proto is None:
                continue
            kind, oneof = attribute.type, proto.containing_oneof
            if isinstance(kind, inspect.UnionType):
                kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
            is_any = isinstance(attribute.type, inspect.AnyType)
            found.append(
                _Field(
                    attribute,
                    proto,
                    holder=".".join(["message", *holders]),
                    kind=kind,
                    is_list=isinstance(kind, inspect.ListType),
                    is_optional=attribute.default is None or is_any,
                    absent="UNSET" if is_any else "None",
                    # A field that is only `optional` has a oneof of its own.
                    oneof=oneof.name if oneof is not None and len(oneof.fields) > 1 else None,
                )
            )
        return found

    def _fill_statement(self, field: _Field, item: str, scope: dict[str, Any]) -> str:
        target, proto = field.place, field.proto
        kind = proto.message_type
        if kind is None:
            if field.is_list:
                return f"{target}.extend({item})"
            if proto.enum_type is not None:
                scope[f"numbers_{proto.name}"] = {member: n for n, member in enumerate(field.members)}
                return f"{target} = numbers_{proto.name}[{item}]"
            return f"{target} = {item}"
        scope[f"fill_{proto.name}"] = _FILLERS.get(kind.full_name) or self.filler(kind, field.model)
        if field.is_list:
            return f"for one in {item}: fill_{proto.name}({target}.add(), one)"
        return f"fill_{proto.name}({target}, {item})"

    def _read_expression(self, field: _Field, place: str | None, scope: dict[str, Any]) -> str:
        item, proto, name = field.place, field.proto, field.proto.name
        kind = proto.message_type
        if kind is not None:
            inner = None if place is None or field.is_list else f"{place}."
            read = _READERS.get(kind.full_name) or self.reader(kind, field.model, inner)
            scope[f"read_{name}"] = read
            # A list is taken as a whole: protobuf ends a walk through one with an exception.
            item = f"[read_{name}(one) for one in {item}[:]]" if field.is_list else f"read_{name}({item})"
            if place is None or not (field.is_list or kind.full_name == _TIMESTAMP):
                return item
            scope["read_items"], scope["read_item"] = _read_items, _read_item
            item = f"{'read_items' if field.is_list else 'read_item'}(read_{name}, {field.place}, {place!r})"
        elif field.is_list:
            item = f"{item}[:]"
        elif proto.enum_type is not None:
            scope[f"members_{name}"] = dict(enumerate(field.members))
            if place is None:
                scope[f"unspecified_{name}"] = field.members[0]
                return f"members_{name}.get({item}, unspecified_{name})"
            scope["known"] = _known
            return f"known({item}, members_{name}, {place!r})"
        if place is None:
            return item
        bounds = field.kind
        if isinstance(bounds, inspect.IntType) and bounds.ge is not None:
            scope["within"] = _within
            return f"within({item}, {place!r}, {bounds.ge}, {bounds.le})"
        if isinstance(bounds, inspect.StrType | inspect.ListType) and bounds.min_length:
            scope["required"] = _required
            return f"required({item}, {place!r})"
        return item


class _Field(NamedTuple):
    """An attribute of a struct, and the field of a message that belongs to it."""

    attribute: inspect.Field
    proto: Any
    #: The message that has the field, as an expression.
    holder: str
    #: The type of the attribute without None.
    kind: inspect.Type
    is_list: bool
    is_optional: bool
    #: The value of an attribute that is not set. For a JSON value it is not None, which is null.
    absent: Literal["None", "UNSET"]
    #: The oneof that it shares with other fields.
    oneof: str | None

    @property
    def place(self) -> str:
        return f"{self.holder}.{self.proto.name}"

    @property
    def model(self) -> type[A2AObject]:
        kind = self.kind.item_type if isinstance(self.kind, inspect.ListType) else self.kind
        assert isinstance(kind, inspect.StructType)
        return kind.cls  # type: ignore[return-value]

    @property
    def members(self) -> list[Any]:
        """The members of an enum by their numbers. Those of the model have the order of the protocol's."""
        assert isinstance(self.kind, inspect.EnumType)
        return list(self.kind.cls)


_TIMESTAMP = "google.protobuf.Timestamp"
_FILLERS: dict[str, Callable[[Message, Any], None]] = {
    "google.protobuf.Struct": fill_struct,
    "google.protobuf.Value": fill_value,
    _TIMESTAMP: fill_time,
}
_READERS: dict[str, Callable[[Message], Any]] = {
    "google.protobuf.Struct": read_struct,
    "google.protobuf.Value": read_value,
    _TIMESTAMP: read_time,
}


def _compiled(lines: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
    exec("\n".join(lines), scope)  # noqa: S102 - the lines come from the schema alone
    function: Callable[..., Any] = scope["convert"]
    return function


# The checks of requests


def _absent(place: str) -> Any:
    raise InvalidParamsError(f"{place} is required", field=place)


def _required(value: T, place: str) -> T:
    if not value:
        raise InvalidParamsError(f"{place} is required and must not be empty", field=place)
    return value


def _within(value: int, place: str, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidParamsError(f"{place} must be from {least} to {most}, not {value}", field=place)
    return value


def _known(number: int, members: Mapping[int, T], place: str) -> T:
    if number not in members or not number:
        names = ", ".join(map(str, list(members.values())[1:]))
        raise InvalidParamsError(f"{place} must be one of {names}", field=place)
    return members[number]


def _read_item(read: Callable[[Message], T], item: Message, place: str) -> T:
    try:
        return read(item)
    except ValueError as error:
        raise InvalidParamsError(f"{place}: {error}", field=place) from None


def _read_items(read: Callable[[Message], T], items: Any, place: str) -> list[T]:
    try:
        return [read(item) for item in items[:]]
    except ValueError:
        return [_read_item(read, item, f"{place}[{number}]") for number, item in enumerate(items)]
