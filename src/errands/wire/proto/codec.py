"""A2A over gRPC: every method of the service in both versions, for server and client alike.

Version 1.0 names its fields as `errands.model` does. Version 0.3 has other names, resource names instead of ids, no
tenants and no list of tasks: the tables below say what differs, and `ProtoSchema` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf import empty_pb2
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import UNSET

from errands.errors import A2AError, InvalidAgentResponseError, InvalidParamsError, UnsupportedOperationError
from errands.model.base import A2AObject, unchecked
from errands.model.card import AgentCard
from errands.model.core import SETTLED_STATES, Part, StreamResponse
from errands.model.requests import ListTasksRequest, SendMessageConfiguration, SendMessageRequest
from errands.operations import OPERATIONS, Operation
from errands.wire.dialect import MalformedAnswerError
from errands.wire.proto import json_values
from errands.wire.proto.conversion import Conversion, Message, ProtoSchema
from errands.wire.v0_3 import in_0_3
from errands.wire.v0_3_card import PROTOCOL_VERSION, VERSION, modern_fields
from errands.wire.v0_3_objects import ONCE, TWICE, FileBytes, is_once, unwrap_data, wrap_data
from errands.wire.v1_0 import from_protojson


class Rpc(NamedTuple):
    """One operation as a method of the service."""

    #: The name of the method.
    name: str
    operation: Operation
    request: type[Message]
    response: type[Message]
    #: The server's side: from a request, and to a response. `read` raises `InvalidParamsError` with the field, and
    #: ValueError for values that JSON does not have; `write` raises ValueError when protobuf cannot carry the response.
    read: Callable[[Message], A2AObject]
    write: Callable[[Any], Message]
    #: The client's side: to a request, and from a response. Both raise ValueError, too.
    ask: Callable[[Any], Message]
    answer: Callable[[Message], Any]


class Codec(NamedTuple):
    """How one version of the protocol is spelled in protobuf."""

    #: `Major.Minor`, as in the `a2a-version` metadata.
    version: str
    schema: ProtoSchema
    #: The full name of the service.
    service: str
    rpcs: Mapping[str, Rpc]
    #: Whether a subscription is over when the task pauses.
    ends_at_pause: bool = False
    #: Whether an error's message begins with the name of its class: all that clients of 0.3 go by.
    names_errors: bool = False
    #: Returns the error that this version has for one of ours.
    restate: Callable[[A2AError], A2AError] = lambda error: error
    #: Returns the codec for a peer that calls itself so in `User-Agent`, where it is another one.
    variant: Callable[[bytes], Codec] | None = None

    def rpc_of(self, operation: Operation) -> Rpc:
        """Return the method of an operation. Raises `UnsupportedOperationError` when this version has none."""
        rpc = self.rpcs.get(operation.name)
        if rpc is None:
            raise UnsupportedOperationError(f"A2A {self.version} has no {operation.name} over gRPC")
        return rpc


def read_request(rpc: Rpc, raw: bytes, max_values: int) -> A2AObject:
    """Return the operation's request, validated. Raises `InvalidParamsError` and `PayloadTooLargeError`."""
    descriptor = rpc.request.DESCRIPTOR
    if len(raw) > json_values.BYTES_PER_VALUE * max_values:
        json_values.check_message(descriptor, raw, max_values)
    try:
        message = rpc.request.FromString(raw)
    except DecodeError as error:
        raise InvalidParamsError(f"The request is not a valid {descriptor.full_name}: {error}") from None
    try:
        return rpc.read(message)
    except ValueError as error:
        raise InvalidParamsError(str(error)) from None


def write_request(rpc: Rpc, request: A2AObject) -> bytes:
    """Return the bytes of a request. Raises `InvalidParamsError` when protobuf cannot carry it."""
    try:
        json_values.check_levels(request)
        raw: bytes = rpc.ask(request).SerializeToString()
    except ValueError as error:
        raise InvalidParamsError(str(error)) from None
    return raw


def write_response(rpc: Rpc, response: Any) -> bytes:
    """Return the bytes of a response, or of one event. Raises `InvalidAgentResponseError`."""
    try:
        raw: bytes = rpc.write(response).SerializeToString()
    except ValueError as error:
        raise InvalidAgentResponseError(f"The agent's answer cannot be sent over gRPC: {error}") from None
    return raw


def read_response(rpc: Rpc, raw: bytes) -> Any:
    """Return the operation's response, or one event of its stream. Raises `MalformedAnswerError`."""
    try:
        return rpc.answer(rpc.response.FromString(raw))
    except (DecodeError, ValueError) as error:
        raise MalformedAnswerError(f"not a valid {rpc.response.DESCRIPTOR.full_name} ({error})") from None


def _rpcs(
    service: Any, schema: ProtoSchema, prepare: Callable[[Any], Any], operations: Mapping[str, str] | None = None
) -> dict[str, Rpc]:
    """Return the methods of a service. `operations` has those that are named differently from their operation."""
    rpcs = {}
    for method in service.methods:
        operation = OPERATIONS.get((operations or {}).get(method.name, method.name))
        if operation is None:
            continue  # of a later release of the protocol
        request, response = method.input_type, method.output_type
        rpcs[operation.name] = Rpc(
            method.name,
            operation,
            GetMessageClass(request),
            GetMessageClass(response),
            read=schema.reader(request, operation.request, ""),
            write=schema.writer(response, operation.response),
            ask=_asking(schema.writer(request, operation.request), prepare),
            answer=schema.reader(response, operation.response),
        )
    return rpcs


def _asking(write: Callable[[Any], Message], prepare: Callable[[Any], Any]) -> Callable[[Any], Message]:
    return lambda request: write(prepare(request))


# Version 1.0


def _prepare(request: Any) -> Any:
    """Check that a time which the client compares with can be read."""
    after = request.status_timestamp_after if isinstance(request, ListTasksRequest) else None
    if after and json_values.write_time(after) is None:
        raise ValueError(f"statusTimestampAfter must be an ISO 8601 time such as 2026-01-31T12:00:00Z, not {after!r}")
    return request


# The card goes by way of its JSON: it is asked for rarely, and has maps.


def read_card(card: Message) -> AgentCard:
    """Return the agent card in a message of 1.0. Raises ValueError when it is not one."""
    return _card_from(MessageToDict(card))


def _parse_card(values: dict[str, Any], message: Message) -> None:
    try:
        ParseDict(values, message, ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(f"the card cannot be written as protobuf: {error}") from None


def _card_from(values: dict[str, Any]) -> AgentCard:
    try:
        return from_protojson(AgentCard, values)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an agent card: {error}") from None


_SCHEMA_1_0 = ProtoSchema(
    conversions={
        "AgentCard": Conversion(read_card, lambda message, card: _parse_card(msgspec.to_builtins(card), message))
    }
)
_SERVICE_1_0 = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
_CODEC_1_0 = Codec("1.0", _SCHEMA_1_0, _SERVICE_1_0.full_name, _rpcs(_SERVICE_1_0, _SCHEMA_1_0, _prepare))


# Version 0.3

_PUSH = "push_notification_config"

_RENAMED = {
    "SendMessageRequest": {"message": "request"},
    "SendMessageResponse": {"message": "msg"},
    "StreamResponse": {"message": "msg"},
    "TaskStatus": {"message": "update"},
    "Message": {"parts": "content"},
    "SendMessageConfiguration": {"task_push_notification_config": "push_notification"},
    "TaskPushNotificationConfig": {name: f"{_PUSH}.{name}" for name in ("url", "id", "token", "authentication")},
    "CreateTaskPushNotificationConfigRequest": {
        name: f"config.{_PUSH}.{name}" for name in ("url", "id", "token", "authentication")
    },
}
_OPERATIONS = {
    "TaskSubscription": "SubscribeToTask",
    "ListTaskPushNotificationConfig": "ListTaskPushNotificationConfigs",
    "GetAgentCard": "GetExtendedAgentCard",
}
#: Resource names, which 0.3 has instead of ids: the field of a message and its form.
_TASK, _CONFIG = "tasks/{id}", "tasks/{task_id}/pushNotificationConfigs/{id}"
_RESOURCES = {
    "GetTaskRequest": ("name", _TASK),
    "CancelTaskRequest": ("name", _TASK),
    "TaskSubscriptionRequest": ("name", _TASK),
    "TaskPushNotificationConfig": ("name", _CONFIG),
    "GetTaskPushNotificationConfigRequest": ("name", _CONFIG),
    "DeleteTaskPushNotificationConfigRequest": ("name", _CONFIG),
    "ListTaskPushNotificationConfigRequest": ("parent", "tasks/{task_id}"),
    "CreateTaskPushNotificationConfigRequest": ("parent", "tasks/{task_id}"),
}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def _resource_name(form: str) -> Callable[[Any], str]:
    return lambda value: _PLACEHOLDER.sub(lambda name: getattr(value, name[1]) or "", form)


def _id_in(field: str, form: str, attribute: str) -> Callable[[Message], str]:
    pattern = re.compile(_PLACEHOLDER.sub(r"(?P<\1>[^/]+)", form))

    def read(message: Message) -> str:
        name = getattr(message, field)
        found = pattern.fullmatch(name)
        if found is None:
            raise InvalidParamsError(f"{field} must have the form {form}, not {name[:200]!r}", field=field)
        return found[attribute]

    return read


_WRITTEN: dict[str, dict[str, Callable[[Any], Any]]] = {
    message: {field: _resource_name(form)} for message, (field, form) in _RESOURCES.items()
}
_WRITTEN |= {
    "TaskStatusUpdateEvent": {"final": lambda update: update.status.state in SETTLED_STATES},
    "SendMessageConfiguration": {"blocking": lambda configuration: not configuration.return_immediately},
    "AuthenticationInfo": {"schemes": lambda info: [info.scheme]},
}
_WRITTEN["CreateTaskPushNotificationConfigRequest"] |= {
    "config_id": lambda config: config.id or "",
    "config.name": _resource_name(_CONFIG),
}
_READ: dict[str, dict[str, Callable[[Message], Any]]] = {
    message: {name: _id_in(field, form, name) for name in _PLACEHOLDER.findall(form)}
    for message, (field, form) in _RESOURCES.items()
}
_READ |= {
    "SendMessageConfiguration": {"return_immediately": lambda configuration: not configuration.blocking},
    "AuthenticationInfo": {"scheme": lambda info: info.schemes[0] if info.schemes else ""},
}
del _READ["TaskPushNotificationConfig"]["id"]  # it has a field of its own
_READ["CreateTaskPushNotificationConfigRequest"]["id"] = lambda request: (
    request.config.push_notification_config.id or request.config_id or None
)


def _prepare_0_3(request: Any) -> Any:
    if getattr(request, "tenant", None):
        raise UnsupportedOperationError("A2A 0.3 has no tenants over gRPC; choose an interface of 1.0, or HTTP")
    if isinstance(request, SendMessageRequest) and request.configuration is None:
        # Without a configuration `blocking` would be false.
        return msgspec.structs.replace(request, configuration=SendMessageConfiguration())
    return request


def _part_conversion(file_bytes: FileBytes) -> Conversion:
    def fill(message: Message, part: Part) -> None:
        metadata = part.metadata
        if part.text is not None:
            message.text = part.text
        elif part.data is not UNSET:
            data, metadata = wrap_data(part.data, metadata)
            json_values.fill_struct(message.data.data, data)
        else:
            file = message.file
            if part.url is not None:
                file.file_with_uri = part.url
            elif part.raw is not None:
                file.file_with_bytes = file_bytes.write(part.raw)
            file.mime_type, file.name = part.media_type or "", part.filename or ""
        if metadata is not None:
            json_values.fill_struct(message.metadata, metadata)

    def read(message: Message) -> Part:
        kind = message.WhichOneof("part")
        metadata = json_values.read_struct(message.metadata) if message.HasField("metadata") else None
        if kind == "text":
            return Part(text=message.text, metadata=metadata)
        if kind == "data":
            return unwrap_data(json_values.read_struct(message.data.data), metadata)
        if kind is None:
            raise ValueError("a part has no content")
        file = message.file
        is_url = file.WhichOneof("file") == "file_with_uri"
        return Part(
            url=file.file_with_uri if is_url else None,
            raw=None if is_url else file_bytes.read(file.file_with_bytes),
            metadata=metadata,
            filename=file.name or None,
            media_type=file.mime_type or None,
        )

    return Conversion(read, fill)


def _read_card_0_3(card: Message) -> AgentCard:
    values: dict[str, Any] = MessageToDict(card)
    return _card_from(modern_fields(values, version=values.pop("protocolVersion", VERSION)))


def _fill_card_0_3(message: Message, card: AgentCard) -> None:
    """Fill the card of 0.3: one main interface and the others, of those that speak it if there are any."""
    values: dict[str, Any] = msgspec.to_builtins(card)
    interfaces = values.pop("supportedInterfaces")
    spoken = [one for one in interfaces if one["protocolVersion"].startswith(VERSION)] or interfaces
    others = [{"url": one["url"], "transport": one["protocolBinding"]} for one in spoken]
    main = others.pop(0) if others else {"url": "", "transport": ""}
    values |= {"url": main["url"], "preferredTransport": main["transport"], "additionalInterfaces": others}
    values["protocolVersion"] = PROTOCOL_VERSION
    values["supportsAuthenticatedExtendedCard"] = values["capabilities"].pop("extendedAgentCard", False)
    for holder in (values, *values["skills"]):
        if "securityRequirements" in holder:
            holder["security"] = holder.pop("securityRequirements")
    _parse_card(values, message)


@cache
def _codec_0_3(file_bytes: FileBytes) -> Codec:
    schema = ProtoSchema(
        renamed=_RENAMED,
        written=_WRITTEN,
        read=_READ,
        conversions={
            "Part": _part_conversion(file_bytes),
            "AgentCard": Conversion(_read_card_0_3, _fill_card_0_3),
        },
    )
    service = a2a_v0_3_pb2.DESCRIPTOR.services_by_name["A2AService"]
    return Codec(
        "0.3",
        schema,
        service.full_name,
        _rpcs(service, schema, _prepare_0_3, _OPERATIONS),
        ends_at_pause=True,
        names_errors=True,
        restate=in_0_3,
        # Peers of the JavaScript SDK write files once.
        variant=lambda software: _codec_0_3(ONCE if is_once(software) else TWICE),
    )


CODECS: dict[str, Codec] = {codec.version: codec for codec in (_CODEC_1_0, _codec_0_3(TWICE))}


# The position of an event in the log of its task, which the schema has no field for. A client that wants it says so
# in its metadata, and gets it as one field more at the end of each event: the last number that protobuf allows, which
# readers that do not know it skip.

#: The entry of the metadata: `errands-event-ids: 1`.
ASKING = ("errands-event-ids", "1")
_POSITION = 2**29 - 1
_VARINT = 0


class Position(NamedTuple):
    version: int
    #: The event replaces others that are no longer kept.
    gap: bool


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits in a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_TAG = varint(_POSITION << 3 | _VARINT)


def mark(event: bytes, position: Position) -> bytes:
    """Return the event with its position at the end."""
    return event + _TAG + varint(position.version << 1 | position.gap)


def position_of(event: bytes) -> Position | None:
    """Return what `mark` has added, or None. Raises `DecodeError`."""
    # To an empty message every field is unknown.
    fields: Any = UnknownFieldSet(empty_pb2.Empty.FromString(event))
    for field in fields:
        if field.field_number == _POSITION and field.wire_type == _VARINT:
            return Position(field.data >> 1, bool(field.data & 1))
    return None


# Events of a stream

#: A prefix that no event has.
_NEVER = b"\0"
_BEFORE_TEXT = b'"parts":[{"text":"'
# Numbers: bytes look for one several times faster than for bytes.
_BACKSLASH, _QUOTE = b'\\"'
_LENGTH_DELIMITED = 2
#: Pieces shorter than this have heads that are kept, as longer ones are rarely of the same length; and how many heads
#: of at most how many bytes, as every open stream has its own.
_SHORT, _MOST_HEADS, _LONGEST_HEAD = 256, 64, 1024

_decode = msgspec.json.Decoder(unchecked(StreamResponse)).decode


class EventWriter:
    """Writes the events of one stream, from the JSON in which the log has them.

    Most events of a long stream are pieces of one text and differ in nothing else. Decoding each of them and filling a
    message would take about a seventh of a stream's instructions, so what surrounds the text is converted once:

        {"artifactUpdate":{…,"artifact":{…,"parts":[{"text":"a piece of the text"}]},"append":true}}
        └────────────────────── prefix ─────────────────────┘                   └───── suffix ─────┘
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        #: What surrounds the text in the latest event that has one, and its heads once a second event has the same.
        self._prefix = self._suffix = _NEVER
        self._heads: _Heads | None = None

    def write(self, data: bytes) -> bytes:
        """Return the message of an event. Raises `InvalidAgentResponseError` when protobuf cannot carry it."""
        if data.startswith(self._prefix) and data.endswith(self._suffix):
            text = data[len(self._prefix) : -len(self._suffix)]
            # Without escapes, a text is the same bytes in JSON and in protobuf.
            if _BACKSLASH not in text and _QUOTE not in text:
                if self._heads is None:
                    self._heads = _heads_of(self._rpc, self._prefix, self._suffix)
                if self._heads is not None:
                    return self._heads[len(text)] + text
                self._prefix = _NEVER
        else:
            before, found, after = data.partition(_BEFORE_TEXT)
            if found:
                self._prefix, self._suffix, self._heads = before + found, after[after.find(b'"') :], None
        return write_response(self._rpc, _decode(data))


class _Heads(dict[int, bytes]):
    """What precedes a text in the message of its event, by the length of the text.

    Fields of a message may be in any order, so the text comes last, in the last field of every message around it.
    `levels` are these messages from the innermost: their other fields, and the tag of the field that comes last.
    """

    def __init__(self, levels: list[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._levels = levels

    def __missing__(self, length: int) -> bytes:
        head = b""
        for others, tag in self._levels:
            head = others + tag + varint(len(head) + length) + head
        if length < _SHORT and len(self) < _MOST_HEADS and len(head) <= _LONGEST_HEAD:
            self[length] = head
        return head


def _heads_of(rpc: Rpc, prefix: bytes, suffix: bytes) -> _Heads | None:
    """Return the heads of texts between `prefix` and `suffix`, or None if these are not around the text of a piece."""
    try:
        event, other = _decode(prefix + suffix), _decode(prefix + b"-" + suffix)
    except msgspec.DecodeError:
        return None
    if _text_of(event) != "" or _text_of(other) != "-":
        return None
    message = rpc.write(event)
    update = message.artifact_update
    artifact = update.artifact
    around = [(artifact.parts[0], "text"), (artifact, "parts"), (update, "artifact"), (message, "artifact_update")]
    levels = []
    for outer, field in around:
        outer.ClearField(field)
        tag = varint(outer.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED)
        levels.append((outer.SerializeToString(), tag))
    return _Heads(levels)


def _text_of(event: StreamResponse) -> str | None:
    """Return the text of an artifact's piece that has one part."""
    parts = [] if event.artifact_update is None else event.artifact_update.artifact.parts
    return parts[0].text if len(parts) == 1 else None
