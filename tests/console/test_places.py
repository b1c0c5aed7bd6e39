"""Where the console is used: below a path, behind authentication, on a phone, with the keyboard; and its size."""

from __future__ import annotations

import base64
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from errands.runtime.middleware import Caller
from errands.server.auth import ApiKeyAuth, CallableAuth
from errands.server.tokens import OIDCAuth
from tests.auth.issuer import AUDIENCE, provider
from tests.console.browser import Tab, serious_problems, tab
from tests.console.desk import Desk, desk, server
from tests.live import live

pytestmark = pytest.mark.anyio
COMPLETED = ".turn-foot .tone-good"
#: Pixels of the conversation beyond the right edge.
HIDDEN_WIDTH = """(() => {
    const { scrollWidth, clientWidth } = document.querySelector(".talk-scroll");
    return scrollWidth - clientWidth;
})()"""


async def test_it_works_below_the_path_of_another_application(browser: Browser) -> None:
    made = server()

    app = Starlette(routes=[Mount("/agents/desk", made.app)])
    with live(app) as url:
        async with tab(browser, f"{url}/agents/desk") as opened:
            await opened.open("/chat")
            await opened.send("two of them")
            await opened.page.wait_for_selector(COMPLETED)
            assert "/agents/desk/chat/" in opened.page.url
            await opened.page.get_by_role("link", name="Tasks", exact=True).click()
            await opened.page.locator("a.row-link").first.click()
            await expect(opened.page.locator("h1")).to_have_text("two of them")
            assert "/agents/desk/console/tasks/" in opened.page.url
            await opened.page.reload()
            await expect(opened.page.locator("h1")).to_have_text("two of them")
            await opened.check()


async def test_behind_authentication_it_asks_who_you_are_and_shows_only_what_is_yours(browser: Browser) -> None:
    keys = ApiKeyAuth({"key-of-alice": "alice", "key-of-bob": "bob"})
    with desk(auth=[keys], console="auto") as url:
        for name, others in (("alice", 0), ("bob", 1)):
            async with tab(browser, url) as opened:
                page = opened.page
                await opened.open("/chat")
                dialog = page.get_by_role("dialog")
                await expect(dialog.get_by_role("heading")).to_have_text("Sign in to Order desk")
                await dialog.get_by_label("API key", exact=True).fill("a wrong key")
                await dialog.get_by_role("button", name="Sign in").click()
                await expect(dialog.get_by_role("alert")).to_have_text("That was not accepted.")
                await dialog.get_by_label("API key", exact=True).fill(f"key-of-{name}")
                await dialog.get_by_label("Remember it in this tab").check()
                await dialog.get_by_role("button", name="Sign in").click()
                await expect(page.locator(".who")).to_have_text(name)
                await expect(page.locator(".conversations li")).to_have_count(0)
                await opened.send(f"two for {name}")
                await page.wait_for_selector(COMPLETED)
                await page.reload()
                await expect(page.locator(".who")).to_have_text(name)
                await expect(page.locator(".bubble.from-user")).to_have_text(f"two for {name}")
                assert await page.evaluate("document.cookie") == ""
                await page.get_by_role("button", name="Sign out").click()
                await expect(dialog).to_be_visible()
                assert await page.evaluate("sessionStorage.length") == 0
                await opened.check()
            assert others in (0, 1)


async def test_it_offers_every_way_to_sign_in_that_the_card_names(
    browser: Browser,
) -> None:
    async def check(request: Request) -> Caller | None:
        wanted = "Basic " + base64.b64encode("zoë:passwörd".encode()).decode()
        return Caller(owner="zoë") if request.headers.get("authorization") == wanted else None

    basic = CallableAuth(check, scheme={"type": "http", "scheme": "basic"}, challenge="Basic")
    with desk(auth=[basic, ApiKeyAuth({"key-of-alice": "alice"})]) as url:
        async with tab(browser, url) as opened:
            await opened.open("/chat")
            dialog = opened.page.get_by_role("dialog")
            await expect(dialog.get_by_role("radio")).to_have_count(2)
            await dialog.get_by_text("Password").first.click()
            await dialog.get_by_label("User name").fill("zoë")
            await dialog.get_by_label("Password", exact=True).last.fill("passwörd")
            await dialog.get_by_role("button", name="Sign in").click()
            await expect(opened.page.locator(".who")).to_have_text("zoë")
            await opened.send("two of them")
            await opened.page.wait_for_selector(COMPLETED)


async def test_it_signs_people_in_at_an_openid_provider(browser: Browser) -> None:
    with provider() as idp:
        scheme = OIDCAuth(
            issuer=idp.url, audience=AUDIENCE, scopes=["agent.use"], console_client="errands-console", allow_http=True
        )
        with desk(auth=[scheme], console="auto", outbound_allow="127.0.0.1") as url:
            async with tab(browser, url) as opened:
                page = opened.page
                await opened.open("/console/tasks?view=failed")
                dialog = page.get_by_role("dialog")
                sign_in = dialog.get_by_role("button", name=f"Sign in at {urlsplit(idp.url).netloc}")
                # The provider says no, and then yes.
                idp.status = 403
                await sign_in.click()
                await expect(dialog.get_by_role("alert")).to_contain_text("403")
                idp.status = 200
                await dialog.get_by_label("Remember it in this tab").check()
                await sign_in.click()
                await expect(page.locator(".who")).to_have_text("alice")
                assert page.url == f"{url}/console/tasks?view=failed"
                assert set(idp.authorized) == set()
                asked = next(one for one in opened.requests if "/authorize?" in one.url)
                assert "scope=openid+agent.use" in asked.url
                await page.reload()
                await expect(page.locator(".who")).to_have_text("alice")
                assert await page.evaluate("document.cookie") == ""
                assert opened.errors == []
                assert await page.evaluate("window.refused") == []
                # An answer to another sign-in is refused.
                await page.get_by_role("button", name="Sign out").click()
                await opened.open("/console/sign-in?code=stolen&state=guessed")
                await expect(dialog.get_by_role("alert")).to_contain_text("not begun in this tab")
                assert "stolen" not in page.url


async def test_it_is_usable_on_a_phone(browser: Browser, desk_url: str) -> None:
    phone = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
    async with tab(browser, desk_url, **phone) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector(".suggestions")
        await opened.picture("phone-welcome")
        assert await opened.page.evaluate(HIDDEN_WIDTH) <= 0
        await opened.send("refund A-17, which has arrived broken for the second time this week")
        await opened.page.wait_for_selector(COMPLETED)
        await opened.picture("phone-chat")
        assert await opened.page.evaluate(HIDDEN_WIDTH) <= 0
        await opened.page.reload()  # the first words of the conversation are its title now, and need more room
        await expect(opened.page.locator("h1")).to_contain_text("refund A-17")
        assert await opened.page.evaluate("document.documentElement.scrollWidth") <= 360
        bar = await opened.page.get_by_role("navigation", name="Pages").bounding_box()
        send = await opened.page.get_by_role("button", name="Send").bounding_box()
        assert bar is not None
        assert send is not None
        assert bar["y"] + bar["height"] == 640
        assert send["y"] + send["height"] <= bar["y"]
        await opened.page.get_by_role("button", name="More").click()
        await opened.page.get_by_role("dialog").get_by_role("button", name="System theme").click()
        await expect(opened.page.locator("html[data-theme=light]")).to_be_visible()
        await opened.page.get_by_role("button", name="Close").click()
        await opened.page.get_by_role("button", name="Conversations").click()
        await expect(opened.page.locator(".conversations li").first).to_be_visible()
        await opened.page.keyboard.press("Escape")
        await expect(opened.page.locator(".conversations li").first).to_be_hidden()
        for place in ("/chat", "/console", "/console/tasks", "/console/reviews", "/console/agent", "/console/ops"):
            await opened.open(place)
            await opened.page.wait_for_selector("h1")
            wide = await opened.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{place} is {wide} pixels wide"
        await opened.check()


async def test_it_is_usable_with_the_keyboard_alone(browser: Browser, desk_url: str) -> None:
    async with tab(browser, desk_url) as opened:
        page = opened.page
        await opened.open("/console/agent")
        await page.wait_for_selector("h1")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#main")).to_be_focused()
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Operations")
        await page.keyboard.press("Escape")
        await page.keyboard.press("g")
        await page.keyboard.press("c")
        await expect(page.locator("#message")).to_be_focused()
        await page.keyboard.type("trip g t")
        await page.keyboard.press("Enter")
        await expect(page.locator(".schema-form")).to_be_visible()
        assert "/chat/" in page.url
        await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Shift+Tab")
        await page.locator("body").press("g")
        await page.keyboard.press("t")
        await expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
        await opened.check()


async def test_single_keys_can_be_switched_off(browser: Browser, desk_url: str) -> None:
    async with tab(browser, desk_url) as opened:
        await opened.open("/console/agent")
        await opened.page.get_by_role("button", name="Keys").click()
        await opened.page.get_by_label("Single keys are on").uncheck()
        await opened.page.keyboard.press("Escape")
        await opened.page.keyboard.press("?")
        await expect(opened.page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(browser: Browser, desk_url: str, theme: str, axe: str) -> None:
    # The policy of the page would refuse axe's script, which is the browser's own here.
    async with tab(browser, desk_url, color_scheme=theme, bypass_csp=True) as opened:
        await opened.open("/chat")
        await opened.page.wait_for_selector(".suggestions")
        found = await serious_problems(opened.page, axe)
        for text, shown in (("refund A-17", COMPLETED), ("trip now", ".schema-form")):
            await opened.send(text)
            await opened.page.wait_for_selector(shown)
        found += await serious_problems(opened.page, axe)
        await opened.page.get_by_role("button", name="Raw wire").click()
        await opened.page.wait_for_selector(".wire")
        await opened.page.locator("body").press("?")
        found += await serious_problems(opened.page, axe)
        await opened.page.keyboard.press("Escape")
        await opened.picture(f"chat-{theme}")
        assert found == []


async def _load(opened: Tab, path: str, ready: str) -> tuple[list[str], int]:
    sizes: list[int] = []
    names: list[str] = []
    await opened.open(path)
    await opened.page.wait_for_selector(ready)
    await opened.page.wait_for_load_state("networkidle")
    for request in opened.requests:
        if request.url.startswith("blob:"):
            continue
        response = await request.response()
        assert response is not None
        found = await request.sizes()
        sizes.append(found["responseBodySize"] + found["responseHeadersSize"])
        names.append(request.url)
    return names, sum(sizes)


FIRST_VIEWS = [
    ("/chat", ".suggestions"),
    *((f"/console{page}", "h1") for page in ("", "/tasks", "/reviews", "/agent")),
]


@pytest.mark.parametrize(("path", "ready"), FIRST_VIEWS)
async def test_the_first_view_is_small(browser: Browser, path: str, ready: str) -> None:
    with desk(Desk()) as url:
        async with tab(browser, url) as opened:
            names, size = await _load(opened, path, ready)
            files = [name for name in names if "/admin/" not in name and not name.endswith("/")]
            assert len(files) <= 12, files
            assert size <= 60_000
