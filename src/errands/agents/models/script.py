"""The file of a scripted model: for each agent a list of rules, in JSON or YAML, checked when it is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from errands.agents.manifests.documents import Document, Text
from errands.agents.manifests.files import texts
from errands.agents.manifests.findings import ManifestError, Notebook, Place, Source, quoted, suggestion
from errands.agents.manifests.nodes import Unreadable, documents
from errands.agents.manifests.patterns import PatternError, compile_pattern
from errands.agents.manifests.reading import read
from errands.agents.models.messages import as_text
from errands.policy.cel.values import Json

#: Beside the manifests. As it is no .yaml, nobody takes it for one.
FILE = "scripted.json"
#: The rules for agents that have none under their own name.
ANY_AGENT = "*"

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])")
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
_ESCAPE = "write {{ and }} for braces that are text"


class When(Document, frozen=True):
    """All of it must hold. What has been said and called counts from the user's last message."""

    #: A regular expression that is found in the user's last message, whatever its case.
    user: Text | None = None
    #: Exactly these functions have been called, in this order.
    called: list[Text] | None = None
    #: By function: a regular expression that is found in what it returned last.
    returned: dict[str, Text] | None = None


class Call(Document, frozen=True):
    function: Annotated[str, Meta(examples=["orders_find"])]
    #: Texts in it are templates.
    arguments: dict[str, Any] = {}
    #: Written instead of the arguments: for what is no JSON object.
    raw: str | None = None


class Rule(Document, frozen=True):
    when: When = When()
    #: A template.
    say: Text | None = None
    call: list[Call] = []


class _File(Document, frozen=True):
    agents: Annotated[dict[str, list[Rule]], Meta(examples=["{...}"])]


class Placed(msgspec.Struct, frozen=True):
    """A rule, and where it stands, such as `scripted.json:12`."""

    rule: Rule
    place: str


class Script(msgspec.Struct, frozen=True):
    """Rules by the name of their agent."""

    file: str
    agents: dict[str, list[Placed]]

    def rules(self, agent: str) -> list[Placed]:
        """Those of the agent, or those for any. Without a name, those of the only agent there is."""
        if not agent and len(self.agents) == 1:
            return next(iter(self.agents.values()))
        return self.agents.get(agent) or self.agents.get(ANY_AGENT) or []


def script_file(path: str | Path) -> Path:
    """The path itself, or the `scripted.json` in it if it is a folder."""
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def load_script(path: str | Path) -> Script:
    """The script in a file, or in the `scripted.json` of a folder. Raises `ManifestError` with all that is wrong."""
    path = script_file(path)
    notebook = Notebook()
    agents: dict[str, list[Placed]] = {}
    if not path.exists():
        problem = "is not there, and the scripted model answers from it"
        notebook.error(Source(str(path)), (), problem, "write it, or name another model; see docs/models.md")
        raise ManifestError(notebook.findings)
    for file, text in texts(path, notebook):
        if text is not None:
            agents = _read(file, text, notebook)
    if notebook.findings:
        raise ManifestError(notebook.findings)
    return Script(str(path), agents)


def _read(file: str, text: str, notebook: Notebook) -> dict[str, list[Placed]]:
    def complain(line: int, problem: str, remedy: str) -> None:
        notebook.error(Source(file), (), problem, remedy, line=line)

    try:
        roots = list(documents(text, complain))
    except Unreadable as error:
        complain(error.line, error.problem, error.remedy)
        return {}
    if len(roots) != 1:
        complain(0, f"has {len(roots)} documents", 'write one, such as {"agents": {"support": [{"say": "Hello."}]}}')
        return {}
    source = Source(file, roots[0])
    place = Place(notebook, source)
    agents = read(_File, roots[0], place).agents
    for name, rules in agents.items():
        _check_agent(rules, place / "agents" / name)
    return {
        name: [Placed(rule, f"{file}:{source.line(('agents', name, index))}") for index, rule in enumerate(rules)]
        for name, rules in agents.items()
    }


# What is checked


def _check_agent(rules: list[Rule], place: Place) -> None:
    functions = {call.function for rule in rules for call in rule.call}
    for index, rule in enumerate(rules):
        _check_rule(rule, functions, place / index)


def _check_rule(rule: Rule, functions: set[str], place: Place) -> None:
    if rule.say is None and not rule.call:
        place.error("neither says nor calls anything", "add say or call")
    when = place / "when"
    groups = _check_pattern(rule.when.user, when / "user")
    for index, function in enumerate(rule.when.called or []):
        _check_function(function, functions, when / "called" / index)
    for function, pattern in (rule.when.returned or {}).items():
        _check_function(function, functions, when / "returned" / function)
        _check_pattern(pattern, when / "returned" / function)
    _check_texts(rule.say, functions | groups, place / "say")
    for index, call in enumerate(rule.call):
        _check_texts(call.arguments, functions | groups, place / "call" / index / "arguments")


def _check_pattern(pattern: str | None, place: Place) -> set[str]:
    """The names of its groups."""
    try:
        return set(compile_pattern(pattern or "").groupindex)
    except PatternError as error:
        place.error(f"cannot be matched ({error})", "correct it; \\ before a sign takes it as it is")
        return set()


def _check_function(name: str, functions: set[str], place: Place) -> None:
    if name not in functions:
        place.error(f"names {quoted(name)}, which no rule of this agent calls", suggestion(name, functions, "check it"))


def _check_texts(value: Any, names: set[str], place: Place) -> None:
    """Every text in a value is a template that uses only what there can be."""
    if isinstance(value, str):
        for piece in _PIECE.finditer(value):
            name = piece["name"]
            if piece["stray"] or (name is not None and not _NAME.fullmatch(name)):
                place.error(f"has {quoted(piece[0])}, which is no name in braces", _ESCAPE)
            elif name is not None and name.partition(".")[0] not in names:
                remedy = suggestion(name.partition(".")[0], names, "use a group of when.user or a function")
                place.error(f"uses {{{name}}}, which is neither a group of when.user nor a function called", remedy)
    else:
        for step, inner in _items(value):
            _check_texts(inner, names, place / step)


def _items(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


# Templates


class Unfilled(Exception):
    """A template uses something that is not there."""


def filled(value: Any, values: Mapping[str, Json]) -> Any:
    """The same with every template in it filled; a text that is one name in braces becomes the value itself.

    Raises `Unfilled`.
    """
    if isinstance(value, dict):
        return {key: filled(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, values) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _PIECE.fullmatch(value)
    if whole and whole["name"]:
        return _lookup(whole["name"], values)
    return _PIECE.sub(_filler(values), value)


def _filler(values: Mapping[str, Json]) -> Callable[[re.Match[str]], str]:
    return lambda piece: as_text(_lookup(piece["name"], values)) if piece["name"] else piece[0][0]


def _lookup(name: str, values: Mapping[str, Json]) -> Json:
    first, *steps = name.split(".")
    if first not in values:
        raise Unfilled(f"{{{name}}} has no value: {first} was not called, or is not in what the user said")
    found: Any = values[first]
    for step in steps:
        if isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            raise Unfilled(f"{{{name}}} has no value: {first} returned {quoted(values[first])}")
    return found
