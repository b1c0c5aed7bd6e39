"""The pages of the blob store: downloads of large files, uploads, and their addresses in requests and answers.

A file of a task is at `/blobs/TASK/NAME`, an upload that no message has used yet at `/blobs/NAME`, both below `/TENANT`
for a tenant. They are for the callers who may see the task, or who made the upload; for all others they do not exist.

Files of agents and clients never run as pages of this server: headers make browsers save them, not guess their types,
and give them no rights.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from errands.engines.base import Engine
from errands.errors import (
    A2AError,
    ErrandsError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    PermissionDeniedError,
    TaskNotFoundError,
)
from errands.model import core
from errands.model.base import encode
from errands.model.log import Scope
from errands.model.requests import GetTaskRequest, ListTasksResponse, SendMessageRequest, SendMessageResponse
from errands.operations import OPERATIONS, Operation
from errands.runtime.blobs import (
    NAME,
    NEVER,
    PIECE,
    SCHEME,
    UPLOADS_KEPT,
    Blob,
    BlobNotFoundError,
    BlobReference,
    Blobs,
    DamagedBlobError,
    blob_prefix,
    with_addresses,
    with_parts,
)
from errands.runtime.call import CallContext
from errands.runtime.quotas import OpenStreams
from errands.runtime.settings import Settings
from errands.runtime.streams import EventStream, StreamItem
from errands.server.access_audit import AccessAudit
from errands.server.asgi import ClientDisconnectedError, Header, HttpExchange, IncomingRequest
from errands.server.cards import base_url_of, is_known
from errands.server.request_guard import client_network, needs_preflight

logger = logging.getLogger(__name__)

#: `Dispatcher.identify`.
Identify = Callable[[Operation, Any, IncomingRequest], Awaitable[CallContext]]

#: The requests that are served here.
REQUESTS = ("POST /blobs", "GET /blobs/{name}", "GET /blobs/{task_id}/{name}")
_PATH = re.compile(rf"(?:/(?P<tenant>[^/:]+))?/blobs(?:/(?:(?P<task>[^/]+)/)?(?P<name>{NAME.pattern}))?")
#: The address of a blob, wherever the server is.
_ADDRESS = re.compile(rf"https?://[^/?#]+(?:/[^/?#]+)*/blobs/(?:(?P<task>[^/?#]+)/)?(?P<name>{NAME.pattern})")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(?:; ?charset=[\w-]{1,40})?", re.ASCII)
_RANGE = re.compile(r"bytes=(?:(?P<start>\d{1,18})-(?P<end>\d{1,18})?|-(?P<last>\d{1,18}))")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):")
#: Bytes that are written to a client at a time.
_WRITTEN = 64 * 1024
#: The bytes that the unused uploads of an owner may take together, as a multiple of the largest upload.
_UPLOADS_WAITING = 10
#: How many unused uploads an owner may have.
_MOST_UPLOADS = 1000
_MAX_FILENAME = 255


class BlobAddresses:
    """Writes references to blobs as addresses of this server, and reads them."""

    def __init__(self, blobs: Blobs, settings: Settings) -> None:
        self._blobs = blobs
        self._settings = settings

    def of(self, exchange: IncomingRequest, tenant: str) -> str:
        """Return the beginning of the addresses of a tenant's blobs, for this client."""
        return blob_prefix(base_url_of(exchange, self._settings), tenant)

    async def localized(
        self, request: SendMessageRequest, scope: Scope, exchange: IncomingRequest
    ) -> SendMessageRequest:
        """Return a request with references in place of addresses of blobs. Other addresses stay, and are never fetched.

        A server may have several addresses, so any address that ends like that of one of the caller's blobs counts.
        """
        base = base_url_of(exchange, self._settings).rstrip("/")
        found: dict[int, core.Part] = {}
        for part in request.message.parts:
            place = None if part.url is None else _ADDRESS.fullmatch(part.url)
            if part.url is None or place is None:
                continue
            reference = BlobReference(unquote(place["task"] or ""), place["name"])
            with suppress(BlobNotFoundError):
                if not part.url.startswith(f"{base}/"):
                    await self._blobs.find(reference, scope)
                found[id(part)] = msgspec.structs.replace(part, url=reference.url)
        if not found:
            return request
        message = with_parts(request.message, lambda part: found.get(id(part), part))
        return msgspec.structs.replace(request, message=message)

    def addressed(self, result: Any, scope: Scope, exchange: IncomingRequest) -> Any:
        """Return the result of an operation with addresses that this client can use."""
        prefix = self.of(exchange, scope.tenant)

        def address(part: core.Part) -> core.Part:
            if part.url is None or not part.url.startswith(SCHEME):
                return part
            return msgspec.structs.replace(part, url=prefix + part.url.removeprefix(SCHEME))

        if isinstance(result, EventStream):
            return EventStream(_addressed(result, prefix), result.close)
        if isinstance(result, core.Task):
            return with_parts(result, address)
        if isinstance(result, SendMessageResponse):
            return SendMessageResponse(
                task=result.task and with_parts(result.task, address),
                message=result.message and with_parts(result.message, address),
            )
        if isinstance(result, ListTasksResponse):
            return msgspec.structs.replace(result, tasks=[with_parts(task, address) for task in result.tasks])
        return result


async def _addressed(stream: EventStream, prefix: str) -> AsyncIterator[list[StreamItem]]:
    try:
        async for items in stream:
            yield [item._replace(data=with_addresses(item.data, prefix)) for item in items]
    finally:
        stream.close()


class BlobPlace(NamedTuple):
    """The meaning of a path: the blob of a reference, or without one the place for uploads."""

    tenant: str
    reference: BlobReference | None

    @property
    def methods(self) -> tuple[str, ...]:
        return ("POST",) if self.reference is None else ("GET", "HEAD")


class BlobPages:
    """Serves the blobs of an agent's tasks, and takes uploads."""

    def __init__(
        self, blobs: Blobs, engine: Engine, identify: Identify, settings: Settings, audit: AccessAudit | None = None
    ) -> None:
        self._blobs = blobs
        self._engine = engine
        self._identify = identify
        self._settings = settings
        self._audit = audit
        self._addresses = BlobAddresses(blobs, settings)
        # Clients may take as long as they like, so one client gets at most an eighth of the memory for large requests.
        self._transfers = OpenStreams(max(settings.max_buffered_bytes // (8 * 2 * PIECE), 1), "max_buffered_bytes")
        #: The most bytes that uploads in progress may still have, by scope.
        self._arriving: Counter[Scope] = Counter()

    def match(self, path: str) -> BlobPlace | None:
        """Return the place of a path, or None if it does not belong to the blobs."""
        if "/blobs" not in path or (found := _PATH.fullmatch(path)) is None:
            return None
        name = found["name"]
        return BlobPlace(
            unquote(found["tenant"] or ""), None if name is None else BlobReference(unquote(found["task"] or ""), name)
        )

    async def serve(self, exchange: HttpExchange, place: BlobPlace) -> None:
        """Serve a request for a place. Raises `A2AError`."""
        if place.reference is None and needs_preflight(exchange):
            raise PermissionDeniedError("An upload from a web page needs the header A2A-Version")
        # Rules treat an upload like a message, and a download like reading its task.
        operation = "SendMessage" if place.reference is None else "GetTask"
        task_id = "" if place.reference is None else place.reference.task_id
        request = GetTaskRequest(id=task_id, tenant=place.tenant or None)
        try:
            call = await self._identify(OPERATIONS[operation], request, exchange)
            budget = exchange.large_work.budget
            with ExitStack() as stack:
                stack.callback(self._transfers.open(exchange.caller_key or client_network(exchange, self._settings)))
                # One piece that is read or written, and one in transit.
                budget.reserve(2 * PIECE)
                stack.callback(budget.give_back, 2 * PIECE)
                if place.reference is None:
                    await self._upload(exchange, call)
                else:
                    await self._download(exchange, call, place.reference)
        except A2AError as error:
            if self._audit is not None:
                await self._audit.deny("upload" if place.reference is None else "download", request, exchange, error)
            raise

    # Downloads

    async def _download(self, exchange: HttpExchange, call: CallContext, reference: BlobReference) -> None:
        try:
            if reference.task_id:
                await self._engine.read(reference.task_id, call.scope, NEVER, 1)
            blob = await self._blobs.find(reference, call.scope)
        except (TaskNotFoundError, BlobNotFoundError):
            raise TaskNotFoundError("File not found") from None
        if self._audit is not None:
            await self._audit.admit_file("download", reference.task_id, call, exchange, file=reference.name)
        headers = _headers(blob)
        if is_known(exchange, b'"%b"' % blob.sha256.encode()):
            await exchange.respond(304, b"", headers=headers)
            return
        wanted = _range_of(exchange, blob)
        if wanted is None:
            headers += ((b"content-range", b"bytes */%d" % blob.size),)
            await exchange.respond(416, b"", headers=headers)
            return
        start, end = wanted
        status = 200 if end - start == blob.size else 206
        if status == 206:
            headers += ((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, blob.size)),)
        pieces = self._blobs.read(blob, start, 0 if exchange.method == "HEAD" else end)
        try:
            # The first piece is checked before the head is sent.
            piece = await anext(pieces, b"")
            # The author of the blob may have written its type in any form.
            media_type = _MEDIA_TYPE.fullmatch(blob.media_type or "")
            kind = media_type[0] if media_type else "application/octet-stream"
            await exchange.begin(status, end - start, kind.encode(), headers)
        except DamagedBlobError as error:
            raise _damaged(error) from None
        watcher = asyncio.ensure_future(exchange.disconnected())
        try:
            while piece:
                # No more at a time than a client that does not read may keep in memory.
                for written in range(0, len(piece), _WRITTEN):
                    if watcher.done():
                        raise ClientDisconnectedError
                    await exchange.write(piece[written : written + _WRITTEN])
                piece = await anext(pieces, b"")
        except ErrandsError as error:
            # The client knows the length, and notices that the rest is missing.
            _damaged(error)
            raise ClientDisconnectedError from None
        finally:
            watcher.cancel()
        await exchange.write(b"", more=False)

    # Uploads

    async def _upload(self, exchange: HttpExchange, call: CallContext) -> None:
        most = self._settings.max_upload_bytes
        length = exchange.content_length
        if length is not None and length > most:
            raise PayloadTooLargeError(f"The file may have {most} bytes (max_upload_bytes), not {length}")
        digest = exchange.header(b"content-digest")
        wanted = _DIGEST.search(digest)
        if digest and wanted is None:
            raise InvalidRequestError("Content-Digest must have the form sha-256=:BASE64:")
        filename = exchange.query.get("filename", "")
        if len(filename.encode("utf-8", "replace")) > _MAX_FILENAME:
            raise InvalidParamsError(f"filename has more than {_MAX_FILENAME} bytes", field="filename")
        media_type = exchange.header(b"content-type")
        size = most if length is None else length
        # A caller who chooses its tenant freely has the same room for all of them.
        counted = call.scope._replace(tenant="") if call.names_tenant else call.scope
        self._arriving[counted] += size
        try:
            await self._check_room(counted, names_tenant=call.names_tenant)
            blob = await self._blobs.put(
                _body(exchange),
                call.scope,
                media_type=media_type if _MEDIA_TYPE.fullmatch(media_type) else None,
                filename=filename or None,
                most=most,
                names_tenant=call.names_tenant,
            )
        finally:
            self._arriving[counted] -= size
            self._arriving += Counter()  # forgets those with nothing left
        if wanted is not None and wanted[1] != _base64(blob.sha256):
            raise InvalidRequestError("The body does not match Content-Digest; send it again")
        if self._audit is not None:
            await self._audit.admit_file("upload", "", call, exchange, file=blob.name, sha256=blob.sha256)
        url = self._addresses.of(exchange, call.scope.tenant) + blob.reference.url.removeprefix(SCHEME)
        shown = {"url": url, "size": blob.size, "sha256": blob.sha256}
        if blob.media_type:
            shown["mediaType"] = blob.media_type
        if blob.filename:
            shown["filename"] = blob.filename
        await exchange.respond(201, encode(shown), headers=((b"location", url.encode()),))

    async def _check_room(self, scope: Scope, *, names_tenant: bool) -> None:
        """Raise `OverloadedError` if the uploads of this scope, with those in progress, take too many bytes."""
        allowed = _UPLOADS_WAITING * self._settings.max_upload_bytes
        count, size = await self._blobs.waiting(scope, names_tenant=names_tenant)
        if count >= _MOST_UPLOADS or size + self._arriving[scope] > allowed:
            raise OverloadedError(
                f"{count} uploads with {size} bytes wait for a message that uses them, and {_MOST_UPLOADS} with "
                f"{allowed} bytes may; send messages with them, or wait: they are deleted after "
                f"{UPLOADS_KEPT / 3600:.0f} hours",
                retry_after=60,
            )


async def _body(exchange: HttpExchange) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises `ClientDisconnectedError` if the rest does not."""
    more = True
    while more:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _damaged(error: ErrandsError) -> InternalError:
    reference = secrets.token_hex(4)
    logger.error("a download failed [%s]: %s", reference, error, extra={"correlation": reference})
    return InternalError(f"The file cannot be read (reference {reference})")


def _headers(blob: Blob) -> tuple[Header, ...]:
    disposition = b"attachment"
    if blob.filename:
        plain = re.sub(r'[^\w .()+-]|"', "_", blob.filename, flags=re.ASCII)
        full = quote(blob.filename, safe="", errors="replace")
        disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{full}".encode()
    return (
        (b"etag", b'"%b"' % blob.sha256.encode()),
        (b"repr-digest", f"sha-256=:{_base64(blob.sha256)}:".encode()),
        (b"accept-ranges", b"bytes"),
        (b"cache-control", b"private, no-cache"),
        (b"content-disposition", disposition),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; sandbox"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"referrer-policy", b"no-referrer"),
    )


def _base64(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


def _range_of(exchange: HttpExchange, blob: Blob) -> tuple[int, int] | None:
    """Return the range that the client asks for, by default everything; None if the blob does not have it."""
    condition = exchange.header(b"if-range")
    found = _RANGE.fullmatch(exchange.header(b"range"))
    if found is None or (condition and condition != f'"{blob.sha256}"'):
        return 0, blob.size
    if found["last"] is not None:
        start, end = max(blob.size - int(found["last"]), 0), blob.size
    else:
        start, end = int(found["start"]), min(int(found["end"] or blob.size) + 1, blob.size)
    return (start, end) if start < end else None
