"""Load the policy of an agent of any kind from a file: the same expressions, limits and steps as in manifests.

load_policy(path)      returns a `Policy`, or raises `ManifestError` with everything that is wrong
examine_policy(path)   returns a `PolicyReport` and raises nothing
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from errands.agents.manifests.expressions import Readable
from errands.agents.manifests.findings import Finding, ManifestError, Place, has_errors
from errands.agents.manifests.reading import only_document, read
from errands.agents.manifests.rules import StepRules
from errands.policy.cel import NameScope
from errands.policy.document import NO_MATCH, Policy
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, given_name


class PolicyReport(msgspec.Struct, frozen=True):
    """The findings about a policy; without errors, the policy can be used."""

    #: By line.
    findings: list[Finding]
    #: None if there are errors.
    policy: Policy | None


def examine_policy(path: str | Path) -> PolicyReport:
    """Report everything that is wrong with the policy in a file."""
    findings: list[Finding] = []
    policy = None
    if Path(path).is_dir():
        Place(findings, str(path)).error("is a folder", "name the file with the policy")
    elif place := only_document(Path(path), findings, 'write one policy, which begins with version: "1"'):
        policy = read(Policy, place)
        _check(policy, place)
    findings.sort(key=lambda finding: finding.line)
    return PolicyReport(findings, None if has_errors(findings) else policy)


def load_policy(path: str | Path) -> Policy:
    """Return the policy in a file. Raises `ManifestError` with everything that is wrong with it."""
    report = examine_policy(path)
    if report.policy is None:
        raise ManifestError(report.findings)
    return report.policy


def _check(policy: Policy, place: Place) -> None:
    steps = _PolicySteps()
    guardrails = place / "guardrails"
    steps.check(policy.guardrails.before, Phase.GUARDRAIL_BEFORE, guardrails / "before")
    steps.check(policy.guardrails.after, Phase.GUARDRAIL_AFTER, guardrails / "after")
    names: set[str] = set()
    for name, capability in policy.capabilities.items():
        inner = place / "capabilities" / name
        try:
            plain = given_name(name)
        except ValueError:
            inner.error("cannot be the name of a capability", "use the name that ctx.capability(...) is given")
        else:
            if plain in names:
                inner.error("is the same name as another", "keep one of them: '-' and '_' are the same in names")
            names.add(plain)
        for phase in CAPABILITY_PHASES:
            steps.check(getattr(capability, phase.value), phase, inner / phase.value)


class _PolicySteps(StepRules):
    def scope(self, phase: Phase) -> NameScope:
        return phase.scope if phase.guards else phase.scope.without_calls()

    def check_step(self, step: StepConfig, phase: Phase, place: Place, readable: Readable) -> None:
        super().check_step(step, phase, place, readable)
        if step.match is not None:
            problem, _, remedy = NO_MATCH.partition("; ")
            (place / "match").error(problem, remedy)

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        (place / "invoke").error(
            "cannot be used: a policy has no tools", "use assert or transform, or write the agent as a manifest"
        )
