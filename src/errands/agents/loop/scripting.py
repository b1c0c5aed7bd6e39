"""The model's scripts in the loop: each call that a script makes goes the way of every other call, and is made once."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection

from errands.agents.evaluators import Evaluators
from errands.agents.loop.course import Course
from errands.agents.script import EXPRESSION, find_file, run_script
from errands.policy.cel import Call, CallFailed, CelError
from errands.policy.cel.values import Json
from errands.policy.records import Answered, FunctionCall

#: Makes a call of a capability for a script and gives what is told of it. Raises `CallFailed`.
MakeCall = Callable[[FunctionCall, str], Awaitable[Json]]


class Scripting:
    def __init__(self, course: Course, evaluators: Evaluators, capabilities: Collection[str], make: MakeCall) -> None:
        self._course = course
        self._evaluators = evaluators
        self._capabilities = capabilities
        self._make = make

    async def content(self, call: FunctionCall, at: str) -> Json:
        """What the model is told of its script: the value, or what is wrong with it."""
        source = (call.arguments or {}).get(EXPRESSION)
        if not isinstance(source, str):
            return {"error": f"{EXPRESSION}: must be a text with one CEL expression"}
        key = f"{call.id}:script"
        session = self._course.progress.session(key, at)

        async def perform(inner: Call) -> Json:
            if inner.function == "file":
                return await self._find(key, inner)
            return await self._make(_inner_call(call, inner), at)

        script = run_script(
            source,
            self._capabilities,
            session,
            perform,
            mount=self._course.files is not None,
            evaluators=self._evaluators,
        )
        try:
            return await self._course.waiting_for(script, key, session, source)
        except CelError as error:
            return {"error": str(error)}

    async def _find(self, key: str, inner: Call) -> Json:
        if self._course.files is None:
            raise CallFailed("this agent has no mount")
        found = await find_file(self._course.files, inner)
        await self._course.append(Answered(at=self._course.run.now(), key=key, call=inner, value=found))
        return found


def _inner_call(call: FunctionCall, inner: Call) -> FunctionCall:
    """A call by a script; its id is the same whenever the script is run again."""
    digest = hashlib.sha256(inner.key.encode()).hexdigest()[:16]
    [arguments] = inner.arguments
    return FunctionCall(f"{call.id}:script:{digest}", inner.function, dict(arguments))
