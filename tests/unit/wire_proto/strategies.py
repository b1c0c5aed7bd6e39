"""Any task, message and event that protobuf can tell from every other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from errands.clock import to_iso
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
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.wire.proto.json_values import MAX_EXACT

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.text("abc-09", min_size=1, max_size=6)
some_ids = st.none() | ids
numbers = st.integers(-MAX_EXACT, MAX_EXACT) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
some_metadata = st.none() | st.dictionaries(texts, values, max_size=3)
some_lists = st.none() | st.lists(texts, min_size=1, max_size=3)
some_times = st.none() | st.integers(0, 4_000_000_000_000).map(to_iso)
some_text = st.none() | st.text("xyz", min_size=1, max_size=4)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(st.sampled_from(["text", "raw", "url", "data"]))
    content: dict[str, Any] = {
        kind: draw({"text": texts, "raw": st.binary(max_size=8), "url": texts, "data": values}[kind])
    }
    file: dict[str, Any] = (
        {"filename": draw(some_text), "media_type": draw(some_text)} if kind in ("raw", "url") else {}
    )
    # 0.3 puts a note into the metadata of some parts, and with it goes the difference between none and empty.
    metadata = draw(st.none() | st.dictionaries(texts, values, min_size=1, max_size=3))
    return Part(**content, **file, metadata=metadata)


messages = st.builds(
    Message,
    message_id=ids,
    role=st.sampled_from([Role.USER, Role.AGENT]),
    parts=st.lists(parts(), min_size=1, max_size=3),
    context_id=some_ids,
    task_id=some_ids,
    metadata=some_metadata,
    extensions=some_lists,
)
artifacts = st.builds(
    Artifact,
    artifact_id=ids,
    parts=st.lists(parts(), max_size=2),
    name=some_text,
    description=some_text,
    metadata=some_metadata,
    extensions=some_lists,
)
statuses = st.builds(TaskStatus, state=st.sampled_from(TaskState), message=st.none() | messages, timestamp=some_times)
tasks = st.builds(
    Task,
    id=ids,
    status=statuses,
    context_id=some_ids,
    artifacts=st.none() | st.lists(artifacts, min_size=1, max_size=2),
    history=st.none() | st.lists(messages, min_size=1, max_size=2),
    metadata=some_metadata,
)
events = st.one_of(
    st.builds(StreamResponse, task=tasks),
    st.builds(StreamResponse, message=messages),
    st.builds(
        StreamResponse,
        status_update=st.builds(
            TaskStatusUpdateEvent, task_id=ids, context_id=ids, status=statuses, metadata=some_metadata
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
            metadata=some_metadata,
        ),
    ),
)
requests = st.builds(
    SendMessageRequest,
    message=messages,
    configuration=st.builds(
        SendMessageConfiguration,
        accepted_output_modes=some_lists,
        history_length=st.none() | st.integers(1, 99),
        return_immediately=st.booleans(),
    ),
    metadata=some_metadata,
)
