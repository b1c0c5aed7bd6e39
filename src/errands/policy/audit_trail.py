"""The audit trail: who did what to which task, when, from where and with which decision. It is derived from the log.

With the setting `audit`, the log also contains who sent a message or a cancel, and from which address, and the access
log of the store contains requests that no task shows (`errands.server.access_audit`). An entry has no content, neither
texts nor files, only a digest of the data that it was derived from.

A chained file has one entry per line. Each line has the hash of the line before it and its own, so a line that was
changed, removed or inserted is found unless the rest of the file was rebuilt: keep the last hash somewhere else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from errands.clock import stored_to_iso
from errands.engines.base import Engine
from errands.errors import PayloadTooLargeError
from errands.model.base import UNREADABLE, encode
from errands.model.core import Message, StreamResponse
from errands.model.log import AccessEntry, CancelRequest, Event, LogSlice, RequestOptions, Scope, StoredTask
from errands.policy import records

#: What an entry is about.
Action = Literal[
    "create",
    "message",
    "cancel",
    "lease",
    "state",
    "artifact",
    "decision",
    "call",
    "review",
    "read",
    "file",
    "webhook",
    "denied",
    "unreadable",
]
#: Which side has acted: a client, the process that runs the task, a rule, a reviewer, or the server itself.
Actor = Literal["caller", "worker", "policy", "reviewer", "server"]

#: The hash before the first line.
BEGINNING = "0" * 64

_LINE = re.compile(rb'(\{.*),"previous":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}')
_decode_event = msgspec.json.Decoder(StreamResponse).decode
_decode_options = msgspec.json.Decoder(RequestOptions).decode
_decode_cancel = msgspec.json.Decoder(CancelRequest).decode


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One act. `version` is the event of the task's log that it was derived from.

    `sha256` is the digest of that event and of those before it that have led to no entry. An act that is in no log has
    the version 0 and names its entry in the access log, whose digest `sha256` is then.
    """

    at: str
    task: str
    version: int
    access: str = ""
    action: Action
    actor: Actor
    #: The caller, worker, rule or reviewer; "" when it is not known.
    by: str = ""
    email: str = ""
    address: str = ""
    tenant: str = ""
    owner: str = ""
    agent: str = ""
    #: What was decided, for decisions, calls and reviews.
    outcome: str = ""
    detail: dict[str, Any] = {}
    sha256: str


async def read_log(engine: Engine, stored: StoredTask, *, most: int | None = None) -> LogSlice:
    """Return the whole log of a task, as far as it is kept.

    Raises `PayloadTooLargeError` for events of more than `most` bytes.
    """
    events: list[Event] = []
    gap = False
    size = 0
    while (part := await engine.read(stored.task.id, stored.scope, events[-1].version if events else 0)).events:
        events += part.events
        gap = gap or part.gap
        size += sum(len(event.data) for event in part.events)
        if most is not None and size > most:
            raise PayloadTooLargeError(f"The log of task {stored.task.id} has more than {most // 2**20} MB")
    return LogSlice(events, gap)


def entries_of(stored: StoredTask, events: Sequence[Event]) -> Iterator[AuditEntry]:
    """Yield the entries that the log of a task leads to."""
    scope = stored.scope
    senders: dict[str, RequestOptions] = {}
    for event in events:
        if event.kind == "request":
            with suppress(*UNREADABLE):
                options = _decode_options(event.data)
                senders[options.message_id] = options
    worker, digest = "", hashlib.sha256()
    for event in events:
        digest.update(b"%d %b %d %d " % (event.version, event.kind.encode(), event.at, len(event.data)))
        digest.update(event.data)
        found: list[dict[str, Any]] = []
        if event.lease is not None:
            worker = event.lease.worker
            detail = {"attempt": event.lease.attempt, "cause": event.lease.cause}
            found.append({"action": "lease", "actor": "worker", "by": worker, "detail": detail})
        try:
            found.append(_facts(event, scope, senders, worker))
        except UNREADABLE:
            found.append({"action": "unreadable", "actor": "server"})
        for facts in filter(None, found):
            yield AuditEntry(
                at=stored_to_iso(event.at),
                task=stored.task.id,
                version=event.version,
                tenant=scope.tenant,
                owner=scope.owner,
                agent=scope.agent,
                sha256=digest.hexdigest(),
                **facts,
            )
        if any(found):
            digest = hashlib.sha256()


def entry_of(access: AccessEntry) -> AuditEntry:
    """Return the entry that an entry of the access log leads to."""
    detail = {"operation": access.operation, **access.detail} if access.operation else access.detail
    return AuditEntry(
        at=stored_to_iso(access.at),
        task=access.task,
        version=0,
        access=access.id,
        action=access.action,
        actor="server" if access.action == "unreadable" else "caller",
        by=access.by,
        email=access.email,
        address=access.address,
        tenant=access.tenant,
        owner=access.owner,
        agent=access.agent,
        outcome=access.outcome,
        detail=detail,
        sha256=hashlib.sha256(encode(access)).hexdigest(),
    )


def _facts(event: Event, scope: Scope, senders: dict[str, RequestOptions], worker: str) -> dict[str, Any]:
    """Return the facts in an event, or an empty result if it is part of another act."""
    if event.kind == "record":
        return _record_facts(records.decode(event.data), worker)
    if event.kind == "cancel":
        cancel = _decode_cancel(event.data)
        return {"action": "cancel", "actor": "caller", "by": cancel.caller or scope.owner, "address": cancel.address}
    if event.kind == "request":
        return {}
    update = _decode_event(event.data)
    if update.task is not None and event.version == 1 and update.task.history:
        return {"action": "create", **_sent(update.task.history[0], scope, senders)}
    if update.message is not None:
        if update.message.role == "ROLE_AGENT":
            return {"action": "message", "actor": "worker", "by": worker}
        return {"action": "message", **_sent(update.message, scope, senders)}
    changed = update.status_update or update.task
    if changed is not None:
        return {"action": "state", "actor": "worker", "by": worker, "detail": {"state": changed.status.state.short}}
    if update.artifact_update is not None and not update.artifact_update.append:
        detail = {"artifact": update.artifact_update.artifact.artifact_id}
        return {"action": "artifact", "actor": "worker", "by": worker, "detail": detail}
    return {}


def _sent(message: Message, scope: Scope, senders: dict[str, RequestOptions]) -> dict[str, Any]:
    options = senders.get(message.message_id, RequestOptions())
    detail: dict[str, Any] = {"message": message.message_id, "parts": len(message.parts)}
    if options.parent:
        detail["parent"] = options.parent
    return {
        "actor": "server" if options.parent else "caller",
        "by": options.caller or scope.owner,
        "email": options.email,
        "address": options.address,
        "detail": detail,
    }


def _record_facts(record: records.AnyRecord, worker: str) -> dict[str, Any]:
    """Return the facts in a record of a decision or a call, or an empty result for other records."""
    if isinstance(record, records.Decided):
        detail = {"policy": record.policy, "action": record.action, "call": record.call or "", "detail": record.detail}
        return _decision(record.step, record.outcome, detail)
    if isinstance(record, records.Ended):
        return _decision("", record.reason, {"detail": record.detail})
    if isinstance(record, records.InputRefused):
        return _decision("", "refused", {"message": record.message_id, "detail": record.reason})
    if isinstance(record, records.Answered) and record.by:
        outcome = "failed" if record.error is not None else encode(record.value).decode()[:200]
        return {"action": "review", "actor": "reviewer", "by": record.by, "outcome": outcome}
    if isinstance(record, records.CapabilityFinished | records.CapabilityErrored | records.CapabilityRestricted):
        outcome = str(type(record).__struct_config__.tag)
        detail = {"function": record.function, "call": record.call, "caller": record.caller}
        return {"action": "call", "actor": "worker", "by": worker, "outcome": outcome, "detail": detail}
    return {}


def _decision(rule: str, outcome: str, detail: dict[str, str]) -> dict[str, Any]:
    known = {name: value for name, value in detail.items() if value}
    return {"action": "decision", "actor": "policy", "by": rule, "outcome": outcome, "detail": known}


# Chained files


def seal(entry: AuditEntry, previous: str) -> tuple[bytes, str]:
    """Return the line of an entry after the line with the hash `previous`, and the hash of the line."""
    body = encode(entry)
    link = _hash(previous, body)
    return b'%b,"previous":"%b","hash":"%b"}' % (body[:-1], previous.encode(), link.encode()), link


def unseal(line: bytes, previous: str) -> tuple[AuditEntry, str]:
    """Return the entry and the hash of a line. Raises `ValueError` that says how the chain is broken."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError("it is not a line of a chained audit file")
    body, said_previous, said_hash = found[1] + b"}", found[2].decode(), found[3].decode()
    if said_previous != previous:
        raise ValueError("a line before it was removed, inserted or moved")
    if said_hash != _hash(previous, body):
        raise ValueError("it was changed")
    try:
        return msgspec.json.decode(body, type=AuditEntry), said_hash
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read: {error}") from None


def _hash(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + body).hexdigest()
