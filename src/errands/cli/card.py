"""`errands card`: what an agent says about itself, and what is wrong with it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import httpx
import msgspec
import typer
from rich.text import Text

from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.options import AsJson, Headers, Remote, Timeout, Token
from errands.cli.terminal import clean, out, print_json
from errands.client import AgentNotFoundError
from errands.client.discovery import CardSource, card_urls, read_card
from errands.client.retry import RetryPolicy
from errands.model.card import AgentCard
from errands.wire.card_check import Finding, Report, check_card

Source = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Where the agent is, such as http://localhost:8000; or a file with a card.",
        show_default=False,
    ),
]
Validate = Annotated[bool, typer.Option("--validate", help="Say what is wrong with the card; exit with 1 if it is.")]

_TIMEOUT = 30.0
_STYLES = {"error": "red", "warning": "yellow"}


def card(
    url: Source,
    validate: Validate = False,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> None:
    """Show what an agent offers: its card.

    Example:

        errands card http://localhost:8000
        errands card http://localhost:8000 --validate
    """
    remote = Remote(url, header, token)
    run(_validate(remote, as_json) if validate else _card(remote, as_json), timeout)


async def _card(remote: Remote, as_json: bool) -> ExitCode:
    if (path := _file(remote)) is not None:
        raw = path.read_bytes()
        found = read_card(raw)
    else:
        raw, found = await _fetch(remote)
    if as_json:
        sys.stdout.write(msgspec.json.format(raw, indent=2).decode() + "\n")
    else:
        _show(found)
    return ExitCode.OK


def _file(remote: Remote) -> Path | None:
    """The file, unless it is an address. Raises `UsageError` when it is neither."""
    if "://" in remote.url:
        remote.check()
        return None
    path = Path(remote.url)
    if not path.is_file():
        raise UsageError(f"{remote.url!r} is neither an address such as http://HOST:PORT nor a file")
    return path


async def _fetch(remote: Remote) -> tuple[bytes, AgentCard]:
    kept: list[bytes] = []
    # Not through A2AClient: a card is worth seeing even when we speak none of its bindings.
    async with httpx.AsyncClient() as http:
        source = CardSource(
            http,
            remote.url,
            headers=remote.headers,
            retry=RetryPolicy(),
            timeout=_TIMEOUT,
            validator=lambda _, raw: kept.append(raw),
        )
        found = await source.fetch()
    assert found is not None
    return kept[0], found


# Validating


async def _validate(remote: Remote, as_json: bool) -> ExitCode:
    if (path := _file(remote)) is not None:
        place, report = remote.url, check_card(path.read_bytes())
    else:
        place, report = await _check_served(remote)
    if as_json:
        print_json({"place": place, "valid": report.valid, **msgspec.to_builtins(report)})
    else:
        _tell(place, report)
    return ExitCode.OK if report.valid else ExitCode.FAILED


async def _check_served(remote: Remote) -> tuple[str, Report]:
    """Checks what clients are given that do not say which version they speak, as most do not."""
    reasons: list[str] = []
    first, *_ = urls = card_urls(remote.url)
    async with httpx.AsyncClient(headers=remote.headers, timeout=_TIMEOUT, follow_redirects=False) as http:
        for url in urls:
            try:
                answer = await http.get(url)
            except httpx.TransportError as error:
                raise AgentNotFoundError(remote.url, str(error) or type(error).__name__) from error
            if answer.status_code == httpx.codes.OK:
                report = check_card(answer.content, fetched_from=url)
                return url, report if url == first else _with(report, _OLDER_PATH)
            reasons.append(f"{urlsplit(url).path}: HTTP {answer.status_code}")
    raise AgentNotFoundError(remote.url, "; ".join(reasons))


_OLDER_PATH = Finding(
    severity="warning",
    path="",
    problem="is at the older path only, where clients of A2A 0.3 and 1.0 do not look",
    remedy="serve it at /.well-known/agent-card.json too",
)


def _with(report: Report, finding: Finding) -> Report:
    return msgspec.structs.replace(report, findings=[*report.findings, finding])


def _tell(place: str, report: Report) -> None:
    console = out()
    for finding in report.findings:
        where = finding.path or "the card"
        console.print(
            Text.assemble((f"{finding.severity:<8} ", _STYLES[finding.severity]), clean(f"{where} {finding.problem}"))
        )
        console.print(Text.assemble(" " * 9, (clean(f"to mend it: {finding.remedy}"), "dim")))
    form = f"card of A2A {' and '.join(report.versions)}" if report.versions else "agent card"
    counts = Counter(finding.severity for finding in report.findings)
    summary = ", ".join(f"{count} {severity}{'s' * (count > 1)}" for severity, count in counts.items())
    verdict = "a valid" if report.valid else "no valid"
    console.print(clean(f"{place} is {verdict} {form}" + (f": {summary}" if summary else "")), style="bold")


# Showing


def _show(card: AgentCard) -> None:
    console = out()
    console.print(clean(f"{card.name} {card.version}"), style="bold")
    console.print(clean(card.description))
    console.print()
    for name, value in _facts(card):
        console.print(Text.assemble((f"{name:<15}", "dim"), clean(value)))


def _facts(card: AgentCard) -> list[tuple[str, str]]:
    offered = card.capabilities
    capabilities = {
        "streaming": offered.streaming,
        "push notifications": offered.push_notifications,
        "extended card": offered.extended_agent_card,
    }
    facts = [
        ("interface", f"{face.protocol_binding} {face.protocol_version} at {face.url}")
        for face in card.supported_interfaces
    ]
    facts.append(("offers", ", ".join(name for name, yes in capabilities.items() if yes) or "no extras"))
    facts.append(("takes", ", ".join(card.default_input_modes)))
    facts.append(("gives", ", ".join(card.default_output_modes)))
    facts += [("skill", f"{skill.name}: {skill.description}") for skill in card.skills]
    facts += [("extension", extension.uri) for extension in offered.extensions or []]
    facts += [("security", name) for name in card.security_schemes or {}]
    if card.provider is not None:
        facts.append(("provider", f"{card.provider.organization} ({card.provider.url})"))
    if card.documentation_url is not None:
        facts.append(("documentation", card.documentation_url))
    return facts
