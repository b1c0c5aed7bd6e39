"""Evaluating as the server does it: calls are waited for, and what may take long is done in another process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from errands.policy.cel.child import Failed, Pending, Request
from errands.policy.cel.effort import LONG
from errands.policy.cel.errors import CallFailed, CelError, Suspended
from errands.policy.cel.evaluators import EvaluationStopped, Evaluators, current_evaluators
from errands.policy.cel.program import Program, check_seen, run
from errands.policy.cel.session import Call, Session
from errands.policy.cel.values import Json
from errands.policy.cel.variables import Variables

#: Performs one call and returns its result. Raises `CallFailed` for a failure to remember, `Suspended` to wait.
Perform = Callable[[Call], Awaitable[Any]]


async def evaluate(
    program: Program, variables: Variables, session: Session, *, perform: Perform | None = None, place: str = ""
) -> Json:
    """The value of the expression; its calls are made one after the other by `perform`.

    Without `perform`, or when it raises `Suspended`, the evaluation stops with `Suspended`. Settle the call in the
    session and evaluate again, in this process or another: no call that has finished is made again.
    """
    while True:
        try:
            if (evaluators := current_evaluators()) is not None and is_long(program, variables, session):
                return await _run_elsewhere(evaluators, program, variables, session, place)
            return run(program, variables, session, place=place)
        except Suspended as suspended:
            if perform is None:
                raise
            await finish(suspended.call, session, perform)


async def finish(call: Call, session: Session, perform: Perform) -> None:
    """Makes a call and keeps its result in the session. What `perform` raises beside `CallFailed` comes out."""
    try:
        result = await perform(call)
    except CallFailed as failure:
        session.fail(call, str(failure))
    else:
        session.settle(call, result)


def is_long(program: Program, variables: Variables, session: Session) -> bool:
    """Whether the evaluation may hold its process for longer than others should wait."""
    effort, size = program.effort, variables.size(program.scope, program.needs, program.names)
    if session.finished and (program.scope.functions or program.scope.capabilities):
        size += len(msgspec.json.encode(session.finished))
    if not effort.loops or effort.least(size) > LONG:
        return effort.least(size) > LONG
    return effort.of(size, variables.longest(program.scope, program.needs)) > LONG


async def _run_elsewhere(
    evaluators: Evaluators, program: Program, variables: Variables, session: Session, place: str
) -> Json:
    check_seen(program, variables)
    context, values = variables.named(program.scope, program.needs, program.names)
    request = Request(
        scope=program.scope,
        source=program.source,
        condition=program.condition,
        context=context,
        values=values,
        session=session,
        place=place,
        seconds=evaluators.timeout,
    )
    return await ask(evaluators, request, hint="let it look at less, or loop less often")


async def ask(evaluators: Evaluators, request: Request, *, hint: str) -> Json:
    """The value of an expression that another process evaluates. Raises `Suspended` and `CelError` as `run` does."""
    try:
        answer = await evaluators.evaluate(request)
    except EvaluationStopped as error:
        raise CelError(request.source, str(error), hint=hint) from None
    if isinstance(answer, Failed):
        raise CelError(request.source, answer.problem, hint=answer.hint, line=answer.line, column=answer.column)
    if isinstance(answer, Pending):
        raise Suspended(answer.call)
    return answer.value
