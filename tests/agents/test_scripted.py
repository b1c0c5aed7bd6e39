"""The scripted model: rules, templates, what is said about wrong scripts, and the script of the example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from errands.agents import manifests
from errands.agents.manifests.documents import Agent, Cel, Tool
from errands.agents.manifests.findings import ManifestError
from errands.agents.manifests.functions import backend
from errands.agents.models import model_from
from errands.agents.models.base import (
    Answer,
    FunctionCall,
    FunctionSaid,
    ModelError,
    ModelSaid,
    Question,
    Said,
    UserSaid,
)
from errands.agents.models.scripted import ScriptedModel
from errands.errors import ConfigurationError
from errands.policy import cel
from errands.policy.cel import scopes
from tests.agents.support import Heard, question, said_by_user

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "support-agent"

ORDERS = {"function": "orders", "arguments": {"number": "{number}", "deep": [{"same": "no. {number}"}], "plain": 1}}


def scripted(folder: Path, *rules: dict[str, Any], **agents: list[dict[str, Any]]) -> ScriptedModel:
    """A model with these rules, for the agent `support` unless others are named."""
    file = folder / "scripted.json"
    file.write_text(json.dumps({"agents": {**({"support": list(rules)} if rules else {}), **agents}}, indent=2))
    return ScriptedModel(file)


def asked(*said: Said, agent: str = "support", model: str = "scripted") -> Question:
    return question(*said, agent=agent, model=model)


def called(name: str, result: Any, call_id: str = "call_1") -> tuple[Said, Said]:
    return ModelSaid(calls=(FunctionCall(call_id, name, {}),)), FunctionSaid(call_id, name, result)


# Rules


async def test_the_first_rule_that_fits_answers(tmp_path: Path) -> None:
    model = scripted(tmp_path, {"when": {"user": "^bye"}, "say": "Bye."}, {"say": "Hello."}, {"say": "Never."})
    assert (await model.ask(asked(said_by_user("BYE now")))).text == "Bye."
    assert (await model.ask(asked(said_by_user("good bye")))).text == "Hello."


async def test_text_is_streamed_word_by_word(tmp_path: Path) -> None:
    heard = Heard()
    answer = await scripted(tmp_path, {"say": " One  two\nthree."}).ask(asked(said_by_user("Hi")), heard)
    assert heard.pieces == [" One  ", "two\n", "three."]
    assert "".join(heard.pieces) == answer.text


async def test_an_answer_counts_words_and_is_always_the_same(tmp_path: Path) -> None:
    model = scripted(tmp_path, {"say": "One two three."})
    answer = await model.ask(asked(said_by_user("Hi you")))
    assert answer == await model.ask(asked(said_by_user("Hi you")))
    assert (answer.model, answer.completion_tokens, answer.estimated) == ("scripted/support", 3, False)
    longer = await model.ask(asked(said_by_user("Hi you there")))
    assert longer.prompt_tokens == answer.prompt_tokens + 1


async def test_a_call_takes_what_the_user_said(tmp_path: Path) -> None:
    model = scripted(tmp_path, {"when": {"user": r"(?P<number>[A-Z]-\d+)"}, "say": "One moment.", "call": [ORDERS]})
    answer = await model.ask(asked(said_by_user("Where is A-17?")))
    assert answer.text == "One moment."
    assert answer.calls == (
        FunctionCall("call_1", "orders", {"number": "A-17", "deep": [{"same": "no. A-17"}], "plain": 1}),
    )


async def test_a_text_takes_what_functions_returned(tmp_path: Path) -> None:
    model = scripted(
        tmp_path,
        {"when": {"called": []}, "call": [{"function": "orders"}]},
        {"say": "{{{orders.items.1.name}}} for {orders.paid}: {orders.items}"},
    )
    result = {"items": [{"name": "cup"}, {"name": "kettle"}], "paid": 45.5}
    answer = await model.ask(asked(said_by_user("Hi"), *called("orders", result)))
    assert answer.text == '{kettle} for 45.5: [{"name":"cup"},{"name":"kettle"}]'


async def test_a_text_that_is_one_name_in_braces_is_the_value_itself(tmp_path: Path) -> None:
    model = scripted(
        tmp_path,
        {"when": {"called": []}, "call": [{"function": "orders"}]},
        {"call": [{"function": "pay", "arguments": {"amount": "{orders.paid}"}}]},
    )
    answer = await model.ask(asked(said_by_user("Hi"), *called("orders", {"paid": 45})))
    assert answer.calls == (FunctionCall("call_2", "pay", {"amount": 45}),)


async def test_what_was_called_counts_from_the_last_message_and_results_from_the_first(tmp_path: Path) -> None:
    model = scripted(
        tmp_path,
        {"when": {"called": ["orders"], "returned": {"orders": "kettle"}}, "say": "A kettle."},
        {"when": {"called": ["orders"]}, "say": "No kettle."},
        {"when": {"user": "yes"}, "say": "So the {orders.item}."},
        {"call": [{"function": "orders"}]},
    )
    first = said_by_user("Hi"), *called("orders", {"item": "KETTLE"})
    assert (await model.ask(asked(*first))).text == "A kettle."
    second = said_by_user("Hi"), *called("orders", {"item": "cup"})
    assert (await model.ask(asked(*second))).text == "No kettle."
    assert (await model.ask(asked(*second, ModelSaid("No kettle."), said_by_user("Yes!")))).text == "So the cup."


async def test_what_is_called_may_be_no_json(tmp_path: Path) -> None:
    answer = await scripted(tmp_path, {"call": [{"function": "orders", "raw": "{oops"}]}).ask(asked(said_by_user("Hi")))
    assert answer.calls == (FunctionCall("call_1", "orders", None, raw="{oops"),)


async def test_each_agent_has_its_own_rules_and_a_star_stands_for_the_rest(tmp_path: Path) -> None:
    model = scripted(tmp_path, support=[{"say": "I help."}], analyst=[{"say": "I think."}], **{"*": [{"say": "I am."}]})

    async def says(agent: str, model_name: str = "scripted") -> str:
        return (await model.ask(asked(said_by_user("Hi"), agent=agent, model=model_name))).text

    assert [await says("support"), await says("analyst"), await says("other")] == ["I help.", "I think.", "I am."]
    assert await says("support", "scripted/analyst") == "I think."


async def test_an_agent_whose_name_is_not_known_gets_the_rules_of_the_only_one(tmp_path: Path) -> None:
    assert (await scripted(tmp_path, {"say": "I help."}).ask(asked(said_by_user("Hi"), agent=""))).text == "I help."


async def test_when_no_rule_fits_the_model_says_so(tmp_path: Path) -> None:
    model = scripted(tmp_path, {"when": {"user": "bye"}, "say": "Bye.", "call": [{"function": "orders"}]})
    answer = await model.ask(asked(said_by_user("Hi"), *called("orders", {})))
    assert answer.text == (
        "This is the scripted model. It has no answer to 'Hi' after orders: none of its 1 rules applies. "
        f"Add a rule to {tmp_path / 'scripted.json'}, or use a real model with --model provider/model."
    )
    unknown = await model.ask(asked(said_by_user("Hi"), agent="other"))
    assert "it has no rules for the agent 'other'" in unknown.text


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"item": "cup"}, "{orders.paid} has no value: orders returned {'item': 'cup'}"),
        ([1], "{orders.paid} has no value: orders returned [1]"),
    ],
)
async def test_a_value_that_is_not_there_is_named_with_the_line_of_its_rule(
    tmp_path: Path, result: Any, told: str
) -> None:
    rules = {"when": {"called": []}, "call": [{"function": "orders"}]}, {"say": "{orders.paid}"}
    model = scripted(tmp_path, *rules)
    with pytest.raises(ModelError) as error:
        await model.ask(asked(said_by_user("Hi"), *called("orders", result)))
    assert str(error.value) == f"{tmp_path / 'scripted.json'}:14: {told}"


# Wrong scripts


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "1: agents: is missing; add agents: {...}"),
        ("", "has 0 documents; write "),
        ('{"agents": [}', "1: is not valid YAML ("),
        ('{"agents": {"a": [{"says": "Hi"}]}}', "1: agents.a[0].says: is unknown; did you mean say?"),
        ('{"agents": {"a": "Hi"}}', "1: agents.a: is a string, not a list; write a list"),
        ('{"agents":\n{"a": [\n{}]}}', "3: agents.a[0]: has neither say nor call; add one of them"),
        (
            '{"agents": {"a": [{"when": {"user": "("}, "say": "Hi"}]}}',
            "1: agents.a[0].when.user: cannot be matched (missing ): ()",
        ),
        (
            '{"agents": {"a": [{"when": {"user": "(?=a)b"}, "say": "Hi"}]}}',
            (
                "1: agents.a[0].when.user: cannot be matched (invalid perl operator: (?=; look-around and "
                "back-references are not supported)"
            ),
        ),
        ('{"agents": {"a": [{"call": [{"arguments": {}}]}]}}', "1: agents.a[0].call[0].function: is missing; add"),
    ],
)
def test_a_wrong_script_is_refused_with_line_and_field(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError) as error:
        ScriptedModel(file)
    assert str(error.value).removeprefix(str(file)).removeprefix(":").strip().startswith(told)


def test_a_script_that_is_not_there_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(
        ManifestError, match=r"scripted\.json: does not exist, and the scripted model needs it; write it"
    ):
        ScriptedModel(tmp_path)


# Choosing


async def test_scripted_answers_every_agent_whatever_it_names(tmp_path: Path) -> None:
    scripted(tmp_path, {"say": "I help."})
    model = model_from("scripted", script=tmp_path)
    assert model.resolve("openai/gpt-4o-mini", ("web-search",)) == "scripted"
    assert model.resolve(None) == "scripted"
    assert (await model.ask(asked(said_by_user("Hi")))).text == "I help."


async def test_an_agent_may_name_the_scripted_model_beside_others(tmp_path: Path) -> None:
    scripted(tmp_path, {"say": "I help."})
    model = model_from("openai/gpt-test", api_key="sk-test", script=tmp_path)
    assert model.resolve(None) == "openai/gpt-test"
    assert model.resolve("scripted/support") == "scripted/support"
    assert (await model.ask(question(model="scripted/support"))).text == "I help."
    await model.close()


def test_rules_that_are_not_there_are_refused_when_the_agent_is_loaded(tmp_path: Path) -> None:
    scripted(tmp_path, {"say": "I help."})
    with pytest.raises(ConfigurationError, match=r"scripted\.json has no rules for suport; did you mean support\?"):
        model_from("scripted", script=tmp_path).resolve("scripted/suport")


def test_a_key_that_is_missing_comes_with_the_model_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY; or try --model scripted, which needs no key"):
        model_from(None, script=EXAMPLE).resolve("openai/gpt-4o-mini")
    with pytest.raises(ConfigurationError, match=r"set OPENAI_API_KEY$"):
        model_from(None, script=tmp_path).resolve("openai/gpt-4o-mini")


def test_scripted_without_a_script_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"needs a script: put scripted\.json next to the manifests"):
        model_from("scripted")


# The example


class Example:
    """Answers by the example's script, with its real tools and without its policy."""

    def __init__(self) -> None:
        self.manifests = manifests.load(EXAMPLE)
        self.model = model_from("scripted", script=EXAMPLE)
        self.paid: list[dict[str, Any]] = []

    def agent(self, name: str) -> Agent:
        return next(agent for agent in self.manifests.agents if agent.name == name)

    async def exchange(self, agent: str, text: str) -> tuple[list[str], str]:
        """The functions that were called, and the last answer."""
        said: list[Said] = [said_by_user(text)]
        names: list[str] = []
        while True:
            answer = await self.model.ask(question(*said, agent=agent, model="scripted"))
            if not answer.calls:
                return names, answer.text
            said.append(ModelSaid(answer.text, answer.calls))
            for call in answer.calls:
                names.append(call.name)
                said.append(FunctionSaid(call.id, call.name, await self.result(agent, call)))

    async def result(self, agent: str, call: FunctionCall) -> Any:
        arguments = dict(call.arguments or {})
        functions = {function.name: function for function in self.manifests.functions(self.agent(agent))}
        function = functions[call.name]
        assert set(arguments) == set(function.parameters["properties"])
        if function.target == "agent":
            _, text = await self.exchange(function.ref, arguments["message"])
            return {"message": [{"mimeType": "text/plain", "text": text}]}
        if call.name == "refunds_pay":
            self.paid.append(arguments)
        tool = self.manifests.find(self.agent(agent), function.ref)
        assert isinstance(tool, Tool)
        [action] = [action for action in tool.actions if action.name == function.action]
        _, how = backend(tool, action)
        assert isinstance(how, Cel)
        program = cel.compile(scopes.TOOL, how.expression)
        values = cel.Variables(context={}, input={**arguments, "customer": "c1", "region": "eu"})
        return cel.run(program, values, cel.Session(now="2026-01-31T12:00:00Z"))


REFUND = ["orders", "refunds_quote", "refunds_pay"]


@pytest.mark.parametrize(
    ("text", "functions", "answer", "paid"),
    [
        ("Hello", [], "Hello! Ask me about order A-17,", []),
        ("Where is A-17?", ["orders"], "Order A-17 is a kettle for 45.", []),
        ("Where is Z-99?", ["orders"], "I cannot find that order.", []),
        ("A refund for A-17, please", REFUND, "I have paid 45 EUR back for the kettle.", [("A-17", 45)]),
        ("I want my money back for B-20", REFUND, "I have paid 240 EUR back for the coffee machine.", [("B-20", 240)]),
        ("My A-17 broke five times", ["orders", "analyst"], "My colleague doubts that.", []),
        ("My A-17 fell down again", ["orders", "analyst"], "I am sorry about that.", []),
    ],
)
async def test_the_script_of_the_example_fits_its_tools(
    text: str, functions: list[str], answer: str, paid: list[tuple[str, int]]
) -> None:
    example = Example()
    names, said = await example.exchange("support", text)
    assert names == functions
    assert said.startswith(answer)
    assert [(payment["number"], payment["amount"]) for payment in example.paid] == paid


async def test_the_script_of_the_example_has_words_for_a_refusal() -> None:
    quote = ModelSaid(calls=(FunctionCall("a", "orders", {}), FunctionCall("b", "refunds_quote", {})))
    said = (
        said_by_user("A refund for B-20"),
        quote,
        FunctionSaid("a", "orders", {"paid": 240, "item": "coffee machine"}),
        FunctionSaid("b", "refunds_quote", {"amount": 240, "currency": "EUR"}),
        *called("refunds_pay", "A supervisor did not agree to pay 240 back.", "c"),
    )
    answer: Answer = await Example().model.ask(asked(*said))
    assert answer.text == "I am sorry: my supervisor did not agree to pay 240 EUR back."


def test_user_parts_without_text_are_passed_over() -> None:
    model = ScriptedModel(EXAMPLE)
    image: dict[str, Any] = {"mimeType": "image/png", "file": "https://example.com/a.png"}
    assert model.answer(asked(UserSaid([image]))).text.startswith("Hello!")
