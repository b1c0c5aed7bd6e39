"""The arguments and options that commands share, and the client they make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from errands.cli.failures import UsageError
from errands.client import A2AClient
from errands.client.discovery import card_urls

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Where the agent is, such as http://localhost:8000.", show_default=False)
]
TaskId = Annotated[str, typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="'K: V'", help="Send this header; may be given several times."),
]
Token = Annotated[
    str | None, typer.Option("--token", metavar="TOKEN", envvar="ERRANDS_TOKEN", help="Send this bearer token.")
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after this time.", show_default=False),
]


@dataclass(frozen=True)
class Remote:
    """An agent and how this caller reaches it."""

    url: str
    header: list[str] | None = None
    token: str | None = None

    def client(self) -> A2AClient:
        self.check()
        return A2AClient(self.url, headers=self.headers)

    def check(self) -> None:
        """Raises `UsageError` unless the URL can be called."""
        try:
            card_urls(self.url)
        except ValueError as error:
            raise UsageError(
                f"{self.url!r} is no address of an agent ({error}); it looks like http://HOST:PORT"
            ) from None

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        for header in self.header or []:
            name, colon, value = header.partition(":")
            if not colon or not name.strip():
                raise UsageError(f"--header {header!r}: write it as 'NAME: VALUE'")
            headers[name.strip()] = value.strip()
        return headers

    @property
    def is_secured(self) -> bool:
        """Whether a follow-up needs credentials, too. They are never shown."""
        return bool(self.header or self.token)
