"""uvicorn with an agent in it: on a signal the agent drains first, and the process always exits.

`http_connections.py` has the bounds of single connections, `supervisor.py` the processes of `errands serve --workers`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import math
import multiprocessing
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import _exit
from pathlib import Path
from types import FrameType
from typing import Literal

import uvicorn
from uvicorn.supervisors.statreload import StatReload

from errands.cli.failures import CommandError, program_error, reporting
from errands.cli.http_connections import HttpConnection
from errands.cli.printing import note
from errands.errors import ErrandsError
from errands.runtime.json_lines import write_json_lines
from errands.runtime.settings import ENV_PREFIX
from errands.server.app import A2AServer

#: Seconds beyond the drain timeout for connections to close.
_CLOSING = 5.0
#: Seconds after which threads and clean-ups of other packages no longer keep a closed server from exiting.
_LEAVING = 2.0
#: Objects that are allocated between runs of the garbage collector. A handful of requests allocates Python's default
#: of 700, so it would look at objects in use again and again.
_GC_THRESHOLDS = (10_000, 20, 50)
#: The option of glibc's `mallopt` for the number of arenas from which threads allocate.
_M_ARENA_MAX = -8

_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

#: The levels of `--log-level`.
LogLevel = Literal["debug", "info", "warning", "error"]
#: The formats of `--log-format`.
LogFormat = Literal["text", "json"]
Load = Callable[[], A2AServer]
OnReady = Callable[[A2AServer], None]


class AgentServer(uvicorn.Server):
    """Runs the agent that `load` returns, and calls `on_ready` when it serves.

    The reloader pickles it into its child processes, so both functions must allow that.
    """

    def __init__(self, config: uvicorn.Config, load: Load, on_ready: OnReady, *, one_of_many: bool = False) -> None:
        super().__init__(config)
        self._load = load
        self._on_ready = on_ready
        self._is_supervised = config.should_reload or one_of_many
        self._is_one_of_many = one_of_many

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        # Only two arenas for all threads: each arena keeps freed memory, up to the size of several large answers.
        with suppress(AttributeError, OSError, TypeError):  # only glibc has this
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
        with reporting():
            self.agent = self._load()
            self.config.app = self.agent.app
            use_tls(self.config, self.agent)
            if sockets:
                host, port, *_ = sockets[0].getsockname()
                self.agent.listen_at(host, port)
            super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Started here, because uvicorn would log an error and hide it from `reporting`.
        try:
            await self.agent.start()
        except ErrandsError:
            raise
        except Exception as error:
            raise program_error(error, f"the start of {self.agent.agent_card.name}") from None
        HttpConnection.budget = self.agent.large_work.budget
        await super().startup(sockets)
        # Everything that was loaded stays until the end, so the garbage collector can skip it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        if self._is_one_of_many:
            # The supervisor handles Ctrl-C. SIGINT was blocked until now, and `handle_exit` ignores it; child processes
            # would inherit blocked signals.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            if (parent := multiprocessing.parent_process()) is not None:
                loop, supervisor = asyncio.get_running_loop(), parent.sentinel

                def stop() -> None:
                    loop.remove_reader(supervisor)
                    self.should_exit = True

                loop.add_reader(supervisor, stop)
        self._on_ready(self.agent)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drain_timeout = self.agent.settings.drain_timeout
        self._exit_after(drain_timeout + 2 * _CLOSING, code=1)
        if self.agent.pool.running:
            note(
                f"Stopping; running tasks have {drain_timeout:g} s to finish, then they go back to the queue. "
                "Ctrl-C exits at once."
            )
        began = time.monotonic()
        await self.agent.drain()
        left = drain_timeout + _CLOSING - (time.monotonic() - began)
        self.config.timeout_graceful_shutdown = max(math.ceil(left), 1)
        await super().shutdown(sockets)
        self._exit_after(_LEAVING, code=0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._is_one_of_many and sig == signal.SIGINT:
            return
        # uvicorn's method raises the signal again after a clean shutdown, which then looks like a crash.
        if self.should_exit and (sig == signal.SIGINT or not self._is_supervised):
            _exit(128 + sig)
        self.should_exit = True

    def _exit_after(self, seconds: float, *, code: int) -> None:
        """Exit after this time: everything that counts is durable, and the thread of a handler may hang forever."""

        def leave() -> None:
            if code:
                note("A handler does not stop; its task will run again when its lease has expired.")
            _exit(code)

        if threading.current_thread() is threading.main_thread():
            timer = threading.Timer(seconds, leave)
            timer.daemon = True
            timer.start()


class ManifestReload(StatReload):
    """Restarts the server when a manifest or the script of the scripted model changes."""

    def iter_py_files(self) -> Iterator[Path]:
        for folder in self.config.reload_dirs:
            for pattern in ("*.yaml", "*.yml", "*.json"):
                yield from folder.rglob(pattern)


def use_tls(config: uvicorn.Config, agent: A2AServer) -> None:
    """Serve https if the agent's settings name a certificate. Raises `CommandError`."""
    settings = agent.settings
    if settings.tls_certificate is None:
        return
    config.ssl_certfile, config.ssl_keyfile = settings.tls_certificate, settings.tls_key
    if settings.tls_client_ca is not None:
        config.ssl_ca_certs = settings.tls_client_ca
        # Other ways to authenticate must be possible where certificates are only one of them.
        config.ssl_cert_reqs = ssl.CERT_OPTIONAL if agent.checks_certificates else ssl.CERT_REQUIRED
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        if settings.tls_client_ca is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(settings.tls_client_ca)
    except OSError as error:
        raise CommandError(
            f"the files for TLS cannot be used ({error.strerror or error}); check --tls-certificate, --tls-key and "
            "--tls-client-ca: they are PEM, and the key belongs to the certificate"
        ) from None


def configure_logging(level: LogLevel | None, log_format: LogFormat | None = None) -> None:
    """Log to stderr from this level on, in this format or in that of the environment."""
    logging.basicConfig(format=_LOG_FORMAT, level=(level or "info").upper(), force=True)
    # For what is logged while the program is loaded. The server does the same when it starts.
    if (log_format or os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")) == "json":
        write_json_lines()
    # `errands serve` itself prints what uvicorn logs at start and end.
    logging.getLogger("uvicorn.error").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    # These log the address of every request, which may contain a secret.
    for name in ("httpx", "httpx2", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


# Listening sockets


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a listening socket; `option` is the option that names its port. Raises `CommandError`."""
    try:
        return socket.create_server((host, port), family=_family(host), backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is in use; stop the program that uses it, or choose another with {option}"
        elif error.errno == errno.EACCES:
            message = f"you are not allowed to use port {port} of {host}; choose one above 1023 with {option}"
        else:
            reason = str(error.strerror or error).partition(" (while")[0]
            message = f"cannot listen on port {port} of {host} ({reason}); use an address of this machine with --host"
        raise CommandError(message) from None


@contextmanager
def shared_port(host: str, port: int | None) -> Iterator[int | None]:
    """Reserve a port on which several processes can listen. Raises `CommandError`."""
    if port is None:
        yield None
        return
    # The port has to be free: another program that shares it would get some of our connections.
    bind(host, port, option="--grpc-port").close()
    with socket.socket(_family(host)) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind((host, port))
        yield keeper.getsockname()[1]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
