"""CEL in manifests. What it may say is known elsewhere: a `Check` is given to whoever loads manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from errands.agents.manifests.findings import Place

#: Where an expression stands; each has its own names.
Scope = Literal[
    "middleware_before",
    "middleware_after",
    "guardrail_before",
    "guardrail_after",
    "binding",
    "cel_tool",
    "exposes",
]

#: What an expression is for: a truth, a truth that waits for nobody, or a value.
Role = Literal["assert", "condition", "value"]

_CAPABILITY = re.compile(
    r"(?<![\w.])(?:context|c)\.cap(?:abilities)?(?:\.([A-Za-z_]\w*)|\[\s*'([^']*)'\s*\]|\[\s*\"([^\"]*)\"\s*\])"
)
_MOUNT = re.compile(r"(?<![\w.'\"])mount\.\w+")


class Problem(NamedTuple):
    """What is wrong with an expression."""

    text: str
    remedy: str = ""
    #: Of the expression, from 1.
    line: int | None = None


class Check(Protocol):
    """Says what is wrong with an expression in a scope; nothing if it can be used there."""

    def __call__(self, scope: Scope, source: str, role: Role) -> Sequence[Problem]: ...


def unchecked(scope: Scope, source: str, role: Role) -> Sequence[Problem]:
    """For those who only want to read manifests."""
    return ()


def check_expression(source: str | None, scope: Scope, check: Check, place: Place, role: Role = "value") -> None:
    if source is None or place.is_wrong:
        return
    for problem in check(scope, source, role):
        place.error(problem.text, _remedy(source, scope) or problem.remedy or "mend the expression", line=problem.line)


def _remedy(source: str, scope: Scope) -> str:
    """What people mistake CEL for."""
    if re.fullmatch(r"\{[\w.]+\}", source.strip()):
        return "write it without braces: this is CEL, no template"
    if scope == "binding" and re.fullmatch(r"[\w -]+", source):
        return f"a fixed text needs quotes of its own: \"'{source}'\""
    return ""


def capabilities_in(source: str) -> Iterator[str]:
    """The functions whose records an expression reads."""
    for match in _CAPABILITY.finditer(source):
        yield match[1] or match[2] or match[3] or ""


def uses_mount(source: str) -> bool:
    return _MOUNT.search(source) is not None


def cel_check() -> Check:
    """The checks of `errands.policy`."""
    return unchecked
