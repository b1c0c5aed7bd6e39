"""The reducer of the console computes the same task as `errands.lifecycle.fold`, for any log and any cuts in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import errands
from errands.lifecycle import fold
from errands.model.base import encode
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
from errands.model.log import Draft, EventKind

FOLD = Path(errands.__file__).parent / "console" / "static" / "fold.js"

_names = st.sampled_from(["a", "b", "c"])
_json = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3), st.just({"__proto__": [1]}))
_metadata = st.none() | st.dictionaries(st.sampled_from(["x", "y", "__proto__", "constructor"]), _json, max_size=2)
_text = st.sampled_from(["", "one ", "two", "\n", "é "])
_parts = st.one_of(
    st.builds(Part, text=_text),
    st.builds(Part, text=_text, metadata=_metadata, filename=st.none() | _names, media_type=st.none() | _names),
    st.builds(Part, data=_json),
    st.builds(Part, raw=st.binary(max_size=3), filename=st.none() | _names),
    st.builds(Part, url=st.just("https://example.com/a")),
)
_messages = st.builds(
    Message,
    message_id=st.sampled_from(["m1", "m2", "m3", "m4"]),
    role=st.sampled_from([Role.USER, Role.AGENT]),
    parts=st.lists(_parts, min_size=1, max_size=2),
    metadata=_metadata,
)
_artifacts = st.builds(
    Artifact,
    artifact_id=_names,
    parts=st.lists(_parts, max_size=3),
    name=st.none() | _names,
    description=st.none() | _names,
    metadata=_metadata,
    extensions=st.none() | st.lists(_names, max_size=1),
)
_statuses = st.builds(
    TaskStatus,
    state=st.sampled_from([state for state in TaskState if state is not TaskState.UNSPECIFIED]),
    message=st.none() | _messages,
    timestamp=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"]),
)
_tasks = st.builds(
    Task,
    id=st.just("t"),
    context_id=st.just("k"),
    status=_statuses,
    history=st.none() | st.lists(_messages, max_size=2),
    artifacts=st.none() | st.lists(_artifacts, max_size=2, unique_by=lambda artifact: artifact.artifact_id),
    metadata=_metadata,
)


def _draft(kind: EventKind, **fields: Any) -> Draft:
    return Draft(kind, encode(StreamResponse(**fields)))


_events = st.one_of(
    st.builds(
        lambda artifact, append: _draft(
            "artifact",
            artifact_update=TaskArtifactUpdateEvent(task_id="t", context_id="k", artifact=artifact, append=append),
        ),
        _artifacts,
        st.booleans(),
    ),
    st.builds(
        lambda status: _draft(
            "status", status_update=TaskStatusUpdateEvent(task_id="t", context_id="k", status=status)
        ),
        _statuses,
    ),
    st.builds(lambda message: _draft("message", message=message), _messages),
    st.builds(lambda task: _draft("task", task=task), _tasks),
    st.sampled_from([Draft("record", b'{"any":"thing"}'), Draft("request", b"{}"), Draft("cancel", b"{}")]),
)
_logs = st.builds(lambda task, events: [_draft("task", task=task), *events], _tasks, st.lists(_events, max_size=12))


@contextmanager
def _folder() -> Iterator[tuple[IO[str], IO[str]]]:
    node = shutil.which("node")
    if node is None:
        if os.environ.get("CI"):
            pytest.fail("node is not installed")
        pytest.skip("node is not installed")
    script = Path(__file__).with_name("fold.mjs")
    command = [node, "--no-warnings", str(script), FOLD.as_uri()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
        process.stdin.close()


def test_the_reducer_of_the_console_is_the_one_of_the_server() -> None:
    with _folder() as (writer, reader):

        @given(_logs, st.lists(st.integers(1, 12), max_size=4))
        def check(log: list[Draft], cuts: list[int]) -> None:
            events = [{"kind": draft.kind, "data": json.loads(draft.data)} for draft in log]
            places = sorted({cut for cut in cuts if cut < len(events)})
            writer.write(json.dumps({"events": events, "cuts": places}) + "\n")
            writer.flush()
            folded, start = None, 0
            for end in (*places, len(log)):
                folded, start = fold(folded, log[start:end]), end
            assert folded is not None
            assert json.loads(reader.readline()) == json.loads(encode(folded))

        check()
