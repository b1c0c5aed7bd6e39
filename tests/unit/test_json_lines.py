"""`log_format=json`: one object on each line, with the task and the reference that it is about."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import TaskContext, tracing
from errands.clock import from_iso, system_clock
from errands.runtime.json_lines import current_task, write_json_lines
from errands.testing import connect, http_client, serve
from tests.interaction.wire import message
from tests.unit.cli.processes import Served
from tests.unit.cli.programs import write
from tests.unit.support import Agent

pytestmark = pytest.mark.anyio

logger = logging.getLogger("program")


class Lines(logging.Handler):
    """Keeps the lines that are written."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        assert record.message == record.getMessage()
        assert "\n" not in text
        self.lines.append(json.loads(text))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """The lines of a program whose root logger has a handler of its own."""
    handler = Lines()
    root = logging.getLogger()
    # pytest adds its handlers, which all tests share, to those of the root.
    plugin: Any = pytestconfig.pluginmanager.get_plugin("logging-plugin")
    for shared in (plugin.caplog_handler, plugin.report_handler):
        monkeypatch.setattr(shared, "formatter", shared.formatter)
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("errands"), "level", logging.INFO)
    monkeypatch.setattr(logger, "level", logging.INFO)
    return handler.lines


def of(lines: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["logger"] == name]


async def test_a_line_has_its_time_level_logger_and_message(written: list[dict[str, Any]]) -> None:
    async with serve(Agent(hello), log_format="json"):
        before = system_clock()
        logger.warning("%s of %d\n%s", "one", 2, "é\udc80")
        [line] = of(written, "program")
    assert before <= from_iso(line.pop("time")) <= system_clock()
    assert line == {"level": "warning", "logger": "program", "message": "one of 2\né?"}


async def hello(ctx: TaskContext) -> None:
    logger.info("begun")
    await asyncio.gather(*(asyncio.to_thread(logger.info, "in a thread") for _ in range(2)))
    if ctx.user_text == "fail":
        raise ValueError("secret cause")
    await ctx.complete("done")


async def test_lines_of_a_handler_have_its_task(written: list[dict[str, Any]]) -> None:
    async with connect(Agent(hello), log_format="json") as client:
        ids = [(await client.send("hello")).task_id for _ in range(2)]
        logger.info("outside")
    assert [line.get("task") for line in of(written, "program")] == [*[ids[0]] * 3, *[ids[1]] * 3, None]
    assert current_task.get() == ""


async def test_the_reference_that_a_client_gets_is_a_field(written: list[dict[str, Any]]) -> None:
    async with connect(Agent(hello), log_format="json") as client:
        result = await client.send("fail")
    [line] = [one for one in written if one["level"] == "error"]
    assert line["correlation"] in (result.text or str(result.raw_task))
    assert (line["logger"], line["task"]) == ("errands.runtime.handler", result.task_id)
    assert "ValueError: secret cause" in line["error"]


async def test_an_error_of_a_request_has_its_reference(written: list[dict[str, Any]]) -> None:
    server = serve(Agent(hello), log_format="json")
    async with server, http_client(server) as http:
        server.engine.commit = broken  # type: ignore[assignment,method-assign]
        answer = await http.post("/message:send", json={"message": message("x")})
    [line] = [one for one in written if "correlation" in one]
    assert line["correlation"] in answer.text


async def broken(*_: object) -> None:
    raise RuntimeError("the store is broken")


def test_lines_have_the_trace_that_they_are_part_of(
    written: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "current_ids", lambda: ("4bf92f", "a1"))
    write_json_lines()
    logger.info("traced")
    logger.info("of another trace", extra={"trace": "00f067"})
    assert [line["trace"] for line in written] == ["4bf92f", "00f067"]


_PROGRAM = """
import asyncio, logging
from errands import agent
from errands.testing import connect

@agent(name="Echo", description="Echoes.")
async def echo(text: str) -> str:
    logging.getLogger("program").warning("begun")
    return text

async def main():
    async with connect(echo, log_format="json") as client:
        await client.send("hello")

asyncio.run(main())
"""


def test_a_program_without_handlers_writes_to_stderr() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=100)
    [line] = map(json.loads, run.stderr.splitlines())
    assert (line["message"], bool(line["task"])) == ("begun", True)


_LOGGING = """
import logging
from errands import agent

logging.getLogger("program").warning("loaded")

@agent(name="Echo", description="Echoes.")
async def echo(text: str) -> str:
    logging.getLogger("program").warning("begun")
    return text
"""


@pytest.mark.parametrize("how", ["option", "variable"])
def test_errands_serve_writes_json_from_the_first_line(tmp_path: Path, how: str) -> None:
    options, settings = [], dict[str, Any](log_format="json")
    if how == "option":
        options, settings = ["--log-format", "json"], {}
    with Served(write(tmp_path, _LOGGING), *options, cwd=tmp_path, **settings) as server:
        task = httpx.post(f"{server.url}/message:send", json={"message": message("hi")}, timeout=None).json()["task"]
        lines = [json.loads(line) for line in server.stop().stderr.splitlines()]
    assert [(line["message"], line.get("task")) for line in lines] == [("loaded", None), ("begun", task["id"])]
