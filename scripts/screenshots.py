"""Make the pictures of the console in docs/images/ with the support agent and a scripted model.

    python scripts/screenshots.py

It needs Chromium (`apt-get install chromium`) and the development tools.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


@contextmanager
def serving() -> Iterator[str]:
    """Serve the support agent from a folder of its own, and return its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "errands", "serve", str(ROOT / "examples" / "support-agent")]
        command += ["--model", "scripted", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            while line := process.stdout.readline():
                if line.startswith("url"):
                    break
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def say(page: Page, text: str, answer: str) -> None:
    """Send a message and wait for a text of the answer."""
    page.fill("#message", text)
    page.press("#message", "Enter")
    page.locator(".bubble", has_text=answer).last.wait_for()


def take(browser: Browser, url: str) -> None:
    """Talk to the agent and take pictures of the chat and of the timeline of the task."""
    page = browser.new_page(viewport={"width": 1280, "height": 820}, device_scale_factor=1.5)
    page.goto(f"{url}/chat")
    say(page, "Where is my order A-17?", "Order A-17 is a kettle")
    say(page, "I want a refund for A-17", "I have paid 45 EUR back")
    say(page, "And a refund for B-20, please", "A rule wants a review")
    page.get_by_role("button", name="Approve").wait_for()
    page.locator(".conversations li .tone-asks").wait_for()
    page.screenshot(path=IMAGES / "console-chat.png", animations="disabled")
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("button", name="Yes, approve").click()
    page.locator(".bubble", has_text="I have paid 240 EUR back").last.wait_for()
    page.locator(".turn-link").last.click()
    page.locator(".tabs").wait_for()
    page.locator("svg.strip, .strip svg, table").first.wait_for()
    page.set_viewport_size({"width": 1280, "height": 1120})
    page.screenshot(path=IMAGES / "console-task.png", animations="disabled")
    page.close()


def main() -> None:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    IMAGES.mkdir(parents=True, exist_ok=True)
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        take(browser, url)
        browser.close()
    for image in sorted(IMAGES.glob("console-*.png")):
        sys.stdout.write(f"{image.relative_to(ROOT)} {image.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    main()
