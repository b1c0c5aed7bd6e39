"""A real Chromium, and what a page of the console must never do in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Request, async_playwright, expect

#: Where the tests leave pictures for people to look at.
SCREENSHOTS = Path(__file__).parent / "screenshots"
#: Milliseconds that something may take on a loaded machine.
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)

#: Collects what the policy of the page has refused, before any script of the page runs.
_WATCH_POLICY = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.refused.push(`${event.violatedDirective}: ${event.blockedURI || event.sample}`);
});
"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Debian's Chromium. Where it is missing, the test is skipped, and fails in CI."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is not installed: apt-get install chromium")
        pytest.skip("Chromium is not installed: apt-get install chromium")
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        await browser.close()


class Tab:
    """A page and what it has done: errors, dialogs, requests to other servers, and what its policy has refused."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.requests: list[Request] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request))
        page.on("dialog", self._dismiss)

    async def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        await dialog.dismiss()

    async def open(self, path: str) -> None:
        await self.page.goto(self.url + path)

    async def send(self, text: str) -> None:
        """Write a message in the chat and send it with the keyboard."""
        await self.page.fill("#message", text)
        await self.page.press("#message", "Enter")

    async def picture(self, name: str) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")

    async def check(self) -> None:
        """Check that the page has run nothing but its own scripts, and has talked to nothing but its own server."""
        own = urlsplit(self.url).netloc
        foreign = [request.url for request in self.requests if urlsplit(request.url).netloc not in (own, "")]
        assert (self.errors, self.dialogs, foreign) == ([], [], [])
        assert await self.page.evaluate("window.refused") == []
        handlers = """Array.from(document.querySelectorAll("*"))
            .flatMap((element) => element.getAttributeNames().filter((name) => /^on/i.test(name)))"""
        assert await self.page.evaluate(handlers) == []


@asynccontextmanager
async def tab(browser: Browser, url: str, **options: Any) -> AsyncIterator[Tab]:
    """Open a tab with cookies and storage of its own; `options` are those of a context of Playwright."""
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
    await context.add_init_script(_WATCH_POLICY)
    opened = Tab(await context.new_page(), url)
    try:
        yield opened
    finally:
        await context.close()


async def serious_problems(page: Page, axe: str, *only: str) -> list[str]:
    """Return what axe-core finds on a page that is serious or worse. Its script is run by the browser, not the page.

    `only` names the rules that are checked.
    """
    await page.evaluate(axe)
    rules: dict[str, Any] = {"resultTypes": ["violations"]}
    if only:
        rules["runOnly"] = list(only)
    found = await page.evaluate(f"axe.run(document, {json.dumps(rules)})")
    return [
        f"{problem['id']}: {problem['help']}: {node['html'][:200]}"
        for problem in found["violations"]
        if problem["impact"] in ("serious", "critical")
        for node in problem["nodes"][:5]
    ]
