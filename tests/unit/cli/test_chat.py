"""`errands chat` in a terminal: what a person types, and what is on the screen."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from errands.cli.chat import _free_path
from errands.model.core import Part
from tests.terminal import CTRL_C, CTRL_D, UP, Terminal
from tests.unit.cli.agent import Gate
from tests.unit.cli.conftest import Errands, live


class Talkative(Worker):
    """Does what a chat has to show."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.history and ctx.user_text != "trip":
            await ctx.complete(f"{ctx.history[0].text} is answered with {ctx.user_text or ctx.json_values}")
            return
        wish = ctx.user_text.partition(" ")[0]
        await getattr(self, f"_{wish}", self._echo)(ctx)

    async def _echo(self, ctx: TaskContext) -> None:
        files = [f"{file.filename}={(file.content or b'').decode()}" for file in ctx.files]
        await ctx.complete(" ".join([f"You said: {ctx.user_text}", *files]))

    async def _slowly(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("first")
        await self._gate.wait()
        await ctx.emit_text_artifact(", then second.", append=True)
        await ctx.complete()

    async def _forever(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("I begin")
        while not ctx.is_cancelled:
            await asyncio.sleep(0.01)

    async def _ask(self, ctx: TaskContext) -> None:
        await ctx.request_input("Which colour?")

    async def _trip(self, ctx: TaskContext) -> None:
        schema = {
            "type": "object",
            "properties": {
                "nights": {"type": "integer"},
                "room": {"enum": ["single", "double"]},
                "note": {"type": "string"},
            },
            "required": ["nights", "room"],
        }
        await ctx.request_input("Where to?", schema=schema)

    async def _login(self, ctx: TaskContext) -> None:
        await ctx.request_auth("A token, please.", schemes=["Bearer"], auth_url="https://auth.test/new")

    async def _file(self, ctx: TaskContext) -> None:
        await ctx.emit_artifact(
            artifact_id="f", file_bytes=b"contents", filename="../../.secret/report.txt", media_type="text/plain"
        )
        await ctx.complete()

    async def _emojis(self, ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="f", file_bytes=b"contents", filename="🦜" * 100, media_type="text/plain")
        await ctx.complete()

    async def _nonsense(self, ctx: TaskContext) -> None:
        fields = {"a": {"enum": 5}, "b": 3, "c": {"type": ["string"], "enum": {"x": 1}}}
        await ctx.request_input("What?", schema={"type": "object", "properties": fields, "required": 7})

    async def _oddity(self, ctx: TaskContext) -> None:
        await ctx.request_input("What then?", schema={"type": "object", "properties": ["a"]})

    async def _where(self, ctx: TaskContext) -> None:
        await ctx.complete(f"context {ctx.context_id}")


def server(gate: Gate, *, streaming: bool = True) -> A2AServer:
    card = AgentCardConfig(
        name="Talkative",
        description="Talks.",
        capabilities=CapabilitiesConfig(streaming=streaming),
        input_modes=["*/*"],
    )
    return A2AServer(worker=Talkative(gate), agent_card=card, storage="memory", drain_timeout=0.1)


@pytest.fixture(params=[True, False], ids=["streaming", "polling"])
def any_url(request: pytest.FixtureRequest, gate: Gate) -> Iterator[str]:
    with live(server(gate, streaming=request.param)) as url:
        yield url


@pytest.fixture
def url(gate: Gate) -> Iterator[str]:
    with live(server(gate)) as url:
        yield url


@contextmanager
def chatting(url: str, folder: Path, *options: str) -> Iterator[Terminal]:
    with Terminal("chat", url, *options, cwd=folder) as terminal:
        terminal.shows("Talkative. /help shows what can be typed here.", "you>")
        yield terminal


def test_a_message_is_answered_and_quit_leaves(any_url: str, tmp_path: Path) -> None:
    with chatting(any_url, tmp_path) as terminal:
        terminal.enter("hello")
        terminal.shows("You said: hello")
        terminal.enter("/quit")
        assert terminal.exit_code() == 0


def test_an_answer_is_on_the_screen_while_the_agent_still_works(url: str, gate: Gate, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("slowly")
        assert "second" not in terminal.shows("first")
        gate.open()
        terminal.shows("first, then second.")


def test_turns_share_a_conversation_until_a_new_one_begins(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:

        def contexts() -> list[str]:
            return re.findall(r"context ([0-9a-f-]{36})", terminal.text)

        for count in (1, 2):
            terminal.enter("where")
            terminal.until(lambda: len(contexts()) == count)  # noqa: B023
        terminal.enter("/new")
        terminal.shows("A new conversation.")
        terminal.enter("where")
        terminal.until(lambda: len(contexts()) == 3)
        first, second, third = contexts()
        assert first == second != third
        # A key that is pressed before the prompt is shown may be lost.
        terminal.until(lambda: terminal.display.rstrip().endswith("you>"))
        terminal.press(CTRL_D)
        terminal.shows(f"--context {third}")
        assert terminal.exit_code() == 0
    with chatting(url, tmp_path, "--context", third) as terminal:
        terminal.enter("where")
        terminal.shows(f"context {third}")


def test_a_file_goes_with_the_next_message(url: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of mine")
    with chatting(url, tmp_path) as terminal:
        terminal.enter("/file nothing.txt")
        terminal.shows("nothing.txt cannot be read (No such file or directory).")
        terminal.enter("/file notes.txt")
        terminal.shows("notes.txt (7 bytes) is attached to the next message.")
        terminal.enter("look")
        terminal.shows("You said: look notes.txt=of mine")
        terminal.enter("again")
        terminal.shows("You said: again\n")


def test_a_file_of_the_agent_is_saved_in_this_folder_under_a_harmless_name(url: str, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("mine")
    with chatting(url, tmp_path) as terminal:
        terminal.enter("file")
        terminal.shows("save report-1.txt (8 bytes) in this folder? [y/N]")
        terminal.enter("y")
        terminal.shows("Saved as report-1.txt.")
        terminal.enter("file")
        terminal.shows("save report-2.txt (8 bytes) in this folder? [y/N]")
        terminal.enter("")
        terminal.enter("hello")
        terminal.shows("You said: hello")
    assert (tmp_path / "report.txt").read_text() == "mine"
    assert (tmp_path / "report-1.txt").read_text() == "contents"
    assert not (tmp_path / "report-2.txt").exists()


def test_a_name_that_no_file_can_have_and_a_form_that_is_none_do_not_end_the_chat(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("emojis")
        terminal.shows("(8 bytes) in this folder? [y/N]")
        terminal.enter("y")
        terminal.shows("Saved as")
        terminal.enter("nonsense")
        for name in "abc":
            terminal.shows(f"{name} (")
            terminal.enter("1")
        terminal.shows("nonsense is answered with")
        terminal.enter("oddity")
        terminal.shows("What then?", "The answer should match:", "answer>")
    assert [path.read_text() for path in tmp_path.glob("🦜*")] == ["contents"]


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("../../.ssh/authorized_keys", "authorized_keys"),
        ("..\\..\\.profile", "profile"),
        ("a\nb\tc", "a b c"),
        ("report\u202efdp.exe", "reportfdp.exe"),
        ("\x1b]0;x\x07name", "]0;xname"),
        ("..", "file.txt"),
        ("\x00", "file.txt"),
    ],
)
def test_a_file_name_leads_nowhere_else_and_hides_nothing(
    filename: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(_free_path(Part(raw=b"", filename=filename, media_type="text/plain"))) == expected


def test_ctrl_c_cancels_the_task_and_the_chat_goes_on(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("forever")
        terminal.shows("I begin")
        terminal.press(CTRL_C)
        terminal.shows("Canceling. Ctrl-C leaves at once.", "The task is canceled.")
        terminal.enter("hello")
        terminal.shows("You said: hello")


def test_a_second_ctrl_c_leaves_before_the_task_has_stopped(url: str, gate: Gate, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("slowly")
        terminal.shows("first")
        terminal.press(CTRL_C)
        terminal.shows("Canceling. Ctrl-C leaves at once.")
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.text
    gate.open()


def test_ctrl_c_at_the_prompt_leaves(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.text


def test_a_question_is_answered_in_place(any_url: str, tmp_path: Path) -> None:
    with chatting(any_url, tmp_path) as terminal:
        terminal.enter("ask")
        terminal.shows("Which colour?", "answer>")
        terminal.enter("blue")
        terminal.shows("ask is answered with blue")
        terminal.enter("hello")
        terminal.shows("You said: hello")


def test_a_question_with_a_schema_is_a_form(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("trip")
        terminal.shows("Where to?", "nights (integer)>")
        terminal.enter("two")
        terminal.shows("nights is of type integer, such as 3")
        terminal.enter("2")
        terminal.shows("room (single | double)>")
        terminal.enter("triple")
        terminal.shows("room is one of single, double")
        terminal.enter("double")
        terminal.shows("note (string, optional)>")
        terminal.enter("")
        terminal.shows("trip is answered with [{'nights': 2, 'room': 'double'}]")


def test_a_token_is_asked_for_in_place_and_not_shown(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("login")
        terminal.shows("Accepted: Bearer", "Get it at: https://auth.test/new", "token (not shown")
        terminal.enter("s3cret")
        terminal.shows("login is answered with go on")
        assert "s3cret" not in terminal.text


def test_the_line_before_comes_back_with_the_arrow(url: str, tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with chatting(url, tmp_path) as terminal:
        terminal.enter("hello")
        terminal.shows("You said: hello")
        terminal.press(UP)
        terminal.enter("!")
        terminal.shows("You said: hello!")


def test_unknown_commands_and_messages_with_a_slash(url: str, tmp_path: Path) -> None:
    with chatting(url, tmp_path) as terminal:
        terminal.enter("/qiut")
        terminal.shows("unknown command /qiut: /help shows the commands")
        terminal.enter("//etc")
        terminal.shows("You said: /etc")
        terminal.enter("/help")
        terminal.shows("/file PATH")


class CuttingProxy:
    """Passes connections on to a server, and can cut them all."""

    def __init__(self, url: str, port: int = 0) -> None:
        host, _, target_port = url.removeprefix("http://").partition(":")
        self._target = host, int(target_port)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: set[socket.socket] = set()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        self._close(source)
        self._close(target)

    def _close(self, one: socket.socket) -> None:
        self._open.discard(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def cut(self) -> None:
        for one in list(self._open):
            self._close(one)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextmanager
def proxied(url: str, port: int = 0) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(url, port)
    try:
        yield proxy
    finally:
        proxy.close()


def test_a_stream_goes_on_after_the_connection_was_cut(url: str, gate: Gate, tmp_path: Path) -> None:
    with proxied(url) as proxy, chatting(proxy.url, tmp_path) as terminal:
        terminal.enter("slowly")
        terminal.shows("first")
        proxy.cut()
        gate.open()
        terminal.shows("first, then second.")


def test_an_agent_that_is_gone_for_a_while_is_tried_again(url: str, gate: Gate, tmp_path: Path) -> None:
    proxy = CuttingProxy(url)
    with chatting(proxy.url, tmp_path) as terminal:
        terminal.enter("slowly")
        terminal.shows("first")
        proxy.close()
        terminal.shows("The connection was lost; trying again")
        with proxied(url, proxy.port):
            gate.open()
            terminal.shows(", then second.")
            terminal.enter("hello")
            terminal.shows("You said: hello")


def test_lines_of_a_pipe_are_messages_and_only_answers_are_printed(errands: Errands, url: str) -> None:
    result = errands("chat", url, stdin="hello\nwell\n")
    assert (result.exit_code, result.stdout) == (0, "You said: hello\nYou said: well\n")


def test_an_agent_that_is_not_there_is_an_error(errands: Errands) -> None:
    result = errands("chat", "http://127.0.0.1:9", stdin="")
    assert result.exit_code == 3
    assert result.stderr.startswith("Error: ")
