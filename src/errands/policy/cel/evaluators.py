"""Evaluating expressions without making others wait: calls are performed, and long evaluations run elsewhere.

Native code cannot be interrupted, so expressions from models and expressions over large values are evaluated in child
processes (`errands.policy.cel.child`), which are kept warm and are killed when they take too long.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from subprocess import DEVNULL, Popen
from typing import Any

import msgspec

from errands.errors import ErrandsError
from errands.policy.cel.child import HEAD, Answer, Failed, Job, Pending, Request, Value
from errands.policy.cel.program import Program, Variables, check_seen, run
from errands.policy.cel.session import Call, CallFailed, CelError, Session, Suspended
from errands.policy.cel.values import Json

#: Bytes of values, as JSON, over which an expression is evaluated in this process: in general, and with loops or
#: regular expressions, which the engine stops after 10,000 iterations.
MAX_BYTES = 250_000
MAX_LOOPED_BYTES = 32_000

#: Seconds that a process may take to start.
_START = 60.0
#: The number of evaluations after which a process is replaced.
_MOST_ASKED = 1_000
_PROGRAM = "from errands.policy.cel.child import main; main()"

_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class EvaluationStopped(ErrandsError):
    """The process took too long and was killed, or it died, most often for lack of memory."""


class Evaluators:
    """Up to `most` processes; further evaluations wait. Belongs to one event loop, and is closed with `close`."""

    def __init__(self, *, timeout: float = 2.0, memory: int = 512 * 1024 * 1024, most: int = 2) -> None:
        """`timeout` is for one evaluation, in seconds, `memory` for one process, in bytes."""
        self.timeout = timeout
        self._memory = memory
        self._turns = asyncio.Semaphore(most)
        self._idle: list[_Evaluator] = []
        self._closed = False

    async def run(self, function: Callable[..., Json], *arguments: Json) -> Json:
        """Call a module's function in a child process. It takes and returns plain JSON.

        Raises `EvaluationStopped`, also for a `ValueError` of the function.
        """
        job = Job(
            module=function.__module__,
            function=function.__name__,
            arguments=msgspec.json.encode(arguments),
            seconds=self.timeout,
        )
        answer = await self.evaluate(job)
        if isinstance(answer, Failed):
            raise EvaluationStopped(answer.problem)
        assert isinstance(answer, Value), "a function has no pending calls"
        return msgspec.json.decode(answer.value)

    async def evaluate(self, request: Request | Job) -> Answer:
        """Have a process answer the request. Raises `EvaluationStopped`."""
        async with self._turns:
            if self._idle:
                try:
                    return await self._ask(self._idle.pop(), request)
                except _Died:
                    # It may have died while it was idle. A request that kills a process kills a new one, too.
                    pass
            try:
                return await self._ask(await _Evaluator.start(self._memory), request)
            except _Died:
                raise EvaluationStopped("it needs too much memory") from None

    async def _ask(self, evaluator: _Evaluator, request: Request | Job) -> Answer:
        try:
            async with asyncio.timeout(self.timeout):
                found = await evaluator.ask(request)
        except TimeoutError:
            await evaluator.kill()
            raise EvaluationStopped(f"it took longer than {self.timeout:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await evaluator.kill()
            raise _Died from None
        except BaseException:
            await evaluator.kill()
            raise
        if self._closed or evaluator.asked >= _MOST_ASKED:
            await evaluator.kill()
        else:
            self._idle.append(evaluator)
        return found

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().kill()


_CURRENT: ContextVar[Evaluators | None] = ContextVar("errands_evaluators", default=None)


def current_evaluators() -> Evaluators | None:
    """Return those of the current turn; None where no other task would have to wait for a long evaluation."""
    return _CURRENT.get()


def use_evaluators(evaluators: Evaluators) -> None:
    """Make them the current ones here, and in asyncio tasks that are created from here."""
    _CURRENT.set(evaluators)


class _Died(Exception):
    pass


class _Evaluator:
    """One process, whose standard input and output are a socket."""

    def __init__(self, process: Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer
        self.asked = 0

    @classmethod
    async def start(cls, memory: int) -> _Evaluator:
        ours, theirs = socket.socketpair()
        with theirs:
            # Connected first: a process must not be forgotten when that is canceled.
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = Popen(  # noqa: ASYNC220, S603 - asyncio starts processes so, too; the command is our own
                    [sys.executable, "-c", _PROGRAM, str(memory)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=DEVNULL,
                    # Only the path to the modules: nothing else of the server's environment.
                    env={"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                    # Ctrl-C is for the server. When that has ended, this process reads the end of its input.
                    start_new_session=True,
                )
            except BaseException:
                writer.close()
                raise
        evaluator = cls(process, reader, writer)
        try:
            async with asyncio.timeout(_START):
                await evaluator.read()
        except BaseException as error:
            await evaluator.kill()
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError | TimeoutError):
                raise EvaluationStopped("no process could be started for it") from None
            raise
        return evaluator

    async def ask(self, request: Request | Job) -> Answer:
        await self.write(request)
        return _ANSWER.decode(await self.read())

    async def write(self, request: Request | Job) -> None:
        self.asked += 1
        content = msgspec.msgpack.encode(request)
        self.writer.write(HEAD.pack(len(content)) + content)
        await self.writer.drain()

    async def read(self) -> bytes:
        [size] = HEAD.unpack(await self.reader.readexactly(HEAD.size))
        return await self.reader.readexactly(size)

    async def kill(self) -> None:
        self.writer.close()
        self.process.kill()
        await asyncio.shield(self._reap())

    async def _reap(self) -> None:
        # Not in a thread: tools that block may have taken them all.
        while self.process.poll() is None:  # noqa: ASYNC110 - Popen has no event for that
            await asyncio.sleep(0.005)


# Evaluating

#: Performs one call and returns its result. Raises `CallFailed` for a failure to remember, `Suspended` to wait.
Perform = Callable[[Call], Awaitable[Any]]


async def evaluate(
    program: Program,
    variables: Variables,
    session: Session,
    *,
    perform: Perform | None = None,
    place: str = "",
    evaluators: Evaluators | None = None,
) -> Json:
    """Return the value of the expression; its calls are made one after the other by `perform`.

    Long evaluations run in the processes of `evaluators`, by default those of the current turn.

    Without `perform`, or when it raises `Suspended`, the evaluation stops with `Suspended`. Settle the call in the
    session and evaluate again, in this process or another: no call that has finished is made again.
    """
    evaluators = evaluators or current_evaluators()
    while True:
        try:
            if evaluators is None or not is_long(program, variables, session):
                return run(program, variables, session, place=place)
            check_seen(program, variables)
            request = Request(
                scope=program.scope,
                source=program.source,
                condition=program.condition,
                values=variables.seen_by(program).values,
                session=session,
                place=place,
                seconds=evaluators.timeout,
            )
            return await ask(evaluators, request, hint="let it look at less, or loop less often")
        except Suspended as suspended:
            if perform is None:
                raise
            await finish(suspended.call, session, perform)


async def finish(call: Call, session: Session, perform: Perform) -> None:
    """Make a call and keep its result in the session. Other exceptions of `perform` than `CallFailed` are raised."""
    try:
        result = await perform(call)
    except CallFailed as failure:
        session.fail(call, str(failure))
    else:
        session.settle(call, result)


def is_long(program: Program, variables: Variables, session: Session) -> bool:
    """Return whether the evaluation may hold its process for longer than other tasks should wait."""
    size = variables.seen_by(program).size
    if session.finished and (program.scope.functions or program.scope.capabilities):
        size += len(msgspec.json.encode(session.finished))
    return size > (MAX_LOOPED_BYTES if program.loops else MAX_BYTES)


async def ask(evaluators: Evaluators, request: Request, *, hint: str) -> Json:
    """Have another process evaluate an expression. Raises `Suspended` and `CelError` like `run`."""
    try:
        answer = await evaluators.evaluate(request)
    except EvaluationStopped as error:
        raise CelError(request.source, str(error), hint=hint) from None
    if isinstance(answer, Failed):
        raise CelError(request.source, answer.problem, hint=answer.hint, line=answer.line, column=answer.column)
    if isinstance(answer, Pending):
        raise Suspended(answer.call)
    return answer.value
