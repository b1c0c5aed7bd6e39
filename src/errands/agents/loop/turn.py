"""One turn of a task of an agent that is written down: from where its records say it stands to the turn's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from errands.agents.delegation.base import Delegate
from errands.agents.loop.answering import Answering, answer_message, told
from errands.agents.loop.calls import Calls
from errands.agents.loop.course import Course, refusal
from errands.agents.loop.executing import Executing
from errands.agents.loop.handing_down import errand_of
from errands.agents.loop.inputs import read_input
from errands.agents.loop.outcomes import AnswerBrokenError, PausedError, TaskOverError
from errands.agents.loop.plan import Repertoire
from errands.agents.loop.progress import AskModel, GiveOutput, GuardInput, MakeCalls, TakeInput
from errands.agents.manifests.functions import ArgumentsError
from errands.agents.tools.base import BrokenToolError
from errands.agents.tools.toolbox import ToolTurn
from errands.clock import from_iso, to_iso
from errands.model.core import COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, Part
from errands.policy.cel.evaluators import current_evaluators
from errands.policy.limits import Exceeded, check_age, parse_duration
from errands.policy.pipeline import Passed, Subject
from errands.policy.records import (
    AllowListSealed,
    CapabilityBegan,
    Ended,
    InputArrived,
    InputPassed,
    InputRefused,
    OutputGiven,
    Started,
    ToolsClosed,
    Waiting,
)
from errands.policy.reviews import held_review_message, review_message, reviewer_of
from errands.policy.run import Run, inputs
from errands.runtime.context import TaskContext

if TYPE_CHECKING:
    from errands.agents.loop.worker import ManifestWorker

logger = logging.getLogger(__name__)


class TaskTurn:
    """One turn of one task."""

    def __init__(self, worker: ManifestWorker, ctx: TaskContext) -> None:
        self._worker = worker
        self._plan = worker.plan
        self._ctx = ctx
        self._run: Run | None = None

    async def _opened(self) -> Run:
        if self._run is None:
            self._run = await Run.open(self._ctx._turn, self._ctx._turn.journal, self._ctx._turn.stored)
        return self._run

    async def work(self) -> None:
        """Goes on from where the records say that the task stands, until the turn has ended."""
        worker, ctx = self._worker, self._ctx
        files = worker.mounts.files(worker.agent, ctx.task_id) if worker.mounts is not None else None
        async with worker.toolbox.turn(task_id=ctx.task_id, files=files) as tools:
            run = await self._opened()
            try:
                repertoire = await worker.repertoire()
                problem = None
            except BrokenToolError as error:
                repertoire, problem = worker.declared(), str(error)
            if not run.started:
                run.note(self._started(repertoire))
            course = Course(run, files, worker.runtime, self._plan.policy.version, self._plan.limits_of_policy)
            try:
                if course.progress.over is not None:
                    raise TaskOverError(course.progress.over)
                if problem is not None:
                    course.fail("The tools of this agent cannot be used", problem)
                await self._advance(course, repertoire, tools)
            except PausedError as pause:
                await self._pause(course, pause)
            except AnswerBrokenError as broken:
                await self._leave_open(course, str(broken))
            except TaskOverError as over:
                await self._end(course, tools, over.ended)

    def _started(self, repertoire: Repertoire) -> Started:
        ctx, agent = self._ctx, self._worker.agent
        options = ctx._turn.options
        return Started(
            at=to_iso(ctx._turn.stored.head.created_at),
            agent=agent.name,
            namespace=agent.namespace,
            user=ctx.owner,
            email=options.email or None,
            model=self._worker.model_name,
            functions=repertoire.names(delegations=False),
            delegations=repertoire.names(delegations=True),
            parent=options.parent,
            depth=options.depth,
        )

    async def _advance(self, course: Course, repertoire: Repertoire, tools: ToolTurn) -> None:
        """Does one thing after the other until the turn has ended."""
        worker, ctx = self._worker, self._ctx
        answering = Answering(ctx, course, self._plan, worker.model, worker.model_name)
        depth = _started_in(course.run).depth
        executing = Executing(
            course, tools, worker.delegates, task_id=ctx.task_id, scope=ctx._turn.stored.scope, depth=depth
        )
        evaluators = worker.evaluators or current_evaluators()
        assert evaluators is not None, "whoever runs turns has some"
        calls = Calls(course, repertoire, worker.plan.limits, executing=executing, evaluators=evaluators)
        while True:
            match course.progress.next():
                case TakeInput():
                    if not await self._take_input(course):
                        return
                    if course.progress.is_new and (sealed := await calls.sealed(course.run.now())):
                        course.note(AllowListSealed(at=course.run.now(), tools=sealed))
                case GuardInput(arrived):
                    await self._guard_input(course, calls, arrived)
                case AskModel():
                    await self._in_time(course, answering.ask(repertoire))
                case MakeCalls() as wanted:
                    await self._in_time(course, calls.make(wanted))
                case GiveOutput() as given:
                    await self._give(course, tools, answering, calls, given)
                    return

    # Input

    async def _take_input(self, course: Course) -> bool:
        """Takes the oldest message in that was not yet; false when the turn has ended without an input."""
        history = self._ctx._turn.stored.task.history
        key, message = next((item for item in inputs(history) if item[0] not in course.progress.taken), ("", None))
        if message is None:
            await self._ctx._turn.end(INPUT_REQUIRED)
            return False
        run = course.run
        course.check(check_age(self._plan.limits, run.context, run.now_ms()))
        try:
            values = await read_input(self._plan, key, message, run.arrived)
        except ArgumentsError as error:
            await self._refuse(course, key, str(error))
            return False
        course.note(InputArrived(at=run.now(), values=values, message_id=key))
        return True

    async def _refuse(self, course: Course, key: str, problem: str) -> None:
        """The message is no input of this agent: its sender is told what to send instead."""
        course.note(InputRefused(at=course.run.now(), message_id=key, reason=problem))
        parts = [Part(text=f"This input cannot be taken: {problem}. Send a text, and parameters as a data part.")]
        parts.append(Part(data={"schema": self._plan.inputs.schema}, media_type="application/schema+json"))
        await self._ctx._turn.end(INPUT_REQUIRED, message=self._ctx._turn.agent_message(parts))

    async def _guard_input(self, course: Course, calls: Calls, arrived: InputArrived) -> None:
        place = course.place(f"input:{arrived.message_id}", self._plan.form_of_input)
        key = course.session_key(place)
        outcome = await course.steps(
            self._plan.guards_input,
            Subject(context=course.run.plain, input=arrived.values),
            course.progress.session(key, arrived.at),
            key=key,
            invoke=calls.invoker(place, arrived.at),
        )
        if not isinstance(outcome, Passed):
            course.over("restricted", refusal(outcome))
        values = outcome.value if outcome.transformed else None
        course.note(InputPassed(at=course.run.now(), message_id=arrived.message_id, values=values))

    # Model and calls

    async def _in_time(self, course: Course, work: Coroutine[Any, Any, None]) -> None:
        """Does what may take long; the task's age bounds it, too."""
        limits, run = self._plan.limits, course.run
        if limits.max_age is None:
            await work
            return
        started, allowed = from_iso(run.context.agent.started_at), parse_duration(limits.max_age)
        left = max(allowed - (run.now_ms() - started), 0) / 1000
        try:
            async with asyncio.timeout(left + 0.001) as timer:
                await work
        except TimeoutError:
            if not timer.expired():
                raise
            course.check(Exceeded("max_age", allowed, max(run.now_ms() - started, allowed + 1)))

    # Output

    async def _give(
        self, course: Course, tools: ToolTurn, answering: Answering, calls: Calls, answered: GiveOutput
    ) -> None:
        course.check(check_age(self._plan.limits, course.run.context, course.run.now_ms()))
        at = answered.answer.at
        output = await answering.output(answered.text, at)
        place = course.place(f"output:{course.progress.outputs}", self._plan.form_of_output)
        key = course.session_key(place)
        outcome = await course.steps(
            self._plan.guards_output,
            Subject(context=course.run.plain, output=output, expose=lambda message: answering.exposed(message, at)),
            course.progress.session(key, at),
            key=key,
            invoke=calls.invoker(place, at),
        )
        if not isinstance(outcome, Passed):
            course.over("restricted", refusal(outcome))
        given = outcome.value
        message = answer_message(self._ctx, given, answered.answer.incomplete)
        artifacts = [answering.artifact(given)]
        state = COMPLETED if self._closes(course) else INPUT_REQUIRED
        course.note(OutputGiven(at=course.run.now(), values=given))
        if state is COMPLETED:
            await self._close_tools(course, tools)
        await self._ctx._turn.end(state, message=message, artifacts=artifacts)

    def _closes(self, course: Course) -> bool:
        """Whether the task ends with this answer; otherwise it waits for more."""
        close_after = self._plan.agent.close_after
        is_last = close_after is not None and course.progress.outputs + 1 >= close_after
        return is_last or bool(_started_in(course.run).parent)

    # Other ends of a turn

    async def _pause(self, course: Course, pause: PausedError) -> None:
        call, subject, ctx = pause.call, pause.subject, self._ctx
        if not course.progress.waits(pause.key):
            hidden = subject if pause.held else None
            at = course.run.now()
            course.note(Waiting(at=at, call=call, session=pause.session, key=pause.key, subject=hidden))
        if pause.held:
            message = held_review_message(call, task_id=ctx.task_id, context_id=ctx.context_id)
        else:
            message = review_message(
                call, subject, task_id=ctx.task_id, context_id=ctx.context_id, function=pause.function
            )
        await ctx._turn.end(INPUT_REQUIRED, message=message, asks=reviewer_of(call))

    async def _leave_open(self, course: Course, message: str) -> None:
        """Ends the turn without an answer to its message; the task waits for another one."""
        unanswered = course.progress.input
        assert unanswered is not None
        course.note(InputRefused(at=course.run.now(), message_id=unanswered.message_id, reason=message))
        await self._ctx._turn.end(INPUT_REQUIRED, message=told(self._ctx, message, reason="interrupted"))

    async def _end(self, course: Course, tools: ToolTurn, ended: Ended) -> None:
        await self._cancel_children(course)
        await self._close_tools(course, tools)
        state = REJECTED if ended.reason == "restricted" else FAILED
        await self._ctx._turn.end(state, message=told(self._ctx, ended.detail, reason=ended.reason))

    async def let_go(self) -> None:
        """After a cancel: what the task began elsewhere is ended."""
        worker, ctx = self._worker, self._ctx
        if ctx._turn.ended:
            return
        run = await self._opened()
        if not run.started:
            return
        async with worker.toolbox.turn(task_id=ctx.task_id) as tools:
            course = Course(run, None, worker.runtime)
            await self._cancel_children(course)
            await self._close_tools(course, tools)

    async def _cancel_children(self, course: Course) -> None:
        # At the same time: the turn may have no time left when the first of them is through.
        await asyncio.gather(*(self._cancel_child(course, began) for began in course.progress.open_calls))

    async def _cancel_child(self, course: Course, began: CapabilityBegan) -> None:
        ctx, delegate = self._ctx, self._delegate_of(began.function)
        if delegate is None:
            return
        task_id = course.progress.children.get(began.call)
        try:
            if task_id is not None:
                await delegate.cancel(task_id, ctx._turn.stored.scope)
            else:
                depth = _started_in(course.run).depth
                scope = ctx._turn.stored.scope
                errand = errand_of(course, began, parent=ctx.task_id, scope=scope, depth=depth)
                await delegate.cancel_errand(errand)
        except Exception:
            logger.exception("task %s: the child of %s could not be canceled", ctx.task_id, began.call)

    def _delegate_of(self, function: str) -> Delegate | None:
        routine = self._worker.declared().routines.get(function)
        return None if routine is None else self._worker.delegates.get(routine.function.ref)

    async def _close_tools(self, course: Course, tools: ToolTurn) -> None:
        if course.progress.tools:
            await tools.teardown(course.progress.tools)
            with suppress(Exception):
                course.note(ToolsClosed(at=course.run.now()))


def _started_in(run: Run) -> Started:
    return next(record for record in run.records if isinstance(record, Started))
