"""One turn's hold on a task: its run, how far it has come, and the expressions of its policy evaluated over both."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Literal, NoReturn

from errands.agents.loop.outcomes import PausedError, TaskOverError
from errands.agents.loop.progress import Progress
from errands.agents.mounts import Files, MountError
from errands.policy.cel import Call, CallFailed, Perform, Session, Suspended, Variables
from errands.policy.cel.values import Json
from errands.policy.document import POLICY
from errands.policy.enforcement import log_decision
from errands.policy.limits import Exceeded
from errands.policy.pipeline import Blocked, Invoke, Locked, Outcome, StepSuspended, Subject, run_steps
from errands.policy.records import Answered, AnyRecord, Decided, Ended
from errands.policy.reviews import reviewer_of
from errands.policy.run import Run
from errands.policy.steps import Steps

logger = logging.getLogger(__name__)

#: A message could have an id by which it would pass for another one in its form.
_WITH_FORM = re.compile(r"@[0-9a-f]{8}$")

#: What the caller is told of a limit that ends the task.
LIMIT_EXCEEDED = "A limit of this agent was exceeded: {}."

Reason = Literal["limit_exceeded", "restricted", "errored"]


class Course:
    def __init__(
        self,
        run: Run,
        files: Files | None,
        runtime: Mapping[str, str],
        policy: str = "",
        limits_of_policy: Collection[str] = (),
    ) -> None:
        self.run = run
        self.progress = Progress(run.records)
        self.files = files
        #: What expressions see as `runtime`.
        self.runtime = dict(runtime)
        #: The version of the policy whose steps stand among the agent's own.
        self._policy = policy
        self._limits_of_policy = limits_of_policy
        self._mark = f"@{hashlib.sha256(policy.encode()).hexdigest()[:8]}" if policy else ""

    def session_key(self, place: str) -> str:
        """The name of the session of steps, or the form of a call, under this version of the policy.

        With another version everything is decided anew.
        """
        return f"{place}{self._mark}"

    def place(self, name: str, form: str) -> str:
        """Where steps are at work: in another form they decide anew.

        Where they were at work before forms were written down, they go on.
        """
        is_known = self.progress.was_at(name, self.session_key(name))
        return name if is_known and not _WITH_FORM.search(name) else f"{name}@{form}"

    def note(self, *records: AnyRecord) -> None:
        """Adds records that become durable with what follows."""
        self.run.note(*records)
        for record in records:
            self.progress.take(record)

    def binding_variables(self) -> Variables:
        """What the bindings of capabilities see."""
        mount = {} if self.files is None else {"mount": self.files.described}
        return Variables(self.run.plain(), runtime=self.runtime, **mount)

    async def append(self, *records: AnyRecord) -> None:
        """Adds records; when this returns they are durable."""
        self.note(*records)
        await self.run.settle()

    def over(self, reason: Reason, message: str, *records: AnyRecord) -> NoReturn:
        """Ends the task: that it is over stands in the log together with what ended it. `message` is for the caller."""
        ended = Ended(at=self.run.now(), reason=reason, detail=message)
        self.note(*records, ended)
        raise TaskOverError(ended)

    def fail(self, told: str, problem: object, *records: AnyRecord) -> NoReturn:
        """Ends the task because it cannot go on; see `plainly`."""
        self.over("errored", self.plainly(told, problem), *records)

    def plainly(self, told: str, problem: object) -> str:
        """Logs what only operators are to know, and returns what the caller is told: the same reference is in both."""
        reference = secrets.token_hex(4)
        logger.error("task %s: %s [%s]: %s", self.run.task_id, told, reference, problem)
        return f"{told} (reference {reference})."

    def check(self, exceeded: Exceeded | None) -> None:
        """Ends the task when a limit was exceeded, which is a decision like that of a step."""
        if exceeded is None:
            return
        of_policy = exceeded.limit in self._limits_of_policy
        decided = Decided(
            at=self.run.now(),
            step=f"{POLICY if of_policy else ''}limits.{exceeded.limit}",
            action="limit",
            outcome="exceeded",
            policy=self._policy if of_policy else "",
            detail=exceeded.message,
        )
        log_decision(self.run.task_id, decided)
        self.over("limit_exceeded", LIMIT_EXCEEDED.format(exceeded.message), decided)

    async def steps(
        self,
        steps: Steps,
        subject: Subject,
        session: Session,
        *,
        key: str,
        invoke: Invoke,
        call: str | None = None,
        function: str | None = None,
    ) -> Outcome:
        """What the steps decide; the decisions are recorded. Raises `PausedError` while one of them waits."""
        if not steps.steps:
            return await run_steps(steps, subject, session, invoke=invoke)
        try:
            outcome = await run_steps(steps, subject, session, invoke=invoke, perform=self.perform(key))
        except StepSuspended as suspended:
            held = steps.phase.subject == "output"
            raise PausedError(key, suspended.call, session, suspended.value, held=held, function=function) from None
        for decision in outcome.decisions:
            decided = Decided(
                at=self.run.now(),
                step=decision.step,
                action=decision.action,
                outcome=decision.told,
                policy=self._policy if decision.step.startswith(POLICY) else "",
                call=call,
                detail=decision.detail,
            )
            self.note(decided)
            log_decision(self.run.task_id, decided)
        return outcome

    async def waiting_for(self, work: Awaitable[Any], key: str, session: Session, subject: Json, function: str) -> Any:
        """`work`, where an expression that has to wait pauses the task; `subject` is what a review is about."""
        try:
            return await work
        except Suspended as suspended:
            raise PausedError(key, suspended.call, session, subject, function=function) from None

    def perform(self, key: str) -> Perform:
        """Makes the calls of expressions in the session `key`; what they gave is durable before it is used."""

        async def perform(call: Call) -> Json:
            if call.function == "review":
                _check_reviewer(call)
                raise Suspended(call)
            at = self.run.now()
            try:
                value = await self._reach_files(call)
            except MountError as error:
                await self.append(Answered(at=at, key=key, call=call, error=str(error)))
                raise CallFailed(str(error)) from None
            await self.append(Answered(at=at, key=key, call=call, value=value))
            return value

        return perform

    async def _reach_files(self, call: Call) -> Json:
        if self.files is None:
            raise MountError("this agent has no mount")
        reach: dict[str, Callable[..., Awaitable[str]]] = {
            "mount.read": self.files.read,
            "mount.write": self.files.write,
        }
        return await reach[call.function](*call.arguments)


def _check_reviewer(call: Call) -> None:
    try:
        reviewer_of(call)
    except ValueError as error:
        raise CallFailed(str(error)) from None


def refusal(outcome: Blocked | Locked) -> str:
    """What is said of a call or an input that steps have stopped."""
    return outcome.message if isinstance(outcome, Blocked) else outcome.reason
