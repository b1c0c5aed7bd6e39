"""`errands serve`: serve an agent over HTTP."""

from __future__ import annotations

import functools
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import uvicorn
from rich.text import Text
from typer import Argument, Option
from uvicorn.supervisors import ChangeReload

from errands.cli.failures import UsageError, command
from errands.cli.http_connections import HttpConnection
from errands.cli.http_server import (
    AgentServer,
    LogFormat,
    LogLevel,
    ManifestReload,
    OnReady,
    bind,
    configure_logging,
    shared_port,
)
from errands.cli.printing import clean, one_line, out
from errands.cli.supervisor import Supervisor
from errands.cli.target import ManifestOptions, ServeTarget, load_server, project_target
from errands.runtime.settings import ServerRole
from errands.server.app import A2AServer
from errands.server.asgi import callable_host, host_port
from errands.server.console_gate import CONSOLE_PATHS
from errands.server.http import CARD_PATHS, READY_PATH

#: Seconds that a connection is kept open for the next request. Most clients and load balancers keep theirs for a
#: minute at most; a request on a connection that is just being closed would be lost.
KEEP_ALIVE = 75

TargetText = Annotated[
    str | None,
    Argument(
        metavar="[TARGET]",
        help="FILE.py, FILE.py:NAME, MODULE or MODULE:NAME; FILE.yaml or a folder of manifests.",
        show_default="agent.py or agent.yaml in this folder",
    ),
]
GrpcPort = Annotated[
    int | None,
    Option(min=0, max=65535, help="Also serve gRPC on this port; 0 takes a free one. Needs the extra grpc."),
]
Storage = Annotated[
    str | None,
    Option(
        metavar="URL",
        help="The task store, instead of TARGET's: memory, sqlite:///PATH, postgresql://HOST/DATABASE or redis://HOST.",
    ),
]
Role = Annotated[
    ServerRole | None,
    Option(
        help="What this process does: take requests (api), run tasks (worker), or both (all).",
        show_default="TARGET's, else all",
    ),
]
PolicyFile = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Apply this policy to every task, instead of TARGET's. Needs the extra agents.",
        show_default="ERRANDS_POLICY",
    ),
]
AuthFile = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Authenticate callers by the schemes in this file, instead of TARGET's. Needs the extra auth.",
        show_default="ERRANDS_AUTH",
    ),
]
TlsFile = Annotated[str | None, Option(metavar="FILE", help="The certificate of the server: serve https. PEM.")]
TlsKey = Annotated[str | None, Option(metavar="FILE", help="The key of the certificate, if it is in another file.")]
TlsClientCa = Annotated[
    str | None, Option(metavar="FILE", help="Accept client certificates of the authorities in this file.")
]
Model = Annotated[
    str | None,
    Option(
        metavar="PROVIDER/MODEL",
        help="The model for all agents of the manifests, instead of theirs; `scripted` needs no key.",
    ),
]
ToolSettings = Annotated[
    Path | None,
    Option(metavar="FILE", help="A YAML file with settings for the tools of the manifests, by tool name."),
]


@command
def serve(
    target: TargetText = None,
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 means all.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    grpc_port: GrpcPort = None,
    storage: Storage = None,
    role: Role = None,
    workers: Annotated[int, Option(min=1, help="The number of processes that share the port and the work.")] = 1,
    policy: PolicyFile = None,
    auth: AuthFile = None,
    tls_certificate: TlsFile = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    agent: Annotated[str | None, Option(metavar="NAME", help="The agent of the manifests to serve.")] = None,
    model: Model = None,
    tool_settings: ToolSettings = None,
    reload: Annotated[bool, Option("--reload", help="Restart when the target changes: for development.")] = False,
    log_level: Annotated[
        LogLevel | None, Option(help="The log level; debug shows every request.", show_default="info")
    ] = None,
    log_format: Annotated[
        LogFormat | None, Option(help="The form of log lines.", show_default="ERRANDS_LOG_FORMAT, else text")
    ] = None,
) -> None:
    """Serve an agent over HTTP.

    TARGET is a program with an A2AServer, a function with @agent, or a Worker or AgentExecutor with an agent_card.

    Or it is a manifest in YAML, or a folder of manifests. Without a TARGET, agent.py or agent.yaml is served.

    SIGTERM and Ctrl-C let running tasks finish; a second signal exits at once.

    Example:

        errands serve examples/echo.py --port 8000

        errands serve examples/support-agent --model scripted
    """
    target = target or project_target()
    parsed = ServeTarget.parse(target)
    if reload and workers > 1:
        raise UsageError("--reload is for development and needs a single process: omit --reload or --workers")
    listener = bind(host, port)
    config = uvicorn.Config(
        # The reloader needs a name here; AgentServer replaces it by the application.
        "errands",
        loop="auto",
        http=HttpConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=log_level == "debug",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        reload=reload,
        reload_dirs=[str(parsed.folder)] if reload else None,
    )
    bound_host, bound_port, *_ = listener.getsockname()
    greet = functools.partial(_greet, host_port(callable_host(bound_host), bound_port))
    manifest = ManifestOptions(agent, model, tool_settings)
    tls = {"tls_certificate": tls_certificate, "tls_key": tls_key, "tls_client_ca": tls_client_ca}
    load = LoadServer(target, storage, manifest, policy, auth, tls, role, host, grpc_port, log_level, log_format)
    if workers > 1:
        with shared_port(host, grpc_port) as bound_grpc_port:
            load = replace(load, grpc_port=bound_grpc_port, shares_port=True)
            run = functools.partial(_run_worker, config, load, greet, listener)
            raise SystemExit(Supervisor(run, workers).run())
    server = AgentServer(config, load, greet)
    if reload:
        reloader = ManifestReload if parsed.is_manifest else ChangeReload
        reloader(config, target=server.run, sockets=[listener]).run()
    else:
        server.run([listener])


@dataclass(frozen=True)
class LoadServer:
    """Sets up logging, loads the server and applies the options. It is pickled into child processes."""

    target: str
    storage: str | None
    manifest: ManifestOptions
    policy: str | None
    auth: str | None
    tls: dict[str, str | None]
    role: ServerRole | None
    host: str
    grpc_port: int | None
    log_level: LogLevel | None
    log_format: LogFormat | None
    shares_port: bool = False

    def __call__(self) -> A2AServer:
        configure_logging(self.log_level, self.log_format)
        server = load_server(self.target, self.storage, self.manifest)
        server.use_settings(role=self.role, log_level=self.log_level, log_format=self.log_format, **self.tls)
        if self.grpc_port is not None:
            server.use_settings(grpc_host=self.host, grpc_port=self.grpc_port)
        if self.policy is not None:
            server.use_policy(self.policy)
        if self.auth is not None:
            server.use_auth(self.auth)
        if self.shares_port:
            server.share()
        return server


def _run_worker(
    config: uvicorn.Config, load: LoadServer, greet: OnReady, listener: socket.socket, greets: bool, ready: Connection
) -> None:
    """Run one of several processes. It sends a message through `ready` when it serves."""

    def on_ready(server: A2AServer) -> None:
        if greets:
            greet(server)
        ready.send(None)
        ready.close()

    config.configure_logging()  # uvicorn configured its loggers in the parent process only
    AgentServer(config, load, on_ready, one_of_many=True).run([listener])


def _greet(address: str, server: A2AServer) -> None:
    """Print the address of the agent, its store, and how to try it."""
    url = f"{'http' if server.settings.tls_certificate is None else 'https'}://{address}"
    takes_requests = server.settings.role is not ServerRole.WORKER
    facts = [("agent", clean(f"{server.agent_card.name} {server.agent_card.version}"))]
    if server.settings.role is not ServerRole.ALL:
        facts.append(("role", server.settings.role))
    facts.append(("url", (takes_requests and server.settings.public_url) or url))
    facts.append(("card", url + CARD_PATHS[0]) if takes_requests else ("health", url + READY_PATH))
    if takes_requests and server.console.is_on:
        facts.append(("console", url + CONSOLE_PATHS[0]))
    lasts = "" if server.engine.durable else " (tasks are lost when the server stops)"
    facts.append(("storage", server.storage + lasts))
    facts += [(name, one_line(value, 200)) for name, value in server.facts.items()]
    if takes_requests and not server.listens_locally and not server.asks_who_calls:
        what = "operate the agent" if server.console.is_on else "use the agent and see all tasks"
        who = f"everyone who can reach this address may {what}, because --auth is not set"
        facts.append(("access", who))
    if server.grpc_port is not None:
        facts.append(("grpc", host_port(callable_host(server.settings.grpc_host), server.grpc_port)))
    # The reader of a pipe may have read enough (`errands serve … | head`). rich would exit, but the server continues.
    with suppress(BrokenPipeError, SystemExit):
        console = out()
        for name, value in facts:
            console.print(Text.assemble((f"{name:<9}", "dim"), value))
        if takes_requests:
            console.print("\nTry:", style="dim")
            console.print(f'  errands send {url} "hello"')
            # A repeated message is not handled again, so its id is new each time.
            message = """{"messageId":"'$(date +%s)'","role":"ROLE_USER","parts":[{"text":"hello"}]}"""
            headers = "-H 'Content-Type: application/json' -H 'A2A-Version: 1.0'"
            console.print(f"  curl -s {shlex.quote(url + '/message:send')} {headers} -d '{{\"message\":{message}}}'\n")
        console.print("Ctrl-C stops it.", style="dim")
        console.file.flush()
