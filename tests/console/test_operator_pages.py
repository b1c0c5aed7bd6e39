"""The pages of the console for operators, in a real Chromium, with real servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from errands import A2AServer
from tests.console.busy import HOSTILE, Busy, busy_server
from tests.console.rig import ROOT, Watched, browser, problems_of, send, served, tab

__all__ = ["browser"]


@pytest.fixture(scope="module")
def worker() -> Busy:
    return Busy()


@pytest.fixture(scope="module")
def busy(worker: Busy) -> Iterator[str]:
    """The URL of the busy agent."""
    settings = {"push_allow": "127.0.0.1", "push_give_up_after": 0.2}
    with served(busy_server(worker, storage="memory", console="on", **settings)) as url:
        yield url


@pytest.fixture(scope="module")
def support(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the support agent of the examples, with its scripted model, tools, guardrails and reviews."""
    storage = f"sqlite:///{tmp_path_factory.mktemp('support') / 'tasks.db'}"
    server = A2AServer.from_manifest(
        ROOT / "examples" / "support-agent", model="scripted", storage=storage, console="on"
    )
    with served(server) as url:
        yield url


@pytest.fixture
def at_busy(browser: Browser, busy: str) -> Iterator[Watched]:
    with tab(browser, busy) as watched:
        yield watched


@pytest.fixture
def at_support(browser: Browser, support: str) -> Iterator[Watched]:
    with tab(browser, support) as watched:
        yield watched


def rows(page: Page) -> list[str]:
    return page.locator("table.tasks tbody tr").all_inner_texts()


# Tasks


def test_the_list_shows_what_a_filter_lets_through_and_keeps_it_in_the_address(at_busy: Watched, busy: str) -> None:
    send(busy, "fail The printer is on fire")
    send(busy, "hello filter")
    send(busy, "ask about colours")
    page = at_busy.open("console/tasks")
    expect(page.get_by_role("link", name="hello filter")).to_be_visible()
    page.get_by_role("button", name="Failed").click()
    expect(page.get_by_role("link", name="hello filter")).to_have_count(0)
    expect(page.locator("tr", has_text="The printer is on fire").first).to_contain_text("Failed")
    page.get_by_role("button", name="Waits for someone").click()
    expect(page.get_by_role("link", name="ask about colours")).to_be_visible()
    assert page.url.endswith("?view=waits")
    page.reload()
    expect(page.get_by_role("link", name="ask about colours")).to_be_visible()
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("searchbox", name="Search tasks").fill("filter")
    expect(page.locator("table.tasks tbody tr")).to_have_count(1)
    page.get_by_role("searchbox", name="Search tasks").fill("no such words")
    expect(page.locator(".empty")).to_contain_text("No task passes these filters")
    page.go_back()


def test_a_new_task_appears_in_the_list_by_itself(at_busy: Watched, busy: str) -> None:
    page = at_busy.open("console/tasks")
    expect(page.locator("h1")).to_have_text("Tasks")
    send(busy, "hello newcomer")
    expect(page.get_by_role("link", name="hello newcomer")).to_be_visible()


def test_rows_are_walked_selected_and_canceled_with_the_keyboard(at_busy: Watched, busy: str) -> None:
    send(busy, "hold one", wait=False)
    send(busy, "hold two", wait=False)
    page = at_busy.open("console/tasks?view=flight&q=hold")
    expect(page.locator("table.tasks tbody tr")).to_have_count(2)
    page.keyboard.press("j")
    expect(page.locator("tr.current")).to_contain_text("hold two")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator(".bulk")).to_contain_text("2 tasks selected")
    page.get_by_role("button", name="Cancel tasks").click()
    page.get_by_role("button", name="Yes, cancel").click()
    expect(page.locator(".empty")).to_contain_text("No task passes these filters")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search tasks")).to_be_focused()


def test_a_failed_read_keeps_the_old_rows_and_says_so(at_busy: Watched, busy: str) -> None:
    at_busy.allowed.add("503")
    send(busy, "hello again")
    page = at_busy.open("console/tasks?q=again")
    expect(page.get_by_role("link", name="hello again")).to_be_visible()
    broken = {"error": {"code": 503, "message": "The store does not answer"}}
    page.route("**/admin/tasks**", lambda route: route.fulfill(status=503, json=broken))
    expect(page.get_by_role("alert")).to_contain_text("The store does not answer")
    expect(page.get_by_role("link", name="hello again")).to_be_visible()
    page.unroute("**/admin/tasks**")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)


# One task


def test_the_timeline_has_the_model_calls_tools_and_decisions_of_an_agent(at_support: Watched, support: str) -> None:
    task = send(support, "I want a refund for A-17")
    page = at_support.open(f"console/tasks/{task}")
    list_ = page.locator("table.spans")
    for text in ("asks for orders", 'orders({"number":"A-17"', "refunds_pay", "guardrails.before[0] passed", "support answers"):
        expect(list_.locator("tr", has_text=text).first).to_be_visible()
    assert page.locator("svg.outline [data-span]").count() >= 10
    expect(page.locator(".costs")).to_contain_text("Tokens")
    # A call says what it was for, and leads to what came of it.
    list_.get_by_role("button", name="asks for orders").click()
    detail = page.locator(".detail")
    expect(detail).to_contain_text("Prompt")
    detail.get_by_role("button", name='orders({"number":"A-17"').click()
    expect(page.locator("tr.span.chosen")).to_contain_text("Tools")


def test_filters_of_the_timeline_count_what_they_hide(at_support: Watched, support: str) -> None:
    task = send(support, "Where is my order A-17?")
    page = at_support.open(f"console/tasks/{task}")
    expect(page.locator("tr.span").first).to_be_visible()
    whole = page.locator("tr.span").count()
    page.get_by_role("group", name="Filter the events").get_by_role("button", name="Tools").click()
    expect(page.locator("tr.span")).to_have_count(1)
    expect(page.locator(".hidden-count")).to_contain_text(f"{whole - 1} events hidden")
    page.reload()
    expect(page.locator("tr.span")).to_have_count(1)
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("tr.span")).to_have_count(whole)


def test_artifacts_grow_while_they_are_written(at_busy: Watched, busy: str, worker: Busy) -> None:
    task = send(busy, "write a story", wait=False)
    page = at_busy.open(f"console/tasks/{task}?tab=artifacts")
    expect(page.locator(".pill")).to_contain_text("Live")
    for number in range(3):
        worker.permit()
        expect(page.locator(".artifact")).to_contain_text(f"piece {number}.")
    expect(page.locator(".task-head .state")).to_contain_text("Completed")
    expect(page.locator(".artifact")).to_contain_text("piece 0. piece 1. piece 2.")


def test_the_replay_shows_the_task_as_it_was(at_busy: Watched, busy: str) -> None:
    task = send(busy, "burst 40")
    page = at_busy.open(f"console/tasks/{task}?tab=artifacts")
    expect(page.locator(".artifact")).to_contain_text("line 39 of 40")
    page.get_by_role("button", name="Replay").click()
    slider = page.get_by_role("slider", name="Version")
    expect(slider).to_be_enabled()
    expect(page.locator(".replay-state")).to_contain_text("As of version")
    slider.fill("20")
    expect(page.locator(".replay-state")).to_contain_text("Working")
    expect(page.locator(".artifact")).not_to_contain_text("line 39 of 40")
    expect(page.locator(".artifact")).to_contain_text("line 0 of 40")
    slider.fill("0")
    expect(page.locator(".replay-state")).to_contain_text("Queued")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator(".artifact")).to_contain_text("line 39 of 40")


def test_a_running_task_is_canceled_after_one_more_question(at_busy: Watched, busy: str) -> None:
    task = send(busy, "hold me", wait=False)
    page = at_busy.open(f"console/tasks/{task}")
    expect(page.locator(".sentence")).to_contain_text("Working")
    expect(page.locator(".sentence")).to_contain_text("held by")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Yes, cancel").click()
    expect(page.locator(".task-head .state")).to_contain_text("Canceled")


def test_a_failed_task_says_why_and_is_tried_again_as_a_new_one(at_busy: Watched, busy: str) -> None:
    task = send(busy, "fail The paper is wet")
    page = at_busy.open(f"console/tasks/{task}")
    expect(page.get_by_role("region", name="Why it ended")).to_contain_text("The paper is wet")
    page.get_by_role("button", name="Retry as a new task").click()
    page.wait_for_url(lambda url: "/tasks/" in url and task not in url)
    expect(page.get_by_role("region", name="Why it ended")).to_contain_text("The paper is wet")


def test_the_raw_wire_is_shown_in_both_versions_with_the_log_below(at_busy: Watched, busy: str) -> None:
    task = send(busy, "hello wire")
    page = at_busy.open(f"console/tasks/{task}?tab=raw")
    raw = page.locator(".raw")
    expect(raw).to_contain_text("GetTask")
    expect(raw).to_contain_text("TASK_STATE_COMPLETED")
    page.get_by_role("button", name="A2A 0.3").click()
    expect(raw).to_contain_text("tasks/get")
    expect(raw).to_contain_text('"kind": "task"')
    expect(page.locator("table.log tbody tr").first).to_contain_text("task")


def test_a_task_is_copied_as_curl_and_its_log_downloaded(browser: Browser, busy: str, tmp_path: Path) -> None:
    task = send(busy, "hello 'quoted' $HOME")
    with tab(browser, busy, permissions=["clipboard-read", "clipboard-write"]) as watched:
        page = watched.open(f"console/tasks/{task}")
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
        command = page.evaluate("navigator.clipboard.readText()")
        assert command.startswith(f"curl -sS {busy}/ ")
        assert "'\\''quoted'\\'' $HOME" in command
        with page.expect_download() as download:
            page.get_by_role("button", name="Download log").click()
        saved = tmp_path / "log.jsonl"
        download.value.save_as(saved)
    events = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["kind"] == "task"


def test_a_task_that_does_not_exist_is_said_to_be_missing(at_busy: Watched) -> None:
    at_busy.allowed.add("404")
    page = at_busy.open("console/tasks/missing")
    expect(page.locator(".empty")).to_contain_text("or it is not yours")


# Reviews


def test_reviews_are_answered_one_after_the_other_with_a_comment(at_support: Watched, support: str) -> None:
    first = send(support, "I want a refund for B-20")
    second = send(support, "Please pay B-20 back, a refund")
    page = at_support.open("console/reviews")
    expect(page.locator(".review-queue li")).to_have_count(2)
    expect(page).to_have_title(re.compile(r"^\(2\) Reviews"))
    expect(page.locator(".review")).to_contain_text("refunds_pay")
    expect(page.locator("table.subject tr", has_text="Amount")).to_contain_text("240")
    page.get_by_label("Comment").fill("a good customer")
    page.keyboard.press("Escape")
    page.locator("h2").first.click()
    page.keyboard.press("a")
    page.get_by_role("button", name="Yes, approve").click()
    expect(page.locator(".review-queue li")).to_have_count(1)
    page.keyboard.press("d")
    page.get_by_role("button", name="Yes, deny").click()
    expect(page.locator(".empty")).to_contain_text("Nothing waits for a review")
    expect(page).to_have_title(re.compile(r"^\(0\) Reviews"))
    page = at_support.open(f"console/tasks/{first}?tab=conversation")
    expect(page.locator(".messages")).to_contain_text("I have paid 240 EUR back")
    expect(page.locator(".messages")).to_contain_text("approved: a good customer")
    page = at_support.open(f"console/tasks/{second}")
    expect(page.locator("tr.span", has_text="denied").first).to_be_visible()


def test_a_review_is_approved_on_the_page_of_its_task(at_support: Watched, support: str) -> None:
    task = send(support, "A refund for B-20, please")
    page = at_support.open(f"console/tasks/{task}")
    review = page.get_by_role("region", name="Review")
    expect(review).to_contain_text("supervisor@example.com")
    review.get_by_role("button", name="Approve").click()
    review.get_by_role("button", name="Yes, approve").click()
    expect(page.locator("tr.span", has_text="approved").first).to_be_visible()
    expect(page.locator(".task-head .state")).to_contain_text("Waits for an answer")


# The agent and operations


def test_the_agent_page_has_the_card_its_check_the_skills_and_the_policy(at_support: Watched) -> None:
    page = at_support.open("console/agent")
    expect(page.locator("h1")).to_have_text("support")
    expect(page.get_by_role("region", name="Check")).to_contain_text("The card is valid")
    policy = page.get_by_role("region", name="Policy")
    expect(policy).to_contain_text("size(part.text) < 4000")
    expect(policy).to_contain_text("Max turns 20")
    page.get_by_role("button", name="Show the JSON").click()
    expect(page.get_by_role("region", name="Raw card")).to_contain_text('"supportedInterfaces"')
    expect(page.get_by_role("link", name="Try support")).to_have_attribute("href", re.compile(r"/chat\?text=support$"))


def test_charts_have_figures_and_a_table_twin(at_busy: Watched, busy: str) -> None:
    for _ in range(5):
        send(busy, "hello charts")
    page = at_busy.open("console/ops")
    chart = page.locator("figure.chart", has_text="Turns").first
    expect(chart.locator("path.line").first).to_have_attribute("d", re.compile("^M"))
    chart.get_by_text("Table").click()
    expect(chart.locator("tbody tr").first).to_be_visible()
    expect(page.get_by_role("region", name="Processes").first).to_contain_text("all")


def test_a_running_turn_is_listed_with_its_process(at_busy: Watched, busy: str) -> None:
    task = send(busy, "hold and look", wait=False)
    page = at_busy.open("console/ops")
    running = page.get_by_role("region", name="Running now")
    expect(running).to_contain_text(task[-4:])
    httpx.post(f"{busy}/admin/tasks/{task}/cancel", json={})
    expect(running).not_to_contain_text(task[-4:])


def test_a_dead_letter_is_retried_and_dropped(at_busy: Watched, busy: str) -> None:
    dead = {"url": "http://127.0.0.1:9/hook", "id": "hook"}
    send(busy, "hello webhook", taskPushNotificationConfig=dead)
    page = at_busy.open("console/ops")
    letter = page.get_by_role("region", name="Outbox").locator("tbody tr")
    expect(letter).to_contain_text("127.0.0.1:9")
    expect(letter).to_contain_text("Given up")
    letter.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("status").filter(has_text="tried again")).to_be_visible()
    letter.get_by_role("button", name="Drop").click()
    letter.get_by_role("button", name="Yes, drop").click()
    expect(page.get_by_role("region", name="Outbox")).to_contain_text("No dead letters")


def test_the_overview_says_how_the_agent_does_and_links_to_what_is_wrong(at_busy: Watched, busy: str) -> None:
    send(busy, "fail The overview shows this")
    page = at_busy.open("console")
    expect(page.locator(".health")).to_be_visible()
    expect(page.locator("table.tasks")).to_contain_text("The overview shows this")
    page.locator(".counts").get_by_role("link", name="Wait for someone").click()
    expect(page).to_have_url(re.compile(r"console/tasks\?view=waits$"))


# What strangers write


def test_hostile_text_is_shown_as_text_on_every_page(at_busy: Watched, busy: str) -> None:
    task = send(busy, "hostile")
    send(busy, HOSTILE[0])
    page = at_busy.open("console/tasks")
    expect(page.get_by_role("link", name=HOSTILE[0])).to_be_visible()
    page = at_busy.open("console")
    expect(page.locator(".reason", has_text=HOSTILE[0]).first).to_be_visible()
    page = at_busy.open("console/agent")
    expect(page.locator(".skill").nth(1)).to_contain_text(HOSTILE[0])
    page = at_busy.open(f"console/tasks/{task}")
    expect(page.get_by_role("region", name="Why it ended")).to_contain_text(HOSTILE[1])
    for button in page.locator("tr.span .row-button").all()[:12]:
        button.click()
    for name in ("Conversation", "Artifacts", "Raw"):
        page.get_by_role("navigation", name="Parts of the task").get_by_role("button", name=name).click()
        expect(page.locator("main")).to_contain_text("window.hacked = 1")
    assert page.evaluate("document.querySelectorAll('main script, main img, main a[href^=javascript]').length") == 0


# Accessibility


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, busy: str, support: str, theme: str) -> None:
    failed = send(busy, "fail for axe")
    holding = send(busy, "hold for axe", wait=False)
    review = send(support, "A refund for B-20, for axe")
    pages = {
        busy: ["console", "console/tasks", f"console/tasks/{failed}", f"console/tasks/{holding}?tab=raw&version=2", "console/ops"],
        support: [f"console/tasks/{review}", f"console/tasks/{review}?tab=conversation", "console/reviews", "console/agent"],
    }
    found = {}
    for url, paths in pages.items():
        with tab(browser, url, color_scheme=theme) as watched:
            for path in paths:
                page = watched.open(path)
                expect(page.locator("h1")).to_be_visible()
                expect(page.locator("main").get_by_text("Loading …")).to_have_count(0)
                if problems := problems_of(page):
                    found[path] = problems
    httpx.post(f"{busy}/admin/tasks/{holding}/cancel", json={})
    httpx.post(f"{support}/admin/reviews/{review}", json={"approved": False, "comment": ""})
    assert found == {}
