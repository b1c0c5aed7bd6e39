"""The sockets that `errands serve` listens on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from errands.cli.failures import CommandError


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """The socket to listen on; `option` says which port it is. Raises `CommandError`."""
    try:
        return socket.create_server((host, port), family=_family(host), backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is in use; stop what uses it, or take another with {option}"
        elif error.errno == errno.EACCES:
            message = f"port {port} of {host} is not allowed to you; take one above 1023 with {option}"
        else:
            reason = str(error.strerror or error).partition(" (while")[0]
            message = f"cannot listen on port {port} of {host} ({reason}); use an address of this machine with --host"
        raise CommandError(message) from None


@contextmanager
def shared_port(host: str, port: int | None) -> Iterator[int | None]:
    """A port that several processes can listen on, kept from others meanwhile. Raises `CommandError`."""
    if port is None:
        yield None
        return
    # Whoever else shares the port would get some of our connections: it has to be free.
    bind(host, port, option="--grpc-port").close()
    with socket.socket(_family(host)) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind((host, port))
        yield keeper.getsockname()[1]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
