"""A bound on what a provider may send, put on the HTTP client of whichever package talks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from errands.unpacking import Meter, Unpacking, ask_for_known

#: JSON may write one character with six.
_WRITTEN_OUT = 6


def bound(provider: Any, max_bytes: int) -> None:
    """Has the provider's client stop reading an answer, or one event of a stream, that is longer than that.

    Nearly all of the packages use httpx or its successor; with one that does not, only what has come is counted.
    """
    client = getattr(getattr(provider, "client", None), "_client", None)
    hooks = getattr(client, "event_hooks", None)
    if client is None or not isinstance(hooks, dict):
        return

    async def ask(request: Any) -> None:
        ask_for_known(request.headers)

    async def meter(response: Any) -> None:
        meter = Meter(max_bytes * _WRITTEN_OUT, response.headers.get("content-type", ""))
        response.stream = _metered(response.stream, Unpacking(response.headers.pop("content-encoding", ""), meter))

    client.event_hooks = {
        **hooks,
        "request": [*hooks.get("request", []), ask],
        "response": [*hooks.get("response", []), meter],
    }


def _metered(stream: Any, unpacking: Unpacking) -> Any:
    """The stream again, unpacked. What a response is read from must be of its own library."""
    [base] = [kind for kind in type(stream).__mro__ if kind.__name__ == "AsyncByteStream"]

    class Metered(base):  # type: ignore[misc, valid-type]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in stream:
                for piece in unpacking.pieces(chunk):
                    yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Metered()
