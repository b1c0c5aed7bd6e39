"""Servers in processes of their own, at a fixed address: started, killed, and started again."""

from __future__ import annotations

import asyncio
import os
import subprocess

import httpx

from tests.forking import Forked, popen
from tests.ports import free_port


class Process:
    """A module that serves an agent; it is told the port and these arguments."""

    def __init__(self, module: str, *arguments: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = (module, str(port), *arguments)
        self._process: Forked | subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """None while it has not been started, and when it was killed."""
        return None if self._process is None else self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        self._process = popen(*self._command, env=self.environment)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def gave_up(self) -> None:
        """It ended while it was waited for."""
        raise AssertionError("the server did not start")

    async def ready(self) -> None:
        """Waits until it takes requests."""
        async with httpx.AsyncClient(timeout=1.0) as client:
            while True:
                assert self._process is not None
                if self._process.poll() is not None:
                    self.gave_up()
                try:
                    if (await client.get(f"{self.url}/health/ready")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.02)
