"""A2A 0.3 spelled as the official SDKs write its proto in JSON."""

from __future__ import annotations

from msgspec import UNSET

from errands.errors import InvalidParamsError
from errands.model import core
from errands.model.requests import SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig
from errands.wire.v0_3 import proto
from errands.wire.v0_3.file_bytes import ONCE, TWICE, FileBytes
from errands.wire.v0_3.spelling import Spelling, unwrap_data, wrap_data


class ProtoSpelling(Spelling):
    models = proto
    send_params = proto.SendMessageRequest
    create_params = proto.CreateTaskPushNotificationConfigRequest
    states = {state: state.value for state in core.TaskState} | {core.CANCELED: "TASK_STATE_CANCELLED"}
    roles = {role: role.value for role in core.Role}

    def __init__(self, file_bytes: FileBytes) -> None:
        super().__init__()
        self._file_bytes = file_bytes

    def write_part(self, part: core.Part) -> proto.Part:
        if part.text is not None:
            return proto.Part(text=part.text, metadata=part.metadata)
        if part.data is not UNSET:
            data, metadata = wrap_data(part)
            return proto.Part(data=proto.DataPart(data=data), metadata=metadata)
        file = proto.FilePart(
            file_with_uri=part.url,
            file_with_bytes=None if part.raw is None else self._file_bytes.write(part.raw),
            mime_type=part.media_type,
            name=part.filename,
        )
        return proto.Part(file=file, metadata=part.metadata)

    def read_part(self, part: proto.Part) -> core.Part:
        if part.text is not None:
            return core.Part(text=part.text, metadata=part.metadata)
        if part.data is not None:
            return unwrap_data(part.data.data, part.metadata)
        file = part.file
        assert file is not None
        return core.Part(
            raw=None if file.file_with_bytes is None else self._file_bytes.read(file.file_with_bytes),
            url=file.file_with_uri,
            filename=file.name or None,
            media_type=file.mime_type or None,
            metadata=part.metadata,
        )

    def write_send(self, request: SendMessageRequest) -> proto.SendMessageRequest:
        # Always with a configuration: here nobody can tell a missing `blocking` from a false one.
        wanted = request.configuration or SendMessageConfiguration()
        push = wanted.task_push_notification_config
        return proto.SendMessageRequest(
            message=self.write_message(request.message),
            configuration=proto.SendMessageConfiguration(
                accepted_output_modes=wanted.accepted_output_modes,
                push_notification=None if push is None else self._write_push(push),
                history_length=wanted.history_length,
                blocking=not wanted.return_immediately,
            ),
            metadata=request.metadata,
        )

    def read_send(self, params: proto.SendMessageRequest) -> SendMessageRequest:
        message = params.message or params.request
        if message is None:
            raise InvalidParamsError("Object missing required field `message`", field="message")
        wanted = params.configuration
        configuration = None
        if wanted is not None:
            push = wanted.push_notification
            configuration = SendMessageConfiguration(
                accepted_output_modes=wanted.accepted_output_modes,
                task_push_notification_config=None if push is None else self._read_push(push),
                history_length=wanted.history_length or None,
                return_immediately=not wanted.blocking,
            )
        return SendMessageRequest(
            message=self._read_sent(message), configuration=configuration, metadata=params.metadata
        )

    def write_push_config(self, config: TaskPushNotificationConfig) -> proto.TaskPushNotificationConfig:
        return proto.TaskPushNotificationConfig(
            name=f"tasks/{config.task_id}/pushNotificationConfigs/{config.id or config.task_id}",
            push_notification_config=self._write_push(config),
        )

    def write_create(self, config: TaskPushNotificationConfig) -> proto.CreateTaskPushNotificationConfigRequest:
        return proto.CreateTaskPushNotificationConfigRequest(
            parent=f"tasks/{config.task_id}", config_id=config.id, config=self.write_push_config(config)
        )

    def read_push_config(self, config: proto.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        names = config.name.split("/")
        return self._read_push(config.push_notification_config, names[1] if len(names) > 1 else None)


#: As most of the SDKs write files, and as the JavaScript one does: see `file_bytes`.
PROTO = ProtoSpelling(TWICE)
PROTO_ONCE = ProtoSpelling(ONCE)
