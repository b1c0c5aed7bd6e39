"""What a policy would have decided about a task that has run, from its records: nothing is run, asked or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from errands.clock import from_iso
from errands.policy.cel import CallFailed, Session, Suspended
from errands.policy.cel.values import Json
from errands.policy.context import Context, CurrentContext, start
from errands.policy.document import CompiledPolicy
from errands.policy.limits import (
    Exceeded,
    check_after_model,
    check_age,
    check_before_capability,
    check_before_model,
)
from errands.policy.pipeline import Decision, Invocation, Subject, run_steps
from errands.policy.records import (
    AnyRecord,
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
from errands.policy.steps import Phase, Steps

_Call = CapabilityBegan | CapabilityErrored | CapabilityFinished | CapabilityRestricted


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rule would have decided at one moment."""

    at: str
    #: Such as `input`, `model acme/large`, `search` or `output`.
    moment: str
    #: The rule, by its place.
    step: str
    #: As `Decided` has it, or `would ask USER`: then the replay goes on as if that user had approved.
    outcome: str
    detail: str = ""
    #: What was decided then by the rule at this place; None when there was none.
    was: str | None = None

    @property
    def stops(self) -> bool:
        """Whether the call would have been blocked, or the task ended."""
        return self.outcome == "exceeded" or self.outcome.endswith((": block", ": lock_task"))

    @property
    def differs(self) -> bool:
        return self.was != self.outcome


async def replay_policy(policy: CompiledPolicy, records: Iterable[AnyRecord]) -> list[Verdict]:
    """In the order in which things happened. ValueError when the records do not begin with `Started`."""
    records = list(records)
    if not records or not isinstance(records[0], Started):
        raise ValueError("the task has no records: its agent has recorded nothing, and there was no policy")
    return await _Replay(policy, records[0]).all(records)


class _Replay:
    def __init__(self, policy: CompiledPolicy, started: Started) -> None:
        self._policy = policy
        known = {*started.functions, *started.delegations}
        new = tuple(name for name in policy.capabilities if name not in known)
        self._current = CurrentContext(start(msgspec.structs.replace(started, functions=started.functions + new)))
        #: Calls that began and are not over.
        self._under_way: set[str] = set()
        self._verdicts: list[Verdict] = []
        self._held = False

    @property
    def _context(self) -> Context:
        return self._current.context

    async def all(self, records: list[AnyRecord]) -> list[Verdict]:
        decided = _decided(records)
        for record in records[1:]:
            before = len(self._verdicts)
            await self._meet(record)
            call = getattr(record, "call", None)
            for index, verdict in enumerate(self._verdicts[before:], before):
                was = decided.get((verdict.step, call if isinstance(call, str) else None), [])
                self._verdicts[index] = msgspec.structs.replace(verdict, was=was.pop(0) if was else None)
        return self._verdicts

    async def _meet(self, record: AnyRecord) -> None:
        """The record, and what the policy says at that moment."""
        match record:
            case InputArrived():
                self._current.fold(record)
                await self._boundary(record.at, "input", self._policy.before, input=self._context.input[-1])
            case OutputHeld(values=values):
                await self._boundary(record.at, "output", self._policy.after, output=values)
            case OutputGiven(values=values):
                if not self._held:
                    await self._boundary(record.at, "output", self._policy.after, output=values)
                self._current.fold(record)
            case ModelCalled():
                self._model(record)
            case CapabilityBegan() | CapabilityRestricted():
                await self._before(record)
            case CapabilityFinished():
                self._under_way.discard(record.call)
                self._current.fold(record)
                steps = self._policy.steps(record.function, Phase.AFTER)
                await self._steps(record, record.function, steps, input=record.arguments, output=record.output)
            case CapabilityErrored():
                self._under_way.discard(record.call)
                self._current.fold(record)
            case _:
                self._current.fold(record)
        self._held = isinstance(record, OutputHeld) or (self._held and not isinstance(record, OutputGiven))

    async def _boundary(self, at: str, moment: str, steps: Steps, **value: Json) -> None:
        self._limit(at, moment, check_age(self._policy.limits, self._context, from_iso(at)))
        await self._run(at, moment, steps, **value)

    def _model(self, record: ModelCalled) -> None:
        limits, moment = self._policy.limits, f"model {record.model}"
        self._limit(record.at, moment, check_before_model(limits, self._context, from_iso(record.at)))
        self._current.fold(record)
        self._limit(record.at, moment, check_after_model(limits, self._context))

    async def _before(self, record: CapabilityBegan | CapabilityRestricted) -> None:
        function = record.function
        if self._context.is_first(function):
            await self._steps(
                record, function, self._policy.steps(function, Phase.BEFORE_FIRST), input=record.arguments
            )
        await self._steps(record, function, self._policy.steps(function, Phase.BEFORE), input=record.arguments)
        exceeded = check_before_capability(
            self._policy.limits, self._context, from_iso(record.at), under_way=len(self._under_way)
        )
        self._limit(record.at, function, exceeded)
        if isinstance(record, CapabilityBegan):
            self._under_way.add(record.call)
        self._current.fold(record)

    async def _steps(self, record: _Call, moment: str, steps: Steps, **values: Json) -> None:
        await self._run(record.at, moment, steps, action=record.function, **values)

    async def _run(self, at: str, moment: str, steps: Steps, **subject: Json) -> None:
        session = Session(now=at)
        looked_at = Subject(context=self._current.plain, **subject)
        while True:
            try:
                outcome = await run_steps(steps, looked_at, session, invoke=_nothing)
            except Suspended as suspended:
                call = suspended.call
                asked = f"would ask {call.arguments[0]}"
                self._add(at, moment, call.place, asked, f"{call} is taken as approved")
                session.settle(call, True)
                continue
            for decision in outcome.decisions:
                self._add(at, moment, decision.step, told(decision), decision.detail)
            return

    def _limit(self, at: str, moment: str, exceeded: Exceeded | None) -> None:
        if exceeded is not None:
            self._add(at, moment, f"limits.{exceeded.limit}", "exceeded", exceeded.message)

    def _add(self, at: str, moment: str, step: str, outcome: str, detail: str) -> None:
        self._verdicts.append(Verdict(at=at, moment=moment, step=step, outcome=outcome, detail=detail))


def told(decision: Decision) -> str:
    """The outcome of a decision as the decision log has it: with what was done about a failure."""
    return decision.outcome if decision.on_fail is None else f"{decision.outcome}: {decision.on_fail}"


def _decided(records: list[AnyRecord]) -> dict[tuple[str, str | None], list[str]]:
    """What was decided, by rule and call, in order."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for record in records:
        if isinstance(record, Decided):
            found.setdefault((record.step, record.call), []).append(record.outcome)
    return found


async def _nothing(invocation: Invocation) -> None:
    raise CallFailed("nothing is invoked in a replay")


def stopped(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Those by which a call would have been blocked, or the task ended."""
    return (verdict for verdict in verdicts if verdict.stops)
