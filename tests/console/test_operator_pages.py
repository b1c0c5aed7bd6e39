"""The pages of the console for operators, in a real Chromium, with real servers."""

from __future__ import annotations

import json
import re
import shlex
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from errands import A2AServer, BearerTokenMiddleware
from tests.console.browser import Tab, serious_problems, tab
from tests.console.busy import HOSTILE, Busy, busy_server
from tests.live import live
from tests.unit.cli.processes import Served

pytestmark = pytest.mark.anyio

SUPPORT_AGENT = Path(__file__).parents[2] / "examples" / "support-agent"


@pytest.fixture(scope="module")
def worker() -> Busy:
    return Busy()


@pytest.fixture(scope="module")
def busy(worker: Busy) -> Iterator[str]:
    """The URL of the busy agent."""
    settings = {"push_allow": "127.0.0.1", "push_give_up_after": 0.2}
    server = busy_server(worker, storage="memory", console="on", **settings)
    with live(server.app, lifespan="on") as url:
        yield url


@pytest.fixture(scope="module")
def support(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the support agent of the examples, with its scripted model, tools, guardrails and reviews."""
    storage = f"sqlite:///{tmp_path_factory.mktemp('support') / 'tasks.db'}"
    server = A2AServer.from_manifest(SUPPORT_AGENT, model="scripted", storage=storage, console="on")
    with live(server.app, lifespan="on") as url:
        yield url


@pytest.fixture
async def at_busy(browser: Browser, busy: str) -> AsyncIterator[Tab]:
    """A tab that has done nothing wrong when the test is over."""
    async with tab(browser, busy) as opened:
        yield opened
        await opened.check()
        assert await opened.page.evaluate("window.hacked") is None


@pytest.fixture
async def at_support(browser: Browser, support: str) -> AsyncIterator[Tab]:
    async with tab(browser, support) as opened:
        yield opened
        await opened.check()


async def verify(token: str) -> dict[str, object] | None:
    return {"sub": token}


async def visit(opened: Tab, path: str) -> Page:
    await opened.open(path)
    return opened.page


def send(url: str, text: str, *, wait: bool = True, token: str = "", **configuration: object) -> str:
    """Send a message, and return the id of its task."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {"message": message, "configuration": {"returnImmediately": not wait, **configuration}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    headers = {"A2A-Version": "1.0", **({"Authorization": f"Bearer {token}"} if token else {})}
    answer = httpx.post(url, json=body, headers=headers, timeout=60).json()
    found: str = answer["result"]["task"]["id"]
    return found


def ask(url: str, **body: object) -> None:
    """Send a request to the operator API."""
    httpx.post(url, json=body, timeout=60).raise_for_status()


# Tasks


async def test_the_list_shows_what_a_filter_lets_through_and_keeps_it_in_the_address(at_busy: Tab, busy: str) -> None:
    send(busy, "fail The printer is on fire")
    send(busy, "hello filter")
    send(busy, "ask about colours")
    page = await visit(at_busy, "/console/tasks")
    await expect(page.get_by_role("link", name="hello filter")).to_be_visible()
    await page.get_by_role("button", name="Failed").click()
    await expect(page.get_by_role("link", name="hello filter")).to_have_count(0)
    await expect(page.locator("tr", has_text="The printer is on fire").first).to_contain_text("Failed")
    await page.get_by_role("button", name="Waits for someone").click()
    await expect(page.get_by_role("link", name="ask about colours")).to_be_visible()
    assert page.url.endswith("?view=waits")
    await page.reload()
    await expect(page.get_by_role("link", name="ask about colours")).to_be_visible()
    await page.get_by_role("button", name="All", exact=True).click()
    await page.get_by_role("searchbox", name="Search tasks").fill("filter")
    await expect(page.locator("table.tasks tbody tr")).to_have_count(1)
    await page.get_by_role("searchbox", name="Search tasks").fill("no such words")
    await expect(page.locator(".empty")).to_contain_text("No task passes these filters")
    await page.go_back()


async def test_a_new_task_appears_in_the_list_by_itself(at_busy: Tab, busy: str) -> None:
    page = await visit(at_busy, "/console/tasks")
    await expect(page.locator("h1")).to_have_text("Tasks")
    send(busy, "hello newcomer")
    await expect(page.get_by_role("link", name="hello newcomer")).to_be_visible()


async def test_rows_are_walked_selected_and_canceled_with_the_keyboard(at_busy: Tab, busy: str) -> None:
    send(busy, "hold one", wait=False)
    send(busy, "hold two", wait=False)
    page = await visit(at_busy, "/console/tasks?view=flight&q=hold")
    await expect(page.locator("table.tasks tbody tr")).to_have_count(2)
    await page.keyboard.press("j")
    await expect(page.locator("tr.current")).to_contain_text("hold two")
    await page.keyboard.press("x")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(page.locator(".bulk")).to_contain_text("2 tasks selected")
    await page.get_by_role("button", name="Cancel tasks").click()
    await page.get_by_role("button", name="Yes, cancel").click()
    await expect(page.locator(".empty")).to_contain_text("No task passes these filters")
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox", name="Search tasks")).to_be_focused()


async def test_a_hidden_tab_asks_for_nothing_until_it_is_shown_again(at_busy: Tab, busy: str) -> None:
    await at_busy.page.clock.install()
    page = await visit(at_busy, "/console/tasks?q=hidden")
    await expect(page.locator(".empty")).to_be_visible()
    await page.evaluate("Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })")
    await page.clock.run_for(2500)
    asked = len(at_busy.requests)
    await page.clock.run_for(60_000)
    assert len(at_busy.requests) == asked
    send(busy, "hello hidden")
    await page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.get_by_role("link", name="hello hidden")).to_be_visible()


async def test_a_failed_read_keeps_the_old_rows_and_says_so(at_busy: Tab, busy: str) -> None:
    send(busy, "hello again")
    page = await visit(at_busy, "/console/tasks?q=again")
    await expect(page.get_by_role("link", name="hello again")).to_be_visible()
    broken = {"error": {"code": 503, "message": "The store does not answer"}}
    await page.route("**/admin/tasks**", lambda route: route.fulfill(status=503, json=broken))
    await expect(page.get_by_role("alert")).to_contain_text("The store does not answer")
    await expect(page.get_by_role("link", name="hello again")).to_be_visible()
    await page.unroute("**/admin/tasks**")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("alert")).to_have_count(0)


# One task


async def test_the_timeline_has_the_model_calls_tools_and_decisions_of_an_agent(at_support: Tab, support: str) -> None:
    task = send(support, "I want a refund for A-17")
    page = await visit(at_support, f"/console/tasks/{task}")
    list_ = page.locator("table.spans")
    for text in (
        "asks for orders",
        'orders({"number":"A-17"',
        "refunds_pay",
        "guardrails.before[0] passed",
        "support answers",
    ):
        await expect(list_.locator("tr", has_text=text).first).to_be_visible()
    assert await page.locator("svg.outline [data-span]").count() >= 10
    await expect(page.locator(".costs")).to_contain_text("Tokens")
    # A call says what it was for, and leads to what came of it.
    await list_.get_by_role("button", name="asks for orders").click()
    detail = page.locator(".detail")
    await expect(detail).to_contain_text("Prompt")
    await detail.get_by_role("button", name='orders({"number":"A-17"').click()
    await expect(page.locator("tr.span.chosen")).to_contain_text("Tools")


async def test_the_timeline_of_a_delegated_task_opens_inside_of_that_of_its_parent(
    at_support: Tab, support: str, axe: str
) -> None:
    task = send(support, "My kettle A-17 broke five times")
    page = await visit(at_support, f"/console/tasks/{task}")
    await expect(page.locator("tr.span").first).to_be_visible()
    whole = await page.locator("tr.span").count()
    call = page.locator("tr.span", has_text="analyst({")
    await call.get_by_role("button", name=re.compile("^Task ")).click()
    nested = page.locator("tr.span.nested")
    await expect(nested.filter(has_text="user: A customer says: My kettle A-17")).to_be_visible()
    await expect(nested.filter(has_text="Completed")).to_be_visible()
    assert await page.locator("tr.span:not(.nested)").count() == whole
    # Filters are for both, and a line has what it has on the page of its own task.
    await page.get_by_role("group", name="Filter the events").get_by_role("button", name="Model").click()
    await expect(nested).to_have_count(0)
    await page.get_by_role("button", name="Show all").click()
    await nested.get_by_role("button", name="scripted/analyst answers").click()
    await expect(page.locator("tr.nested .detail")).to_contain_text("Completion")
    await at_support.picture("delegated-task")
    assert await serious_problems(page, axe) == []
    await call.get_by_role("button", name=re.compile("^Task ")).click()
    await expect(nested).to_have_count(0)
    await call.locator(".row-button").click()
    await call.locator(".detail dd a").click()
    await expect(page.locator("h1")).to_contain_text("A customer says")
    await expect(page.locator(".small-print")).to_contain_text("delegated by")


async def test_filters_of_the_timeline_count_what_they_hide(at_support: Tab, support: str) -> None:
    task = send(support, "Where is my order A-17?")
    page = await visit(at_support, f"/console/tasks/{task}")
    await expect(page.locator("tr.span").first).to_be_visible()
    whole = await page.locator("tr.span").count()
    await page.get_by_role("group", name="Filter the events").get_by_role("button", name="Tools").click()
    await expect(page.locator("tr.span")).to_have_count(1)
    await expect(page.locator(".hidden-count")).to_contain_text(f"{whole - 1} events hidden")
    await page.reload()
    await expect(page.locator("tr.span")).to_have_count(1)
    await page.get_by_role("button", name="Show all").click()
    await expect(page.locator("tr.span")).to_have_count(whole)


async def test_dragging_over_the_outline_zooms_and_the_address_keeps_it(at_support: Tab, support: str) -> None:
    task = send(support, "My kettle A-17 broke five times")
    page = await visit(at_support, f"/console/tasks/{task}")
    outline = page.locator("svg.outline")
    await expect(outline.locator("[data-span]").first).to_be_attached()
    marks = await outline.locator("[data-span]").count()
    box = await outline.bounding_box()
    assert box is not None
    bottom = box["y"] + box["height"] - 4
    await page.mouse.move(box["x"] + 200, bottom)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 420, bottom)
    await page.mouse.up()
    await expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    await page.reload()
    await expect(page.get_by_text("after the beginning")).to_be_visible()
    assert 0 < await outline.locator("[data-span]").count() < marks
    await page.get_by_role("button", name="Show all").click()
    await expect(outline.locator("[data-span]")).to_have_count(marks)


async def test_a_turn_whose_process_was_killed_is_shown_with_both_attempts(browser: Browser, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    program = Path(__file__).parent / "busy.py"
    with Served(program, cwd=tmp_path, storage=store, lease_seconds="1") as first:
        task = send(first.url, "hold on", wait=False)
        first.stop(signal.SIGKILL)
    with Served(program, cwd=tmp_path, storage=store, lease_seconds="1") as second:
        async with tab(browser, second.url) as opened:
            page = await visit(opened, f"/console/tasks/{task}")
            await expect(page.locator(".sentence")).to_contain_text("attempt 2 of 3")
            await expect(page.locator("tr.span", has_text="lost its lease")).to_be_visible()
            await expect(page.locator("svg.outline .band")).to_have_count(2)
            await expect(page.locator("svg.outline .band.torn")).to_have_count(1)


async def test_artifacts_grow_while_they_are_written(at_busy: Tab, busy: str, worker: Busy) -> None:
    task = send(busy, "write a story", wait=False)
    page = await visit(at_busy, f"/console/tasks/{task}?tab=artifacts")
    await expect(page.locator(".pill")).to_contain_text("Live")
    for number in range(3):
        worker.permit()
        await expect(page.locator(".artifact")).to_contain_text(f"piece {number}.")
    await expect(page.locator(".task-head .state")).to_contain_text("Completed")
    await expect(page.locator(".artifact")).to_contain_text("piece 0. piece 1. piece 2.")


async def test_a_tab_in_the_background_opens_no_stream_until_it_is_looked_at(
    at_busy: Tab, busy: str, worker: Busy
) -> None:
    task = send(busy, "write a story", wait=False)
    hide = "Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => 'hidden' })"
    await at_busy.page.add_init_script(hide)
    page = await visit(at_busy, f"/console/tasks/{task}?tab=artifacts")
    await expect(page.locator(".pill")).to_contain_text("Paused")
    assert [one.url for one in at_busy.requests if one.url.endswith("/stream")] == []
    for _ in range(3):
        worker.permit()
    await page.evaluate("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator(".artifact")).to_contain_text("piece 0. piece 1. piece 2.")
    await expect(page.locator(".task-head .state")).to_contain_text("Completed")


async def test_the_replay_shows_the_task_as_it_was(at_busy: Tab, busy: str) -> None:
    task = send(busy, "burst 40")
    page = await visit(at_busy, f"/console/tasks/{task}?tab=artifacts")
    await expect(page.locator(".artifact")).to_contain_text("line 39 of 40")
    await page.get_by_role("button", name="Replay").click()
    slider = page.get_by_role("slider", name="Version")
    await expect(slider).to_be_enabled()
    await expect(page.locator(".replay-state")).to_contain_text("As of version")
    await slider.fill("20")
    await expect(page.locator(".replay-state")).to_contain_text("Working")
    await expect(page.locator(".artifact")).not_to_contain_text("line 39 of 40")
    await expect(page.locator(".artifact")).to_contain_text("line 0 of 40")
    await slider.fill("0")
    await expect(page.locator(".replay-state")).to_contain_text("Queued")
    await page.get_by_role("button", name="Back to now").click()
    await expect(page.locator(".artifact")).to_contain_text("line 39 of 40")


async def test_a_running_task_is_canceled_after_one_more_question(at_busy: Tab, busy: str) -> None:
    task = send(busy, "hold me", wait=False)
    page = await visit(at_busy, f"/console/tasks/{task}")
    await expect(page.locator(".sentence")).to_contain_text("Working")
    await expect(page.locator(".sentence")).to_contain_text("held by")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Yes, cancel").click()
    await expect(page.locator(".task-head .state")).to_contain_text("Canceled")


async def test_a_failed_task_says_why_and_is_tried_again_as_a_new_one(at_busy: Tab, busy: str) -> None:
    task = send(busy, "fail The paper is wet")
    page = await visit(at_busy, f"/console/tasks/{task}")
    await expect(page.get_by_role("region", name="Why it ended")).to_contain_text("The paper is wet")
    await page.get_by_role("button", name="Retry as a new task").click()
    await page.wait_for_url(lambda url: "/tasks/" in url and task not in url)
    await expect(page.get_by_role("region", name="Why it ended")).to_contain_text("The paper is wet")


async def test_the_raw_wire_is_shown_in_both_versions_with_the_log_below(at_busy: Tab, busy: str) -> None:
    task = send(busy, "hello wire")
    page = await visit(at_busy, f"/console/tasks/{task}?tab=raw")
    raw = page.locator(".raw")
    await expect(raw).to_contain_text("GetTask")
    await expect(raw).to_contain_text("TASK_STATE_COMPLETED")
    await page.get_by_role("button", name="A2A 0.3").click()
    await expect(raw).to_contain_text("tasks/get")
    await expect(raw).to_contain_text('"kind": "task"')
    await expect(page.locator("table.log tbody tr").first).to_contain_text("task")


async def test_a_task_is_copied_as_curl_and_its_log_downloaded(browser: Browser, busy: str, tmp_path: Path) -> None:
    task = send(busy, "hello 'quoted' $HOME")
    async with tab(browser, busy, permissions=["clipboard-read", "clipboard-write"]) as watched:
        page = await visit(watched, f"/console/tasks/{task}")
        await page.get_by_role("button", name="Copy as curl").click()
        await expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
        command = await page.evaluate("navigator.clipboard.readText()")
        words = shlex.split(command)
        assert words[:3] == ["curl", "-sS", f"{busy}/"]
        assert json.loads(words[-1])["params"]["message"]["parts"] == [{"text": "hello 'quoted' $HOME"}]
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download log").click()
        saved = tmp_path / "log.jsonl"
        await (await download.value).save_as(saved)
    events = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["kind"] == "task"


async def test_a_task_that_does_not_exist_is_said_to_be_missing(at_busy: Tab) -> None:
    page = await visit(at_busy, "/console/tasks/missing")
    await expect(page.locator(".empty")).to_contain_text("or it is not yours")


# Reviews


async def test_reviews_are_answered_one_after_the_other_with_a_comment(at_support: Tab, support: str) -> None:
    first = send(support, "I want a refund for B-20")
    second = send(support, "Please pay B-20 back, a refund")
    page = await visit(at_support, "/console/reviews")
    await expect(page.locator(".review-queue li")).to_have_count(2)
    await expect(page.locator(".review-queue li").first).to_contain_text("eu · B-20 · 240")
    await expect(page).to_have_title(re.compile(r"^\(2\) Reviews"))
    await expect(page.locator(".review")).to_contain_text("refunds_pay")
    await expect(page.locator("table.subject tr", has_text="Amount")).to_contain_text("240")
    rule = "assert input.amount <= 100 || review('supervisor@example.com')"
    await expect(page.locator("pre.rule")).to_have_text(rule)
    await page.get_by_label("Comment").fill("a good customer")
    await page.keyboard.press("Escape")
    await page.locator("h2").first.click()
    await page.keyboard.press("a")
    await page.get_by_role("button", name="Yes, approve").click()
    await expect(page.locator(".review-queue li")).to_have_count(1)
    await page.keyboard.press("d")
    await page.get_by_role("button", name="Yes, deny").click()
    await expect(page.locator(".empty")).to_contain_text("Nothing waits for a review")
    await expect(page).to_have_title(re.compile(r"^\(0\) Reviews"))
    page = await visit(at_support, f"/console/tasks/{first}?tab=conversation")
    await expect(page.locator(".messages")).to_contain_text("I have paid 240 EUR back")
    await expect(page.locator(".messages")).to_contain_text("approved: a good customer")
    page = await visit(at_support, f"/console/tasks/{second}")
    await expect(page.locator("tr.span", has_text="denied").first).to_be_visible()


async def test_a_review_is_approved_on_the_page_of_its_task(at_support: Tab, support: str) -> None:
    task = send(support, "A refund for B-20, please")
    page = await visit(at_support, f"/console/tasks/{task}")
    review = page.get_by_role("region", name="Review")
    await expect(review).to_contain_text("supervisor@example.com")
    await review.get_by_role("button", name="Approve").click()
    await review.get_by_role("button", name="Yes, approve").click()
    await expect(page.locator("tr.span", has_text="approved").first).to_be_visible()
    await expect(page.locator(".task-head .state")).to_contain_text("Waits for an answer")


# The agent and operations


async def test_the_agent_page_has_the_card_its_check_the_skills_and_the_policy(at_support: Tab) -> None:
    page = await visit(at_support, "/console/agent")
    await expect(page.locator("h1")).to_have_text("support")
    await expect(page.get_by_role("region", name="Check")).to_contain_text("The card is valid")
    policy = page.get_by_role("region", name="Policy")
    await expect(policy).to_contain_text("input.amount <= 100 || review('supervisor@example.com')")
    await expect(policy).to_contain_text("Max turns 20")
    await page.get_by_role("button", name="Show the JSON").click()
    await expect(page.get_by_role("region", name="Raw card")).to_contain_text('"supportedInterfaces"')
    await expect(page.get_by_role("link", name="Try support")).to_have_attribute(
        "href", re.compile(r"/chat\?text=support$")
    )


async def test_charts_have_figures_and_a_table_twin(at_busy: Tab, busy: str) -> None:
    for _ in range(5):
        send(busy, "hello charts")
    page = await visit(at_busy, "/console/ops")
    chart = page.locator("figure.chart", has_text="Turns").first
    await expect(chart.locator("path.line").first).to_have_attribute("d", re.compile("^M"))
    await chart.get_by_text("Table").click()
    await expect(chart.locator("tbody tr").first).to_be_visible()
    await expect(page.get_by_role("region", name="Processes").first).to_contain_text("all")


async def test_a_chart_has_a_line_for_each_process_and_one_for_all(browser: Browser, tmp_path: Path, axe: str) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    with ExitStack() as stack:
        servers = [busy_server(storage=storage, console="on") for _ in range(2)]
        url, _ = (stack.enter_context(live(server.app, lifespan="on")) for server in servers)
        send(url, "hello charts")
        async with tab(browser, url) as opened:
            page = await visit(opened, "/console/ops")
            names = page.get_by_role("region", name="Processes").first.locator("tbody code")
            await expect(names).to_have_count(2)
            memory = page.locator("figure.chart", has_text="Memory")
            await expect(memory.locator("path.line")).to_have_count(3)
            await expect(memory.locator("path.series-all")).to_have_attribute("d", re.compile("^M"))
            for name in ("total", *await names.all_inner_texts()):
                await expect(memory.locator(".legend")).to_contain_text(name)
            # One chart compares one series.
            turns = page.locator("figure.chart", has_text="running, of 2,000")
            await turns.get_by_role("button", name="subscribers").click()
            await expect(turns.get_by_role("button", name="subscribers")).to_have_attribute("aria-pressed", "true")
            # A process can be looked at by itself, with all series of a chart.
            await page.get_by_role("button", name="Show").first.click()
            await expect(memory.locator("path.line")).to_have_count(1)
            await expect(page).to_have_url(re.compile("process="))
            await page.get_by_role("button", name="All processes").click()
            await expect(memory.locator("path.line")).to_have_count(3)
            await opened.picture("operations-of-two-processes")
            assert await serious_problems(page, axe) == []
            await opened.check()


async def test_a_running_turn_is_listed_with_its_process(at_busy: Tab, busy: str) -> None:
    task = send(busy, "hold and look", wait=False)
    page = await visit(at_busy, "/console/ops")
    running = page.get_by_role("region", name="Running now")
    await expect(running).to_contain_text(task[-4:])
    ask(f"{busy}/admin/tasks/{task}/cancel")
    await expect(running).not_to_contain_text(task[-4:])


async def test_a_dead_letter_is_retried_and_dropped(at_busy: Tab, busy: str) -> None:
    dead = {"url": "http://127.0.0.1:9/hook", "id": "hook"}
    send(busy, "hello webhook", taskPushNotificationConfig=dead)
    page = await visit(at_busy, "/console/ops")
    letter = page.get_by_role("region", name="Outbox").locator("tbody tr")
    await expect(letter).to_contain_text("127.0.0.1:9")
    await expect(letter).to_contain_text("Given up")
    await letter.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("status").filter(has_text="tried again")).to_be_visible()
    await letter.get_by_role("button", name="Drop").click()
    await letter.get_by_role("button", name="Yes, drop").click()
    await expect(page.get_by_role("region", name="Outbox")).to_contain_text("No dead letters")


async def test_the_overview_says_how_the_agent_does_and_links_to_what_is_wrong(at_busy: Tab, busy: str) -> None:
    send(busy, "fail The overview shows this")
    page = await visit(at_busy, "/console")
    await expect(page.locator(".health")).to_be_visible()
    await expect(page.locator("table.tasks")).to_contain_text("The overview shows this")
    await page.locator(".counts").get_by_role("link", name="Wait for someone").click()
    await expect(page).to_have_url(re.compile(r"console/tasks\?view=waits$"))


# What strangers write


async def test_hostile_text_is_shown_as_text_on_every_page(at_busy: Tab, busy: str) -> None:
    task = send(busy, "hostile")
    send(busy, HOSTILE[0])
    page = await visit(at_busy, "/console/tasks")
    await expect(page.get_by_role("link", name=HOSTILE[0])).to_be_visible()
    page = await visit(at_busy, "/console")
    await expect(page.locator(".reason", has_text=HOSTILE[0]).first).to_be_visible()
    page = await visit(at_busy, "/console/agent")
    await expect(page.locator(".skill").nth(1)).to_contain_text(HOSTILE[0])
    page = await visit(at_busy, f"/console/tasks/{task}")
    await expect(page.get_by_role("region", name="Why it ended")).to_contain_text(HOSTILE[1])
    for button in (await page.locator("tr.span .row-button").all())[:12]:
        await button.click()
    for name in ("Conversation", "Artifacts", "Raw"):
        await page.get_by_role("navigation", name="Parts of the task").get_by_role("button", name=name).click()
        await expect(page.locator("main")).to_contain_text("window.hacked = 1")
    await expect(page.locator("main script, main img, main a[href^=javascript]")).to_have_count(0)


# Who sees what


async def test_owners_see_their_own_tasks_and_no_figures(browser: Browser) -> None:
    server = busy_server(storage="memory", middlewares=[BearerTokenMiddleware(verify)])
    with live(server.app, lifespan="on") as url:
        mine = send(url, "hello from alice", token="alice")
        send(url, "hello from bob", token="bob")
        async with tab(browser, url, extra_http_headers={"Authorization": "Bearer alice"}) as opened:
            page = await visit(opened, "/console/tasks")
            await expect(page.get_by_role("link", name="hello from alice")).to_be_visible()
            await expect(page.locator("table.tasks tbody tr")).to_have_count(1)
            page = await visit(opened, f"/console/tasks/{mine}")
            await expect(page.locator("tr.span", has_text="Completed")).to_be_visible()
            page = await visit(opened, "/console/ops")
            await expect(page.locator(".empty").first).to_contain_text("they are for operators")
            page = await visit(opened, "/console")
            await expect(page.locator(".health")).to_contain_text("All is quiet")
            await opened.check()


# Large tasks, and the functions behind the pictures


async def test_a_task_of_ten_thousand_chunks_keeps_the_page_small(at_busy: Tab, busy: str) -> None:
    task = send(busy, "burst 10000", wait=False)
    page = await visit(at_busy, f"/console/tasks/{task}?tab=artifacts")
    await expect(page.locator(".task-head .state")).to_contain_text("Completed", timeout=60_000)
    await expect(page.locator(".artifact")).to_contain_text("more characters")
    await page.get_by_role("button", name="Raw").click()
    await expect(page.locator(".raw")).to_contain_text("10,004 events")
    assert await page.evaluate("document.querySelectorAll('*').length") < 2500


async def test_idle_hours_are_folded_and_work_is_not(at_busy: Tab) -> None:
    page = await visit(at_busy, "/console")
    found = await page.evaluate(
        """async () => {
            const { partsOfTime, axisOf } = await import("/console/static/timeline.js");
            const hour = 3_600_000;
            const spans = [
                { lane: "model", at: 0, until: 2 * hour, outcome: "ok" },
                { lane: "people", at: 2 * hour, until: 5 * hour, outcome: "ok" },
                { lane: "tool", at: 5 * hour, until: 6 * hour, outcome: "ok" },
            ];
            const parts = partsOfTime(spans, 0, 6 * hour);
            const axis = axisOf(parts, 376);
            const unfolded = partsOfTime(spans, 0, 6 * hour, true);
            return {
                folded: parts.map((part) => part.folded), unfolded: unfolded.length,
                at: axis.x(5 * hour), back: axis.time(axis.x(5.5 * hour)),
            };
        }"""
    )
    # Three hours of work have 300 pixels, the fold 76.
    assert found == {"folded": [False, True, False], "unfolded": 1, "at": 276, "back": 5.5 * 3_600_000}


async def test_rates_and_percentiles_come_from_what_happened_in_between(at_busy: Tab) -> None:
    page = await visit(at_busy, "/console")
    found = await page.evaluate(
        """async () => {
            const { rate, percentile } = await import("/console/static/figures.js");
            const at = (seconds, value, buckets) => (
                { at: seconds * 1000, figures: [{ name: "n", labels: {}, value, buckets }] }
            );
            const snapshots = [at(0, 10, [10, 10]), at(10, 30, [10, 30]), at(20, 5, [5, 5])];
            return [rate(snapshots, "n"), percentile(snapshots, "n", 0.5, [1, 3])];
        }"""
    )
    # The last one is that of a process that was started again.
    assert found == [[None, 2, None], [None, 2, None]]


async def test_the_total_of_processes_has_no_value_while_one_of_them_is_not_known(at_busy: Tab) -> None:
    page = await visit(at_busy, "/console")
    found = await page.evaluate(
        """async () => {
            const { commonTimes, heldAt, percentileAt, rate, totalAt } = await import("/console/static/figures.js");
            const sample = (value) => ({ name: "n", labels: {}, value, buckets: [value, value] });
            const at = (seconds, value) => ({ at: seconds * 1000, figures: [sample(value)] });
            const snapshots = [
                [at(5, 0), at(10, 10), at(15, 20), at(20, 30)],   // ran before the page was opened
                [at(13, 7), at(18, 17), at(23, 27)],              // so did this one, but it is known only now
                [at(19, 1), at(24, 6)],                           // has just begun
            ];
            const lives = [[0, 20], [0, 23], [17, 24]];
            const processes = lives.map(([from, to]) => ({ startedAt: from * 1000, at: to * 1000 }));
            const times = commonTimes(snapshots);
            const lines = snapshots.map((one) => heldAt(times, one, rate(one, "n")));
            const gauges = snapshots.map((one) => heldAt(times, one, one.map(({ figures }) => figures[0].value)));
            return {
                times, total: totalAt(times, processes, lines), highest: totalAt(times, processes, gauges, Math.max),
                median: percentileAt(times, snapshots, "n", 0.5, [1, 3]).at(-1),
                silent: heldAt([20_000, 40_000, 41_000], snapshots[0], [1, 2, 3, 4]),
            };
        }"""
    )
    assert found == {
        "times": [5000, 10_000, 15_000, 20_000, 25_000],
        # In the end: 2/s, 2/s, and 1/s.
        "total": [None, None, None, None, 5],
        "highest": [None, None, 20, 30, 30],
        "median": 0.5,
        "silent": [4, 4, None],
    }


# Accessibility


async def test_axe_finds_nothing_serious_in_both_themes(browser: Browser, axe: str, busy: str, support: str) -> None:
    failed = send(busy, "fail for axe")
    holding = send(busy, "hold for axe", wait=False)
    review = send(support, "A refund for B-20, for axe")
    pages = {
        busy: {
            "overview": "",
            "tasks": "/tasks",
            "failed-task": f"/tasks/{failed}",
            "replay-and-wire": f"/tasks/{holding}?tab=raw&version=2",
            "operations": "/ops",
        },
        support: {
            "timeline": f"/tasks/{review}",
            "conversation": f"/tasks/{review}?tab=conversation",
            "reviews": "/reviews",
            "agent": "/agent",
        },
    }
    found = {}
    for url, paths in pages.items():
        async with tab(browser, url) as opened:
            for name, path in paths.items():
                page = await visit(opened, f"/console{path}")
                await expect(page.locator("h1")).to_be_visible()
                await expect(page.locator("main").get_by_text("Loading …")).to_have_count(0)
                await page.emulate_media(color_scheme="light", reduced_motion="reduce")
                light = await serious_problems(page, axe)
                await opened.picture(f"{name}-light")
                # Only colours differ between the themes.
                await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
                await opened.picture(f"{name}-dark")
                if problems := [*light, *await serious_problems(page, axe, "color-contrast")]:
                    found[name] = problems
    ask(f"{busy}/admin/tasks/{holding}/cancel")
    ask(f"{support}/admin/reviews/{review}", approved=False)
    assert found == {}
