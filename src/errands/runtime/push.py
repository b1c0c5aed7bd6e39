"""Push notifications: webhooks that clients register for a task, and the sender that calls them.

Commits do not wait for deliveries. A commit makes the entries of a task's webhooks due in the store
(`errands.engines.base.Outbox`); the sender leases due entries, reads the events that were not delivered yet from the
log, and posts them one after the other. So every event arrives at least once and in order, even if a process dies in
between. An event that is sent again has the same id.

A delivery that fails is tried again after growing pauses, and the webhook is given up after `push_give_up_after`. A
host that keeps failing gets no requests for a while (a circuit breaker). A host has at most `push_concurrency_per_host`
requests at a time, and only one until it has answered, so it does not hold up others. Connections go through the
outbound guard, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import httpx
import msgspec

from errands import tracing
from errands.engines.base import Engine
from errands.errors import ErrandsError, InvalidParamsError, TaskNotFoundError
from errands.model import core, requests
from errands.model.base import UNREADABLE
from errands.model.log import STREAMED_KINDS, Delivery, Event, OutboxEntry, PushConfig, RequestOptions, Scope
from errands.operations import OPERATIONS
from errands.outbound import Outbound, OutboundError, resolver
from errands.runtime.blobs import blob_prefix, with_addresses
from errands.runtime.figures import Figures
from errands.runtime.json_lines import current_task
from errands.runtime.settings import ENV_PREFIX, Settings
from errands.runtime.streams import snapshot
from errands.runtime.webhooks import DeliveryError, JWTSigner, PushNotification, WebhookClient
from errands.tracing import TraceContext
from errands.wire import v0_3
from errands.wire.v0_3_card import VERSION as V0_3

logger = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(core.StreamResponse).decode
_decode_options = msgspec.json.Decoder(RequestOptions).decode

#: The most characters of an id, a URL and a secret of a config.
MAX_ID, MAX_URL, MAX_SECRET = 200, 2000, 4000
#: Seconds for which a sender waits for more events after it was woken: those of a turn often come together.
GATHER = 0.01
#: Seconds before a failed delivery is tried again: after the first failure, and at most. Each pause is up to twice as
#: long as the one before, less a random part, so that webhooks are not all tried again at once.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 900.0
#: Failures in a row after which a host gets no requests, and for how many seconds: at first, and at most.
BREAK_AFTER, FIRST_BREAK, LONGEST_BREAK = 5, 5.0, 300.0
#: Seconds after which an answer is late. Its host is then treated like one that failed until it answers sooner.
LATE = 1.0
#: The number of tasks whose traces are remembered.
MAX_TRACED = 10_000
#: The number of hosts that are remembered because they failed or were late, or because they answered in time.
MAX_CIRCUITS = 10_000

_CONTROL = re.compile(r"[^\x21-\x7e]|\\")
#: Without spaces at the ends, which a header cannot have.
_HEADER = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def push_guard(settings: Settings) -> Outbound:
    """Return the guard for webhooks. It has a setting of its own, because clients choose these addresses."""
    # A lookup continues after its request was given up.
    resolve = resolver(2 * max(settings.push_concurrency, 1))
    return Outbound.from_setting(settings.push_allow, f"{ENV_PREFIX}PUSH_ALLOW", resolve=resolve)


# Configs


def read_config(
    config: requests.TaskPushNotificationConfig, task_id: str, protocol: str, guard: Outbound, field: str = ""
) -> PushConfig:
    """Return a client's config as it is stored; without an id it gets the task's, as in the official SDK.

    Raises `InvalidParamsError` for an address that may not be called, and for values that a header cannot have. `field`
    is the place of the config in the request.
    """

    def wrong(name: str, message: str) -> InvalidParamsError:
        return InvalidParamsError(message, field=f"{field}{name}")

    config_id = config.id or task_id
    if len(config_id) > MAX_ID or not config_id.isprintable():
        raise wrong("id", f"the id of a push notification config has at most {MAX_ID} printable characters")
    if len(config.url) > MAX_URL or _CONTROL.search(config.url):
        raise wrong("url", f"a webhook's url has at most {MAX_URL} ASCII characters, without spaces and backslashes")
    try:
        # The parser that the request is made with, because two parsers may disagree about the host.
        url = httpx.URL(config.url)
        host = url.host  # raises for an invalid name that begins with xn--
        port = url.port if url.port is not None else 443 if url.scheme == "https" else 80
        if not 0 < port <= 65_535:
            raise ValueError("a port is 1 to 65535")
    except (httpx.InvalidURL, ValueError) as error:
        raise wrong("url", f"the webhook's url is not valid: {error}") from None
    if url.scheme not in ("http", "https") or not host:
        raise wrong("url", "a webhook's url begins with https:// or http:// and a host")
    if url.userinfo:
        raise wrong("url", "a webhook's url has no user name and password; put credentials into `authentication`")
    try:
        guard.check_host(host)
    except OutboundError as error:
        raise wrong("url", f"this webhook may not be called: {error}") from None
    info = config.authentication
    scheme, credentials = ("", "") if info is None else (info.scheme, info.credentials or "")
    if info is not None and not (_SCHEME.fullmatch(scheme) and len(scheme) <= 100):
        raise wrong("authentication.scheme", "authentication needs the name of a scheme, such as Bearer")
    for name, value in (("token", config.token or ""), ("authentication.credentials", credentials)):
        if len(value) > MAX_SECRET or not _HEADER.fullmatch(value):
            limits = f"at most {MAX_SECRET} printable ASCII characters, without spaces around them"
            raise wrong(name, f"{name} is sent in a header: {limits}")
    return PushConfig(
        id=config_id,
        url=config.url,
        host=f"{url.raw_host.decode().lower()}:{port}",
        token=config.token or "",
        scheme=scheme,
        credentials=credentials,
        protocol=protocol,
    )


def shown_config(config: PushConfig, task_id: str) -> requests.TaskPushNotificationConfig:
    """Return a config as its owner sees it."""
    return requests.TaskPushNotificationConfig(
        url=config.url,
        id=config.id,
        task_id=task_id,
        token=config.token or None,
        authentication=requests.AuthenticationInfo(scheme=config.scheme, credentials=config.credentials or None)
        if config.scheme
        else None,
    )


class _Circuit:
    """The failures of one host in a row, and the time until which it gets no requests."""

    def __init__(self) -> None:
        self.failures = 0
        self.open_until = 0.0


class PushSender:
    """Delivers the notifications of one agent's tasks while its context is open."""

    def __init__(
        self,
        engine: Engine,
        agent: str,
        settings: Settings,
        guard: Outbound,
        jwt_signer: JWTSigner | None = None,
        figures: Figures | None = None,
    ) -> None:
        self._figures = figures
        self._engine = engine
        self._agent = agent
        self._settings = settings
        self._client = WebhookClient(guard, settings.push_timeout, settings.push_secret, jwt_signer)
        #: Milliseconds of a lease. A request only begins while the lease lasts longer than the request may take.
        self._lease = int(3000 * settings.push_timeout)
        self._give_up_after = int(settings.push_give_up_after * 1000)
        self._wake = asyncio.Event()
        self._busy: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()
        self._circuits: OrderedDict[str, _Circuit] = OrderedDict()
        #: Hosts that answered in time the last time, and how many requests each may have at once.
        self._proven: OrderedDict[str, int] = OrderedDict()
        self._traces = EventTraces(engine)
        self._loop_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PushSender:
        self._engine.on_delivery(self._wake.set)
        self._loop_task = asyncio.create_task(self._run(), name="errands-push-sender")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._loop_task is not None
        self._loop_task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=min(self._settings.drain_timeout, self._settings.push_timeout))
        for delivery in self._running:
            delivery.cancel()
        await asyncio.gather(self._loop_task, *self._running, return_exceptions=True)
        self._client.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                # As many entries as there is room for.
                if (limit := self._settings.push_concurrency - len(self._running)) > 0:
                    until = self._engine.clock() + self._lease
                    for entry in await self._engine.claim_deliveries(self._agent, limit, self._room(), until):
                        self._busy[entry.config.host] += 1
                        delivery = asyncio.create_task(self._deliver(entry), name="errands-push-delivery")
                        self._running.add(delivery)
                        delivery.add_done_callback(partial(self._delivered, entry.config.host))
            except ErrandsError as error:
                logger.warning("due push notifications could not be claimed; trying again later: %s", error)
            except Exception:
                logger.exception("claiming due push notifications failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_interval):
                    await self._wake.wait()
            await asyncio.sleep(GATHER)

    def _delivered(self, host: str, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._busy[host] -= 1
        if not self._busy[host]:
            del self._busy[host]
        self._wake.set()  # there is room for another one

    # One entry

    async def _deliver(self, entry: OutboxEntry) -> None:
        """Send some of the events after the entry's position, and store the new position."""
        current_task.set(entry.task_id)
        position, attempts = entry.delivered, entry.attempts
        until = entry.due_at or 0
        try:
            notifications, last = await self._read(entry, position)
            for notification in notifications:
                if until - self._engine.clock() < self._lease // 2:
                    until = self._engine.clock() + self._lease
                    if not await self._settle(entry, position, due_at=until):
                        return
                began = asyncio.get_running_loop().time()
                if tracing.tracer is None:
                    await self._client.post(entry, notification, self._engine.clock())
                else:
                    await self._trace(tracing.tracer, entry, notification)
                self._succeeded(entry.config.host, asyncio.get_running_loop().time() - began)
                if self._figures is not None:
                    self._figures.attempted_delivery("delivered")
                position, attempts = notification.version, 0
            position = max(position, last)
            await self._settle(entry, position)
        except DeliveryError as failure:
            self._failed(entry.config.host)
            await self._fail(entry, position, attempts, failure)
        except TaskNotFoundError:
            return  # deleted, and the entry with it
        except asyncio.CancelledError:
            # The server stops. Another process, or the next one, continues at once.
            with suppress(ErrandsError):
                await self._settle(entry, position, due_at=self._engine.clock())
            raise
        except ErrandsError as error:
            # It is tried again when its lease has expired.
            logger.warning("push notifications of task %s are postponed: %s", entry.task_id, error)
        except Exception as error:
            logger.exception("push notifications of task %s could not be prepared", entry.task_id)
            await self._fail(entry, position, attempts, DeliveryError(f"{type(error).__name__} in this server"))

    async def _trace(self, tracer: tracing.Tracer, entry: OutboxEntry, notification: PushNotification) -> None:
        """Post a notification in a span of the trace that its event belongs to."""
        host, _, port = entry.config.host.rpartition(":")
        span = tracer.span(
            "delivery",
            host.strip("[]"),
            parent=notification.trace,
            port=int(port),
            task=entry.task_id,
            version=notification.version,
            webhook=entry.config.id,
        )
        try:
            with span.active():
                await self._client.post(entry, notification, self._engine.clock())
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()

    async def _read(self, entry: OutboxEntry, after: int) -> tuple[list[PushNotification], int]:
        """Return the notifications to send after a version, and the version that they lead to.

        In 0.3 a notification is the whole task, so a single one is enough. The same holds if events are gone.
        """
        events, gap = await self._engine.read(entry.task_id, entry.scope, after)
        last = events[-1].version if events else after
        shown = [event for event in events if event.kind in STREAMED_KINDS]
        traces: dict[int, tracing.TraceContext] = {}
        if tracing.tracer is not None:
            traces = await self._traces.traces_of(entry.task_id, entry.scope, events)
        if gap or (shown and entry.config.protocol == V0_3):
            stored = await self._engine.load(entry.task_id, entry.scope)
            body = self._with_addresses(snapshot(stored).data, entry.scope.tenant)
            if entry.config.protocol == V0_3:
                body = v0_3.JSONRPC.write_response(OPERATIONS["GetTask"], _decode(body).task or stored.task)
            return [PushNotification(stored.version, body, traces.get(last))], stored.version
        tenant = entry.scope.tenant
        notifications = [
            PushNotification(event.version, self._with_addresses(event.data, tenant), traces.get(event.version))
            for event in shown
        ]
        return notifications, last

    def _with_addresses(self, event: bytes, tenant: str) -> bytes:
        """Return an event with addresses of large files that a receiver can use."""
        if self._settings.blobs is None:
            return event
        return with_addresses(event, blob_prefix(self._settings.public_url or "", tenant))

    async def _settle(self, entry: OutboxEntry, position: int, due_at: int | None = None) -> bool:
        delivery = Delivery(
            task_id=entry.task_id, config_id=entry.config.id, claim=entry.claim, delivered=position, due_at=due_at
        )
        return (await self._engine.settle_deliveries([delivery]))[0]

    async def _fail(self, entry: OutboxEntry, position: int, attempts: int, failure: DeliveryError) -> None:
        config, now = entry.config, self._engine.clock()
        failed_at = entry.failed_at if attempts and entry.failed_at is not None else now
        dead = failure.is_final or now - failed_at >= self._give_up_after
        pause = min(FIRST_PAUSE * 2.0 ** min(attempts, 30), LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311
        if self._figures is not None:
            self._figures.attempted_delivery("dead" if dead else "failed")
        # Only a webhook that is given up is logged as a warning: clients could fill the log with failed tries.
        log = logger.error if dead else logger.debug
        log(
            "the webhook %s of task %s at %s %s: %s",
            config.id,
            entry.task_id,
            config.host,
            "is given up; `errands push` lists such deliveries" if dead else "failed and is tried again",
            failure,
        )
        delivery = Delivery(
            task_id=entry.task_id,
            config_id=config.id,
            claim=entry.claim,
            delivered=position,
            due_at=now + int(1000 * max(pause, min(failure.retry_after, LONGEST_PAUSE))),
            attempts=attempts + 1,
            failed_at=failed_at,
            error=str(failure),
            dead=dead,
        )
        with suppress(ErrandsError):  # then its lease expires
            await self._engine.settle_deliveries([delivery])

    # The circuit breaker

    def _succeeded(self, host: str, seconds: float) -> None:
        """Allow a host one more request at a time, or only a single one if its answer took too long."""
        if seconds > LATE:
            self._proven.pop(host, None)
            circuit = self._circuits.setdefault(host, _Circuit())
            circuit.failures, circuit.open_until = 0, 0.0
            self._circuits.move_to_end(host)
        else:
            self._circuits.pop(host, None)
            self._proven[host] = min(self._proven.get(host, 1) + 1, self._settings.push_concurrency_per_host)
            self._proven.move_to_end(host)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        for hosts in (self._proven, self._circuits):
            if len(hosts) > MAX_CIRCUITS:
                hosts.popitem(last=False)

    def _failed(self, host: str) -> None:
        self._proven.pop(host, None)
        circuit = self._circuits.setdefault(host, _Circuit())
        self._circuits.move_to_end(host)
        circuit.failures += 1
        if (breaks := circuit.failures - BREAK_AFTER) >= 0:
            pause = min(FIRST_BREAK * 2.0 ** min(breaks, 30), LONGEST_BREAK)
            circuit.open_until = asyncio.get_running_loop().time() + pause
        self._forget_oldest()

    def _room(self) -> Callable[[str], int]:
        """Return a function that says how many more requests a host may have now.

        A host that has not answered yet, or whose last answer was late, has one request at a time, and one more for
        each answer in time. All hosts with a single request share half of the requests, and those that failed or were
        late share half of that half. So slow hosts hold up neither working hosts nor new ones.
        """
        now = asyncio.get_running_loop().time()
        unproven = [host for host in self._busy if host not in self._proven]
        left = (self._settings.push_concurrency + 1) // 2 - sum(self._busy[host] for host in unproven)
        left_for_failed = (self._settings.push_concurrency + 3) // 4 - sum(
            self._busy[host] for host in unproven if host in self._circuits
        )

        def room(host: str) -> int:
            nonlocal left, left_for_failed
            if (allowed := self._proven.get(host)) is not None:
                return allowed - self._busy[host]
            if left <= 0 or self._busy[host]:
                return 0
            if (circuit := self._circuits.get(host)) is not None:
                if left_for_failed <= 0 or circuit.open_until > now:
                    return 0
                left_for_failed -= 1
            left -= 1
            return 1

        return room


class EventTraces:
    """Finds the trace of each event: that of the message that its turn handles. It remembers how far it has read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By task: the version up to which its log was read, and the trace there.
        self._known: OrderedDict[str, tuple[int, TraceContext | None]] = OrderedDict()

    async def traces_of(self, task_id: str, scope: Scope, events: Sequence[Event]) -> dict[int, TraceContext]:
        """Return the traces of events that were read from the log, by version. Raise `TaskNotFoundError`."""
        if not events:
            return {}
        version, trace = self._known.get(task_id, (0, None))
        if version >= events[0].version:
            version, trace = 0, None  # another webhook of the task is further
        while version < events[0].version - 1:
            before = (await self._engine.read(task_id, scope, version)).events
            before = [event for event in before if event.version < events[0].version]
            if not before:
                break
            version, trace = before[-1].version, next(filter(None, map(_trace_in, reversed(before))), trace)
        # The message that creates a task comes right after the event that shows the task.
        first = trace or next(filter(None, map(_trace_in, events)), None)
        found: dict[int, TraceContext] = {}
        for event in events:
            trace = _trace_in(event) or trace
            if (belongs := trace or first) is not None:
                found[event.version] = belongs
        self._known[task_id] = events[-1].version, trace
        self._known.move_to_end(task_id)
        if len(self._known) > MAX_TRACED:
            self._known.popitem(last=False)
        return found


def _trace_in(event: Event) -> TraceContext | None:
    if event.kind != "request":
        return None
    try:
        return _decode_options(event.data).trace
    except UNREADABLE:
        return None
