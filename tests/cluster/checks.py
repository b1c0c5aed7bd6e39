"""What must hold for the log of every task, whatever broke while it was written."""

from __future__ import annotations

from errands.engines.base import Engine
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import STREAMED_KINDS, Event, ListQuery, Scope
from tests.clients import decode
from tests.cluster.load import Load
from tests.cluster.replica import NAME

SCOPE = Scope(agent=NAME)


async def check_tasks(engine: Engine, load: Load) -> None:
    """One task for each message that opened one; each has ended once, and was never worked on by two at a time."""
    assert (await engine.list(ListQuery(scope=SCOPE, page_size=1))).total_size == len(load.accepted)
    for task_id, text in load.accepted.items():
        stored = await engine.wait_for_state(task_id, SCOPE, TERMINAL_STATES, 60)
        wanted = TaskState.CANCELED if text == "hold" else TaskState.COMPLETED
        assert stored.state is wanted, (task_id, text, stored.state)
        log = await log_of(engine, task_id)
        assert [event.version for event in log] == list(range(1, stored.version + 1))
        assert len(ends_in(log)) == 1
        check_fences(log)


def ends_in(log: list[Event]) -> list[Event]:
    updates = [(event, decode(event.data).status_update) for event in log if event.kind == "status"]
    return [event for event, update in updates if update and update.status.state in TERMINAL_STATES]


def words_in(log: list[Event]) -> list[tuple[int, int, int]]:
    """What the agent has said: its attempt, its process, and how many words that had said before."""
    words: list[tuple[int, int, int]] = []
    for event in log:
        update = decode(event.data).artifact_update if event.kind == "artifact" else None
        if update is not None:
            attempt, pid, index = map(int, (update.artifact.parts[0].text or "").rstrip(";").split())
            words.append((attempt, pid, index))
    return words


def check_fences(log: list[Event]) -> None:
    """Attempts only go up, each is one process that begins at the beginning, and ends where the next one begins."""
    holder: tuple[int, int] = (0, 0)
    next_index = 0
    for attempt, pid, index in words_in(log):
        if (attempt, pid) != holder:
            assert attempt > holder[0], "a former holder wrote after the next one had begun"
            holder, next_index = (attempt, pid), 0
        assert index == next_index
        next_index += 1


async def check_readers(engine: Engine, load: Load) -> None:
    """Each reader was shown every event once and in order, over all its connections."""
    for task_id, seen in load.seen:
        log = await log_of(engine, task_id)
        shown = [(event.version, decode(event.data)) for event in log if event.kind in STREAMED_KINDS]
        assert seen == shown


async def log_of(engine: Engine, task_id: str) -> list[Event]:
    """The whole log, read piece by piece: on a slow machine it may have become long."""
    events: list[Event] = []
    while piece := (await engine.read(task_id, SCOPE, events[-1].version if events else 0)).events:
        events += piece
    return events
