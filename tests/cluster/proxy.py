"""What stands between a replica and its store, and does to it what networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def pause(self) -> None:
        """Nothing gets through any more, and nobody is told: what was sent arrives late or never."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self._flowing.wait()
        try:
            other_reader, other_writer = await self._connect()
        except OSError:
            self._writers.remove(writer)
            writer.close()
            return
        self._writers.add(other_writer)
        await asyncio.gather(self._copy(reader, other_writer), self._copy(other_reader, writer))
        self._writers -= {writer, other_writer}

    async def stop(self) -> None:
        self.resume()
        for writer in list(self._writers):
            writer.close()
        while self._writers:
            await asyncio.sleep(0.01)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            await self._flowing.wait()
        writer.close()


@asynccontextmanager
async def socket_proxy(target: Path, place: Path) -> AsyncIterator[Proxy]:
    """To a socket in the file system, by way of another one."""
    proxy = Proxy(lambda: asyncio.open_unix_connection(target))
    async with await asyncio.start_unix_server(proxy.serve, place):
        yield proxy
        await proxy.stop()


@asynccontextmanager
async def port_proxy(target: int, place: int) -> AsyncIterator[Proxy]:
    """To a port of this machine, by way of another one."""
    proxy = Proxy(lambda: asyncio.open_connection("127.0.0.1", target))
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", place):
        yield proxy
        await proxy.stop()
