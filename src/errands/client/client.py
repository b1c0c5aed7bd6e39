"""`A2AClient`: talk to any agent that speaks A2A."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import os
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import httpx
import msgspec
from msgspec import UNSET, UnsetType

from errands import tracing
from errands.client import discovery
from errands.client.agent_session import RETRY_ON, AgentSession, RetryPolicy, Transport, traced
from errands.client.conversation import Content, Conversation, MessageOptions, compose
from errands.client.credentials import ClientCertificate, CredentialsLike, Origins, authorize, offered, without_card
from errands.client.errors import ForeignOriginError, NotConnectedError, ProtocolError
from errands.client.files import AgentFiles, allowed_origins, has_files
from errands.client.http_requests import MAX_ANSWER, SECRET_HEADERS, checked_headers, origin_of
from errands.client.results import ClientResult, ListResult, ResultMemory, StreamEvent, text_pieces
from errands.client.task_stream import TaskStream, wait_until
from errands.errors import AuthenticationRequiredError, ConfigurationError, TaskNotFoundError
from errands.model import requests
from errands.model.card import AgentCapabilities, AgentCard
from errands.model.core import SETTLED_STATES, TERMINAL_STATES, Part, Task, TaskState
from errands.model.requests import TaskPushNotificationConfig
from errands.outbound import Outbound
from errands.wire import signing_extra
from errands.wire.dialect import EXTENSIONS

if TYPE_CHECKING:
    from errands.client.card_verifier import CardVerifier
    from errands.wire.card_signing import KeySource, TrustedKeys

    CardTrust = CardVerifier | KeySource | TrustedKeys


class A2AClient:
    """A client of one agent, found by its address or by its card.

        async with A2AClient("http://localhost:8000") as client:
            result = await client.send("Hello!")
            print(result.text)

    Calls that change nothing when repeated are tried again after broken connections and "not now" answers,
    up to `max_retries` times with growing, jittered waits that begin at `retry_delay` seconds. A message is
    sent again only when it certainly was not accepted; otherwise `AnswerLostError` carries its id. Streams
    resume by themselves, and give up after `max_retries` failures in a row. What the agent refuses is raised
    as the `A2AError` that it names, and what goes wrong on the way as an `A2AClientError`.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 30.0,
        protocol: str | None = None,
        version: str | None = None,
        httpx_client: httpx.AsyncClient | None = None,
        card_validator: discovery.CardValidator | None = None,
        max_retries: int = 3,
        retry_delay: float = 0.2,
        retry_on: tuple[type[Exception], ...] = RETRY_ON,
        tenant: str | None = None,
        extensions: Sequence[str] | None = None,
        card: AgentCard | None = None,
        verify_card: CardTrust | None = None,
        credentials: CredentialsLike | None = None,
        allow_origins: Sequence[str] = (),
        download_from: Sequence[str] = (),
        max_answer_bytes: int = MAX_ANSWER,
    ) -> None:
        """Configure the client. `card` skips discovery, `protocol` and `version` insist on one.

        `extensions` are URIs to activate. With `verify_card` the card must be signed with a key that it names: PEM, a
        JWK or JWKS, a `Path` to one, the https address of a JWKS, or a `CardVerifier`.

        `credentials` are a bearer token or the classes of `errands.client.credentials`; the card says which are used.
        They, and secrets in `headers`, go to the origin of `url` and to `allow_origins` only. `download_from` are
        origins, beside the agent's own, from which files may be downloaded, such as `https://files.example.com`.
        An answer, or an event of a stream, of more than `max_answer_bytes` raises `ProtocolError`.
        """
        discovery.card_urls(url)
        self._url = url
        self._headers = checked_headers(headers or {})
        if extensions:
            self._headers.update(checked_headers({EXTENSIONS: ",".join(extensions)}))
        self._timeout = timeout
        self._protocol = discovery.protocol_name(protocol) if protocol else None
        self._version = discovery.version_name(version) if version else None
        self._own_http = httpx_client is None
        self._http = httpx_client
        #: For requests to other servers than the agent's: those of tokens and keys.
        self._side_http = httpx_client
        self._validator = card_validator
        self._max_answer_bytes = max_answer_bytes
        self._retry = RetryPolicy(max_retries=max_retries, delay=retry_delay, retry_on=retry_on)
        self._tenant = tenant
        self._credentials = offered(credentials)
        self._origins = Origins(origin_of(url), frozenset(map(origin_of, allow_origins)))
        self._has_secrets = bool(self._credentials) or not SECRET_HEADERS.isdisjoint(map(str.lower, self._headers))
        found = [one.credential for one in self._credentials]
        self._certificate = next((one for one in found if isinstance(one, ClientCertificate)), None)
        if self._certificate is not None and httpx_client is not None:
            raise ConfigurationError(
                "a ClientCertificate needs a connection of its own: give it to your httpx_client instead"
            )
        self._given_card = card
        self._verifier = None if verify_card is None else _make_verifier(verify_card)
        self._download_from = allowed_origins(download_from)
        self._files: AgentFiles | None = None
        self._source: discovery.CardSource | None = None
        self._session: AgentSession | None = None
        self._memory = ResultMemory()
        #: A new card may need a new one; streams on an older one continue.
        self._transports: list[Transport] = []
        #: Connections to interfaces that only the card names.
        self._guarded: list[httpx.AsyncClient] = []

    async def connect(self) -> None:
        """Find the agent and choose the interface that fits best. Does nothing if already connected.

        Raises `AgentNotFoundError` and `NoCommonProtocolError`.
        """
        if self._session is not None:
            return
        if self._http is None:
            limits = httpx.Limits(max_connections=discovery.MAX_CONNECTIONS, max_keepalive_connections=100)
            certificate = self._certificate
            verify: bool | ssl.SSLContext = True if certificate is None else certificate.ssl_context()
            self._http = httpx.AsyncClient(limits=limits, verify=verify)
            # The certificate is for the agent alone.
            self._side_http = self._http if certificate is None else httpx.AsyncClient()
        self._source = discovery.CardSource(
            self._http, self._url, self._headers, self._retry, self._timeout, self._validator
        )
        side = self._side_http or self._http
        self._source.authorization = without_card(self._credentials, side, self._origins)
        if self._verifier is not None:
            self._source.verifier = functools.partial(self._verifier.verify, side)
        card = self._given_card
        if card is None:
            card = await self._source.fetch()
        elif self._verifier is not None:
            await self._verifier.verify(side, card)
        if card is not None:
            self._session = await self._open_session(self._http, card)

    async def _open_session(self, http: httpx.AsyncClient, card: AgentCard) -> AgentSession:
        source = self._source
        choice = discovery.choose_interface(
            card,
            card_url=(source and source.found_at) or self._url,
            protocol=self._protocol,
            version=self._version,
            tenant=self._tenant,
            origins=self._origins if self._has_secrets else None,
        )
        authorization = authorize(card, self._side_http or http, self._origins, self._credentials)
        addresses: list[str] = []
        if self._must_be_public(choice):
            guard = Outbound()
            if choice.dialect == "grpc":
                addresses = await discovery.check_grpc(choice, guard)
            http = httpx.AsyncClient(transport=discovery.CardNamedTransport(guard), trust_env=False)
            self._guarded.append(http)
        software = b"" if source is None else source.software
        transport = discovery.open_transport(
            choice,
            http,
            software=software,
            headers=self._headers,
            timeout=self._timeout,
            max_answer_bytes=self._max_answer_bytes,
            certificate=self._certificate,
            addresses=addresses,
        )
        self._transports.append(transport)
        self._files = AgentFiles(
            http,
            (self._url, choice.url),
            headers=self._headers,
            retry=self._retry,
            timeout=self._timeout,
            allowed=self._download_from,
        )
        return AgentSession(
            card,
            transport,
            self._retry,
            choice.version,
            choice.tenant,
            self._timeout,
            lacks=choice.lacks,
            authorization=authorization,
            url=choice.url,
            foreign_origin=choice.foreign_origin(self._origins),
        )

    def _must_be_public(self, choice: discovery.Choice) -> bool:
        """Return whether an interface must have a public address: only a card from a public address names it.

        An `httpx` client that the user passes decides for itself where it connects, and so does a proxy. A card that
        came through a proxy came from a public address.
        """
        has_proxy = discovery.has_proxy(choice.origin, is_grpc=choice.dialect == "grpc")
        if not self._own_http or self._source is None or has_proxy:
            return False
        is_from_outside = self._source.is_public or discovery.has_proxy(self._url)
        return is_from_outside and discovery.is_card_named(choice, self._url, self._origins.allowed)

    async def refresh_card(self) -> AgentCard:
        """Ask whether the card has changed; if so, use the new one and choose an interface again. Return the card."""
        session = self._connected()
        if self._source is None or self._http is None:
            raise NotConnectedError
        card = await self._source.fetch()
        if card is None:
            return session.card
        self._session = await self._open_session(self._http, card)
        return card

    async def close(self) -> None:
        """Close the connections; an `httpx_client` that was given stays open."""
        self._session = self._source = self._files = None
        while self._transports:
            await self._transports.pop().close()
        while self._guarded:
            await self._guarded.pop().aclose()
        if self._own_http and self._http is not None:
            http, side = self._http, self._side_http
            self._http = self._side_http = None
            if side is not None and side is not http:
                await side.aclose()
            await http.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _connected(self, credentials: CredentialsLike | None = None) -> AgentSession:
        """Return the session, with other credentials for one call if these are given."""
        session = self._session
        if session is None:
            raise NotConnectedError
        if credentials is None or self._side_http is None:
            return session
        if session.foreign_origin is not None:
            raise ForeignOriginError(self._origins.agent, [session.foreign_origin])
        for_call = offered(credentials)
        if any(isinstance(one.credential, ClientCertificate) for one in for_call):
            raise ConfigurationError("a ClientCertificate belongs to the connection: pass it to A2AClient")
        chosen = authorize(session.card, self._side_http, self._origins, self._credentials, for_call)
        return dataclasses.replace(session, authorization=chosen)

    @property
    def agent_card(self) -> AgentCard:
        """The card that was found, or the extended one once it was asked for. Raises `NotConnectedError`."""
        return self._connected().card

    @property
    def agent_name(self) -> str:
        """The name on the card."""
        return self.agent_card.name

    @property
    def capabilities(self) -> AgentCapabilities:
        """The capabilities on the card."""
        return self.agent_card.capabilities

    @property
    def wanted_credentials(self) -> str:
        """Return in words what the card asks of callers; "" for nothing. Raises `NotConnectedError`."""
        return self._connected().authorization.wanted

    def authorization_error(self, result: ClientResult) -> AuthenticationRequiredError:
        """Return an error for a task that waits for authorization: what the agent says and what its card asks for."""
        said = AuthenticationRequiredError(result.text or "The agent waits for authorization")
        return self._connected().authorization.explain(said)

    @property
    def protocol(self) -> str:
        """The binding in use, "jsonrpc", "http+json", "grpc" or "praisonai"; "" before `connect()`."""
        return self._session.transport.protocol if self._session is not None else ""

    @property
    def version(self) -> str:
        """The version of A2A in use, "1.0" or "0.3"; "" before `connect()`."""
        return self._session.version if self._session is not None else ""

    @property
    def is_connected(self) -> bool:
        """Return whether `connect()` has been called, and `close()` not since."""
        return self._session is not None

    async def send(
        self,
        text: Content,
        *,
        blocking: bool = True,
        timeout: float | UnsetType | None = UNSET,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> ClientResult:
        """Send a text, parts or a message, and return the result.

        A blocking send returns when the task has ended or needs something, however long that takes, unless
        `timeout` bounds the wait; an agent that answers earlier is asked for the task until then. Otherwise it
        returns as soon as the message is accepted. `credentials` are for this call. The other options are those of
        `MessageOptions`.
        """
        session = self._connected(credentials)
        request = compose(text, blocking=blocking, **options)
        if request.configuration and request.configuration.task_push_notification_config:
            session.require("push_notifications")
        if isinstance(timeout, UnsetType):
            timeout = None if blocking else self._timeout
        sent = self._send(session, request, blocking, timeout)
        return await (sent if tracing.tracer is None else traced(session.span("SendMessage"), sent))

    async def _send(
        self, session: AgentSession, request: requests.SendMessageRequest, blocking: bool, timeout: float | None
    ) -> ClientResult:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert self._files is not None
        request = await self._files.replace_large(request, session)
        response: requests.SendMessageResponse = await session.call_within(
            timeout, "SendMessage", request, message_id=request.message.message_id
        )
        if (task := response.task) is not None:
            if blocking and task.status.state not in SETTLED_STATES:
                left = None if timeout is None else max(began + timeout - loop.time(), 0)
                length = request.configuration.history_length if request.configuration else None
                message_id = request.message.message_id
                task = await wait_until(
                    session, task, SETTLED_STATES, timeout=left, history_length=length, message_id=message_id
                )
            return self._memory.result(task, is_new=not request.message.task_id)
        if response.message is not None:
            return ClientResult.from_message(response.message)
        raise ProtocolError("a SendMessageResponse with neither task nor message")

    async def send_parts(
        self,
        parts: list[Part],
        *,
        blocking: bool = True,
        timeout: float | UnsetType | None = UNSET,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> ClientResult:
        """Do what `send` does, for parts."""
        return await self.send(parts, blocking=blocking, timeout=timeout, credentials=credentials, **options)

    def stream(
        self,
        text: Content,
        *,
        timeout: float | None = None,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> AsyncGenerator[StreamEvent, None]:
        """Send a message and yield what happens, each event once, until the turn is over.

        The turn is over when the task has ended or waits for input or authorization; to see what happens
        after a pause, `subscribe` to the task. A stream that is cut resumes by itself. `timeout` bounds the
        silence between two events, after which the stream counts as cut; None waits as long as it takes.
        """
        session = self._connected(credentials)
        request = compose(text, **options)
        if request.configuration and request.configuration.task_push_notification_config:
            session.require("push_notifications")
        if not has_files(request):
            return TaskStream(session, request=request, idle_timeout=timeout).events()
        files = self._files
        assert files is not None

        async def upload_and_stream() -> AsyncGenerator[StreamEvent, None]:
            uploaded = await files.replace_large(request, session)
            async with aclosing(TaskStream(session, request=uploaded, idle_timeout=timeout).events()) as events:
                async for event in events:
                    yield event

        return upload_and_stream()

    async def upload(
        self,
        content: bytes | str | os.PathLike[str],
        *,
        filename: str | None = None,
        media_type: str | None = None,
        credentials: CredentialsLike | None = None,
    ) -> Part:
        """Upload bytes, or the file at a path, and return the part to send. Large files are uploaded by `send` itself.

        Raises `AgentCapabilityError` when the agent takes no uploads.
        """
        session, files = self._connected(credentials), self._files
        assert files is not None
        return await files.upload(content, session, filename=filename, media_type=media_type)

    async def download(
        self,
        file: Part | str,
        *,
        max_bytes: int = 100 * 1024 * 1024,
        credentials: CredentialsLike | None = None,
    ) -> bytes:
        """Return the bytes of a file: those in the part, or those at its address.

        The address must be the agent's own, or in `download_from`, else `FileRefusedError` is raised.
        """
        session = self._connected(credentials)
        assert self._files is not None
        return await self._files.download(file, session, max_bytes=max_bytes)

    async def download_to(
        self,
        file: Part | str,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        credentials: CredentialsLike | None = None,
    ) -> Path:
        """Do what `download` does, but write the file to a path, without having all of it in memory."""
        session = self._connected(credentials)
        assert self._files is not None
        return await self._files.download_to(file, path, session, max_bytes=max_bytes)

    def stream_text(
        self,
        text: Content,
        *,
        timeout: float | None = None,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> AsyncGenerator[str, None]:
        """Send a message and yield the text of its artifacts in pieces, or that of the last status without any."""
        message = compose(text, **options).message
        events = self.stream(message, timeout=timeout, credentials=credentials, **options)
        return text_pieces(events, continues=message.task_id is not None)

    def subscribe(
        self,
        task_id: str,
        *,
        last_event_id: str | None = None,
        timeout: float | None = None,
        credentials: CredentialsLike | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Follow a task until it ends, from after `last_event_id` if the agent keeps its events.

        While the task is paused the stream lasts for as long as the agent keeps it open. A task that has
        ended already yields one last "task" event. A cut stream resumes by itself.
        """
        if last_event_id is not None:
            checked_headers({"Last-Event-ID": last_event_id})
        session = self._connected(credentials)
        return TaskStream(session, task_id=task_id, last_event_id=last_event_id, idle_timeout=timeout).events()

    def conversation(self, *, context_id: str | None = None, task_id: str | None = None) -> Conversation:
        """Return a conversation, which keeps its context; give ids to continue an earlier one."""
        return Conversation(self, memory=self._memory, context_id=context_id, task_id=task_id)

    async def get_task(
        self, task_id: str, history_length: int | None = None, *, credentials: CredentialsLike | None = None
    ) -> ClientResult:
        """Return the task as it stands, with the newest `history_length` messages. Raises `TaskNotFoundError`."""
        request = requests.GetTaskRequest(id=task_id, history_length=history_length)
        return ClientResult.from_task(await self._connected(credentials).call("GetTask", request))

    def list_tasks(
        self,
        *,
        context_id: str | None = None,
        status: TaskState | str | None = None,
        page_size: int = 50,
        page_token: str | None = None,
        history_length: int | None = None,
        include_artifacts: bool | None = None,
        status_timestamp_after: str | datetime.datetime | None = None,
        credentials: CredentialsLike | None = None,
    ) -> TaskPages:
        """List tasks, the newest first: `await` the result for one page, or iterate over it for all of them."""
        if isinstance(status_timestamp_after, datetime.datetime):
            moment = status_timestamp_after.astimezone(datetime.UTC).replace(tzinfo=None)
            status_timestamp_after = f"{moment.isoformat()}Z"
        if status is not None:
            try:
                status = TaskState.parse(status)
            except ValueError:
                names = ", ".join(state.short for state in TaskState)
                raise ConfigurationError(f"invalid status {status!r}: expected one of {names}") from None
        request = requests.ListTasksRequest(
            context_id=context_id,
            status=status,
            page_size=page_size,
            page_token=page_token,
            history_length=history_length,
            include_artifacts=include_artifacts,
            status_timestamp_after=status_timestamp_after,
        )
        return TaskPages(self._connected(credentials), request)

    async def cancel(
        self, task_id: str, metadata: dict[str, Any] | None = None, *, credentials: CredentialsLike | None = None
    ) -> ClientResult:
        """Cancel a task and return it once it has ended, or as it is after the client's timeout.

        Raises `TaskNotFoundError`, and `TaskNotCancelableError` when it has ended before.
        """
        session = self._connected(credentials)
        task: Task = await session.call("CancelTask", requests.CancelTaskRequest(id=task_id, metadata=metadata))
        return ClientResult.from_task(await wait_until(session, task, TERMINAL_STATES, timeout=self._timeout))

    async def get_extended_card(self, *, credentials: CredentialsLike | None = None) -> AgentCard:
        """Return the card for authenticated callers; from now on it is this client's `agent_card`."""
        session = self._connected(credentials)
        card: AgentCard = await session.call("GetExtendedAgentCard", requests.GetExtendedAgentCardRequest())
        if self._verifier is not None and self._side_http is not None:
            await self._verifier.verify(self._side_http, card)
        self._connected().card = card
        return card

    async def set_push_config(
        self,
        task_id: str,
        *,
        url: str,
        token: str | None = None,
        config_id: str | None = None,
        authentication: requests.AuthenticationInfo | dict[str, Any] | None = None,
        credentials: CredentialsLike | None = None,
    ) -> TaskPushNotificationConfig:
        """Have the agent send updates of the task to `url`."""
        if isinstance(authentication, dict):
            # A2A 0.3, and a2akit with it, has a list of schemes here.
            fields = {"scheme": (authentication.get("schemes") or [None])[0], **authentication}
            try:
                authentication = msgspec.convert(fields, requests.AuthenticationInfo)
            except msgspec.ValidationError as error:
                raise ConfigurationError(f"authentication: {error}") from None
        request = TaskPushNotificationConfig(
            task_id=task_id, url=url, token=token, id=config_id, authentication=authentication
        )
        config: TaskPushNotificationConfig = await self._connected(credentials).call(
            "CreateTaskPushNotificationConfig", request
        )
        return config

    async def get_push_config(
        self, task_id: str, config_id: str | None = None, *, credentials: CredentialsLike | None = None
    ) -> TaskPushNotificationConfig:
        """Return one push config of a task; without `config_id` its first. Raises `TaskNotFoundError`."""
        if config_id is None:
            configs = await self.list_push_configs(task_id, credentials=credentials)
            if not configs:
                raise TaskNotFoundError("The task has no push notification config", taskId=task_id)
            return configs[0]
        request = requests.GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        config: TaskPushNotificationConfig = await self._connected(credentials).call(
            "GetTaskPushNotificationConfig", request
        )
        return config

    async def list_push_configs(
        self, task_id: str, *, credentials: CredentialsLike | None = None
    ) -> list[TaskPushNotificationConfig]:
        """Return every push config of a task."""
        request = requests.ListTaskPushNotificationConfigsRequest(task_id=task_id)
        configs: list[TaskPushNotificationConfig] = []
        while True:
            page: requests.ListTaskPushNotificationConfigsResponse = await self._connected(credentials).call(
                "ListTaskPushNotificationConfigs", request
            )
            configs += page.configs
            if not page.next_page_token or page.next_page_token == request.page_token:
                return configs
            request = msgspec.structs.replace(request, page_token=page.next_page_token)

    async def delete_push_config(
        self, task_id: str, config_id: str, *, credentials: CredentialsLike | None = None
    ) -> None:
        """End the updates that `set_push_config` asked for."""
        request = requests.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        await self._connected(credentials).call("DeleteTaskPushNotificationConfig", request)


def _make_verifier(trust: CardTrust) -> CardVerifier:
    with signing_extra():
        from errands.client.card_verifier import CardVerifier  # noqa: PLC0415 - an extra
    if isinstance(trust, CardVerifier):
        return trust
    if isinstance(trust, str) and trust.startswith(("http://", "https://")):
        return CardVerifier(jwks_url=trust)
    return CardVerifier(trust)


class TaskPages:
    """The tasks of an agent: `await` returns one page as a `ListResult`, `async for` yields those of all pages."""

    def __init__(self, session: AgentSession, request: requests.ListTasksRequest) -> None:
        self._session = session
        self._request = request

    def __await__(self) -> Generator[Any, Any, ListResult]:
        return self._page(self._request).__await__()

    async def __aiter__(self) -> AsyncGenerator[ClientResult, None]:
        request, asked = self._request, {self._request.page_token}
        while True:
            page = await self._page(request)
            for task in page.tasks:
                yield task
            if page.next_page_token is None:
                return
            if page.next_page_token in asked:
                raise ProtocolError(f"the pages of tasks repeat at {page.next_page_token!r}")
            asked.add(page.next_page_token)
            request = msgspec.structs.replace(request, page_token=page.next_page_token)

    async def _page(self, request: requests.ListTasksRequest) -> ListResult:
        response: requests.ListTasksResponse = await self._session.call("ListTasks", request)
        return ListResult(
            tasks=[ClientResult.from_task(task) for task in response.tasks],
            next_page_token=response.next_page_token or None,
            total_size=response.total_size,
            page_size=response.page_size or request.page_size or len(response.tasks),
        )
