"""A policy as it is written, for an agent of any kind, and as it is compiled.

`errands.agents.policies` reads one from a file; `errands.runtime.oversight` holds a running agent to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from errands.errors import ConfigurationError
from errands.policy.limits import Limits
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, StepError, Steps, compile_steps


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class GuardrailSteps(_Part, frozen=True, kw_only=True):
    """At the boundary of the agent: what comes in, and what goes out."""

    before: list[StepConfig] = []
    after: list[StepConfig] = []


class CapabilitySteps(_Part, frozen=True, kw_only=True):
    """Around the calls of one capability."""

    before_first: list[StepConfig] = []
    before: list[StepConfig] = []
    after: list[StepConfig] = []


class Policy(_Part, frozen=True, kw_only=True):
    """Limits, guardrails and the steps of capabilities in the form in which a file has them."""

    #: Decisions name it.
    version: Annotated[str, Meta(examples=["2026-01-31"])]
    limits: Limits = Limits()
    guardrails: GuardrailSteps = GuardrailSteps()
    #: By the name that `ctx.capability` is given. One without steps is only made known to expressions.
    capabilities: dict[str, CapabilitySteps] = {}


class CompiledPolicy(msgspec.Struct, frozen=True, eq=False):
    """A policy that is ready to be applied; `version` tells it from every other."""

    version: str
    limits: Limits
    before: Steps
    after: Steps
    capabilities: dict[str, dict[Phase, Steps]]

    def steps(self, capability: str, phase: Phase) -> Steps:
        """Those around a call of this capability; none when the policy does not mention it."""
        return self.capabilities.get(capability, {}).get(phase) or Steps(phase)


#: For agents that are bound by nothing.
NO_POLICY = CompiledPolicy("", Limits(), Steps(Phase.GUARDRAIL_BEFORE), Steps(Phase.GUARDRAIL_AFTER), {})

#: Before the names of a policy's steps where they stand among an agent's own.
POLICY = "policy."


def joined(policy: Steps, own: Steps) -> Steps:
    """The steps of a policy around an agent's own: they look first at what goes in, and last at what comes out."""
    theirs = tuple(msgspec.structs.replace(step, name=f"{POLICY}{step.name}") for step in policy.steps)
    return Steps(own.phase, own.steps + theirs if own.phase.subject == "output" else theirs + own.steps)


def compile_policy(policy: Policy) -> CompiledPolicy:
    """Raises `ConfigurationError` for the first thing that is wrong."""
    if not policy.version.strip():
        raise ConfigurationError("version: is empty; decisions name it, so write something such as 2026-01-31")
    return CompiledPolicy(
        version=policy.version,
        limits=policy.limits,
        before=_compiled(Phase.GUARDRAIL_BEFORE, policy.guardrails.before),
        after=_compiled(Phase.GUARDRAIL_AFTER, policy.guardrails.after),
        capabilities={
            name: {phase: _compiled(phase, getattr(steps, phase.value), name) for phase in CAPABILITY_PHASES}
            for name, steps in policy.capabilities.items()
        },
    )


def _compiled(phase: Phase, configs: Sequence[StepConfig], capability: str = "") -> Steps:
    owner = f"capabilities.{capability}." if capability else ""
    compiled = compile_steps(phase, configs, owner=owner, calls=may_wait(phase))
    for step in compiled.steps:
        if step.action == "invoke":
            raise StepError(f"{step.name}.invoke", NO_TOOLS)
        if step.match is not None and phase.guards:
            raise StepError(f"{step.name}.match", "means nothing in a guardrail; take it away, or use condition")
    return compiled


#: A policy stands outside of the agent.
NO_TOOLS = "a policy has no tools to invoke; use assert or transform, or write the agent as a manifest"


def may_wait(phase: Phase) -> bool:
    """Whether steps of this phase may call `review()`: a Python handler cannot be put to sleep in its middle."""
    return phase.guards
