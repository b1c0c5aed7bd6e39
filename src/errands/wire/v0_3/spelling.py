"""Between `errands.model` and the two spellings of A2A 0.3, attribute by attribute.

What 0.3 cannot say is left out: the file name and media type of a part that is no file, an unspecified role (it is
read as the agent's), the tenant; in ProtoJSON also `referenceTaskIds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from errands.errors import InvalidParamsError
from errands.model import core
from errands.model.base import Model
from errands.model.requests import (
    AuthenticationInfo,
    ListTasksResponse,
    SendMessageRequest,
    TaskPushNotificationConfig,
)

#: Metadata that says: this value is no object and was wrapped into one, `{"value": …}`. a2a-sdk's name for it.
_WRAPPED = "data_part_compat"


class Spelling(ABC):
    """One way to write 0.3. The structs of both ways have the same attributes where nothing else is said."""

    models: Any
    #: The request of `message/send`, and over HTTP+JSON the one that creates a push notification config.
    send_params: type[Model]
    create_params: type[Model]
    states: dict[core.TaskState, str]
    roles: dict[core.Role, str]

    def __init__(self) -> None:
        self._states_in = {name: state for state, name in self.states.items()}
        # The unspecified role first, so that the agent's wins where both are spelled alike.
        self._roles_in = {name: role for role, name in self.roles.items()}
        self._message, self._status = self.models.Message, self.models.TaskStatus
        self._task, self._artifact = self.models.Task, self.models.Artifact
        self._status_update = self.models.TaskStatusUpdateEvent
        self._artifact_update = self.models.TaskArtifactUpdateEvent

    # Out of our model

    @abstractmethod
    def write_part(self, part: core.Part) -> Model: ...

    def write_message(self, message: core.Message) -> Any:
        return self._message(
            message_id=message.message_id,
            role=self.roles[message.role],
            parts=[self.write_part(part) for part in message.parts],
            context_id=message.context_id,
            task_id=message.task_id,
            metadata=message.metadata,
            extensions=message.extensions,
        )

    def write_status(self, status: core.TaskStatus) -> Any:
        message = status.message
        return self._status(
            state=self.states[status.state],
            message=None if message is None else self.write_message(message),
            timestamp=status.timestamp,
        )

    def write_artifact(self, artifact: core.Artifact) -> Any:
        return self._artifact(
            artifact_id=artifact.artifact_id,
            parts=[self.write_part(part) for part in artifact.parts],
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )

    def write_task(self, task: core.Task) -> Any:
        artifacts, history = task.artifacts, task.history
        return self._task(
            id=task.id,
            context_id=task.context_id or "",
            status=self.write_status(task.status),
            artifacts=None if artifacts is None else [self.write_artifact(artifact) for artifact in artifacts],
            history=None if history is None else [self.write_message(message) for message in history],
            metadata=task.metadata,
        )

    def write_status_update(self, event: core.TaskStatusUpdateEvent) -> Any:
        return self._status_update(
            task_id=event.task_id,
            context_id=event.context_id,
            status=self.write_status(event.status),
            final=event.status.state in core.SETTLED_STATES,
            metadata=event.metadata,
        )

    def write_artifact_update(self, event: core.TaskArtifactUpdateEvent) -> Any:
        return self._artifact_update(
            task_id=event.task_id,
            context_id=event.context_id,
            artifact=self.write_artifact(event.artifact),
            append=event.append or None,
            last_chunk=event.last_chunk or None,
            metadata=event.metadata,
        )

    def write_list(self, listed: ListTasksResponse) -> Any:
        return self.models.TaskList(
            tasks=[self.write_task(task) for task in listed.tasks],
            next_page_token=listed.next_page_token,
            page_size=listed.page_size,
            total_size=listed.total_size,
        )

    @abstractmethod
    def write_send(self, request: SendMessageRequest) -> Model: ...

    @abstractmethod
    def write_push_config(self, config: TaskPushNotificationConfig) -> Model: ...

    @abstractmethod
    def write_create(self, config: TaskPushNotificationConfig) -> Model: ...

    def _write_push(self, config: TaskPushNotificationConfig) -> Any:
        info = config.authentication
        return self.models.PushNotificationConfig(
            url=config.url,
            id=config.id,
            token=config.token,
            authentication=None
            if info is None
            else self.models.AuthenticationInfo(schemes=[info.scheme], credentials=info.credentials),
        )

    # Into our model

    @abstractmethod
    def read_part(self, part: Any) -> core.Part: ...

    def read_message(self, message: Any) -> core.Message:
        return core.Message(
            message_id=message.message_id,
            role=self._roles_in[message.role],
            parts=[self.read_part(part) for part in message.parts],
            context_id=message.context_id or None,
            task_id=message.task_id or None,
            metadata=message.metadata,
            extensions=message.extensions,
        )

    def read_status(self, status: Any) -> core.TaskStatus:
        message = status.message
        return core.TaskStatus(
            state=self._states_in[status.state],
            message=None if message is None else self.read_message(message),
            timestamp=status.timestamp,
        )

    def read_artifact(self, artifact: Any) -> core.Artifact:
        return core.Artifact(
            artifact_id=artifact.artifact_id,
            parts=[self.read_part(part) for part in artifact.parts],
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )

    def read_task(self, task: Any) -> core.Task:
        artifacts, history = task.artifacts, task.history
        return core.Task(
            id=task.id,
            context_id=task.context_id or None,
            status=self.read_status(task.status),
            artifacts=None if artifacts is None else [self.read_artifact(artifact) for artifact in artifacts],
            history=None if history is None else [self.read_message(message) for message in history],
            metadata=task.metadata,
        )

    def read_status_update(self, event: Any) -> core.TaskStatusUpdateEvent:
        return core.TaskStatusUpdateEvent(
            task_id=event.task_id,
            context_id=event.context_id,
            status=self.read_status(event.status),
            metadata=event.metadata,
        )

    def read_artifact_update(self, event: Any) -> core.TaskArtifactUpdateEvent:
        return core.TaskArtifactUpdateEvent(
            task_id=event.task_id,
            context_id=event.context_id,
            artifact=self.read_artifact(event.artifact),
            append=event.append or False,
            last_chunk=event.last_chunk or False,
            metadata=event.metadata,
        )

    def read_list(self, listed: Any) -> ListTasksResponse:
        return ListTasksResponse(
            tasks=[self.read_task(task) for task in listed.tasks],
            next_page_token=listed.next_page_token,
            page_size=listed.page_size,
            total_size=listed.total_size,
        )

    @abstractmethod
    def read_send(self, params: Any) -> SendMessageRequest:
        """Raises `InvalidParamsError` when the message says nothing."""

    @abstractmethod
    def read_push_config(self, config: Any) -> TaskPushNotificationConfig: ...

    def _read_push(self, config: Any, task_id: str | None = None) -> TaskPushNotificationConfig:
        if config is None:
            return TaskPushNotificationConfig(url="", task_id=task_id)
        info = config.authentication
        return TaskPushNotificationConfig(
            url=config.url,
            id=config.id or None,
            task_id=task_id,
            token=config.token or None,
            authentication=None
            if info is None or not info.schemes
            else AuthenticationInfo(scheme=info.schemes[0], credentials=info.credentials or None),
        )

    def _read_sent(self, message: Any) -> core.Message:
        if not message.message_id:
            raise InvalidParamsError("messageId must not be empty", field="message.messageId")
        if not message.parts:
            raise InvalidParamsError("a message needs at least one part", field="message.parts")
        return self.read_message(message)


def wrap_data(part: core.Part) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The data of a part as an object, which it has to be in 0.3, and the metadata that tells what was done."""
    if isinstance(part.data, dict):
        return part.data, part.metadata
    return {"value": part.data}, {**(part.metadata or {}), _WRAPPED: True}


def unwrap_data(data: Any, metadata: dict[str, Any] | None) -> core.Part:
    if metadata and metadata.get(_WRAPPED) is True and isinstance(data, dict) and "value" in data:
        kept = {key: value for key, value in metadata.items() if key != _WRAPPED}
        return core.Part(data=data["value"], metadata=kept or None)
    return core.Part(data=data, metadata=metadata)
