"""The load generator for gRPC: the same work over bare HTTP/2, so that a client library is not the bottleneck.

It implements only the parts of HTTP/2 that it needs: the messages and the end of one call at a time per connection.
"""

from __future__ import annotations

import argparse
import asyncio
import struct

from a2a.types import a2a_pb2
from google.protobuf.message import DecodeError
from load import CHUNK, ID_MARK, Connection, Phase, Work, WrongAnswerError, main

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS, PADDED = 0x4, 0x8
#: The largest window that the protocol allows, so that the server never waits for the client.
WINDOW = 2**31 - 1
INITIAL_WINDOW_SIZE = 4
HEAD = struct.Struct(">HBBBI")
SERVICE = "/lf.a2a.v1.A2AService/"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def literal(name: bytes, value: str) -> bytes:
    """Encode a header that is not indexed; `name` is already encoded."""
    return name + bytes([len(value)]) + value.encode()


def header_block(path: str) -> bytes:
    new = b"\x00"
    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            literal(b"\x04", path),
            literal(b"\x01", "127.0.0.1"),
            literal(b"\x0f\x10", "application/grpc"),
            literal(literal(new, "te"), "trailers"),
            literal(literal(new, "a2a-version"), "1.0"),
        )
    )


def message_of(text: str) -> bytes:
    """Return a request with a placeholder of the length of the message ids."""
    wide = ID_MARK.decode().ljust(len("bench-00000000-0000000000"), "_")
    message = a2a_pb2.Message(
        message_id=wide, role=a2a_pb2.ROLE_USER, parts=[a2a_pb2.Part(text=text.replace(ID_MARK.decode(), wide))]
    )
    raw = a2a_pb2.SendMessageRequest(message=message).SerializeToString()
    return struct.pack(">BI", 0, len(raw)) + raw.replace(wide.encode(), ID_MARK)


class GrpcSend:
    path = "SendMessage"

    def __init__(self) -> None:
        self.template = message_of("hello @ID@")

    def check(self, message_id: bytes, body: bytes) -> None:
        try:
            task = a2a_pb2.SendMessageResponse.FromString(body[5:]).task
        except DecodeError as error:
            raise WrongAnswerError(f"{error}: {body[:300]!r}") from error
        texts = [part.text for artifact in task.artifacts for part in artifact.parts]
        if task.status.state != a2a_pb2.TASK_STATE_COMPLETED or texts != [f"Echo: hello {message_id.decode()}"]:
            raise WrongAnswerError(f"not the completed echo: {body[:300]!r}")


class GrpcStream:
    path = "SendStreamingMessage"

    def __init__(self, chunks: int) -> None:
        self.template = message_of(f"stream {chunks}")
        self._expected = [b"%08d" % index for index in range(chunks)]

    def check(self, message_id: bytes, body: bytes) -> None:
        found = CHUNK.findall(body)
        if found != self._expected:
            raise WrongAnswerError(f"{len(found)} chunks of {len(self._expected)}: {body[-300:]!r}")
        events = [a2a_pb2.StreamResponse.FromString(raw) for raw in messages(body)]
        artifacts = sum(event.HasField("artifact_update") for event in events)
        if artifacts != len(self._expected):
            raise WrongAnswerError(f"{artifacts} artifact events for {len(self._expected)} chunks")
        if events[-1].status_update.status.state != a2a_pb2.TASK_STATE_COMPLETED:
            raise WrongAnswerError(f"the last event is not completed: {body[-300:]!r}")


def messages(body: bytes) -> list[bytes]:
    found, start = [], 0
    while start < len(body):
        end = start + 5 + int.from_bytes(body[start + 1 : start + 5], "big")
        found.append(body[start + 5 : end])
        start = end
    return found


class GrpcConnection(Connection):
    """One HTTP/2 connection with one call at a time."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase)
        self._headers = header_block(SERVICE + phase.work.path)  # type: ignore[attr-defined]
        self._stream = -1
        self._pending = b""
        self._unacknowledged = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(  # type: ignore[attr-defined]
            PREFACE
            + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, WINDOW))
            + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65_535))
        )
        super().connection_made(transport)

    def _write(self, request: bytes) -> None:
        self._stream += 2
        self._transport.write(
            frame(HEADERS, END_HEADERS, self._stream, self._headers) + frame(DATA, END_STREAM, self._stream, request)
        )

    def data_received(self, data: bytes) -> None:
        buffer = self._pending + data if self._pending else data
        start, size = 0, len(buffer)
        while size - start >= HEAD.size:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, start)
            end = start + HEAD.size + (high << 8 | low)
            if end > size:
                break
            self._receive(kind, flags, stream, buffer[start + HEAD.size : end])
            start = end
        self._pending = buffer[start:]

    def _receive(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._acknowledge(len(payload))
            self._body.append(payload[1 : len(payload) - payload[0]] if flags & PADDED else payload)
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind in (RST_STREAM, GOAWAY):
            self._phase.tally.fail(f"the server ended the call: {payload!r}")
            self._stop()
        if kind in (DATA, HEADERS) and flags & END_STREAM and stream == self._stream:
            self._answered()

    def _acknowledge(self, received: int) -> None:
        self._unacknowledged += received
        if self._unacknowledged > 2**20:
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged)))
            self._unacknowledged = 0


def work_of(arguments: argparse.Namespace) -> Work:
    return GrpcStream(arguments.chunks) if arguments.chunks else GrpcSend()


if __name__ == "__main__":
    main(GrpcConnection, work_of)
