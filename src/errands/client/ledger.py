"""What a client has seen of one task: enough to tell news from repetition after a stream was cut.

Three kinds of agents are met. Where event ids are positions in the task's log, as in errands, the number tells.
Where there are none, or none that mean anything elsewhere, a new stream opens with a snapshot of the task, which
is compared with what the events so far amount to. And some agents number anew on every connection.
"""

from __future__ import annotations

from errands.client.transport import Received
from errands.clock import from_iso
from errands.lifecycle import fold_updates, join_text
from errands.model.core import Artifact, Message, StreamResponse, Task, TaskState, TaskStatus

#: An id with more digits than this is no position in a log.
_MOST_DIGITS = 18
#: Bounds on what is kept of a stream that goes on for days.
_MOST_UPDATES = 1024
_MOST_OPAQUE_IDS = 10_000


class Ledger:
    """One task as its events told it. `admit` takes an event in and says whether it is news."""

    def __init__(self, task_id: str | None = None, last_event_id: str | None = None) -> None:
        self.task_id = task_id
        self.last_event_id = last_event_id
        self.state = TaskState.UNSPECIFIED
        #: The agent's direct answer, when it made no task.
        self.message: Message | None = None
        self._first: Task | None = None
        self._base: Task | None = None
        # Folded only when needed: folding at every chunk would cost the whole text each time.
        self._updates: list[StreamResponse] = []
        self._position = _number(last_event_id)
        self._opaque_ids: dict[str, None] = {}

    @property
    def is_empty(self) -> bool:
        return self._base is None and self.message is None

    def task(self) -> Task | None:
        """The task with everything seen so far, or None before the first event."""
        if self._base is not None and self._updates:
            self._base = fold_updates(self._base, self._updates)
            self._updates = []
        return self._base

    def admit(self, received: Received, *, opening: bool) -> bool:
        """Takes the event in unless it was seen before. `opening`: it is the first one of a connection."""
        snapshot = received.response.task if opening and not received.gap else None
        if snapshot is None:
            is_news = received.gap or not self._is_repeat(received.event_id)
        elif self._is_replay(snapshot, received.event_id):
            return False
        else:
            is_news = self._differs(snapshot)
        if is_news:
            self._take(received.response)
        if is_news or snapshot is not None:
            self._remember(received.event_id)
        return is_news

    def _is_repeat(self, event_id: str | None) -> bool:
        if event_id is None:
            return False
        number = _number(event_id)
        if number is None or self._position is None:
            return event_id in self._opaque_ids
        return number <= self._position

    def _remember(self, event_id: str | None) -> None:
        if event_id is None:
            return
        self.last_event_id = event_id
        self._position = _number(event_id)
        if self._position is None:
            self._opaque_ids[event_id] = None
            if len(self._opaque_ids) > _MOST_OPAQUE_IDS:
                del self._opaque_ids[next(iter(self._opaque_ids))]

    def _is_replay(self, snapshot: Task, event_id: str | None) -> bool:
        """Whether a stream opens with a task older than ours: the agent tells the story from its beginning.

        A snapshot with a lower number that is not older comes from an agent that counts anew per connection.
        """
        known = self.task()
        if known is None or event_id is None:
            return False
        number = _number(event_id)
        if number is None or self._position is None:
            return event_id in self._opaque_ids
        if number >= self._position:
            return False
        return _is_older(snapshot, known) or (snapshot == self._first and self._differs(snapshot))

    def _differs(self, snapshot: Task) -> bool:
        known = self.task()
        return known is None or _essence(known) != _essence(snapshot)

    def _take(self, response: StreamResponse) -> None:
        if response.task is not None:
            self._first = self._first or response.task
            self._base, self._updates = response.task, []
            self.task_id, self.state = response.task.id, response.task.status.state
            return
        if response.message is not None and self._base is None:
            self.message = response.message
            return
        update = response.status_update or response.artifact_update
        if update is not None and self._base is None:
            self.task_id = update.task_id
            self._base = Task(
                id=update.task_id,
                context_id=update.context_id,
                status=TaskStatus(state=TaskState.UNSPECIFIED),
            )
        if response.status_update is not None:
            self.state = response.status_update.status.state
        self._updates.append(response)
        if len(self._updates) >= _MOST_UPDATES:
            self.task()


def _number(event_id: str | None) -> int | None:
    if event_id is None or not (event_id.isascii() and event_id.isdecimal()) or len(event_id) > _MOST_DIGITS:
        return None
    return int(event_id)


def _essence(task: Task) -> tuple[object, ...]:
    """What a reader of the stream would see: not the history, and not where text happened to be cut."""
    return (
        task.status.state,
        task.status.message,
        task.metadata,
        {artifact.artifact_id: (join_text(artifact.parts), artifact.name) for artifact in task.artifacts or ()},
    )


def _is_older(snapshot: Task, known: Task) -> bool:
    moments = _moment(snapshot), _moment(known)
    if moments[0] is not None and moments[1] is not None and moments[0] != moments[1]:
        return moments[0] < moments[1]
    sizes = {artifact.artifact_id: _size(artifact) for artifact in snapshot.artifacts or ()}
    return any(sizes.get(artifact.artifact_id, -1) < _size(artifact) for artifact in known.artifacts or ())


def _moment(task: Task) -> int | None:
    try:
        return from_iso(task.status.timestamp or "")
    except ValueError:
        return None


def _size(artifact: Artifact) -> int:
    return sum(len(part.text) if part.text is not None else 1 for part in artifact.parts)
