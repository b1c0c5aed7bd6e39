"""`stateful_session` against a real service: created once, used, and destroyed at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from errands.agents.tools.base import BrokenToolError, ToolError
from errands.agents.tools.toolbox import Toolbox
from errands.errors import ConfigurationError
from tests.unit.tools.support import Json, Service, action, calling, invocation, manifests, tool, toolbox

pytestmark = pytest.mark.anyio

TEXT = {"type": "string"}
SETTINGS = {"properties": {"key": {"type": "string", "format": "password", "default": "hunter2"}}}


def sessions(service: Service) -> None:
    """Makes sessions S-1, S-2, ... and says what it was asked for."""

    def answer(request: Request) -> Response:
        if request.url.path == "/sessions":
            number = sum(seen.target == "/sessions" for seen in service.seen)
            return JSONResponse({"data": {"id": f"S-{number}"}, "region": request.headers["x-region"]}, 201)
        return JSONResponse({"did": request.url.path})

    service.answer = answer


def shared(service: Service, **more: Any) -> Json:
    headers = {"Authorization": "Bearer {settings.key}"}
    return {
        "create": {
            "method": "POST",
            "url": f"{service.url}/sessions",
            "headers": {**headers, "X-Region": "{parameters.region}"},
            "body": {"user": "{context.user.id}"},
        },
        "extract": {"id": "$.data.id", "region": "$.region"},
        "destroy": {
            "method": "DELETE",
            "url": f"{service.url}/sessions/{{session.id}}/{{parameters.region}}/{{c.user.id}}/{{agent.name}}",
            "headers": headers,
        },
        **more,
    }


def box(folder: Path, service: Service, **more: Any) -> Toolbox:
    def execute(path: str) -> Json:
        return {"execute": {"method": "POST", "url": f"{service.url}/{{session.region}}/{{session.id}}/{path}"}}

    actions = [
        action("click", "stateful_session", execute("click/{parameters.what}"), region=TEXT, what=TEXT),
        action("look", "stateful_session", execute("look"), region=TEXT),
    ]
    return toolbox(
        manifests(folder, tool("web", settings=SETTINGS, stateful_session=shared(service, **more), actions=actions))
    )


ARGUMENTS = {"region": "eu", "what": "ok"}


async def test_a_session_lives_from_the_first_call_to_the_end_of_the_task(tmp_path: Path, service: Service) -> None:
    sessions(service)
    toolbox_ = box(tmp_path, service)
    toolbox_.check()
    async with calling(toolbox_) as caller:
        click, look = caller.functions["web_click"], caller.functions["web_look"]
        state = await caller.turn.initialize(click, invocation(ARGUMENTS))
        assert await caller.call("web_click", ARGUMENTS, state=state) == {"did": "/eu/S-1/click/ok"}
        assert await caller.turn.initialize(look, invocation({"region": "us"}, state=state)) is None
    async with calling(toolbox_) as caller:
        assert await caller.call("web_look", {"region": "us"}, call="call-2", state=state) == {"did": "/eu/S-1/look"}
        await caller.turn.teardown({"web": state or {}})
    assert [(seen.method, seen.target, seen.header("idempotency-key")) for seen in service.seen] == [
        ("POST", "/sessions", "call-1-create"),
        ("POST", "/eu/S-1/click/ok", "call-1"),
        ("POST", "/eu/S-1/look", "call-2"),
        ("DELETE", "/sessions/S-1/eu/ann/support", "T-1-destroy"),
    ]
    assert service.seen[0].json == {"user": "ann"}
    assert service.seen[3].header("authorization") == "Bearer hunter2"


async def test_the_state_has_the_session_and_what_is_needed_at_the_end_and_no_secret(
    tmp_path: Path, service: Service
) -> None:
    sessions(service)
    async with calling(box(tmp_path, service)) as caller:
        state = await caller.turn.initialize(caller.functions["web_click"], invocation(ARGUMENTS))
    assert state == {
        "stateful_session": {
            "session": {"id": "S-1", "region": "eu"},
            "parameters": {"region": "eu"},
            "context": {"user": {"id": "ann", "email": "ann@example.com"}},
        }
    }


async def test_a_session_that_cannot_be_created_is_an_error_for_the_model_and_is_tried_again(
    tmp_path: Path, service: Service
) -> None:
    service.answers({"error": "no free browser for hunter2"}, 503)
    async with calling(box(tmp_path, service)) as caller:
        click = caller.functions["web_click"]
        with pytest.raises(ToolError, match=r"answered 503 .*no free browser for \[secret\]"):
            await caller.turn.initialize(click, invocation(ARGUMENTS))
        sessions(service)
        assert await caller.turn.initialize(click, invocation(ARGUMENTS)) is not None


async def test_an_answer_without_what_is_extracted_is_an_error_for_the_model(tmp_path: Path, service: Service) -> None:
    async with calling(box(tmp_path, service)) as caller:
        with pytest.raises(ToolError, match=r"the answer has nothing at \$\.data\.id"):
            await caller.turn.initialize(caller.functions["web_click"], invocation(ARGUMENTS))


async def test_a_session_with_a_secret_setting_in_it_is_not_kept(tmp_path: Path, service: Service) -> None:
    service.answers({"data": {"id": "S-hunter2"}, "region": "eu"})
    async with calling(box(tmp_path, service)) as caller:
        with pytest.raises(BrokenToolError, match="the session of web contains a secret setting") as raised:
            await caller.turn.initialize(caller.functions["web_click"], invocation(ARGUMENTS))
    assert "hunter2" not in str(raised.value)


async def test_a_session_that_cannot_be_destroyed_is_logged_and_nothing_else(
    tmp_path: Path, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    sessions(service)
    async with calling(box(tmp_path, service)) as caller:
        state = await caller.turn.initialize(caller.functions["web_click"], invocation(ARGUMENTS))
        service.answers({"error": "hunter2 is unknown"}, 500)
        await caller.turn.teardown({"web": state or {}})
    assert "web: cleaning up after the task failed (ToolError: 127.0.0.1 answered 500" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_session_without_an_end_is_left_alone(tmp_path: Path, service: Service) -> None:
    sessions(service)
    async with calling(box(tmp_path, service, destroy=None)) as caller:
        state = await caller.turn.initialize(caller.functions["web_click"], invocation(ARGUMENTS))
        await caller.turn.teardown({"web": state or {}})
    assert len(service.seen) == 1


def test_a_tool_has_one_session(tmp_path: Path, service: Service) -> None:
    def own(path: str) -> Json:
        request = {"method": "POST", "url": f"{service.url}/{path}"}
        return {"create": request, "execute": request}

    actions = [action(name, "stateful_session", own(name)) for name in ("one", "two")]
    with pytest.raises(ConfigurationError, match="the actions of the tool web have different sessions"):
        toolbox(manifests(tmp_path, tool("web", actions=actions))).check()
