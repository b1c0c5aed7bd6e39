"""How far a task has come, read from its records: what was said, and what is to be done next. Pure.

Whatever happened to the process, the records say where to go on, so nothing that has finished is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from errands.agents.models.base import FunctionSaid, ModelSaid, Said, UserSaid
from errands.policy.cel import Session
from errands.policy.records import (
    Answered,
    AnyRecord,
    CallEnded,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    CapabilityShown,
    DelegationBegan,
    Ended,
    FunctionCall,
    InputArrived,
    InputPassed,
    InputRefused,
    ModelCalled,
    OutputGiven,
    ToolOpened,
    ToolsClosed,
    Waiting,
)

# What is to be done next.


class TakeInput(msgspec.Struct, frozen=True):
    """Nothing is open: the next message can be taken in."""


class GuardInput(msgspec.Struct, frozen=True):
    """An input has arrived and its guardrails are to look at it."""

    input: InputArrived


class AskModel(msgspec.Struct, frozen=True):
    """It is the model's turn."""


class MakeCalls(msgspec.Struct, frozen=True):
    """The model waits for results: these calls are still to be made, or to be finished."""

    answer: ModelCalled
    calls: tuple[FunctionCall, ...]


class GiveOutput(msgspec.Struct, frozen=True):
    """The model has answered."""

    answer: ModelCalled
    #: What it has said last: it may have said all beside its calls, and nothing after them.
    text: str


Next = TakeInput | GuardInput | AskModel | MakeCalls | GiveOutput


class Progress:
    """An index over the records of a task; `take` each of them once, in order."""

    def __init__(self, records: Iterable[AnyRecord] = ()) -> None:
        self._input: InputArrived | None = None
        self._passed = True
        self._answer: ModelCalled | None = None
        self._text = ""
        self._outputs = 0
        self._said: list[Said] = []
        self._shown: dict[str, CapabilityShown] = {}
        self.began: dict[str, CapabilityBegan] = {}
        self.ended: dict[str, CallEnded] = {}
        #: All that have begun or ended.
        self.calls: set[str] = set()
        #: Where steps have made calls.
        self._places: set[str] = set()
        #: By which the model knows its calls.
        self.call_ids: set[str] = set()
        #: Child tasks, by call.
        self.children: dict[str, str] = {}
        #: What tools need for their next call, by tool.
        self.tools: dict[str, dict[str, object]] = {}
        #: The task is over, whether or not its status says so yet.
        self.over: Ended | None = None
        #: Messages that were dealt with.
        self.taken: set[str] = set()
        self._waiting: dict[str, Waiting] = {}
        self._answered: dict[str, list[Answered]] = {}
        for record in records:
            self.take(record)

    def take(self, record: AnyRecord) -> None:
        """Moves on by one record. Those that say nothing about the progress change nothing."""
        match record:
            case InputArrived():
                self._input, self._passed, self._answer, self._text = record, False, None, ""
                self.taken.add(record.message_id)
            case InputRefused():
                self.taken.add(record.message_id)
                if self._input is not None and self._input.message_id == record.message_id:
                    self._close_answer()
                    self._input = self._answer = None
            case InputPassed():
                assert self._input is not None
                self._passed = True
                self._said.append(UserSaid(list((record.values or self._input.values)["message"])))
            case ModelCalled():
                self._close_answer()
                self._answer = record
                self._text = record.text if record.text.strip() else self._text
                self.call_ids.update(call.id for call in record.calls)
            case CapabilityBegan():
                self.began[record.call] = record
                self._know(record)
            case CapabilityFinished() | CapabilityErrored() | CapabilityRestricted():
                self.ended[record.call] = record
                self._know(record)
            case CapabilityShown():
                self._shown[record.call] = record
            case DelegationBegan():
                self.children[record.call] = record.task_id
            case OutputGiven():
                self._close_answer()
                self._outputs += 1
                self._input = self._answer = None
            case ToolOpened():
                self.tools[record.tool] = record.state
            case ToolsClosed():
                self.tools = {}
            case Ended():
                self.over = record
            case Waiting():
                self._waiting[record.key] = record
            case Answered():
                self._answered.setdefault(record.key, []).append(record)

    def _know(self, record: CapabilityBegan | CallEnded) -> None:
        self.calls.add(record.call)
        if record.caller == "step":
            self._places.add(record.call.rpartition(":")[0])

    def forget(self, call: str) -> None:
        """Has it that a call has not begun."""
        del self.began[call]
        self.calls.discard(call)

    def _close_answer(self) -> None:
        """What the model said and was told joins the conversation, in the order of its calls."""
        if self._answer is not None:
            self._said += _exchange(self._answer, self._shown)

    def next(self) -> Next:
        """What is to be done next."""
        if self._input is None:
            return TakeInput()
        if not self._passed:
            return GuardInput(self._input)
        if self._answer is None:
            return AskModel()
        if not self._answer.calls:
            return GiveOutput(self._answer, self._text)
        missing = tuple(call for call in self._answer.calls if call.id not in self._shown)
        return MakeCalls(self._answer, missing) if missing else AskModel()

    @property
    def said(self) -> tuple[Said, ...]:
        """The conversation as the model is shown it."""
        return (*self._said, *(_exchange(self._answer, self._shown) if self._answer is not None else ()))

    @property
    def input(self) -> InputArrived | None:
        """The input that has not been answered yet."""
        return self._input

    @property
    def is_cut(self) -> bool:
        """Whether the answer that is being dealt with was ended before the model was done."""
        return self._answer is not None and self._answer.incomplete is not None

    @property
    def is_new(self) -> bool:
        """Whether the first input has just arrived."""
        return not self._said and not self._outputs and not self._passed

    @property
    def outputs(self) -> int:
        return self._outputs

    @property
    def open_calls(self) -> list[CapabilityBegan]:
        """Calls that have begun and not ended."""
        return [began for call, began in self.began.items() if call not in self.ended]

    def was_at(self, place: str, key: str) -> bool:
        """Whether steps have made calls there, or wait, or have waited, in the session `key`."""
        return place in self._places or key in self._waiting or key in self._answered

    def session(self, key: str, now: str) -> Session:
        """The session of that name, with everything that was answered; a new one sees the time `now`."""
        waiting = self._waiting.get(key)
        stored = Session(now) if waiting is None else waiting.session
        session = Session(stored.now, dict(stored.finished))
        for answered in self._answered.get(key, ()):
            if answered.error is None:
                session.settle(answered.call, answered.value)
            else:
                session.fail(answered.call, answered.error)
        return session

    def waits(self, key: str) -> bool:
        """Whether the log says already that the session of that name waits."""
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.call.key not in {
            answered.call.key for answered in self._answered.get(key, ())
        }


def _exchange(answer: ModelCalled, shown: dict[str, CapabilityShown]) -> Sequence[Said]:
    if not answer.calls and not answer.text.strip():
        # Providers refuse a message of the model without anything in it.
        return []
    results = [shown[call.id] for call in answer.calls if call.id in shown]
    return [
        ModelSaid(answer.text, answer.calls),
        *(FunctionSaid(result.call, result.function, result.content) for result in results),
    ]
