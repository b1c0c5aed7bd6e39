"""A list of steps, run one after the other over a call, an arriving input or an answer.

Whatever a step has to wait for goes through the session, and so does what was decided: with the same session the list
goes on at the step at which it stopped, in this process or another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from errands.policy.cel import Call, CallFailed, CelError, Perform, Session, Suspended, Variables, evaluate
from errands.policy.cel.values import Json
from errands.policy.steps import OnFail, Phase, Step, Steps, capability_name


class StepCall(msgspec.Struct, frozen=True):
    """What an invoke step calls. `step` is the same after a restart."""

    step: str
    tool: str
    capability: str
    arguments: dict[str, Json]


#: Makes the call, without steps, and records it. Raises `CallFailed`.
Invoke = Callable[[StepCall], Awaitable[Any]]


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one step. A step that did not apply leaves none."""

    step: str
    action: str
    outcome: Literal["passed", "failed", "error"]
    #: What was done about a failure.
    on_fail: OnFail | None = None
    #: For the operator, never for the model: what went wrong.
    detail: str = ""

    @property
    def told(self) -> str:
        """The outcome as the decision log has it: with what was done about a failure."""
        return self.outcome if self.on_fail is None else f"{self.outcome}: {self.on_fail}"


class Passed(msgspec.Struct, frozen=True):
    """`value` is what goes on: arguments, input, result or answer, as transforms left it."""

    value: Json
    transformed: bool = False
    decisions: tuple[Decision, ...] = ()


class Blocked(msgspec.Struct, frozen=True):
    """The model gets `message` as if the capability had failed."""

    message: str
    decisions: tuple[Decision, ...] = ()


class Locked(msgspec.Struct, frozen=True):
    """The task ends for good with reason `restricted`; the caller gets `reason`."""

    reason: str
    decisions: tuple[Decision, ...] = ()


Outcome = Passed | Blocked | Locked


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps look at."""

    #: The context as expressions see it; asked before each step, because an invoke changes it.
    context: Callable[[], Mapping[str, Json]]
    #: Arguments of a call, or an arriving TaskIO.
    input: Json = None
    #: Result of a call, or the agent's answer.
    output: Json = None
    #: The capability's own name within its tool, for `match`.
    action: str | None = None
    #: What was discovered behind that name, by the name it has there: `match` may mean this, too.
    operation: str | None = None
    #: Parameters that are bound: no transform changes them.
    bound: frozenset[str] = frozenset()
    #: Gives the exposed values of an answer with this message, so that they follow when a transform changes it.
    expose: Callable[[Json], Awaitable[dict[str, Json]]] | None = None

    @property
    def names(self) -> set[str]:
        """What `match` is compared with."""
        return {capability_name(name) for name in (self.action, self.operation) if name}


class _Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step that needs no second run: as a session keeps it."""

    decision: Decision | None = None
    value: Json = None
    message: str = ""
    #: See `_Run.chosen`.
    chosen: frozenset[str] = frozenset()


class _Failed(Exception):
    """The step did not pass."""


class StepSuspended(Suspended):
    """A step waits for `call`. `value` is what it looks at, as the steps before it have left it."""

    def __init__(self, call: Call, value: Json) -> None:
        super().__init__(call)
        self.value = value


def task_io(made: Json, before: dict[str, Json], original: dict[str, Json]) -> dict[str, Json]:
    """Return what a transform made of an input or an answer, in the shape that the next step expects.

    In its message a text may stand for a part; files must be those of the `original`. What the transform does not give
    stays as it was `before`.
    """
    message = made.get("message") if isinstance(made, dict) else None
    if not isinstance(message, list):
        raise _Failed("a guardrail's transform must give a map with a message, which is a list of parts")
    for name in ("metadata", "request_metadata"):
        if not isinstance(made.get(name), dict | None):
            raise _Failed(f"the {name} of a transformed message must be a map")
    known = [part for part in original["message"] if isinstance(part, dict)]
    known += [{name: value for name, value in part.items() if name != "metadata"} for part in known]
    return {**before, **made, "message": [_part(part, known) for part in message]}


def _part(made: Json, known: list[dict[str, Json]]) -> dict[str, Json]:
    part = {"text": made} if isinstance(made, str) else made
    if part in known:
        return part
    if not isinstance(part, dict) or not isinstance(part.get("metadata"), dict | None):
        raise _Failed("a part of a transformed message must be a text or a map, and its metadata a map")
    kind = "text/plain" if isinstance(part.get("text"), str) else "application/json" if "data" in part else None
    if kind is None or not isinstance(part.get("mimeType", kind), str):
        raise _Failed("a part of a transformed message has neither text nor data, and is no part of the original")
    return {"mimeType": kind, **part}


async def run_steps(
    steps: Steps, subject: Subject, session: Session, *, invoke: Invoke, perform: Perform | None = None
) -> Outcome:
    """What the steps decide. Raises `StepSuspended` while one of them waits."""
    run = _Run(steps.phase, subject, session, invoke, perform)
    for step in steps.steps:
        if step.match is not None and step.match not in subject.names:
            continue
        try:
            done = await run.step(step)
        except Suspended as suspended:
            raise StepSuspended(suspended.call, run.value) from None
        if done.decision is None:
            continue
        run.take(step, done)
        if done.decision.on_fail == "block":
            return Blocked(done.message, tuple(run.decisions))
        if done.decision.on_fail == "lock_task":
            return Locked(done.message, tuple(run.decisions))
    return Passed(run.value, run.transformed, tuple(run.decisions))


class _Run:
    """One list under way: the value that transforms replace, and what was decided so far."""

    def __init__(
        self, phase: Phase, subject: Subject, session: Session, invoke: Invoke, perform: Perform | None
    ) -> None:
        self._phase = phase
        self._subject = subject
        self._session = session
        self._invoke = invoke
        self._perform = perform
        self.value: Json = getattr(subject, phase.subject)
        self.transformed = False
        #: Exposed values that a transform has replaced by others: they no longer follow the message.
        self.chosen: frozenset[str] = frozenset()
        self.decisions: list[Decision] = []
        self._variables = self._look()

    def _look(self) -> Variables:
        """The variables as they are now; steps share them until one changes the value or the context."""
        values = {"input": self._subject.input, "output": self._subject.output, self._phase.subject: self.value}
        return Variables(self._subject.context(), **values)

    def take(self, step: Step, done: _Done) -> None:
        assert done.decision is not None
        self.decisions.append(done.decision)
        if done.decision.outcome == "passed" and step.action == "transform":
            self.value = done.value
            self.chosen = done.chosen
            self.transformed = True
        if step.action != "assert":
            self._variables = self._look()

    async def step(self, step: Step) -> _Done:
        """What became of it; remembered, so that it is decided once."""
        remembered = Call("decided", (), 0, step.name)
        finished = self._session.finished.get(remembered.key)
        if finished is not None:
            return msgspec.convert(finished.value, _Done)
        done = await self._decide(step)
        self._session.settle(remembered, done)
        return done

    async def _decide(self, step: Step) -> _Done:
        try:
            if step.condition is not None and not await self._evaluate(step.condition, step):
                return _Done()
            value, chosen = await self._act(step)
        except _Failed as failure:
            return await self._failed(step, "failed", str(failure))
        except CelError as error:
            return await self._failed(step, "error", str(error))
        return _Done(Decision(step.name, step.action, "passed"), value, chosen=chosen)

    async def _evaluate(self, program: Any, step: Step, part: str = "") -> Json:
        place = f"{step.name}{part}"
        return await evaluate(program, self._variables, self._session, perform=self._perform, place=place)

    async def _act(self, step: Step) -> tuple[Json, frozenset[str]]:
        """What a transform makes of the value, and what it has `chosen`; nothing of other steps."""
        if step.action == "invoke":
            await self._call(step)
            return None, self.chosen
        value = await self._evaluate(step.program, step)
        if step.action == "transform":
            return await self._exposing(self._replacement(value))
        if not value:
            raise _Failed("the assertion is false")
        return None, self.chosen

    async def _call(self, step: Step) -> None:
        arguments = {
            name: await self._evaluate(program, step, f".bindings.{name}") for name, program in step.bindings.items()
        }
        call = Call("invoke", (*step.target, arguments), 0, step.name)
        if call.key not in self._session.finished:
            try:
                self._session.settle(call, await self._invoke(StepCall(step.name, *step.target, arguments)))
            except CallFailed as failure:
                self._session.fail(call, str(failure))
        error = self._session.finished[call.key].error
        if error is not None:
            raise _Failed(error)

    async def _exposing(self, value: Json) -> tuple[Json, frozenset[str]]:
        """The value with what is exposed of it as it is now, except what a transform has chosen itself."""
        if self._subject.expose is None:
            return value, self.chosen
        exposed = await self._subject.expose(value["message"])
        chosen = self.chosen | {name for name in exposed if value.get(name) != self.value.get(name)}
        return {**value, **{name: one for name, one in exposed.items() if name not in chosen}}, chosen

    def _replacement(self, value: Json) -> Json:
        """What a transform puts in place of the value. Arguments stay a map, and bound ones stay as they are."""
        if self._phase.guards:
            if isinstance(value, str) and self._phase.subject == "output":
                value = {"message": [value]}
            return task_io(value, self.value, getattr(self._subject, self._phase.subject))
        if self._phase.subject == "output":
            return value
        if not isinstance(value, dict):
            raise _Failed("a transform before a call must give a map")
        bound = {name: given for name, given in self.value.items() if name in self._subject.bound}
        free = {name: given for name, given in value.items() if name not in self._subject.bound}
        return {**free, **bound}

    async def _failed(self, step: Step, outcome: Literal["failed", "error"], detail: str) -> _Done:
        message, problem = await self._message(step)
        detail = f"{detail}; error_message: {problem}" if problem else detail
        return _Done(Decision(step.name, step.action, outcome, step.on_fail, detail), None, message)

    async def _message(self, step: Step) -> tuple[str, str]:
        """What the model or the caller is told, and what is wrong with the template, if anything."""
        default = f"refused by policy ({step.name})"
        if step.error_message is None:
            return default, ""
        try:
            return await step.error_message.text(self._variables, self._session), ""
        except CelError as error:
            return default, str(error)
