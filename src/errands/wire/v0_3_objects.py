"""How A2A 0.3 spells messages, tasks and events, beside the spelling of 1.0 in `errands.model`.

0.3 is written in two ways. `SCHEMA` is its JSON schema: over JSON-RPC, and over HTTP+JSON as the specification's text
says. `PROTO` is the JSON of its proto, which the official SDKs send and serve over HTTP+JSON. The structs here read
both; tables say what differs. Writing starts from the JSON of 1.0.

What 0.3 cannot say is left out: the file name and media type of a part that is not a file, an unspecified role (it is
read as the agent's), the tenant; in `PROTO` also `referenceTaskIds`, as its receivers refuse fields they do not know.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from errands.errors import InvalidParamsError
from errands.model import core, requests
from errands.model.base import A2AObject, Metadata

# The bytes of files over HTTP+JSON and gRPC, where the official SDKs disagree. The proto has a field for the bytes
# themselves. The JavaScript SDK puts them there: in JSON they are base64 once. The SDKs for Python, Go and Java put the
# base64 text of the file there: it is base64 twice. These are the rules:
#
# 1. A peer that says it runs JavaScript (`is_once`) reads and writes once. So does one whose own request has a file
#    that is not base64 inside.
# 2. Every other peer is answered as the majority of SDKs expects it: twice. What it sends is decoded a second time if
#    it is base64 to the last byte, and otherwise taken as it is.
#
# By these rules a file goes wrong only if a peer that is not known to run JavaScript writes it once, and the whole file
# happens to be base64 text.

#: How JavaScript names itself: `fetch` of Node.js, Deno, Bun and browsers, gRPC for Node.js, and Express, with which
#: agents of the JavaScript SDK are served.
_JAVASCRIPT = (b"node", b"undici", b"deno/", b"bun/", b"mozilla/", b"grpc-node-js/", b"express")


class FileBytes(NamedTuple):
    """Between a file and the field that carries it."""

    read: Callable[[bytes], bytes]
    write: Callable[[bytes], bytes]


def _decoded(content: bytes | str) -> bytes | None:
    """Return the file of which `content` is the base64 text, or None when it is not base64."""
    try:
        return binascii.a2b_base64(content, strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def is_encoded_once(content: Any) -> bool:
    """Return whether a file's text in a body is base64, and what it means is not base64 again."""
    file = _decoded(content) if isinstance(content, str) else None
    return file is not None and _decoded(file) is None


TWICE = FileBytes(
    read=lambda content: content if (file := _decoded(content)) is None else file,
    write=lambda file: binascii.b2a_base64(file, newline=False),
)
ONCE = FileBytes(read=bytes, write=bytes)


def is_once(software: bytes) -> bool:
    """Return whether the peer that names itself so in `User-Agent` or `X-Powered-By` runs JavaScript."""
    return software.lower().startswith(_JAVASCRIPT)


# Data that is not an object, which a part of 0.3 cannot carry, travels as `{"value": …}`

#: The metadata that says so: a2a-sdk's name for it.
_WRAPPED = "data_part_compat"


def wrap_data(data: Any, metadata: Metadata | None) -> tuple[dict[str, Any], Metadata | None]:
    """Return the data of a part as an object, and the metadata that says so."""
    if isinstance(data, dict):
        return data, metadata
    return {"value": data}, {**(metadata or {}), _WRAPPED: True}


def unwrap_data(data: Any, metadata: Metadata | None) -> core.Part:
    """Return the part of which `wrap_data` has written the data."""
    if metadata and metadata.get(_WRAPPED) is True and isinstance(data, dict) and "value" in data:
        kept = {key: value for key, value in metadata.items() if key != _WRAPPED}
        return core.Part(data=data["value"], metadata=kept or None)
    return core.Part(data=data, metadata=metadata)


# What is read. Fields of both spellings, and everything has a default: the JSON of a proto leaves out zero values


class FileV03(A2AObject):
    content: bytes | None = msgspec.field(name="bytes", default=None)
    uri: str | None = None
    file_with_bytes: bytes | None = None
    file_with_uri: str | None = None
    name: str | None = None
    mime_type: str | None = None

    def __post_init__(self) -> None:
        contents = (self.content, self.uri, self.file_with_bytes, self.file_with_uri)
        if sum(content is not None for content in contents) != 1:
            raise ValueError("a file needs either its bytes or its URI")


class PartV03(A2AObject):
    #: `text`, `file` or `data`. A proto has no kinds: the field that is set decides.
    kind: str = ""
    text: str | None = None
    file: FileV03 | None = None
    data: Any | UnsetType = UNSET
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if self.text is not None and self.file is None and self.data is UNSET and self.kind in ("text", ""):
            return
        contents = {"text": self.text is not None, "file": self.file is not None, "data": self.data is not UNSET}
        if self.data is None and (contents["text"] or contents["file"]):
            contents["data"] = False  # an empty field, as some write it
        if self.kind and self.kind not in contents:
            raise ValueError("the kind of a part is text, file or data")
        if self.kind and not contents[self.kind]:
            raise ValueError(f"a part of kind {self.kind} needs {self.kind}")
        if not self.kind and sum(contents.values()) != 1:
            raise ValueError("a part needs exactly one of text, file and data")


class MessageV03(A2AObject):
    kind: Literal["message"] = "message"
    message_id: str = ""
    role: str | int = 0
    parts: list[PartV03] = []
    #: The parts as the proto calls them.
    content: list[PartV03] = []
    context_id: str | None = None
    task_id: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None

    def __post_init__(self) -> None:
        self.parts = self.parts or self.content


class TaskStatusV03(A2AObject):
    state: str | int = 0
    message: MessageV03 | None = None
    timestamp: str | None = None


class ArtifactV03(A2AObject):
    artifact_id: str = ""
    parts: list[PartV03] = []
    name: str | None = None
    description: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | None = None


class TaskV03(A2AObject):
    kind: Literal["task"] = "task"
    id: str = ""
    context_id: str = ""
    status: TaskStatusV03 = msgspec.field(default_factory=TaskStatusV03)
    artifacts: list[ArtifactV03] | None = None
    history: list[MessageV03] | None = None
    metadata: Metadata | None = None


class StatusUpdateV03(A2AObject):
    kind: Literal["status-update"] = "status-update"
    task_id: str = ""
    context_id: str = ""
    status: TaskStatusV03 = msgspec.field(default_factory=TaskStatusV03)
    metadata: Metadata | None = None


class ArtifactUpdateV03(A2AObject):
    kind: Literal["artifact-update"] = "artifact-update"
    task_id: str = ""
    context_id: str = ""
    artifact: ArtifactV03 = msgspec.field(default_factory=ArtifactV03)
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: Metadata | None = None


class StreamResponseV03(A2AObject):
    """One event over HTTP+JSON, or the answer to a message; exactly one field is set."""

    task: TaskV03 | None = None
    message: MessageV03 | None = None
    status_update: StatusUpdateV03 | None = None
    artifact_update: ArtifactUpdateV03 | None = None


class TaskListV03(A2AObject):
    tasks: list[TaskV03] = []
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


class AuthenticationV03(A2AObject):
    schemes: list[str] = []
    credentials: str | None = None


class PushConfigV03(A2AObject):
    url: str = ""
    id: str | None = None
    token: str | None = None
    authentication: AuthenticationV03 | None = None


class TaskPushConfigV03(A2AObject):
    task_id: str | None = None
    #: In a proto instead of the task's id: `tasks/{task}/pushNotificationConfigs/{config}`.
    name: str = ""
    push_notification_config: PushConfigV03 | None = None


class CreatePushConfigV03(TaskPushConfigV03):
    """The body over HTTP+JSON: the config under `config`, or the config itself. The path has the task's id."""

    config: TaskPushConfigV03 | None = None


class PushConfigParamsV03(A2AObject):
    """The parameters over JSON-RPC; `id` is the task's."""

    id: requests.Id
    push_notification_config_id: str | None = None


class SendConfigurationV03(A2AObject):
    accepted_output_modes: list[str] | None = None
    push_notification_config: PushConfigV03 | None = None
    #: The same as the proto calls it.
    push_notification: PushConfigV03 | None = None
    history_length: requests.NonNegative | None = None
    blocking: bool | None = None


class SendParamsV03(A2AObject):
    message: MessageV03 | None = None
    #: The message as the proto calls it; a2a-sdk 0.3 writes `message` all the same.
    request: MessageV03 | None = None
    configuration: SendConfigurationV03 | None = None
    metadata: Metadata | None = None


#: The struct of 1.0 for each of 0.3. Their attributes have the same names.
_MODELS: dict[type[A2AObject], type[A2AObject]] = {
    MessageV03: core.Message,
    TaskStatusV03: core.TaskStatus,
    ArtifactV03: core.Artifact,
    TaskV03: core.Task,
    StatusUpdateV03: core.TaskStatusUpdateEvent,
    ArtifactUpdateV03: core.TaskArtifactUpdateEvent,
    StreamResponseV03: core.StreamResponse,
    TaskListV03: requests.ListTasksResponse,
}


def _reader(old: type[A2AObject], new: type[A2AObject]) -> Callable[[Spelling, Any], Any]:
    """Return the function that makes a `new` of an `old`, attribute by attribute, compiled once."""
    old_types = {field.name: str(field.type) for field in msgspec.structs.fields(old)}
    arguments = []
    for field in msgspec.structs.fields(new):
        name, declared = field.name, old_types.get(field.name)
        if declared is None:
            continue
        item = f"value.{name}"
        if declared.startswith("list") and "V03" in declared:
            item = f"None if {item} is None else [spelling.read(one) for one in {item}]"
        elif "V03" in declared:
            item = f"None if {item} is None else spelling.read({item})"
        elif name in ("state", "role"):
            item = f"spelling.read_name({name!r}, {item})"
        elif field.default is False or (name.endswith("_id") and not field.required):
            item = f"{item} or {field.default}"
        arguments.append(f"{name}={item}")
    function: Callable[[Spelling, Any], Any] = eval(  # noqa: S307 - from the names above alone
        f"lambda spelling, value: new({', '.join(arguments)})", {"new": new}
    )
    return function


_READERS = {old: _reader(old, new) for old, new in _MODELS.items()}


_STATES = {state.value: "unknown" if state is core.UNSPECIFIED else state.short for state in core.TaskState}
# The unspecified role first, so that the agent's wins when it is read.
_ROLES = {"ROLE_UNSPECIFIED": "agent", "ROLE_USER": "user", "ROLE_AGENT": "agent"}
_PROTO_STATES = {state.value: state.value for state in core.TaskState} | {"TASK_STATE_CANCELED": "TASK_STATE_CANCELLED"}
_FILE_NAMES = {"raw": "bytes", "url": "uri", "filename": "name", "mediaType": "mimeType"}
_PROTO_FILE_NAMES = {"raw": "fileWithBytes", "url": "fileWithUri", "filename": "name", "mediaType": "mimeType"}


class Spelling:
    """One way to write 0.3: as its JSON schema says, or as the JSON of its proto with files as `proto_files` says."""

    def __init__(self, *, proto_files: FileBytes | None = None, blocks_by_default: bool = True) -> None:
        self._files = proto_files or ONCE
        self._is_proto = proto_files is not None
        self._blocks_by_default = blocks_by_default
        #: The names of states and roles by those of 1.0.
        self.states = _PROTO_STATES if self._is_proto else _STATES
        self._roles = {role.value: role.value for role in core.Role} if self._is_proto else _ROLES
        self._parts = "content" if self._is_proto else "parts"
        self._push = "pushNotification" if self._is_proto else "pushNotificationConfig"
        self._names: dict[str, dict[object, core.TaskState | core.Role]] = {
            "state": {name: core.TaskState(one) for one, name in _STATES.items()},
            "role": {name: core.Role(one) for one, name in _ROLES.items()},
        }
        if self._is_proto:
            # A proto has numbers, too. The names of the schema stay, as some agents write those where SDKs do not.
            for number, state in enumerate(core.TaskState):
                self._names["state"] |= dict.fromkeys((number, str(number), _PROTO_STATES[state]), state)
            for number, role in enumerate(core.Role):
                self._names["role"] |= dict.fromkeys((number, str(number), role.value), role)

    # From 0.3

    def read(self, value: Any) -> Any:
        """Return an object of 0.3 as the one of 1.0. Raises `InvalidParamsError` for a name that 0.3 does not have."""
        return _READERS[type(value)](self, value)

    def read_name(self, kind: Literal["state", "role"], name: str | int) -> core.TaskState | core.Role:
        """Return the state or the role of this name. Raises `InvalidParamsError`."""
        if name not in self._names[kind]:
            field = {"state": "status.state", "role": "message.role"}[kind]
            raise InvalidParamsError(f"Invalid value {str(name)[:100]!r} (at {field})", field=field)
        return self._names[kind][name]

    def read_part(self, part: PartV03) -> core.Part:
        """Return a part. Raises `InvalidParamsError`."""
        if part.text is not None and part.kind in ("text", ""):
            return core.Part(text=part.text, metadata=part.metadata)
        if (file := part.file) is not None and part.kind in ("file", ""):
            return core.Part(
                raw=file.content if file.file_with_bytes is None else self._files.read(file.file_with_bytes),
                url=file.uri if file.file_with_uri is None else file.file_with_uri,
                filename=file.name or None,
                media_type=file.mime_type or None,
                metadata=part.metadata,
            )
        data = part.data
        if self._is_proto and not part.kind:
            data = data.get("data", {}) if isinstance(data, dict) else None
            if not isinstance(data, dict):
                raise InvalidParamsError("the data of a part is not an object", field="message.content")
        return unwrap_data(data, part.metadata)

    def read_send(self, params: SendParamsV03) -> requests.SendMessageRequest:
        """Return the request to send a message. Raises `InvalidParamsError` when the message is empty."""
        message = params.message or params.request
        if message is None:
            raise InvalidParamsError("Object missing required field `message`", field="message")
        if not message.message_id:
            raise InvalidParamsError("messageId must not be empty", field="message.messageId")
        if not message.parts:
            raise InvalidParamsError("a message needs at least one part", field="message.parts")
        wanted = params.configuration
        configuration = None if self._blocks_by_default else requests.SendMessageConfiguration(return_immediately=True)
        if wanted is not None:
            push = wanted.push_notification_config or wanted.push_notification
            if push is not None and not push.url:
                field = f"configuration.{self._push}.url"
                raise InvalidParamsError("a push notification config needs a url", field=field)
            # In a proto a missing flag is a false one, and a missing number is 0.
            blocks_by_default = self._blocks_by_default and not self._is_proto
            configuration = requests.SendMessageConfiguration(
                accepted_output_modes=wanted.accepted_output_modes,
                task_push_notification_config=None if push is None else _read_push(push, None),
                history_length=wanted.history_length or (None if self._is_proto else wanted.history_length),
                return_immediately=not (blocks_by_default if wanted.blocking is None else wanted.blocking),
            )
        return requests.SendMessageRequest(
            message=self.read(message), configuration=configuration, metadata=params.metadata
        )

    def read_push_config(
        self, config: TaskPushConfigV03, *, with_id: bool = False
    ) -> requests.TaskPushNotificationConfig:
        """Return a config, without a URL if it has none.

        One without an id is the only one of its task, and gets the task's id if it is to have one.
        """
        names = config.name.split("/")
        task_id = config.task_id or (names[1] if len(names) > 1 else None)
        read = _read_push(config.push_notification_config or PushConfigV03(), task_id)
        if with_id:
            read.id = read.id or task_id
        return read

    # To 0.3: every dict is the JSON of 1.0, and is changed in place

    def write_event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event or an answer: an object under its name."""
        ((name, content),) = event.items()
        if name == "task":
            self.write_task(content)
        elif name == "message":
            self.write_message(content)
        elif name == "statusUpdate":
            content["final"] = content["status"]["state"] in core.SETTLED_STATES
            self._write_status(content["status"])
            self._add_kind(content, "status-update")
        else:
            self._write_artifact(content["artifact"])
            self._add_kind(content, "artifact-update")
        return event

    def write_task(self, task: dict[str, Any]) -> dict[str, Any]:
        task.setdefault("contextId", "")
        self._write_status(task["status"])
        for artifact in task.get("artifacts", ()):
            self._write_artifact(artifact)
        for message in task.get("history", ()):
            self.write_message(message)
        self._add_kind(task, "task")
        return task

    def write_message(self, message: dict[str, Any]) -> None:
        message["role"] = self._roles[message["role"]]
        message[self._parts] = [self._write_part(part) for part in message.pop("parts")]
        if self._is_proto:
            message.pop("referenceTaskIds", None)
        self._add_kind(message, "message")

    def _write_status(self, status: dict[str, Any]) -> None:
        status["state"] = self.states[status["state"]]
        if "message" in status:
            self.write_message(status["message"])

    def _write_artifact(self, artifact: dict[str, Any]) -> None:
        artifact["parts"] = [self._write_part(part) for part in artifact["parts"]]

    def _add_kind(self, written: dict[str, Any], kind: str) -> None:
        if not self._is_proto:
            written["kind"] = kind

    def _write_part(self, part: dict[str, Any]) -> dict[str, Any]:
        if len(part) == 1 and "text" in part:  # almost all parts
            self._add_kind(part, "text")
            return part
        metadata = part.get("metadata")
        written: dict[str, Any]
        if "text" in part:
            kind, written = "text", {"text": part["text"]}
        elif "data" in part:
            data, metadata = wrap_data(part["data"], metadata)
            kind, written = "data", {"data": {"data": data} if self._is_proto else data}
        else:
            names = _PROTO_FILE_NAMES if self._is_proto else _FILE_NAMES
            file = {old: part[new] for new, old in names.items() if new in part}
            if "fileWithBytes" in file:
                file["fileWithBytes"] = self._files.write(binascii.a2b_base64(file["fileWithBytes"]))
            kind, written = "file", {"file": file}
        if metadata is not None:
            written["metadata"] = metadata
        self._add_kind(written, kind)
        return written

    def write_send(self, request: requests.SendMessageRequest) -> dict[str, Any]:
        """Return the request to send a message."""
        values: dict[str, Any] = msgspec.to_builtins(request)
        values.pop("tenant", None)
        self.write_message(values["message"])
        if self._is_proto:
            values.setdefault("configuration", {})  # a missing `blocking` would be a false one
        if (wanted := values.get("configuration")) is not None:
            if (push := wanted.pop("taskPushNotificationConfig", None)) is not None:
                wanted[self._push] = _write_push(push)
            wanted["blocking"] = not wanted.pop("returnImmediately", False)
        return values

    def write_push_config(self, config: requests.TaskPushNotificationConfig) -> dict[str, Any]:
        """Return a config of a task."""
        push = {"pushNotificationConfig": _write_push(msgspec.to_builtins(config))}
        if self._is_proto:
            return {"name": f"tasks/{config.task_id}/pushNotificationConfigs/{config.id or config.task_id}", **push}
        return {"taskId": config.task_id or "", **push}

    def write_create(self, config: requests.TaskPushNotificationConfig) -> dict[str, Any]:
        """Return the request over HTTP+JSON that creates a config."""
        created: dict[str, Any] = {"config": self.write_push_config(config)}
        if self._is_proto:
            created["parent"] = f"tasks/{config.task_id}"
            created |= {"configId": config.id} if config.id is not None else {}
        return created


_READERS[PartV03] = Spelling.read_part


def _read_push(config: PushConfigV03, task_id: str | None) -> requests.TaskPushNotificationConfig:
    info = config.authentication
    return requests.TaskPushNotificationConfig(
        url=config.url,
        id=config.id or None,
        task_id=task_id,
        token=config.token or None,
        authentication=None
        if info is None or not info.schemes
        else requests.AuthenticationInfo(scheme=info.schemes[0], credentials=info.credentials or None),
    )


def _write_push(config: dict[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {
        name: config[name] for name in ("url", "id", "token", "authentication") if name in config
    }
    if "authentication" in written:
        info = dict(written["authentication"])
        written["authentication"] = {"schemes": [info.pop("scheme")], **info}
    return written


#: Where `blocking` is left out, the servers of the official SDKs wait; those of a2akit do not, and its client knows it.
SCHEMA = Spelling()
A2AKIT = Spelling(blocks_by_default=False)
#: As most of the SDKs write files, and as the JavaScript one does.
PROTO = Spelling(proto_files=TWICE)
PROTO_ONCE = Spelling(proto_files=ONCE)
