"""Capability calls: from what the model, a step or a script wants to what it is told, each phase durable in its turn.

A call that has finished is never executed again. One that had begun when its process died is, with the same `call`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from errands.agents.loop.course import Course, refusal
from errands.agents.loop.executing import Executing
from errands.agents.loop.outcomes import PausedError, TaskOverError
from errands.agents.loop.plan import Repertoire, Routine
from errands.agents.loop.progress import MakeCalls
from errands.agents.loop.scripts import Scripts
from errands.agents.manifests.functions import ArgumentsError
from errands.policy.cel import Call, CallFailed, CelError, Session
from errands.policy.cel.evaluators import Evaluators
from errands.policy.cel.values import Json
from errands.policy.limits import Limits, check_before_capability
from errands.policy.pipeline import Blocked, Invoke, Locked, Passed, StepCall, Subject
from errands.policy.records import (
    CallEnded,
    Caller,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    CapabilityShown,
    FunctionCall,
)

#: Calls of one answer that run at the same time; more wait.
MOST_SIDE_BY_SIDE = 16
#: Calls of one answer; of one that has more, none is made.
MOST_CALLS = 256


class Calls:
    """Makes the calls of one turn."""

    def __init__(
        self,
        course: Course,
        repertoire: Repertoire,
        limits: Limits,
        *,
        executing: Executing,
        evaluators: Evaluators,
    ) -> None:
        self._course = course
        self._run = course.run
        self._progress = course.progress
        self._repertoire = repertoire
        self._limits = limits
        self._executing = executing
        self._side_by_side = asyncio.Semaphore(MOST_SIDE_BY_SIDE)
        self._scripts = Scripts(course, repertoire, evaluators, self._in_script)

    # All calls of one answer

    async def make(self, wanted: MakeCalls) -> None:
        """Makes the calls of an answer, side by side where nothing is against it, until the model can be told of all.

        Raises `TaskOverError` or `PausedError` when one of them leads there; the others have come to their ends.
        """
        if len(wanted.answer.calls) > MOST_CALLS:
            self._refuse(wanted.calls)
            return
        making: list[asyncio.Task[None]] = []
        for index, call in enumerate(wanted.calls):
            first = [making[other] for other in self._to_wait_for(wanted.calls, index)]
            making.append(asyncio.create_task(self._make_after(first, call, wanted.answer.at)))
        results = await asyncio.gather(*making, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise min(errors, key=_rank)

    def _refuse(self, calls: Sequence[FunctionCall]) -> None:
        content = {"error": f"these are too many calls at once, and none was made; make {MOST_CALLS} at most"}
        at = self._run.now()
        self._course.note(
            *(CapabilityShown(at=at, call=call.id, function=call.name, content=content) for call in calls)
        )

    def _to_wait_for(self, calls: Sequence[FunctionCall], index: int) -> list[int]:
        """The calls of the same answer that must be over first."""
        if any(map(self._repertoire.is_script, calls[: index + 1])):
            # Nobody knows what a script will call.
            return list(range(index))
        routine = self._repertoire.offered(calls[index].name)
        if routine is None:
            return []
        if routine.looks_back:
            return list(range(index))
        if not self._executing.is_synchronous(routine):
            return []
        others = [self._repertoire.offered(call.name) for call in calls[:index]]
        return [n for n, other in enumerate(others) if other and other.function.ref == routine.function.ref]

    async def _make_after(self, first: Sequence[asyncio.Task[None]], call: FunctionCall, at: str) -> None:
        if first:
            await asyncio.wait(first)
            if any(task.cancelled() or task.exception() for task in first):
                raise _Skipped
        async with self._side_by_side:
            await self._make(call, at)

    async def _make(self, call: FunctionCall, at: str) -> None:
        routine = self._repertoire.offered(call.name)
        if routine is None:
            content = await self._scripts.run(call, at) if self._repertoire.is_script(call) else self._unknown(call)
            self._course.note(
                CapabilityShown(at=self._run.now(), call=call.id, function=call.name, content=content, turn=True)
            )
            return
        ended = await self._ended(call, routine, at, "model")
        content = await self._content(ended, routine)
        self._course.note(CapabilityShown(at=self._run.now(), call=call.id, function=routine.name, content=content))

    def _unknown(self, call: FunctionCall) -> Json:
        names = ", ".join(offer.name for offer in self._repertoire.offers) or "none"
        return {"error": f"there is no function {call.name[:80]!r}; there are: {names}"}

    async def _in_script(self, call: FunctionCall, routine: Routine, at: str) -> Json:
        return await self._result(await self._ended(call, routine, at, "script"), routine)

    # One call

    async def _ended(self, call: FunctionCall, routine: Routine, at: str, caller: Caller) -> CallEnded:
        """How the call ended, now or before: steps, execution, record."""
        known = self._progress.ended.get(call.id)
        if known is not None:
            return known
        if routine.refused:
            return await self._refused(call.id, routine, call.arguments or {}, caller)
        began = self._begun_before(call.id, routine)
        if began is None:
            stopped_or_began = await self._begin(call, routine, at, caller)
            if not isinstance(stopped_or_began, CapabilityBegan):
                return stopped_or_began
            began = stopped_or_began
        return await self._executing.execute(began, routine)

    async def _begin(
        self, call: FunctionCall, routine: Routine, at: str, caller: Caller
    ) -> CapabilityBegan | CapabilityErrored | CapabilityRestricted:
        """Everything before the execution."""
        self._check_may_begin()
        now = self._run.now()
        place = self._course.place(f"{call.id}:before", routine.form)
        key = self._course.session_key(place)
        session = self._progress.session(key, at)
        try:
            if call.arguments is None:
                cut = ", because the answer was cut off before its end; write less" if self._progress.is_cut else ""
                raise ArgumentsError(f"the arguments are no JSON object{cut}")
            bound = await self._bound_in(session, routine, at)
            arguments = await routine.arguments.resolve(call.arguments, bound)
        except ArgumentsError as error:
            return await self._errored(call.id, routine, call.arguments or {}, str(error), caller)
        outcome = await self._before(call.id, routine, arguments, session, place)
        if not isinstance(outcome, Passed):
            restricted = CapabilityRestricted(
                at=now,
                call=call.id,
                function=routine.name,
                arguments=arguments,
                caller=caller,
                reason=refusal(outcome),
            )
            if isinstance(outcome, Locked):
                self._course.over("restricted", outcome.reason, restricted)
            await self._course.append(restricted)
            return restricted
        if outcome.transformed:
            free = {name: value for name, value in outcome.value.items() if name not in bound}
            try:
                arguments = await routine.arguments.resolve(free, bound)
            except ArgumentsError as error:
                return await self._errored(call.id, routine, arguments, str(error), caller)
        return await self._begun(call.id, routine, arguments, caller)

    async def _begun(self, call: str, routine: Routine, arguments: dict[str, Any], caller: Caller) -> CapabilityBegan:
        self._check_may_begin()
        began = CapabilityBegan(
            at=self._run.now(),
            call=call,
            function=routine.name,
            arguments=arguments,
            caller=caller,
            form=self._course.session_key(routine.form),
        )
        await self._course.append(began)
        return began

    def _begun_before(self, call: str, routine: Routine) -> CapabilityBegan | None:
        """The call, if it has begun as what it is now; otherwise everything is decided anew."""
        began = self._progress.began.get(call)
        form = self._course.session_key(routine.form)
        if began is None or began.form in (None, form) or self._is_handed_down(began, routine):
            return began
        self._progress.forget(call)
        return None

    def _is_handed_down(self, began: CapabilityBegan, routine: Routine) -> bool:
        """Whether another agent is at work on it, or may be, whatever has become of the function.

        A remote one has said so; the child of an agent of this server is found again though nobody has noted it.
        """
        if began.call in self._progress.children:
            return routine.is_delegation
        known = self._run.context.capabilities.get(began.function)
        return routine.function.target == "agent" and known is not None and known.are_delegations

    def _check_may_begin(self) -> None:
        """Not when a limit is in the way, nor when another call has ended the task meanwhile."""
        if self._progress.over is not None:
            raise TaskOverError(self._progress.over)
        context = self._run.context
        under_way = len(self._progress.calls) - context.meta.count
        self._course.check(check_before_capability(self._limits, context, self._run.now_ms(), under_way=under_way))

    async def _bound_in(self, session: Session, routine: Routine, at: str) -> dict[str, Json]:
        """The values of the bindings, found out once for all steps of a call: what is reviewed is what is executed."""
        remembered = Call("bound", ())
        if remembered.key not in session.finished:
            session.settle(remembered, await self._bound(routine, at))
        values: dict[str, Json] = session.finished[remembered.key].value
        return values

    async def _bound(self, routine: Routine, at: str, without: Collection[str] = ()) -> dict[str, Json]:
        """The values of the bindings. Raises `ArgumentsError`, which does not tell what they are about."""
        variables = self._course.binding_variables()
        bound: dict[str, Json] = {}
        for name, binding in routine.bindings.items():
            if name in without:
                continue
            try:
                bound[name] = await binding.value(variables, Session(at))
            except CelError:
                raise ArgumentsError(f"{name}: has no value yet; something else has to be done first") from None
        return bound

    async def sealed(self, at: str) -> dict[str, dict[str, list[Json]]]:
        """The values of all bindings as they are now, by tool and parameter; see `errands.policy.allow_list`."""
        found: dict[str, dict[str, list[Json]]] = {}
        variables = self._course.binding_variables()
        for routine in self._repertoire.routines.values():
            for name, binding in routine.bindings.items() if not routine.is_delegation else ():
                values = found.setdefault(routine.function.ref, {}).setdefault(name, [])
                with suppress(CelError):
                    values[:] = [await binding.value(variables, Session(at))]
        return found

    async def _before(
        self, call: str, routine: Routine, arguments: dict[str, Json], session: Session, place: str
    ) -> Any:
        key = self._course.session_key(place)
        lists = [routine.before]
        if self._run.context.is_first(routine.name):
            lists.insert(0, routine.before_first)
        passed = Passed(arguments)
        for steps in lists:
            subject = Subject(
                context=self._run.plain,
                input=passed.value,
                action=routine.function.action,
                operation=routine.function.operation,
                bound=frozenset(routine.bindings),
            )
            invoke = self.invoker(place, session.now)
            outcome = await self._course.steps(
                steps, subject, session, key=key, call=call, function=routine.name, invoke=invoke
            )
            if not isinstance(outcome, Passed):
                return outcome
            passed = Passed(outcome.value, passed.transformed or outcome.transformed)
        return passed

    async def _refused(
        self, call: str, routine: Routine, arguments: dict[str, Any], caller: Caller
    ) -> CapabilityRestricted:
        """It cannot be allowed: see `Plan.unruled`, which has told the operator why."""
        self._check_may_begin()
        record = CapabilityRestricted(
            at=self._run.now(),
            call=call,
            function=routine.name,
            arguments=arguments,
            caller=caller,
            reason=f"{routine.name} is switched off: its rules do not fit what its service offers now",
        )
        await self._course.append(record)
        return record

    async def _errored(
        self, call: str, routine: Routine, arguments: dict[str, Any], error: str, caller: Caller
    ) -> CapabilityErrored:
        """It failed before it was executed."""
        record = CapabilityErrored(
            at=self._run.now(),
            call=call,
            function=routine.name,
            arguments=arguments,
            caller=caller,
            error=error,
            executed=False,
        )
        await self._course.append(record)
        return record

    # What becomes of the result

    async def _content(self, ended: CallEnded, routine: Routine) -> Json:
        """What is told of a call: its result as the steps after it leave it, or an error."""
        try:
            return await self._result(ended, routine)
        except CallFailed as error:
            return {"error": str(error)}

    async def _result(self, ended: CallEnded, routine: Routine) -> Json:
        """Raises `CallFailed` when there is none."""
        if isinstance(ended, CapabilityErrored):
            raise CallFailed(ended.error)
        if isinstance(ended, CapabilityRestricted):
            raise CallFailed(ended.reason)
        place = self._course.place(f"{ended.call}:after", routine.form)
        key = self._course.session_key(place)
        subject = Subject(
            context=self._run.plain,
            input=ended.arguments,
            output=ended.output,
            action=routine.function.action,
            operation=routine.function.operation,
            bound=frozenset(routine.bindings),
        )
        session = self._progress.session(key, ended.at)
        invoke = self.invoker(place, ended.at)
        outcome = await self._course.steps(
            routine.after, subject, session, key=key, call=ended.call, function=routine.name, invoke=invoke
        )
        if isinstance(outcome, Locked):
            self._course.over("restricted", outcome.reason)
        if isinstance(outcome, Blocked):
            raise CallFailed(outcome.message)
        return outcome.value

    # Calls by steps

    def invoker(self, place: str, at: str) -> Invoke:
        """Makes the calls of `invoke` steps at `place`: straight to the tool, and once, whatever the policy is."""

        async def invoke(wanted: StepCall) -> Json:
            call = f"{place}:{wanted.step}"
            ended = self._progress.ended.get(call)
            if ended is None:
                ended = await self._invoked(call, wanted, at)
            if isinstance(ended, CapabilityFinished):
                return ended.output
            raise CallFailed(ended.error if isinstance(ended, CapabilityErrored) else ended.reason)

        return invoke

    async def _invoked(self, call: str, wanted: StepCall, at: str) -> CallEnded:
        routine = self._repertoire.invoked(wanted.tool, wanted.capability)
        if routine is None:
            raise CallFailed(f"{wanted.tool} offers no {wanted.capability}")
        if routine.refused:
            return await self._refused(call, routine, wanted.arguments, "step")
        began = self._begun_before(call, routine)
        if began is None:
            try:
                bound = {**await self._bound(routine, at, wanted.arguments), **wanted.arguments}
                arguments = await routine.arguments.resolve({}, bound)
            except ArgumentsError as error:
                return await self._errored(call, routine, wanted.arguments, str(error), "step")
            began = await self._begun(call, routine, arguments, "step")
        return await self._executing.execute(began, routine)


class _Skipped(Exception):
    """A call that had to wait for another that did not come to its end: it is made another time."""


def _rank(error: BaseException) -> int:
    """Which of several errors matters: one that nobody expected, then the end of the task, then a pause."""
    expected = (TaskOverError, PausedError, _Skipped)
    return next((rank for rank, kind in enumerate(expected, 1) if isinstance(error, kind)), 0)
