"""The gRPC server beside the HTTP one: every protocol version on one port, with reflection and health."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from errands.errors import ConfigurationError
from errands.server.addresses import host_port, means_every_address
from errands.server.grpc_binding import Service
from errands.wire.proto import v0_3, v1_0
from errands.wire.proto.codec import Codec

if TYPE_CHECKING:
    from errands.runtime.settings import Settings
    from errands.server.dispatch import Dispatcher

CODECS: dict[str, Codec] = {codec.version: codec for codec in (v1_0.CODEC, v0_3.CODEC)}

#: Seconds that calls have to end by themselves once the agent has drained.
_GRACE = 1.0
#: The shortest time between a client's pings that is not taken for an attack.
_PING_MS = 5_000


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
        self._health = health.HealthServicer()
        codecs = [CODECS[version] for version in dispatcher.repertoire.versions if version in CODECS]
        address = http_server or (self._host, None)
        self._server.add_generic_rpc_handlers([Service(codec, dispatcher, address).handlers() for codec in codecs])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._services = [codec.service for codec in codecs]
        reflection.enable_server_reflection((*self._services, HEALTH_SERVICE, reflection.SERVICE_NAME), self._server)

    async def __aenter__(self) -> Self:
        try:
            self.port = self._server.add_insecure_port(host_port(self._host, self._wanted_port))
        except RuntimeError:
            raise ConfigurationError(
                f"gRPC cannot listen on port {self._wanted_port} of {self._host}: it is in use, or not an address of "
                "this machine; choose another with grpc_port and grpc_host"
            ) from None
        await self._server.start()
        await self._report(health_pb2.HealthCheckResponse.SERVING)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(_GRACE)

    @property
    def address(self) -> str:
        """Where clients reach it, as the card has it: `host:port` without a scheme, `:port` at whatever host."""
        if self._settings.public_grpc:
            return self._settings.public_grpc
        public = urlsplit(self._settings.public_url or "").hostname
        if public is None and means_every_address(self._host):
            return f":{self.port}"
        return host_port(public or self._host, self.port)

    async def stop_serving(self) -> None:
        """Tells those who ask about our health that nothing new should be sent here."""
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _report(self, status: Any) -> None:
        for service in ("", *self._services):
            await self._health.set(service, status)


def _options(settings: Settings, shares_port: bool) -> list[tuple[str, int]]:
    keep_alive = max(int(settings.keep_alive * 1000), 1)
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its connections without a word, unless that is what they are for.
        ("grpc.so_reuseport", int(shares_port)),
        # A client that has vanished is noticed although nothing is said.
        ("grpc.keepalive_time_ms", keep_alive),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
    ]
