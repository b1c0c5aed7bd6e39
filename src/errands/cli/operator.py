"""Reads the operator API of a server, with the credentials of the command line."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from errands.cli.failures import CommandError, ExitCode
from errands.cli.options import RemoteAgent
from errands.client import AgentUnreachableError
from errands.client.agent_session import RetryPolicy
from errands.client.credentials import ChosenCredentials, Origins, authorize, offered
from errands.client.discovery import CardSource
from errands.client.http_requests import add_secrets, origin_of
from errands.errors import A2AError
from errands.wire.status import from_http

T = TypeVar("T")

#: Seconds that one answer may take, and bytes that it may have.
_TIMEOUT, _MOST_BYTES = 10.0, 32 * 2**20


class OperatorClient:
    """An asynchronous context manager; `get` reads one page of the operator API."""

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
        """Return the answer of `/admin/PAGE`.

        Raises `AgentUnreachableError`, the `A2AError` that the server answers, and `CommandError` for another server.
        """
        url = f"{self._base}/admin/{page}"
        request = self._http.build_request("GET", url, params=query)
        try:
            response = await self._http.send(add_secrets(request, await self._credentials.secrets()), stream=True)
            try:
                body = b""
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise CommandError(f"{url} answers with more than {_MOST_BYTES // 2**20} MB")
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise AgentUnreachableError(
                f"{self._base} does not answer ({str(error) or type(error).__name__})"
            ) from None
        try:
            if response.status_code == httpx.codes.OK:
                return msgspec.json.decode(body, type=answer)
            refused: Any = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            refused = None
        if isinstance(refused, dict) and isinstance(refused.get("error"), dict):
            found: A2AError = from_http(response.status_code, refused)
            raise found
        raise CommandError(
            f"{url} answers with HTTP {response.status_code} and not as a server of errands does; check the address, "
            "and the version of the server",
            ExitCode.UNREACHABLE,
        )
