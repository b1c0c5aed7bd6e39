"""One call of a capability, as a handler makes it: recorded, counted, and held to the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from errands.errors import CapabilityBlockedError, TaskStoppedError
from errands.policy.cel.values import Json, normalise
from errands.policy.limits import check_before_capability
from errands.policy.pipeline import Blocked, Locked, Passed, Subject
from errands.policy.records import CapabilityBegan, CapabilityErrored, CapabilityFinished, CapabilityRestricted
from errands.policy.steps import Phase, given_name
from errands.runtime.journal import new_id
from errands.runtime.run import Run

if TYPE_CHECKING:
    from errands.runtime.oversight.recorder import Recorder

#: So much of an error's text is kept.
_MOST = 500


class CapabilityCall:
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
