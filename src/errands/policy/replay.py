"""Replays a task under a policy, for `errands policy test`: what would it have decided? Nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from errands.clock import from_iso
from errands.policy import limits, records
from errands.policy.cel import CallFailed, Session, Suspended
from errands.policy.cel.values import Json
from errands.policy.context_object import Context
from errands.policy.document import POLICY, CompiledPolicy
from errands.policy.records import AnyRecord
from errands.policy.steps import Phase, StepCall, Steps, Subject, run_steps


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rule would have decided at one moment."""

    at: str
    #: Such as `input`, `model acme/large`, `search` or `output`.
    moment: str
    #: The name of the rule.
    step: str
    #: As `Decided` has it, or `would ask USER`: then the replay continues as if that user had approved.
    outcome: str
    detail: str = ""
    #: What the rule of this name decided then; None when there was none.
    was: str | None = None

    @property
    def stops(self) -> bool:
        """Return whether it would have blocked the call or ended the task."""
        return self.outcome == "exceeded" or self.outcome.endswith((": block", ": lock_task"))

    @property
    def differs(self) -> bool:
        return self.was != self.outcome


async def replay_policy(policy: CompiledPolicy, known: Iterable[AnyRecord]) -> list[RuleVerdict]:
    """Return the verdicts in the order of the records. Raises ValueError when these do not begin with `Started`."""
    others = list(known)
    started = others.pop(0) if others else None
    if not isinstance(started, records.Started):
        raise ValueError("the task has no records: its agent has recorded nothing, and there was no policy")
    replay = _Replay(policy, started)
    for record in others:
        if isinstance(record, records.Decided) and record.policy:
            # Decisions of the agent's own rules have no version.
            replay.decided.setdefault((record.step.removeprefix(POLICY), record.call), []).append(record.outcome)
    for record in others:
        await replay.meet(record)
    return replay.verdicts


class _Replay:
    def __init__(self, policy: CompiledPolicy, started: records.Started) -> None:
        self._policy = policy
        known = {*started.functions, *started.delegations}
        new = tuple(name for name in policy.capabilities if name not in known)
        self._context = Context(msgspec.structs.replace(started, functions=started.functions + new))
        #: Calls that began and are not over.
        self._under_way: set[str] = set()
        self.verdicts: list[RuleVerdict] = []
        #: Whether the answer was checked when it was held back; then it is not checked again when it is given.
        self._held = False
        #: What policies decided then, in order, by the step or limit and the call that it was about, if any.
        self.decided: dict[tuple[str, str | None], list[str]] = {}

    async def meet(self, record: AnyRecord) -> None:
        """Take a record, and add what the policy decides at that moment."""
        policy, context, at = self._policy, self._context, record.at
        match record:
            case records.InputArrived():
                context.take(record)
                await self._boundary(at, policy.before, input=record.values)
            case records.OutputHeld():
                await self._boundary(at, policy.after, output=record.values)
                self._held = True
            case records.OutputGiven():
                if not self._held:
                    await self._boundary(at, policy.after, output=record.values)
                self._held = False
                context.take(record)
            case records.ModelCalled():
                moment = f"model {record.model}"
                self._limit(at, moment, limits.check_before_model(policy.limits, context, from_iso(at)))
                context.take(record)
                self._limit(at, moment, limits.check_after_model(policy.limits, context))
            case records.CapabilityBegan() | records.CapabilityRestricted():
                for phase in (Phase.BEFORE_FIRST, Phase.BEFORE):
                    if phase is Phase.BEFORE or context.is_first(record.function):
                        await self._around(record, phase, input=record.arguments)
                others = len(self._under_way - {record.call})
                self._limit(
                    at,
                    record.function,
                    limits.check_before_capability(policy.limits, context, from_iso(at), under_way=others),
                )
                if isinstance(record, records.CapabilityBegan):
                    self._under_way.add(record.call)
                context.take(record)
            case records.CapabilityFinished():
                self._under_way.discard(record.call)
                context.take(record)
                await self._around(record, Phase.AFTER, input=record.arguments, output=record.output)
            case records.CapabilityErrored():
                self._under_way.discard(record.call)
                context.take(record)
            case _:
                context.take(record)

    async def _boundary(self, at: str, steps: Steps, **value: Json) -> None:
        [moment] = value
        self._limit(at, moment, limits.check_age(self._policy.limits, self._context, from_iso(at)))
        await self._run(at, moment, steps, None, Subject(context=self._context.plain, **value))

    async def _around(self, record: records.CapabilityBegan | records.CallEnded, phase: Phase, **values: Json) -> None:
        if record.caller != "step":  # What a step calls has no steps around it.
            subject = Subject(context=self._context.plain, action=record.function, **values)
            steps = self._policy.steps(record.function, phase)
            await self._run(record.at, record.function, steps, record.call, subject)

    async def _run(self, at: str, moment: str, steps: Steps, about: str | None, subject: Subject) -> None:
        session = Session(now=at)
        while True:
            try:
                outcome = await run_steps(steps, subject, session, invoke=_refuse_invoke)
            except Suspended as suspended:
                call = suspended.call
                asked = f"would ask {call.arguments[0]}"
                self.verdicts.append(RuleVerdict(at=at, moment=moment, step=call.place, outcome=asked))
                session.settle(call, True)
                continue
            for decision in outcome.decisions:
                self._add(at, moment, decision.step, about, decision.summary, decision.detail)
            return

    def _limit(self, at: str, moment: str, exceeded: limits.Exceeded | None) -> None:
        if exceeded is not None:
            self._add(at, moment, f"limits.{exceeded.limit}", None, "exceeded", exceeded.message)

    def _add(self, at: str, moment: str, step: str, about: str | None, outcome: str, detail: str) -> None:
        decided = self.decided.get((step, about))
        was = decided.pop(0) if decided else None
        verdict = RuleVerdict(at=at, moment=moment, step=step, outcome=outcome, detail=detail, was=was)
        self.verdicts.append(verdict)


async def _refuse_invoke(invocation: StepCall) -> None:
    raise CallFailed("a replay does not invoke tools")
