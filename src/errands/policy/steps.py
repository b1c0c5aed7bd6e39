"""The steps of capabilities and guardrails: written, compiled, and run over a call, an input or an answer."""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from errands.errors import ConfigurationError
from errands.policy import cel
from errands.policy.cel.values import Json
from errands.policy.template import Template, compile_template

OnFail = Literal["block", "continue", "lock_task"]
Action = Literal["assert", "invoke", "transform"]


def capability_name(name: str) -> str:
    """Return the one form in which names in code, policies and manifests are compared: `slack-post` as `slack_post`."""
    return unicodedata.normalize("NFKC", name).replace("-", "_")


def given_name(name: str) -> str:
    """Return the same for a name that a person gave to a capability. Raises `ValueError` if it cannot be a name."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    plain = capability_name(name)
    if not plain or plain == "_meta" or not plain.isprintable() or plain != plain.strip():
        raise ValueError(f"{name!r} cannot be the name of a capability")
    return plain


class Phase(enum.Enum):
    """When a list of steps runs. The value is its name in a manifest."""

    BEFORE_FIRST = "before_first"
    BEFORE = "before"
    AFTER = "after"
    GUARDRAIL_BEFORE = "guardrails.before"
    GUARDRAIL_AFTER = "guardrails.after"

    @property
    def scope(self) -> cel.NameScope:
        """The names that expressions of this phase may use."""
        return _SCOPES[self]

    @property
    def guards(self) -> bool:
        """Return whether it guards the agent: there a failing step can lock the task but not block a call."""
        return self in (Phase.GUARDRAIL_BEFORE, Phase.GUARDRAIL_AFTER)

    @property
    def subject(self) -> Literal["input", "output"]:
        """The variable that a transform of this phase replaces."""
        return "output" if self in (Phase.AFTER, Phase.GUARDRAIL_AFTER) else "input"


#: The lists of steps of a capability, in the order in which they run.
CAPABILITY_PHASES = (Phase.BEFORE_FIRST, Phase.BEFORE, Phase.AFTER)


_SCOPES = {
    Phase.BEFORE_FIRST: cel.scopes.BEFORE,
    Phase.BEFORE: cel.scopes.BEFORE,
    Phase.AFTER: cel.scopes.AFTER,
    Phase.GUARDRAIL_BEFORE: cel.scopes.GUARDRAIL_BEFORE,
    Phase.GUARDRAIL_AFTER: cel.scopes.GUARDRAIL_AFTER,
}


class StepError(ConfigurationError):
    """A step is not valid. `field` says where, such as `before[1].on_fail`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class StepConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step as a manifest has it."""

    assert_: str | None = msgspec.field(default=None, name="assert")
    #: `tool-name:capability_name`
    invoke: str | None = None
    transform: str | None = None
    match: str | None = None
    condition: str | None = None
    error_message: str | None = None
    on_fail: OnFail | None = None
    bindings: dict[str, str] | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A step that was checked and compiled."""

    #: Such as `before[1]`: its name in decisions and in sessions.
    name: str
    action: Action
    on_fail: OnFail
    #: Of an assert or a transform.
    program: cel.Program | None = None
    #: Tool and capability of an invoke.
    target: tuple[str, str] = ("", "")
    bindings: dict[str, cel.Program] = {}
    match: str | None = None
    condition: cel.Program | None = None
    error_message: Template | None = None

    @property
    def programs(self) -> list[cel.Program]:
        """The expressions that decide something."""
        return [program for program in (self.program, self.condition, *self.bindings.values()) if program is not None]


class Steps(msgspec.Struct, frozen=True, eq=False):
    """The compiled steps of one phase."""

    phase: Phase
    steps: tuple[Step, ...] = ()


def compile_steps(phase: Phase, configs: Sequence[StepConfig], *, owner: str = "", calls: bool = True) -> Steps:
    """Compile the steps of a phase. Raises `StepError` for the first that is not valid.

    Names of steps begin with `owner`. Without `calls`, expressions may not call `review()`.
    """
    scope = phase.scope if calls else phase.scope.without_calls()
    named = ((f"{owner}{phase.value}[{index}]", config) for index, config in enumerate(configs))
    return Steps(phase, tuple(_compile_step(phase, scope, name, config) for name, config in named))


def _compile_step(phase: Phase, scope: cel.NameScope, name: str, config: StepConfig) -> Step:
    actions: dict[Action, str | None] = {
        "assert": config.assert_,
        "invoke": config.invoke,
        "transform": config.transform,
    }
    given = [(action, source) for action, source in actions.items() if source is not None]
    if len(given) != 1:
        found = " and ".join(action for action, _ in given) or "none of them"
        raise StepError(name, f"a step has exactly one of assert, invoke and transform; this one has {found}")
    [(action, source)] = given
    if config.bindings is not None and action != "invoke":
        raise StepError(f"{name}.bindings", "only an invoke step has bindings; remove them")
    if config.on_fail == "block" and phase.guards:
        raise StepError(f"{name}.on_fail", "a guardrail cannot block; use lock_task or continue")
    tool, colon, capability = source.partition(":") if action == "invoke" else ("", "", "")
    if action == "invoke" and not (tool and colon and capability):
        raise StepError(f"{name}.invoke", f"{source!r} does not name a capability; write tool-name:capability_name")
    message, is_assert = config.error_message, action == "assert"
    # The part that is compiled, for errors.
    part: str = action
    try:
        program = None if action == "invoke" else cel.compile(scope, source, condition=is_assert)
        bindings: dict[str, cel.Program] = {}
        for key, binding in (config.bindings or {}).items():
            part = f"bindings.{key}"
            bindings[key] = cel.compile(scope, binding)
        part = "condition"
        condition = None
        if config.condition is not None:
            condition = cel.compile(scope.without_calls(), config.condition, condition=True)
        part = "error_message"
        error_message = None if message is None else compile_template(scope, message)
    except cel.CelError as error:
        raise StepError(f"{name}.{part}", str(error)) from error
    return Step(
        name=name,
        action=action,
        on_fail=config.on_fail or ("lock_task" if phase.guards else "block"),
        program=program,
        target=(tool, capability),
        bindings=bindings,
        match=None if config.match is None else capability_name(config.match),
        condition=condition,
        error_message=error_message,
    )


# Running steps


class StepCall(msgspec.Struct, frozen=True):
    """The call of an invoke step. `step` is the same after a restart."""

    step: str
    tool: str
    capability: str
    arguments: dict[str, Json]


#: Makes the call of an invoke step, and records it. Raises `CallFailed`.
Invoke = Callable[[StepCall], Awaitable[Any]]


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one step. A step that did not apply has none."""

    step: str
    action: str
    outcome: Literal["passed", "failed", "error"]
    #: What was done about a failure.
    on_fail: OnFail | None = None
    #: What went wrong, for the operator and never for the model.
    detail: str = ""

    @property
    def summary(self) -> str:
        """The outcome as decision records have it: with what was done about a failure."""
        return self.outcome if self.on_fail is None else f"{self.outcome}: {self.on_fail}"


class Passed(msgspec.Struct, frozen=True):
    """`value` is the arguments, input, result or answer, as transforms left it."""

    value: Json
    transformed: bool = False
    decisions: tuple[Decision, ...] = ()


class Blocked(msgspec.Struct, frozen=True):
    """The model gets `message` as if the capability had failed."""

    message: str
    decisions: tuple[Decision, ...] = ()


class Locked(msgspec.Struct, frozen=True):
    """The task ends with reason `restricted`; the caller gets `message`."""

    message: str
    decisions: tuple[Decision, ...] = ()


Outcome = Passed | Blocked | Locked


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps look at."""

    #: Returns the context as expressions see it; called before each step, because an invoke changes it.
    context: Callable[[], Mapping[str, Json]]
    #: Arguments of a call, or an arriving TaskIO.
    input: Json = None
    #: Result of a call, or the agent's answer.
    output: Json = None
    #: The capability's own name within its tool, for `match`.
    action: str | None = None
    #: The name of a discovered operation at its service: `match` may mean this, too.
    operation: str | None = None
    #: Parameters that are bound: no transform changes them.
    bound: frozenset[str] = frozenset()
    #: Returns the exposed values of an answer with this message, so that they follow when a transform changes it.
    expose: Callable[[Json], Awaitable[dict[str, Json]]] | None = None

    @property
    def names(self) -> set[str]:
        """The names with which `match` is compared."""
        return {capability_name(name) for name in (self.action, self.operation) if name}


class _Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step that has been decided, as a session keeps it."""

    decision: Decision | None = None
    value: Json = None
    message: str = ""
    #: See `_StepRun.chosen`.
    chosen: frozenset[str] = frozenset()


class _StepFailed(Exception):
    """The step did not pass."""


class StepSuspended(cel.Suspended):
    """A step waits for `call`. `value` is what it looks at, as the steps before it have left it."""

    def __init__(self, call: cel.Call, value: Json) -> None:
        super().__init__(call)
        self.value = value


def task_io(made: Json, before: dict[str, Json], original: dict[str, Json]) -> dict[str, Json]:
    """Return what a transform made of an input or an answer, in the shape that the next step expects.

    In its message a text may replace a part; files must be those of the `original`. Fields that the transform does
    not return stay as they were `before`.
    """
    message = made.get("message") if isinstance(made, dict) else None
    if not isinstance(message, list):
        raise _StepFailed("a guardrail's transform must return a map with a message, which is a list of parts")
    for name in ("metadata", "request_metadata"):
        if not isinstance(made.get(name), dict | None):
            raise _StepFailed(f"the {name} of a transformed message must be a map")
    known = [part for part in original["message"] if isinstance(part, dict)]
    known += [{name: value for name, value in part.items() if name != "metadata"} for part in known]
    return {**before, **made, "message": [_part(part, known) for part in message]}


def _part(made: Json, known: list[dict[str, Json]]) -> dict[str, Json]:
    part = {"text": made} if isinstance(made, str) else made
    if part in known:
        return part
    if not isinstance(part, dict) or not isinstance(part.get("metadata"), dict | None):
        raise _StepFailed("a part of a transformed message must be a text or a map, and its metadata a map")
    kind = "text/plain" if isinstance(part.get("text"), str) else "application/json" if "data" in part else None
    if kind is None or not isinstance(part.get("mimeType", kind), str):
        raise _StepFailed(
            "a part of a transformed message has neither text nor data, and is not a part of the original"
        )
    return {"mimeType": kind, **part}


async def run_steps(
    steps: Steps, subject: Subject, session: cel.Session, *, invoke: Invoke, perform: cel.Perform | None = None
) -> Outcome:
    """Return what the steps decide. Raises `StepSuspended` while one of them waits.

    What they wait for and what they decided is kept in the session: with the same session they continue at the step at
    which they stopped, in this process or another.
    """
    run = _StepRun(steps.phase, subject, session, invoke, perform)
    for step in steps.steps:
        if step.match is not None and step.match not in subject.names:
            continue
        remembered = cel.Call("decided", (), 0, step.name)
        if (finished := session.finished.get(remembered.key)) is not None:
            done = msgspec.convert(finished.value, _Done)
        else:
            try:
                done = await run.decide(step)
            except cel.Suspended as suspended:
                raise StepSuspended(suspended.call, run.value) from None
            session.settle(remembered, done)
        if done.decision is None:
            continue
        run.take(step, done.decision, done)
        if done.decision.on_fail == "block":
            return Blocked(done.message, tuple(run.decisions))
        if done.decision.on_fail == "lock_task":
            return Locked(done.message, tuple(run.decisions))
    return Passed(run.value, run.transformed, tuple(run.decisions))


@dataclass
class _StepRun:
    """A list of steps while it runs: the value that transforms replace, and what was decided so far."""

    phase: Phase
    subject: Subject
    session: cel.Session
    invoke: Invoke
    perform: cel.Perform | None
    transformed: bool = False
    #: Exposed values that a transform has set itself: they no longer follow the message.
    chosen: frozenset[str] = frozenset()
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value: Json = getattr(self.subject, self.phase.subject)
        self._variables = self._look()

    def _look(self) -> cel.Variables:
        """Return the current variables; steps share them until one changes the value or the context."""
        values = {"input": self.subject.input, "output": self.subject.output, self.phase.subject: self.value}
        return cel.Variables(self.subject.context(), **values)

    def take(self, step: Step, decision: Decision, done: _Done) -> None:
        self.decisions.append(decision)
        if decision.outcome == "passed" and step.action == "transform":
            self.value, self.chosen, self.transformed = done.value, done.chosen, True
        if step.action != "assert":
            self._variables = self._look()

    async def decide(self, step: Step) -> _Done:
        value, chosen = None, self.chosen
        try:
            if step.condition is not None and not await self._evaluate(step.condition, step.name):
                return _Done()
            if step.program is None:
                await self._call(step)
            elif step.action == "transform":
                value, chosen = await self._replacement(await self._evaluate(step.program, step.name))
            elif not await self._evaluate(step.program, step.name):
                raise _StepFailed("the assertion is false")
        except (_StepFailed, cel.CelError) as error:
            message, detail = f"refused by policy ({step.name})", str(error)
            if step.error_message is not None:
                try:
                    message = await step.error_message.text(self._variables, self.session)
                except cel.CelError as problem:
                    detail = f"{detail}; error_message: {problem}"
            outcome: Literal["failed", "error"] = "failed" if isinstance(error, _StepFailed) else "error"
            return _Done(Decision(step.name, step.action, outcome, step.on_fail, detail), None, message)
        return _Done(Decision(step.name, step.action, "passed"), value, chosen=chosen)

    async def _evaluate(self, program: cel.Program, place: str) -> Json:
        return await cel.evaluate(program, self._variables, self.session, perform=self.perform, place=place)

    async def _call(self, step: Step) -> None:
        arguments = {
            name: await self._evaluate(program, f"{step.name}.bindings.{name}")
            for name, program in step.bindings.items()
        }
        call = cel.Call("invoke", (*step.target, arguments), 0, step.name)
        if call.key not in self.session.finished:
            try:
                self.session.settle(call, await self.invoke(StepCall(step.name, *step.target, arguments)))
            except cel.CallFailed as failure:
                self.session.fail(call, str(failure))
        error = self.session.finished[call.key].error
        if error is not None:
            raise _StepFailed(error)

    async def _replacement(self, made: Json) -> tuple[Json, frozenset[str]]:
        """Return what a transform puts in place of the value, and the exposed values that it has `chosen`."""
        subject, is_output = self.subject, self.phase.subject == "output"
        if not self.phase.guards:
            if is_output:
                return made, self.chosen
            if not isinstance(made, dict):
                raise _StepFailed("a transform before a call must return a map")
            bound = {name: given for name, given in self.value.items() if name in subject.bound}
            free = {name: given for name, given in made.items() if name not in subject.bound}
            return {**free, **bound}, self.chosen
        if isinstance(made, str) and is_output:
            made = {"message": [made]}
        value = task_io(made, self.value, subject.output if is_output else subject.input)
        if subject.expose is None:
            return value, self.chosen
        exposed = await subject.expose(value["message"])
        chosen = self.chosen | {name for name in exposed if value.get(name) != self.value.get(name)}
        return {**value, **{name: one for name, one in exposed.items() if name not in chosen}}, chosen
