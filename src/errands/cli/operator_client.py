"""Requests of the command line to the operator API of a server, with the credentials of its options."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from errands.cli.failures import CommandError, ExitCode
from errands.cli.options import RemoteAgent
from errands.client import AgentUnreachableError
from errands.client.agent_session import RetryPolicy
from errands.client.credentials import ChosenCredentials, Origins, authorize, offered
from errands.client.discovery import CardSource
from errands.client.http_requests import add_secrets, body_of, origin_of
from errands.errors import A2AError
from errands.wire.status import from_http

T = TypeVar("T")

#: Seconds that one answer may take, and bytes that it may have.
_TIMEOUT, _MOST_BYTES = 10.0, 32 * 2**20
#: The same for the archive of one task.
_ARCHIVE_TIMEOUT, _MOST_ARCHIVED = 120.0, 256 * 2**20


class OperatorClient:
    """A client of the operator API of a server. An asynchronous context manager.

    Its methods raise `AgentUnreachableError`, the `A2AError` that the server answers, and `CommandError` where another
    kind of server answers.
    """

    def __init__(self, remote: RemoteAgent) -> None:
        remote.check()
        self._remote = remote
        self._base = remote.url.rstrip("/")
        self._http = httpx.AsyncClient(headers=remote.headers, timeout=_TIMEOUT)
        self._credentials = ChosenCredentials()

    async def __aenter__(self) -> Self:
        given = self._remote.credentials
        if given:
            # The card says where an API key belongs.
            source = CardSource(
                self._http, self._base, headers=self._remote.headers, retry=RetryPolicy(), timeout=_TIMEOUT
            )
            card = await source.fetch()
            assert card is not None
            origins = Origins(origin_of(self._base), frozenset(map(origin_of, self._remote.allow_origins or ())))
            self._credentials = authorize(card, self._http, origins, offered(given))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, page: str, answer: type[T], **query: str | int) -> T:
        """Return the answer to GET `/admin/PAGE`."""
        request = self._http.build_request("GET", self._address(page), params=query)
        return self._decoded(request, await self._send(request), answer)

    async def post(self, page: str, body: dict[str, Any], answer: type[T]) -> T:
        """Return the answer to POST `/admin/PAGE`."""
        request = self._http.build_request("POST", self._address(page), json=body)
        return self._decoded(request, await self._send(request), answer)

    async def archive(self, task_id: str, *, with_memory: bool) -> list[bytes]:
        """Return the lines of a task for an archive."""
        address = self._address(f"tasks/{quote(task_id, safe='')}/archive")
        query = {"memory": int(with_memory)}
        request = self._http.build_request("GET", address, params=query, timeout=_ARCHIVE_TIMEOUT)
        return (await self._send(request, _MOST_ARCHIVED)).removesuffix(b"\n").split(b"\n")

    def _address(self, page: str) -> str:
        return f"{self._base}/admin/{page}"

    def _decoded(self, request: httpx.Request, body: bytes, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.MsgspecError:
            raise _other_server(request, 200) from None

    async def _send(self, request: httpx.Request, most: int = _MOST_BYTES) -> bytes:
        """Return the body of the answer, if it is a success."""
        try:
            response = await self._http.send(add_secrets(request, await self._credentials.secrets()), stream=True)
            body = await body_of(response, most)
        except httpx.TransportError as error:
            raise AgentUnreachableError(
                f"{self._base} does not answer ({str(error) or type(error).__name__})"
            ) from None
        if response.status_code == httpx.codes.OK:
            return body
        try:
            refused: Any = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            refused = None
        if isinstance(refused, dict) and isinstance(refused.get("error"), dict):
            found: A2AError = from_http(response.status_code, refused)
            raise found
        raise _other_server(request, response.status_code)


def _other_server(request: httpx.Request, status: int) -> CommandError:
    return CommandError(
        f"{request.url} answers with HTTP {status}, unlike a server of errands; check the address, and the version of "
        "the server",
        ExitCode.UNREACHABLE,
    )
