"""Any task, message and event, for tests of what survives a dialect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.requests import (
    AuthenticationInfo,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)

text = st.text(max_size=8)
ids = st.text(min_size=1, max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
#: Not the one name that 0.3 keeps for itself.
metadata = st.dictionaries(text.filter(lambda key: key != "data_part_compat"), json_values, min_size=1, max_size=3)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


parts = st.one_of(
    st.builds(Part, text=text, metadata=maybe(metadata)),
    st.builds(Part, data=json_values, metadata=maybe(metadata)),
    st.builds(Part, raw=st.binary(max_size=20), filename=maybe(ids), media_type=maybe(ids), metadata=maybe(metadata)),
    st.builds(Part, url=text, filename=maybe(ids), media_type=maybe(ids), metadata=maybe(metadata)),
)


@cache
def messages(references: bool) -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        message_id=ids,
        role=st.sampled_from([Role.USER, Role.AGENT]),
        parts=st.lists(parts, min_size=1, max_size=3),
        context_id=maybe(ids),
        task_id=maybe(ids),
        metadata=maybe(metadata),
        extensions=maybe(st.lists(text, max_size=2)),
        reference_task_ids=maybe(st.lists(ids, max_size=2)) if references else st.none(),
    )


@cache
def statuses(references: bool) -> st.SearchStrategy[TaskStatus]:
    return st.builds(
        TaskStatus,
        state=st.sampled_from(TaskState),
        message=maybe(messages(references)),
        timestamp=maybe(st.just("2026-01-01T00:00:00.000Z")),
    )


artifacts = st.builds(
    Artifact,
    artifact_id=ids,
    parts=st.lists(parts, max_size=2),
    name=maybe(text),
    description=maybe(text),
    metadata=maybe(metadata),
    extensions=maybe(st.lists(text, max_size=2)),
)


@cache
def tasks(references: bool) -> st.SearchStrategy[Task]:
    return st.builds(
        Task,
        id=ids,
        status=statuses(references),
        context_id=maybe(ids),
        artifacts=maybe(st.lists(artifacts, max_size=2)),
        history=maybe(st.lists(messages(references), max_size=2)),
        metadata=maybe(metadata),
    )


@cache
def events(references: bool) -> st.SearchStrategy[StreamResponse]:
    return st.one_of(
        st.builds(StreamResponse, task=tasks(references)),
        st.builds(StreamResponse, message=messages(references)),
        st.builds(
            StreamResponse,
            status_update=st.builds(
                TaskStatusUpdateEvent,
                task_id=ids,
                context_id=ids,
                status=statuses(references),
                metadata=maybe(metadata),
            ),
        ),
        st.builds(
            StreamResponse,
            artifact_update=st.builds(
                TaskArtifactUpdateEvent,
                task_id=ids,
                context_id=ids,
                artifact=artifacts,
                append=st.booleans(),
                last_chunk=st.booleans(),
                metadata=maybe(metadata),
            ),
        ),
    )


push_configs = st.builds(
    TaskPushNotificationConfig,
    url=ids,
    id=ids,
    task_id=st.none(),
    token=maybe(ids),
    authentication=maybe(st.builds(AuthenticationInfo, scheme=ids, credentials=maybe(ids))),
)


@cache
def requests(references: bool) -> st.SearchStrategy[SendMessageRequest]:
    return st.builds(
        SendMessageRequest,
        message=messages(references),
        configuration=st.builds(
            SendMessageConfiguration,
            accepted_output_modes=maybe(st.lists(text, max_size=2)),
            task_push_notification_config=maybe(push_configs),
            history_length=maybe(st.integers(1, 100)),
            return_immediately=st.booleans(),
        ),
        metadata=maybe(metadata),
    )


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a document stands."""
    yield prefix
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from paths(inner, (*prefix, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool = False) -> Any:
    """A copy in which what stands at this path is another, or is missing."""
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if drop and not rest:
        del copy[key]
    else:
        copy[key] = replaced(value[key], tuple(rest), new, drop=drop)
    return copy
