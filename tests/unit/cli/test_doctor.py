"""`errands doctor`: each problem is found, and each finding says what to do."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from errands import A2AServer, AgentCardConfig, TaskContext, Worker
from errands.cli import doctor
from errands.clock import system_clock
from errands.engines import connection
from errands.runtime.settings import ENV_PREFIX, Settings
from errands.server.auth import ApiKeyAuth
from tests.postgres import own_schema
from tests.redis_server import shared_url
from tests.unit.cli.conftest import Errands, live
from tests.unit.cli.programs import ECHO


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent that is well, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.__struct_fields__:
        monkeypatch.delenv(ENV_PREFIX + name.upper(), raising=False)
    (tmp_path / "agent.py").write_text(ECHO)
    return tmp_path


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def checks(errands: Errands, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    result = errands("doctor", *arguments, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == code, found
    assert found["healthy"] is (code == 0)
    assert all(check["remedy"] for check in found["checks"] if check["severity"] != "ok")
    checks: list[dict[str, Any]] = found["checks"]
    return checks


def problems(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(check["about"], check["text"]) for check in found if check["severity"] != "ok"]


def test_a_project_that_is_well_has_no_problems(errands: Errands, free_port: int, project: Path) -> None:
    found = checks(errands, "--port", str(free_port))
    assert problems(found) == []
    assert {check["about"] for check in found} == {"version", "target", "card", "settings", "disk", "storage", "port"}
    assert not (project / ".errands").exists(), "nothing may be created"


def test_people_read_one_line_for_each_check_and_how_to_fix_it(
    errands: Errands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDS_STORAG", "memory")
    shown = errands("doctor", "--port", "0").stdout
    assert "warning  settings   ERRANDS_STORAG is not a setting" in shown
    assert "         fix: write ERRANDS_STORAGE" in shown
    assert shown.endswith("checks: 0 errors, 1 warning\n")


def test_a_port_that_is_taken(errands: Errands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        [(about, text)] = problems(checks(errands, "--port", str(port), code=1))
    assert (about, text) == ("port", f"port {port} of 127.0.0.1 is in use")


def test_a_program_that_does_not_run(errands: Errands, project: Path) -> None:
    (project / "agent.py").write_text("import nothing_like_this")
    [(about, text)] = problems(checks(errands, "--port", "0", code=1))
    assert about == "target"
    assert "nothing_like_this" in text


def test_a_manifest_that_is_not_valid(errands: Errands, project: Path) -> None:
    (project / "bad.yaml").write_text("kind: commonagents.info/v1beta2/agent\n")
    assert ("target") in dict(problems(checks(errands, "bad.yaml", "--port", "0", code=1)))


def test_an_invalid_setting(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDS_LEASE_SECONDS", "soon")
    [(about, text)] = problems(checks(errands, code=1))
    assert about == "settings"
    assert "ERRANDS_LEASE_SECONDS='soon'" in text


@pytest.mark.parametrize(("name", "needed"), doctor._NEEDED.items())
def test_a_setting_without_effect(errands: Errands, monkeypatch: pytest.MonkeyPatch, name: str, needed: str) -> None:
    values = {int: "7", str: "x"}
    default = getattr(Settings(), name)
    value = "true" if default is False else values.get(type(default), "7")
    monkeypatch.setenv(ENV_PREFIX + name.upper(), value)
    if needed == "push_notifications":
        monkeypatch.setenv("ERRANDS_PUSH_NOTIFICATIONS", "false")
    diagnoses = list(doctor._without_effect(Settings.from_env(), is_manifest=True))
    assert [diagnosis.text for diagnosis in diagnoses] == [f"{name} has no effect without {needed}"]


@pytest.mark.parametrize(
    ("name", "value", "extra"),
    [
        ("GRPC_PORT", "0", "grpc"),
        ("AUTH", "auth.yaml", "auth"),
        ("CARD_SIGNING_KEYS", "key.pem", "signing"),
        ("POLICY", "policy.yaml", "agents"),
        ("MODEL", "openai/gpt-4o-mini", "agents,models"),
        ("BLOBS", "s3://bucket", "s3"),
        ("BLOBS", "gs://bucket", "gcs"),
    ],
)
def test_an_extra_that_a_setting_needs_and_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, extra: str
) -> None:
    monkeypatch.setenv(ENV_PREFIX + name, value)
    assert list(doctor._missing_extras(Settings.from_env())) == []
    monkeypatch.setattr(doctor, "_has", lambda module: False)
    [found] = doctor._missing_extras(Settings.from_env())
    assert found.remedy == f"pip install 'errands[{extra}]'"


def test_a_secret_file_that_others_can_read(errands: Errands, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = project / "key.pem"
    secret.write_text("x")
    secret.chmod(0o644)
    monkeypatch.setenv("ERRANDS_TLS_KEY", str(secret))
    assert ("files", f"{secret} (tls_key) can be read by other users") in problems(checks(errands, "--port", "0"))
    secret.chmod(0o600)
    assert "files" not in dict(problems(checks(errands, "--port", "0")))


def test_a_database_that_others_can_read(errands: Errands, project: Path) -> None:
    database = project / "tasks.db"
    storage = f"sqlite:///{database}"
    errands("db", "upgrade", "--storage", storage)
    assert problems(checks(errands, "--storage", storage, "--port", "0")) == []
    database.chmod(0o666)
    found = problems(checks(errands, "--storage", storage, "--port", "0"))
    assert found == [("storage", f"{database} can be read by other users")]


def test_a_database_of_another_program(errands: Errands, project: Path) -> None:
    database = project / "theirs.db"
    with closing(sqlite3.connect(database)) as theirs:
        theirs.execute("CREATE TABLE mine (x)")
    database.chmod(0o600)
    [(about, text)] = problems(checks(errands, "--storage", f"sqlite:///{database}", "--port", "0", code=1))
    assert about == "storage"
    assert "belongs to another program" in text


def test_a_disk_that_is_nearly_full(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOW_SPACE", 2**60)
    found = problems(checks(errands, "--port", "0"))
    assert [about for about, _ in found] == ["disk"]
    monkeypatch.setattr(doctor, "_NO_SPACE", 2**60)
    assert "disk" in dict(problems(checks(errands, "--port", "0", code=1)))


@pytest.mark.parametrize("make", [own_schema, shared_url], ids=["postgresql", "redis"])
def test_a_server_that_stores_tasks_and_its_clock(
    errands: Errands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    storage = make(tmp_path)
    if storage.startswith("postgresql"):
        [(about, text)] = problems(checks(errands, "--storage", storage, "--port", "0", code=1))
        assert about == "storage"
        errands("db", "upgrade", "--storage", storage)
    found = checks(errands, "--storage", storage, "--port", "0")
    assert problems(found) == []
    assert "this machine and the store agree" in [check["text"] for check in found]
    monkeypatch.setattr(connection.StoreClock.__init__, "__defaults__", (lambda: system_clock() - 60_000,))
    monkeypatch.setattr(doctor, "system_clock", lambda: system_clock() - 60_000)
    [(about, text)] = problems(checks(errands, "--storage", storage, "--port", "0"))
    assert (about, text) == ("clock", "the clock of this machine is 60 s behind that of the store")


def test_a_store_that_is_not_there_and_no_password_is_shown(errands: Errands) -> None:
    result = errands("doctor", "--storage", "postgresql://me:s3cret@127.0.0.1:9/x", "--port", "0")
    assert result.exit_code == 1
    assert "error    storage" in result.stdout
    assert "s3cret" not in result.output


def test_memory_is_a_warning(errands: Errands) -> None:
    assert problems(checks(errands, "--storage", "memory", "--port", "0")) == [
        ("storage", "tasks in memory are lost when the server stops")
    ]


# A running agent


class Silent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete()


CARD = AgentCardConfig(name="Silent", description="Says nothing.")


def test_an_agent_that_is_well(errands: Errands) -> None:
    with live(A2AServer(worker=Silent(), agent_card=CARD, storage="memory")) as url:
        found = checks(errands, url)
    assert problems([check for check in found if check["about"] != "card"]) == []
    assert [check["about"] for check in found if check["about"] != "card"] == ["reach", "ready", "clock", "access"]


def test_an_agent_that_wants_credentials(errands: Errands) -> None:
    auth = [ApiKeyAuth({"k3y": "alice"})]
    with live(A2AServer(worker=Silent(), agent_card=CARD, storage="memory", auth=auth)) as url:
        assert "access" in dict(problems(checks(errands, url)))
        assert "access" not in dict(problems(checks(errands, url, "--api-key", "k3y")))


def test_an_agent_that_is_not_there(errands: Errands, free_port: int) -> None:
    assert [about for about, _ in problems(checks(errands, f"http://127.0.0.1:{free_port}", code=1))] == ["reach"]


def test_an_agent_whose_clock_is_wrong(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(A2AServer(worker=Silent(), agent_card=CARD, storage="memory")) as url:
        monkeypatch.setattr(doctor, "system_clock", lambda: system_clock() + 100_000)
        found = dict(problems(checks(errands, url)))
    assert "ahead of that of the agent" in found["clock"]
