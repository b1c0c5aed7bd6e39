"""Findings about manifests: the file, line and field, what is wrong, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from errands.agents.manifests.nodes import Node
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


class Source:
    """A document and its file."""

    def __init__(self, file: str, root: Node | None = None) -> None:
        self.file = file
        self.root = root

    def line(self, path: Path) -> int:
        """Return the line of a field, or of the object it would belong to."""
        return self._find(path)[1]

    def line_of_text(self, path: Path, line: int) -> int:
        """Return the line in the file for a line of the string in a field, both from 1."""
        node, own = self._find(path)
        return node.text_line + line - 1 if node is not None and node.text_line else own

    def _find(self, path: Path) -> tuple[Node | None, int]:
        if self.root is None:
            return None, 0
        node, line = self.root, self.root.line
        for step in path:
            inner = node.child(step)
            if inner is None:
                break
            node, line = inner
        return node, line


class Notebook:
    """Collects findings. Nothing more is reported about a field with an error, or about what is inside it."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._wrong: set[tuple[Source, Path]] = set()

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def error(self, source: Source, path: Path, problem: str, remedy: str, *, line: int | None = None) -> None:
        if not self.is_wrong(source, path):
            self._wrong.add((source, path))
            self._add("error", source, path, problem, remedy, line)

    def warn(self, source: Source, path: Path, problem: str, remedy: str) -> None:
        if not self.is_wrong(source, path):
            self._add("warning", source, path, problem, remedy, None)

    def is_wrong(self, source: Source, path: Path) -> bool:
        return any((source, path[:length]) in self._wrong for length in range(len(path) + 1))

    def is_wrong_inside(self, source: Source, path: Path) -> bool:
        return any(known is source and inner[: len(path)] == path for known, inner in self._wrong)

    def _add(self, severity: Severity, source: Source, path: Path, problem: str, remedy: str, line: int | None) -> None:
        found = source.line(path) if line is None else line
        self.findings.append(
            Finding(
                severity=severity, file=source.file, line=found, field=written(path), problem=problem, remedy=remedy
            )
        )


class Place:
    """A field of a document, and the notebook for findings about it."""

    def __init__(self, notebook: Notebook, source: Source, path: Path = ()) -> None:
        self.notebook = notebook
        self.source = source
        self.path = path

    def __truediv__(self, step: str | int) -> Place:
        return Place(self.notebook, self.source, (*self.path, step))

    def error(self, problem: str, remedy: str, *, line: int | None = None) -> None:
        """`line` is a line of the string in this field, from 1."""
        in_file = None if line is None else self.source.line_of_text(self.path, line)
        self.notebook.error(self.source, self.path, problem, remedy, line=in_file)

    def warn(self, problem: str, remedy: str) -> None:
        self.notebook.warn(self.source, self.path, problem, remedy)

    @property
    def is_wrong(self) -> bool:
        return self.notebook.is_wrong(self.source, self.path)

    @property
    def is_wrong_inside(self) -> bool:
        """Return whether the field, or something in it, has an error."""
        return self.notebook.is_wrong_inside(self.source, self.path)


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
