"""`errands card`: what an agent says about itself."""

from __future__ import annotations

import sys

import httpx
import msgspec
from rich.text import Text

from errands.cli.failures import ExitCode, run
from errands.cli.options import AsJson, Headers, Remote, Timeout, Token, Url
from errands.cli.terminal import clean, out
from errands.client.discovery import CardSource
from errands.client.retry import RetryPolicy
from errands.model.card import AgentCard


def card(
    url: Url, as_json: AsJson = False, header: Headers = None, token: Token = None, timeout: Timeout = None
) -> None:
    """Show what an agent offers: its card.

    Example:

        errands card http://localhost:8000
    """
    run(_card(Remote(url, header, token), as_json), timeout)


async def _card(remote: Remote, as_json: bool) -> ExitCode:
    remote.check()
    raw = b""

    def keep(_: AgentCard, body: bytes) -> None:
        nonlocal raw
        raw = body

    # Not through A2AClient: a card is worth seeing even when we speak none of its bindings.
    async with httpx.AsyncClient() as http:
        source = CardSource(http, remote.url, headers=remote.headers, retry=RetryPolicy(), timeout=30.0, validator=keep)
        found = await source.fetch()
    if as_json:
        sys.stdout.write(msgspec.json.format(raw, indent=2).decode() + "\n")
    elif found is not None:
        _show(found)
    return ExitCode.OK


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
