"""How far a task has come, read from its records: what was said, and what is open. Pure.

Whatever happened to the process, the records say where to go on, so nothing that has finished is done again.
"""

from __future__ import annotations

from collections.abc import Sequence

from errands.agents.models.base import FunctionSaid, ModelSaid, Said, UserSaid
from errands.policy import records


class Progress:
    """An index of the records of a task; `take` each of them once, in order."""

    def __init__(self) -> None:
        #: The input that has not been answered yet, and whether the guardrails have let it pass.
        self.input: records.InputArrived | None = None
        self.is_passed = True
        #: The last answer of the model to the input.
        self.answer: records.ModelCalled | None = None
        #: Its last text that is not empty: the model may have written it beside its calls, and nothing after them.
        self.text = ""
        self.outputs = 0
        self.began: dict[str, records.CapabilityBegan] = {}
        self.ended: dict[str, records.CallEnded] = {}
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
        self._said: list[Said] = []
        self._shown: dict[str, records.CapabilityShown] = {}

    def take(self, record: records.AnyRecord) -> None:
        """Move on by one record. Records that say nothing about the progress change nothing."""
        match record:
            case records.InputArrived():
                self.input, self.is_passed, self.answer, self.text = record, False, None, ""
                self.taken.add(record.message_id)
            case records.InputRefused():
                self.taken.add(record.message_id)
                if self.input is not None and self.input.message_id == record.message_id:
                    self._said += self._exchange()
                    self.input = self.answer = None
            case records.InputPassed():
                assert self.input is not None
                self.is_passed = True
                self._said.append(UserSaid(list((record.values or self.input.values)["message"])))
            case records.ModelCalled():
                self._said += self._exchange()
                self.answer = record
                self.text = record.text if record.text.strip() else self.text
                self.call_ids.update(call.id for call in record.calls)
            case records.CapabilityBegan():
                self.began[record.call] = record
                self.calls.add(record.call)
            case records.CapabilityFinished() | records.CapabilityErrored() | records.CapabilityRestricted():
                self.ended[record.call] = record
                self.calls.add(record.call)
            case records.CapabilityShown():
                self._shown[record.call] = record
            case records.DelegationBegan():
                self.children[record.call] = record.task_id
            case records.OutputGiven():
                self._said += self._exchange()
                self.outputs += 1
                self.input = self.answer = None
            case records.ToolOpened():
                self.tools[record.tool] = record.state
            case records.ToolsClosed():
                self.tools = {}

    def forget(self, call: str) -> None:
        """Forget that a call has begun, because it is decided again."""
        del self.began[call]
        self.calls.discard(call)

    def _exchange(self) -> Sequence[Said]:
        """Return what the model last answered, and what it was given for its calls, in their order."""
        answer = self.answer
        # Providers refuse a message of the model without anything in it.
        if answer is None or not (answer.calls or answer.text.strip()):
            return []
        results = [self._shown[call.id] for call in answer.calls if call.id in self._shown]
        said = [FunctionSaid(result.call, result.function, result.content) for result in results]
        return [ModelSaid(answer.text, answer.calls), *said]

    @property
    def said(self) -> tuple[Said, ...]:
        """The conversation as the model is shown it."""
        return (*self._said, *self._exchange())

    @property
    def unshown(self) -> tuple[records.FunctionCall, ...]:
        """The calls of the answer for which the model has no result, because they were not made or have not ended."""
        return tuple(call for call in self.answer.calls if call.id not in self._shown) if self.answer else ()

    @property
    def open_calls(self) -> list[records.CapabilityBegan]:
        """The calls that have begun and not ended."""
        return [began for call, began in self.began.items() if call not in self.ended]
