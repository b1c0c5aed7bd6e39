"""The file of a scripted model: for each agent a list of rules, in JSON or YAML, checked when it is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from errands.agents.manifests.documents import Document, Text
from errands.agents.manifests.findings import ManifestError, Notebook, Place, Source, quoted, suggestion
from errands.agents.manifests.nodes import Unreadable, documents
from errands.agents.manifests.patterns import PatternError, compile_pattern
from errands.agents.manifests.reading import read, texts
from errands.agents.models.base import (
    Answer,
    FunctionCall,
    FunctionSaid,
    Model,
    ModelError,
    ModelSaid,
    OnText,
    Question,
    UserSaid,
)
from errands.agents.models.messages import as_text, messages, unused_id
from errands.errors import ConfigurationError
from errands.policy.cel.values import Json

# script

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


# scripted

#: The model's name. `scripted/NAME` takes the rules of NAME, whoever asks.
NAME = "scripted"

_WORD = re.compile(r"^\s*+\S+\s*+|\S+\s*+")
#: Characters of a text that the patterns of rules look at.
_LOOKED_AT = 10_000


def is_scripted(model: str | None) -> bool:
    return model is not None and model.partition("/")[0] == NAME


class ScriptedModel(Model):
    """Answers every agent, whatever model it names."""

    def __init__(self, script: Script, name: str = NAME) -> None:
        self._script = script
        self._name = name

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        chosen = model if model and is_scripted(model) else self._name
        _, _, agent = chosen.partition("/")
        if agent and not self._script.rules(agent):
            remedy = suggestion(agent, self._script.agents, "check it")
            raise ConfigurationError(f"{chosen}: {self._script.file} has no rules for {agent}; {remedy}")
        return chosen

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        answer = self.answer(question)
        if on_text is not None:
            for word in _WORD.findall(answer.text):
                await on_text(word)
        return answer

    def answer(self, question: Question) -> Answer:
        """What the first rule that fits says. Raises `ModelError` when it uses something that is not there."""
        _, _, own = question.model.partition("/")
        agent = own if own and is_scripted(question.model) else question.agent
        exchange = _Exchange(question)
        for placed in self._script.rules(agent):
            values = exchange.values(placed)
            if values is not None:
                text, calls = _fill(placed, values, exchange.call_ids)
                break
        else:
            text, calls = self._no_rule(agent, exchange), ()
        written = [text, *(as_text(call.arguments) if call.arguments is not None else call.raw for call in calls)]
        return Answer(
            text=text,
            calls=calls,
            model=f"{NAME}/{agent}" if agent else NAME,
            prompt_tokens=_words(*(msgspec.json.encode(message).decode() for message in messages(question))),
            completion_tokens=_words(*written),
        )

    def _no_rule(self, agent: str, exchange: _Exchange) -> str:
        after = f" after {', '.join(exchange.called)}" if exchange.called else ""
        rules = self._script.rules(agent)
        tried = f"none of its {len(rules)} rules fits" if rules else f"it has no rules for the agent {agent!r}"
        return (
            f"This is the scripted model, and I do not know what to say to {quoted(exchange.user)}{after}: {tried}. "
            f"Add one to {self._script.file}, or ask a real model with --model provider/model."
        )


class _Exchange:
    """What rules look at: what the user said last, and what has been called since."""

    def __init__(self, question: Question) -> None:
        self.user = ""
        self.called: list[str] = []
        self.call_ids: set[str] = set()
        #: What functions returned since the user spoke, and at any time.
        self._returned: dict[str, Json] = {}
        self._results: dict[str, Json] = {}
        for said in question.said:
            match said:
                case UserSaid(parts):
                    self.user = "\n".join(str(part["text"]) for part in parts if "text" in part)
                    self.called, self._returned = [], {}
                case ModelSaid(_, calls):
                    self.called += [call.name for call in calls]
                    self.call_ids |= {call.id for call in calls}
                case FunctionSaid(_, name, content):
                    self._returned[name] = self._results[name] = content

    def values(self, placed: Placed) -> dict[str, Json] | None:
        """What a rule's templates may use; None when the rule does not fit."""
        when = placed.rule.when
        found = _found(when.user or "", self.user)
        if found is None or (when.called is not None and when.called != self.called):
            return None
        for function, pattern in (when.returned or {}).items():
            returned = self._returned.get(function)
            if function not in self._returned or not _found(pattern, as_text(returned)):
                return None
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        return {**self._results, **groups}


def _found(pattern: str, text: str) -> Any:
    return compile_pattern(pattern, ignore_case=True).search(text[:_LOOKED_AT])


def _fill(placed: Placed, values: dict[str, Json], used: set[str]) -> tuple[str, tuple[FunctionCall, ...]]:
    try:
        text = as_text(filled(placed.rule.say or "", values))
        calls = tuple(_call(call, values, used) for call in placed.rule.call)
    except Unfilled as error:
        raise ModelError(f"{placed.place}: {error}") from None
    return text, calls


def _call(call: Call, values: dict[str, Json], used: set[str]) -> FunctionCall:
    new = unused_id(used)
    used.add(new)
    if call.raw is not None:
        return FunctionCall(id=new, name=call.function, arguments=None, raw=call.raw)
    return FunctionCall(id=new, name=call.function, arguments=filled(call.arguments, values))


def _words(*texts: str) -> int:
    return sum(len(text.split()) for text in texts)
