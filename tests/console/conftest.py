"""One browser for all tests of a process, and a desk for those that do not need one of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.console.browser import Tab, chromium, tab
from tests.console.desk import desk
from tests.interop.sdks import ROOT, environment


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def desk_url() -> Iterator[str]:
    with desk() as url:
        yield url


@pytest.fixture
async def chat(browser: Browser, desk_url: str) -> AsyncIterator[Tab]:
    """A tab with a new conversation, which has done nothing wrong when the test is over."""
    async with tab(browser, desk_url) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector("#message")
        yield opened
        await opened.check()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which npm has fetched once."""
    environment("axe-core", "axe-core@4.11.0", npm=True)
    found: Path = ROOT / ".interop" / "axe-core" / "node_modules" / "axe-core" / "axe.min.js"
    return found.read_text()
