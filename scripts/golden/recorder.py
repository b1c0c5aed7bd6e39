"""Record every exchange between an SDK's client and its server. Runs in the SDK's environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn

_TELLING_HEADERS = ("a2a-version", "a2a-extensions", "x-a2a-extensions", "accept", "content-type")


class _Copied(httpx.AsyncByteStream):
    """A response body that is passed on and recorded chunk by chunk."""

    def __init__(self, stream: Any, chunks: list[bytes]) -> None:
        self._stream = stream
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._chunks.append(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Recorder(httpx.AsyncBaseTransport):
    """An HTTP transport that records the exchanges within `recording`."""

    def __init__(self, out: Path, prefix: str) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._out = out
        self._prefix = prefix
        self._exchanges: dict[str, list[tuple[httpx.Request, httpx.Response, list[bytes]]]] = {}
        self._names: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        name = self._names[-1] if self._names else ""
        response = await self._inner.handle_async_request(request)
        chunks: list[bytes] = []
        self._exchanges.setdefault(name, []).append((request, response, chunks))
        return httpx.Response(
            response.status_code, headers=response.headers, stream=_Copied(response.stream, chunks), extensions={}
        )

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[None]:
        """Record the requests of this block as the fixture `name`, also if they end with an error."""
        self._names.append(name)
        try:
            yield
        except Exception as error:  # how the client handles a response is not recorded
            print(f"{self._prefix}-{name}: the client raised {type(error).__name__}: {error}")  # noqa: T201
        finally:
            self._names.remove(name)

    def write(self) -> None:
        for name, exchanges in self._exchanges.items():
            if name:
                # A client may retry in another way; the last attempt is the one that worked.
                path = self._out / f"{self._prefix}-{name}.json"
                path.write_text(json.dumps(_shown(*exchanges[-1]), indent=2, ensure_ascii=False) + "\n")


def _shown(request: httpx.Request, response: httpx.Response, chunks: list[bytes]) -> dict[str, Any]:
    body = b"".join(chunks).decode()
    content_type = response.headers.get("content-type", "")
    return {
        "request": {
            "method": request.method,
            "path": request.url.raw_path.decode(),
            "headers": {name: request.headers[name] for name in _TELLING_HEADERS if name in request.headers},
            "body": json.loads(request.content) if request.content else None,
        },
        "response": {
            "status": response.status_code,
            "content-type": content_type,
            "body": json.loads(body) if "json" in content_type else body,
        },
    }


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve the app on a free port and yield its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
