"""The scripted model: answers by the rules of a file, always the same, without a key or a network.

The file has a list of rules for each agent, in JSON or YAML; docs/models.md describes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from errands.agents.manifests.documents import Document, Text
from errands.agents.manifests.findings import Finding, ManifestError, Place, quoted, suggestion
from errands.agents.manifests.patterns import PatternError, compile_pattern
from errands.agents.manifests.reading import only_document, read
from errands.agents.models import base
from errands.agents.models.base import Answer, FunctionCall, Model, ModelError, OnText, Question
from errands.agents.models.completions import messages, unused_id
from errands.errors import ConfigurationError
from errands.policy.cel.values import Json, as_text

#: The model's name. `scripted/NAME` uses the rules of NAME, whichever agent asks.
NAME = "scripted"
#: The file next to the manifests. It does not end in .yaml, so that it is not taken for a manifest.
FILE = "scripted.json"
#: The key of the rules for agents that have none of their own.
ANY_AGENT = "*"

_WORD = re.compile(r"^\s*+\S+\s*+|\S+\s*+")
_BRACES = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]+)\}")
#: Characters of a text that patterns look at.
_MAX_MATCHED = 10_000


class ScriptCondition(Document, frozen=True):
    """When a rule applies: all of it must hold. Calls and results count from the user's last message."""

    #: A regular expression found in the user's last message, ignoring case.
    user: Text | None = None
    #: Exactly these functions were called, in this order.
    called: list[Text] | None = None
    #: By function: a regular expression found in its last result.
    returned: dict[str, Text] | None = None


class ScriptCall(Document, frozen=True):
    function: Annotated[str, Meta(examples=["orders_find"])]
    #: Strings in it are templates.
    arguments: dict[str, Any] = {}
    #: Used instead of the arguments: a text that is not a JSON object.
    raw: str | None = None


class ScriptRule(Document, frozen=True):
    when: ScriptCondition = ScriptCondition()
    #: A template.
    say: Text | None = None
    call: list[ScriptCall] = []


class _ScriptFile(Document, frozen=True):
    agents: Annotated[dict[str, list[ScriptRule]], Meta(examples=["{...}"])]


def is_scripted(model: str | None) -> bool:
    return model is not None and model.partition("/")[0] == NAME


def script_file(path: str | Path) -> Path:
    """Return the path itself, or `scripted.json` in it if it is a folder."""
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


class ScriptedModel(Model):
    """Answers every agent, whatever model it names, by the script in a file or in `scripted.json` of a folder.

    Raises `ManifestError` with everything that is wrong with the script.
    """

    def __init__(self, path: str | Path, name: str = NAME) -> None:
        self.file = script_file(path)
        self._name = name
        #: By agent: its rules, each with its place, such as `scripted.json:12`.
        self.agents: dict[str, list[tuple[ScriptRule, str]]] = {}
        findings: list[Finding] = []
        if not self.file.exists():
            remedy = "write it, or use another model; see docs/models.md"
            Place(findings, str(self.file)).error("does not exist, and the scripted model needs it", remedy)
        elif place := only_document(self.file, findings, 'write {"agents": {"support": [{"say": "Hello."}]}}'):
            for agent, rules in read(_ScriptFile, place).agents.items():
                self.agents[agent] = []
                for index, rule in enumerate(rules):
                    inner = place / "agents" / agent / index
                    _check_rule(rule, inner)
                    self.agents[agent].append((rule, f"{self.file}:{inner.line()}"))
        if findings:
            raise ManifestError(findings)

    def rules(self, agent: str) -> list[tuple[ScriptRule, str]]:
        """Return the rules of an agent, or those for any. Without a name, those of the only agent there is."""
        if not agent and len(self.agents) == 1:
            return next(iter(self.agents.values()))
        return self.agents.get(agent) or self.agents.get(ANY_AGENT) or []

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        chosen = model if model and is_scripted(model) else self._name
        agent = chosen.partition("/")[2]
        if agent and not self.rules(agent):
            remedy = suggestion(agent, self.agents, "check it")
            raise ConfigurationError(f"{chosen}: {self.file} has no rules for {agent}; {remedy}")
        return chosen

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        answer = self.answer(question)
        if on_text is not None:
            for word in _WORD.findall(answer.text):
                await on_text(word)
        return answer

    def answer(self, question: Question) -> Answer:
        """Answer with the first rule that applies. Raises `ModelError` if it uses a value that is missing."""
        named = question.model.partition("/")[2] if is_scripted(question.model) else ""
        agent = named or question.agent
        situation = _Situation(question)
        rules = self.rules(agent)
        calls: tuple[FunctionCall, ...] = ()
        for rule, place in rules:
            values = situation.match(rule.when)
            if values is None:
                continue
            try:
                text = as_text(filled(rule.say or "", values))
                calls = tuple(situation.call(call, values) for call in rule.call)
                break
            except _MissingValueError as error:
                raise ModelError(f"{place}: {error}") from None
        else:
            tried = f"none of its {len(rules)} rules applies" if rules else f"it has no rules for the agent {agent!r}"
            after = f" after {', '.join(situation.called)}" if situation.called else ""
            text = (
                f"This is the scripted model. It has no answer to {quoted(situation.user)}{after}: {tried}. "
                f"Add a rule to {self.file}, or use a real model with --model provider/model."
            )
        written = [text, *(call.raw if call.arguments is None else as_text(call.arguments) for call in calls)]
        return Answer(
            text=text,
            calls=calls,
            model=f"{NAME}/{agent}" if agent else NAME,
            prompt_tokens=sum(len(as_text(message).split()) for message in messages(question)),
            completion_tokens=sum(len(one.split()) for one in written),
        )


def _check_rule(rule: ScriptRule, place: Place) -> None:
    if rule.say is None and not rule.call:
        place.error("has neither say nor call", "add one of them")
    when = place / "when"
    patterns = [(when / "user", rule.when.user or "")]
    patterns += [(when / "returned" / name, pattern) for name, pattern in (rule.when.returned or {}).items()]
    for inner, pattern in patterns:
        try:
            compile_pattern(pattern)
        except PatternError as error:
            inner.error(f"cannot be matched ({error})", "correct it; a backslash escapes special characters")


class _Situation:
    """What rules look at: the user's last message, and what was called since."""

    def __init__(self, question: Question) -> None:
        self.user = ""
        self.called: list[str] = []
        self._call_ids: set[str] = set()
        #: Results since the user's last message, and of the whole conversation.
        self._returned: dict[str, Json] = {}
        self._results: dict[str, Json] = {}
        for said in question.said:
            match said:
                case base.UserSaid(parts):
                    self.user = "\n".join(str(part["text"]) for part in parts if "text" in part)
                    self.called, self._returned = [], {}
                case base.ModelSaid(_, calls):
                    self.called += [call.name for call in calls]
                    self._call_ids |= {call.id for call in calls}
                case base.FunctionSaid(_, name, content):
                    self._returned[name] = self._results[name] = content

    def match(self, when: ScriptCondition) -> dict[str, Json] | None:
        """Return the values for the templates of a rule; None if it does not apply."""
        found = _search(when.user or "", self.user)
        if found is None or (when.called is not None and when.called != self.called):
            return None
        for function, pattern in (when.returned or {}).items():
            if function not in self._returned or not _search(pattern, as_text(self._returned[function])):
                return None
        return {**self._results, **{name: text for name, text in found.groupdict().items() if text is not None}}

    def call(self, call: ScriptCall, values: Mapping[str, Json]) -> FunctionCall:
        new = unused_id(self._call_ids)
        self._call_ids.add(new)
        if call.raw is not None:
            return FunctionCall(id=new, name=call.function, arguments=None, raw=call.raw)
        return FunctionCall(id=new, name=call.function, arguments=filled(call.arguments, values))


def _search(pattern: str, text: str) -> Any:
    return compile_pattern(pattern, ignore_case=True).search(text[:_MAX_MATCHED])


# Templates


class _MissingValueError(Exception):
    """A template uses a value that is missing."""


def filled(value: Any, values: Mapping[str, Json]) -> Any:
    """Fill in every template in a value; a string that is only a name in braces becomes the value itself."""
    if isinstance(value, dict):
        return {key: filled(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, values) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _BRACES.fullmatch(value)
    if whole and whole["name"]:
        return _lookup(whole["name"], values)
    return _BRACES.sub(lambda found: as_text(_lookup(found["name"], values)) if found["name"] else found[0][0], value)


def _lookup(name: str, values: Mapping[str, Json]) -> Json:
    first, *steps = name.split(".")
    if first not in values:
        raise _MissingValueError(f"{{{name}}} has no value: {first} was not called and is not in the user's message")
    found: Any = values[first]
    for step in steps:
        if isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            raise _MissingValueError(f"{{{name}}} has no value: {first} returned {quoted(values[first])}")
    return found
