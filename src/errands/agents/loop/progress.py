"""How far a task has come, read from its records: what was said, and what to do next. Pure.

Whatever happened to the process, the records say where to go on, so nothing that has finished is done again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from errands.agents.models.base import FunctionSaid, ModelSaid, Said, UserSaid
from errands.policy.records import (
    AnyRecord,
    CallEnded,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    CapabilityShown,
    DelegationBegan,
    FunctionCall,
    InputArrived,
    InputPassed,
    InputRefused,
    ModelCalled,
    OutputGiven,
    ToolOpened,
    ToolsClosed,
)

# What to do next.


class TakeInput(msgspec.Struct, frozen=True):
    """Nothing is open: the next message can be taken in."""


class GuardInput(msgspec.Struct, frozen=True):
    """An input has arrived and the guardrails have not looked at it."""

    input: InputArrived


class AskModel(msgspec.Struct, frozen=True):
    """The model can be asked."""


class MakeCalls(msgspec.Struct, frozen=True):
    """The model waits for the results of these calls, which have not been made or have not finished."""

    answer: ModelCalled
    calls: tuple[FunctionCall, ...]


class GiveOutput(msgspec.Struct, frozen=True):
    """The model has answered."""

    answer: ModelCalled
    #: The last text that is not empty: the model may have written it beside its calls, and nothing after them.
    text: str


Next = TakeInput | GuardInput | AskModel | MakeCalls | GiveOutput


class Progress:
    """An index of the records of a task; `take` each of them once, in order."""

    def __init__(self) -> None:
        self._input: InputArrived | None = None
        self._passed = True
        self._answer: ModelCalled | None = None
        self._text = ""
        self._outputs = 0
        self._said: list[Said] = []
        self._shown: dict[str, CapabilityShown] = {}
        self.began: dict[str, CapabilityBegan] = {}
        self.ended: dict[str, CallEnded] = {}
        #: All calls that have begun or ended.
        self.calls: set[str] = set()
        #: The ids that the model gave its calls.
        self.call_ids: set[str] = set()
        #: Child tasks, by call.
        self.children: dict[str, str] = {}
        #: What tools need for their next call, by tool.
        self.tools: dict[str, dict[str, object]] = {}
        #: Messages that were taken in or refused.
        self.taken: set[str] = set()

    def take(self, record: AnyRecord) -> None:
        """Move on by one record. Records that say nothing about the progress change nothing."""
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
                self.calls.add(record.call)
            case CapabilityFinished() | CapabilityErrored() | CapabilityRestricted():
                self.ended[record.call] = record
                self.calls.add(record.call)
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

    def forget(self, call: str) -> None:
        """Forget that a call has begun, because it is decided anew."""
        del self.began[call]
        self.calls.discard(call)

    def _close_answer(self) -> None:
        """Add what the model said and was told to the conversation, in the order of its calls."""
        if self._answer is not None:
            self._said += _exchange(self._answer, self._shown)

    def next(self) -> Next:
        """Return what to do next."""
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
        """Whether the current answer was ended before the model was done."""
        return self._answer is not None and self._answer.incomplete is not None

    @property
    def outputs(self) -> int:
        return self._outputs

    @property
    def open_calls(self) -> list[CapabilityBegan]:
        """The calls that have begun and not ended."""
        return [began for call, began in self.began.items() if call not in self.ended]


def _exchange(answer: ModelCalled, shown: dict[str, CapabilityShown]) -> Sequence[Said]:
    if not answer.calls and not answer.text.strip():
        # Providers refuse a message of the model without anything in it.
        return []
    results = [shown[call.id] for call in answer.calls if call.id in shown]
    return [
        ModelSaid(answer.text, answer.calls),
        *(FunctionSaid(result.call, result.function, result.content) for result in results),
    ]
