"""The console's answers to GET requests: one page for every address, and the files that it loads.

The page and its files are static. Their scripts fetch everything they show through A2A and the operator API, with the
credentials of the user who has signed in. Addresses are relative, so the console works wherever it is mounted.

Text from agents is shown as text and never runs: the headers below allow only scripts and styles of this folder, no
inline ones, no HTML made from strings, and no connections to other origins than those of the OpenID providers at which
people sign in.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from contextlib import suppress
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

import msgspec

from errands.version import __version__

Header = tuple[bytes, bytes]

#: The prefix of the files. Every other path of the console serves the page.
STATIC = "/console/static/"

#: The extension of a card with the OAuth clients with which people sign in: `{"clients": {scheme: client id}}`.
SIGN_IN_EXTENSION = "urn:errands:sign-in:1"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_PAGE_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
#: For the files, none of which is shown as a page.
_FILE_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_MEDIA_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
}
#: The origin of an address, without what would end it in a policy.
_ORIGIN = re.compile(r"https?://[\w.:\[\]-]+(?=/|$)", re.ASCII)
#: Licences and other texts.
_PLAIN_TEXT = b"text/plain; charset=utf-8"
#: Modules that every page needs. Without this list a browser would find them one after the other.
_PRELOADED = ("vendor/preact.js", "api.js")

_PAGE = """\
<!doctype html>
<html lang="en" data-root="{root}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="errands-version" content="{version}">
<title>{title}</title>
<link rel="stylesheet" href="{static}style.css">
{preloads}
<script type="module" src="{static}app.js"></script>
<script type="application/json" id="card">{card}</script>
</head>
<body>
<div id="app"><p class="boot">Loading the console …</p></div>
<noscript><p class="boot">The console needs JavaScript. The command line does not: errands --help</p></noscript>
</body>
</html>
"""


class _Extension(msgspec.Struct):
    uri: str
    params: dict[str, dict[str, str]] | None = None


class _Capabilities(msgspec.Struct):
    extensions: list[msgspec.Raw] = []


class _OpenIdConnect(msgspec.Struct, rename="camel"):
    open_id_connect_url: str


class _Scheme(msgspec.Struct, rename="camel"):
    open_id_connect_security_scheme: _OpenIdConnect | None = None


class _Card(msgspec.Struct, rename="camel"):
    """What the policy of the page depends on."""

    capabilities: _Capabilities = msgspec.field(default_factory=_Capabilities)
    security_schemes: dict[str, _Scheme] = {}


class ConsoleAnswer(NamedTuple):
    """A response. The answer to HEAD is the same without the body."""

    status: int
    body: bytes
    media_type: bytes
    headers: tuple[Header, ...]


class StaticFile(NamedTuple):
    """A file of the console, plain and compressed."""

    content: bytes
    compressed: bytes
    media_type: bytes
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the files of the console by their paths below `static`. They are read once."""
    found: dict[str, StaticFile] = {}

    def collect(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                collect(entry, f"{prefix}{entry.name}/")
                continue
            content = entry.read_bytes()
            _, dot, ending = entry.name.rpartition(".")
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            media_type = _MEDIA_TYPES.get(dot + ending, _PLAIN_TEXT)
            found[prefix + entry.name] = StaticFile(content, gzip.compress(content, 9, mtime=0), media_type, etag)

    collect(files("errands.console").joinpath("static"), "")
    return found


def answer(path: str, *, card: bytes, accept_encoding: str = "", if_none_match: str = "") -> ConsoleAnswer | None:
    """Return the answer to a GET request for a path of the console, or None if the file does not exist.

    `card` is the agent's public card in JSON, which the page contains; the other arguments are headers of the request.
    """
    if not path.startswith(STATIC):
        policy = (b"content-security-policy", policy_of(card).encode())
        headers = (policy, *_PAGE_HEADERS, (b"cache-control", b"no-store"))
        return ConsoleAnswer(200, page(path, card), b"text/html; charset=utf-8", headers)
    file = static_files().get(path.removeprefix(STATIC))
    if file is None:
        return None
    headers = (
        *_FILE_HEADERS,
        (b"etag", file.etag.encode()),
        # Addresses contain no version, so browsers ask every time; the usual answer is 304.
        (b"cache-control", b"no-cache"),
        (b"vary", b"accept-encoding"),
    )
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    if "*" in known or file.etag in known:
        return ConsoleAnswer(304, b"", file.media_type, headers)
    if _accepts_gzip(accept_encoding):
        return ConsoleAnswer(200, file.compressed, file.media_type, (*headers, (b"content-encoding", b"gzip")))
    return ConsoleAnswer(200, file.content, file.media_type, headers)


def policy_of(card: bytes) -> str:
    """Return the policy of the page. It lets the page connect to the providers at which people sign in."""
    if SIGN_IN_EXTENSION.encode() not in card:
        return CONTENT_SECURITY_POLICY
    found = msgspec.json.decode(card, type=_Card)
    clients: dict[str, str] = {}
    for raw in found.capabilities.extensions:
        with suppress(msgspec.ValidationError):  # the parameters of other extensions may be anything
            extension = msgspec.json.decode(raw, type=_Extension)
            if extension.uri == SIGN_IN_EXTENSION:
                clients = (extension.params or {}).get("clients", {})
    connect = "connect-src 'self'"
    for name, scheme in found.security_schemes.items():
        if name in clients and scheme.open_id_connect_security_scheme is not None:
            origin = _ORIGIN.match(scheme.open_id_connect_security_scheme.open_id_connect_url)
            connect += f" {origin[0]}" if origin else ""
    return CONTENT_SECURITY_POLICY.replace("connect-src 'self'", connect)


def page(path: str, card: bytes) -> bytes:
    """Return the page for a path below the mount point, with relative addresses that lead back to it."""
    root = "../" * (path.count("/") - 1) or "./"
    static = root + STATIC.removeprefix("/")
    preloads = "\n".join(f'<link rel="modulepreload" href="{static}{name}">' for name in _PRELOADED)
    # In JSON `<` only occurs in strings. It is escaped, so that no string can end the element.
    shown = card.replace(b"<", b"\\u003c").decode()
    return _PAGE.format(
        root=root, static=static, preloads=preloads, title="errands", version=escape(__version__), card=shown
    ).encode()


def _accepts_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.split(","):
        name, _, weight = coding.strip().partition(";")
        if name.strip() == "gzip":
            return weight.strip().replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
