"""Files that an agent keeps beside its tasks: uploading large ones, and downloading those that parts refer to.

The address of a file comes from an agent, so it is not trusted. A file is fetched from the agent itself, with the
caller's credentials, or from an origin that the caller has named, without them and only at public addresses. Redirects
are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from errands.client.agent_session import AgentSession, RetryPolicy, TransientError, final_error
from errands.client.errors import AgentCapabilityError, FileRefusedError, ProtocolError
from errands.client.http_requests import NO_SECRETS, RequestSecrets, add_secrets, origin_of
from errands.client.http_transport import PASSING_STATUSES, translated_failures
from errands.errors import A2AError, ConfigurationError, PayloadTooLargeError, UnavailableError
from errands.model.card import BLOBS_EXTENSION, AgentCard
from errands.model.core import Part
from errands.model.requests import SendMessageRequest
from errands.outbound import Outbound, OutboundError, retry_after
from errands.wire.status import from_http

#: Bytes that are read from a file at a time.
_PIECE = 256 * 1024
#: Bytes of an error that are read.
_MAX_ERROR = 64 * 1024
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):")

T = TypeVar("T")


class UploadOffer(msgspec.Struct, frozen=True):
    """How an agent takes large files, as its card says."""

    url: str
    above: int
    max_bytes: int = msgspec.field(name="maxBytes")

    @classmethod
    def of(cls, card: AgentCard) -> UploadOffer | None:
        """Return the usable offer of a card, if it has one."""
        for extension in card.capabilities.extensions or ():
            if extension.uri == BLOBS_EXTENSION:
                try:
                    return msgspec.convert(extension.params, cls, strict=False)
                except msgspec.ValidationError:
                    return None
        return None


class AgentFiles:
    """Uploads and downloads of one client. `own` are addresses of the agent, `allowed` other origins."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        own: Iterable[str],
        *,
        headers: Mapping[str, str],
        retry: RetryPolicy,
        timeout: float | None,
        allowed: Iterable[str] = (),
        outbound: Outbound | None = None,
    ) -> None:
        self._http = http
        self._own: set[str] = set()
        for url in own:
            with suppress(FileRefusedError):  # an address on the card may be anything
                self._own.add(origin_of(str(checked_url(url))))
        self._headers = httpx.Headers(headers)
        self._headers["A2A-Version"] = "1.0"
        self._retry = retry
        self._timeout = timeout
        self._allowed = set(allowed)
        self._outbound = outbound or Outbound()

    # Uploads

    async def replace_large(self, request: SendMessageRequest, session: AgentSession) -> SendMessageRequest:
        """Return the request with its large files uploaded, if the agent takes uploads."""
        message, offer = request.message, UploadOffer.of(session.card)
        if not has_files(request) or offer is None or not self._is_own(offer.url):
            return request
        parts = [
            await self.upload(part.raw, session, filename=part.filename, media_type=part.media_type, like=part)
            if part.raw is not None and offer.above < len(part.raw) <= offer.max_bytes
            else part
            for part in message.parts
        ]
        return msgspec.structs.replace(request, message=msgspec.structs.replace(message, parts=parts))

    async def upload(
        self,
        content: bytes | str | os.PathLike[str],
        session: AgentSession,
        *,
        filename: str | None = None,
        media_type: str | None = None,
        like: Part | None = None,
    ) -> Part:
        """Upload bytes, or the file at a path, and return the part that refers to it."""
        offer = UploadOffer.of(session.card)
        if offer is None:
            raise AgentCapabilityError(session.card.name, "uploads")
        if not self._is_own(offer.url):
            raise FileRefusedError(f"the card names {offer.url} for uploads, which is not an address of the agent")
        source = content if isinstance(content, bytes) else Path(content)
        size, digest = await asyncio.to_thread(_measure, source)
        if size > offer.max_bytes:
            raise PayloadTooLargeError(f"The agent takes files of {offer.max_bytes} bytes, not {size}")
        if isinstance(source, Path):
            filename = filename or source.name
        url = offer.url
        if session.tenant:
            url = f"{url.removesuffix('/blobs')}/{quote(session.tenant, safe='')}/blobs"
        url += f"?{urlencode({'filename': filename})}" if filename else ""
        headers = self._headers.copy()
        headers["Content-Type"] = media_type or "application/octet-stream"
        headers["Content-Length"] = str(size)
        headers["Content-Digest"] = f"sha-256=:{base64.b64encode(digest).decode()}:"

        async def attempt(secrets: RequestSecrets) -> Any:
            request = self._http.build_request(
                "POST", url, content=_pieces(source), headers=headers, timeout=self._timeout
            )
            with translated_failures():
                response = await self._http.send(add_secrets(request, secrets), follow_redirects=False)
            await self._check(response)
            return response.content

        answer = await self._retried(lambda: self._authorized(url, session, attempt))
        try:
            uploaded = msgspec.json.decode(answer, type=dict[str, Any])["url"]
        except (msgspec.DecodeError, KeyError) as error:
            raise ProtocolError(f"the answer to an upload cannot be read ({error!r})") from None
        return Part(
            url=uploaded, filename=filename, media_type=media_type, metadata=None if like is None else like.metadata
        )

    # Downloads

    async def download(self, file: Part | str, session: AgentSession, *, max_bytes: int) -> bytes:
        """Return the bytes of a file. Raises `PayloadTooLargeError` when there are more than `max_bytes`."""
        if isinstance(file, Part) and file.raw is not None:
            return file.raw
        content = bytearray()

        def write(chunk: bytes, position: int) -> None:
            del content[position:]
            content.extend(chunk)

        await self._fetch(_url_in(file), session, write, max_bytes)
        return bytes(content)

    async def download_to(
        self, file: Part | str, path: str | os.PathLike[str], session: AgentSession, *, max_bytes: int | None
    ) -> Path:
        """Write a file to a path, completely or not at all, and return the path."""
        target = Path(path)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with await asyncio.to_thread(unfinished.open, "wb") as stream:
                if isinstance(file, Part) and file.raw is not None:
                    await asyncio.to_thread(stream.write, file.raw)
                else:

                    def write(chunk: bytes, position: int) -> None:
                        stream.seek(position)
                        stream.truncate()
                        stream.write(chunk)

                    await self._fetch(_url_in(file), session, write, max_bytes, in_thread=True)
            await asyncio.to_thread(unfinished.replace, target)
        finally:
            await asyncio.to_thread(unfinished.unlink, missing_ok=True)
        return target

    async def _fetch(
        self,
        url: str,
        session: AgentSession,
        write: Callable[[bytes, int], None],
        max_bytes: int | None,
        *,
        in_thread: bool = False,
    ) -> None:
        """Pass a file on piece by piece, each with its position. A broken connection is resumed."""
        address = checked_url(url)
        is_own = self._is_own(url)
        if not is_own and origin_of(str(address)) not in self._allowed:
            raise FileRefusedError(
                f"the file is at {address.scheme}://{address.netloc.decode()}, which is not the agent's address; pass "
                "download_from=[...] to A2AClient to allow it"
            )
        headers = self._headers.copy() if is_own else httpx.Headers()
        headers["Accept-Encoding"] = "identity"
        position, digest = 0, hashlib.sha256()

        async def attempt(client: httpx.AsyncClient, secrets: RequestSecrets = NO_SECRETS) -> str:
            nonlocal position, digest
            if position:
                headers["Range"] = f"bytes={position}-"
            request = client.build_request("GET", address, headers=headers, timeout=self._timeout)
            with translated_failures():
                response = await client.send(add_secrets(request, secrets), stream=True, follow_redirects=False)
                try:
                    await self._check(response)
                    if position and response.status_code != httpx.codes.PARTIAL_CONTENT:
                        position, digest = 0, hashlib.sha256()
                    expected = int(response.headers.get("content-length", -1))
                    begun = position
                    async for chunk in response.aiter_bytes():
                        if max_bytes is not None and position + len(chunk) > max_bytes:
                            raise PayloadTooLargeError(f"The file has more than {max_bytes} bytes")
                        await asyncio.to_thread(write, chunk, position) if in_thread else write(chunk, position)
                        digest.update(chunk)
                        position += len(chunk)
                    if expected not in (-1, position - begun):
                        raise httpx.RemoteProtocolError(f"{position - begun} of {expected} bytes arrived")
                    return str(response.headers.get("repr-digest", ""))
                finally:
                    await response.aclose()

        if is_own:
            said = await self._retried(lambda: self._authorized(url, session, partial(attempt, self._http)))
        else:
            async with self._outbound.client() as guarded:
                try:
                    said = await self._retried(lambda: attempt(guarded))
                except OutboundError as error:
                    raise FileRefusedError(str(error)) from None
        if not position:
            write(b"", 0)
        if (wanted := _DIGEST.search(said)) and wanted[1] != base64.b64encode(digest.digest()).decode():
            raise ProtocolError("the file is not the one that its checksum is about")

    # What they share

    def _is_own(self, url: str) -> bool:
        return origin_of(str(checked_url(url))) in self._own

    async def _authorized(
        self, url: str, session: AgentSession, attempt: Callable[[RequestSecrets], Awaitable[T]]
    ) -> T:
        """Make an attempt with the caller's credentials, if they may go to this address."""
        origins = session.authorization.origins
        if origins is None or not origins.admits(url):
            return await attempt(NO_SECRETS)
        return await session.authorized(attempt)

    async def _retried(self, attempt: Callable[[], Any]) -> Any:
        try:
            return await self._retry.run(attempt, idempotent=True)
        except TransientError as failure:
            raise final_error(failure, None) from failure.cause

    async def _check(self, response: httpx.Response) -> None:
        """Raise the error in an answer that is not successful."""
        if response.is_success:
            return
        if response.is_redirect:
            raise FileRefusedError(f"HTTP {response.status_code}, a redirect, which is not followed")
        body = b""
        if not response.is_closed:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MAX_ERROR:
                    break
        else:
            body = response.content[:_MAX_ERROR]
        try:
            error: A2AError = from_http(response.status_code, msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            error = from_http(response.status_code, None)
        if response.status_code in PASSING_STATUSES or isinstance(error, UnavailableError):
            raise TransientError(error, reached=True, retry_after=retry_after(response.headers))
        raise error


def has_files(request: SendMessageRequest) -> bool:
    """Return whether a message has the bytes of a file."""
    return any(part.raw is not None for part in request.message.parts)


def checked_url(url: str) -> httpx.URL:
    """Return an address that means the same to everyone who reads it. Raises `FileRefusedError`."""
    if not url.isascii() or not url.isprintable() or any(letter in url for letter in ' \\"<>'):
        raise FileRefusedError("the address of the file has characters that an address may not have")
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise FileRefusedError(f"the address of the file is not valid: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise FileRefusedError("the address of the file does not begin with http:// or https:// and a host")
    if parsed.userinfo:
        raise FileRefusedError("the address of the file contains credentials")
    return parsed


def allowed_origins(urls: Iterable[str]) -> list[str]:
    """Return the origins of `download_from`. Raises `ConfigurationError`."""
    try:
        return [origin_of(str(checked_url(url))) for url in urls]
    except FileRefusedError as error:
        raise ConfigurationError(f"download_from: {error}") from None


def _url_in(file: Part | str) -> str:
    url = file if isinstance(file, str) else file.url
    if url is None:
        raise ValueError("the part is not a file: it has neither bytes nor an address")
    return url


def _measure(source: bytes | Path) -> tuple[int, bytes]:
    """Return the size and the SHA-256 of what is to be uploaded."""
    if isinstance(source, bytes):
        return len(source), hashlib.sha256(source).digest()
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
        return stream.tell(), digest


async def _pieces(source: bytes | Path) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), _PIECE):
            yield source[start : start + _PIECE]
        return
    with await asyncio.to_thread(source.open, "rb") as stream:
        while piece := await asyncio.to_thread(stream.read, _PIECE):
            yield piece
