"""Asking a policy, remembering while it waits, and writing down what it decides."""

from __future__ import annotations

import msgspec

from errands.policy.cel import Call, CallFailed, Session, Suspended
from errands.policy.document import CompiledPolicy
from errands.policy.limits import Exceeded
from errands.policy.pipeline import Outcome, StepCall, StepSuspended, Subject, run_steps
from errands.policy.records import Answered, Decided, Waiting
from errands.policy.steps import Steps
from errands.runtime.decisions import log_decision
from errands.runtime.review_messages import reviewer_of
from errands.runtime.run import Run


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
