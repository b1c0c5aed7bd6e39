"""Executing a call that has begun: by a tool, or by another agent. How it ended is a record before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from errands.agents.delegation.base import Delegate, Delegated, DelegationError
from errands.agents.loop.course import Course
from errands.agents.loop.handing_down import errand_of
from errands.agents.loop.plan import Routine
from errands.agents.tools.base import BrokenToolError, Invocation, ToolError
from errands.agents.tools.toolbox import ToolTurn
from errands.model.log import Scope
from errands.policy.cel.values import Json
from errands.policy.records import (
    CallEnded,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    ToolOpened,
)


class Executing:
    """Executes the calls of one turn. `depth` is how many agents have handed work down to this one."""

    def __init__(
        self,
        course: Course,
        tools: ToolTurn,
        delegates: Mapping[str, Delegate],
        *,
        task_id: str,
        scope: Scope,
        depth: int,
    ) -> None:
        self._course = course
        self._run = course.run
        self._progress = course.progress
        self._tools = tools
        self._delegates = delegates
        self._task_id = task_id
        self._scope = scope
        self._depth = depth

    def is_synchronous(self, routine: Routine) -> bool:
        """Whether its calls must run one after the other."""
        return not routine.is_delegation and self._tools.is_synchronous(routine.function)

    async def execute(self, began: CapabilityBegan, routine: Routine) -> CallEnded:
        """Raises `TaskOverError` when a tool cannot be used at all, and `PausedError` when it has to wait."""
        common: dict[str, Any] = {
            "at": began.at,
            "call": began.call,
            "function": began.function,
            "arguments": began.arguments,
            "caller": began.caller,
        }
        record: CallEnded
        try:
            if routine.is_delegation:
                delegated = await self._delegate(began, routine)
                record = CapabilityFinished(**common, output=delegated.output, task_id=delegated.task_id)
            else:
                record = CapabilityFinished(**common, output=await self._invoke(began, routine))
        except ToolError as error:
            record = CapabilityErrored(**common, error=str(error))
        except DelegationError as error:
            record = CapabilityErrored(**common, error=str(error), task_id=error.task_id)
        except BrokenToolError as error:
            record = CapabilityErrored(**common, error=str(error))
            self._course.fail(f"{began.function} cannot be used", error, record)
        await self._course.append(record)
        return record

    async def _invoke(self, began: CapabilityBegan, routine: Routine) -> Json:
        key = f"{began.call}:execute@{began.form}" if began.form else f"{began.call}:execute"
        function, tool = routine.function, routine.function.ref
        session = self._progress.session(key, began.at)
        invocation = Invocation(
            call=f"{self._task_id}:{began.call}",
            action=function.action,
            arguments=began.arguments,
            context=self._run.plain(),
            session=session,
            perform=self._course.perform(key),
            state=self._progress.tools.get(tool, {}),
        )
        state = await self._tools.initialize(function, invocation)
        if state is not None:
            await self._course.append(ToolOpened(at=self._run.now(), tool=tool, state=state))
            invocation = msgspec.structs.replace(invocation, state=state)
        work = self._tools.invoke(function, invocation)
        return await self._course.waiting_for(work, key, session, began.arguments, function=routine.name)

    async def _delegate(self, began: CapabilityBegan, routine: Routine) -> Delegated:
        errand = errand_of(self._course, began, parent=self._task_id, scope=self._scope, depth=self._depth)
        return await self._delegates[routine.function.ref].run(errand)
