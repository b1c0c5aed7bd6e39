"""A2A 0.3 spelled as its JSON schema says."""

from __future__ import annotations

from msgspec import UNSET

from errands.model import core
from errands.model.requests import SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig
from errands.wire.v0_3 import models
from errands.wire.v0_3.spelling import Spelling, unwrap_data, wrap_data


class SchemaSpelling(Spelling):
    models = models
    send_params = models.MessageSendParams
    create_params = models.CreatePushNotificationConfig
    states = {state: "unknown" if state is core.UNSPECIFIED else state.short for state in core.TaskState}
    roles = {core.Role.UNSPECIFIED: "agent", core.Role.USER: "user", core.Role.AGENT: "agent"}

    def __init__(self, *, blocks_by_default: bool = True) -> None:
        super().__init__()
        self._blocks_by_default = blocks_by_default

    def write_part(self, part: core.Part) -> models.Part:
        if part.text is not None:
            return models.Part(kind="text", text=part.text, metadata=part.metadata)
        if part.data is not UNSET:
            data, metadata = wrap_data(part)
            return models.Part(kind="data", data=data, metadata=metadata)
        file = models.File(content=part.raw, uri=part.url, name=part.filename, mime_type=part.media_type)
        return models.Part(kind="file", file=file, metadata=part.metadata)

    def read_part(self, part: models.Part) -> core.Part:
        kind = part.kind
        if kind == "text":
            return core.Part(text=part.text, metadata=part.metadata)
        if kind == "data":
            return unwrap_data(part.data, part.metadata)
        file = part.file
        assert file is not None
        return core.Part(
            raw=file.content, url=file.uri, filename=file.name, media_type=file.mime_type, metadata=part.metadata
        )

    def write_message(self, message: core.Message) -> models.Message:
        written: models.Message = super().write_message(message)
        written.reference_task_ids = message.reference_task_ids
        return written

    def read_message(self, message: models.Message) -> core.Message:
        read = super().read_message(message)
        read.reference_task_ids = message.reference_task_ids
        return read

    def write_send(self, request: SendMessageRequest) -> models.MessageSendParams:
        wanted = request.configuration
        configuration = None
        if wanted is not None:
            push = wanted.task_push_notification_config
            configuration = models.MessageSendConfiguration(
                accepted_output_modes=wanted.accepted_output_modes,
                push_notification_config=None if push is None else self._write_push(push),
                history_length=wanted.history_length,
                blocking=not wanted.return_immediately,
            )
        return models.MessageSendParams(
            message=self.write_message(request.message), configuration=configuration, metadata=request.metadata
        )

    def read_send(self, params: models.MessageSendParams) -> SendMessageRequest:
        wanted = params.configuration
        configuration = None if self._blocks_by_default else SendMessageConfiguration(return_immediately=True)
        if wanted is not None:
            push = wanted.push_notification_config
            configuration = SendMessageConfiguration(
                accepted_output_modes=wanted.accepted_output_modes,
                task_push_notification_config=None if push is None else self._read_push(push),
                history_length=wanted.history_length,
                return_immediately=not (self._blocks_by_default if wanted.blocking is None else wanted.blocking),
            )
        return SendMessageRequest(
            message=self._read_sent(params.message), configuration=configuration, metadata=params.metadata
        )

    def write_push_config(self, config: TaskPushNotificationConfig) -> models.TaskPushNotificationConfig:
        return models.TaskPushNotificationConfig(
            task_id=config.task_id or "", push_notification_config=self._write_push(config)
        )

    def write_create(self, config: TaskPushNotificationConfig) -> models.CreatePushNotificationConfig:
        return models.CreatePushNotificationConfig(config=self.write_push_config(config))

    def read_push_config(self, config: models.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        return self._read_push(config.push_notification_config, config.task_id or None)


#: Where `blocking` is left out, the servers of the official SDKs wait; those of a2akit do not, and its client knows it.
SCHEMA = SchemaSpelling()
A2AKIT = SchemaSpelling(blocks_by_default=False)
