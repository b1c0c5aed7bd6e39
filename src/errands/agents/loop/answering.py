"""The model's answers: asked for, streamed out as they come, and given as the agent's output."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Set
from typing import Any

import msgspec

from errands.agents.exposed import INCOMPLETE, exposed_part
from errands.agents.loop.calls import MOST_CALLS
from errands.agents.loop.course import Course
from errands.agents.loop.inputs import with_files
from errands.agents.loop.outcomes import AnswerBrokenError
from errands.agents.loop.plan import Plan, Repertoire
from errands.agents.models.base import Model, ModelError, Question
from errands.agents.models.completions import unused_id
from errands.model.core import Artifact, Message, Part, TaskArtifactUpdateEvent
from errands.policy.cel import CelError, Session, Variables, evaluate
from errands.policy.cel.values import Json
from errands.policy.limits import check_after_model, check_before_model
from errands.policy.records import FunctionCall, ModelCalled
from errands.runtime.context import TaskContext

logger = logging.getLogger(__name__)

#: The newest answer; those before it are in the history.
ARTIFACT = "answer"

#: What the loop makes of ids: calls of steps and scripts, and sessions.
_OUR_IDS = re.compile(r"^(input|output):|:(before|after|execute|script|[0-9a-f]{12})([:@]|$)")
_LONGEST_ID = 256


class Answering:
    """Asks the model in one turn."""

    def __init__(self, ctx: TaskContext, course: Course, plan: Plan, model: Model, model_name: str) -> None:
        self._ctx = ctx
        self._course = course
        self._plan = plan
        self._model = model
        self._model_name = model_name
        self._limits = plan.limits
        #: The text of the answer that was streamed last.
        self._streamed: str | None = None

    async def ask(self, repertoire: Repertoire) -> None:
        """One answer of the model, recorded. Raises `TaskOverError` when a limit or the model itself is in the way."""
        run = self._course.run
        self._course.check(check_before_model(self._limits, run.context, run.now_ms()))
        at = run.now()
        try:
            system = await self._plan.prompt.text(Variables(run.plain(), runtime=self._course.runtime), Session(at))
        except CelError as error:
            self._course.fail("The prompt of this agent cannot be written", error.problem)
        question = Question(
            model=self._model_name,
            system=system,
            said=with_files(self._course.progress.said, self._ctx._turn.stored.task.history or ()),
            offers=repertoire.offers,
            builtins=tuple(self._plan.agent.model_capabilities or ()),
            agent=self._plan.agent.name,
        )
        # What guardrails have yet to look at is not shown.
        held_back = bool(self._plan.guards_output.steps)
        self._streamed = None
        try:
            answer = await self._model.ask(question, None if held_back else self._stream)
        except ModelError as error:
            if error.broke_off and not self._ctx._turn.options.parent:
                told = self._course.plainly("The answer broke off; send your message again, or another", error)
                raise AnswerBrokenError(told) from None
            self._course.fail(error.told, error)
        called = ModelCalled(
            at=at,
            model=answer.model,
            prompt=answer.prompt_tokens,
            completion=answer.completion_tokens,
            text=answer.text,
            # One more than are made says that they are too many.
            calls=tuple(with_own_ids(answer.calls[: MOST_CALLS + 1], self._course.progress.call_ids)),
            incomplete=answer.incomplete,
        )
        if answer.incomplete:
            logger.warning("task %s: an answer of the model is incomplete (%s)", self._ctx.task_id, answer.incomplete)
        is_empty = not answer.calls and not answer.text.strip()
        if is_empty and (answer.incomplete or not question.tells_results):
            self._course.over("errored", "The model answered without a word and without a call.", called)
        await self._course.append(called)
        self._course.check(check_after_model(self._limits, run.context))

    async def _stream(self, text: str) -> None:
        if not text:
            return
        begun = self._streamed is not None
        self._streamed = (self._streamed or "") + text
        await self._ctx.emit_text_artifact(text, artifact_id=ARTIFACT, append=begun)

    async def output(self, text: str, at: str) -> dict[str, Any]:
        """The agent's answer: the model's text, and what the agent exposes. A value that cannot be had is null.

        It is the same whenever it is made, so that what is given is what was reviewed.
        """
        message = [{"mimeType": "text/plain", "text": text}]
        return {**await self.exposed(message, at), "message": message}

    async def exposed(self, message: Json, at: str) -> dict[str, Json]:
        """The values that the agent exposes of an answer with this message."""
        run = self._course.run
        if not self._plan.exposes:
            return {}
        given = {"input": run.arrived, "output": {"message": message}, "runtime": self._course.runtime}
        variables = Variables(run.plain(), **given)
        exposed: dict[str, Json] = {}
        for name, program in self._plan.exposes.items():
            try:
                exposed[name] = await evaluate(program, variables, Session(at))
            except CelError as error:
                # What went wrong may repeat what was said.
                told = "task %s: %s is exposed as null: %r has no value"
                logger.warning(told, self._ctx.task_id, name, error.source)
                exposed[name] = None
        return exposed

    def artifact(self, output: dict[str, Any]) -> TaskArtifactUpdateEvent:
        """The answer as an artifact: the end of what was streamed, or all of it."""
        text = said_in(output)
        was_streamed = self._streamed == text
        artifact = Artifact(artifact_id=ARTIFACT, parts=[Part(text="" if was_streamed else text)])
        return self._ctx._turn.artifact_update(artifact, append=was_streamed, last_chunk=True)


def with_own_ids(calls: Iterable[FunctionCall], known: Set[str]) -> Iterator[FunctionCall]:
    """The calls of an answer by ids that stand for nothing else in the task: records are found by them."""
    used = set(known)
    for call in calls:
        usable = len(call.id) <= _LONGEST_ID and call.id.isprintable() and not _OUR_IDS.search(call.id)
        new = call.id if call.id and usable and call.id not in used else unused_id(used)
        used.add(new)
        yield msgspec.structs.replace(call, id=new)


def said_in(output: dict[str, Any]) -> str:
    """The text of an output."""
    return "\n".join(part["text"] for part in output["message"] if isinstance(part.get("text"), str))


def answer_message(ctx: TaskContext, output: dict[str, Any], incomplete: str | None) -> Message:
    """The answer as a message: its text, and the exposed values as data. Its metadata says if it is `incomplete`."""
    parts = [Part(text=said_in(output))]
    exposed = {name: value for name, value in output.items() if name != "message"}
    if exposed:
        parts.append(exposed_part(exposed))
    message = ctx._turn.agent_message(parts)
    return msgspec.structs.replace(message, metadata={INCOMPLETE: incomplete}) if incomplete else message


def told(ctx: TaskContext, text: str, **metadata: Any) -> Message:
    """A message with a text, and with metadata for programs."""
    return msgspec.structs.replace(ctx._turn.agent_message([Part(text=text)]), metadata=metadata)
