"""Findings about manifests: the file, line and field, what is wrong, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from errands.agents.manifests.yaml_nodes import Node
from errands.errors import ConfigurationError

#: The keys and indexes that lead from a document's root to one of its values.
Path = tuple[str | int, ...]
Severity = Literal["error", "warning"]

#: Characters of a value that a finding repeats.
_MAX_QUOTED = 80


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a manifest that is wrong, or looks wrong."""

    severity: Severity
    file: str
    #: From 1; 0 for the file as a whole.
    line: int
    #: Such as `capabilities.crm.before[0].assert`; empty for the document or file as a whole.
    field: str
    #: What is wrong: the end of a sentence that begins with the field.
    problem: str
    #: What to do about it.
    remedy: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(filter(None, [place, self.field, f"{self.problem}; {self.remedy}"]))


class ManifestError(ConfigurationError):
    """Manifests that cannot be used; `findings` has everything that is wrong with them, warnings included."""

    def __init__(self, findings: list[Finding]) -> None:
        errors = [finding for finding in findings if finding.severity == "error"]
        more = f"\n{len(errors)} errors in total" if len(errors) > 1 else ""
        super().__init__("\n".join(map(str, errors)) + more)
        self.findings = findings


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


class Place(msgspec.Struct, frozen=True, eq=False):
    """A field of a document, or a file as a whole, and where findings about it are collected.

    Nothing more is reported about a field with an error, or about what is inside it.
    """

    findings: list[Finding]
    file: str
    #: The document; None for the file as a whole.
    root: Node | None = None
    path: Path = ()
    #: The fields of the document that have errors.
    wrong: set[Path] = msgspec.field(default_factory=set)

    def __truediv__(self, step: str | int) -> Place:
        return msgspec.structs.replace(self, path=(*self.path, step))

    def error(self, problem: str, remedy: str, *, line: int | None = None) -> None:
        """`line` is a line of the string in this field, or of the file as a whole, from 1."""
        self._add("error", problem, remedy, line)
        self.wrong.add(self.path)

    def warn(self, problem: str, remedy: str) -> None:
        self._add("warning", problem, remedy)

    def _add(self, severity: Severity, problem: str, remedy: str, line: int | None = None) -> None:
        if not self.is_wrong:
            found, field = self.line(line), written(self.path)
            self.findings.append(
                Finding(severity=severity, file=self.file, line=found, field=field, problem=problem, remedy=remedy)
            )

    @property
    def is_wrong(self) -> bool:
        return any(self.path[:length] in self.wrong for length in range(len(self.path) + 1))

    @property
    def is_wrong_inside(self) -> bool:
        """Return whether the field, or something in it, has an error."""
        return any(path[: len(self.path)] == self.path for path in self.wrong)

    def line(self, of_text: int | None = None) -> int:
        """Return the line of the field, or of the object it would belong to; or of a line of its string."""
        if self.root is None:
            return of_text or 0
        node, line = self.root, self.root.line
        for step in self.path:
            inner = node.child(step)
            if inner is None:
                break
            node, line = inner
        return node.text_line + of_text - 1 if of_text and node.text_line else line


def written(path: Path) -> str:
    """Return a path as people write it."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…"


def suggestion(word: str, choices: Iterable[str], otherwise: str) -> str:
    """Return the remedy for a name that is not among the choices."""
    known = sorted(set(choices))
    if close := difflib.get_close_matches(word, known, 1):
        return f"did you mean {close[0]}?"
    return f"{otherwise}; known: {', '.join(known)}" if known else otherwise
