"""`errands send`: what is printed where, and how it ends."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import Result

from errands import A2AServer, AgentCardConfig, ApiKeyMiddleware, BearerTokenMiddleware, TaskContext, Worker
from errands.model.core import COMPLETED, Part
from errands.testing import serve
from tests.live import live as live_app
from tests.unit.cli.agent import Gate
from tests.unit.cli.conftest import Errands, live
from tests.unit.cli.processes import Running
from tests.unit.reviews.support import BOB, Reviewed, reviewed_server


def commands_in(result: Result) -> list[list[str]]:
    """The commands that the person is told to run, ready to be run."""
    lines = [line.strip() for line in result.stderr.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("errands ")]


def test_the_answer_goes_to_stdout_and_what_became_of_it_to_stderr(errands: Errands, url: str) -> None:
    result = errands("send", url, "hello")
    assert (result.exit_code, result.stdout) == (0, "You said: hello\n")
    assert result.stderr.startswith("completed, task ")


def test_an_agent_that_does_not_stream_is_asked_for_one_answer(errands: Errands, plain_url: str) -> None:
    result = errands("send", plain_url, "hello")
    assert (result.exit_code, result.stdout) == (0, "You said: hello\n")


def test_a_stream_shows_text_data_and_progress_each_in_its_place(errands: Errands, url: str) -> None:
    result = errands("send", url, "stream one two")
    assert result.stdout == 'one two \n{"points":2}\nthe end\n'
    assert result.stderr.startswith("Thinking\n")


def test_one_answer_shows_the_same_as_a_stream(errands: Errands, url: str) -> None:
    streamed = errands("send", url, "stream one two")
    whole = errands("send", url, "stream one two", "--no-stream")
    assert whole.stdout == streamed.stdout


def test_pieces_are_shown_as_they_arrive(url: str, gate: Gate, tmp_path: Path) -> None:
    with Running("send", url, "hold", cwd=tmp_path) as process:
        assert process.read(len("before")) == "before"
        gate.open()
        result = process.finish()
    assert (result.returncode, result.stdout) == (0, " after\n")


class Cut(Worker):
    """As an agent does whose model was cut."""

    async def handle(self, ctx: TaskContext) -> None:
        message = ctx._turn.agent_message([Part(text="It is")])
        await ctx._turn.end(COMPLETED, message=msgspec.structs.replace(message, metadata={"incomplete": "length"}))


def test_an_answer_that_is_not_whole_says_so(errands: Errands) -> None:
    with live(serve(Cut())) as url:
        result = errands("send", url, "Is it?")
    assert (result.exit_code, result.stdout) == (0, "It is\n")
    assert "The answer is incomplete: the model reached its greatest answer length.\n" in result.stderr


def test_a_status_message_is_an_answer_too(errands: Errands, url: str) -> None:
    assert errands("send", url, "respond").stdout == "Noted.\n"


def test_a_direct_message_is_shown_and_has_no_task(errands: Errands, plain_url: str) -> None:
    assert errands("send", plain_url, "direct").stdout == "Just a message.\n"


def test_an_agent_cannot_drive_the_terminal(errands: Errands, url: str) -> None:
    assert errands("send", url, "hostile").stdout == "[2Jhostile [red]markup[/red]\n"


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
@pytest.mark.parametrize(
    ("wish", "words"), [("fail", "The task failed: It broke."), ("reject", "The agent declined: Not my work.")]
)
def test_a_task_that_ends_badly_says_why_on_stderr_and_exits_with_1(
    errands: Errands, url: str, wish: str, words: str, mode: str
) -> None:
    result = errands("send", url, wish, mode)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
def test_a_question_comes_with_the_command_that_answers_it(errands: Errands, url: str, mode: str) -> None:
    asked = errands("send", url, "ask", mode)
    assert (asked.exit_code, asked.stdout) == (0, "Which colour?\n")
    [answer] = commands_in(asked)
    answered = errands(*answer)
    assert answered.exit_code == 0
    assert answered.stdout.startswith("ask, then your answer")


def test_a_question_with_a_schema_shows_it(errands: Errands, url: str) -> None:
    assert '{"type":"string"}' in errands("send", url, "ask with schema").stderr


def test_a_question_for_an_object_comes_with_a_command_that_has_a_place_for_it(errands: Errands, url: str) -> None:
    [answer] = commands_in(errands("send", url, "ask for an object"))
    assert answer[2:5] == ["your answer", "--data", "{...}"]


def test_a_wish_for_credentials_says_which_and_comes_with_the_command_that_gives_them(
    errands: Errands, url: str
) -> None:
    asked = errands("send", url, "auth")
    assert (asked.exit_code, asked.stdout) == (0, "A token, please.\n")
    assert "Accepted: Bearer" in asked.stderr
    assert "https://auth.test/new" in asked.stderr
    [answer] = commands_in(asked)
    answered = errands(*answer)
    assert "auth, then go on, with {'authorization': 'Bearer TOKEN'}" in answered.stdout


@pytest.fixture(scope="module")
def reviewed_url() -> Iterator[str]:
    """An agent whose every message is reviewed by Bob."""
    with live(reviewed_server(Reviewed(), "memory")) as url:
        yield url


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
def test_a_review_says_who_is_asked_and_comes_with_the_commands_that_answer_it(
    errands: Errands, reviewed_url: str, mode: str
) -> None:
    asked = errands("send", reviewed_url, "pay 500", mode, "--token", "alice")
    assert asked.exit_code == 0
    assert asked.stdout.startswith(f'Waiting for a review by {BOB}: {{"message":"pay 500"}}\n')
    assert f"The task waits for {BOB}" in asked.stderr
    approve, deny, approve_stored, deny_stored, watch = commands_in(asked)
    task_id = watch[3]
    assert watch == ["tasks", "watch", reviewed_url, task_id, "--token", "TOKEN"]
    assert (approve_stored, deny_stored) == (
        ["reviews", "approve", task_id, "--by", BOB],
        ["reviews", "deny", task_id, "--by", BOB],
    )
    assert deny == ["send", reviewed_url, "deny", "--task", task_id, "--token", "TOKEN"]
    assert errands(*approve[:-1], "bob").exit_code == 0
    followed = errands(*watch[:-1], "alice").stdout
    assert "did pay 500" in followed
    shown = errands("tasks", "get", reviewed_url, task_id, "--token", "alice").stdout
    assert f"\nreview by {BOB}\napproved\n" in shown
    assert shown.count("pay 500") == 3, "what was asked, the question, the answer, and no data"


def test_a_caller_without_credentials_is_told_of_the_store_only(errands: Errands, tmp_path: Path) -> None:
    with live(serve(Reviewed(), storage="memory")) as url:
        asked = errands("send", url, "pay 500")
    assert [command[:2] for command in commands_in(asked)] == [
        ["reviews", "approve"],
        ["reviews", "deny"],
        ["tasks", "watch"],
    ]


def test_a_follow_up_reminds_of_credentials_without_showing_them(errands: Errands, url: str) -> None:
    asked = errands("send", url, "ask", "--token", "s3cret")
    assert "--token TOKEN" in asked.stderr
    assert "s3cret" not in asked.output


def test_json_is_the_final_task(errands: Errands, url: str) -> None:
    task = json.loads(errands("send", url, "hello", "--json").stdout)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "You said: hello"}]


def test_json_is_the_message_when_there_is_no_task(errands: Errands, url: str) -> None:
    message = json.loads(errands("send", url, "direct", "--json").stdout)
    assert (message["role"], message["parts"]) == ("ROLE_AGENT", [{"text": "Just a message."}])


def test_json_of_a_failed_task_still_exits_with_1(errands: Errands, url: str) -> None:
    result = errands("send", url, "fail", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"]["state"] == "TASK_STATE_FAILED"


def test_json_of_a_stream_is_one_event_a_line_with_its_id(errands: Errands, url: str) -> None:
    result = errands("send", url, "stream one", "--stream", "--json")
    events: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event.pop("eventId") for event in events] == [str(number + 1) for number in range(len(events))]
    kinds = [next(iter(event)) for event in events]
    assert kinds[0] == "task"
    assert set(kinds[1:]) == {"statusUpdate", "artifactUpdate"}
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_no_wait_prints_the_id_and_how_to_follow(errands: Errands, url: str) -> None:
    sent = errands("send", url, "wait", "--no-wait")
    task_id = sent.stdout.strip()
    assert commands_in(sent) == [["tasks", "watch", url, task_id]]
    assert errands("tasks", "cancel", url, task_id).exit_code == 0


def test_a_conversation_goes_on_in_its_context(errands: Errands, url: str) -> None:
    sent = errands("send", url, "context", "--context", "talk-1")
    assert json.loads(sent.stdout)["context"] == "talk-1"


def test_files_are_sent_with_their_names_types_and_bytes(errands: Errands, url: str, tmp_path: Path) -> None:
    table, blob = tmp_path / "table.csv", tmp_path / "blob.unknown"
    table.write_text("a,b\n")
    blob.write_bytes(bytes(range(256)))
    sent = errands("send", url, "parts", "--file", str(table), "--file", str(blob))
    assert json.loads(sent.stdout)["files"] == [
        ["table.csv", "text/csv", hashlib.sha256(b"a,b\n").hexdigest()],
        ["blob.unknown", "application/octet-stream", hashlib.sha256(bytes(range(256))).hexdigest()],
    ]


def test_data_is_sent_as_json(errands: Errands, url: str) -> None:
    sent = errands("send", url, "parts", "--data", '{"n": 9007199254740993}', "--data", "null")
    assert json.loads(sent.stdout)["data"] == [{"n": 9007199254740993}, None]


def test_a_dash_reads_the_text_from_stdin(errands: Errands, url: str) -> None:
    assert errands("send", url, "-", stdin="piped").stdout == "You said: piped\n"


def test_headers_and_the_token_reach_the_agent(errands: Errands, url: str) -> None:
    sent = errands("send", url, "context", "--header", "X-Extra: a: b", "--token", "abc")
    assert json.loads(sent.stdout)["headers"] == {"authorization": "Bearer abc", "x-extra": "a: b"}


def test_accepted_types_reach_the_agent(errands: Errands, url: str) -> None:
    assert errands("send", url, "accepts text/csv", "--accept", "text/csv").stdout == "text/csv: True\n"
    assert errands("send", url, "accepts text/csv", "--accept", "text/html").stdout == "text/csv: False\n"


def test_the_same_message_sent_again_is_the_same_task(errands: Errands, url: str) -> None:
    first, second = (errands("send", url, "hello", "--message-id", "m-1") for _ in range(2))
    assert second.stderr == first.stderr
    assert second.stdout == first.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to send"),
        (["--data", "{x"], "is not JSON"),
        (["hi", "--header", "nocolon"], "expected 'NAME: VALUE'"),
        (["hi", "--header", "X: \N{SNOWMAN}"], "printable ASCII"),
        (["hi", "--no-wait", "--stream"], "exclude each other"),
        (["hi", "--file", "/nowhere/at/all"], "/nowhere/at/all"),
        (["hi", "--timeout", "soon"], "--timeout"),
    ],
)
def test_a_command_that_makes_no_sense_exits_with_2(
    errands: Errands, url: str, arguments: list[str], words: str
) -> None:
    result = errands("send", url, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


@pytest.mark.parametrize("url", ["nope", "ftp://host", "http://", "http://[::1", "http://host:port"])
def test_an_address_that_is_none_exits_with_2(errands: Errands, url: str) -> None:
    for command in (["send", url, "hi"], ["card", url], ["tasks", "list", url]):
        result = errands(*command)
        assert result.exit_code == 2, command
        assert result.stderr.startswith("Error: ")


def test_an_agent_that_is_not_there_exits_with_3_and_says_what_to_do(errands: Errands) -> None:
    result = errands("send", "http://127.0.0.1:9", "hi")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no agent found at http://127.0.0.1:9" in result.stderr
    assert "errands serve" in result.stderr


def test_a_refused_request_exits_with_3_and_says_what_to_do(errands: Errands, url: str) -> None:
    result = errands("send", url, "hi", "--token", "wrong")
    assert result.exit_code == 3
    assert "--token" in result.stderr


def test_insisting_on_a_stream_that_is_not_offered_exits_with_3(errands: Errands, plain_url: str) -> None:
    result = errands("send", plain_url, "hi", "--stream")
    assert result.exit_code == 3
    assert "does not offer streaming" in result.stderr


def test_an_answer_that_takes_too_long_exits_with_3(errands: Errands, url: str, gate: Gate) -> None:
    result = errands("send", url, "hold", "--timeout", "0.2")
    assert result.exit_code == 3
    assert "no answer within 0.2 s" in result.stderr


def test_an_api_key_is_sent_where_the_card_says(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AgentCardConfig(
        name="Guarded",
        description="Asks for a key.",
        security_schemes={"key": {"type": "apiKey", "in": "header", "name": "X-Door"}},  # type: ignore[dict-item]
        security=[{"key": []}],
    )
    door = ApiKeyMiddleware(["s3cret"], header="X-Door")
    server = A2AServer(worker=Shy(), agent_card=config, middlewares=[door], storage="memory")
    with live(server) as url:
        assert errands("send", url, "hello", "--api-key", "s3cret").exit_code == 0
        refused = errands("send", url, "hello", "--api-key", "wrong-one")
        assert refused.exit_code == 3
        assert "the card asks for an API key in the header 'X-Door' [key]; ApiKey sent" in " ".join(
            refused.stderr.split()
        )
        assert "wrong-one" not in refused.output
        unfit = errands("send", url, "hello", "--token", "s3cret")
        assert unfit.exit_code == 3
        assert "which is not met by BearerToken" in " ".join(unfit.stderr.split())
        monkeypatch.setenv("ERRANDS_API_KEY", "s3cret")
        assert errands("tasks", "list", url).exit_code == 0


def test_credentials_go_to_another_origin_only_if_it_is_allowed(errands: Errands) -> None:
    config = AgentCardConfig(name="Moved", description="Is elsewhere.")
    with live(A2AServer(worker=Shy(), agent_card=config, storage="memory")) as other:
        moved = A2AServer(worker=Shy(), agent_card=config, storage="memory", public_url=other)
        with live(moved) as url:
            assert errands("send", url, "hello").exit_code == 0
            refused = errands("send", url, "hello", "--token", "s3cret")
            assert refused.exit_code == 3
            assert "On the command line that is --allow-origin URL." in " ".join(refused.stderr.split())
            assert errands("send", url, "hello", "--token", "s3cret", "--allow-origin", other).exit_code == 0


def test_client_credentials_come_from_the_environment(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    async def token(request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Basic bWU6czNjcmV0"
        return JSONResponse({"access_token": "token-1", "token_type": "Bearer"})

    async def verify(token: str) -> dict[str, str] | None:
        return {"sub": "me"} if token == "token-1" else None

    server = A2AServer(
        worker=Shy(),
        agent_card=AgentCardConfig(name="Guarded", description="Asks for a token."),
        middlewares=[BearerTokenMiddleware(verify)],
        storage="memory",
    )
    with live_app(Starlette(routes=[Route("/token", token, methods=["POST"])])) as login, live(server) as url:
        assert errands("send", url, "hello").exit_code == 3
        monkeypatch.setenv("ERRANDS_CLIENT_ID", "me")
        monkeypatch.setenv("ERRANDS_CLIENT_SECRET", "s3cret")
        monkeypatch.setenv("ERRANDS_TOKEN_URL", f"{login}/token")
        assert errands("send", url, "hello").exit_code == 0


class Shy(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("hello")
