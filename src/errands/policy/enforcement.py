"""The enforcement of policy in one turn: steps, guardrails, limits, reviews and records, for every kind of agent.

    TurnOverseer   enforces the rules of an agent in a turn
    OverseenCall   enforces them around one call of a capability
    HandlerCall    such a call, as `ctx.capability` gives it

`errands.policy.agent_oversight` has the overseer of workers, functions and executors, `errands.agents.loop.overseer`
that of agents from manifests. They say how an agent takes its input in and gives its output.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec

from errands.clock import from_iso
from errands.errors import CapabilityBlockedError, TaskStoppedError
from errands.model.core import Part, TaskState
from errands.policy import limits, records
from errands.policy.cel import Call, CallFailed, Perform, Session, Suspended
from errands.policy.cel.values import Json, normalise
from errands.policy.document import Rules
from errands.policy.limits import Exceeded
from errands.policy.records import AnyRecord, Reason
from errands.policy.reviews import review_message, reviewer_of
from errands.policy.run import Run, inputs
from errands.policy.steps import (
    CAPABILITY_PHASES,
    Blocked,
    Invoke,
    Locked,
    Outcome,
    Passed,
    StepCall,
    Steps,
    StepSuspended,
    Subject,
    given_name,
    run_steps,
)
from errands.runtime import validation
from errands.runtime.journal import new_id
from errands.runtime.oversight import CapabilityCall, Overseer
from errands.runtime.turn import Ending, Turn

#: One line for every decision, beside the record in the task's log.
logger = logging.getLogger("errands.policy")

#: Characters of an error's text that are recorded.
_MAX_ERROR = 500


def limit_decision(rules: Rules, exceeded: Exceeded, at: str) -> records.Decided:
    """Return the decision that a limit ends the task."""
    step = rules.limit_name(exceeded.limit)
    version = rules.version_of(step)
    return records.Decided(
        at=at, step=step, action="limit", outcome="exceeded", policy=version, detail=exceeded.message
    )


# Turns


@dataclass(eq=False, repr=False)
class ReviewPendingError(Exception):
    """Steps wait for a review of `subject`, which only the reviewer may see yet when it is `held`."""

    key: str
    call: Call
    session: Session
    subject: Json
    held: bool = False
    #: The function whose call is reviewed, if it is a call.
    function: str | None = None

    def __post_init__(self) -> None:
        # What a log may have of it: not the subject.
        self.args = (f"{self.key} waits for {self.call}",)


class TurnOverseer(Overseer):
    """Enforces the rules of an agent in one turn.

    Subclasses say how the agent takes its input in and gives its output. Everything between goes through here.
    """

    def __init__(self, rules: Rules, turn: Turn) -> None:
        self.rules = rules
        self.turn = turn
        # As they are now: the turn continues with what the guardrails make of them.
        self.stored, self.message, self.options = turn.stored, turn.message, turn.options
        #: By which records know the message of this turn.
        self.message_key = next(key for key, one in inputs(self.stored.task.history) if one is self.message)
        self._run: Run | None = None
        self._has_begun = False
        self._opening = asyncio.Lock()
        self._mark = f"@{hashlib.sha256(rules.policy.version.encode()).hexdigest()[:8]}" if rules.policy.version else ""

    async def opened(self) -> Run:
        """Return the run of the task as it is."""
        if self._run is None:
            self._run = await Run.open(self.turn, self.stored)
        return self._run

    async def run(self) -> Run:
        """Return the run of the task, which has begun."""
        if not self._has_begun:
            async with self._opening:
                if not self._has_begun:
                    await self.begin(await self.opened())
                    self._has_begun = True
        return await self.opened()

    @abstractmethod
    async def begin(self, run: Run) -> None:
        """Note `Started`, unless the run has it."""

    @abstractmethod
    async def release(self) -> None:
        """Release what the task holds elsewhere, before it is stopped."""

    async def context(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode((await self.run()).context.plain()))
        return plain

    # Steps

    def session_key(self, place: str) -> str:
        """Return the name of the session of steps at a place, or of the form of a call.

        Each version of the policy has its own names, so with a new version everything is decided again.
        """
        return f"{place}{self._mark}"

    def perform(self, key: str) -> Perform:
        """Return what makes the calls of expressions in the session `key`. Here `review()` is the only one."""
        return ask_reviewer

    async def ask(
        self,
        steps: Steps,
        subject: Subject,
        *,
        session: Session | None = None,
        key: str = "",
        call: str | None = None,
        function: str | None = None,
        invoke: Invoke | None = None,
    ) -> Outcome:
        """Return what the steps decide about the subject, and record their decisions.

        Raises `ReviewPendingError` while one of them waits. With the same `session` they continue where they stopped.
        """
        run = await self.run()
        session = session or Session(now=run.now())
        try:
            outcome = await run_steps(
                steps, subject, session, invoke=invoke or _refuse_invoke, perform=self.perform(key)
            )
        except StepSuspended as suspended:
            held = steps.phase.subject == "output"
            raise ReviewPendingError(key, suspended.call, session, suspended.value, held, function) from None
        for decision in outcome.decisions:
            self._decide(
                run,
                records.Decided(
                    at=run.now(),
                    step=decision.step,
                    action=decision.action,
                    outcome=decision.summary,
                    policy=self.rules.version_of(decision.step),
                    call=call,
                    detail=decision.detail,
                ),
            )
        return outcome

    def _decide(self, run: Run, decided: records.Decided) -> None:
        run.note(decided)
        # The detail stays in the record: it may repeat what a user has said.
        policy = f", policy {decided.policy}" if decided.policy else ""
        logger.info("task %s: %s %s%s", run.task_id, decided.step, decided.outcome, policy)

    async def suspend(self, pending: ReviewPendingError) -> None:
        """End the turn with the question of the review. Once answered, the task continues with the same message."""
        run, call, subject = await self.run(), pending.call, pending.subject
        if run.awaited(pending.key) != call:
            hidden = subject if pending.held else None
            run.note(records.Waiting(at=run.now(), call=call, session=pending.session, key=pending.key, subject=hidden))
        ids = {"task_id": self.turn.task_id, "context_id": self.turn.context_id}
        question = review_message(call, subject, function=pending.function, held=pending.held, **ids)
        await self.turn.finish(Ending(state=TaskState.INPUT_REQUIRED, message=question, asks=reviewer_of(call)))

    # Guardrails

    async def guard_input(self, values: Json, *, place: str, at: str, invoke: Invoke | None = None) -> None:
        """Have the guardrails look at the input of this turn, and record that it passed.

        Raises `ReviewPendingError`, and `TaskStoppedError` when they refuse it.
        """
        run = await self.run()
        subject = Subject(context=run.context.plain, input=values)
        passed = await self._guard(run, self.rules.before, subject, place, at, invoke)
        changed = passed.value if passed.transformed else None
        run.note(records.InputPassed(at=run.now(), message_id=self.message_key, values=changed))

    async def guard_output(self, subject: Subject, *, place: str, at: str, invoke: Invoke | None = None) -> Passed:
        """Have the guardrails look at an answer, and return what they let through. Raises like `guard_input`."""
        return await self._guard(await self.run(), self.rules.after, subject, place, at, invoke)

    async def _guard(
        self, run: Run, steps: Steps, subject: Subject, place: str, at: str, invoke: Invoke | None
    ) -> Passed:
        key = self.session_key(place)
        outcome = await self.ask(steps, subject, session=run.session(key, at), key=key, invoke=invoke)
        if isinstance(outcome, Passed):
            return outcome
        return await self.stop("restricted", outcome.message)

    # Limits

    async def check(self, exceeded: Exceeded | None) -> None:
        """End the task when a limit was exceeded. Raises `TaskStoppedError` then."""
        if exceeded is not None:
            run = await self.run()
            self._decide(run, limit_decision(self.rules, exceeded, run.now()))
            await self.stop("limit_exceeded", self.rules.limit_text.format(exceeded.message))

    async def check_age(self) -> None:
        """End the task when it has become too old."""
        run = await self.run()
        await self.check(limits.check_age(self.rules.limits, run.context, run.now_ms()))

    async def supervise(self, handling: Coroutine[Any, Any, None]) -> None:
        with suppress(TaskStoppedError):
            await self._in_time(handling)
        await self.conclude()

    async def _in_time(self, handling: Coroutine[Any, Any, None]) -> None:
        """Run the handler for as long as the limit on the age of tasks allows."""
        allowed = self.rules.limits.max_age_ms
        if allowed is None:
            await handling
            return
        try:
            run = await self.run()
        except BaseException:
            handling.close()
            raise
        started = from_iso(run.context.started_at)
        try:
            # An age that is just reached is not exceeded.
            async with asyncio.timeout(max(started + allowed + 1 - run.now_ms(), 0) / 1000) as timer:
                await handling
        except TimeoutError:
            if not timer.expired():
                raise
            if not self.turn.settled and (not self.turn.ended or await self.turn.reopen()):
                await self.check(Exceeded("max_age", allowed, max(run.now_ms() - started, allowed + 1)))

    # The end

    async def stop(self, reason: Reason, text: str, *last: AnyRecord) -> NoReturn:
        """End the task with these `last` records; nothing that is held back is shown. Raises `TaskStoppedError`."""
        run = await self.run()
        run.note(*last, records.Ended(at=run.now(), reason=reason, detail=text))
        await self.conclude()
        raise TaskStoppedError(text, reason)

    async def conclude(self) -> None:
        """End the turn if the task was stopped and the turn has not ended."""
        over = None if self._run is None else self._run.over
        if over is None or self.turn.ended:
            return
        await self.release()
        state = TaskState.REJECTED if over.reason == "restricted" else TaskState.FAILED
        message = self.turn.agent_message([Part(text=over.detail)], metadata={"reason": over.reason})
        await self.turn.finish(Ending(state=state, message=message))

    # Models

    async def check_model(self) -> None:
        """End the task when a limit does not allow another call of the model."""
        run = await self.run()
        await self.check(limits.check_before_model(self.rules.limits, run.context, run.now_ms()))

    async def record_model(self, called: records.ModelCalled, exceeded: Exceeded | None = None) -> None:
        """Record a call of a model, and end the task when a limit was exceeded, before it or by it."""
        run = await self.run()
        run.note(called)
        await self.check(exceeded or limits.check_after_model(self.rules.limits, run.context))
        await run.settle()

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        model, text = validation.text("model", model), validation.text("text", text)
        prompt, completion = validation.count("prompt", prompt), validation.count("completion", completion)
        run = await self.run()
        exceeded = limits.check_before_model(self.rules.limits, run.context, run.now_ms())
        now = run.now()
        called = records.ModelCalled(at=now, model=model, prompt=prompt, completion=completion, text=text, ended_at=now)
        await self.record_model(called, exceeded)

    # Capabilities

    #: Calls of a handler that began and are not over.
    open_calls = 0

    def calls_under_way(self, run: Run) -> int:
        """Return how many calls have begun and do not count in the context yet."""
        return self.open_calls

    async def check_call(self) -> None:
        """End the task when a limit does not allow another call, and raise if another call has ended it."""
        run = await self.run()
        if run.over is not None:
            raise TaskStoppedError(run.over.detail, run.over.reason)
        under_way = self.calls_under_way(run)
        await self.check(
            limits.check_before_capability(self.rules.limits, run.context, run.now_ms(), under_way=under_way)
        )

    def capability(self, name: str, arguments: Mapping[str, Any]) -> CapabilityCall:
        policy, plain = self.rules.policy, given_name(name)
        if other := policy.misspelled(plain):
            raise ValueError(f"the policy of this server has rules for {other!r}, and the agent calls {name!r}")
        steps: dict[str, Any] = {phase.value: policy.steps(plain, phase) for phase in CAPABILITY_PHASES}
        return HandlerCall(self, CapabilityRules(name=plain, action=plain, **steps), normalise(dict(arguments)))


async def ask_reviewer(call: Call) -> NoReturn:
    """Suspend steps until the reviewer has answered. Raises `CallFailed` when `review()` names no user."""
    try:
        reviewer_of(call)
    except ValueError as error:
        raise CallFailed(str(error)) from None
    raise Suspended(call)


async def _refuse_invoke(invocation: StepCall) -> NoReturn:
    raise CallFailed("a policy has no tools to invoke")


# Calls


class CapabilityRules(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is enforced around the calls of one capability."""

    #: As policies and expressions know it.
    name: str
    before_first: Steps
    before: Steps
    after: Steps
    #: Its name within its tool, for `match`, and the name that a discovered operation has at its service.
    action: str | None
    operation: str | None = None
    #: Parameters whose values are bound: no step changes them.
    bound: frozenset[str] = frozenset()


class OverseenCall:
    """One call of a capability: the steps around it, the limits, and its records."""

    def __init__(
        self, overseer: TurnOverseer, rules: CapabilityRules, call: str, caller: records.Caller = "model"
    ) -> None:
        self._overseer = overseer
        self.rules = rules
        self.id = call
        self._caller: records.Caller = caller
        self._at = ""

    async def before(
        self, arguments: dict[str, Any], *, session: Session | None = None, key: str = "", invoke: Invoke | None = None
    ) -> Passed:
        """Return the arguments as the steps before the call leave them.

        A call that they stop is recorded: raises `CapabilityBlockedError`, or `TaskStoppedError` when it ends the task.
        """
        run = await self._overseer.run()
        self._at = run.now()
        is_first = run.context.is_first(normalise(self.rules.name))
        passed = Passed(arguments)
        for steps in [self.rules.before_first, self.rules.before] if is_first else [self.rules.before]:
            outcome = await self._ask(steps, session, key, invoke, input=passed.value)
            if not isinstance(outcome, Passed):
                restricted = records.CapabilityRestricted(**self._fields(passed.value), reason=outcome.message)
                if isinstance(outcome, Locked):
                    await self._overseer.stop("restricted", outcome.message, restricted)
                await run.append(restricted)
                raise CapabilityBlockedError(outcome.message)
            passed = Passed(outcome.value, passed.transformed or outcome.transformed)
        return passed

    async def begin(self, arguments: dict[str, Any], form: str | None = None) -> records.CapabilityBegan:
        """Record that the call is about to be executed, unless a limit ends the task."""
        await self._overseer.check_call()
        run = await self._overseer.run()
        self._at = self._at or run.now()
        began = records.CapabilityBegan(**self._fields(arguments), form=form)
        self._overseer.open_calls += 1
        try:
            await run.append(began)
        except BaseException:
            self._overseer.open_calls -= 1
            raise
        return began

    async def after(
        self,
        finished: records.CapabilityFinished,
        *,
        session: Session | None = None,
        key: str = "",
        invoke: Invoke | None = None,
    ) -> Json:
        """Return the result as the steps after the call leave it. Raises like `before`."""
        values = {"input": finished.arguments, "output": finished.output}
        outcome = await self._ask(self.rules.after, session, key, invoke, **values)
        if isinstance(outcome, Locked):
            await self._overseer.stop("restricted", outcome.message)
        if isinstance(outcome, Blocked):
            raise CapabilityBlockedError(outcome.message)
        return outcome.value

    async def _ask(
        self, steps: Steps, session: Session | None, key: str, invoke: Invoke | None, **values: Json
    ) -> Outcome:
        if not steps.steps:
            return Passed(values[steps.phase.subject])
        rules, run = self.rules, await self._overseer.run()
        subject = Subject(
            context=run.context.plain, action=rules.action, operation=rules.operation, bound=rules.bound, **values
        )
        return await self._overseer.ask(
            steps, subject, session=session, key=key, call=self.id, function=rules.name, invoke=invoke
        )

    def _fields(self, arguments: dict[str, Any]) -> dict[str, Any]:
        common = {"at": self._at, "call": self.id, "function": self.rules.name, "caller": self._caller}
        return {**common, "arguments": arguments}


class HandlerCall(OverseenCall):
    """A call as a handler makes it; see `CapabilityCall`."""

    def __init__(self, overseer: TurnOverseer, rules: CapabilityRules, arguments: dict[str, Any]) -> None:
        super().__init__(overseer, rules, new_id())
        self.name = rules.name
        self.arguments = arguments
        self.output: Any = None

    def result(self, value: Any) -> Any:
        self.output = value
        return value

    async def __aenter__(self) -> Self:
        self.arguments = (await self.before(self.arguments)).value
        await self.begin(self.arguments)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._overseer.open_calls -= 1
        if isinstance(error, asyncio.CancelledError | TaskStoppedError) or self._overseer.turn.ended:
            return
        run = await self._overseer.run()
        fields = {**self._fields(self.arguments), "ended_at": run.now()}
        if error is not None:
            text = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
            await run.append(records.CapabilityErrored(**fields, error=text))
            return
        try:
            self.output = normalise(self.output)
        except ValueError as problem:
            await run.append(records.CapabilityErrored(**fields, error=str(problem)[:_MAX_ERROR]))
            raise
        finished = records.CapabilityFinished(**fields, output=self.output)
        await run.append(finished)
        self.output = await self.after(finished)
