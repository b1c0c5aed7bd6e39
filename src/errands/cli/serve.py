"""`errands serve`: an agent over HTTP."""

from __future__ import annotations

import functools
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from uvicorn.supervisors import ChangeReload

from errands.cli.banner import greeting, url_of
from errands.cli.connections import Connection as HttpConnection
from errands.cli.draining import AgentServer, Greet, Load
from errands.cli.failures import UsageError, reporting
from errands.cli.listening import bind, shared_port
from errands.cli.logs import LogLevel
from errands.cli.reloading import ManifestReload
from errands.cli.supervising import Supervisor
from errands.cli.target import ManifestOptions, Target, load_server
from errands.errors import ConfigurationError
from errands.runtime.settings import ServerRole
from errands.server.app import A2AServer

#: Seconds that a connection is kept open for the next request. Clients and load balancers keep theirs for a minute at
#: most, as a rule: one that is closed just when a request comes loses it.
KEPT_OPEN = 75

TargetText = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py, FILE.py:NAME, MODULE or MODULE:NAME; FILE.yaml or a folder of manifests.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option("--host", help="The address to listen on; 0.0.0.0 means every one.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        min=0,
        max=65535,
        help="Serve gRPC, too, on this port; 0 takes a free one. Needs the extra grpc.",
        show_default=False,
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where tasks live, whatever TARGET says: memory, sqlite:///PATH, postgresql://HOST/DATABASE or redis://HOST.",
    ),
]
RoleName = Annotated[
    ServerRole | None,
    typer.Option(
        "--role",
        help="What this process does: take requests, run tasks, or all of it.",
        show_default="what TARGET says, else all",
    ),
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes that share the port and the work.")]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Hold every task to this policy, whatever TARGET says. Needs the extra agents.",
        show_default="ERRANDS_POLICY",
    ),
]
Agent = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="Which agent of the manifests to serve.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PROVIDER/MODEL",
        help="What answers all agents of the manifests, whatever they name; `scripted` needs no key.",
        show_default=False,
    ),
]
ToolSettings = Annotated[
    Path | None,
    typer.Option(
        "--tool-settings",
        metavar="FILE",
        help="A YAML file with what the tools of the manifests need, by the names of the tools.",
        show_default=False,
    ),
]
Reload = Annotated[bool, typer.Option("--reload", help="Start again when the target changes: for development.")]
Level = Annotated[
    LogLevel | None, typer.Option("--log-level", help="What to log; debug shows every request.", show_default="info")
]


def serve(
    target: TargetText,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    grpc_port: GrpcPort = None,
    storage: Storage = None,
    role: RoleName = None,
    workers: Workers = 1,
    policy: PolicyFile = None,
    agent: Agent = None,
    model: Model = None,
    tool_settings: ToolSettings = None,
    reload: Reload = False,
    log_level: Level = None,
) -> None:
    """Serve an agent over HTTP.

    TARGET is a program with an A2AServer, a function with @agent, or a Worker or AgentExecutor with an agent_card.

    Or it is an agent that is written in YAML.

    SIGTERM and Ctrl-C let running tasks finish; a second one exits at once.

    Example:

        errands serve examples/echo.py --port 8000

        errands serve examples/support-agent --model scripted
    """
    with reporting():
        parsed = Target.parse(target)
        if reload and workers > 1:
            raise UsageError("--reload is for development and goes with one process: leave out --reload or --workers")
        listener = bind(host, port)
        config = _config(parsed, reload, log_level)
        greet = greeting(url_of(listener))
        options = ManifestOptions(agent, model, tool_settings)
        load = functools.partial(load_server, target, storage, options)
        if policy is not None:
            load = functools.partial(_with_policy, load, policy)
        if workers > 1:
            with shared_port(host, grpc_port) as port_of_all:
                load = functools.partial(_adjusted, load, role, _at(host, port_of_all), one_of_many=True)
                run = functools.partial(_serve_one, config, load, greet, log_level, listener)
                raise SystemExit(Supervisor(run, workers).run())
        load = functools.partial(_adjusted, load, role, _at(host, grpc_port))
        server = AgentServer(config, load, greet, log_level)
        if reload:
            supervisor = ManifestReload if parsed.is_manifest else ChangeReload
            supervisor(config, target=server.run, sockets=[listener]).run()
        else:
            server.run([listener])


def _at(host: str, port: int | None) -> tuple[str, int] | None:
    return None if port is None else (host, port)


def _adjusted(
    load: Load, role: ServerRole | None, grpc: tuple[str, int] | None, *, one_of_many: bool = False
) -> A2AServer:
    """What `load` gives, as the options want it; picklable, for processes that are started."""
    server = load()
    if role is not None:
        server.settings.role = role
    if grpc is not None:
        server.settings.grpc_host, server.settings.grpc_port = grpc
    if one_of_many:
        server.share()
    return server


def _serve_one(
    config: uvicorn.Config,
    load: Load,
    greet: Greet,
    log_level: LogLevel | None,
    listener: socket.socket,
    greets: bool,
    serving: Connection,
) -> None:
    """Runs one of several processes; it says through `serving` that it serves."""

    def ready(server: A2AServer) -> None:
        if greets:
            greet(server)
        serving.send(None)
        serving.close()

    config.configure_logging()  # what uvicorn did about its loggers was done in another process
    AgentServer(config, load, ready, log_level, one_of_many=True).run([listener])


def _with_policy(load: Load, policy: str) -> A2AServer:
    """What `load` gives, held to a policy."""
    server = load()
    try:
        server.use_policy(policy)
    except ConfigurationError as error:
        raise UsageError(str(error)) from None
    return server


def _config(target: Target, reload: bool, log_level: LogLevel | None) -> uvicorn.Config:
    return uvicorn.Config(
        # The reloader wants a name here; AgentServer puts the application in its place.
        "errands",
        loop="auto",
        http=HttpConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=log_level is LogLevel.debug,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEPT_OPEN,
        reload=reload,
        reload_dirs=[str(target.folder)] if reload else None,
    )
