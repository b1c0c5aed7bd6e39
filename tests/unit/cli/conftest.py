"""A live agent behind a real socket, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner, Result

from errands import A2AServer
from errands.cli.main import app
from tests.live import live as live_app
from tests.unit.cli.agent import Gate, obliging_server

Errands = Callable[..., Result]


@contextmanager
def live(server: A2AServer) -> Iterator[str]:
    """The URL of a server that runs in a thread."""
    with live_app(server.app, lifespan="on") as url:
        yield url


@pytest.fixture(scope="module")
def only_gate() -> Gate:
    return Gate()


@pytest.fixture
def gate(only_gate: Gate) -> Iterator[Gate]:
    """Shut when the test begins, open when it has ended, so that nothing stays behind it."""
    only_gate.shut()
    yield only_gate
    only_gate.open()


@pytest.fixture(scope="module")
def url(only_gate: Gate) -> Iterator[str]:
    """A streaming agent that does what it is told."""
    with live(obliging_server(only_gate, streaming=True)) as url:
        yield url


@pytest.fixture(scope="module")
def plain_url(only_gate: Gate) -> Iterator[str]:
    """The same agent without streaming."""
    with live(obliging_server(only_gate, streaming=False)) as url:
        yield url


@pytest.fixture
def errands(monkeypatch: pytest.MonkeyPatch) -> Errands:
    """Runs a command in this process: `errands("send", url, "hello")`."""
    for name in ("TOKEN", "API_KEY", "CLIENT_ID", "CLIENT_CERTIFICATE"):
        monkeypatch.delenv(f"ERRANDS_{name}", raising=False)
    runner = CliRunner()

    def run(*arguments: str, stdin: str | None = None) -> Result:
        result = runner.invoke(app, arguments, input=stdin)
        assert "\x1b" not in result.output, "colours in a pipe"
        assert "Traceback" not in result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
