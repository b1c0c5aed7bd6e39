"""Findings, and the first thing they are about: whether a card has the shape that a table describes."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal

import msgspec

from errands.model.base import JSON_NAMES
from errands.wire.card_check.shapes import Kind, ListOf, MapOf, Shape


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, or looks wrong, on a card."""

    severity: Literal["error", "warning"]
    #: Where on the card, such as `skills[0].tags`; empty for the card as a whole.
    path: str
    #: What is wrong: the end of a sentence that begins with the path.
    problem: str
    #: What to do about it.
    remedy: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a card."""

    #: The versions whose form the card has, the newest first; none when it is no card.
    versions: list[str]
    #: The errors first.
    findings: list[Finding]

    @property
    def valid(self) -> bool:
        """Whether there is no error; there may be warnings all the same."""
        return not any(finding.severity == "error" for finding in self.findings)


class Notebook:
    """Collects findings while a card is read."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def error(self, path: str, problem: str, remedy: str) -> None:
        self.findings.append(Finding(severity="error", path=path, problem=problem, remedy=remedy))

    def warn(self, path: str, problem: str, remedy: str) -> None:
        self.findings.append(Finding(severity="warning", path=path, problem=problem, remedy=remedy))

    def take(self, value: Any, kind: Kind, path: str) -> Any:
        """`value` without what has the wrong type; None when it has it itself.

        Lists keep their length, so that later findings name the positions on the card.
        """
        expected = _type_of(kind)
        if not _is_of(value, expected):
            self.error(path, f"is {name_of(value)}, not {JSON_NAMES[expected]}", f"write {JSON_NAMES[expected]}")
            return None
        if isinstance(kind, ListOf):
            return [self.take(item, kind.kind, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(kind, MapOf):
            return {key: self.take(item, kind.kind, below(path, key)) for key, item in value.items()}
        return self._take_fields(value, kind, path) if isinstance(kind, Shape) else value

    def _take_fields(self, value: dict[str, Any], shape: Shape, path: str) -> dict[str, Any]:
        value = self.camelized(value, shape.fields, path)
        taken: dict[str, Any] = {}
        for name, field in shape.fields.items():
            place = below(path, name)
            if value.get(name) is None:
                if field.example:
                    self.error(place, "is missing", f"add it, such as {field.example}")
                elif name in value:
                    self.warn(place, "is null", "leave it out, or give it a value")
                continue
            content = self.take(value[name], field.kind, place)
            if content is not None:
                taken[name] = content
            if field.example and content in ("", []):
                self._empty(place, field.kind, field.example)
        return taken

    def _empty(self, path: str, kind: Kind, example: str) -> None:
        if isinstance(kind, ListOf) and kind.filled:
            self.error(path, "is empty, and A2A 1.0 wants at least one", f"write at least one, such as {example}")
        else:
            self.warn(path, "is empty", f"write something, such as {example}")

    def camelized(self, value: dict[str, Any], names: Collection[str], path: str) -> dict[str, Any]:
        """`value` with the known `names` spelled as they should be."""
        renamed = dict(value)
        for key in value:
            name = re.sub(r"_([a-z0-9])", lambda letter: letter[1].upper(), key)
            if key != name and name in names and name not in value:
                self.error(below(path, key), "is written in snake_case", f"call it {name}")
                renamed[name] = renamed.pop(key)
        return renamed


def _type_of(kind: Kind) -> type:
    if isinstance(kind, ListOf):
        return list
    return {"text": str, "flag": bool}.get(kind, dict) if isinstance(kind, str) else dict


def _is_of(value: Any, kind: type) -> bool:
    return type(value) is kind


def name_of(value: Any) -> str:
    return JSON_NAMES[type(value)]


def below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
