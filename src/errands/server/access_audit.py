"""The part of the audit trail that is not in the logs of tasks: reads of tasks of others, files, webhooks and denials.

An entry is durable before its request is performed, so a crash does not hide what a caller has seen. Reads of the
caller's own tasks are only recorded with `audit_reads`, and cost nothing otherwise. Anyone can send requests that are
denied, so their entries are limited; an entry says how many before it were left out.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit

from errands import errors
from errands.engines.base import Engine
from errands.model.log import AccessEntry, Scope
from errands.model.requests import SendMessageRequest
from errands.operations import Operation
from errands.runtime.blobs import NEVER
from errands.runtime.call import CallContext
from errands.runtime.journal import new_id
from errands.runtime.quotas import CallerKey, RequestRate, remember
from errands.runtime.settings import Settings
from errands.server.asgi import IncomingRequest
from errands.server.authorization import task_of
from errands.server.request_guard import client_address, client_network

logger = logging.getLogger(__name__)

#: Entries about denied requests per second, and how many at once: for one caller, and for all together.
CALLER_RATE, CALLER_BURST = 0.2, 20
TOTAL_RATE, TOTAL_BURST = 2.0, 200
#: The errors that deny access. A foreign task is "not found".
DENIALS = (errors.AuthenticationRequiredError, errors.PermissionDeniedError, errors.TaskNotFoundError)

_CONFIG_CHANGES = frozenset({"CreateTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"})
#: Characters of a text from a request.
_MAX_TEXT = 300


class AccessAudit:
    """Records requests to one agent in the access log."""

    def __init__(self, engine: Engine, agent: str, settings: Settings) -> None:
        self._engine = engine
        self._agent = agent
        self._settings = settings
        self._caller_rate = RequestRate(CALLER_RATE, CALLER_BURST)
        self._total_rate = RequestRate(TOTAL_RATE, TOTAL_BURST)
        #: The number of denied requests without an entry, for the latest callers.
        self._left_out: Counter[CallerKey] = Counter()
        self._numbers = itertools.count()

    def _next_id(self) -> str:
        """Return an id that is greater than those before it: entries of the same time are ordered by their ids."""
        return f"{next(self._numbers):010x}-{new_id()}"

    async def admit(self, operation: Operation, request: Any, call: CallContext, exchange: IncomingRequest) -> None:
        """Record a request that is about to be performed, if the log of a task will not show it."""
        config, detail = None, {}
        if isinstance(request, SendMessageRequest):
            detail["message"] = request.message.message_id
            if request.configuration is not None:
                config = request.configuration.task_push_notification_config
            if self._notes_looks(call):
                facts = dict(detail)
                call.on_repeated = lambda task: self._admitted("read", operation.name, task, call, exchange, facts)
        elif operation.name in _CONFIG_CHANGES:
            config = request
        if config is not None:
            task_id = task_of(request)
            if task_id and not await self._has(task_id, call.scope):
                return  # it will be denied
            detail["config"] = config.id or ""
            with suppress(ValueError):
                # Without the path, which often has a secret; a request that removes a webhook does not name it.
                detail["host"] = urlsplit(getattr(config, "url", "")).netloc.rpartition("@")[2]
            await self._admitted("webhook", operation.name, task_id, call, exchange, detail)
        elif operation.reads and self._notes_looks(call):
            detail = {} if call.reach == "scope" else {"reach": call.reach}
            await self._admitted("read", operation.name, task_of(request), call, exchange, detail)

    def _notes_looks(self, call: CallContext) -> bool:
        """Return whether reads of this caller are recorded."""
        return call.acting is not None or self._settings.audit_reads

    async def _has(self, task_id: str, scope: Scope) -> bool:
        try:
            await self._engine.read(task_id, scope, NEVER, 1)
        except errors.TaskNotFoundError:
            return False
        return True

    async def admit_file(
        self,
        transfer: Literal["upload", "download"],
        task_id: str,
        call: CallContext,
        exchange: IncomingRequest,
        **detail: str,
    ) -> None:
        """Record a download that is about to begin, or an upload that is about to be confirmed."""
        await self._admitted("file", transfer, task_id, call, exchange, detail)

    async def _admitted(
        self,
        action: Literal["read", "file", "webhook"],
        operation: str,
        task_id: str,
        call: CallContext,
        exchange: IncomingRequest,
        detail: dict[str, str],
    ) -> None:
        entry = AccessEntry(
            id=self._next_id(),
            at=self._engine.clock(),
            action=action,
            operation=operation,
            task=_text(task_id),
            by=call.caller,
            email=call.email,
            address=client_address(exchange, self._settings) or "unknown",
            tenant=call.scope.tenant,
            owner=call.scope.owner,
            agent=self._agent,
            detail={name: _text(value) for name, value in detail.items() if value},
        )
        await self._engine.note_access(entry)

    async def deny(self, operation: str, request: Any, exchange: IncomingRequest, error: errors.A2AError) -> None:
        """Record a request that was refused, unless there are too many of them. Never raises."""
        if not isinstance(error, DENIALS):
            return
        key = exchange.caller_key
        if key is None:
            key = client_network(exchange, self._settings)
        if not (self._caller_rate.admits(key) and self._total_rate.admits("")):
            remember(self._left_out, key, self._left_out[key] + 1)
            return
        left_out = self._left_out.pop(key, 0)
        tenant, owner = key if isinstance(key, tuple) else ("", "")
        entry = AccessEntry(
            id=self._next_id(),
            at=self._engine.clock(),
            action="denied",
            operation=operation,
            task=_text(task_of(request)),
            by=_text(owner),
            address=client_address(exchange, self._settings) or "unknown",
            tenant=_text(tenant),
            agent=self._agent,
            outcome=error.reason,
            detail={"leftOut": left_out} if left_out else {},
        )
        # The request is refused in any case.
        try:
            await self._engine.note_access(entry)
        except errors.StorageError as failure:
            logger.error("a denied request of %r could not be recorded: %s", owner, failure)


def _text(value: str) -> str:
    """Return a text from a request in a form that can be stored."""
    return value[:_MAX_TEXT].encode("utf-8", "replace").decode()
