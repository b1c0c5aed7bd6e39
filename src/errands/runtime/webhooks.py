"""One notification to one webhook: the request with its signature, and a small HTTP/1.1 client that posts it.

Notifications are delivered on the event loop that answers clients, and httpx would take most of the time of a
delivery. Here httptools parses responses, as it parses requests in `errands serve`. Connections go through the outbound
guard, redirects are not followed, and only the status of a response counts.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import httpx
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from errands import tracing
from errands.errors import ConfigurationError
from errands.model.log import OutboxEntry
from errands.outbound import Outbound, OutboundError, retry_after
from errands.version import __version__
from errands.wire.v0_3_card import VERSION as V0_3

#: Bytes of a response that are read, because only its status counts.
MAX_RESPONSE = 64 * 1024
#: Seconds for which a JWT about a notification is valid.
JWT_LIFETIME = 300
#: The number of connections that are kept open for the next request, the latest ones, and for how many seconds.
MAX_IDLE, KEEP_IDLE = 100, 5.0

#: A header whose value has no spaces at its ends, because the receiver would not see them.
_LINE = re.compile(r"[A-Za-z0-9-]+: [\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class PushNotification(NamedTuple):
    """The content of one request: its body, and the version of the log that the receiver knows with it."""

    version: int
    body: bytes
    #: Its place in a trace.
    trace: tracing.TraceContext | None = None


class DeliveryError(Exception):
    """A delivery failed. The message is for operators, and contains neither the URL nor a secret."""

    def __init__(self, message: str, *, retry_after: float = 0.0, is_final: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        #: Whether another try is useless.
        self.is_final = is_final


def delivery_id(task_id: str, config_id: str, version: int) -> str:
    """Return the id of a notification. It is the same whenever it is sent again, by any process."""
    name = f"{len(task_id)}:{task_id}{config_id}:{version}"
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def signing_key(secret: str) -> bytes:
    """Return the key of the setting `push_secret`: base64 after `whsec_`, else the text itself."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise ConfigurationError("invalid push_secret: expected base64 after whsec_, or a text without it") from None


class JWTSigner(NamedTuple):
    """Makes JWTs about notifications, which receivers verify with the key set of the server."""

    issuer: str
    #: Returns a JWT with some claims.
    token: Callable[[Mapping[str, Any]], str]

    def sign(self, entry: OutboxEntry, name: str, body: bytes, now: int) -> str:
        """Return the JWT about a notification of this name and with this body."""
        claims = {
            "iss": self.issuer,
            "aud": entry.config.url,
            "sub": entry.task_id,
            "jti": name,
            "iat": now // 1000,
            "exp": now // 1000 + JWT_LIFETIME,
            # The claim that the receivers in the samples of the A2A project expect.
            "request_body_sha256": hashlib.sha256(body).hexdigest(),
        }
        return self.token(claims)


class _Target(NamedTuple):
    """Where a webhook is."""

    has_tls: bool
    host: str
    port: int
    #: The first two lines of a request.
    lines: str


@lru_cache(maxsize=1024)
def _target(url: str) -> _Target:
    # The parser that the URL was checked with, because two parsers may disagree about the host.
    parsed = httpx.URL(url)
    has_tls = parsed.scheme == "https"
    port = parsed.port if parsed.port is not None else 443 if has_tls else 80
    lines = f"POST {parsed.raw_path.decode('ascii')} HTTP/1.1\r\nHost: {parsed.netloc.decode('ascii')}"
    return _Target(has_tls, parsed.raw_host.decode("ascii"), port, lines)


class WebhookClient:
    """Posts notifications. Headers and signature are those of the Standard Webhooks specification."""

    def __init__(
        self, guard: Outbound, timeout: float, secret: str | None, jwt_signer: JWTSigner | None = None
    ) -> None:
        self._guard = guard
        self._timeout = timeout
        self._key = None if secret is None else signing_key(secret)
        self._jwt_signer = jwt_signer
        #: Connections that wait for another request, with the timers that close them.
        self._idle: dict[_WebhookConnection, asyncio.TimerHandle] = {}
        #: The same by host, the one that was used last at the end.
        self._idle_at: dict[tuple[bool, str, int], list[_WebhookConnection]] = {}

    def close(self) -> None:
        for connection in list(self._idle):
            self._drop(connection)

    def _head(self, target: _Target, entry: OutboxEntry, notification: PushNotification, now: int) -> bytes:
        config = entry.config
        name, time = delivery_id(entry.task_id, config.id, notification.version), str(now // 1000)
        lines = [
            f"Content-Length: {len(notification.body)}",
            f"Content-Type: {'application/json' if config.protocol == V0_3 else 'application/a2a+json'}",
            "Accept: */*",
            "Accept-Encoding: identity",
            f"User-Agent: errands/{__version__}",
            f"A2A-Version: {config.protocol}",
            f"Webhook-Id: {name}",
            f"Webhook-Timestamp: {time}",
        ]
        credentials = config.credentials
        if self._jwt_signer is not None:
            token = self._jwt_signer.sign(entry, name, notification.body, now)
            lines.append(f"Webhook-JWT: {token}")
            if config.scheme.lower() == "bearer" and not credentials:
                credentials = token
        if tracing.tracer is not None:
            lines += [f"{name}: {value}" for name, value in tracing.headers(tracing.tracer.inject()).items()]
        if config.scheme:
            lines.append(f"Authorization: {config.scheme} {credentials}".strip())
        if config.token:
            lines.append(f"X-A2A-Notification-Token: {config.token}")
        if self._key is not None:
            signed = f"{name}.{time}.".encode() + notification.body
            digest = hmac.digest(self._key, signed, "sha256")
            lines.append(f"Webhook-Signature: v1,{base64.b64encode(digest).decode()}")
        if not all(map(_LINE.fullmatch, lines)):
            raise DeliveryError("a header of the request is not valid")
        return "\r\n".join([target.lines, *lines, "\r\n"]).encode("ascii")

    async def post(self, entry: OutboxEntry, notification: PushNotification, now: int) -> None:
        """Raise `DeliveryError` unless the webhook answers with 2xx in time."""
        try:
            target = _target(entry.config.url)
            head = self._head(target, entry, notification, now)
            async with asyncio.timeout(self._timeout):
                status, wait = await self._exchange(target, head, notification.body)
        except TimeoutError:
            raise DeliveryError(f"no answer within {self._timeout:g} s") from None
        except (OutboundError, httpx.InvalidURL) as error:
            raise DeliveryError(str(error)) from None
        except (OSError, HttpParserError, UnicodeError) as error:
            raise DeliveryError(f"{type(error).__name__}: {error}"[:300]) from None
        if not 200 <= status < 300:
            raise DeliveryError(
                f"HTTP {status}",
                retry_after=retry_after({"retry-after": wait.decode("latin-1")}) or 0.0,
                is_final=status == httpx.codes.GONE,
            )

    async def _exchange(self, target: _Target, head: bytes, body: bytes) -> _Answer:
        """Send a request and return the answer."""
        origin = target[:3]
        if (connection := self._idle_connection(origin)) is not None:
            # The host may just have closed it. The request is then sent over a new one, with the same delivery id.
            with suppress(ConnectionError):
                return await self._use(connection, origin, head, body)
        connection = await self._guard.connect(_WebhookConnection, target.host, target.port, has_tls=target.has_tls)
        return await self._use(connection, origin, head, body)

    async def _use(
        self, connection: _WebhookConnection, origin: tuple[bool, str, int], head: bytes, body: bytes
    ) -> _Answer:
        try:
            answer = await connection.post(head, body)
        except BaseException:
            connection.transport.abort()
            raise
        if connection.can_be_used_again:
            if len(self._idle) >= MAX_IDLE:
                self._drop(next(iter(self._idle)))
            connection.origin = origin
            self._idle[connection] = asyncio.get_running_loop().call_later(KEEP_IDLE, self._drop, connection)
            self._idle_at.setdefault(origin, []).append(connection)
        else:
            connection.transport.abort()
        return answer

    def _idle_connection(self, origin: tuple[bool, str, int]) -> _WebhookConnection | None:
        """Return the connection to a host that was used last, which is then no longer idle."""
        while idle := self._idle_at.get(origin):
            connection = idle[-1]
            self._take_away(connection)
            if connection.is_silent():
                return connection
            connection.transport.abort()
        return None

    def _drop(self, connection: _WebhookConnection) -> None:
        self._take_away(connection)
        # Closing it would wait until the host has read what was sent.
        connection.transport.abort()

    def _take_away(self, connection: _WebhookConnection) -> None:
        """Remove a connection from those that are idle."""
        self._idle.pop(connection).cancel()
        connections = self._idle_at[connection.origin]
        connections.remove(connection)
        if not connections:
            del self._idle_at[connection.origin]


class _Answer(NamedTuple):
    status: int
    #: The header `Retry-After`.
    retry_after: bytes


class _WebhookConnection(asyncio.Protocol):
    """A connection to a webhook: one request at a time.

    Bytes that a host sends without a request end the connection: they must not become the next answer.
    """

    transport: asyncio.Transport
    origin: tuple[bool, str, int]

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        # Hosts may end lines with LF, continue a header on the next line, or send both a length and chunks.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_chunked_length=True
        )
        #: The answer to the request under way; None between two requests.
        self._answer: asyncio.Future[_Answer] | None = None
        self._received = 0
        self._has_head = False
        self._retry_after = b""
        self.can_be_used_again = False

    def post(self, head: bytes, body: bytes) -> asyncio.Future[_Answer]:
        if self.transport.is_closing():
            raise ConnectionResetError("the host did not wait for the request")
        self._answer = asyncio.get_running_loop().create_future()
        self._received, self._has_head, self.can_be_used_again = 0, False, False
        self.transport.writelines([head, body])
        return self._answer

    def is_silent(self) -> bool:
        """Return whether the host has neither sent anything nor closed. The event loop may not have noticed yet."""
        if self.transport.is_closing():
            return False
        if not hasattr(select, "poll"):  # on Windows
            return not select.select([self._fd], [], [], 0)[0]
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._fd: int = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.transport.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(error)
        except HttpParserUpgrade:
            self._fail(HttpParserError("the host wants to speak another protocol"))
        if self._received > MAX_RESPONSE:
            if self._has_head:
                self._end(reusable=False)
            else:
                self._fail(HttpParserError(f"the head of the answer has more than {MAX_RESPONSE} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head:
            self._end(reusable=False)  # the body ends with the connection
        elif self._received:
            # Not a ConnectionError: the host has seen the request, so it is not sent again at once.
            self._fail(HttpParserError("the host closed the connection in the head of its answer"))
        else:
            self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the host closed the connection"))
        del self._parser  # it refers to this object

    # Called by the parser

    def on_message_begin(self) -> None:
        self._retry_after = b""
        if self._answer is None:
            self.can_be_used_again = False

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come after the body and are ignored.
        if not self._has_head and name.lower() == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        # An interim response comes before the one that counts.
        self._has_head = self._parser.get_status_code() >= 200

    def on_message_complete(self) -> None:
        if self._has_head:
            self._end(reusable=self._parser.should_keep_alive())

    def _end(self, *, reusable: bool) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        status = self._parser.get_status_code()
        # A host may answer before it has read the request, and never read the rest. TLS hides how much is unread.
        self.can_be_used_again = reusable and status < 300 and not self.transport.get_write_buffer_size()
        if not answer.done():
            answer.set_result(_Answer(status, self._retry_after))

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        self.can_be_used_again = False
        self.transport.abort()
        if answer is not None and not answer.done():
            answer.set_exception(error)
