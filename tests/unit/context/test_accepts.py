"""`ctx.accepts(mime_type)`: whether the client accepts the given output MIME type."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import Gate, reaches, run, running, signature

pytestmark = pytest.mark.anyio

COMMON = [
    "text/plain",
    "application/json",
    "text/html",
    "text/csv",
    "text/markdown",
    "application/pdf",
    "image/png",
    "image/jpeg",
    "audio/mpeg",
    "video/mp4",
    "application/xml",
    "application/octet-stream",
]


async def report(ctx: TaskContext) -> None:
    await ctx.complete_json([mime_type for mime_type in COMMON if ctx.accepts(mime_type)])


def test_accepts_has_the_documented_signature() -> None:
    assert signature(TaskContext.accepts) == "(mime_type)"


@pytest.mark.parametrize("mime_type", COMMON)
async def test_accepts_is_true_for_a_type_the_client_listed_and_false_for_others(mime_type: str) -> None:
    assert (await run(report, accepted_output_modes=[mime_type])).data == [mime_type]


@pytest.mark.parametrize("modes", [None, []], ids=["absent", "empty"])
async def test_accepts_is_true_for_everything_when_no_filter_was_specified(modes: list[str] | None) -> None:
    assert (await run(report, accepted_output_modes=modes)).data == COMMON


async def test_accepts_is_case_sensitive() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete_json([ctx.accepts("Text/Plain"), ctx.accepts("text/plain")])

    assert (await run(handle, accepted_output_modes=["Text/Plain"])).data == [True, False]


async def test_accepts_gives_a_bool() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete_json([type(ctx.accepts("text/plain")).__name__])

    assert (await run(handle)).data == ["bool"]


async def test_accepts_goes_by_the_message_of_the_turn(storage: str) -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.accepts("text/csv"))
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one", accepted_output_modes=["text/csv"])
        await client.send("two", task_id=first.task_id, accepted_output_modes=["text/html"])
    assert seen == [True, False]


async def test_accepts_is_remembered_while_a_task_waits_for_a_worker(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await report(ctx)

    async with running(handle, storage, max_concurrent_tasks=1) as client:
        await client.send("in front", blocking=False)
        await gate.reached.wait()
        behind = await client.send("behind", accepted_output_modes=["text/csv"], blocking=False)
        gate.open()
        result = await reaches(client, behind.task_id, "completed")
    assert result.data == ["text/csv"]


async def test_accepts_is_remembered_while_a_message_waits_for_a_running_task(storage: str) -> None:
    gate = Gate()
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        await gate()
        seen.append(ctx.accepts("text/csv"))
        await ctx.complete()

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False, accepted_output_modes=["text/html"])).task_id
        await client.send("two", task_id=task_id, blocking=False, accepted_output_modes=["text/csv"])
        gate.open()
        await reaches(client, task_id, "completed")
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("modes", "text", "data"),
    [
        (["application/json"], None, {"revenue": 42000}),
        (["text/csv"], "revenue\n42000", None),
        (["text/html"], "Revenue: 42,000 €", None),
    ],
)
async def test_the_negotiation_example_of_the_reference_works(modes: list[str], text: str | None, data: object) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.accepts("application/json"):
            await ctx.complete_json({"revenue": 42000})
        elif ctx.accepts("text/csv"):
            await ctx.complete("revenue\n42000")
        else:
            await ctx.complete("Revenue: 42,000 €")

    result = await run(handle, accepted_output_modes=modes)
    assert (result.text, result.data) == (text, data)
