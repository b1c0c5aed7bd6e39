"""Servers in processes of their own, at a fixed address: started, killed, and started again."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A module that serves an agent; it is told the port and these arguments."""

    def __init__(self, module: str, *arguments: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", module, str(port), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def ready(self) -> None:
        """Waits until it takes requests."""
        async with httpx.AsyncClient(timeout=1.0) as client:
            while True:
                assert self._process is not None
                assert self._process.poll() is None, "the server did not start"
                try:
                    if (await client.get(f"{self.url}/health/ready")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.02)
