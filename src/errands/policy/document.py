"""A policy as it is written and as it is compiled, and the rules of an agent.

`errands.agents.manifests.loading` reads one from a file; `errands.policy.enforcement` enforces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from errands.errors import ConfigurationError
from errands.policy.cel.syntax import reads_in
from errands.policy.limits import Limits
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, StepError, Steps, compile_steps, given_name


class _PolicyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class GuardrailSteps(_PolicyPart, frozen=True, kw_only=True):
    """Steps over every input and every answer of the agent."""

    #: Over every input, before the agent sees it.
    before: list[StepConfig] = []
    #: Over every answer, before it is published.
    after: list[StepConfig] = []


class CapabilitySteps(_PolicyPart, frozen=True, kw_only=True):
    """Steps around the calls of one capability."""

    before_first: list[StepConfig] = []
    before: list[StepConfig] = []
    after: list[StepConfig] = []


class Policy(_PolicyPart, frozen=True, kw_only=True):
    """Limits, guardrails and steps of capabilities, as a file has them."""

    #: Decisions name it.
    version: Annotated[str, Meta(examples=["2026-01-31"])]
    #: What ends a task that takes too much.
    limits: Limits = Limits()
    #: Steps that check each input and each answer.
    guardrails: GuardrailSteps = GuardrailSteps()
    #: By the name that is passed to `ctx.capability`. One without steps is only made known to expressions.
    capabilities: dict[str, CapabilitySteps] = {}
    #: Whether capabilities that are not listed may be called.
    other_capabilities: Literal["allow", "refuse"] = "allow"


class CompiledPolicy(msgspec.Struct, frozen=True, eq=False):
    """A compiled policy. Decisions name its `version`."""

    version: str
    limits: Limits
    before: Steps
    after: Steps
    #: By `capability_name`.
    capabilities: dict[str, dict[Phase, Steps]]
    #: Around the calls of all others.
    others: dict[Phase, Steps] = {}

    def steps(self, capability: str, phase: Phase) -> Steps:
        """Return the steps around a call of this capability, which is given by its `capability_name`."""
        return self.capabilities.get(capability, self.others).get(phase) or Steps(phase)

    def misspelled(self, capability: str) -> str | None:
        """Return the name in this policy that differs from the name of a call only in upper and lower case."""
        if capability in self.capabilities:
            return None
        return next((name for name in self.capabilities if name.casefold() == capability.casefold()), None)

    @property
    def functions(self) -> set[str]:
        """The capabilities that an agent must have: those with steps, and those that are read without `has(...)`."""
        found = {name for name, phases in self.capabilities.items() if any(steps.steps for steps in phases.values())}
        around = [steps for phases in self.capabilities.values() for steps in phases.values()]
        every = (step for steps in (self.before, self.after, *around) for step in steps.steps)
        for program in (program for step in every for program in step.programs):
            reads = [read for read in reads_in(program.source) if read.path[:2] == ("context", "capabilities")]
            asked = {read.path[2:3] for read in reads if read.is_asked}
            named = {name for read in reads if read.path[2:3] not in asked for name in read.path[2:3]}
            found |= {name for name in named if isinstance(name, str)}
        return found - {"_meta"}


#: For agents without a policy.
NO_POLICY = CompiledPolicy("", Limits(), Steps(Phase.GUARDRAIL_BEFORE), Steps(Phase.GUARDRAIL_AFTER), {})

#: Begins the names of a policy's rules where the agent has rules of its own.
POLICY = "policy."


class Rules(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is enforced in the tasks of one agent: the server's policy, and the agent's own limits and guardrails."""

    policy: CompiledPolicy = NO_POLICY
    limits: Limits
    before: Steps
    after: Steps
    #: Whether the agent has rules of its own. Names of those of the policy then begin with `POLICY`.
    is_joined: bool = False
    #: The limits that the policy has set lower than the agent.
    policy_limits: frozenset[str] = frozenset()
    #: The text for the caller when a limit ends the task; `{}` is replaced by the numbers.
    limit_text: str = "{}"

    @classmethod
    def of(cls, policy: CompiledPolicy) -> Rules:
        """Return the rules of an agent without rules of its own."""
        return cls(policy=policy, limits=policy.limits, before=policy.before, after=policy.after)

    def limit_name(self, limit: str) -> str:
        """Return the name of a limit in decisions."""
        return f"{POLICY if limit in self.policy_limits else ''}limits.{limit}"

    def version_of(self, rule: str) -> str:
        """Return the version of the policy that a step or a limit belongs to; "" for the agent's own."""
        return self.policy.version if not self.is_joined or rule.startswith(POLICY) else ""


def joined(policy: Steps, own: Steps) -> Steps:
    """Return the steps of a policy around an agent's own: first over what goes in, and last over what comes out."""
    theirs = tuple(msgspec.structs.replace(step, name=f"{POLICY}{step.name}") for step in policy.steps)
    return Steps(own.phase, own.steps + theirs if own.phase.subject == "output" else theirs + own.steps)


def compile_policy(policy: Policy) -> CompiledPolicy:
    """Compile a policy. Raises `ConfigurationError` for the first problem."""
    if not policy.version.strip():
        raise ConfigurationError("version: is empty; decisions name it, so write something such as 2026-01-31")
    capabilities: dict[str, dict[Phase, Steps]] = {}
    for given, steps in policy.capabilities.items():
        owner = f"capabilities.{given}"
        try:
            name = given_name(given)
        except ValueError as error:
            raise ConfigurationError(f"{owner}: {error}") from None
        if name in capabilities:
            raise ConfigurationError(f"{owner}: is the same name as another; '-' and '_' are the same in names")
        capabilities[name] = {
            phase: _compiled(phase, getattr(steps, phase.value), f"{owner}.") for phase in CAPABILITY_PHASES
        }
    refused = policy.other_capabilities == "refuse"
    return CompiledPolicy(
        version=policy.version,
        limits=policy.limits,
        before=_compiled(Phase.GUARDRAIL_BEFORE, policy.guardrails.before),
        after=_compiled(Phase.GUARDRAIL_AFTER, policy.guardrails.after),
        capabilities=capabilities,
        others={Phase.BEFORE: _compiled(Phase.BEFORE, [_REFUSED], "other_capabilities.")} if refused else {},
    )


_REFUSED = StepConfig(assert_="false", error_message="The policy of this agent does not allow this capability.")
NO_MATCH = "has no meaning in a policy, which names each function; remove it, or use condition"
#: A policy does not belong to an agent with tools.
NO_TOOLS = "a policy has no tools to invoke; use assert or transform, or write the agent as a manifest"


def _compiled(phase: Phase, configs: Sequence[StepConfig], owner: str = "") -> Steps:
    # A Python handler cannot be suspended in a call, so only guardrails may call `review()`.
    compiled = compile_steps(phase, configs, owner=owner, calls=phase.guards)
    for step in compiled.steps:
        if step.action == "invoke":
            raise StepError(f"{step.name}.invoke", NO_TOOLS)
        if step.match is not None:
            raise StepError(f"{step.name}.match", NO_MATCH)
    return compiled
