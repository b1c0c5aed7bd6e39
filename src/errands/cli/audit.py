"""`errands audit`: print the audit trail of a store, append it to a chained file, or verify such a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Option

from errands.cli.failures import CommandError, ExitCode, UsageError, command
from errands.cli.options import Storage, existing_store
from errands.cli.printing import SlowWork, note, out, print_raw_json
from errands.clock import from_iso, to_iso
from errands.engines.base import Engine
from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.log import Event, StoredTask
from errands.policy.audit_trail import BEGINNING, AuditEntry, entries_of, entry_of, read_log, seal, unseal


@command
async def audit(
    storage: Storage = None,
    task: Annotated[str | None, Option("--task", metavar="TASK_ID", help="Only this task.")] = None,
    since: Annotated[str | None, Option("--since", metavar="TIME", help="Only what happened at TIME or later.")] = None,
    append: Annotated[
        Path | None,
        Option("--append", metavar="FILE", help="Append to FILE what it does not have yet, chained by hashes."),
    ] = None,
    verify: Annotated[
        Path | None, Option("--verify", metavar="FILE", help="Check the chain of FILE, and compare it with the store.")
    ] = None,
) -> ExitCode:
    """Print who did what to which task, when, from where and with which decision, as JSON lines.

    Lines are grouped by task; requests that no task shows come last. Set ERRANDS_AUDIT=true at the server to
    record callers, their addresses and those requests.

    Example:

        errands audit --since 2026-01-31
    """
    if verify is not None:
        if append is not None or task is not None or since is not None:
            raise UsageError("--verify checks a whole file; omit the other options")
        return await _verify(verify, storage)
    earliest = _time(since) if since is not None else ""
    if append is not None and (task is not None or since is not None):
        raise UsageError("--append continues a whole file; omit --task and --since")
    async with existing_store(storage) as engine:
        if append is not None:
            await _append(append, engine)
            return ExitCode.OK
        is_known = task is None
        async for stored, events in _logs(engine, task, prints=True):
            is_known = True
            for entry in entries_of(stored, events):
                if entry.at >= earliest:
                    print_raw_json(encode(entry))
        async for access in engine.accesses():
            entry = entry_of(access)
            if task in (None, entry.task):
                is_known = True
                if entry.at >= earliest:
                    print_raw_json(encode(entry))
        if not is_known:
            raise TaskNotFoundError(taskId=task)
    return ExitCode.OK


async def _logs(
    engine: Engine, task_id: str | None = None, *, prints: bool = False
) -> AsyncIterator[tuple[StoredTask, Sequence[Event]]]:
    """Iterate over all tasks, or one, with their logs; without tasks that are deleted meanwhile."""
    async with SlowWork("Auditing", "task", prints=prints) as work:
        async for stored in engine.every_task() if task_id is None else _one(engine, task_id):
            try:
                log = await read_log(engine, stored)
            except TaskNotFoundError:
                continue
            yield stored, log.events
            work.advance()


async def _one(engine: Engine, task_id: str) -> AsyncIterator[StoredTask]:
    with suppress(TaskNotFoundError):
        yield await engine.load(task_id, None)


def _time(text: str) -> str:
    try:
        return to_iso(from_iso(text))
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text}: expected a time such as 2026-01-31 or 2026-01-31T12:00:00Z") from None


async def _append(path: Path, engine: Engine) -> None:
    entries, last = _read(path)
    known: dict[str, int] = {}
    for entry in entries:
        known[entry.task] = max(entry.version, known.get(entry.task, 0))
    known_accesses = {entry.access for entry in entries}
    added = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        async for stored, events in _logs(engine):
            for entry in entries_of(stored, events):
                if entry.version > known.get(stored.task.id, 0):
                    line, last = seal(entry, last)
                    file.write(line + b"\n")
                    added += 1
        async for access in engine.accesses():
            if access.id not in known_accesses:
                line, last = seal(entry_of(access), last)
                file.write(line + b"\n")
                added += 1
        file.flush()
        os.fsync(file.fileno())
    note(f"{added} entries were added. Keep the last hash where the file cannot be changed:")
    out().print(last)


async def _verify(path: Path, storage: str | None) -> ExitCode:
    entries, last = _read(path)
    if not entries:
        raise UsageError(f"there is nothing in {path}")
    wanted: dict[str, dict[int, str]] = {}
    for entry in entries:
        if not entry.access:
            wanted.setdefault(entry.task, {})[entry.version] = entry.sha256
    async with existing_store(storage) as engine:
        accesses = {access.id: entry_of(access) async for access in engine.accesses()}
        # Retention removes the oldest entries of the access log.
        first = min((entry.at for entry in accesses.values()), default="9999")
        changed: list[str] = []
        gone = gone_accesses = 0
        for entry in entries:
            if not entry.access:
                continue
            found = accesses.get(entry.access)
            if entry.at >= first if found is None else found.sha256 != entry.sha256:
                changed.append(f"the access {entry.access} of {entry.at}")
            gone_accesses += found is None
        async with SlowWork("Comparing", "task") as work:
            for task_id, digests in wanted.items():
                stored = await _changed(engine, task_id, digests)
                gone += stored is None
                changed += stored or []
                work.advance()
    for place in changed:
        note(f"{place} of the store has changed since it was exported")
    if changed:
        return ExitCode.FAILED
    missing = f"{gone} tasks and {gone_accesses} entries of the access log are no longer in it"
    note(f"{len(entries)} entries are in order and match the store; {missing}. The last hash:")
    out().print(last)
    return ExitCode.OK


async def _changed(engine: Engine, task_id: str, digests: dict[int, str]) -> list[str] | None:
    """Return the events that differ from the exported ones, or None if the task has been deleted since."""
    try:
        stored = await engine.load(task_id, None)
        events, gap = await read_log(engine, stored)
    except TaskNotFoundError:
        return None
    found = {entry.version: entry.sha256 for entry in entries_of(stored, events)}
    # Retention may have removed events from the beginning of a log, among them some of the first entry.
    first = min(found, default=0) if gap else 0
    return [
        f"event {version} of task {task_id}, or one shortly before it,"
        for version, digest in digests.items()
        if version > first and found.get(version) != digest
    ]


def _read(path: Path) -> tuple[list[AuditEntry], str]:
    """Return the entries of a chained file and its last hash. Raises `CommandError`."""
    entries: list[AuditEntry] = []
    last = BEGINNING
    if not path.exists():
        return entries, last
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("it is incomplete; remove it if a crash has cut it off")
                entry, last = unseal(line[:-1], last)
            except ValueError as error:
                raise CommandError(f"{path}, line {number}: {error}") from None
            entries.append(entry)
    return entries, last
