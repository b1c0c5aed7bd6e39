"""The chat, as people use it."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, FilePayload, expect

from errands import A2AServer
from tests.cluster.proxy import port_proxy
from tests.console.browser import Tab, tab
from tests.console.desk import PNG, Desk, desk
from tests.interop.sdks import ROOT
from tests.live import live
from tests.ports import free_port
from tests.unit.cli.processes import Served, errands

pytestmark = pytest.mark.anyio
COMPLETED = ".turn-foot .tone-good"


async def test_an_answer_streams_into_one_bubble_and_is_shown_as_markdown(chat: Tab) -> None:
    await chat.send("refund A-17")
    bubble = chat.page.locator(".bubble.product")
    await chat.page.wait_for_selector(COMPLETED)
    await expect(bubble).to_have_count(1)
    await expect(bubble.locator("h4")).to_have_text("Refund for order A-17")
    await expect(bubble.locator("td")).to_have_count(6)
    await expect(bubble.locator("pre code")).to_contain_text(
        "def refund(order: str, amount: float) -> Receipt:\n    return"
    )
    await expect(bubble.locator("a")).to_have_attribute("rel", "noopener noreferrer nofollow")
    await expect(bubble.locator(".link-host")).to_have_text("(example.com)")
    await expect(chat.page.locator(".conversations li a[aria-current=page]")).to_contain_text("refund A-17")
    await expect(chat.page.locator("[role=log]")).to_contain_text("The agent has answered")
    await chat.picture("chat")


#: Notes every text that the bubble of an answer has had.
WATCH_BUBBLE = """window.texts = [];
new MutationObserver(() => {
    const text = document.querySelector(".bubble.product .markdown")?.textContent.trim();
    if (text && text !== window.texts.at(-1)) window.texts.push(text);
}).observe(document.body, { childList: true, subtree: true, characterData: true })"""


async def test_an_agent_made_with_two_commands_streams_its_answer(browser: Browser, tmp_path: Path) -> None:
    assert errands("init", "demo", "--kind", "worker", cwd=tmp_path).returncode == 0
    with Served(None, cwd=tmp_path / "demo") as server:
        console = re.search(r"^console +(\S+)$", server.greeting, re.MULTILINE)
        assert console is not None
        async with tab(browser, console[1]) as opened:
            await opened.open("")
            await opened.page.get_by_role("link", name="Chat with it").click()
            await opened.page.evaluate(WATCH_BUBBLE)
            said = " ".join(map(str, range(60)))
            await opened.send(said)
            await opened.page.wait_for_selector(COMPLETED)
            texts = await opened.page.evaluate("window.texts")
            assert texts[-1] == f"You said: {said}"
            assert len(texts) >= 3
            assert all(later.startswith(text) for text, later in pairwise(texts))


async def test_every_artifact_has_a_bubble_of_its_own(chat: Tab) -> None:
    await chat.send("two of them")
    await chat.page.wait_for_selector(COMPLETED)
    bubbles = chat.page.locator(".bubble.product")
    await expect(bubbles).to_have_count(2)
    await expect(bubbles.nth(0)).to_contain_text("The first")
    await expect(bubbles.nth(1).locator(".markdown")).to_have_text("one two three")


async def test_a_page_that_is_loaded_again_in_the_middle_of_a_stream_goes_on_exactly(browser: Browser) -> None:
    worker = Desk()
    with desk(worker) as url:
        async with tab(browser, url) as opened:
            await opened.open("/chat")
            await opened.send("count to forty")
            text = opened.page.locator(".bubble.product .markdown")
            await expect(text).to_have_text(re.compile(r"19 20\s*$"))
            await opened.page.reload()
            await expect(text).to_have_text(re.compile(r"19 20\s*$"))
            worker.gate.set()
            await opened.page.wait_for_selector(COMPLETED)
            assert (await text.inner_text()).split() == [str(number) for number in range(1, 41)]
            await opened.check()
    assert len(worker.messages) == 1


async def test_a_stream_that_is_cut_off_goes_on_without_a_gap_or_a_repetition(browser: Browser) -> None:
    worker, place = Desk(), free_port()
    with desk(worker) as url:
        target = int(url.rpartition(":")[2])
        async with tab(browser, f"http://127.0.0.1:{place}") as opened:
            async with port_proxy(target, place):
                await opened.open("/chat")
                await opened.send("count to forty")
                text = opened.page.locator(".bubble.product .markdown")
                await expect(text).to_have_text(re.compile(r"19 20\s*$"))
            await expect(opened.page.locator(".live")).to_have_text("Reconnecting …")
            worker.gate.set()
            async with port_proxy(target, place):
                await opened.page.wait_for_selector(COMPLETED)
                assert (await text.inner_text()).split() == [str(number) for number in range(1, 41)]
                await expect(opened.page.locator(".live")).to_have_count(0)
    assert len(worker.messages) == 1


async def test_a_message_that_could_not_be_sent_is_sent_again_with_the_same_id(browser: Browser) -> None:
    worker, place = Desk(), free_port()
    with desk(worker) as url:
        async with tab(browser, f"http://127.0.0.1:{place}") as opened:
            async with port_proxy(int(url.rpartition(":")[2]), place):
                await opened.open("/chat")
                await opened.page.wait_for_selector("#message")
            await opened.send("two of them")
            await expect(opened.page.locator(".bubble.is-sending")).to_be_visible()
            async with port_proxy(int(url.rpartition(":")[2]), place):
                await opened.page.wait_for_selector(COMPLETED)
    assert len(worker.messages) == 1


async def test_a_question_is_answered_with_a_form_made_from_its_schema(chat: Tab) -> None:
    await chat.send("trip please")
    form = chat.page.locator(".schema-form")
    await form.get_by_role("button", name="Send the answer").click()
    await expect(form.get_by_label("City")).to_have_attribute("aria-invalid", "true")
    await form.get_by_label("City").fill("Lisbon")
    await form.get_by_label("Nights").fill("99")
    await form.get_by_role("button", name="Send the answer").click()
    await expect(form).to_contain_text("This must be 30 or less.")
    await form.get_by_label("Nights").fill("3")
    await form.get_by_label("Board").select_option("full")
    await chat.picture("question")
    await form.get_by_role("button", name="Send the answer").click()
    await expect(chat.page.locator(".bubble.product .markdown")).to_have_text("Booked 3 nights in Lisbon with full.")


async def test_a_question_without_a_schema_is_answered_in_words_and_the_next_message_begins_a_task(chat: Tab) -> None:
    await chat.send("ask me")
    await expect(chat.page.locator(".question")).to_contain_text("What is the order number?")
    await chat.send("A-17")
    await expect(chat.page.locator(".bubble.product .markdown")).to_have_text("Thank you for: A-17")
    await chat.send("two of them")
    await expect(chat.page.locator(".turn-foot .tone-good")).to_have_count(2)
    await expect(chat.page.locator(".conversations li a[aria-current=page]")).to_have_count(1)


async def test_a_request_for_a_sign_in_says_where_and_goes_on_afterwards(chat: Tab) -> None:
    await chat.send("calendar")
    question = chat.page.locator(".question")
    await expect(question.get_by_role("link")).to_have_attribute("href", "https://example.com/sign-in")
    await question.get_by_role("button", name="I have signed in").click()
    await expect(chat.page.locator(".bubble.product .markdown")).to_have_text("Thank you for: I have signed in.")


async def test_json_is_shown_as_a_tree(chat: Tab) -> None:
    await chat.send("data please")
    tree = chat.page.locator(".json-tree")
    await expect(tree.locator(".json-key").first).to_have_text('"order"')
    await tree.locator(".json-toggle").first.click()
    await expect(tree).to_contain_text("3 fields")


async def test_files_go_in_and_out_and_only_pictures_are_shown(chat: Tab, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Ink and paper")
    async with chat.page.expect_file_chooser() as chooser:
        await chat.page.get_by_role("button", name="Attach files").click()
    await (await chooser.value).set_files(tmp_path / "notes.txt")
    await expect(chat.page.locator(".attached")).to_contain_text("notes.txt")
    await chat.send("files please")
    await expect(chat.page.locator(".bubble.product").last).to_contain_text("You sent notes.txt (text/plain).")
    picture = chat.page.locator("img")
    await expect(picture).to_have_count(1)
    assert (await picture.get_attribute("src") or "").startswith("blob:")
    assert await picture.evaluate("image => image.naturalWidth") == 1
    async with chat.page.expect_download() as saving:
        await chat.page.get_by_role("link", name="Save").nth(1).click()
    saved = await saving.value
    assert saved.suggested_filename == "dot.png"
    await saved.save_as(tmp_path / "saved.png")
    assert (tmp_path / "saved.png").read_bytes() == PNG


async def test_stop_cancels_the_task(chat: Tab) -> None:
    await chat.send("wait for ever")
    await expect(chat.page.locator(".working")).to_contain_text("Looking up the order")
    await chat.page.get_by_role("button", name="Stop").click()
    await expect(chat.page.locator(".turn-foot .state")).to_contain_text("Canceled")


async def test_a_failure_says_why(chat: Tab) -> None:
    await chat.send("fail please")
    await expect(chat.page.locator(".turn")).to_contain_text("card declined")
    await expect(chat.page.locator(".turn-foot .tone-bad")).to_contain_text("Failed")


async def test_the_wire_of_the_last_exchange_is_shown_in_both_versions_and_its_command_works(
    browser: Browser, desk_url: str
) -> None:
    async with tab(browser, desk_url, permissions=["clipboard-read", "clipboard-write"]) as opened:
        await opened.open("/chat")
        await opened.send("two of them")
        await opened.page.wait_for_selector(COMPLETED)
        await opened.page.get_by_role("button", name="Raw wire").click()
        answer = opened.page.locator(".wire").nth(1)
        await expect(answer).to_contain_text('"statusUpdate":{')
        await opened.page.get_by_role("button", name="A2A 0.3").click()
        await expect(opened.page.locator(".wire").nth(0)).to_contain_text('"method": "message/stream"')
        await expect(answer).to_contain_text('"kind":"artifact-update"')
        await opened.picture("wire")
        await opened.page.get_by_role("button", name="Copy as curl").click()
        await expect(opened.page.get_by_role("button", name="Copied")).to_be_visible()
        command = shlex.split(await opened.page.evaluate("navigator.clipboard.readText()"))
        await opened.check()
    headers = [command[index + 1].split(": ") for index, word in enumerate(command) if word == "-H"]
    body = command[command.index("-d") + 1]
    async with httpx.AsyncClient() as client:
        answered = await client.post(command[2], headers=dict(map(tuple, headers)), content=body)  # type: ignore[arg-type]
    assert answered.status_code == 200
    assert '"kind":"task"' in answered.text


async def test_an_agent_that_does_not_stream_is_shown_as_it_goes_on_all_the_same(browser: Browser) -> None:
    worker = Desk()
    with desk(worker, streaming=False) as url:
        async with tab(browser, url) as opened:
            await opened.open("/chat")
            await opened.send("count to forty")
            text = opened.page.locator(".bubble.product .markdown")
            await expect(text).to_have_text(re.compile(r"19 20\s*$"))
            worker.gate.set()
            await opened.page.wait_for_selector(COMPLETED)
            assert (await text.inner_text()).split() == [str(number) for number in range(1, 41)]
            await opened.check()


async def test_a_large_file_is_uploaded_and_shown_when_someone_asks(browser: Browser, tmp_path: Path) -> None:
    large = PNG + bytes(400_000)
    with desk(blobs=str(tmp_path / "blobs")) as url:
        async with tab(browser, url) as opened:
            await opened.open("/chat")
            attached: FilePayload = {"name": "large.png", "mimeType": "image/png", "buffer": large}
            await opened.page.locator("input[type=file]").set_input_files(attached)
            await opened.send("files please")
            await expect(opened.page.locator(".bubble.product").last).to_contain_text("You sent large.png (image/png).")
            sent = opened.page.locator(".bubble.from-user")
            await expect(sent).to_contain_text("kept by this server")
            await sent.get_by_role("button", name="Show").click()
            await expect(sent.locator("img")).to_be_visible()
            await opened.check()


async def test_a_review_is_answered_in_the_conversation(browser: Browser) -> None:
    agent = ROOT / "examples" / "support-agent"
    server = A2AServer.from_manifest(agent, model="scripted", storage="memory", console="on")
    with live(server.app, lifespan="on") as url:
        async with tab(browser, url) as opened:
            await opened.open("/chat")
            await opened.send("I want a refund for B-20")
            review = opened.page.locator(".question")
            await expect(review).to_contain_text("May refunds_pay be called?")
            await review.get_by_role("button", name="Approve").click()
            await review.get_by_role("button", name="Yes, approve").click()
            await expect(opened.page.locator(".bubble").last).to_contain_text("I have paid 240 EUR back")
            await expect(opened.page.locator(".exposed").last).to_have_text("refunded true")
            await opened.check()
