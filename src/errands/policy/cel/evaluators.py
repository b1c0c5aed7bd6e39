"""Processes that evaluate what nobody can trust or what may take long: warm, few, and killed when they take too long.

What runs in them is `errands.policy.cel.child`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from errands.errors import ErrandsError
from errands.policy.cel.child import HEAD, Answer, Failed, Job, Request, Value
from errands.policy.cel.values import Json

#: Seconds to start; a machine under load needs some.
_START = 60.0
#: A process is replaced after so many evaluations.
_MOST_ASKED = 1_000
_PROGRAM = "from errands.policy.cel.child import main; main()"

_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class EvaluationStopped(ErrandsError):
    """The process took too long and was killed, or it died, most often for lack of memory."""


class Evaluators:
    """At most `most` processes at a time; further evaluations wait. Belongs to one event loop; `close` ends it."""

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
        """Raises `EvaluationStopped`."""
        async with self._turns:
            if self._idle:
                try:
                    return await self._ask(self._idle.pop(), request)
                except _Died:
                    # It may have died long before; what kills a process kills a fresh one, too.
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
    """Those of the turn that is run here; None where nobody else would have to wait for a long evaluation."""
    return _CURRENT.get()


def use_evaluators(evaluators: Evaluators) -> None:
    """They are the current ones from here on, and in all tasks that are begun from here."""
    _CURRENT.set(evaluators)


class _Died(Exception):
    pass


class _Evaluator:
    def __init__(self, process: Process) -> None:
        self._process = process
        self.asked = 0

    @classmethod
    async def start(cls, memory: int) -> _Evaluator:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _PROGRAM,
            str(memory),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            # Nothing of the server's environment but where its modules are.
            env={"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            # Ctrl-C is for the server; without it, this process finds its input at an end.
            start_new_session=True,
        )
        evaluator = cls(process)
        try:
            async with asyncio.timeout(_START):
                await evaluator._read()
        except BaseException as error:
            await evaluator.kill()
            if isinstance(error, asyncio.IncompleteReadError | TimeoutError):
                raise EvaluationStopped("no process could be started for it") from None
            raise
        return evaluator

    async def ask(self, request: Request | Job) -> Answer:
        self.asked += 1
        content = msgspec.msgpack.encode(request)
        assert self._process.stdin is not None
        self._process.stdin.write(HEAD.pack(len(content)) + content)
        await self._process.stdin.drain()
        return _ANSWER.decode(await self._read())

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        [size] = HEAD.unpack(await self._process.stdout.readexactly(HEAD.size))
        return await self._process.stdout.readexactly(size)

    async def kill(self) -> None:
        # That kills it, too. `wait` waits for the pipes, and nobody reads what is left in them; and asyncio complains
        # of a process that it finds dead here before it has noticed, as one that was killed just before may be.
        self._process._transport.close()  # type: ignore[attr-defined]
        await asyncio.shield(self._process.wait())
