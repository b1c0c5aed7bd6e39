"""`errands card`: show an agent's card or report what is wrong with it, sign a card, verify its signatures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import msgspec
from rich.text import Text
from typer import Argument, Option
from typer.core import TyperGroup

from errands.cli.failures import CommandError, ExitCode, UsageError, command
from errands.cli.options import AsJson, Headers, RemoteAgent, Timeout, Token
from errands.cli.printing import clean, count_severities, finding_text, out, print_json, print_raw_json
from errands.client import AgentNotFoundError, CardSignatureError, ProtocolError
from errands.client.agent_session import RetryPolicy
from errands.client.discovery import MAX_CARD, CardSource, card_urls, read_card
from errands.client.http_requests import body_of
from errands.wire import signing_extra
from errands.wire.card_check import CardFinding, CardReport, check_card

_TIMEOUT = 30.0
_OLDER_PATH = CardFinding(
    severity="warning",
    path="",
    problem="is only at the older path, where clients of A2A 0.3 and 1.0 do not look",
    remedy="serve it at /.well-known/agent-card.json too",
)


class CardGroup(TyperGroup):
    """Takes `errands card URL` for `errands card show URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the command unless the first word is one."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["show", *args]
        return super().parse_args(ctx, args)


@command
async def show_card(
    url: Annotated[
        str, Argument(metavar="URL", help="The agent's address, such as http://localhost:8000, or a file with a card.")
    ],
    validate: Annotated[
        bool, Option("--validate", help="Report what is wrong with the card; exit with 1 if it is not valid.")
    ] = False,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Show an agent's card.

    Example:

        errands card show http://localhost:8000
        errands card show http://localhost:8000 --validate
    """
    remote = RemoteAgent(url, header, token)
    if "://" in url:
        remote.check()
        file = None
    else:
        file = _read(url)
    return await (_validate(remote, file, as_json) if validate else _show(remote, file, as_json))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        raise UsageError(f"{path!r} is neither an address such as http://HOST:PORT nor a file") from None


# Showing


async def _show(remote: RemoteAgent, file: bytes | None, as_json: bool) -> ExitCode:
    raw = await _fetch(remote) if file is None else file
    found = read_card(raw)
    if as_json:
        print_raw_json(msgspec.json.format(raw, indent=2))
        return ExitCode.OK
    offered = found.capabilities
    capabilities = {
        "streaming": offered.streaming,
        "push notifications": offered.push_notifications,
        "extended card": offered.extended_agent_card,
    }
    facts = [
        ("interface", f"{face.protocol_binding} {face.protocol_version} at {face.url}")
        for face in found.supported_interfaces
    ]
    facts.append(("offers", ", ".join(name for name, yes in capabilities.items() if yes) or "no extras"))
    facts.append(("takes", ", ".join(found.default_input_modes)))
    facts.append(("gives", ", ".join(found.default_output_modes)))
    facts += [("skill", f"{skill.name}: {skill.description}") for skill in found.skills]
    facts += [("extension", extension.uri) for extension in offered.extensions or []]
    facts += [("security", name) for name in found.security_schemes or {}]
    if found.provider is not None:
        facts.append(("provider", f"{found.provider.organization} ({found.provider.url})"))
    if found.documentation_url is not None:
        facts.append(("documentation", found.documentation_url))
    console = out()
    console.print(clean(f"{found.name} {found.version}"), style="bold")
    console.print(clean(found.description) + "\n")
    for name, value in facts:
        console.print(Text.assemble((f"{name:<15}", "dim"), clean(value)))
    return ExitCode.OK


async def _fetch(remote: RemoteAgent) -> bytes:
    kept: list[bytes] = []
    # Not through A2AClient, which refuses cards without a common binding.
    async with httpx.AsyncClient() as http:
        await CardSource(
            http,
            remote.url,
            headers=remote.headers,
            retry=RetryPolicy(),
            timeout=_TIMEOUT,
            validator=lambda _, raw: kept.append(raw),
        ).fetch()
    return kept[0]


# Validating


async def _validate(remote: RemoteAgent, file: bytes | None, as_json: bool) -> ExitCode:
    place, report = await check_served(remote) if file is None else (remote.url, check_card(file))
    if as_json:
        print_json({"place": place, "valid": report.valid, **msgspec.to_builtins(report)})
    else:
        console = out()
        for finding in report.findings:
            console.print(finding_text(finding.severity, f"{finding.path or 'the card'} {finding.problem}"))
            console.print(Text.assemble(" " * 9, (clean(f"fix: {finding.remedy}"), "dim")))
        form = f"card of A2A {' and '.join(report.versions)}" if report.versions else "agent card"
        summary = count_severities(report.findings)
        verdict = "a valid" if report.valid else "not a valid"
        console.print(clean(f"{place} is {verdict} {form}" + (f": {summary}" if summary else "")), style="bold")
    return ExitCode.OK if report.valid else ExitCode.FAILED


async def check_served(remote: RemoteAgent) -> tuple[str, CardReport]:
    """Check the card that clients get when they do not name a version, as most do not."""
    reasons: list[str] = []
    first, *_ = urls = card_urls(remote.url)
    async with httpx.AsyncClient(headers=remote.headers, timeout=_TIMEOUT, follow_redirects=False) as http:
        for url in urls:
            try:
                async with http.stream("GET", url) as answer:
                    body = await body_of(answer, MAX_CARD)
            except httpx.TransportError as error:
                raise AgentNotFoundError(remote.url, str(error) or type(error).__name__) from error
            except ProtocolError as error:
                reasons.append(f"{urlsplit(url).path}: {error.description}")
                continue
            if answer.status_code == httpx.codes.OK:
                report = check_card(body, fetched_from=url)
                if url != first:
                    report.findings.append(_OLDER_PATH)
                return url, report
            reasons.append(f"{urlsplit(url).path}: HTTP {answer.status_code}")
    raise AgentNotFoundError(remote.url, "; ".join(reasons))


# Signing


@command
def sign_card(
    card: Annotated[Path, Argument(metavar="FILE", help="The file with the card.")],
    key: Annotated[
        list[Path],
        Option("--key", metavar="FILE", help="Sign with this private key, PEM or JWK; may be given several times."),
    ],
    kid: Annotated[
        str | None, Option("--kid", metavar="ID", help="The id of the key; by default that of the JWK or a thumbprint.")
    ] = None,
    jku: Annotated[
        str | None, Option("--jku", metavar="URL", help="The URL of the key set that the signature names.")
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", metavar="FILE", help="Write the signed card to this file instead of the terminal."),
    ] = None,
) -> None:
    """Sign an agent card in a file. Signatures that it already has are kept.

    Example:

        errands card sign card.json --key private.pem --output signed.json
    """
    with signing_extra():
        from errands.wire.card_signing import SigningKey, sign_document  # noqa: PLC0415 - an extra
    if kid is not None and len(key) > 1:
        raise UsageError("--kid names one key; give one --key, or write the ids into JWKs")
    raw = _read(str(card))
    signed = sign_document(raw, read_card(raw), [SigningKey(file, kid=kid, jku=jku) for file in key])
    text = msgspec.json.format(signed, indent=2) + b"\n"
    if output is None:
        sys.stdout.write(text.decode())
        return
    try:
        output.write_bytes(text)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}") from None


@command
async def verify_card(
    url: Annotated[
        str, Argument(metavar="URL", help="The agent's address, such as http://localhost:8000, or a file with a card.")
    ],
    key: Annotated[
        list[Path] | None,
        Option("--key", metavar="FILE", help="Trust this key: PEM, JWK or JWKS; may be given several times."),
    ] = None,
    jwks: Annotated[str | None, Option("--jwks", metavar="URL", help="Trust the keys at this address.")] = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> None:
    """Verify that an agent card is signed with a trusted key; exit with 1 if it is not.

    Example:

        errands card verify signed.json --key public.pem
    """
    with signing_extra():
        from errands.client.card_verifier import CardVerifier  # noqa: PLC0415 - an extra
    if not key and jwks is None:
        raise UsageError("name the keys that you trust with --key FILE or --jwks URL")
    remote = RemoteAgent(url, header, token)
    if "://" in url:
        remote.check()
        raw = await _fetch(remote)
    else:
        raw = _read(url)
    try:
        async with httpx.AsyncClient() as http:
            signature = await CardVerifier(*(key or ()), jwks_url=jwks).verify(http, read_card(raw), raw)
    except CardSignatureError as error:
        raise CommandError(str(error)) from None
    if as_json:
        print_json({"place": url, **signature._asdict()})
    else:
        out().print(clean(f"{url} is signed with the key {signature.kid} ({signature.algorithm})"))
