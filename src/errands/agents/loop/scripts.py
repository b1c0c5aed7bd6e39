"""Scripts of the model at work on a task: each of their calls is made like one of the model's own, and made once."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from errands.agents.loop.course import Course
from errands.agents.loop.plan import Repertoire, Routine
from errands.agents.script import EXPRESSION, find_file, run_script
from errands.policy.cel import Call, CallFailed, CelError
from errands.policy.cel.evaluators import Evaluators
from errands.policy.cel.values import Json
from errands.policy.records import Answered, FunctionCall

#: Makes a call and gives its result as the steps after it leave it. Raises `CallFailed`.
MakeCall = Callable[[FunctionCall, Routine, str], Awaitable[Json]]


class Scripts:
    """Runs the scripts of one turn."""

    def __init__(self, course: Course, repertoire: Repertoire, evaluators: Evaluators, make: MakeCall) -> None:
        self._course = course
        self._repertoire = repertoire
        self._evaluators = evaluators
        self._make = make

    async def run(self, call: FunctionCall, at: str) -> Json:
        """What the model is told of its script. What a call inside of it raises, such as `PausedError`, comes out."""
        source = (call.arguments or {}).get(EXPRESSION)
        if not isinstance(source, str):
            return {"error": f"{EXPRESSION}: is missing, or no text"}
        key = f"{call.id}:script"

        async def perform(inner: Call) -> Json:
            return await self._answered(key, inner, call, at)

        try:
            return await run_script(
                source,
                self._repertoire.script_names,
                self._course.progress.session(key, at),
                perform,
                mount=self._course.files is not None,
                evaluators=self._evaluators,
            )
        except CelError as error:
            return {"error": str(error)}

    async def _answered(self, key: str, inner: Call, call: FunctionCall, at: str) -> Json:
        """Makes a call; how it went is durable before the script goes on."""
        try:
            value = await self._made(inner, call, at)
        except CallFailed as error:
            await self._course.append(Answered(at=self._course.run.now(), key=key, call=inner, error=str(error)))
            raise
        await self._course.append(Answered(at=self._course.run.now(), key=key, call=inner, value=value))
        return value

    async def _made(self, inner: Call, call: FunctionCall, at: str) -> Json:
        if inner.function == "file":
            assert self._course.files is not None
            return await find_file(self._course.files, inner)
        routine = self._repertoire.offered(inner.function)
        assert routine is not None
        # The same whenever the script is run again, so that its records are found.
        mark = hashlib.sha256(inner.key.encode()).hexdigest()[:12]
        made = FunctionCall(f"{call.id}:{mark}", inner.function, inner.arguments[0])
        return await self._make(made, routine, at)
