"""The service of A2A 1.0: every operation's request and response, both ways."""

from __future__ import annotations

from typing import Any

from a2a.types import a2a_pb2
from google.protobuf import empty_pb2

from errands.errors import InvalidParamsError
from errands.model.requests import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from errands.wire.proto import cards
from errands.wire.proto.checks import MAX_INT, check_message, required, within
from errands.wire.proto.codec import Codec, read_nothing, rpc, write_nothing
from errands.wire.proto.messages import STATE_NUMBERS, STATES, Reader, Writer
from errands.wire.proto.values import read_time, write_struct, write_time

#: Any: generated messages take numbers for enums, which their type stubs do not say.
pb: Any = a2a_pb2

_MAX_PAGE = 100

_writer = Writer()
_reader = Reader()


def _history_length(message: Any, field: str = "historyLength") -> int | None:
    return within(message.history_length, field, 0, MAX_INT) if message.HasField("history_length") else None


# Push notification configs


def _read_push_config(config: Any) -> TaskPushNotificationConfig:
    authentication = None
    if config.HasField("authentication"):
        info = config.authentication
        authentication = AuthenticationInfo(scheme=info.scheme, credentials=info.credentials or None)
    return TaskPushNotificationConfig(
        url=config.url,
        tenant=config.tenant or None,
        id=config.id or None,
        task_id=config.task_id or None,
        token=config.token or None,
        authentication=authentication,
    )


def _accept_push_config(config: Any) -> TaskPushNotificationConfig:
    required(config.url, "url")
    return _read_push_config(config)


def _write_push_config(config: TaskPushNotificationConfig) -> Any:
    info = config.authentication
    return pb.TaskPushNotificationConfig(
        tenant=config.tenant,
        id=config.id,
        task_id=config.task_id,
        url=config.url,
        token=config.token,
        authentication=info and pb.AuthenticationInfo(scheme=info.scheme, credentials=info.credentials),
    )


def _read_push_configs(response: Any) -> ListTaskPushNotificationConfigsResponse:
    return ListTaskPushNotificationConfigsResponse(
        configs=[_read_push_config(config) for config in response.configs],
        next_page_token=response.next_page_token or None,
    )


def _write_push_configs(response: ListTaskPushNotificationConfigsResponse) -> Any:
    return pb.ListTaskPushNotificationConfigsResponse(
        configs=[_write_push_config(config) for config in response.configs],
        next_page_token=response.next_page_token,
    )


# Sending


def _read_send(request: Any) -> SendMessageRequest:
    if not request.HasField("message"):
        raise InvalidParamsError("message is required", field="message")
    message = request.message
    check_message(message, message.parts[:], "content")
    return SendMessageRequest(
        message=_reader.message(message),
        tenant=request.tenant or None,
        configuration=_read_configuration(request.configuration) if request.HasField("configuration") else None,
        metadata=_reader.metadata(request),
    )


def _read_configuration(configuration: Any) -> SendMessageConfiguration:
    push = None
    if configuration.HasField("task_push_notification_config"):
        push = configuration.task_push_notification_config
        required(push.url, "configuration.taskPushNotificationConfig.url")
    return SendMessageConfiguration(
        accepted_output_modes=configuration.accepted_output_modes[:] or None,
        task_push_notification_config=push and _read_push_config(push),
        history_length=_history_length(configuration, "configuration.historyLength"),
        return_immediately=configuration.return_immediately,
    )


def _write_send(request: SendMessageRequest) -> Any:
    written = pb.SendMessageRequest(
        tenant=request.tenant,
        configuration=request.configuration and _write_configuration(request.configuration),
        metadata=write_struct(request.metadata),
    )
    _writer.fill_message(written.message, request.message)
    return written


def _write_configuration(configuration: SendMessageConfiguration) -> Any:
    push = configuration.task_push_notification_config
    return pb.SendMessageConfiguration(
        accepted_output_modes=configuration.accepted_output_modes,
        task_push_notification_config=push and _write_push_config(push),
        history_length=configuration.history_length,
        return_immediately=configuration.return_immediately,
    )


# Tasks


def _read_get(request: Any) -> GetTaskRequest:
    return GetTaskRequest(
        id=required(request.id, "id"), tenant=request.tenant or None, history_length=_history_length(request)
    )


def _write_get(request: GetTaskRequest) -> Any:
    return pb.GetTaskRequest(id=request.id, tenant=request.tenant, history_length=request.history_length)


def _read_list(request: Any) -> ListTasksRequest:
    within(request.status, "status", 0, len(STATES) - 1)
    return ListTasksRequest(
        tenant=request.tenant or None,
        context_id=request.context_id or None,
        status=STATES[request.status] if request.status else None,
        page_size=within(request.page_size, "pageSize", 1, _MAX_PAGE) if request.HasField("page_size") else None,
        page_token=request.page_token or None,
        history_length=_history_length(request),
        status_timestamp_after=_read_moment(request) if request.HasField("status_timestamp_after") else None,
        include_artifacts=request.include_artifacts if request.HasField("include_artifacts") else None,
    )


def _read_moment(request: Any) -> str:
    try:
        return read_time(request.status_timestamp_after)
    except ValueError as error:
        raise InvalidParamsError(f"statusTimestampAfter: {error}", field="statusTimestampAfter") from None


def _write_list(request: ListTasksRequest) -> Any:
    return pb.ListTasksRequest(
        tenant=request.tenant,
        context_id=request.context_id,
        status=STATE_NUMBERS[request.status] if request.status else None,
        page_size=request.page_size,
        page_token=request.page_token,
        history_length=request.history_length,
        status_timestamp_after=_write_moment(request.status_timestamp_after),
        include_artifacts=request.include_artifacts,
    )


def _write_moment(text: str | None) -> Any:
    moment = write_time(text)
    if text and moment is None:
        raise ValueError(f"statusTimestampAfter must be an ISO 8601 time such as 2026-01-31T12:00:00Z, not {text!r}")
    return moment


def _read_page(response: Any) -> ListTasksResponse:
    return ListTasksResponse(
        tasks=[_reader.task(task) for task in response.tasks],
        next_page_token=response.next_page_token,
        page_size=response.page_size,
        total_size=response.total_size,
    )


def _write_page(response: ListTasksResponse) -> Any:
    return pb.ListTasksResponse(
        tasks=[_writer.task(task) for task in response.tasks],
        next_page_token=response.next_page_token,
        page_size=response.page_size,
        total_size=response.total_size,
    )


def _read_cancel(request: Any) -> CancelTaskRequest:
    return CancelTaskRequest(
        id=required(request.id, "id"), tenant=request.tenant or None, metadata=_reader.metadata(request)
    )


def _write_cancel(request: CancelTaskRequest) -> Any:
    return pb.CancelTaskRequest(id=request.id, tenant=request.tenant, metadata=write_struct(request.metadata))


def _read_subscribe(request: Any) -> SubscribeToTaskRequest:
    return SubscribeToTaskRequest(id=required(request.id, "id"), tenant=request.tenant or None)


def _write_subscribe(request: SubscribeToTaskRequest) -> Any:
    return pb.SubscribeToTaskRequest(id=request.id, tenant=request.tenant)


# The other requests about push notification configs


def _read_get_config(request: Any) -> GetTaskPushNotificationConfigRequest:
    return GetTaskPushNotificationConfigRequest(
        task_id=required(request.task_id, "taskId"), id=required(request.id, "id"), tenant=request.tenant or None
    )


def _write_get_config(request: GetTaskPushNotificationConfigRequest) -> Any:
    return pb.GetTaskPushNotificationConfigRequest(task_id=request.task_id, id=request.id, tenant=request.tenant)


def _read_delete_config(request: Any) -> DeleteTaskPushNotificationConfigRequest:
    return DeleteTaskPushNotificationConfigRequest(
        task_id=required(request.task_id, "taskId"), id=required(request.id, "id"), tenant=request.tenant or None
    )


def _write_delete_config(request: DeleteTaskPushNotificationConfigRequest) -> Any:
    return pb.DeleteTaskPushNotificationConfigRequest(task_id=request.task_id, id=request.id, tenant=request.tenant)


def _read_list_configs(request: Any) -> ListTaskPushNotificationConfigsRequest:
    return ListTaskPushNotificationConfigsRequest(
        task_id=required(request.task_id, "taskId"),
        tenant=request.tenant or None,
        page_size=within(request.page_size, "pageSize", 0, MAX_INT) or None,
        page_token=request.page_token or None,
    )


def _write_list_configs(request: ListTaskPushNotificationConfigsRequest) -> Any:
    return pb.ListTaskPushNotificationConfigsRequest(
        task_id=request.task_id, tenant=request.tenant, page_size=request.page_size, page_token=request.page_token
    )


def _read_get_card(request: Any) -> GetExtendedAgentCardRequest:
    return GetExtendedAgentCardRequest(tenant=request.tenant or None)


def _write_get_card(request: GetExtendedAgentCardRequest) -> Any:
    return pb.GetExtendedAgentCardRequest(tenant=request.tenant)


_TASK = (_writer.task, _reader.task)
_EVENT = (_writer.event, _reader.event)
_CONFIG = (_write_push_config, _read_push_config)
_SEND = (_read_send, _write_send)

_RPCS = (
    rpc("SendMessage", pb.SendMessageRequest, pb.SendMessageResponse, *_SEND, _writer.sent, _reader.sent),
    rpc("SendStreamingMessage", pb.SendMessageRequest, pb.StreamResponse, *_SEND, *_EVENT),
    rpc("GetTask", pb.GetTaskRequest, pb.Task, _read_get, _write_get, *_TASK),
    rpc("ListTasks", pb.ListTasksRequest, pb.ListTasksResponse, _read_list, _write_list, _write_page, _read_page),
    rpc("CancelTask", pb.CancelTaskRequest, pb.Task, _read_cancel, _write_cancel, *_TASK),
    rpc(
        "SubscribeToTask",
        pb.SubscribeToTaskRequest,
        pb.StreamResponse,
        _read_subscribe,
        _write_subscribe,
        *_EVENT,
    ),
    rpc(
        "CreateTaskPushNotificationConfig",
        pb.TaskPushNotificationConfig,
        pb.TaskPushNotificationConfig,
        _accept_push_config,
        _write_push_config,
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
        pb.ListTaskPushNotificationConfigsRequest,
        pb.ListTaskPushNotificationConfigsResponse,
        _read_list_configs,
        _write_list_configs,
        _write_push_configs,
        _read_push_configs,
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
        pb.GetExtendedAgentCardRequest,
        pb.AgentCard,
        _read_get_card,
        _write_get_card,
        cards.write_card,
        cards.read_card,
    ),
)

CODEC = Codec(
    version="1.0",
    service=pb.DESCRIPTOR.services_by_name["A2AService"].full_name,
    rpcs={one.operation.name: one for one in _RPCS},
)
