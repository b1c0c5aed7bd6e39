"""The arguments and options that several commands have, and the client or store that they name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from errands.cli.failures import UsageError
from errands.client import A2AClient, ApiKey, BearerToken, ClientCertificate, ClientCredentials, Credential
from errands.client.discovery import card_urls
from errands.engines.base import Engine
from errands.engines.sqlite import SQLiteEngine
from errands.engines.urls import engine_from_url
from errands.runtime.settings import ENV_PREFIX, Settings
from errands.server.configuration import load_telemetry

AsJson = Annotated[bool, Option("--json", help="Print JSON, for other programs.")]
TaskId = Annotated[str, Argument(metavar="TASK_ID", help="The task's id.")]
Limit = Annotated[int, Option("--limit", metavar="N", min=1, help="Show at most N.")]

# Commands that talk to an agent

Url = Annotated[str, Argument(metavar="URL", help="The agent's address, such as http://localhost:8000.")]
Headers = Annotated[
    list[str] | None, Option("--header", metavar="'K: V'", help="Send this header; may be given several times.")
]
Token = Annotated[
    str | None, Option("--token", metavar="TOKEN", envvar="ERRANDS_TOKEN", help="Send this bearer token.")
]
ApiKeyOption = Annotated[
    str | None,
    Option("--api-key", metavar="KEY", envvar="ERRANDS_API_KEY", help="Send this API key as the agent's card says."),
]
AllowOrigins = Annotated[
    list[str] | None,
    Option("--allow-origin", metavar="URL", help="Send credentials to this origin, too, if the card leads there."),
]
Timeout = Annotated[float | None, Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after this time.")]

#: The variable of the setting `otel`.
_OTEL = f"{ENV_PREFIX}OTEL"


@dataclass(frozen=True)
class RemoteAgent:
    """An agent, and the credentials for it."""

    url: str
    header: list[str] | None = None
    token: str | None = None
    api_key: str | None = None
    allow_origins: list[str] | None = None

    def client(self, *, max_retries: int = 3) -> A2AClient:
        """Return a client of the agent, which traces if the setting `otel` is true.

        Raises `UsageError`, and `ConfigurationError` if tracing is not installed.
        """
        self.check()
        if (otel := os.environ.get(_OTEL)) is not None and Settings.from_env({_OTEL: otel}).otel:
            load_telemetry()
            from errands import telemetry  # noqa: PLC0415 - opentelemetry is an extra

            telemetry.install()
        headers = _parse_headers(self.header or [])
        return A2AClient(
            self.url,
            headers=headers,
            credentials=self.credentials or None,
            allow_origins=self.allow_origins or (),
            max_retries=max_retries,
        )

    def check(self) -> None:
        """Raise `UsageError` unless the URL can be called."""
        try:
            card_urls(self.url)
        except ValueError as error:
            raise UsageError(
                f"{self.url!r} is not the address of an agent ({error}): expected http://HOST:PORT"
            ) from None

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which the card is fetched: the token is sent at once. Raises `UsageError`."""
        token = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return token | _parse_headers(self.header or [])

    @property
    def credentials(self) -> list[Credential]:
        """The credentials of the options and the environment. Raises `ConfigurationError`."""
        found: list[Credential] = []
        if self.token:
            found.append(BearerToken(self.token))
        if self.api_key:
            found.append(ApiKey(self.api_key))
        if client_id := os.environ.get("ERRANDS_CLIENT_ID"):
            found.append(
                ClientCredentials(
                    client_id,
                    os.environ.get("ERRANDS_CLIENT_SECRET", ""),
                    token_url=os.environ.get("ERRANDS_TOKEN_URL"),
                )
            )
        if certificate := os.environ.get("ERRANDS_CLIENT_CERTIFICATE"):
            found.append(ClientCertificate(certificate, ca=os.environ.get("ERRANDS_CLIENT_CA")))
        return found

    @property
    def is_secured(self) -> bool:
        """True if commands that follow this one need credentials, too. Credentials are never printed."""
        return bool(self.header or self.token or self.api_key)


def _parse_headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"--header {header!r}: expected 'NAME: VALUE'")
        headers[name.strip()] = value.strip()
    return headers


# Commands that read the store, or ask the operator API of a server

ServerUrl = Annotated[
    str | None,
    Option("--url", metavar="URL", help="Ask the operator API of the server at this address, not the store."),
]

# Commands that read the store: they see the tasks of every agent and owner in it

Storage = Annotated[
    str | None, Option("--storage", metavar="URL", help="The task store.", show_default="ERRANDS_STORAGE, as for serve")
]
AgentName = Annotated[str | None, Option("--agent", metavar="NAME", help="Only tasks of the agent NAME.")]


def server_named(
    url: str | None,
    storage: str | None,
    header: list[str] | None,
    token: str | None,
    api_key: str | None,
    allow_origins: list[str] | None,
) -> RemoteAgent | None:
    """Return the server that `--url` names, None without it. Raises `UsageError` for options that exclude each other.

    The token and the API key may be those of the environment, which are for other commands.
    """
    if url is None:
        if header or allow_origins:
            raise UsageError("--header and --allow-origin are for a server; name it with --url")
        return None
    if storage is not None:
        raise UsageError("--url asks a server and --storage reads a store; give one of them")
    return RemoteAgent(url, header, token, api_key, allow_origins)


def existing_store(storage: str | None) -> Engine:
    """Return the engine of a store that exists. Raises `UsageError` for a store that only its server can reach."""
    storage = storage or Settings.from_env().storage
    engine = engine_from_url(storage)
    if not engine.durable:
        raise UsageError(
            f"--storage {storage}: only the server itself can read what it keeps in memory; name a durable store, "
            "such as sqlite:///.errands/tasks.db"
        )
    # Reading must not create a store.
    if isinstance(engine, SQLiteEngine) and not Path(engine.path).exists():
        raise UsageError(f"{engine.path} does not exist; name the store with --storage sqlite:///PATH")
    return engine
