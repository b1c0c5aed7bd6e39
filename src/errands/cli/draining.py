"""uvicorn around an agent: on a signal the agent drains first, and the process always ends."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from errands.cli.banner import address_of
from errands.cli.connections import Connection
from errands.cli.failures import blame, reporting
from errands.cli.logs import LogLevel, configure_logging
from errands.cli.terminal import err
from errands.errors import ErrandsError
from errands.server.app import A2AServer
from errands.server.request_guard import is_loopback

#: Seconds beyond the drain timeout for connections to close.
_CLOSING = 5.0
#: Seconds after which threads and clean-ups that are not ours no longer keep a closed server from exiting.
_LEAVING = 2.0

#: Objects made before the garbage collector looks at them. Python's 700 are fewer than a handful of requests make, so
#: that what is still in use is looked at again and again.
_COLLECTOR = (10_000, 20, 50)

Load = Callable[[], A2AServer]
Greet = Callable[[A2AServer], None]


class AgentServer(uvicorn.Server):
    """Runs what `load` gives. It is pickled into the processes of the reloader, so both functions must allow that."""

    def __init__(
        self, config: uvicorn.Config, load: Load, greet: Greet, log_level: LogLevel | None, *, one_of_many: bool = False
    ) -> None:
        super().__init__(config)
        self._load = load
        self._greet = greet
        self._log_level = log_level
        self._is_supervised = config.should_reload or one_of_many
        self._is_one_of_many = one_of_many

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with reporting():
            configure_logging(self._log_level)
            self.agent = self._load()
            if self._log_level is not None:
                self.agent.settings.log_level = self._log_level.value
            self.config.app = self.agent.app
            Connection.budget.most = self.agent.settings.max_buffered_bytes
            if sockets:
                self.agent.http_address = address_of(sockets[0])
                self.agent.listens_locally = is_loopback(sockets[0].getsockname()[0])
            super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn does it, which would log an error and hide it from `reporting`.
        try:
            await self.agent.start()
        except ErrandsError:
            raise
        except Exception as error:
            raise blame(error, f"the start of {self.agent.agent_card.name}") from None
        await super().startup(sockets)
        _spare_the_collector()
        if self._is_one_of_many:
            self._join_others()
        self._greet(self.agent)

    def _join_others(self) -> None:
        """Leaves Ctrl-C to the supervisor, and stops when that is gone."""
        # Blocked until now, when `handle_exit` passes it over; blocked for good, it would be in programs started here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        parent = multiprocessing.parent_process()
        if parent is not None:
            asyncio.get_running_loop().add_reader(parent.sentinel, self._orphaned, parent.sentinel)

    def _orphaned(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        patience = self.agent.settings.drain_timeout
        self._exit_after(patience + 2 * _CLOSING, code=1)
        if self.agent.pool.running:
            err().print(
                f"Stopping; what runs has {patience:g} s to finish, then goes back to the queue. Ctrl-C exits at once."
            )
        began = time.monotonic()
        await self.agent.drain()
        left = patience + _CLOSING - (time.monotonic() - began)
        self.config.timeout_graceful_shutdown = max(math.ceil(left), 1)
        await super().shutdown(sockets)
        self._exit_after(_LEAVING, code=0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._is_one_of_many and sig == signal.SIGINT:
            return
        # Not uvicorn's: that one raises the signal again after a clean shutdown, which then looks like a crash.
        if self.should_exit and (sig == signal.SIGINT or not self._is_supervised):
            os._exit(128 + sig)
        self.should_exit = True

    def _exit_after(self, seconds: float, *, code: int) -> None:
        """Ends the process by then: all that counts is durable, and a handler's thread may hang for ever."""
        if threading.current_thread() is threading.main_thread():
            timer = threading.Timer(seconds, _leave, (code,))
            timer.daemon = True
            timer.start()


def _leave(code: int) -> None:
    if code:
        err().print("A handler does not let itself be stopped; its task will be run again when its lease has run out.")
    os._exit(code)


def _spare_the_collector() -> None:
    """What was loaded at the start stays for good: the garbage collector need not go through it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)
