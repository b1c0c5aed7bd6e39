"""`A2AServer.from_manifest`: which agent is served, what it is made of, and how agents of one server work together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import A2AServer, AgentCardConfig
from errands.agents.build import ServedAgent, build
from errands.agents.delegation import LocalDelegate, RemoteDelegate
from errands.agents.loop.manifest_worker import ManifestWorker
from errands.agents.manifests import ManifestError
from errands.agents.models.base import Answer, FunctionSaid, Model, OnText, Question
from errands.agents.tools import tool
from errands.agents.tools.base import Bounds
from errands.client import A2AClient
from errands.errors import ConfigurationError, TaskNotFoundError
from errands.model.core import Part, TaskState
from errands.model.log import ListQuery, Scope
from errands.policy.records import Started
from errands.policy.run import stored_records
from errands.runtime.settings import Settings
from errands.testing import connect, serve
from tests.agents.rig import call, say
from tests.ports import free_port
from tests.unit.client.serving import serving
from tests.unit.delegation.support import Answers

pytestmark = pytest.mark.anyio


def agent(name: str, *lines: str, namespace: str = "shop") -> str:
    return "\n".join(
        [
            "kind: commonagents.info/v1beta2/agent",
            f"namespace: {namespace}",
            f"name: {name}",
            f"description: Is the {name}.",
            f"prompt: You are the {name}.",
            "model: test/model",
            *lines,
            "---\n",
        ]
    )


def uses(*names: str) -> str:
    return "capabilities: {" + ", ".join(f'{name}: "*"' for name in names) + "}"


SECRETIVE = """
kind: commonagents.info/v1beta2/tool
namespace: shop
name: crm
description: Customers.
settings:
  properties:
    api.key: {type: string, format: password}
actions:
  - name: find
    description: Finds.
    execute:
      stateless_http: {method: GET, url: "https://crm.example.com/{settings.api.key}"}
---
"""


class Each(Model):
    """Answers each agent by a function of its own."""

    def __init__(self, **answers: Callable[[Question], Answer]) -> None:
        self.answers = answers
        self.closed = False
        self.models: set[str] = set()

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        self.models.add(question.model)
        return self.answers[question.agent](question)

    async def close(self) -> None:
        self.closed = True


def results(question: Question) -> list[Any]:
    return [said.content for said in question.said if isinstance(said, FunctionSaid)]


def asks(function: str, **arguments: Any) -> Callable[[Question], Answer]:
    """Calls a function once, and says what came of it."""

    def answer(question: Question) -> Answer:
        found = results(question)
        return say(f"I heard: {_text(found[0])}") if found else call((function, {"message": "please", **arguments}))

    return answer


def _text(content: Any) -> str:
    if isinstance(content, dict) and "message" in content:
        return "; ".join(part["text"] for part in content["message"])
    return str(content)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., A2AServer]:
    """A server of these documents."""
    monkeypatch.chdir(tmp_path)

    def make(*documents: str, **options: Any) -> A2AServer:
        path = tmp_path / "manifests"
        path.mkdir(exist_ok=True)
        (path / "all.yaml").write_text("".join(documents), "utf-8")
        options.setdefault("storage", "memory")
        options.setdefault("model", Each())
        return A2AServer.from_manifest(path, **options)

    return make


Made = Callable[..., A2AServer]


def test_what_is_worth_a_warning_is_logged_when_it_is_served(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    made(agent("clerk", "priority: 3"), "kind: other/v1\n---\n")
    assert "all.yaml:7: priority: has no effect" in caplog.text
    assert "kind: is 'other/v1', so the document is skipped" in caplog.text


# Which agent


def test_the_only_agent_is_served_and_its_card_says_what_the_manifest_says(made: Made) -> None:
    card = made(agent("clerk")).agent_card
    assert (card.name, card.description, card.version) == ("clerk", "Is the clerk.", "1.0.0")
    assert [skill.description for skill in card.skills] == ["Is the clerk."]
    assert card.capabilities.streaming
    assert set(card.input_modes) == {"text/plain", "application/json"}


def test_the_version_is_that_of_the_bundle(made: Made) -> None:
    descriptor = "kind: commonagents.info/v1/bundledescription\nname: Desk\nversion: 2.1.0\n---\n"
    assert made(descriptor, agent("clerk")).agent_card.version == "2.1.0"


def test_a_card_of_the_programs_own_wins(made: Made) -> None:
    card = AgentCardConfig(name="Desk", description="All of it.")
    assert made(agent("clerk"), agent_card=card).agent_card.name == "Desk"


def test_the_agent_that_no_other_uses_is_served(made: Made) -> None:
    server = made(agent("helper"), agent("clerk", uses("helper")))
    assert server.agent_card.name == "clerk"
    assert list(server._inner.workers) == ["helper"]


def test_another_agent_is_served_when_it_is_named_and_without_what_it_does_not_use(made: Made) -> None:
    server = made(agent("helper"), agent("clerk", uses("helper")), agent="shop/helper")
    assert server.agent_card.name == "helper"
    assert server._inner.workers == {}


def test_agents_further_down_are_there_too(made: Made) -> None:
    server = made(agent("a", uses("b")), agent("b", uses("c")), agent("c"), agent("d", uses("c")), agent="a")
    assert sorted(server._inner.workers) == ["b", "c"]


@pytest.mark.parametrize(
    ("documents", "options", "told"),
    [
        ([agent("a"), agent("b")], {}, "several agents; choose one with agent=... or --agent: a, b"),
        ([agent("a", uses("b")), agent("b", uses("a"))], {}, "a, b"),
        ([agent("a"), agent("a", namespace="other")], {"agent": "a"}, "choose one: shop/a, other/a"),
        ([agent("a")], {"agent": "x"}, "unknown agent 'x'; available: a"),
        ([SECRETIVE], {}, "the manifests have no agent"),
        ([agent("a", uses("crm")), SECRETIVE], {}, "needs the setting api.key"),
    ],
)
def test_what_cannot_be_served_is_told(made: Made, documents: list[str], options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(*documents, **options)
    assert told in str(caught.value)


def test_manifests_that_are_not_valid_are_told_with_everything(made: Made) -> None:
    with pytest.raises(ManifestError, match="neither a tool nor an agent"):
        made(agent("a", uses("nothing")))


# What it is made of


def worker_of(server: A2AServer) -> ManifestWorker:
    assert isinstance(server._worker, ManifestWorker)
    return server._worker


async def test_a_model_that_is_named_wins_over_what_agents_name(made: Made, tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "scripted.json").write_text('{"agents": {"clerk": [{"say": "Hello."}]}}')
    server = made(agent("clerk"), model="scripted")
    assert worker_of(server).model_name == "scripted"
    assert server.facts == {"model": "scripted", "tools": "none"}
    async with connect(server) as client:
        assert (await client.send("hi")).text == "Hello."


def test_an_agent_without_a_model_is_told_where_to_get_one(made: Made) -> None:
    with pytest.raises(ConfigurationError, match=r"clerk: .*ERRANDS_MODEL"):
        made(agent("clerk").replace("model: test/model\n", ""), model=None)


async def test_the_model_is_closed_with_the_server(made: Made) -> None:
    model = Each(clerk=lambda question: say("Hello."))
    server = made(agent("clerk"), model=model)
    async with connect(server) as client:
        assert (await client.send("hi")).text == "Hello."
        assert not model.closed
    assert model.closed


async def test_the_programs_tools_are_at_hand(made: Made) -> None:
    @tool
    def shout(message: str) -> str:
        """Says it loudly."""
        return message.upper()

    model = Each(clerk=asks("shout"))
    async with connect(made(agent("clerk", uses("shout")), model=model, tools=[shout])) as client:
        assert (await client.send("hi")).text == "I heard: PLEASE"


@pytest.mark.parametrize("how", ["values", "file", "setting", "variable"])
def test_tool_settings_come_from_the_program_a_file_or_the_environment(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("crm:\n  api.key: key-${CRM_KEY}\n")
    monkeypatch.setenv("CRM_KEY", "1")
    ways: dict[str, dict[str, Any]] = {
        "values": {"tool_settings": {"crm": {"api.key": "key-1"}}},
        "file": {"tool_settings": file},
        "setting": {"settings": Settings(storage="memory", tool_settings=str(file))},
        "variable": {},
    }
    if how == "variable":
        monkeypatch.setenv("ERRANDS_TOOL_CRM__API_KEY", "key-1")
    server = made(agent("a", uses("crm")), SECRETIVE, **ways[how])
    assert worker_of(server).toolbox._given == {"crm": {"api.key": "key-1"}}


OVERRIDES: dict[str, Any] = {
    "outbound_allow": "127.0.0.1",
    "tool_timeout": 1.5,
    "tool_max_bytes": 77,
    "max_delegation_depth": 2,
    "model_base_url": "https://models.example.com",
    "model_api_key": "key-1",
    "model_timeout": 2.5,
    "model_max_bytes": 88,
    "public_url": "https://desk.example.com",
    "blocking_timeout_s": 9.0,
}


@pytest.mark.parametrize("settings", [None, Settings(storage="memory", tool_timeout=20.0, lease_seconds=7.0)])
def test_the_agents_are_built_with_the_settings_of_the_server(
    made: Made, monkeypatch: pytest.MonkeyPatch, settings: Settings | None
) -> None:
    seen: list[Settings] = []

    def building(*arguments: Any, settings: Settings, **options: Any) -> ServedAgent:
        seen.append(settings)
        return build(*arguments, settings=settings, **options)

    monkeypatch.setattr("errands.agents.build.build", building)
    monkeypatch.setenv("ERRANDS_TOOL_TIMEOUT", "40")
    server = made(agent("a", uses("b")), agent("b"), settings=settings, **OVERRIDES)
    expected = {name.removesuffix("_s"): value for name, value in OVERRIDES.items()}
    [used] = seen
    for found in (used, server.settings):
        assert {name: getattr(found, name) for name in expected} == expected
        assert found.lease_seconds == (settings.lease_seconds if settings else Settings().lease_seconds)
    assert settings is None or settings.tool_timeout == 20.0
    worker = worker_of(server)
    assert worker.toolbox._bounds == Bounds(timeout=1.5, max_bytes=77)
    delegate = worker.delegates["b"]
    assert isinstance(delegate, LocalDelegate)
    assert delegate._max_depth == 2


@pytest.mark.parametrize("value", [None, 5])
def test_a_setting_that_does_not_exist_is_told(made: Made, value: int | None) -> None:
    with pytest.raises(TypeError, match="'tool_timeuot'"):
        made(agent("a"), tool_timeuot=value)


def test_a_setting_of_a_wrong_kind_is_told(made: Made) -> None:
    with pytest.raises(ConfigurationError, match="invalid tool_timeout=-1"):
        made(agent("a"), tool_timeout=-1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("crm: [", "line 1: is not valid YAML"),
        ("- crm", "must have the names of tools"),
        ("crm: text", "must have the names of tools"),
        ("crm: {api.key: '${NOT_THERE}'}", "the variable NOT_THERE is not set"),
        ("crm: {api.key: '${not a name}'}", "is not the name of a variable"),
        ("\xff", "must have the names of tools"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_tool_settings_that_cannot_be_used_is_told(
    made: Made, tmp_path: Path, text: str | None, told: str
) -> None:
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        made(agent("a", uses("crm")), SECRETIVE, tool_settings=str(file))


def test_a_dollar_may_stand_for_itself_and_an_unknown_name_is_a_warning(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("crm: {api.key: '$${X} $5'}\ncmr: {api.key: x}\n")
    with caplog.at_level(logging.WARNING):
        server = made(agent("a", uses("crm")), SECRETIVE, tool_settings=str(file))
    assert worker_of(server).toolbox._given["crm"] == {"api.key": "${X} $5"}
    assert "neither a tool nor a remote agent" in caplog.text
    assert "cmr" in caplog.text


# Agents that work together


async def test_an_agent_hands_work_to_another_which_hands_it_on(made: Made, storage: str) -> None:
    model = Each(a=asks("b"), b=asks("c"), c=lambda question: say("the end"))
    server = made(agent("a", uses("b")), agent("b", uses("c")), agent("c"), model=model, storage=storage)
    async with connect(server) as client:
        result = await client.send("go")
        assert result.text == "I heard: I heard: the end"
        for name, depth in (("b", 1), ("c", 2)):
            [child] = (await server.engine.list(ListQuery(scope=Scope("", "", name)))).tasks
            assert child.state is TaskState.COMPLETED
            [started] = [
                record
                for record in await stored_records(server.engine, child.task.id, child.scope)
                if isinstance(record, Started)
            ]
            assert (started.agent, started.depth) == (name, depth)
            with pytest.raises(TaskNotFoundError):
                await client.get_task(child.task.id)


async def test_what_a_child_exposes_and_what_it_is_bound_to_pass_between_them(made: Made, storage: str) -> None:
    child = agent(
        "b",
        "parameters: {properties: {order: {type: string, require_binding: true}}}",
        "exposes: {looked_at: 'context.input[0].order'}",
    )
    parent = agent("a", "capabilities: {b: {bindings: {order: \"'A-17'\"}}}")

    def last(question: Question) -> Answer:
        found = results(question)
        return say(found[0]["looked_at"]) if found else call(("b", {"message": "look"}))

    model = Each(a=last, b=lambda question: say("looked"))
    async with connect(made(parent, child, model=model, storage=storage)) as client:
        assert (await client.send("go")).text == "A-17"


async def test_a_child_that_fails_is_told_to_the_model_and_the_parent_goes_on(made: Made, storage: str) -> None:
    model = Each(a=asks("b"), b=lambda question: call(("nothing", {})))
    server = made(agent("a", uses("b")), agent("b", "limits: {max_turns: 1}"), model=model, storage=storage)
    async with connect(server) as client:
        text = (await client.send("go")).text or ""
        assert "b failed" in text
        assert "limit" in text


async def test_agents_in_a_circle_come_to_an_end(made: Made, storage: str) -> None:
    model = Each(a=asks("b"), b=asks("a"))
    server = made(agent("a", uses("b")), agent("b", uses("a")), model=model, agent="a", storage=storage)
    async with connect(server) as client:
        assert "delegated 5 times" in ((await client.send("go")).text or "")
        both = [await server.engine.list(ListQuery(scope=Scope("", "", name))) for name in "ab"]
        assert sum(page.total_size for page in both) == 6


async def test_an_agent_under_another_name_can_hand_work_to_itself(made: Made, storage: str) -> None:
    card = AgentCardConfig(name="Desk", description=".")

    def once(question: Question) -> Answer:
        parts = [part for said in question.said for part in getattr(said, "parts", [])]
        return say("inside") if parts[0].get("text") == "please" else asks("a")(question)

    server = made(agent("a", uses("a")), model=Each(a=once), agent_card=card, storage=storage)
    async with connect(server) as client:
        assert (await client.send("go")).text == "I heard: inside"


async def test_parameters_come_as_a_data_part(made: Made) -> None:
    clerk = agent("clerk", "parameters: {properties: {region: {type: string, enum: [eu, us]}}}").replace(
        "You are the clerk.", "You are in {context.input[0].region}."
    )
    seen: list[str] = []

    def answer(question: Question) -> Answer:
        seen.append(question.system)
        return say("ok")

    async with connect(made(clerk, model=Each(clerk=answer))) as client:
        refused = await client.send("hi")
        assert "region" in (refused.text or "")
        await client.send([Part(text="hi"), Part(data={"region": "us"})])
        assert seen == ["You are in us."]


async def test_a_remote_agent_is_asked_with_the_operators_headers_where_the_guard_allows_it(made: Made) -> None:
    child, seen = Answers(), []

    class Sees:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["method"] == "POST":
                seen.append(httpx.Headers(scope["headers"]).get("x-key"))
            await self._app(scope, receive, send)

    async with serving(Sees(serve(child).app)) as url:
        far = agent("a", f"capabilities: {{far: {{url: '{url}'}}}}")
        options: dict[str, Any] = {
            "model": Each(a=asks("far")),
            "tool_settings": {"far": {"headers": {"X-Key": "k-1"}}},
        }
        allowed = Settings(storage="memory", outbound_allow="127.0.0.1")
        async with connect(made(far, settings=allowed, **options)) as client:
            assert (await client.send("go")).text == "I heard: child: please"
        assert set(seen) == {"k-1"}
        async with connect(made(far, **options)) as client:
            assert "only public addresses may be reached" in ((await client.send("go")).text or "")
        assert len(child.seen) == 1
        server = made(far, **options)
        assert isinstance(worker_of(server).delegates["far"], RemoteDelegate)


async def test_a_circle_of_manifests_across_two_servers_comes_to_an_end(made: Made) -> None:
    allowed = Settings(storage="memory", outbound_allow="127.0.0.1", max_delegation_depth=3)
    port = free_port()
    ping = agent("ping", f"capabilities: {{pong: {{url: 'http://127.0.0.1:{port}'}}}}")
    first = made(ping, settings=allowed, model=Each(ping=asks("pong")))
    async with serving(first.app) as url:
        pong = agent("pong", f"capabilities: {{ping: {{url: '{url}'}}}}")
        second = made(pong, settings=allowed, model=Each(pong=asks("ping")))
        async with serving(second.app, port), A2AClient(url) as client:
            heard = (await client.send("go")).text
        depths = []
        for server in (first, second):
            for task in (await server.engine.list(ListQuery(scope=server.scope()))).tasks:
                [started, *_] = await stored_records(server.engine, task.task.id, server.scope())
                assert isinstance(started, Started)
                depths.append(started.depth)
    assert "work has been delegated 3 times" in (heard or "")
    assert sorted(depths) == [0, 1, 2, 3]


async def test_what_is_bound_reaches_a_remote_agent_as_its_parameters(made: Made) -> None:
    region = agent("far", "parameters: {properties: {region: {type: string}}}")
    region = region.replace("You are the far.", "You are in {context.input[0].region}.")
    async with serving(made(region, model=Each(far=lambda question: say(question.system))).app) as url:
        near = agent("a", "capabilities:", "  far:", f"    url: {url}", "    bindings: {region: \"'eu'\"}")
        allowed = Settings(storage="memory", outbound_allow="127.0.0.1")
        async with connect(made(near, model=Each(a=asks("far")), settings=allowed)) as client:
            assert (await client.send("go")).text == "I heard: You are in eu."


FAR = agent("a", "capabilities: {far: {url: 'https://far.example.com'}}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"headers": "Authorization: x"}, "far: the settings of a remote agent are headers"),
        ({"token": "s3cret"}, "far: the settings of a remote agent are headers"),
        ({"headers": {"X-Key": 17}}, "far: each header must be a string"),
        ({"headers": {"X-Key": "s3cret\nX-Other: 1"}}, "far: header 'X-Key': name and value must be"),
    ],
)
def test_settings_of_a_remote_agent_that_cannot_be_used_are_told(made: Made, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        made(FAR, tool_settings={"far": given})
    assert "s3cret" not in str(caught.value)


def test_a_card_with_the_name_of_another_agent_is_refused(made: Made) -> None:
    card = AgentCardConfig(name="b", description=".")
    with pytest.raises(
        ConfigurationError, match="the card has the name b, which is also the name of an agent that a uses"
    ):
        made(agent("a", uses("b")), agent("b"), agent_card=card)


def test_tokens_for_requests_come_with_the_tool_settings(made: Made) -> None:
    github = (
        SECRETIVE.replace("{settings.api.key}", "{auth.github}")
        .replace("settings:", "x:")
        .replace("x:\n  properties:\n    api.key: {type: string, format: password}\n", "")
    )
    with pytest.raises(ConfigurationError, match="needs auth for github"):
        made(agent("a", uses("crm")), github)
    assert made(agent("a", uses("crm")), github, tool_settings={"auth": {"github": "t-1"}}).started is False
