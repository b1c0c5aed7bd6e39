"""Addresses with values in them. A value fills its place and changes nothing else of the address.

    https://api.{region}.example.com/pages/{title}?lang={lang}
            └ part of a host: letters, digits, - and _    └ percent-encoded
                                       └ percent-encoded; never empty, `.` or `..`

An expression at the very beginning gives the address itself or its base, such as `{settings.base_url}/pages`, and is
taken as it is. Wherever it leads, the outbound guard looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

import httpx
import msgspec

from errands.agents.tools.base import BrokenToolError, ToolError

_WHOLE_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_PART_OF_HOST = re.compile(r"[A-Za-z0-9_-]+")
_SEPARATORS = re.compile(r"[/\\]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_END_OF_HOST = re.compile(r"[/?#\\]")


class Value(msgspec.Struct, frozen=True):
    """A piece of an address that an expression gave."""

    text: str


def address(pieces: Sequence[str | Value]) -> httpx.URL:
    """The address of all pieces. Raises `ToolError` for a value that does not fit its place."""
    built = ""
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            built += piece
        elif index == 0:
            built += _base(piece.text, pieces)
        elif _is_in_host(built):
            built += _in_host(piece.text, pieces, index)
        else:
            built += _quoted(piece.text)
    _check_path(pieces)
    return parsed(built)


def parsed(text: str) -> httpx.URL:
    """Raises `BrokenToolError` for what is no address."""
    try:
        parts = urlsplit(text)
        url = httpx.URL(text)
    except (ValueError, httpx.InvalidURL, UnicodeError) as error:
        raise BrokenToolError(f"{text!r} is no address ({error})") from None
    if parts.scheme not in ("http", "https") or not url.host:
        raise BrokenToolError(f"{text!r} is no address; it begins with http:// or https:// and a host")
    if url.userinfo:
        raise BrokenToolError(f"the address at {url.host} has a password in it; put credentials into headers")
    return url


def segment(name: str, text: str) -> str:
    """A value as a whole step of a path. Raises `ToolError` for one that would be another step, or none."""
    if not text:
        raise ToolError(f"{name} is empty, and it is a part of the address")
    _check_steps(text)
    return _quoted(text)


def _base(text: str, pieces: Sequence[str | Value]) -> str:
    """`https://example.com/v1/` before `/pages` is meant without its last slash."""
    following = pieces[1] if len(pieces) > 1 else ""
    return text.rstrip("/") if isinstance(following, str) and following.startswith("/") else text


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _is_in_host(built: str) -> bool:
    """Whether what comes next stands in the host of an address that begins like this."""
    scheme = _SCHEME.match(built)
    return scheme is None or not _END_OF_HOST.search(built, scheme.end())


def _in_host(text: str, pieces: Sequence[str | Value], index: int) -> str:
    before = pieces[index - 1]
    after = pieces[index + 1] if index + 1 < len(pieces) else ""
    is_whole = (
        isinstance(before, str)
        and isinstance(after, str)
        and _SCHEME.fullmatch(before) is not None
        and (not after or _END_OF_HOST.match(after) is not None)
    )
    allowed, described = (
        (_WHOLE_HOST, "a host with or without a port")
        if is_whole
        else (_PART_OF_HOST, "letters, digits, - and _, as it is a part of the address's host")
    )
    if not allowed.fullmatch(text):
        raise ToolError(f"{text!r} cannot be used in the address: it must be {described}")
    return text


def _check_path(pieces: Sequence[str | Value]) -> None:
    """No value may make a step of the path empty, or one that leads upwards."""
    base = pieces[0] if isinstance(pieces[0], str) else "base"
    filled = base + "".join(piece if isinstance(piece, str) else _quoted(piece.text) for piece in pieces[1:])
    # Each value is one mark that stands for itself.
    marked = base + "".join(piece if isinstance(piece, str) else "\0" for piece in pieces[1:])
    for step, mark in zip(_steps(filled), _steps(marked), strict=True):
        if "\0" in mark:
            if not step:
                raise ToolError("a value that is a part of the address is empty")
            _check_steps(unquote(step))


def _steps(text: str) -> list[str]:
    return re.split(r"[?#]", text, maxsplit=1)[0].split("/")


def _check_steps(text: str) -> None:
    # Some servers decode a path before they look at its steps.
    if any(step in (".", "..") for step in _SEPARATORS.split(text)):
        raise ToolError(f"{text!r} cannot be used in the address: `.` and `..` are no names there")
