"""`errands agents validate`: what is wrong with manifests."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from errands.agents.manifests import Finding, Report, examine
from errands.cli.failures import ExitCode, reporting
from errands.cli.options import AsJson
from errands.cli.terminal import clean, out, print_json
from errands.policy.limits import DEFAULT_LIMITS, with_defaults

ManifestPath = Annotated[
    str, typer.Argument(metavar="PATH", help="A file with manifests, or a folder of them.", show_default=False)
]

_STYLES = {"error": "red", "warning": "yellow"}


def validate_agents(path: ManifestPath, as_json: AsJson = False) -> None:
    """Say what is wrong with manifests, and how to mend it.

    Every finding is told, not only the first. Warnings alone leave manifests valid.

    Example:

        errands agents validate examples/support-agent
    """
    with reporting():
        report = examine(path)
        if as_json:
            findings = msgspec.to_builtins(report.findings)
            print_json({"valid": report.valid, "findings": findings, "limits": _limits(report)})
        else:
            tell(report.findings, out())
            for agent, limits in _limits(report).items():
                out().print(clean(f"{agent}: {described_limits(limits)}"))
            out().print(clean(f"{path} {_verdict(report)}"), style="bold")
        raise SystemExit(ExitCode.OK if report.valid else ExitCode.FAILED)


def _limits(report: Report) -> dict[str, dict[str, Any]]:
    """Return the limits that hold for each agent, with the defaults where it sets none."""
    agents = report.manifests.agents if report.manifests is not None else []
    limits = {f"{agent.namespace}/{agent.name}": with_defaults(agent.limits) for agent in agents}
    return {name: msgspec.structs.asdict(of_agent) for name, of_agent in limits.items()}


def described_limits(limits: dict[str, Any]) -> str:
    """Return a line about limits that says which of them are defaults."""
    defaults = msgspec.structs.asdict(DEFAULT_LIMITS)
    set_here = ((name, value) for name, value in limits.items() if value is not None)
    return ", ".join(f"{name} {value}{' (default)' * (value == defaults[name])}" for name, value in set_here)


def tell(findings: list[Finding], console: Console) -> None:
    """One line for each finding, as compilers write them."""
    for finding in findings:
        console.print(Text.assemble((f"{finding.severity:<8} ", _STYLES[finding.severity]), clean(str(finding))))


def _verdict(report: Report) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    summary = ", ".join(_counted(count, severity) for severity, count in counts.items())
    if report.manifests is None:
        return f"is not valid: {summary}"
    found = [_counted(len(report.manifests.agents), "agent"), _counted(len(report.manifests.tools), "tool")]
    return ", ".join([f"is valid: {' and '.join(found)}", *filter(None, [summary])])


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
