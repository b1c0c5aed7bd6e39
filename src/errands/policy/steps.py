"""The steps of capabilities and guardrails: as they are written, checked and compiled. `pipeline.py` runs them."""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Sequence
from typing import Literal

import msgspec

from errands.errors import ConfigurationError
from errands.policy import cel
from errands.policy.cel import CelError, Program, Scope, scopes
from errands.policy.template import Template, compile_template

OnFail = Literal["block", "continue", "lock_task"]
Action = Literal["assert", "invoke", "transform"]


def capability_name(name: str) -> str:
    """Return the one form in which names in code, policies and manifests are compared: `slack-post` as `slack_post`."""
    return unicodedata.normalize("NFKC", name).replace("-", "_")


def given_name(name: str) -> str:
    """Return the same for a name that a person gave to a capability. Raises `ValueError` for what cannot be one."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    plain = capability_name(name)
    if not plain or plain == "_meta" or not plain.isprintable() or plain != plain.strip():
        raise ValueError(f"{name!r} cannot be the name of a capability")
    return plain


class Phase(enum.Enum):
    """Where a list of steps stands. The value is its name in a manifest."""

    BEFORE_FIRST = "before_first"
    BEFORE = "before"
    AFTER = "after"
    GUARDRAIL_BEFORE = "guardrails.before"
    GUARDRAIL_AFTER = "guardrails.after"

    @property
    def scope(self) -> Scope:
        """What expressions of this phase may use."""
        return _SCOPES[self]

    @property
    def guards(self) -> bool:
        """Whether it is a boundary of the agent, where nothing can be blocked, only the task locked."""
        return self in (Phase.GUARDRAIL_BEFORE, Phase.GUARDRAIL_AFTER)

    @property
    def subject(self) -> Literal["input", "output"]:
        """The variable that a transform of this phase replaces."""
        return "output" if self in (Phase.AFTER, Phase.GUARDRAIL_AFTER) else "input"


#: The lists of steps of a capability, in the order in which they run.
CAPABILITY_PHASES = (Phase.BEFORE_FIRST, Phase.BEFORE, Phase.AFTER)


_SCOPES = {
    Phase.BEFORE_FIRST: scopes.BEFORE,
    Phase.BEFORE: scopes.BEFORE,
    Phase.AFTER: scopes.AFTER,
    Phase.GUARDRAIL_BEFORE: scopes.GUARDRAIL_BEFORE,
    Phase.GUARDRAIL_AFTER: scopes.GUARDRAIL_AFTER,
}


class StepError(ConfigurationError):
    """A step is written wrongly. `field` says where, such as `before[1].on_fail`."""

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

    #: Its place, such as `before[1]`: its name in decisions, and its part of a session.
    name: str
    action: Action
    on_fail: OnFail
    #: Of an assert or a transform.
    program: Program | None = None
    #: Tool and capability of an invoke.
    target: tuple[str, str] = ("", "")
    bindings: dict[str, Program] = {}
    match: str | None = None
    condition: Program | None = None
    error_message: Template | None = None

    @property
    def programs(self) -> list[Program]:
        """Every expression that decides something."""
        return [program for program in (self.program, self.condition, *self.bindings.values()) if program is not None]


class Steps(msgspec.Struct, frozen=True, eq=False):
    """The compiled steps of one phase."""

    phase: Phase
    steps: tuple[Step, ...] = ()


def compile_steps(phase: Phase, configs: Sequence[StepConfig], *, owner: str = "", calls: bool = True) -> Steps:
    """Raises `StepError` for the first step that is written wrongly.

    `owner` is put before the names of the steps, and without `calls` none of them may wait for anything.
    """
    scope = phase.scope if calls else phase.scope.without_calls()
    names = (f"{owner}{phase.value}[{n}]" for n in range(len(configs)))
    return Steps(phase, tuple(_step(phase, scope, name, config) for name, config in zip(names, configs, strict=True)))


def _step(phase: Phase, scope: Scope, name: str, config: StepConfig) -> Step:
    action = _action(name, config)
    if config.bindings is not None and action != "invoke":
        raise StepError(f"{name}.bindings", "only an invoke step has bindings; remove them")
    if config.on_fail == "block" and phase.guards:
        raise StepError(f"{name}.on_fail", "a guardrail cannot block; use lock_task or continue")
    source = config.assert_ if action == "assert" else config.transform
    return Step(
        name=name,
        action=action,
        on_fail=config.on_fail or ("lock_task" if phase.guards else "block"),
        program=_program(f"{name}.{action}", scope, source, condition=action == "assert"),
        target=_target(name, config.invoke),
        bindings={
            key: _require(_program(f"{name}.bindings.{key}", scope, value))
            for key, value in (config.bindings or {}).items()
        },
        match=None if config.match is None else capability_name(config.match),
        condition=_program(f"{name}.condition", scope.without_calls(), config.condition, condition=True),
        error_message=_template(f"{name}.error_message", scope, config.error_message),
    )


def _action(name: str, config: StepConfig) -> Action:
    given: list[Action] = []
    if config.assert_ is not None:
        given.append("assert")
    if config.invoke is not None:
        given.append("invoke")
    if config.transform is not None:
        given.append("transform")
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise StepError(name, f"a step has exactly one of assert, invoke and transform; this one has {found}")
    return given[0]


def _target(name: str, invoke: str | None) -> tuple[str, str]:
    if invoke is None:
        return ("", "")
    tool, colon, capability = invoke.partition(":")
    if not (tool and colon and capability):
        raise StepError(f"{name}.invoke", f"{invoke!r} names no capability; write tool-name:capability_name")
    return (tool, capability)


def _program(field: str, scope: Scope, source: str | None, *, condition: bool = False) -> Program | None:
    if source is None:
        return None
    try:
        return cel.compile(scope, source, condition=condition)
    except CelError as error:
        raise StepError(field, str(error)) from error


def _template(field: str, scope: Scope, source: str | None) -> Template | None:
    if source is None:
        return None
    try:
        return compile_template(scope, source)
    except CelError as error:
        raise StepError(field, str(error)) from error


def _require(program: Program | None) -> Program:
    assert program is not None
    return program
