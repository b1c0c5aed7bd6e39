"""The child process that evaluates untrusted expressions and does work that may take long.

`main` answers one `Request` or `Job` after the other and never waits for a call: it says which one is pending, and the
parent (`errands.policy.cel.evaluators`) asks again with a session that has its result. Only compiled programs are kept
between requests.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import struct
import sys
import time
from typing import Any, BinaryIO

import msgspec

from errands.policy.cel.program import Variables, compile, run  # noqa: A004 - the word for it
from errands.policy.cel.scopes import NameScope
from errands.policy.cel.session import Call, CelError, Session, Suspended
from errands.policy.cel.values import Json

#: None where the system does not have it.
resource: Any = importlib.import_module("resource") if importlib.util.find_spec("resource") else None

#: The size of what follows.
HEAD = struct.Struct(">I")


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="expression"):
    """An expression, the values it needs, and the calls it has made."""

    scope: NameScope
    source: str
    condition: bool = False
    #: By the names of the variables.
    values: dict[str, Json] = {}
    session: Session
    place: str = ""
    #: Of processor time.
    seconds: float


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """A function of errands that takes and returns plain JSON; its answer is a `Value` with JSON text."""

    module: str
    function: str
    #: A JSON list, because MessagePack has no integers of more than 64 bits.
    arguments: bytes
    #: Of processor time.
    seconds: float


class Value(msgspec.Struct, frozen=True, tag="value"):
    value: Json


class Pending(msgspec.Struct, frozen=True, tag="pending"):
    call: Call


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """What a `CelError` says."""

    problem: str
    hint: str = ""
    line: int | None = None
    column: int | None = None


Answer = Value | Pending | Failed


def answer(request: Request | Job) -> Answer:
    if isinstance(request, Job):
        function = getattr(importlib.import_module(request.module), request.function)
        try:
            return Value(msgspec.json.encode(function(*msgspec.json.decode(request.arguments))).decode())
        except (ValueError, RecursionError) as error:
            return Failed(str(error))
    try:
        program = compile(request.scope, request.source, condition=request.condition)
        # The parent sends only the part of the context that it needs.
        program = msgspec.structs.replace(program, needs=frozenset({()}))
        return Value(run(program, Variables(**request.values), request.session, place=request.place))
    except Suspended as suspended:
        return Pending(suspended.call)
    except CelError as error:
        return Failed(error.problem, error.hint, error.line, error.column)


def main() -> None:
    """Read requests and write answers until the input ends. The argument is the most memory that may be used."""
    _limit("RLIMIT_AS", int(sys.argv[1]))
    _limit("RLIMIT_CORE", 0)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Anything that is printed must not be taken for an answer.
    os.dup2(2, 1)
    decoder: msgspec.msgpack.Decoder[Request | Job] = msgspec.msgpack.Decoder(Request | Job)
    _write(answers, b"")
    while head := requests.read(HEAD.size):
        request = decoder.decode(requests.read(HEAD.unpack(head)[0]))
        # In case the parent is not there any more to stop this process.
        _limit("RLIMIT_CPU", math.ceil(time.process_time() + request.seconds) + 1)
        _write(answers, msgspec.msgpack.encode(answer(request)))


def _write(answers: BinaryIO, content: bytes) -> None:
    answers.write(HEAD.pack(len(content)) + content)
    answers.flush()


def _limit(name: str, most: int) -> None:
    """Set a limit where the system has it; elsewhere the parent's timeout must do."""
    if not hasattr(resource, name):
        return
    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
