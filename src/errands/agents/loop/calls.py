"""The calls that the model, a step or a script wants: from their arguments to the result that is returned.

Each phase of a call is durable before the next one begins. A call that has finished is never executed again. One that
had begun when its process died is executed again with the same id.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

import msgspec

from errands import tracing
from errands.agents.delegation import DelegationError
from errands.agents.loop.overseer import ManifestOverseer
from errands.agents.loop.plan import Repertoire, Routine
from errands.agents.manifests.functions import ArgumentsError
from errands.agents.script import EXPRESSION, find_file, run_script
from errands.agents.tools.base import BrokenToolError, Invocation, ToolError
from errands.agents.tools.toolbox import ToolTurn
from errands.clock import from_iso
from errands.errors import CapabilityBlockedError, LeaseLostError, StorageError, TaskStoppedError
from errands.policy import records
from errands.policy.cel import Call, CallFailed, CelError, Session, Suspended, Variables
from errands.policy.cel.evaluators import Evaluators
from errands.policy.cel.values import Json, as_text
from errands.policy.enforcement import OverseenCall, ReviewPendingError
from errands.policy.records import CallEnded, Caller, CapabilityBegan, CapabilityErrored, FunctionCall
from errands.policy.run import Run
from errands.policy.steps import Invoke, StepCall

#: Calls of one answer that run at the same time; more wait.
MOST_SIDE_BY_SIDE = 16
#: Calls of one answer; of an answer with more, none is made.
MOST_CALLS = 256
#: What the records of a call have in common.
_COMMON = ("at", "call", "function", "arguments", "caller")


class Calls:
    """Makes the calls of one turn."""

    def __init__(
        self, overseer: ManifestOverseer, run: Run, repertoire: Repertoire, tools: ToolTurn, evaluators: Evaluators
    ) -> None:
        self._overseer = overseer
        self._run = run
        self._progress = overseer.progress
        self._repertoire = repertoire
        self._tools = tools
        self._evaluators = evaluators
        self._side_by_side = asyncio.Semaphore(MOST_SIDE_BY_SIDE)

    # All calls of one answer

    async def make(self, answer: records.ModelCalled, wanted: Sequence[FunctionCall]) -> None:
        """Make calls of an answer, side by side where nothing forbids it, until the model can have all results.

        Raises `TaskStoppedError` or `ReviewPendingError` when one of them leads there, once the others have ended.
        """
        if len(answer.calls) > MOST_CALLS:
            content = {"error": f"these are too many calls at once, and none was made; make {MOST_CALLS} at most"}
            for call in wanted:
                self._show(call.id, call.name, content)
            return
        making: list[asyncio.Task[None]] = []
        for index, call in enumerate(wanted):
            first = [making[other] for other in self._to_wait_for(wanted, index)]
            making.append(asyncio.create_task(self._make_after(first, call, answer.at)))
        results = await asyncio.gather(*making, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            # An unexpected error matters most, then the end of the task, then a review.
            expected = (TaskStoppedError, ReviewPendingError, _Skipped)
            unexpected = [error for error in errors if not isinstance(error, expected)]
            raise next(iter(unexpected + [error for kind in expected for error in errors if isinstance(error, kind)]))

    def _to_wait_for(self, calls: Sequence[FunctionCall], index: int) -> list[int]:
        """Return the calls of the same answer that must be over first."""
        if any(map(self._repertoire.is_script, calls[: index + 1])):
            # A script may call anything.
            return list(range(index))
        routine = self._repertoire.offered(calls[index].name)
        if routine is None:
            return []
        if routine.looks_back:
            return list(range(index))
        if routine.is_delegation or not self._tools.is_synchronous(routine.function):
            return []
        others = [self._repertoire.offered(call.name) for call in calls[:index]]
        return [n for n, other in enumerate(others) if other and other.function.ref == routine.function.ref]

    async def _make_after(self, first: Sequence[asyncio.Task[None]], call: FunctionCall, at: str) -> None:
        if first:
            await asyncio.wait(first)
            if any(task.cancelled() or task.exception() for task in first):
                raise _Skipped
        async with self._side_by_side:
            routine = self._repertoire.offered(call.name)
            if routine is not None:
                try:
                    content = await self._result(await self._ended(call, routine, at, "model"), routine)
                except CallFailed as error:
                    content = {"error": str(error)}
                self._show(call.id, routine.name, content)
            elif self._repertoire.is_script(call):
                self._show(call.id, call.name, await self._script(call, at), takes_turn=True)
            else:
                names = ", ".join(offer.name for offer in self._repertoire.offers) or "none"
                content = {"error": f"unknown function {call.name[:80]!r}; available: {names}"}
                self._show(call.id, call.name, content, takes_turn=True)

    def _show(self, call: str, function: str, content: Json, *, takes_turn: bool = False) -> None:
        at = self._run.now()
        self._run.note(records.CapabilityShown(at=at, call=call, function=function, content=content, turn=takes_turn))

    # One call

    async def _ended(self, call: FunctionCall, routine: Routine, at: str, caller: Caller) -> CallEnded:
        """Return how the call ended, now or before: steps, execution, record."""
        known = self._progress.ended.get(call.id)
        if known is not None:
            return known
        if routine.refused:
            return await self._not_executed(call.id, routine, call.arguments or {}, caller)
        began = self._begun_before(call.id, routine) or await self._begin(call, routine, at, caller)
        return await self._execute(began, routine) if isinstance(began, CapabilityBegan) else began

    async def _begin(
        self, call: FunctionCall, routine: Routine, at: str, caller: Caller
    ) -> CapabilityBegan | CallEnded:
        """Resolve the arguments, run the steps before the call, and record that it is about to be executed."""
        overseer = self._overseer
        await overseer.check_call()
        place = f"{call.id}:before@{routine.form}"
        key = overseer.session_key(place)
        session = self._run.session(key, at)
        overseen = OverseenCall(overseer, routine.rules, call.id, caller)
        arguments = call.arguments or {}
        try:
            if call.arguments is None:
                answer = self._progress.answer
                is_cut = answer is not None and answer.incomplete is not None
                cut = ", because the answer was cut off before its end; write less" if is_cut else ""
                raise ArgumentsError(f"the arguments are not a JSON object{cut}")
            remembered = Call("bound", ())
            if remembered.key not in session.finished:
                # Evaluated once per call: what is reviewed is what is executed.
                session.settle(remembered, await self._bound(routine, at))
            bound: dict[str, Json] = session.finished[remembered.key].value
            arguments = await routine.arguments.resolve(call.arguments, bound)
            invoke = self.invoker(place, session.now)
            passed = await overseen.before(arguments, session=session, key=key, invoke=invoke)
            if passed.transformed:
                free = {name: value for name, value in passed.value.items() if name not in bound}
                arguments = await routine.arguments.resolve(free, bound)
        except ArgumentsError as error:
            return await self._not_executed(call.id, routine, arguments, caller, error)
        except CapabilityBlockedError:
            return self._progress.ended[call.id]
        return await overseen.begin(arguments, form=overseer.session_key(routine.form))

    def _begun_before(self, call: str, routine: Routine) -> CapabilityBegan | None:
        """Return the record of the call if it has begun in its present form; otherwise everything is decided again."""
        began = self._progress.began.get(call)
        if began is None or began.form == self._overseer.session_key(routine.form):
            return began
        # A child continues, whatever happens to the function. A remote one has said that it began; that of an agent of
        # this server is found again even if it was not recorded.
        known = self._run.context.capabilities.get(began.function)
        may_be_child = routine.function.target == "agent" and known is not None and known.are_delegations
        if routine.is_delegation if call in self._progress.children else may_be_child:
            return began
        self._progress.forget(call)
        return None

    async def _bound(self, routine: Routine, at: str, without: Collection[str] = ()) -> dict[str, Json]:
        """Return the values of the bindings. Raises `ArgumentsError`, which does not repeat any values."""
        files = self._overseer.files
        mount = {} if files is None else {"mount": files.described}
        variables = Variables(self._run.context.plain(), runtime=self._overseer.runtime, **mount)
        bound: dict[str, Json] = {}
        for name, binding in routine.bindings.items():
            if name in without:
                continue
            try:
                bound[name] = await binding.value(variables, Session(at))
            except CelError:
                raise ArgumentsError(f"{name}: has no value yet; something else has to be done first") from None
        return bound

    async def _not_executed(
        self, call: str, routine: Routine, arguments: Any, caller: Caller, error: ArgumentsError | None = None
    ) -> CallEnded:
        """Record a call with invalid arguments, or one of a refused function; `Plan.unruled` has logged why."""
        record: CallEnded
        function = routine.name
        common: Any = dict(zip(_COMMON, (self._run.now(), call, function, arguments, caller), strict=True))
        if error is not None:
            record = CapabilityErrored(**common, error=str(error), executed=False)
        else:
            await self._overseer.check_call()
            reason = f"{function} is switched off: its rules do not fit what its service offers now"
            record = records.CapabilityRestricted(**common, reason=reason)
        await self._run.append(record)
        return record

    async def _result(self, ended: CallEnded, routine: Routine) -> Json:
        """Return the result of a call as the steps after it leave it. Raises `CallFailed` if the call failed."""
        if isinstance(ended, CapabilityErrored):
            raise CallFailed(ended.error)
        if isinstance(ended, records.CapabilityRestricted):
            raise CallFailed(ended.reason)
        place = f"{ended.call}:after@{routine.form}"
        key = self._overseer.session_key(place)
        try:
            return await OverseenCall(self._overseer, routine.rules, ended.call).after(
                ended, session=self._run.session(key, ended.at), key=key, invoke=self.invoker(place, ended.at)
            )
        except CapabilityBlockedError as error:
            raise CallFailed(str(error)) from None

    # Execution

    def _execute(self, began: CapabilityBegan, routine: Routine) -> Coroutine[Any, Any, CallEnded]:
        """Execute a call by its tool or by another agent. How it ended is recorded before it is used.

        Raises `TaskStoppedError` when a tool cannot be used at all, and `ReviewPendingError` while it has to wait.
        """
        executed = self._execute_now(began, routine)
        return executed if tracing.tracer is None else self._trace(tracing.tracer, began, executed)

    async def _trace(
        self, tracer: tracing.Tracer, began: CapabilityBegan, executed: Coroutine[Any, Any, CallEnded]
    ) -> CallEnded:
        """Execute a call in a span. Like a turn, a call is one span, whichever processes execute it."""
        span = tracer.span(
            "tool",
            began.function,
            identity=f"call\n{self._run.task_id}\n{began.call}",
            began=from_iso(began.at),
            call=began.call,
            # As the conventions have it: run here, and not by the provider of the model.
            tool_kind="function",
            task=self._run.task_id,
        )
        if span.captures_content:
            span.note(arguments=as_text(began.arguments))
        try:
            with span.active():
                ended = await executed
        except (ReviewPendingError, LeaseLostError, StorageError):
            raise  # a call that continues later, or in another process, is recorded then
        except BaseException as error:
            if self._overseer.turn.stopped not in ("lost", "drain"):
                span.fail(type(error).__name__)
                span.end()
            raise
        if isinstance(ended, CapabilityErrored):
            span.fail("ToolError")
        elif isinstance(ended, records.CapabilityFinished) and span.captures_content:
            span.note(result=as_text(ended.output))
        span.end()
        return ended

    async def _execute_now(self, began: CapabilityBegan, routine: Routine) -> CallEnded:
        common: dict[str, Any] = {name: getattr(began, name) for name in _COMMON}
        record: CallEnded
        try:
            if routine.is_delegation:
                delegate = self._overseer.worker.delegates[routine.function.ref]
                delegated = await delegate.run(self._overseer.delegation(began))
                common["task_id"], output = delegated.task_id, delegated.output
            else:
                output = await self._invoke(began, routine)
            record = records.CapabilityFinished(**common, output=output, ended_at=self._run.now())
        except ToolError as error:
            record = CapabilityErrored(**common, error=str(error), ended_at=self._run.now())
        except DelegationError as error:
            record = CapabilityErrored(**common, error=str(error), task_id=error.task_id, ended_at=self._run.now())
        except BrokenToolError as error:
            record = CapabilityErrored(**common, error=str(error), ended_at=self._run.now())
            await self._overseer.fail(f"{began.function} cannot be used", error, record)
        await self._run.append(record)
        return record

    async def _invoke(self, began: CapabilityBegan, routine: Routine) -> Json:
        key = f"{began.call}:execute@{began.form}"
        function, tool = routine.function, routine.function.ref
        session = self._run.session(key, began.at)
        invocation = Invocation(
            call=f"{self._run.task_id}:{began.call}",
            action=function.action,
            arguments=began.arguments,
            context=self._run.context.plain(),
            session=session,
            perform=self._overseer.perform(key),
            state=self._progress.tools.get(tool, {}),
        )
        state = await self._tools.initialize(function, invocation)
        if state is not None:
            await self._run.append(records.ToolOpened(at=self._run.now(), tool=tool, state=state))
            invocation = msgspec.structs.replace(invocation, state=state)
        try:
            return await self._tools.invoke(function, invocation)
        except Suspended as suspended:
            raise ReviewPendingError(key, suspended.call, session, began.arguments, function=routine.name) from None

    # Calls by steps

    def invoker(self, place: str, at: str) -> Invoke:
        """Return what makes the calls of `invoke` steps at `place`: without steps, and once, whatever the policy is."""

        async def invoke(wanted: StepCall) -> Json:
            call = f"{place}:{wanted.step}"
            ended = self._progress.ended.get(call) or await self._invoked(call, wanted, at)
            if isinstance(ended, records.CapabilityFinished):
                return ended.output
            raise CallFailed(ended.error if isinstance(ended, CapabilityErrored) else ended.reason)

        return invoke

    async def _invoked(self, call: str, wanted: StepCall, at: str) -> CallEnded:
        routine = self._repertoire.invoked(wanted.tool, wanted.capability)
        if routine is None:
            raise CallFailed(f"{wanted.tool} offers no {wanted.capability}")
        if routine.refused:
            return await self._not_executed(call, routine, wanted.arguments, "step")
        began = self._begun_before(call, routine)
        if began is None:
            try:
                bound = {**await self._bound(routine, at, wanted.arguments), **wanted.arguments}
                arguments = await routine.arguments.resolve({}, bound)
            except ArgumentsError as error:
                return await self._not_executed(call, routine, wanted.arguments, "step", error)
            overseen = OverseenCall(self._overseer, routine.rules, call, "step")
            began = await overseen.begin(arguments, form=self._overseer.session_key(routine.form))
        return await self._execute(began, routine)

    # Scripts

    async def _script(self, call: FunctionCall, at: str) -> Json:
        """Run a script of the model. Each of its calls is made like one of the model's own."""
        source = (call.arguments or {}).get(EXPRESSION)
        if not isinstance(source, str):
            return {"error": f"{EXPRESSION}: is missing, or not a text"}
        key = f"{call.id}:script"

        async def perform(inner: Call) -> Json:
            """Make a call. Its outcome is durable before the script continues."""
            try:
                if inner.function == "file":
                    assert self._overseer.files is not None
                    value = await find_file(self._overseer.files, inner)
                else:
                    routine = self._repertoire.offered(inner.function)
                    assert routine is not None
                    # The same whenever the script is run again, so that its records are found.
                    mark = hashlib.sha256(inner.key.encode()).hexdigest()[:12]
                    made = FunctionCall(f"{call.id}:{mark}", inner.function, inner.arguments[0])
                    value = await self._result(await self._ended(made, routine, at, "script"), routine)
            except CallFailed as error:
                await self._run.append(records.Answered(at=self._run.now(), key=key, call=inner, error=str(error)))
                raise
            await self._run.append(records.Answered(at=self._run.now(), key=key, call=inner, value=value))
            return value

        try:
            return await run_script(
                source,
                self._repertoire.script_names,
                self._run.session(key, at),
                perform,
                mount=self._overseer.files is not None,
                evaluators=self._evaluators,
            )
        except CelError as error:
            return {"error": str(error)}


class _Skipped(Exception):
    """A call that had to wait for another that did not end; it is made another time."""
