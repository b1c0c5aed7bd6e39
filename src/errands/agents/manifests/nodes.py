"""The extra that manifests need. Nothing here imports it at the top, so that errands starts without it."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from errands.errors import ConfigurationError

# extra


def from_extra(module: str) -> Any:
    """A module of the extra `agents`. Raises `ConfigurationError` when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"manifests and policy files need an extra ({error}): pip install 'errands[agents]'"
        ) from None


# nodes

#: Values in one document, what aliases stand for included.
MAX_VALUES = 50_000
#: Objects and lists inside each other.
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
#: A text without quotes that begins with a sign of YAML's own.
_SPECIAL = re.compile(r"[:-]\s+([!&%@`])")
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")


class Node(msgspec.Struct, eq=False):
    #: A scalar of JSON, a `list[Node]`, or a `dict[str, Node]`.
    value: Any
    #: From 1.
    line: int
    #: Of the keys of an object.
    key_lines: dict[str, int] = {}
    #: How many values it is made of.
    size: int = 1
    #: Of a text, the line where it begins; for a block it is the one after the | of it.
    text_line: int = 0
    #: Of a number or a word such as `true`, as it is written.
    written: str = ""

    def child(self, step: str | int) -> tuple[Node, int] | None:
        """The value at a key or position, and the line where it is told about."""
        if isinstance(self.value, dict) and isinstance(step, str) and step in self.value:
            return self.value[step], self.key_lines[step]
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            return self.value[step], self.value[step].line
        return None

    def plain(self) -> Any:
        """The same without lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class Unreadable(Exception):
    """This is no YAML, or more of it than we take."""

    def __init__(self, line: int, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.remedy = line, problem, remedy


#: Told about what is wrong and can be passed over: the line, the problem, the remedy.
Complain = Callable[[int, str, str], None]


def documents(text: str, complain: Complain) -> Iterator[Node]:
    """The documents of a file that are not empty. Raises `Unreadable` where it cannot be read any further."""
    yaml = from_extra("yaml")
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                root = _Composer(yaml, events, event.start_mark.index, complain).compose(next(events), 0)
                if root.value is not None:
                    yield root
    except yaml.YAMLError as error:
        raise _unreadable(error, text) from None


def _unreadable(error: Any, text: str) -> Unreadable:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    # An error about a character has no mark.
    line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
    return Unreadable(line, f"is no YAML ({problem})", _remedy("".join(text.split("\n")[line - 1 : line]), problem))


def _remedy(line: str, problem: str) -> str:
    """How to mend a line that is no YAML."""
    if _TAB.match(line):
        return "indent with spaces; YAML allows no tabs there"
    if _STAR.search(line):
        return 'put the star in quotes: "*"'
    if special := _SPECIAL.search(line):
        return f"put the text that begins with {special[1]} in quotes"
    if "mapping values" in problem:
        return "put a text or expression with a colon in it in quotes, or mend the indentation"
    return "mend the syntax there, or put a text with special characters in quotes"


class _Composer:
    def __init__(self, yaml: Any, events: Iterator[Any], start: int, complain: Complain) -> None:
        self._yaml = yaml
        self._events = events
        self._start = start
        self._complain = complain
        #: None while what the anchor stands for is still being read.
        self._anchors: dict[str, Node | None] = {}
        self._size = 0

    def compose(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        if event.start_mark.index - self._start > MAX_DOCUMENT:
            raise Unreadable(line, f"is a document of more than {MAX_DOCUMENT // 1024} KB", "make several of it")
        if isinstance(event, self._yaml.AliasEvent):
            aliased = self._aliased(event.anchor, line)
            self._count(aliased.size, line)
            return aliased
        if depth > MAX_DEPTH:
            raise Unreadable(line, f"has more than {MAX_DEPTH} levels inside each other", "make it flatter")
        if event.anchor:
            self._anchors[event.anchor] = None
        before = self._size
        if isinstance(event, self._yaml.ScalarEvent):
            value = self._scalar(event, line)
            node = Node(value, line, text_line=line + (event.style == "|"), written=event.value)
        elif isinstance(event, self._yaml.SequenceStartEvent):
            node = self._list(line, depth)
        else:
            node = self._object(line, depth)
        self._count(1, line)
        node.size = self._size - before
        if event.anchor:
            self._anchors[event.anchor] = node
        if event.tag and event.tag not in _TEXT_TAGS:
            self._refuse_tag(event.tag, node, line)
        return node

    def _count(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MAX_VALUES:
            raise Unreadable(line, f"stands for more than {MAX_VALUES} values", "use fewer aliases, or split it")

    def _aliased(self, anchor: str, line: int) -> Node:
        if anchor not in self._anchors:
            remedy = f"define it before in the same document with &{anchor}, or put the text in quotes"
            raise Unreadable(line, f"uses *{anchor}, which is not defined", remedy)
        node = self._anchors[anchor]
        if node is None:
            raise Unreadable(line, f"uses *{anchor} inside of itself", "take the alias away")
        return node

    def _list(self, line: int, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self._events), self._yaml.SequenceEndEvent):
            items.append(self.compose(event, depth + 1))
        return Node(items, line)

    def _object(self, line: int, depth: int) -> Node:
        node = Node({}, line, {})
        while not isinstance(event := next(self._events), self._yaml.MappingEndEvent):
            key = self.compose(event, depth + 1)
            value = self.compose(next(self._events), depth + 1)
            self._put(node, key, value, event.start_mark.line + 1)
        return node

    def _put(self, node: Node, key: Node, value: Node, line: int) -> None:
        name = key.value
        if not isinstance(name, str):
            shown = "a list or an object" if isinstance(name, list | dict) else msgspec.json.encode(name).decode()
            self._complain(line, f"has the key {shown}, which is no text", "put the key in quotes")
        elif name == "<<":
            self._complain(line, "has the merge key <<, which is not part of YAML 1.2", "write the fields out")
        elif name in node.value:
            first = node.key_lines[name]
            self._complain(line, f"has the key {name[:80]!r} twice, first on line {first}", "keep one of the two")
        else:
            node.value[name] = value
            node.key_lines[name] = line

    def _refuse_tag(self, tag: str, node: Node, line: int) -> None:
        if tag.startswith("!") and isinstance(node.value, str):
            # Most likely an expression such as !has(input.number), so that is what is looked at further.
            node.value = f"{tag} {node.value}".strip()
            self._complain(line, f"begins with {tag[:80]}, which is a tag of YAML", "put the text in quotes")
        else:
            self._complain(line, f"has the tag {tag[:80]}", "take the tag away: manifests are plain values")

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
                self._complain(line, f"has the number {text[:40]}, which is too large", "put it in quotes")
                return 0
            return float(text)
        return text
