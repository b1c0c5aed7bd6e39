"""`errands serve`: an agent over HTTP."""

from __future__ import annotations

import errno
import functools
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from uvicorn.supervisors import ChangeReload

from errands.cli.banner import greeting, url_of
from errands.cli.draining import AgentServer, Load
from errands.cli.failures import CommandError, UsageError, reporting
from errands.cli.logs import LogLevel
from errands.cli.reloading import ManifestReload
from errands.cli.target import ManifestOptions, Target, load_server
from errands.errors import ConfigurationError
from errands.server.app import A2AServer

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
        help="Serve gRPC, too, on this port; 0 takes a free one. Needs errands[grpc].",
        show_default=False,
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where tasks live, whatever TARGET says: memory, sqlite:///PATH or postgresql://HOST/DATABASE.",
    ),
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Hold every task to this policy, whatever TARGET says. Needs errands[agents].",
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
    policy: PolicyFile = None,
    agent: Agent = None,
    model: Model = None,
    tool_settings: ToolSettings = None,
    reload: Reload = False,
    log_level: Level = None,
) -> None:
    """Serve an agent over HTTP.

    TARGET has an A2AServer, a function with @agent, or a Worker or AgentExecutor with an agent_card; or it is an agent
    that is written in YAML.

    SIGTERM and Ctrl-C let running tasks finish; a second one exits at once.

    Example:

        errands serve examples/echo.py --port 8000
    """
    with reporting():
        parsed = Target.parse(target)
        listener = bind(host, port)
        config = _config(parsed, reload, log_level)
        options = ManifestOptions(agent, model, tool_settings)
        load = functools.partial(load_server, target, storage, options)
        if policy is not None:
            load = functools.partial(_with_policy, load, policy)
        if grpc_port is not None:
            load = functools.partial(_with_grpc, load, host, grpc_port)
        server = AgentServer(config, load, greeting(url_of(listener)), log_level)
        if reload:
            supervisor = ManifestReload if parsed.is_manifest else ChangeReload
            supervisor(config, target=server.run, sockets=[listener]).run()
        else:
            server.run([listener])


def _with_grpc(load: Load, host: str, port: int) -> A2AServer:
    """What `load` gives, with a gRPC server of its own; picklable, as the reloader wants it."""
    server = load()
    server.settings.grpc_host, server.settings.grpc_port = host, port
    return server


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
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=log_level is LogLevel.debug,
        proxy_headers=False,
        server_header=False,
        reload=reload,
        reload_dirs=[str(target.folder)] if reload else None,
    )


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on. Raises `CommandError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is in use; stop what uses it, or take another with --port"
        elif error.errno == errno.EACCES:
            message = f"port {port} of {host} is not allowed to you; take one above 1023 with --port"
        else:
            reason = str(error.strerror or error).partition(" (while")[0]
            message = f"cannot listen on port {port} of {host} ({reason}); use an address of this machine with --host"
        raise CommandError(message) from None
