"""What a policy would have decided about a task that has run, for `errands policy test`. Nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from errands.clock import from_iso
from errands.policy.cel import CallFailed, Session, Suspended
from errands.policy.cel.values import Json
from errands.policy.context import Context
from errands.policy.document import POLICY, CompiledPolicy
from errands.policy.limits import (
    Exceeded,
    check_after_model,
    check_age,
    check_before_capability,
    check_before_model,
)
from errands.policy.records import (
    AnyRecord,
    CallEnded,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    Decided,
    InputArrived,
    ModelCalled,
    OutputGiven,
    OutputHeld,
    Started,
)
from errands.policy.steps import Phase, StepCall, Steps, Subject, run_steps

#: A step or limit, and the call that it was about, if any.
_Rule = tuple[str, str | None]
_Call = CapabilityBegan | CallEnded


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rule would have decided at one moment."""

    at: str
    #: Such as `input`, `model acme/large`, `search` or `output`.
    moment: str
    #: The name of the rule.
    step: str
    #: As `Decided` has it, or `would ask USER`: then the replay goes on as if that user had approved.
    outcome: str
    detail: str = ""
    #: What the rule of this name decided then; None when there was none.
    was: str | None = None

    @property
    def stops(self) -> bool:
        """Whether it would have blocked the call or ended the task."""
        return self.outcome == "exceeded" or self.outcome.endswith((": block", ": lock_task"))

    @property
    def differs(self) -> bool:
        return self.was != self.outcome


async def replay_policy(policy: CompiledPolicy, records: Iterable[AnyRecord]) -> list[RuleVerdict]:
    """Return the verdicts in the order of the records. Raises ValueError when these do not begin with `Started`."""
    records = list(records)
    if not records or not isinstance(records[0], Started):
        raise ValueError("the task has no records: its agent has recorded nothing, and there was no policy")
    replay = _Replay(policy, records[0], _decided(records))
    for record in records[1:]:
        await replay.meet(record)
    return replay.verdicts


class _Replay:
    def __init__(self, policy: CompiledPolicy, started: Started, decided: dict[_Rule, list[str]]) -> None:
        self._policy = policy
        self._decided = decided
        known = {*started.functions, *started.delegations}
        new = tuple(name for name in policy.capabilities if name not in known)
        self._context = Context(msgspec.structs.replace(started, functions=started.functions + new))
        #: Calls that began and are not over.
        self._under_way: set[str] = set()
        self.verdicts: list[RuleVerdict] = []
        #: Whether the answer was checked when it was held back, so that it is not when it is given.
        self._held = False

    async def meet(self, record: AnyRecord) -> None:
        """Take a record, and add what the policy decides at that moment."""
        match record:
            case InputArrived():
                self._context.take(record)
                await self._boundary(record.at, "input", self._policy.before, input=record.values)
            case OutputHeld(values=values):
                await self._boundary(record.at, "output", self._policy.after, output=values)
            case OutputGiven(values=values):
                if not self._held:
                    await self._boundary(record.at, "output", self._policy.after, output=values)
                self._context.take(record)
            case ModelCalled():
                self._model(record)
            case CapabilityBegan() | CapabilityRestricted():
                await self._before(record)
            case CapabilityFinished():
                self._under_way.discard(record.call)
                self._context.take(record)
                if record.caller != "step":
                    steps = self._policy.steps(record.function, Phase.AFTER)
                    await self._steps(record, record.function, steps, input=record.arguments, output=record.output)
            case CapabilityErrored():
                self._under_way.discard(record.call)
                self._context.take(record)
            case _:
                self._context.take(record)
        self._held = isinstance(record, OutputHeld) or (self._held and not isinstance(record, OutputGiven))

    async def _boundary(self, at: str, moment: str, steps: Steps, **value: Json) -> None:
        self._limit(at, moment, check_age(self._policy.limits, self._context, from_iso(at)))
        await self._run(at, moment, steps, **value)

    def _model(self, record: ModelCalled) -> None:
        limits, moment = self._policy.limits, f"model {record.model}"
        self._limit(record.at, moment, check_before_model(limits, self._context, from_iso(record.at)))
        self._context.take(record)
        self._limit(record.at, moment, check_after_model(limits, self._context))

    async def _before(self, record: CapabilityBegan | CapabilityRestricted) -> None:
        function = record.function
        # What a step calls has no steps around it.
        phases = [Phase.BEFORE_FIRST, Phase.BEFORE] if record.caller != "step" else []
        for phase in phases:
            if phase is Phase.BEFORE or self._context.is_first(function):
                await self._steps(record, function, self._policy.steps(function, phase), input=record.arguments)
        exceeded = check_before_capability(
            self._policy.limits, self._context, from_iso(record.at), under_way=len(self._under_way - {record.call})
        )
        self._limit(record.at, function, exceeded)
        if isinstance(record, CapabilityBegan):
            self._under_way.add(record.call)
        self._context.take(record)

    async def _steps(self, record: _Call, moment: str, steps: Steps, **values: Json) -> None:
        await self._run(record.at, moment, steps, record.call, action=record.function, **values)

    async def _run(self, at: str, moment: str, steps: Steps, about: str | None = None, **subject: Json) -> None:
        session = Session(now=at)
        looked_at = Subject(context=self._context.plain, **subject)
        while True:
            try:
                outcome = await run_steps(steps, looked_at, session, invoke=_nothing)
            except Suspended as suspended:
                call = suspended.call
                asked = f"would ask {call.arguments[0]}"
                self.verdicts.append(RuleVerdict(at=at, moment=moment, step=call.place, outcome=asked))
                session.settle(call, True)
                continue
            for decision in outcome.decisions:
                self._add(at, moment, (decision.step, about), decision.summary, decision.detail)
            return

    def _limit(self, at: str, moment: str, exceeded: Exceeded | None) -> None:
        if exceeded is not None:
            self._add(at, moment, (f"limits.{exceeded.limit}", None), "exceeded", exceeded.message)

    def _add(self, at: str, moment: str, rule: _Rule, outcome: str, detail: str) -> None:
        was = self._decided.get(rule)
        verdict = RuleVerdict(
            at=at, moment=moment, step=rule[0], outcome=outcome, detail=detail, was=was.pop(0) if was else None
        )
        self.verdicts.append(verdict)


def _decided(records: list[AnyRecord]) -> dict[_Rule, list[str]]:
    """Return what policies decided then, in order. Decisions of the agent's own rules have no version."""
    found: dict[_Rule, list[str]] = {}
    for record in records:
        if isinstance(record, Decided) and record.policy:
            found.setdefault((record.step.removeprefix(POLICY), record.call), []).append(record.outcome)
    return found


async def _nothing(invocation: StepCall) -> None:
    raise CallFailed("a replay does not invoke tools")
