"""The compared servers: how each is installed, started, awaited and stopped."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from stores import Store
from workloads import MEMORY, OLD, POSTGRESQL, SQLITE, STORAGES, Workload

SERVERS_DIR = Path(__file__).parent / "servers"
ENVIRONMENT = Path(__file__).resolve().parent.parent / "scripts" / "environment.py"
STARTUP_S = 30.0
STOP_S = 5.0
CARD = "/.well-known/agent-card.json"
READY = "/health/ready"

#: All contenders use the same HTTP stack, in the versions of the interpreter that runs the benchmark.
HTTP_STACK = ("uvicorn", "uvloop", "httptools")
UVICORN = ("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning")


class ContenderError(Exception):
    """A contender could not be installed, started or measured."""


@dataclass(frozen=True)
class Contender:
    name: str
    #: The module in servers/ whose `app` is served.
    module: str
    #: The protocol version it speaks best.
    dialect: str
    storages: tuple[str, ...] = (MEMORY, SQLITE)
    #: The packages of its virtual environment; empty means the interpreter that runs the benchmark.
    requirements: tuple[str, ...] = ()
    #: Whether it is served by its own command, as its users do, instead of uvicorn's.
    has_command: bool = False
    #: Whether only the workloads that name it measure it.
    has_own_work: bool = False
    #: Settings that make a peer faster than its defaults.
    tuning: Mapping[str, str] = field(default_factory=dict)
    #: Additional options of its command.
    options: tuple[str, ...] = ()
    #: The options of a second process that runs tasks.
    beside: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def does(self, workload: Workload) -> bool:
        name = "errands" if self.name == OLD else self.name
        return name in workload.servers or not (workload.servers or self.has_own_work)


def split(name: str, workers: int) -> Contender:
    """Return errands in two roles. The handler waits, as for a model, and few turns run in one process."""
    return Contender(
        name,
        "errands_server",
        "1.0",
        storages=(POSTGRESQL,),
        has_command=True,
        has_own_work=True,
        options=("--role", "api"),
        beside=("--role", "worker", "--workers", str(workers)),
        environment={"BENCH_WAIT_MS": "50", "ERRANDS_MAX_CONCURRENT_TASKS": "8"},
    )


@dataclass(frozen=True)
class Running:
    """A running server."""

    #: Its processes, without their children.
    pids: tuple[int, ...]
    port: int
    grpc_port: int

    def beside(self, pid: int | None) -> Running:
        """Its processes and that of its store."""
        return self if pid is None else replace(self, pids=(*self.pids, pid))


CONTENDERS = (
    Contender("errands", "errands_server", "1.0", storages=STORAGES, has_command=True),
    Contender("errands+sdk", "errands_sdk_server", "1.0", storages=(SQLITE,), has_command=True, has_own_work=True),
    split("1-worker", 1),
    split("2-workers", 2),
    Contender("bare", "bare_server", "1.0", storages=(MEMORY,)),
    Contender(
        "a2a-sdk",
        "a2a_sdk_server",
        "1.0",
        storages=(MEMORY, SQLITE, POSTGRESQL),
        requirements=("a2a-sdk[http-server,sqlite,postgresql,grpc]==1.3.0",),
        tuning={"OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false", "BENCH_JOURNAL": "WAL"},
    ),
    Contender(
        "a2akit",
        "a2akit_server",
        "0.3",
        storages=STORAGES,
        requirements=("a2akit[sqlite,postgres,redis]==0.0.32",),
        tuning={"OTEL_INSTRUMENTATION_A2AKIT_ENABLED": "false"},
    ),
)


def old_errands(revision: str, bench_dir: Path) -> Contender:
    """Return errands as it was at a git revision, run by this interpreter with that revision's source."""
    source = bench_dir / "old"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=ENVIRONMENT.parent.parent, capture_output=True)
    if archive.returncode:
        raise ContenderError(archive.stderr.decode().strip())
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    environment = {"PYTHONPATH": str(source / "src")}
    return replace(CONTENDERS[0], name=OLD, environment=environment)


def install(contender: Contender, bench_dir: Path) -> Path:
    """Return the contender's interpreter. Its environment is reused while the pinned versions stay the same."""
    if not contender.requirements:
        return Path(sys.executable)
    requirements = [*contender.requirements, *(f"{package}=={version(package)}" for package in HTTP_STACK)]
    command = [sys.executable, str(ENVIRONMENT), str(bench_dir / contender.name), *requirements]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ContenderError(made.stderr.strip()[-500:])
    return Path(made.stdout.strip())


def cores() -> tuple[int, ...]:
    """Return one core for the server and one for the load, or none if they cannot be separated."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    available = sorted(os.sched_getaffinity(0))
    return tuple(available[:2]) if len(available) > 1 else ()


def pin(pid: int, which: int) -> None:
    if cores():
        os.sched_setaffinity(pid, {cores()[which]})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"


def wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ContenderError(f"the server stopped at once: {last_line(log)}")
        if answers(port, path):
            return
        time.sleep(0.05)
    raise ContenderError(f"no answer at {path} within {STARTUP_S:.0f} s: {last_line(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command_of(contender: Contender) -> tuple[str, ...]:
    if contender.has_command:
        return "-m", "errands", "serve", str(SERVERS_DIR / f"{contender.module}.py"), "--log-level", "warning"
    return "-m", "uvicorn", "--app-dir", str(SERVERS_DIR), f"{contender.module}:app", *UVICORN


@contextmanager
def serving(
    contender: Contender, python: Path, storage: str, store: Store, directory: Path, *, tuned: bool
) -> Iterator[Running]:
    """Serve the contender on a free port with its files in `directory`."""
    grpc_port = free_port()
    environment = {
        **os.environ,
        **contender.environment,
        **(contender.tuning if tuned else {}),
        "BENCH_STORAGE": storage,
        "BENCH_URL": store.url,
        "BENCH_GRPC_PORT": str(grpc_port),
        "BENCH_DATABASE": str(directory / "tasks.db"),
    }
    command = [str(python), *command_of(contender)]
    with ExitStack() as stack:
        process, port = stack.enter_context(_started([*command, *contender.options], CARD, environment, directory))
        pids = [process.pid]
        if contender.beside:
            beside, _ = stack.enter_context(_started([*command, *contender.beside], READY, environment, directory))
            pids.append(beside.pid)
        yield Running(tuple(pids), port, grpc_port)


@contextmanager
def _started(
    command: list[str], path: str, environment: Mapping[str, str], directory: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a process on a free port and wait until it responds at `path`."""
    port = free_port()
    log = directory / f"server-{port}.log"
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=directory)
    try:
        pin(process.pid, 0)
        wait_until_ready(process, port, path, log)
        yield process, port
    finally:
        stop(process)
