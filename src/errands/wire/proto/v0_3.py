"""The service of A2A 0.3: resource names instead of ids, no tenants, and no list of tasks."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from google.protobuf import empty_pb2

from errands.errors import InvalidParamsError, UnsupportedOperationError
from errands.model.base import Model
from errands.model.requests import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from errands.wire.proto import cards
from errands.wire.proto.checks import MAX_INT, check_message, required, within
from errands.wire.proto.codec import Codec, Rpc, read_nothing, rpc, write_nothing
from errands.wire.proto.messages_v0_3 import OldReader, OldWriter, pb
from errands.wire.proto.values import write_struct
from errands.wire.v0_3.errors import in_0_3
from errands.wire.v0_3.file_bytes import ONCE, TWICE, FileBytes, is_once

_TASK_NAME = re.compile(r"tasks/([^/]+)")
_CONFIG_NAME = re.compile(r"tasks/([^/]+)/pushNotificationConfigs/([^/]+)")


# Resource names


def _task_id(name: str, field: str) -> str:
    found = _TASK_NAME.fullmatch(name)
    if found is None:
        raise InvalidParamsError(f"{field} must be tasks/ and the id of a task, not {name[:200]!r}", field=field)
    return found[1]


def _config_ids(name: str) -> tuple[str, str]:
    found = _CONFIG_NAME.fullmatch(name)
    if found is None:
        raise InvalidParamsError(
            f"name must be tasks/TASK_ID/pushNotificationConfigs/CONFIG_ID, not {name[:200]!r}", field="name"
        )
    return found[1], found[2]


def _name_of(request: Any) -> str:
    return f"tasks/{_anybodys(request).id}"


def _config_name(task_id: str | None, config_id: str | None) -> str:
    return f"tasks/{task_id or ''}/pushNotificationConfigs/{config_id or ''}"


def _anybodys(request: Model) -> Any:
    if getattr(request, "tenant", None):
        raise UnsupportedOperationError("A2A 0.3 has no tenants over gRPC; choose an interface of 1.0, or HTTP")
    return request


# Push notification configs


def _read_push_config(config: Any, task_id: str | None = None) -> TaskPushNotificationConfig:
    authentication = None
    if config.HasField("authentication"):
        info = config.authentication
        authentication = AuthenticationInfo(
            scheme=info.schemes[0] if info.schemes else "", credentials=info.credentials or None
        )
    return TaskPushNotificationConfig(
        url=config.url,
        id=config.id or None,
        task_id=task_id,
        token=config.token or None,
        authentication=authentication,
    )


def _write_push_config(config: TaskPushNotificationConfig) -> Any:
    info = config.authentication
    return pb.PushNotificationConfig(
        id=config.id,
        url=config.url,
        token=config.token,
        authentication=info and pb.AuthenticationInfo(schemes=[info.scheme], credentials=info.credentials),
    )


def _read_task_config(config: Any) -> TaskPushNotificationConfig:
    task_id, _ = _config_ids(config.name)
    return _read_push_config(config.push_notification_config, task_id)


def _write_task_config(config: TaskPushNotificationConfig) -> Any:
    return pb.TaskPushNotificationConfig(
        name=_config_name(config.task_id, config.id), push_notification_config=_write_push_config(config)
    )


def _read_create_config(request: Any) -> TaskPushNotificationConfig:
    config = request.config.push_notification_config
    required(config.url, "config.pushNotificationConfig.url")
    read = _read_push_config(config, _task_id(request.parent, "parent"))
    read.id = read.id or request.config_id or None
    return read


def _write_create_config(request: TaskPushNotificationConfig) -> Any:
    _anybodys(request)
    return pb.CreateTaskPushNotificationConfigRequest(
        parent=f"tasks/{request.task_id or ''}", config_id=request.id, config=_write_task_config(request)
    )


def _read_get_config(request: Any) -> GetTaskPushNotificationConfigRequest:
    task_id, config_id = _config_ids(request.name)
    return GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def _write_get_config(request: GetTaskPushNotificationConfigRequest) -> Any:
    _anybodys(request)
    return pb.GetTaskPushNotificationConfigRequest(name=_config_name(request.task_id, request.id))


def _read_delete_config(request: Any) -> DeleteTaskPushNotificationConfigRequest:
    task_id, config_id = _config_ids(request.name)
    return DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def _write_delete_config(request: DeleteTaskPushNotificationConfigRequest) -> Any:
    _anybodys(request)
    return pb.DeleteTaskPushNotificationConfigRequest(name=_config_name(request.task_id, request.id))


def _read_list_configs(request: Any) -> ListTaskPushNotificationConfigsRequest:
    return ListTaskPushNotificationConfigsRequest(
        task_id=_task_id(request.parent, "parent"),
        page_size=within(request.page_size, "pageSize", 0, MAX_INT) or None,
        page_token=request.page_token or None,
    )


def _write_list_configs(request: ListTaskPushNotificationConfigsRequest) -> Any:
    _anybodys(request)
    return pb.ListTaskPushNotificationConfigRequest(
        parent=f"tasks/{request.task_id}", page_size=request.page_size, page_token=request.page_token
    )


def _read_configs(response: Any) -> ListTaskPushNotificationConfigsResponse:
    return ListTaskPushNotificationConfigsResponse(
        configs=[_read_task_config(config) for config in response.configs],
        next_page_token=response.next_page_token or None,
    )


def _write_configs(response: ListTaskPushNotificationConfigsResponse) -> Any:
    return pb.ListTaskPushNotificationConfigResponse(
        configs=[_write_task_config(config) for config in response.configs],
        next_page_token=response.next_page_token,
    )


# Sending


def _read_send(reader: OldReader, request: Any) -> SendMessageRequest:
    if not request.HasField("request"):
        raise InvalidParamsError("message is required", field="message")
    message = request.request
    check_message(message, message.content[:], "part")
    return SendMessageRequest(
        message=reader.message(message),
        configuration=_read_configuration(request.configuration) if request.HasField("configuration") else None,
        metadata=reader.metadata(request),
    )


def _read_configuration(configuration: Any) -> SendMessageConfiguration:
    push = None
    if configuration.HasField("push_notification"):
        push = configuration.push_notification
        required(push.url, "configuration.pushNotification.url")
    return SendMessageConfiguration(
        accepted_output_modes=configuration.accepted_output_modes[:] or None,
        task_push_notification_config=push and _read_push_config(push),
        # 0 is "without a bound" in this version.
        history_length=within(configuration.history_length, "configuration.historyLength", 0, MAX_INT) or None,
        return_immediately=not configuration.blocking,
    )


def _write_send(writer: OldWriter, request: SendMessageRequest) -> Any:
    _anybodys(request)
    written = pb.SendMessageRequest(
        configuration=_write_configuration(request.configuration or SendMessageConfiguration()),
        metadata=write_struct(request.metadata),
    )
    writer.fill_message(written.request, request.message)
    return written


def _write_configuration(configuration: SendMessageConfiguration) -> Any:
    push = configuration.task_push_notification_config
    return pb.SendMessageConfiguration(
        accepted_output_modes=configuration.accepted_output_modes,
        push_notification=push and _write_push_config(push),
        history_length=configuration.history_length,
        blocking=not configuration.return_immediately,
    )


# Tasks


def _read_get(request: Any) -> GetTaskRequest:
    return GetTaskRequest(
        id=_task_id(request.name, "name"),
        history_length=within(request.history_length, "historyLength", 0, MAX_INT) or None,
    )


def _write_get(request: GetTaskRequest) -> Any:
    return pb.GetTaskRequest(name=_name_of(request), history_length=request.history_length)


def _read_cancel(request: Any) -> CancelTaskRequest:
    return CancelTaskRequest(id=_task_id(request.name, "name"))


def _write_cancel(request: CancelTaskRequest) -> Any:
    return pb.CancelTaskRequest(name=_name_of(request))


def _read_subscribe(request: Any) -> SubscribeToTaskRequest:
    return SubscribeToTaskRequest(id=_task_id(request.name, "name"))


def _write_subscribe(request: SubscribeToTaskRequest) -> Any:
    return pb.TaskSubscriptionRequest(name=_name_of(request))


def _read_get_card(_: Any) -> GetExtendedAgentCardRequest:
    return GetExtendedAgentCardRequest()


def _write_get_card(request: GetExtendedAgentCardRequest) -> Any:
    _anybodys(request)
    return pb.GetAgentCardRequest()


_CONFIG = (_write_task_config, _read_task_config)


def _rpcs(file_bytes: FileBytes) -> tuple[Rpc, ...]:
    reader, writer = OldReader(file_bytes), OldWriter(file_bytes)
    send = (partial(_read_send, reader), partial(_write_send, writer))
    task = (writer.task, reader.task)
    event = (writer.event, reader.event)
    return (
        rpc("SendMessage", pb.SendMessageRequest, pb.SendMessageResponse, *send, writer.sent, reader.sent),
        rpc("SendStreamingMessage", pb.SendMessageRequest, pb.StreamResponse, *send, *event),
        rpc("GetTask", pb.GetTaskRequest, pb.Task, _read_get, _write_get, *task),
        rpc("CancelTask", pb.CancelTaskRequest, pb.Task, _read_cancel, _write_cancel, *task),
        rpc(
            "SubscribeToTask",
            pb.TaskSubscriptionRequest,
            pb.StreamResponse,
            _read_subscribe,
            _write_subscribe,
            *event,
            name="TaskSubscription",
        ),
        rpc(
            "CreateTaskPushNotificationConfig",
            pb.CreateTaskPushNotificationConfigRequest,
            pb.TaskPushNotificationConfig,
            _read_create_config,
            _write_create_config,
            *_CONFIG,
        ),
        rpc(
            "GetTaskPushNotificationConfig",
            pb.GetTaskPushNotificationConfigRequest,
            pb.TaskPushNotificationConfig,
            _read_get_config,
            _write_get_config,
            *_CONFIG,
        ),
        rpc(
            "ListTaskPushNotificationConfigs",
            pb.ListTaskPushNotificationConfigRequest,
            pb.ListTaskPushNotificationConfigResponse,
            _read_list_configs,
            _write_list_configs,
            _write_configs,
            _read_configs,
            name="ListTaskPushNotificationConfig",
        ),
        rpc(
            "DeleteTaskPushNotificationConfig",
            pb.DeleteTaskPushNotificationConfigRequest,
            empty_pb2.Empty,
            _read_delete_config,
            _write_delete_config,
            write_nothing,
            read_nothing,
        ),
        rpc(
            "GetExtendedAgentCard",
            pb.GetAgentCardRequest,
            pb.AgentCard,
            _read_get_card,
            _write_get_card,
            cards.write_old_card,
            cards.read_old_card,
            name="GetAgentCard",
        ),
    )


def _codec(file_bytes: FileBytes) -> Codec:
    return Codec(
        version="0.3",
        service=pb.DESCRIPTOR.services_by_name["A2AService"].full_name,
        rpcs={one.operation.name: one for one in _rpcs(file_bytes)},
        ends_at_pause=True,
        names_errors=True,
        restate=in_0_3,
        variant=lambda software: CODEC_ONCE if is_once(software) else CODEC,
    )


CODEC = _codec(TWICE)
#: For peers of the JavaScript SDK.
CODEC_ONCE = _codec(ONCE)
