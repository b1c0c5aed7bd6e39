"""The enforcement of policy: the overseer of every turn, for every kind of agent."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Collection, Coroutine, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from errands.clock import from_iso, to_iso
from errands.errors import CapabilityBlockedError, TaskStoppedError, TurnError
from errands.model.core import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    PAUSED_STATES,
    REJECTED,
    SUBMITTED,
    WORKING,
    Message,
    Part,
    Role,
    StreamResponse,
)
from errands.model.log import EventKind, StoredTask
from errands.policy import records
from errands.policy.cel import Call, CallFailed, Session, Suspended
from errands.policy.cel.evaluators import Evaluators, use_evaluators
from errands.policy.cel.values import Json, normalise
from errands.policy.document import NO_POLICY, CompiledPolicy
from errands.policy.limits import (
    AgeLimit,
    Exceeded,
    check_after_model,
    check_age,
    check_before_capability,
    check_before_model,
    parse_duration,
)
from errands.policy.output import Output, as_parts, as_values, new_parts, without_words
from errands.policy.pipeline import Blocked, Locked, Outcome, Passed, StepCall, StepSuspended, Subject, run_steps
from errands.policy.records import (
    Answered,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    Decided,
    Ended,
    InputArrived,
    InputPassed,
    ModelCalled,
    OutputGiven,
    OutputHeld,
    Started,
    Waiting,
)
from errands.policy.reviews import held_review_message, review_message, reviewer_of
from errands.policy.run import Run, inputs
from errands.policy.steps import Phase, Steps, given_name
from errands.runtime import validation
from errands.runtime.expiry import Expired, expiry_message
from errands.runtime.journal import new_id
from errands.runtime.oversight import Admitted, Overseer
from errands.runtime.turn import ALREADY_ENDED, Ending, Turn
from errands.runtime.worker import Worker

logger = logging.getLogger("errands.policy")


def log_decision(task_id: str, decided: Decided) -> None:
    # The detail stays in the record: it may repeat what somebody has said.
    policy = f", policy {decided.policy}" if decided.policy else ""
    logger.info("task %s: %s %s%s", task_id, decided.step, decided.outcome, policy)


class RuledWorker(Worker):
    """A worker that brings rules of its own and applies those of the server's policy together with them."""

    @abstractmethod
    def function_names(self) -> tuple[set[str], tuple[str, ...]]:
        """Return the names of its functions, and the prefixes of names that only a run makes known."""

    @abstractmethod
    def hold_to(self, policy: CompiledPolicy, elsewhere: Collection[str] = ()) -> None:
        """Apply the server's policy. `elsewhere` are the functions of this agent and of those beside it."""

    @abstractmethod
    def use_evaluators(self, evaluators: Evaluators) -> None:
        """Run long evaluations of expressions there."""

    @abstractmethod
    def age_limit(self) -> AgeLimit | None:
        """Return the bound on the age of its tasks."""


class Enforcement:
    """The `Oversight` of one agent."""

    def __init__(
        self,
        policy: CompiledPolicy | None = None,
        evaluators: Evaluators | None = None,
        worker: Worker | None = None,
    ) -> None:
        if isinstance(worker, RuledWorker):
            if evaluators is not None:
                worker.use_evaluators(evaluators)
            self._policy, self._age_limit = None, worker.age_limit()
        else:
            limits = NO_POLICY.limits if policy is None else policy.limits
            self._policy = policy
            self._age_limit = AgeLimit.of(limits, policy="" if policy is None else policy.version)
        self._evaluators = evaluators

    @property
    def is_required(self) -> bool:
        return self._policy is not None

    @property
    def max_age(self) -> int | None:
        return None if self._age_limit is None else self._age_limit.allowed

    def expire(self, stored: StoredTask, now: int) -> Expired:
        assert self._age_limit is not None
        exceeded = self._age_limit.exceeded_by(now - stored.head.created_at)
        text, at = self._age_limit.told.format(exceeded.message), to_iso(now)
        decided = Decided(
            at=at,
            step=self._age_limit.step,
            action="limit",
            outcome="exceeded",
            policy=self._age_limit.policy,
            detail=exceeded.message,
        )
        ended = Ended(at=at, reason="limit_exceeded", detail=text)
        message = expiry_message(stored, text, "limit_exceeded")
        return Expired(FAILED, message, (records.encode(decided), records.encode(ended)))

    def oversee(self, turn: Turn) -> Overseer:
        if self._evaluators is not None:
            use_evaluators(self._evaluators)
        return TurnOverseer(turn, policy=self._policy or NO_POLICY)


#: The input's field with the metadata of the request.
REQUEST_METADATA = "request_metadata"

_ENDS = {"limit_exceeded": FAILED, "restricted": REJECTED}


class Recorder:
    """The records of one turn. The run begins with the first of them."""

    def __init__(self, turn: Turn, policy: CompiledPolicy) -> None:
        self._turn = turn
        # As they are now: the turn goes on with what the guardrails make of them.
        self._stored, self._message, self._options = turn.stored, turn.message, turn.options
        self._key = next(key for key, one in inputs(self._stored.task.history) if one is self._message)
        self.policy = policy
        #: Capability calls that began and are not over.
        self.calls_under_way = 0
        self._run: Run | None = None
        self._opening = asyncio.Lock()

    async def run(self) -> Run:
        """The run of the task, begun, with the message of this turn taken in."""
        async with self._opening:
            if self._run is None:
                run = await Run.open(self._turn, self._turn.journal, self._stored)
                self._begin(run)
                self._run = run
        return self._run

    def _begin(self, run: Run) -> None:
        scope, options, message = self._stored.scope, self._options, self._message
        if not run.started:
            started = Started(
                at=to_iso(self._stored.head.created_at),
                agent=scope.agent,
                user=scope.owner,
                email=options.email or None,
                functions=tuple(self.policy.capabilities),
                parent=options.parent,
                depth=options.depth,
            )
            run.note(started)
        if not run.has_input(self._key):
            # All that the agent can read: what it makes of metadata nobody knows.
            beside = {"metadata": message.metadata, REQUEST_METADATA: options.metadata}
            values = as_values(message.parts) | {name: value for name, value in beside.items() if value}
            run.note(InputArrived(at=run.now(), values=values, message_id=self._key))

    @property
    def turn_ended(self) -> bool:
        return self._turn.ended

    async def catch_up(self) -> None:
        """Waits until every record is durable."""
        await self._turn.catch_up()

    # What the agent tells

    async def context(self) -> dict[str, Json]:
        """The context as expressions see it; a copy."""
        plain: dict[str, Json] = msgspec.json.decode(msgspec.json.encode((await self.run()).plain()))
        return plain

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        """A model was called. Raises `TaskStoppedError` when that was too much."""
        model, text = validation.text("model", model), validation.text("text", text)
        prompt, completion = validation.count("prompt", prompt), validation.count("completion", completion)
        run, limits = await self.run(), self.policy.limits
        exceeded = check_before_model(limits, run.context, run.now_ms())
        run.note(ModelCalled(at=run.now(), model=model, prompt=prompt, completion=completion, text=text))
        exceeded = exceeded or check_after_model(limits, run.context)
        if exceeded is not None:
            await self.exceed(run, exceeded)
        await self._turn.catch_up()

    def capability(self, name: str, arguments: Mapping[str, Any]) -> OverseenCall:
        return OverseenCall(self, name, arguments)

    # What the policy says

    def judge(self, run: Run) -> Judge:
        return Judge(self.policy, run)

    async def exceed(self, run: Run, exceeded: Exceeded) -> None:
        """Ends the task, and raises `TaskStoppedError`."""
        await self._stop_at(run, exceeded)
        raise TaskStoppedError(exceeded.message, "limit_exceeded")

    async def _stop_at(self, run: Run, exceeded: Exceeded) -> None:
        self.judge(run).exceeded(exceeded)
        await self.stop(run, "limit_exceeded", exceeded.message)

    async def stop(self, run: Run, reason: Literal["limit_exceeded", "restricted"], text: str) -> None:
        """Ends the task for good. What is held back is never shown."""
        run.note(Ended(at=run.now(), reason=reason, detail=text))
        message = Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=[Part(text=text)],
            task_id=self._turn.task_id,
            context_id=self._turn.context_id,
            metadata={"reason": reason},
        )
        await self._turn.finish(Ending(state=_ENDS[reason], message=message))

    async def _suspend(self, call: Call, question: Message) -> None:
        """Lets go of the task until the reviewer has answered; the turn goes on then."""
        await self._turn.finish(Ending(state=INPUT_REQUIRED, message=question, asks=reviewer_of(call)))


_ANSWERS = PAUSED_STATES | {COMPLETED}


class TurnOverseer(Recorder):
    """Made with the turn when there is a policy, and otherwise when the agent first records something."""

    def __init__(self, turn: Turn, policy: CompiledPolicy = NO_POLICY) -> None:
        super().__init__(turn, policy)
        #: Events that nobody may see before the guardrails have.
        self._held: list[tuple[EventKind, StreamResponse]] = []
        self._is_deciding = False

    # What comes in

    async def admit(self, *, is_cancelled: bool) -> Admitted | None:
        """Return what the agent may see; None when the turn is over without the agent.

        A message that was let in before is not looked at again: after a crash, and after a review of the answer.
        """
        run = await self.run()
        if is_cancelled:
            return self._as_admitted(run) if self._let_in(run) is not None else None
        if (held := _unshown(run)) is not None:
            await self._show(run, Output.restored(held.turn))
            return None
        if self._let_in(run) is None and not await self._look_at_input(run):
            return None
        return self._as_admitted(run)

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

    def _as_admitted(self, run: Run) -> Admitted:
        """Return the task with every message as it was let in, and the options likewise."""
        options, let_in = self._options, self._let_in(run)
        if let_in is not None and let_in.values is not None and REQUEST_METADATA in let_in.values:
            options = msgspec.structs.replace(options, metadata=let_in.values[REQUEST_METADATA] or {})
        changed = {
            record.message_id: record.values
            for record in run.records
            if isinstance(record, InputPassed) and record.values is not None
        }
        task = self._stored.task
        if not changed:
            return Admitted(task, options)
        values = {id(message): changed.get(key) for key, message in inputs(task.history)}
        history = [_changed(message, values.get(id(message))) for message in task.history or ()]
        return Admitted(msgspec.structs.replace(task, history=history), options)

    async def supervise(self, handling: Coroutine[Any, Any, None]) -> None:
        if self.policy.limits.max_age is None:
            await handling
            return
        run, allowed = await self.run(), parse_duration(self.policy.limits.max_age)
        started = from_iso(run.context.agent.started_at)
        # An age that is just reached is not exceeded.
        left = max(allowed - (run.now_ms() - started) + 1, 0) / 1000
        try:
            async with asyncio.timeout(left) as timer:
                await handling
        except TimeoutError:
            if not timer.expired():
                raise
            if self._turn.settled or (self._turn.ended and not await self._turn.reopen()):
                return
            await self._stop_at(run, Exceeded("max_age", allowed, max(run.now_ms() - started, allowed + 1)))

    # What goes out

    @property
    def _holds(self) -> bool:
        return bool(self.policy.after.steps)

    def hold_back(self, kind: EventKind, update: StreamResponse) -> bool:
        """With guardrails for the answer, all that can be seen before it are states without words."""
        if not self._holds:
            return False
        told = update.status_update
        if told is not None and told.status.state in (SUBMITTED, WORKING):
            self._turn.emit(kind, without_words(update), approved=True)
        else:
            self._held.append((kind, update if update.task is None else without_words(update)))
        return True

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


class Judge:
    def __init__(self, policy: CompiledPolicy, run: Run) -> None:
        self._policy = policy
        self._run = run

    async def steps(self, steps: Steps, subject: Subject, *, key: str = "", call: str | None = None) -> Outcome:
        """What the steps decide about `subject`; `call` is the capability call they stand around.

        Raises `StepSuspended` while one of them waits. Steps with the same `key` then go on where they stopped.
        """
        session, waiting = self._session(key)
        try:
            outcome = await run_steps(steps, subject, session, invoke=_refuse, perform=_wait)
        except StepSuspended as suspended:
            if suspended.call != waiting:
                hidden = suspended.value if steps.phase.subject == "output" else None
                at = self._run.now()
                self._run.note(Waiting(at=at, call=suspended.call, session=session, key=key, subject=hidden))
            raise
        for decision in outcome.decisions:
            self._decided(decision.step, decision.action, decision.told, decision.detail, call)
        return outcome

    def exceeded(self, exceeded: Exceeded) -> None:
        """A limit ends the task."""
        self._decided(f"limits.{exceeded.limit}", "limit", "exceeded", exceeded.message)

    def _decided(self, step: str, action: str, outcome: str, detail: str, call: str | None = None) -> None:
        decided = Decided(
            at=self._run.now(),
            step=step,
            action=action,
            outcome=outcome,
            policy=self._policy.version,
            call=call,
            detail=detail,
        )
        self._run.note(decided)
        log_decision(self._run.task_id, decided)

    def _session(self, key: str) -> tuple[Session, Call | None]:
        """The session in which steps go on, and the call that they still wait for."""
        session, waiting = Session(now=self._run.now()), None
        for record in self._run.records if key else ():
            if isinstance(record, Waiting) and record.key == key:
                session = msgspec.structs.replace(record.session, finished=dict(record.session.finished))
                waiting = record.call
            elif isinstance(record, Answered) and record.key == key:
                waiting = None
                if record.error is None:
                    session.settle(record.call, record.value)
                else:
                    session.fail(record.call, record.error)
        return session, waiting


async def _wait(call: Call) -> None:
    """All that an expression can call here is `review()`, if it names somebody."""
    try:
        reviewer_of(call)
    except ValueError as error:
        raise CallFailed(str(error)) from None
    raise Suspended(call)


async def _refuse(invocation: StepCall) -> None:
    raise CallFailed("a policy has no tools to invoke")


#: Characters of an error's text that are kept.
_MOST = 500


class OverseenCall:
    """`async with ctx.capability("search", {"query": "tea"}) as call: call.output = await search(**call.arguments)`.

    Entering asks the policy and the limits and makes the beginning durable; leaving makes the result durable and lets
    the policy change it. An exception in the block is recorded and passed on.
    """

    def __init__(self, recorder: Recorder, name: str, arguments: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._id = new_id()
        #: As policies and expressions know it.
        self.name = given_name(name)
        if other := recorder.policy.misspelled(self.name):
            raise ValueError(f"the policy of this server has rules for {other!r}, and the agent calls {name!r}")
        #: What it is called with. A policy may have changed them.
        self.arguments: dict[str, Any] = normalise(dict(arguments))
        #: What it gives, any JSON value. After the block it is what the policy has made of it.
        self.output: Any = None

    def result(self, value: Any) -> Any:
        """Sets `output` and gives it back."""
        self.output = value
        return value

    async def __aenter__(self) -> Self:
        self._run = run = await self._recorder.run()
        self._at = run.now()
        phases = [Phase.BEFORE_FIRST] if run.context.is_first(normalise(self.name)) else []
        for phase in (*phases, Phase.BEFORE):
            self.arguments = await self._judge(run, phase, input=self.arguments)
        under_way = self._recorder.calls_under_way
        exceeded = check_before_capability(self._recorder.policy.limits, run.context, run.now_ms(), under_way=under_way)
        if exceeded is not None:
            await self._recorder.exceed(run, exceeded)
        self._recorder.calls_under_way += 1
        try:
            await run.append(CapabilityBegan(**self._fields()))
        except BaseException:
            self._recorder.calls_under_way -= 1
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.calls_under_way -= 1
        if isinstance(error, asyncio.CancelledError | TaskStoppedError) or self._recorder.turn_ended:
            return
        if error is not None:
            await self._failed(f"{type(error).__name__}: {error}")
            return
        try:
            self.output = normalise(self.output)
        except ValueError as problem:
            await self._failed(str(problem))
            raise
        await self._run.append(CapabilityFinished(**self._fields(), output=self.output))
        self.output = await self._judge(self._run, Phase.AFTER, input=self.arguments, output=self.output)

    async def _failed(self, error: str) -> None:
        await self._run.append(CapabilityErrored(**self._fields(), error=error[:_MOST]))

    async def _judge(self, run: Run, phase: Phase, **values: Json) -> Json:
        """What the steps of a phase let through. Raises `CapabilityBlockedError` and `TaskStoppedError`."""
        steps = self._recorder.policy.steps(self.name, phase)
        if not steps.steps:
            return values[phase.subject]
        subject = Subject(context=run.plain, action=self.name, **values)
        match await self._recorder.judge(run).steps(steps, subject, call=self._id):
            case Passed(value=value):
                return value
            case Blocked(message=message):
                self._restrict(run, phase, message)
                await self._recorder.catch_up()
                raise CapabilityBlockedError(message)
            case Locked(reason=reason):
                self._restrict(run, phase, reason)
                await self._recorder.stop(run, "restricted", reason)
                raise TaskStoppedError(reason, "restricted")

    def _restrict(self, run: Run, phase: Phase, reason: str) -> None:
        if phase is not Phase.AFTER:
            run.note(CapabilityRestricted(**self._fields(), reason=reason))

    def _fields(self) -> dict[str, Any]:
        return {"at": self._at, "call": self._id, "function": self.name, "arguments": self.arguments}
