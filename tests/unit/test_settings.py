"""What a server is configured with is looked at when it is made: what cannot be meant is told, with what to write."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from errands import A2AServer, AgentCardConfig, Settings, TaskContext, Worker
from errands.cli import options
from errands.errors import ConfigurationError
from errands.runtime.settings import COMMAND_LINE, PROTECTING, misspelled

CARD = AgentCardConfig(name="Echo", description="Echoes.")


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(ctx.user_text)


@pytest.mark.parametrize(
    ("variable", "text", "remedy"),
    [
        ("ERRANDS_LEASE_SECONDS", "soon", r"seconds \(more than 0\)"),
        ("ERRANDS_LEASE_SECONDS", "0", r"seconds \(more than 0\)"),
        ("ERRANDS_DRAIN_TIMEOUT", "-1", r"seconds \(0 or more\)"),
        ("ERRANDS_MAX_ATTEMPTS", "0", r"a whole number \(1 or more\)"),
        ("ERRANDS_MAX_CONCURRENT_TASKS", "0", r"a whole number \(1 or more\) or none"),
        ("ERRANDS_GRPC_PORT", "65536", r"a port \(0 to 65535\) or none"),
        ("ERRANDS_TRUST_FORWARDED", "perhaps", "true or false"),
        ("ERRANDS_ROLE", "boss", "one of all, api, worker"),
        ("ERRANDS_LOG_LEVEL", "loud", "one of debug, info, warning, error, critical or none"),
    ],
)
def test_a_variable_that_does_not_fit_is_named_with_what_to_write(variable: str, text: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^invalid {variable}='{text}': expected {remedy}$"):
        Settings.from_env({variable: text})


def test_a_variable_that_is_misspelled_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in ("ERRANDS_LEASE_SECOND", "ERRANDS_TOKEN", "ERRANDS_TOOL_WIKI__TOKEN", "ERRANDS_SOAK"):
        monkeypatch.setenv(variable, "5")
    with caplog.at_level(logging.WARNING, "errands"):
        A2AServer(worker=Echo(), agent_card=CARD)
    [warning] = [record.message for record in caplog.records if "unknown setting" in record.message]
    assert warning == "unknown setting ERRANDS_LEASE_SECOND; did you mean ERRANDS_LEASE_SECONDS?"


def test_variables_of_service_links_are_not_settings() -> None:
    links = {
        f"ERRANDS_{service}_PORT{end}": "tcp://10.0.0.1:50051"
        for service in ("GRPC", "AUTH_ISSUER", "PUSH_SECRET")
        for end in ("", "_50051_TCP")
    }
    more = {"ERRANDS_PORT": "tcp://10.0.0.1:80", "ERRANDS_SERVICE_HOST": "10.0.0.1", "ERRANDS_SERVICE_PORT": "80"}
    assert Settings.from_env({**links, **more}) == Settings()
    assert misspelled({**links, **more}) == {}
    assert Settings.from_env({"ERRANDS_AUTH": "tcp://10.0.0.1:80"}).auth == "tcp://10.0.0.1:80"


def test_variables_of_the_command_line_are_not_misspelled_settings() -> None:
    source = Path(options.__file__).read_text()
    variables = dict.fromkeys(re.findall(r'"(ERRANDS_[A-Z_]+)"', source), "x")
    assert Settings.from_env(variables) == Settings()
    assert misspelled(variables) == {}
    assert {name.removeprefix("ERRANDS_") for name in variables} == COMMAND_LINE


def test_what_a_variable_may_say_is_taken() -> None:
    settings = Settings.from_env(
        {
            "ERRANDS_LOG_LEVEL": "INFO",
            "ERRANDS_MAX_CONCURRENT_TASKS": "none",
            "ERRANDS_DRAIN_TIMEOUT": "0",
            "ERRANDS_ROLE": "api",
        }
    )
    assert (settings.log_level, settings.max_concurrent_tasks, settings.drain_timeout) == ("INFO", None, 0.0)
    assert settings.role == "api"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"settings": Settings(lease_seconds=-1)}, r"invalid lease_seconds=-1: expected seconds \(more than 0\)"),
        ({"settings": Settings(poll_interval=0)}, "invalid poll_interval=0: expected"),
        (
            {"max_concurrent_tasks": 0},
            r"invalid max_concurrent_tasks=0: expected a whole number \(1 or more\) or none",
        ),
        ({"max_concurrent_tasks": "5"}, "invalid max_concurrent_tasks='5': expected"),
        ({"grpc_port": -1}, "invalid grpc_port=-1: expected"),
        ({"storage": 5}, "storage must be a URL such as 'sqlite:///tasks.db' or an errands Engine, not int"),
        ({"worker": Echo}, r"worker=Echo is a class; pass an object of it: Echo\(\)"),
        ({"agent_card": AgentCardConfig(name="", description="Echoes.")}, "an agent needs a name"),
    ],
)
def test_a_server_that_cannot_be_meant_is_not_made(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{problem}"):
        A2AServer(**{"worker": Echo(), "agent_card": CARD, **arguments})


@pytest.mark.parametrize("value", [None, 5])
def test_a_setting_that_does_not_exist_is_told_whatever_its_value_is(value: int | None) -> None:
    unknown: dict[str, Any] = {"max_concurent_tasks": value}
    server = A2AServer(worker=Echo(), agent_card=CARD, max_concurrent_tasks=None)
    for attempt in (
        lambda: A2AServer(worker=Echo(), agent_card=CARD, **unknown),
        lambda: server.use_settings(**unknown),
        lambda: Settings.from_env({}, **unknown),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument 'max_concurent_tasks'"):
            attempt()


WITHOUT = """
import sys

sys.modules[sys.argv[1]] = None
from errands import ConfigurationError, agent
from errands.testing import serve

@agent
async def echo(text: str) -> str:
    return text

try:
    serve(echo, storage=sys.argv[2]).as_fastapi_app()
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "storage", "extra"),
    [
        ("fastapi", "memory", "fastapi"),
        ("asyncpg", "postgresql://localhost/tasks", "postgres"),
        ("redis", "redis://localhost", "redis"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(module: str, storage: str, extra: str) -> None:
    # In a process of its own: nothing else may see modules twice.
    done = subprocess.run([sys.executable, "-c", WITHOUT, module, storage], capture_output=True, text=True)
    assert re.search(rf"needs an extra \(.*{module}.*\): pip install 'errands\[{extra}\]'", done.stdout), done


def test_a_key_of_a_wrong_kind_is_not_shown() -> None:
    key: Any = b"hunter2"
    with pytest.raises(ConfigurationError, match=r"^invalid model_api_key=…: expected") as raised:
        A2AServer(worker=Echo(), agent_card=CARD, settings=Settings(model_api_key=key))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("text", ["", " ", "none", "NULL"])
def test_a_text_can_be_set_to_none(text: str) -> None:
    names = ("public_url", "blobs", "push_allow", "model_api_key")
    settings = Settings.from_env({f"ERRANDS_{name.upper()}": text for name in names})
    assert [getattr(settings, name) for name in names] == [None] * 4


@pytest.mark.parametrize("name", sorted(PROTECTING))
def test_a_protection_is_not_turned_off_by_an_empty_variable(name: str) -> None:
    for text in ("", " "):
        with pytest.raises(ConfigurationError, match=f"ERRANDS_{name.upper()} is empty"):
            Settings.from_env({f"ERRANDS_{name.upper()}": text})
    assert getattr(Settings.from_env({f"ERRANDS_{name.upper()}": "none"}), name) is None


@pytest.mark.parametrize("name", sorted(PROTECTING - {"auth"}))  # a slip in so short a name could be anything
def test_a_protection_is_not_turned_off_by_a_misspelled_variable(name: str) -> None:
    meant = f"ERRANDS_{name.upper()}"
    for variable in (meant[:-1], f"{meant}S", f"{meant[:9]}{meant[10:]}", f"{meant[:-2]}{meant[-1]}{meant[-2]}"):
        with pytest.raises(ConfigurationError, match=f"unknown setting {variable}; did you mean {meant}"):
            Settings.from_env({variable: "x"})
        assert getattr(Settings.from_env({variable: "x", meant: "y"}), name) == "y"
        assert getattr(Settings.from_env({variable: "x"}, **{name: "z"}), name) == "z"
