"""The files in deploy/ fit the code: commands, options and settings exist, probes are answered, drains have time."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import httpx
import pytest
import typer
import yaml

from errands import Settings, agent
from errands.cli.main import app
from errands.engines.postgres import PostgresEngine
from errands.model.log import Scope
from errands.runtime.settings import ENV_PREFIX
from errands.testing import http_client, serve
from tests.contract.changes import Changes, ManualClock
from tests.postgres import own_database, shared_server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
#: Seconds that `errands serve` takes at most to close connections after the drain: see errands.cli.http_server.
CLOSING = 10


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def compose() -> dict[str, Any]:
    [document] = documents(DEPLOY / "compose.yaml")
    return document


class Container(NamedTuple):
    """A process of errands in one of the files."""

    where: str
    arguments: list[str]
    environment: dict[str, str]
    #: Seconds until it is killed, and those that it does not hear of.
    grace: float = 0.0
    before_signal: float = 0.0


def in_compose() -> Iterator[Container]:
    for name, service in compose()["services"].items():
        if "build" in service:
            grace = float(service["stop_grace_period"].removesuffix("s"))
            yield Container(f"compose {name}", service["command"], service["environment"], grace)


def settings_map() -> dict[str, str]:
    [document] = documents(DEPLOY / "kubernetes" / "settings.yaml")
    data: dict[str, str] = document["data"]
    return data


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in documents(path):
            if document["kind"] in ("Deployment", "StatefulSet", "Job"):
                yield path.name, document["spec"]["template"]["spec"]


def in_kubernetes() -> Iterator[Container]:
    for where, pod in pods():
        for container in pod["containers"]:
            if container["image"] == "errands-agent":
                sleep = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])
                grace = pod.get("terminationGracePeriodSeconds", 0)
                yield Container(where, container["args"], settings_map(), grace, float(sleep[1]))


CONTAINERS = [*in_compose(), *in_kubernetes()]
SERVING = [container for container in CONTAINERS if container.arguments[0] == "serve"]


def ids(container: Container) -> str:
    return container.where


def test_there_are_processes_of_every_role() -> None:
    roles = {container.arguments[container.arguments.index("--role") + 1] for container in SERVING}
    assert roles == {"api", "worker"}
    assert len(CONTAINERS) == 6


@pytest.mark.parametrize("container", CONTAINERS, ids=ids)
def test_the_command_line_understands_what_is_run(container: Container) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("errands", list(container.arguments))
    arguments = [*context._protected_args, *context.args]
    while hasattr(command, "commands"):
        name, command, arguments = command.resolve_command(context, arguments)
        context = command.make_context(name, arguments, parent=context)
        arguments = [*context._protected_args, *context.args]
    assert not arguments


@pytest.mark.parametrize("container", CONTAINERS, ids=ids)
def test_every_setting_exists_and_fits(container: Container) -> None:
    ours = {name: value for name, value in container.environment.items() if name.startswith(ENV_PREFIX)}
    assert ours
    fields = {ENV_PREFIX + name.upper() for name in Settings.__struct_fields__}
    assert ours.keys() <= fields
    assert Settings.from_env(ours).storage.startswith("postgresql://")


@pytest.mark.parametrize("container", SERVING, ids=ids)
def test_what_runs_has_the_time_to_finish_before_it_is_killed(container: Container) -> None:
    drain = Settings.from_env(container.environment).drain_timeout
    assert container.grace >= container.before_signal + drain + CLOSING


@pytest.mark.anyio
async def test_probes_ask_for_pages_that_there_are() -> None:
    @agent
    async def echo(text: str) -> str:
        """Echoes."""
        return text

    probes = [
        container[probe]["httpGet"]
        for _, pod in pods()
        for container in pod["containers"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        if "httpGet" in container.get(probe, {})
    ]
    paths = {probe["path"] for probe in probes}
    assert paths == {"/health", "/health/ready"}
    assert {probe["port"] for probe in probes} == {"http"}
    server = serve(echo)
    async with server, http_client(server) as http:
        for path in paths:
            answer: httpx.Response = await http.get(path)
            assert answer.status_code == 200


def test_the_health_check_of_compose_asks_the_port_that_is_served() -> None:
    for name in ("api", "worker"):
        service = compose()["services"][name]
        port = service["command"][service["command"].index("--port") + 1]
        assert f"http://127.0.0.1:{port}/health/ready" in service["healthcheck"]["test"][-1]


def test_every_process_in_the_cluster_says_what_it_needs() -> None:
    for where, pod in pods():
        for container in pod["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), where
            assert "memory" in container["resources"]["limits"], where


@pytest.mark.parametrize(("where", "pod"), [*pods()], ids=lambda each: each if isinstance(each, str) else "")
def test_no_process_in_the_cluster_may_do_more_than_it_must(where: str, pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        allowed = container["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert allowed.get("readOnlyRootFilesystem") or where == "postgres.yaml"


def test_a_database_is_not_taken_for_ready_while_it_is_set_up() -> None:
    """Its image starts it twice: at first without the network."""
    probes = [compose()["services"]["postgres"]["healthcheck"]["test"][1:]]
    for where, pod in pods():
        if where == "postgres.yaml":
            (container,) = pod["containers"]
            probes += [container[probe]["exec"]["command"] for probe in ("readinessProbe", "livenessProbe")]
    assert len(probes) == 3
    assert all(probe[:3] == ["pg_isready", "-h", "127.0.0.1"] for probe in probes)


@pytest.mark.anyio
async def test_workers_are_scaled_by_what_runs_and_what_waits() -> None:
    [scaled] = documents(DEPLOY / "kubernetes" / "keda" / "worker.yaml")
    [trigger] = [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]
    clock = ManualClock()
    changes = Changes(clock)
    scope = Scope("", "", "Echo")
    async with own_database() as database:
        url = shared_server().url(database=database)
        async with PostgresEngine(url, clock=clock) as engine:
            for task_id in ("ended", "runs"):
                await engine.commit(changes.start(task_id, scope=scope))
            await engine.commit(changes.create("waits", scope=scope))
            await engine.commit(changes.complete("ended", scope=scope))
            connection = await asyncpg.connect(url)
            assert await connection.fetchval(trigger["query"]) == 2
            await connection.close()


def test_names_in_the_cluster_refer_to_what_is_there() -> None:
    everything = [document for path in MANIFESTS for document in documents(path)]
    named = {(document["kind"], document["metadata"]["name"]) for document in everything}
    for document in everything:
        if document["kind"] == "HorizontalPodAutoscaler":
            target = document["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in named
        if document["kind"] in ("Service", "PodDisruptionBudget"):
            selector = document["spec"]["selector"]
            labels = selector.get("matchLabels", selector)
            assert any(
                labels.items() <= other["spec"]["template"]["metadata"]["labels"].items()
                for other in everything
                if other["kind"] in ("Deployment", "StatefulSet")
            )
    for _, pod in pods():
        for container in pod["containers"]:
            for source in container.get("envFrom", []):
                assert ("ConfigMap", source["configMapRef"]["name"]) in named
    host = re.fullmatch(r"postgresql://\w+@(\w+)/\w+", settings_map()["ERRANDS_STORAGE"])
    assert host is not None
    assert ("Service", host[1]) in named


# The image


def dockerfile() -> list[str]:
    return (DEPLOY / "Dockerfile").read_text().splitlines()


def test_the_image_installs_extras_that_there_are() -> None:
    [line] = [line for line in dockerfile() if line.startswith("ARG EXTRAS=")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(line.partition("=")[2].split(",")) <= extras.keys()


def test_the_image_copies_what_there_is() -> None:
    [default] = [line.partition("=")[2] for line in dockerfile() if line.startswith("ARG AGENT=")]
    copied = [line.split()[1:-1] for line in dockerfile() if line.startswith("COPY ") and "--from" not in line]
    names = [name.replace("${AGENT}", default) for names in copied for name in names]
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
    assert any(f"/agent/{Path(default).name}" in line for line in dockerfile() if line.startswith("CMD "))
    for container in SERVING:
        assert f"/agent/{Path(default).name}" in container.arguments
