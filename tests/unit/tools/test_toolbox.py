"""The toolbox: settings, secrets, what it checks at the start, and turns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from errands.agents.tools.base import Backend, Invocation, State
from errands.agents.tools.tool_settings import from_environment, unused_variables, variable
from errands.agents.tools.toolbox import BACKENDS, Secrets, Toolbox
from errands.errors import ConfigurationError
from tests.unit.tools.support import (
    Json,
    Service,
    action,
    calling,
    invocation,
    manifests,
    tool,
    toolbox,
)

pytestmark = pytest.mark.anyio

ECHO = {"expression": "input"}


def with_settings(folder: Path, properties: Json) -> Any:
    return manifests(folder, tool(settings={"properties": properties}, actions=[action("do", "cel", ECHO)]))


# Settings


def test_a_setting_that_is_missing_is_told_at_the_start_and_how_to_give_it(tmp_path: Path) -> None:
    found = with_settings(tmp_path, {"api.key": {"type": "string", "description": "From the console."}})
    with pytest.raises(ConfigurationError) as raised:
        toolbox(found).check()
    assert str(raised.value) == (
        "the tool crm needs the setting api.key (From the console.): "
        "set the variable ERRANDS_TOOL_CRM__API_KEY, or write api.key under crm in the tool settings"
    )


def test_a_setting_that_is_unknown_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    found = with_settings(tmp_path, {"api.key": {"type": "string", "default": "k"}})
    with pytest.raises(ConfigurationError, match=r"the tool crm has no setting 'api_key': did you mean api\.key\?"):
        toolbox(found, settings={"crm": {"api_key": "x"}}).check()


@pytest.mark.parametrize("kind", ["password", "uri"])
def test_a_setting_that_does_not_fit_is_told_without_its_value(tmp_path: Path, kind: str) -> None:
    found = with_settings(tmp_path, {"key": {"type": "string", "format": kind, "minLength": 20}})
    with pytest.raises(ConfigurationError) as raised:
        toolbox(found, settings={"crm": {"key": "hunter2"}}).check()
    assert "the tool crm has an invalid setting key: it violates its minLength" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    found = with_settings(tmp_path, {"a": {"type": "string"}, "b": {"type": "integer"}})
    with pytest.raises(ConfigurationError) as raised:
        toolbox(found, settings={"crm": {"b": "x"}}).check()
    assert "needs the setting a" in str(raised.value)
    assert "setting b: it must be of type integer" in str(raised.value)


def is_fine(box: Toolbox) -> bool:
    """Whether nothing keeps its tools from ever working."""
    try:
        box.check()
    except ConfigurationError:
        return False
    return True


def test_settings_with_defaults_need_not_be_given(tmp_path: Path) -> None:
    assert is_fine(toolbox(with_settings(tmp_path, {"a": {"type": "string", "default": "x"}})))
    assert not is_fine(toolbox(with_settings(tmp_path, {"a": {"type": "string"}})))


def test_settings_of_other_tools_are_none_of_this_agents_business(tmp_path: Path) -> None:
    assert is_fine(toolbox(with_settings(tmp_path, {}), settings={"other": {"key": "x"}}))


def test_settings_come_from_the_environment_as_what_the_schema_wants(tmp_path: Path) -> None:
    properties = {
        "api.key": {"type": "string"},
        "retries": {"type": "integer"},
        "on": {"type": "boolean"},
        "bad": {"type": "integer"},
        "left_out": {"type": "string"},
    }
    found = with_settings(tmp_path, properties)
    environ = {
        "ERRANDS_TOOL_CRM__API_KEY": "7",
        "ERRANDS_TOOL_CRM__RETRIES": "3",
        "ERRANDS_TOOL_CRM__ON": "true",
        "ERRANDS_TOOL_CRM__BAD": "many",
    }
    assert from_environment(found.tools, environ) == {"crm": {"api.key": "7", "retries": 3, "on": True, "bad": "many"}}


def test_variables_that_are_no_setting_of_any_tool_are_found(tmp_path: Path) -> None:
    found = with_settings(tmp_path, {"key": {"type": "string"}})
    environ = {"ERRANDS_TOOL_CRM__KEY": "7", "ERRANDS_TOOL_CRM__KYE": "7", "ERRANDS_TOOL_TIMEOUT": "5", "PATH": "/bin"}
    assert unused_variables(found.tools, environ) == ["ERRANDS_TOOL_CRM__KYE"]


def test_the_variables_of_two_tools_are_different() -> None:
    assert variable("a-b", "c") == "ERRANDS_TOOL_A_B__C"
    assert variable("a", "b.c") == "ERRANDS_TOOL_A__B_C"


def test_auth_that_is_missing_is_told_at_the_start(tmp_path: Path) -> None:
    request = {"method": "GET", "url": "https://example.com/", "headers": {"Authorization": "Bearer {auth.github()}"}}
    found = manifests(tmp_path, tool(actions=[action("do", "stateless_http", request)]))
    with pytest.raises(
        ConfigurationError, match="the tool crm needs auth for github: write it under auth in the tool settings"
    ):
        toolbox(found).check()
    toolbox(found, auth={"github": "x"}).check()


# Secrets


@pytest.mark.parametrize("secret", ["p@ss/word", 'quo"te\\', "ü ö", "line\nbreak"])
def test_a_secret_is_hidden_in_every_form_it_is_sent_in(secret: str) -> None:
    secrets = Secrets([secret])
    forms = [secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)]
    forms.append(json.dumps(secret, ensure_ascii=False))
    for form in forms:
        assert secrets.hide({"a": [f"<{form}>"], form: 1}) != {"a": [f"<{form}>"], form: 1}
        assert secret not in secrets.hide_in(form)


def test_a_secret_inside_of_another_does_not_uncover_it() -> None:
    assert Secrets(["abc", "abcdef"]).hide_in("abcdef abc") == "[secret] [secret]"


async def test_a_secret_of_one_tool_is_hidden_in_what_another_tells(tmp_path: Path) -> None:
    password = {"properties": {"key": {"type": "string", "format": "password"}}}
    crm = tool(settings=password, actions=[action("do", "cel", ECHO)])
    log = tool("log", actions=[action("do", "cel", {"expression": "'hunter2 and tok-123'"})])
    found = manifests(tmp_path, crm, log)
    box = toolbox(found, settings={"crm": {"key": "hunter2"}}, auth={"github": "tok-123"})
    async with calling(box) as caller:
        assert await caller.call("log", action="do") == "[secret] and [secret]"


def test_empty_secrets_hide_nothing() -> None:
    secrets = Secrets([None, "", True, {"a": [None]}])
    assert secrets.hide({"text": "true", "n": 1, "none": None}) == {"text": "true", "n": 1, "none": None}


# Turns


class Counting(Backend):
    """Keeps a number, and notes all that happens to it."""

    happened: list[Any] = []

    async def initialize(self, invocation: Invocation) -> State:
        self.happened.append("initialize")
        return {"number": len(self.happened)}

    async def invoke(self, invocation: Invocation) -> Any:
        self.happened.append(("invoke", invocation.action, invocation.state))
        return invocation.arguments

    async def teardown(self, state: State) -> None:
        self.happened.append(("teardown", state))
        raise OSError("no hunter2 today")

    async def close(self) -> None:
        self.happened.append("close")
        raise OSError("it is stuck")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(Counting, "happened", [])
    monkeypatch.setitem(BACKENDS, "stateful_session", Counting)
    return Counting.happened


SESSION = {
    "create": {"method": "POST", "url": "https://example.com/"},
    "execute": {"method": "POST", "url": "https://example.com/"},
}


def with_session(folder: Path) -> Any:
    settings = {"properties": {"key": {"type": "string", "format": "password", "default": "hunter2"}}}
    actions = [action("use", "stateful_session", {}), action("count", "cel", ECHO)]
    return toolbox(manifests(folder, tool(settings=settings, stateful_session=SESSION, actions=actions)))


async def test_a_state_is_made_once_and_comes_back_in_every_later_turn(tmp_path: Path, counting: list[Any]) -> None:
    box = with_session(tmp_path)
    async with calling(box) as caller:
        use = caller.functions["crm_use"]
        state = await caller.turn.initialize(use, invocation())
        assert state == {"stateful_session": {"number": 1}}
        assert await caller.turn.initialize(use, invocation(state=state)) is None
        await caller.call("crm_use", state=state)
    async with calling(box) as caller:
        assert await caller.turn.initialize(caller.functions["crm_use"], invocation(state=state)) is None
        await caller.call("crm_use", state=state)
    use_it = ("invoke", "use", {"number": 1})
    assert counting == ["initialize", use_it, "close", use_it, "close"]


async def test_two_first_calls_at_the_same_time_share_one_state(tmp_path: Path, counting: list[Any]) -> None:
    async with calling(with_session(tmp_path)) as caller:
        use = caller.functions["crm_use"]
        assert await caller.turn.initialize(use, invocation()) is not None
        assert await caller.turn.initialize(use, invocation()) is None
        await caller.call("crm_use")
    assert counting[:2] == ["initialize", ("invoke", "use", {"number": 1})]


async def test_an_action_that_needs_no_state_makes_none(tmp_path: Path, counting: list[Any]) -> None:
    async with calling(with_session(tmp_path)) as caller:
        assert await caller.turn.initialize(caller.functions["crm_count"], invocation()) is None
    assert counting == []


async def test_what_goes_wrong_at_the_end_is_logged_without_secrets(
    tmp_path: Path, counting: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with calling(with_session(tmp_path)) as caller:
        await caller.turn.teardown({"crm": {"stateful_session": {"number": 1}}, "gone": {"stateful_session": {}}})
    assert counting == [("teardown", {"number": 1}), "close"]
    assert "crm: cleaning up after the task failed (OSError: no [secret] today)" in caplog.text
    assert "gone: nothing is cleaned up, because the agent no longer has this tool" in caplog.text
    assert "crm: stateful_session could not be closed (OSError: it is stuck)" in caplog.text


async def test_a_tool_says_whether_its_calls_run_one_after_the_other(tmp_path: Path) -> None:
    tools = [
        tool("slow", synchronous=True, actions=[action("do", "cel", ECHO)]),
        tool("fast", actions=[action("do", "cel", ECHO)]),
    ]
    async with calling(toolbox(manifests(tmp_path, *tools))) as caller:
        assert caller.turn.is_synchronous(caller.functions["slow"])
        assert not caller.turn.is_synchronous(caller.functions["fast"])


async def test_first_calls_that_wait_for_each_other_share_one_state(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ask before either has an answer."""
    arrived = asyncio.Barrier(2)
    made: list[str] = []

    class Slow(Counting):
        async def initialize(self, invocation: Invocation) -> State:
            made.append(invocation.call)
            return {"session": "S-1"}

        async def invoke(self, invocation: Invocation) -> Any:
            await arrived.wait()
            return invocation.state

        async def close(self) -> None: ...

    monkeypatch.setitem(BACKENDS, "stateful_session", Slow)
    async with calling(with_session(tmp_path)) as caller:

        async def call(name: str) -> tuple[State | None, Any]:
            state = await caller.turn.initialize(caller.functions["crm_use"], invocation(call=name))
            return state, await caller.call("crm_use", call=name, state=state or {})

        results = list(await asyncio.gather(call("one"), call("two")))
    assert made == ["one"]
    assert results == [
        ({"stateful_session": {"session": "S-1"}}, {"session": "S-1"}),
        (None, {"session": "S-1"}),
    ]
