"""`errands push`: list webhooks of tasks, and retry or drop deliveries. The commands use the store, not an agent."""

from __future__ import annotations

from bisect import insort
from typing import Annotated

from typer import Argument, Option

from errands.cli.failures import UsageError, command
from errands.cli.options import AgentName, AsJson, Limit, Storage, TaskId, existing_store
from errands.cli.printing import clean, duration, note, one_line, out, print_json, table
from errands.clock import stored_to_iso
from errands.engines.base import Engine
from errands.errors import TaskNotFoundError
from errands.model.log import Change, OutboxEntry

ConfigId = Annotated[
    str | None, Argument(metavar="[CONFIG_ID]", help="The id of the push config; by default, all configs of the task.")
]


@command
async def list_pushes(
    storage: Storage = None,
    agent: AgentName = None,
    every: Annotated[bool, Option("--all", help="List webhooks without a failure, too.")] = False,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the webhooks of tasks whose deliveries failed: dead letters, and those that are tried again.

    Only the host of a webhook is shown: its path may hold a secret.

    Example:

        errands push list
    """
    shown: list[OutboxEntry] = []
    async with existing_store(storage) as engine:
        now = engine.clock()
        async for entry in engine.outbox(agent):
            if every or entry.dead or entry.attempts:
                # Of too many, dead ones and those that have failed for longest are kept.
                insort(shown, entry, key=lambda entry: (not entry.dead, entry.failed_at or now))
                del shown[limit + 1 :]
    more = len(shown) > limit
    del shown[limit:]
    if as_json:
        print_json([_document(entry) for entry in shown])
    elif shown:
        rows = [
            (
                entry.task_id,
                entry.config.id,
                entry.config.host,
                _state(entry, now),
                "" if entry.failed_at is None else duration(now - entry.failed_at),
                one_line(entry.error, 100),
            )
            for entry in shown
        ]
        out().print(table(("TASK", "CONFIG", "HOST", "STATE", "FAILING FOR", "ERROR"), rows), soft_wrap=False)
    else:
        note("There are no webhooks." if every else "No delivery has failed.")
    if more:
        note(f"There are more; --limit {limit * 5} shows them.", "dim")


@command
async def retry_push(
    task_id: TaskId, config_id: ConfigId = None, storage: Storage = None, as_json: AsJson = False
) -> None:
    """Deliver to a webhook again now, even if it was given up. A server of the agent sends the request.

    Example:

        errands push retry TASK_ID
    """
    async with existing_store(storage) as engine:
        found = await _entries(engine, task_id, config_id)
        for entry in found:
            await engine.retry_delivery(task_id, entry.config.id)
    _report(found, "is due now", as_json)


@command
async def drop_push(
    task_id: TaskId, config_id: ConfigId = None, storage: Storage = None, as_json: AsJson = False
) -> None:
    """Delete the push config of a webhook, with everything that was not delivered to it.

    Example:

        errands push drop TASK_ID
    """
    async with existing_store(storage) as engine:
        found = await _entries(engine, task_id, config_id)
        for entry in found:
            await engine.commit(
                Change(task_id=task_id, scope=entry.scope, at=engine.clock(), drop_push=entry.config.id)
            )
    _report(found, "is deleted", as_json)


def _report(entries: list[OutboxEntry], what: str, as_json: bool) -> None:
    """Print what was done to the webhooks of a task."""
    if as_json:
        print_json([{"taskId": entry.task_id, "configId": entry.config.id} for entry in entries])
        return
    for entry in entries:
        out().print(f"Webhook {clean(entry.config.id)} of task {clean(entry.task_id)} {what}.")


async def _entries(engine: Engine, task_id: str, config_id: str | None) -> list[OutboxEntry]:
    """Return the entries of a task, or one of them. Raises `UsageError` if the task has none."""
    try:
        scope = (await engine.load(task_id, None)).scope
    except TaskNotFoundError:
        raise UsageError(f"task {task_id} is not in this store; `errands push list` shows webhooks") from None
    found = [
        entry
        async for entry in engine.outbox(scope.agent)
        if entry.task_id == task_id and config_id in (None, entry.config.id)
    ]
    if not found:
        wanted = "no push config" if config_id is None else f"no push config {config_id!r}"
        raise UsageError(f"task {task_id} has {wanted}; `errands push list --all` shows all")
    return found


def _state(entry: OutboxEntry, now: int) -> str:
    if entry.dead:
        return "dead"
    if entry.due_at is None:
        return "delivered"
    return "due" if entry.due_at <= now else f"in {duration(entry.due_at - now)}"


def _document(entry: OutboxEntry) -> dict[str, object]:
    return {
        "taskId": entry.task_id,
        "configId": entry.config.id,
        "agent": entry.scope.agent,
        "owner": entry.scope.owner,
        "tenant": entry.scope.tenant,
        "host": entry.config.host,
        "deliveredVersion": entry.delivered,
        "dead": entry.dead,
        "attempts": entry.attempts,
        "failingSince": None if entry.failed_at is None else stored_to_iso(entry.failed_at),
        "dueAt": None if entry.due_at is None else stored_to_iso(entry.due_at),
        "error": entry.error,
    }
