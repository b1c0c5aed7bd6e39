"""Parse YAML into a tree in which every value knows its line. Only values that JSON has are accepted.

Plain words are read as in YAML 1.2: `no`, `on` and `2026-01-31` are strings. Anchors are allowed, within bounds; tags,
merge keys and keys that are not strings are reported. The tree is built from PyYAML's events and not by PyYAML, so that
aliases and nesting are bounded while it grows.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from errands.errors import ConfigurationError

#: Values in one document, with aliases expanded.
MAX_VALUES = 50_000
#: Nested objects and lists.
MAX_DEPTH = 40
#: Characters in one document.
MAX_DOCUMENT = 512 * 1024

_INTEGER = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TAB = re.compile(r" *\t")
#: An asterisk without quotes, which begins an alias.
_STAR = re.compile(r"[:,{\[-]\s*\*\s*([,}\]#]|$)")
#: A string without quotes that begins with a special character of YAML.
_SPECIAL = re.compile(r"[:-]\s+([!&%@`])")
_STRING_TAGS = ("!", "tag:yaml.org,2002:str")

#: Called with the line, the problem and the remedy of a mistake after which parsing continues.
OnProblem = Callable[[int, str, str], None]


def from_extra(module: str) -> Any:
    """Import a module of the extra `agents`. Raises `ConfigurationError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"manifests and policy files need an extra ({error}): pip install 'errands[agents]'"
        ) from None


class Node(msgspec.Struct, eq=False):
    #: A scalar of JSON, a `list[Node]`, or a `dict[str, Node]`.
    value: Any
    #: From 1.
    line: int
    #: The lines of the keys of an object.
    key_lines: dict[str, int] = {}
    #: The number of values in it.
    size: int = 1
    #: The line on which a string begins; for a block that is the line after its |.
    text_line: int = 0
    #: A number or a word such as `true` as it is written.
    written: str = ""

    def child(self, step: str | int) -> tuple[Node, int] | None:
        """Return the value at a key or index, and the line to report for it."""
        if isinstance(self.value, dict) and isinstance(step, str) and step in self.value:
            return self.value[step], self.key_lines[step]
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            return self.value[step], self.value[step].line
        return None

    def plain(self) -> Any:
        """Return the value without lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class UnreadableError(Exception):
    """The text is not YAML, or exceeds the bounds."""

    def __init__(self, line: int, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.remedy = line, problem, remedy


def documents(text: str, report: OnProblem) -> Iterator[Node]:
    """Yield the documents of a file that are not empty. Raises `UnreadableError` where parsing cannot continue."""
    yaml = from_extra("yaml")
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                root = _Composer(yaml, events, event.start_mark.index, report).compose(next(events), 0)
                if root.value is not None:
                    yield root
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        # An error about a character has a position instead of a mark.
        line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
        written = "".join(text.split("\n")[line - 1 : line])
        remedy = "fix the syntax there, or put a string with special characters in quotes"
        if _TAB.match(written):
            remedy = "indent with spaces; YAML does not allow tabs there"
        elif _STAR.search(written):
            remedy = 'put the star in quotes: "*"'
        elif special := _SPECIAL.search(written):
            remedy = f"put the string that begins with {special[1]} in quotes"
        elif "mapping values" in problem:
            remedy = "put a string or expression that contains a colon in quotes, or fix the indentation"
        raise UnreadableError(line, f"is not valid YAML ({problem})", remedy) from None


class _Composer:
    def __init__(self, yaml: Any, events: Iterator[Any], start: int, report: OnProblem) -> None:
        self._yaml = yaml
        self._events = events
        self._start = start
        self._report = report
        #: None while the anchored value is still being read.
        self._anchors: dict[str, Node | None] = {}
        self._size = 0

    def compose(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        if event.start_mark.index - self._start > MAX_DOCUMENT:
            raise UnreadableError(line, f"is a document of more than {MAX_DOCUMENT // 1024} KB", "split it")
        if isinstance(event, self._yaml.AliasEvent):
            if event.anchor not in self._anchors:
                remedy = f"define it before in the same document with &{event.anchor}, or put the string in quotes"
                raise UnreadableError(line, f"uses *{event.anchor}, which is not defined", remedy)
            aliased = self._anchors[event.anchor]
            if aliased is None:
                raise UnreadableError(line, f"uses *{event.anchor} inside itself", "remove the alias")
            self._count(aliased.size, line)
            return aliased
        if depth > MAX_DEPTH:
            raise UnreadableError(line, f"has more than {MAX_DEPTH} nested levels", "make it flatter")
        if event.anchor:
            self._anchors[event.anchor] = None
        before = self._size
        if isinstance(event, self._yaml.ScalarEvent):
            value = self._scalar(event, line)
            node = Node(value, line, text_line=line + (event.style == "|"), written=event.value)
        elif isinstance(event, self._yaml.SequenceStartEvent):
            node = Node([], line)
            while not isinstance(event_inside := next(self._events), self._yaml.SequenceEndEvent):
                node.value.append(self.compose(event_inside, depth + 1))
        else:
            node = Node({}, line, {})
            while not isinstance(event_inside := next(self._events), self._yaml.MappingEndEvent):
                key = self.compose(event_inside, depth + 1)
                value = self.compose(next(self._events), depth + 1)
                self._put(node, key.value, value, event_inside.start_mark.line + 1)
        self._count(1, line)
        node.size = self._size - before
        if event.anchor:
            self._anchors[event.anchor] = node
        tag = event.tag or "!"
        if tag.startswith("!") and tag not in _STRING_TAGS and isinstance(node.value, str):
            # Most likely an expression such as !has(input.number): it is checked as one.
            node.value = f"{tag} {node.value}".strip()
            self._report(line, f"begins with {tag[:80]}, which is a tag of YAML", "put the string in quotes")
        elif tag not in _STRING_TAGS:
            self._report(line, f"has the tag {tag[:80]}", "remove the tag: manifests have plain values")
        return node

    def _count(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MAX_VALUES:
            raise UnreadableError(line, f"contains more than {MAX_VALUES} values", "use fewer aliases, or split it")

    def _put(self, node: Node, name: Any, value: Node, line: int) -> None:
        if not isinstance(name, str):
            shown = "a list or an object" if isinstance(name, list | dict) else msgspec.json.encode(name).decode()
            self._report(line, f"has the key {shown}, which is not a string", "put the key in quotes")
        elif name == "<<":
            self._report(line, "has the merge key <<, which is not part of YAML 1.2", "write the fields out")
        elif name in node.value:
            first = node.key_lines[name]
            self._report(line, f"has the key {name[:80]!r} twice, first on line {first}", "keep one of the two")
        else:
            node.value[name] = value
            node.key_lines[name] = line

    def _scalar(self, event: Any, line: int) -> Any:
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text, 10 if text.lstrip("+-").isdigit() else 0)
        if _FLOAT.fullmatch(text):
            if len(text) > 40 or not math.isfinite(float(text)):
                self._report(line, f"has the number {text[:40]}, which is too large", "put it in quotes")
                return 0
            return float(text)
        return text
