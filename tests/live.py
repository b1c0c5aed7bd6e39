"""An application behind a real socket, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp


@contextmanager
def live(app: ASGIApp, **options: Any) -> Iterator[str]:
    """The URL of an application that runs in a thread; `options` are those of uvicorn."""
    # It listens before the thread runs, so nobody has to wait until it does.
    listener = socket.create_server(("127.0.0.1", 0))
    settings = {"log_config": None, "lifespan": "off", "timeout_graceful_shutdown": 1, **options}
    config = uvicorn.Config(app, **settings)
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        runner.should_exit = True
        thread.join()
