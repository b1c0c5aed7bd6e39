"""`errands tasks export` and `errands tasks import`: whole tasks from one store to another, through a file."""

from __future__ import annotations

import asyncio
import enum
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple
from urllib.parse import quote

import msgspec
from typer import Argument, Option

from errands.cli.failures import CommandError, ExitCode, UsageError, command
from errands.cli.operator_client import OperatorClient
from errands.cli.options import (
    AgentName,
    AllowOrigins,
    ApiKeyOption,
    AsJson,
    Headers,
    ServerUrl,
    Storage,
    Token,
    existing_store,
    server_named,
)
from errands.cli.printing import SlowWork, counted, note, out, print_json
from errands.clock import system_clock
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.errors import ConcurrencyError, PayloadTooLargeError, TaskNotFoundError, UnsupportedOperationError
from errands.model.base import UNREADABLE
from errands.model.log import StoredTask
from errands.policy.task_archive import ArchivedTask, ArchiveError, archive_lines, beginning, ending, read_archive
from errands.runtime.settings import Settings

#: Tasks that are committed together: the store writes them in one transaction.
_BATCH = 64
#: Bytes of events in such a batch.
_BATCH_BYTES = 4_000_000


class Existing(enum.StrEnum):
    """What `errands tasks import` does if the store already has a task with an id."""

    REFUSE = "refuse"
    SKIP = "skip"


@command
async def export_tasks(
    file: Annotated[Path, Argument(metavar="FILE", help="The new file; - writes to stdout.", allow_dash=True)],
    storage: Storage = None,
    agent: AgentName = None,
    task: Annotated[list[str] | None, Option(metavar="TASK_ID", help="Only this task; may be repeated.")] = None,
    url: ServerUrl = None,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> ExitCode:
    """Write the tasks of a store or a server to a file, each with its whole log: an archive for `errands tasks import`.

    The archive contains what users and agents wrote. It contains neither webhooks nor files of a blob store.

    Example:

        errands tasks export tasks.jsonl
    """
    remote = server_named(url, storage, header, token, api_key, allow_origin)
    count = live = webhooks = 0
    damaged: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        if remote is None:
            exported = _stored_tasks(await stack.enter_async_context(existing_store(storage)), task, agent)
        else:
            operator = await stack.enter_async_context(OperatorClient(remote))
            await _check_operator(operator)
            exported = _served_tasks(operator, task, agent)
        work = await stack.enter_async_context(SlowWork("Exporting", "task", prints=str(file) == "-"))
        with _new_file(file) as archive:
            archive.write(beginning(system_clock()) + b"\n")
            async for one in exported:
                if one.problem:
                    damaged[one.task_id] = one.problem
                    continue
                archive.writelines(line + b"\n" for line in one.lines)
                count += 1
                live += one.is_live
                webhooks += one.has_webhooks
                work.advance()
            archive.write(ending(count) + b"\n")
    note(f"{counted(count, 'task')} exported, {live} of them in the queue or at work.")
    if webhooks:
        note(f"{counted(webhooks, 'task')} had webhooks, which are not in an archive: register them again.")
    for task_id, reason in damaged.items():
        note(f"Task {task_id} is damaged and was left out: {reason}", "red")
    return ExitCode.FAILED if damaged else ExitCode.OK


class _Exported(NamedTuple):
    """A task with its lines in an archive, or with what is wrong with it."""

    task_id: str
    lines: list[bytes] = []
    is_live: bool = False
    has_webhooks: bool = False
    problem: str = ""


async def _stored_tasks(engine: Engine, task_ids: list[str] | None, agent: str | None) -> AsyncIterator[_Exported]:
    """Export tasks of a store. What an agent remembers of a conversation is exported once."""
    remembered: set[tuple[object, str | None]] = set()
    async for stored in _chosen(engine, task_ids):
        if agent not in (None, stored.scope.agent):
            continue
        conversation = stored.scope, stored.task.context_id
        is_live = stored.head.due_at is not None
        try:
            lines = await archive_lines(engine, stored, with_memory=conversation not in remembered)
        except UNREADABLE as error:
            yield _Exported(stored.task.id, problem=str(error))
            continue
        if not is_live:  # an import may leave out a live task, and what was remembered with it
            remembered.add(conversation)
        yield _Exported(stored.task.id, lines, is_live, stored.head.pushes != ())


class _CallerPage(msgspec.Struct, rename="camel"):
    """Who the caller of the operator API is."""

    is_operator: bool


class _TaskRow(msgspec.Struct, rename="camel"):
    """A task, as the operator API lists it."""

    id: str
    context_id: str | None
    agent: str
    owner: str
    tenant: str
    due_at: int | None
    lease_until: int | None
    push: int
    damage: str

    @property
    def is_live(self) -> bool:
        return self.due_at is not None or self.lease_until is not None


class _TaskPage(msgspec.Struct):
    tasks: list[_TaskRow]
    next: str | None


async def _check_operator(operator: OperatorClient) -> None:
    """Raise `CommandError` unless the caller is an operator. This is asked before the file is created."""
    if not (await operator.get("me", _CallerPage)).is_operator:
        raise CommandError(
            "archives are for operators; the server needs an access rule that grants `read` to these credentials",
            ExitCode.UNREACHABLE,
        )


async def _served_tasks(
    operator: OperatorClient, task_ids: list[str] | None, agent: str | None
) -> AsyncIterator[_Exported]:
    """Export tasks of a server through its operator API, as `_stored_tasks` does those of a store."""
    remembered: set[tuple[str | None, ...]] = set()
    async for row in _listed(operator, task_ids, agent):
        conversation = (row.tenant, row.owner, row.agent, row.context_id)
        if row.damage:
            yield _Exported(row.id, problem=row.damage)
            continue
        try:
            lines = await operator.archive(row.id, with_memory=conversation not in remembered)
        except (PayloadTooLargeError, UnsupportedOperationError) as error:
            yield _Exported(row.id, problem=str(error))
            continue
        except TaskNotFoundError:
            continue  # deleted since it was listed
        if not row.is_live:
            remembered.add(conversation)
        yield _Exported(row.id, lines, row.is_live, row.push > 0)


async def _listed(operator: OperatorClient, task_ids: list[str] | None, agent: str | None) -> AsyncIterator[_TaskRow]:
    if task_ids is not None:
        for task_id in task_ids:
            row = await operator.get(f"tasks/{quote(task_id, safe='')}", _TaskRow)
            if agent in (None, row.agent):
                yield row
        return
    before: str | None = ""
    while before is not None:
        page = await operator.get("tasks", _TaskPage, agent=agent or "", before=before, limit=100)
        for row in page.tasks:
            yield row
        before = page.next


async def _chosen(engine: Engine, task_ids: list[str] | None) -> AsyncIterator[StoredTask]:
    if task_ids is None:
        async for stored in engine.every_task():
            yield stored
    else:
        for task_id in task_ids:
            yield await engine.load(task_id, None)


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that does not exist yet, which only this user may read; - is stdout."""
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists; name a new file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from None
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class Imported(msgspec.Struct):
    """The result of an import."""

    #: Tasks that are in the store now.
    imported: int = 0
    #: Tasks that were there before.
    existing: int = 0
    #: Tasks in the queue or at work that were left out.
    live: int = 0


@command
async def import_tasks(
    file: Annotated[Path, Argument(metavar="FILE", help="The archive; - reads it from stdin.", allow_dash=True)],
    storage: Storage = None,
    existing: Annotated[
        Existing, Option(help="What to do if the store already has a task with an id: stop, or skip the task.")
    ] = Existing.REFUSE,
    live: Annotated[
        bool, Option("--live", help="Also import tasks in the queue or at work: servers of this store run them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read an archive of `errands tasks export` into a store, with the versions and times that the tasks had.

    Each task is checked, and then written whole or not at all. After an interruption, --existing skip continues.

    Example:

        errands tasks import tasks.jsonl --existing skip
    """
    done = Imported()
    engine = engine_from_url(storage or Settings.from_env().storage)
    if not engine.durable:
        raise UsageError("tasks in memory would be lost with this command; name a durable store with --storage")
    with _opened(file) as archive:
        async with engine, SlowWork("Importing", "task") as work:
            try:
                await _import(archive, engine, done, work, existing, live)
            except ArchiveError as error:
                raise CommandError(f"{file}, {error}. {counted(done.imported, 'task')} imported before it") from None
    if as_json:
        print_json(done)
        return
    out().print(f"{counted(done.imported, 'task')} imported; {done.existing} existed already.")
    if done.live:
        note(
            f"{counted(done.live, 'task')} in the queue or at work left out. Stop the servers of the former store, "
            "export again, and import with --live --existing skip."
        )


async def _import(
    archive: BinaryIO, engine: Engine, done: Imported, work: SlowWork, existing: Existing, live: bool
) -> None:
    batch: list[ArchivedTask] = []
    size = 0
    reader = read_archive(archive)
    try:
        # Reading may wait for a pipe.
        while (archived := await asyncio.to_thread(next, reader, None)) is not None:
            if archived.live and not live:
                done.live += 1
                continue
            batch.append(archived)
            size += sum(len(event.data) for event in archived.events)
            if len(batch) == _BATCH or size >= _BATCH_BYTES:
                await _commit(batch, engine, done, work, existing)
                batch, size = [], 0
    except ArchiveError:
        await _commit(batch, engine, done, work, existing)
        raise
    await _commit(batch, engine, done, work, existing)


async def _commit(
    batch: list[ArchivedTask], engine: Engine, done: Imported, work: SlowWork, existing: Existing
) -> None:
    """Restore tasks in one batch. Each succeeds or fails on its own."""
    changes = []
    for archived in batch:
        memory = archived.memory
        if memory is not None and await engine.load_context(archived.scope, archived.task.context_id or ""):
            memory = None  # the conversation went on in this store
        changes.append(archived.change(engine.clock(), memory))
    results = await asyncio.gather(*map(engine.commit, changes), return_exceptions=True)
    known: list[str] = []
    for archived, result in zip(batch, results, strict=True):
        if isinstance(result, ConcurrencyError):
            known.append(archived.task.id)
        elif isinstance(result, BaseException):
            raise result
        else:
            done.imported += 1
            work.advance()
    done.existing += len(known)
    if known and existing is Existing.REFUSE:
        raise CommandError(
            f"the store already has task {known[0]}; {counted(done.imported, 'task')} imported. To keep the tasks that "
            "the store has and continue with the others, add --existing skip"
        )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
