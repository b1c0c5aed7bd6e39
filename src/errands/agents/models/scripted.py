"""The scripted model: it answers by the rules of a file, always the same, and needs neither a key nor a network."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from errands.agents.manifests.findings import quoted, suggestion
from errands.agents.manifests.patterns import compile_pattern
from errands.agents.models.assembling import unused_id
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
from errands.agents.models.messages import as_text, messages
from errands.agents.models.script import Call, Placed, Script, Unfilled, filled
from errands.errors import ConfigurationError
from errands.policy.cel.values import Json

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
