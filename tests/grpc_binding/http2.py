"""HTTP/2 as no gRPC library speaks it: calls whose messages never come to their end, and clients that read nothing."""

from __future__ import annotations

import socket
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW = 4
_FRAME = 16_384


class Connection:
    """One connection. `window` is how much of an answer the server may send on each call."""

    def __init__(self, port: int, *, window: int = 65_535) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._calls = 0
        #: What may still be sent, by call; 0 is the connection.
        self._credit = {0: 65_535}
        self._initial = 65_535
        self._received = b""
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, window)))

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, message: bytes = b"", *, length: int | None = None) -> int:
        """Begin a call with a message of which only the beginning may be sent: `length` is what is announced."""
        number = 2 * self._calls + 1
        self._calls += 1
        self._credit[number] = self._initial
        headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "test"}
        headers |= {"te": "trailers", "content-type": "application/grpc"}
        block = b"".join(_literal(name, value) for name, value in headers.items())
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, number, block))
        announced = len(message) if length is None else length
        self._send(number, b"\x00" + struct.pack(">I", announced) + message)
        if length is None:
            self._socket.sendall(_frame(_DATA, _END_STREAM, number, b""))
        return number

    def _send(self, number: int, content: bytes) -> None:
        """Send the content as the server gives leave to; what it does not give leave to within a second is left out."""
        while content:
            size = min(self._credit[0], self._credit[number], _FRAME, len(content))
            if size <= 0:
                if not self._listen(1.0):
                    return
                continue
            self._socket.sendall(_frame(_DATA, 0, number, content[:size]))
            self._credit[0] -= size
            self._credit[number] -= size
            content = content[size:]

    def _listen(self, timeout: float) -> bool:
        """Take in the next frame; return whether there was one in time."""
        self._socket.settimeout(timeout)
        try:
            head = self._read(9)
            kind, flags = head[3], head[4]
            number = int.from_bytes(head[5:9], "big") & 0x7FFF_FFFF
            body = self._read(int.from_bytes(head[:3], "big"))
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(60)
        if kind == _WINDOW_UPDATE:
            self._credit[number] = self._credit.get(number, 0) + int.from_bytes(body, "big")
        elif kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(body), 6):
                name, value = struct.unpack(">HI", body[at : at + 6])
                if name == _INITIAL_WINDOW:
                    for each in self._credit.keys() - {0}:
                        self._credit[each] += value - self._initial
                    self._initial = value
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, body))
        return True

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            piece = self._socket.recv(65_536)
            if not piece:
                raise TimeoutError
            self._received += piece
        taken, self._received = self._received[:size], self._received[size:]
        return taken


def _frame(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + body


def _literal(name: str, value: str) -> bytes:
    """A header as HPACK writes it without its tables."""
    return b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
