"""The gRPC server beside the HTTP one: every protocol version on one port, with reflection and health."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import grpc
import grpc.aio

from errands.errors import ConfigurationError
from errands.runtime.settings import NOT_ON_CARD, Settings
from errands.server.grpc_binding import Service
from errands.server.grpc_calls import MOST_CALLS, Calls
from errands.server.grpc_public import PublicServices
from errands.server.http import host_port, means_every_address
from errands.wire.proto.codec import CODECS

if TYPE_CHECKING:
    from errands.server.dispatch import Dispatcher

#: Seconds that calls have to end by themselves once the agent has drained.
_GRACE = 1.0
#: The shortest time between a client's pings that is not taken for an attack.
_PING_MS = 5_000
#: How long a connection may have no calls. Clients connect again when they have one.
_IDLE_MS = 300_000


class GrpcServer:
    """An async context manager: entering listens, leaving lets the calls under way end."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: Settings,
        http_server: tuple[str, int] | None = None,
        *,
        shares_port: bool = False,
    ) -> None:
        self._settings = settings
        self._host = settings.grpc_host
        self._wanted_port = settings.grpc_port or 0
        #: Where it listens; the port is known once it does.
        self.port = 0
        self._server = grpc.aio.server(options=_options(settings, shares_port))
        codecs = [CODECS[version] for version in dispatcher.routes.versions if version in CODECS]
        address = http_server or (self._host, None)
        calls = Calls(settings)
        services = [Service(codec, dispatcher, address, calls, settings.max_message_values) for codec in codecs]
        self._public = PublicServices(calls, [codec.service for codec in codecs])
        self._server.add_generic_rpc_handlers([*(service.handlers() for service in services), *self._public.handlers()])

    async def __aenter__(self) -> Self:
        try:
            self.port = self._server.add_insecure_port(host_port(self._host, self._wanted_port))
        except RuntimeError:
            raise ConfigurationError(
                f"gRPC cannot listen on port {self._wanted_port} of {self._host}: it is in use, or not an address of "
                "this machine; choose another with grpc_port and grpc_host"
            ) from None
        await self._server.start()
        self._public.report(is_serving=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(_GRACE)

    @property
    def address(self) -> str | None:
        """Where clients reach it, as the card has it; `:port` means at whatever host they use.

        Without another wish it has no scheme: the official SDKs pass what is on the card to gRPC as it is, and gRPC
        takes no URLs.
        """
        if self._settings.public_grpc is not None:
            return None if self._settings.public_grpc == NOT_ON_CARD else self._settings.public_grpc
        public = urlsplit(self._settings.public_url or "").hostname
        if public is None and means_every_address(self._host):
            return f":{self.port}"
        return host_port(public or self._host, self.port)

    def stop_serving(self) -> None:
        """Tell those who ask about our health that nothing new should be sent here."""
        self._public.report(is_serving=False)


def _options(settings: Settings, shares_port: bool) -> list[tuple[str, int]]:
    keep_alive = max(int(settings.keep_alive * 1000), 1)
    options = [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MOST_CALLS),
        # Two servers on one port would share its connections without a word, unless that is what they are for.
        ("grpc.so_reuseport", int(shares_port)),
        # A client that has vanished is noticed although nothing is said.
        ("grpc.keepalive_time_ms", keep_alive),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    ]
    if (most := _most_connections()) is not None:
        options.append(("grpc.max_allowed_incoming_connections", most))
    return options


def _most_connections() -> int | None:
    """Return an eighth of the files that this process may open: HTTP, the agent and its store need the others."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else max(files // 8, 1)
