"""The service behind a tool: it keeps the `traceparent` of each request, and can hold one."""

from __future__ import annotations

import threading

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class Shop:
    def __init__(self) -> None:
        self.url = ""
        self.traceparents: list[str] = []
        self.tracestates: list[str] = []
        self.holding = threading.Event()
        self._released = threading.Event()
        self._released.set()
        self.app = Starlette(routes=[Route("/{name:path}", self._answer, methods=["GET", "POST"])])

    def hold(self) -> None:
        """Answer when `release` is called."""
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def _answer(self, request: Request) -> JSONResponse:
        self.traceparents.append(request.headers.get("traceparent", ""))
        self.tracestates.append(request.headers.get("tracestate", ""))
        if not self._released.is_set():
            self.holding.set()
            self._released.wait(170)
        return JSONResponse({"state": "sent"})
