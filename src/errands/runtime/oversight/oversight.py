"""One turn under oversight: what the agent is given, and what it shows."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.clock import from_iso
from errands.errors import TurnError
from errands.model.core import (
    CANCELED,
    COMPLETED,
    PAUSED_STATES,
    SUBMITTED,
    WORKING,
    Message,
    Part,
    StreamResponse,
    Task,
)
from errands.model.log import EventKind, RequestOptions, StoredTask
from errands.policy.cel.values import Json
from errands.policy.document import NO_POLICY, CompiledPolicy
from errands.policy.limits import Exceeded, check_age, parse_duration
from errands.policy.pipeline import Locked, Passed, StepSuspended, Subject
from errands.policy.records import Ended, InputPassed, OutputGiven, OutputHeld
from errands.policy.steps import Steps
from errands.runtime.journal import Journal
from errands.runtime.oversight.output import Output, as_parts, as_values, new_parts, without_words
from errands.runtime.oversight.recorder import REQUEST_METADATA, Recorder
from errands.runtime.review_messages import held_review_message, review_message
from errands.runtime.run import Run, inputs
from errands.runtime.turn import ALREADY_ENDED, Ending, Turn

_ANSWERS = PAUSED_STATES | {COMPLETED}


class Oversight(Recorder):
    """Made with the turn when there is a policy, and otherwise when the agent first records something."""

    def __init__(
        self,
        turn: Turn,
        journal: Journal,
        stored: StoredTask,
        message: Message,
        *,
        options: RequestOptions,
        policy: CompiledPolicy = NO_POLICY,
    ) -> None:
        super().__init__(turn, journal, stored, message, options, policy)
        #: Events that nobody may see before the guardrails have.
        self._held: list[tuple[EventKind, StreamResponse]] = []
        self._is_deciding = False
        turn.overseer = self

    # What comes in

    async def admit(self) -> Task | None:
        """The task as the agent may see it; None when the turn is over without the agent.

        A message that was let in before is not looked at again: after a crash, and after a review of the answer.
        """
        run = await self.run()
        if (held := _unshown(run)) is not None:
            await self._show(run, Output.restored(held.turn))
            return None
        if not self._is_admitted(run) and not await self._look_at_input(run):
            return None
        return self._as_admitted(run)

    async def admitted(self) -> Task | None:
        """The same, when the agent has seen the message before; None when it has not."""
        run = await self.run()
        return self._as_admitted(run) if self._is_admitted(run) else None

    async def options(self) -> RequestOptions:
        """What was asked for beside the message, as a transform has left it."""
        let_in = self._let_in(await self.run())
        if let_in is None or let_in.values is None or REQUEST_METADATA not in let_in.values:
            return self._options
        return msgspec.structs.replace(self._options, metadata=let_in.values[REQUEST_METADATA] or {})

    def _is_admitted(self, run: Run) -> bool:
        return self._let_in(run) is not None

    def _let_in(self, run: Run) -> InputPassed | None:
        passed = (record for record in run.records if isinstance(record, InputPassed))
        return next((record for record in passed if record.message_id == self._key), None)

    async def _look_at_input(self, run: Run) -> bool:
        exceeded = check_age(self.policy.limits, run.context, run.now_ms())
        if exceeded is not None:
            await self._stop_at(run, exceeded)
            return False
        passed = await self._ask(run, self.policy.before, input=run.arrived)
        if passed is None:
            return False
        values = passed.value if passed.transformed else None
        run.note(InputPassed(at=run.now(), message_id=self._key, values=values))
        return True

    def _as_admitted(self, run: Run) -> Task:
        """The task with every message as it was let in."""
        changed = {
            record.message_id: record.values
            for record in run.records
            if isinstance(record, InputPassed) and record.values is not None
        }
        task = self._stored.task
        if not changed:
            return task
        let_in = {id(message): changed.get(key) for key, message in inputs(task.history)}
        history = [_changed(message, let_in.get(id(message))) for message in task.history or ()]
        return msgspec.structs.replace(task, history=history)

    async def time_left(self) -> float | None:
        """How many seconds the agent has, when its policy bounds the age of a task."""
        if self.policy.limits.max_age is None:
            return None
        run = await self.run()
        age = run.now_ms() - from_iso(run.context.agent.started_at)
        # An age that is just reached is not exceeded.
        return max(parse_duration(self.policy.limits.max_age) - age + 1, 0) / 1000

    async def time_is_up(self) -> None:
        """Ends the task of an agent that has taken longer than that."""
        allowed = parse_duration(self.policy.limits.max_age or "0")
        run = await self.run()
        age = max(run.now_ms() - from_iso(run.context.agent.started_at), allowed + 1)
        await self._stop_at(run, Exceeded("max_age", allowed, age))

    # What goes out

    @property
    def _holds(self) -> bool:
        return bool(self.policy.after.steps)

    def holds_back(self, kind: EventKind, update: StreamResponse) -> bool:
        """With guardrails for the answer, all that can be seen before it are states without words."""
        if not self._holds:
            return False
        told = update.status_update
        if told is not None and told.status.state in (SUBMITTED, WORKING):
            self._turn.emit(kind, without_words(update), approved=True)
        else:
            self._held.append((kind, update if update.task is None else without_words(update)))
        return True

    def discard(self) -> None:
        """Forgets what was held back: the runtime is about to end the turn in its own words."""
        self._held.clear()
        self._turn.overseer = None

    async def end(self, ending: Ending) -> None:
        if ending.asks:
            return await self._turn.finish(ending)
        if ending.state is CANCELED:
            # Nobody has looked at what the agent may say with it.
            return await self._turn.finish(Ending(state=CANCELED) if self._holds else ending)
        if self._is_deciding:
            raise TurnError(ALREADY_ENDED)
        self._is_deciding = True
        try:
            run = await self.run()
            if self._holds:
                await self._show(run, Output.gathered(self._held, ending))
            else:
                await self._end_at_once(run, ending)
        finally:
            self._is_deciding = False

    async def _end_at_once(self, run: Run, ending: Ending) -> None:
        if ending.state in _ANSWERS:
            exceeded = check_age(self.policy.limits, run.context, run.now_ms())
            if exceeded is not None:
                return await self._stop_at(run, exceeded)
            run.note(OutputGiven(at=run.now(), values=as_values(self._new_parts(Output.of(ending)))))
        return await self._turn.finish(ending)

    async def _show(self, run: Run, output: Output) -> None:
        """Shows what the guardrails let through, or stores it while they wait."""
        is_answer = output.ending.state in _ANSWERS
        exceeded = check_age(self.policy.limits, run.context, run.now_ms()) if is_answer else None
        if exceeded is not None:
            return await self._stop_at(run, exceeded)
        parts = self._new_parts(output)
        passed = await self._ask(run, self.policy.after, output=as_values(parts), held=output)
        if passed is None:
            return None
        if passed.transformed:
            replaced = as_parts(passed.value, parts)
            output, parts = output.replaced(replaced, self._stored.task, self._turn.task), replaced
        if is_answer:
            run.note(OutputGiven(at=run.now(), values=as_values(parts)))
        self._held.clear()
        for kind, update in output.events:
            self._turn.emit(kind, update, approved=True)
        return await self._turn.finish(output.ending)

    def _new_parts(self, output: Output) -> list[Part]:
        return new_parts(self._stored.task, output.shown_in(self._turn.task), output.ending.message)

    # Guardrails

    async def _ask(self, run: Run, steps: Steps, *, held: Output | None = None, **value: Json) -> Passed | None:
        """What the guardrails let through; None when they have ended or suspended the turn."""
        # Another version of the policy decides anew, whatever was answered to this one.
        key = f"{steps.phase.subject}:{self._key}:{self.policy.version}"
        try:
            outcome = await self.judge(run).steps(steps, Subject(context=run.plain, **value), key=key)
        except StepSuspended as suspended:
            call = suspended.call
            if held is not None and _unshown(run) is None:
                run.note(OutputHeld(at=run.now(), values=value["output"], turn=held.stored()))
            ids = {"task_id": self._turn.task_id, "context_id": self._turn.context_id}
            question = (
                review_message(call, suspended.value, **ids) if held is None else held_review_message(call, **ids)
            )
            await self._suspend(call, question)
            return None
        if isinstance(outcome, Passed):
            return outcome
        # A guardrail cannot block; see `compile_steps`.
        assert isinstance(outcome, Locked)
        await self.stop(run, "restricted", outcome.reason)
        return None


def _unshown(run: Run) -> OutputHeld | None:
    """What a turn before this one wanted to show and could not yet."""
    for record in reversed(run.records):
        if isinstance(record, OutputHeld):
            return record
        if isinstance(record, OutputGiven | Ended):
            return None
    return None


def _changed(message: Message, values: dict[str, Any] | None) -> Message:
    """The message as a transform has left it; what it says nothing of stays."""
    if values is None:
        return message
    metadata = values.get("metadata", message.metadata)
    return msgspec.structs.replace(message, parts=as_parts(values, message.parts), metadata=metadata)
