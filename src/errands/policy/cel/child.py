"""Evaluations in a process of their own, for expressions that nobody can trust and for work that may take long.

Native code cannot be interrupted, so only a process can be stopped. `main` answers one `Request` or `Job` after the
other and never waits for a call: it says which one is pending, and the parent (`errands.policy.cel.evaluators`) asks
again with a session that has its result. Nothing is kept between requests but what was compiled.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import struct
import sys
from typing import Any, BinaryIO

import msgspec

from errands.policy.cel.errors import CelError, Suspended
from errands.policy.cel.program import compile, run  # noqa: A004 - the word for it
from errands.policy.cel.scopes import Scope
from errands.policy.cel.session import Call, Session
from errands.policy.cel.tokens import Needs
from errands.policy.cel.values import Json
from errands.policy.cel.variables import Variables

#: None where the system does not have it.
resource: Any = importlib.import_module("resource") if importlib.util.find_spec("resource") else None

#: The size of what follows.
HEAD = struct.Struct(">I")


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="expression"):
    """An expression, what it needs to see, and how far it has come."""

    scope: Scope
    source: str
    condition: bool = False
    context: dict[str, Json] | None = None
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
        return _done(request)
    try:
        program = compile(request.scope, request.source, condition=request.condition)
        # The context is already no more than it needs.
        program = msgspec.structs.replace(program, needs=Needs(whole=True))
        variables = Variables(request.context, **request.values)
        return Value(run(program, variables, request.session, place=request.place))
    except Suspended as suspended:
        return Pending(suspended.call)
    except CelError as error:
        return Failed(error.problem, error.hint, error.line, error.column)


def _done(job: Job) -> Answer:
    function = getattr(importlib.import_module(job.module), job.function)
    try:
        return Value(msgspec.json.encode(function(*msgspec.json.decode(job.arguments))).decode())
    except (ValueError, RecursionError) as error:
        return Failed(str(error))


def main() -> None:
    """Reads requests and writes answers until there are no more. The argument is the greatest size of the process."""
    _limit("RLIMIT_AS", int(sys.argv[1]))
    _limit("RLIMIT_CORE", 0)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Whatever else is printed must not be taken for an answer.
    os.dup2(2, 1)
    decoder: msgspec.msgpack.Decoder[Request | Job] = msgspec.msgpack.Decoder(Request | Job)
    _write(answers, b"")
    while head := requests.read(HEAD.size):
        request = decoder.decode(requests.read(HEAD.unpack(head)[0]))
        _limit_processor(request.seconds)
        _write(answers, msgspec.msgpack.encode(answer(request)))


def _write(answers: BinaryIO, content: bytes) -> None:
    answers.write(HEAD.pack(len(content)) + content)
    answers.flush()


def _limit_processor(seconds: float) -> None:
    """For the case that the parent is no longer there to stop this process."""
    if resource is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit("RLIMIT_CPU", math.ceil(used.ru_utime + used.ru_stime + seconds) + 1)


def _limit(name: str, most: int) -> None:
    """Where the system has such a limit; elsewhere the parent's time-out must do."""
    if resource is None or not hasattr(resource, name):
        return
    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
