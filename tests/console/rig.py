"""What the tests of the console share: real servers, and pages of a real Chromium that watch what happens in them."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from errands import A2AServer
from tests.live import live

#: Milliseconds that an expectation waits at most; one that holds needs few.
SOON = 15_000
expect.set_options(timeout=SOON)

ROOT = Path(__file__).parents[2]


def chromium() -> str | None:
    """Return the Chromium of this machine, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("ERRANDS_TEST_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Watched:
    """A tab whose errors and requests to other places fail the test."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.problems: list[str] = []
        #: Answers with these statuses are expected.
        self.allowed: set[str] = set()
        self.page: Page = context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._asked(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(status in message.text for status in self.allowed):
            self.problems.append(f"{message.text} {message.location.get('url', '')}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "blob:")):
            self.problems.append(f"a request to {url}")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}/{path}")
        return self.page


@contextmanager
def tab(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A tab of a new profile; `options` are those of a context of Playwright."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        watched = Watched(context, url)
        yield watched
        assert not watched.problems, "\n".join(watched.problems)
        assert watched.page.evaluate("window.hacked") is None
    finally:
        context.close()


@contextmanager
def served(server: A2AServer) -> Iterator[str]:
    """The URL of a server that runs in a thread."""
    with live(server.app, lifespan="on") as url:
        yield url


def send(url: str, text: str, *, wait: bool = True, **configuration: Any) -> str:
    """Send a message, and return the id of its task."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {"message": message, "configuration": {"returnImmediately": not wait, **configuration}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    answer = httpx.post(url, json=body, headers={"A2A-Version": "1.0"}, timeout=60).json()
    found: str = answer["result"]["task"]["id"]
    return found


@cache
def axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text()


def problems_of(page: Page) -> list[str]:
    """Return the serious accessibility problems of a page, as axe-core finds them."""
    page.evaluate(axe())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
