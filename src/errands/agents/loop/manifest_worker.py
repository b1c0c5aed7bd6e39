"""`ManifestWorker`: an agent from a manifest, as a worker like any other, and one turn of it.

A turn continues from what the records say was done: after a message, a review, or a crash.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import msgspec
from msgspec import UNSET

from errands import tracing
from errands.agents.delegation import Delegate
from errands.agents.loop.calls import MOST_CALLS, Calls
from errands.agents.loop.overseer import ManifestOverseer, ManifestOversight
from errands.agents.loop.plan import Plan, Repertoire
from errands.agents.manifests import Agent, Manifests
from errands.agents.manifests.functions import MESSAGE, ArgumentsError
from errands.agents.models.base import Model, ModelError, Question, Said, UserSaid
from errands.agents.models.completions import unused_id
from errands.agents.models.span import trace_answer
from errands.agents.mounts import Mounts
from errands.agents.tools.base import BrokenToolError
from errands.agents.tools.toolbox import Toolbox, ToolTurn
from errands.model.core import COMPLETED, INPUT_REQUIRED, Artifact, Message, Part, StreamResponse
from errands.model.marks import INCOMPLETE, exposed_part
from errands.policy.agent_oversight import AgentOversight, RuledWorker
from errands.policy.cel import CelError, Session, Variables, evaluate
from errands.policy.cel.evaluators import Evaluators
from errands.policy.cel.values import TOO_MUCH, Json, is_cut
from errands.policy.document import CompiledPolicy
from errands.policy.enforcement import ReviewPendingError
from errands.policy.records import FunctionCall, InputArrived, InputRefused, ModelCalled, OutputGiven
from errands.policy.run import Run, content_part, inputs
from errands.policy.steps import Subject
from errands.runtime.turn import Ending, Turn

logger = logging.getLogger(__name__)

#: The newest answer; those before it are in the history.
ARTIFACT = "answer"
#: The ids that the loop makes itself: of calls by steps and scripts, and of sessions.
_OUR_IDS = re.compile(r"^(input|output):|:(before|after|execute|script|[0-9a-f]{12})([:@]|$)")
_LONGEST_ID = 256
#: Begins the address of a file whose bytes came with a message and stay there.
_IN_MESSAGE = "message:"


class ManifestWorker(RuledWorker):
    """Works on the tasks of one agent; `delegates` are the other agents it may use, by capability.

    Scripts of the model run in `evaluators`, if given, instead of those of the server. The caller closes them.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        manifests: Manifests,
        toolbox: Toolbox,
        model: Model,
        model_name: str,
        mounts: Mounts,
        delegates: Mapping[str, Delegate],
        runtime: Mapping[str, str],
        evaluators: Evaluators | None = None,
    ) -> None:
        self.agent = agent
        self.toolbox = toolbox
        self.model = model
        self.model_name = model_name
        self.mounts = mounts
        self.delegates = delegates
        self.runtime = runtime
        self.evaluators = evaluators
        self._manifests = manifests
        self._declared = Repertoire(Plan(agent, manifests), manifests.functions(agent))
        self.hears_cancel = toolbox.keeps_state or bool(delegates)

    def declared(self) -> Repertoire:
        """Return the functions that the manifest names; others are discovered when the agent runs."""
        return self._declared

    def function_names(self) -> tuple[set[str], tuple[str, ...]]:
        functions = self._manifests.functions(self.agent)
        discovering = tuple(f"{function.name}_" for function in functions if function.discovers)
        return {function.name for function in functions if not function.discovers}, discovering

    def oversight(self, policy: CompiledPolicy, elsewhere: Collection[str], evaluators: Evaluators) -> AgentOversight:
        return ManifestOversight(self, Plan(self.agent, self._manifests, policy, elsewhere), evaluators)

    async def handle_turn(self, turn: Turn) -> None:
        overseer = turn.overseer
        assert isinstance(overseer, ManifestOverseer), "the server oversees every turn of a ruled worker"
        if not turn.is_cancelled:
            await turn.until_cancelled(ManifestTurn(overseer).work())
        if turn.is_cancelled and not turn.ended:
            await overseer.release()


class ManifestTurn:
    """One turn of one task."""

    def __init__(self, overseer: ManifestOverseer) -> None:
        self._overseer = overseer
        self._worker = overseer.worker
        self._plan = overseer.agent.plan
        self._progress = overseer.progress
        self._turn = overseer.turn
        #: The text of the answer that was streamed last, and when it began.
        self._streamed: str | None = None
        self._first_token_at = ""

    async def work(self) -> None:
        """Continue the task from what its records say was done, until the turn has ended.

        Raises `TaskStoppedError` when the task is over; the overseer then ends the turn.
        """
        overseer = self._overseer
        run = await overseer.run()
        async with self._worker.toolbox.turn(task_id=run.task_id, files=overseer.files) as tools:
            try:
                repertoire = await overseer.agent.repertoire()
            except BrokenToolError as error:
                await overseer.fail("The tools of this agent cannot be used", error)
            calls = Calls(overseer, run, repertoire, tools, self._worker.evaluators or overseer.agent.evaluators)
            try:
                await self._advance(run, repertoire, tools, calls)
            except ReviewPendingError as pending:
                await overseer.suspend(pending)
            except _AnswerBrokenError as broken:
                # The turn ends without an answer to its message; the task waits for another one.
                run.note(InputRefused(at=run.now(), message_id=overseer.message_key, reason=str(broken)))
                message = self._turn.agent_message([Part(text=str(broken))], {"reason": "interrupted"})
                await self._turn.finish(Ending(state=INPUT_REQUIRED, message=message))

    async def _advance(self, run: Run, repertoire: Repertoire, tools: ToolTurn, calls: Calls) -> None:
        """Do one thing after the other until the turn has ended."""
        progress = self._progress
        while True:
            arrived, answer = progress.input, progress.answer
            if arrived is None:
                if not await self._take_input(run):
                    return None
            elif not progress.is_passed:
                place = f"input:{arrived.message_id}@{self._plan.form_of_input}"
                invoke = calls.invoker(place, arrived.at)
                await self._overseer.guard_input(arrived.values, place=place, at=arrived.at, invoke=invoke)
            elif answer is not None and progress.unshown:
                await calls.make(answer, progress.unshown)
            elif answer is None or answer.calls:
                await self._ask_model(run, repertoire)
            else:
                return await self._give_output(run, tools, calls, answer)

    # Input

    async def _take_input(self, run: Run) -> bool:
        """Take the message of this turn in; return False when the turn has ended without an input."""
        overseer, key = self._overseer, self._overseer.message_key
        if key in self._progress.taken:
            # It was refused, and the process died before the turn ended.
            await self._turn.finish(Ending(state=INPUT_REQUIRED))
            return False
        await overseer.check_age()
        try:
            values = await read_input(self._plan, key, overseer.message, run.arrived)
        except ArgumentsError as error:
            run.note(InputRefused(at=run.now(), message_id=key, reason=str(error)))
            parts = [Part(text=f"This input cannot be taken: {error}. Send a text, and parameters as a data part.")]
            parts.append(Part(data={"schema": self._plan.inputs.schema}, media_type="application/schema+json"))
            await self._turn.finish(Ending(state=INPUT_REQUIRED, message=self._turn.agent_message(parts)))
            return False
        run.note(InputArrived(at=run.now(), values=values, message_id=key))
        return True

    # The model

    async def _ask_model(self, run: Run, repertoire: Repertoire) -> None:
        """Ask the model once, and record its answer."""
        overseer, worker = self._overseer, self._worker
        await overseer.check_model()
        at = run.now()
        try:
            system = await self._plan.prompt.text(Variables(run.context.plain(), runtime=overseer.runtime), Session(at))
        except CelError as error:
            await overseer.fail("The prompt of this agent cannot be written", error.problem)
        question = Question(
            model=worker.model_name,
            system=system,
            said=with_files(self._progress.said, overseer.stored.task.history or ()),
            offers=repertoire.offers,
            builtins=tuple(self._plan.agent.model_capabilities or ()),
            agent=self._plan.agent.name,
        )
        # Nothing is streamed before guardrails have looked at it.
        is_guarded = bool(overseer.rules.after.steps)
        self._streamed, self._first_token_at = None, ""
        try:
            asked = worker.model.ask(question, None if is_guarded else self._stream)
            if tracing.tracer is not None:
                asked = trace_answer(tracing.tracer, question, asked, self._turn.context_id)
            answer = await asked
        except ModelError as error:
            if error.broke_off and not overseer.options.parent:
                text = overseer.refer("The answer broke off; send your message again, or another", error)
                raise _AnswerBrokenError(text) from None
            await overseer.fail(error.for_caller, error)
        called = ModelCalled(
            at=at,
            model=answer.model,
            prompt=answer.prompt_tokens,
            completion=answer.completion_tokens,
            text=answer.text,
            # One more than are made says that they are too many.
            calls=tuple(with_own_ids(answer.calls[: MOST_CALLS + 1], self._progress.call_ids)),
            incomplete=answer.incomplete,
            first_token_at=self._first_token_at,
            ended_at=run.now(),
        )
        if answer.incomplete:
            logger.warning("task %s: an answer of the model is incomplete (%s)", run.task_id, answer.incomplete)
        is_empty = not answer.calls and not answer.text.strip()
        if is_empty and (answer.incomplete or not question.tells_results):
            await overseer.stop("errored", "The model answered without a word and without a call.", called)
        await overseer.record_model(called)

    async def _stream(self, text: str) -> None:
        if not text:
            return
        begun = self._streamed is not None
        if not begun:
            self._first_token_at = (await self._overseer.run()).now()
        self._streamed = (self._streamed or "") + text
        artifact = Artifact(artifact_id=ARTIFACT, parts=[Part(text=text)])
        piece = self._turn.artifact_update(artifact, append=begun)
        if self._turn.emit("artifact", StreamResponse(artifact_update=piece)):
            await self._turn.catch_up()

    # Output

    async def _give_output(self, run: Run, tools: ToolTurn, calls: Calls, answer: ModelCalled) -> None:
        """End the turn with the model's answer, as the guardrails let it pass."""
        overseer, at, close_after = self._overseer, answer.at, self._plan.agent.close_after
        await overseer.check_age()
        # The same whenever it is made, so that what is given is what was reviewed.
        message: Json = [{"mimeType": "text/plain", "text": self._progress.text}]
        output = {**await self._exposed(run, message, at), "message": message}
        place = f"output:{self._progress.outputs}@{self._plan.form_of_output}"
        subject = Subject(context=run.context.plain, output=output, expose=lambda said: self._exposed(run, said, at))
        passed = await overseer.guard_output(subject, place=place, at=at, invoke=calls.invoker(place, at))
        given: dict[str, Any] = passed.value
        text = "\n".join(part["text"] for part in given["message"] if isinstance(part.get("text"), str))
        was_streamed = self._streamed == text
        artifact = Artifact(artifact_id=ARTIFACT, parts=[Part(text="" if was_streamed else text)])
        update = self._turn.artifact_update(artifact, append=was_streamed, last_chunk=True)
        is_last = close_after is not None and self._progress.outputs + 1 >= close_after
        state = COMPLETED if is_last or (run.started and run.started.parent) else INPUT_REQUIRED
        run.note(OutputGiven(at=run.now(), values=given))
        if state is COMPLETED:
            await overseer.close_tools(tools)
        parts = [Part(text=text)]
        if exposed := {name: value for name, value in given.items() if name != "message"}:
            parts.append(exposed_part(exposed))
        metadata = {INCOMPLETE: answer.incomplete} if answer.incomplete else None
        message = self._turn.agent_message(parts, metadata)
        await self._turn.finish(Ending(state=state, message=message, artifacts=[update]))

    async def _exposed(self, run: Run, message: Json, at: str) -> dict[str, Json]:
        """Return the values that the agent exposes of an answer; one that cannot be evaluated is null."""
        if not self._plan.exposes:
            return {}
        given = {"input": run.arrived, "output": {"message": message}, "runtime": self._overseer.runtime}
        variables = Variables(run.context.plain(), **given)
        exposed: dict[str, Json] = {}
        for name, program in self._plan.exposes.items():
            try:
                exposed[name] = await evaluate(program, variables, Session(at))
            except CelError as error:
                # The error itself may repeat what was said.
                logger.warning("task %s: %s is exposed as null: %r has no value", run.task_id, name, error.source)
                exposed[name] = None
        return exposed


class _AnswerBrokenError(Exception):
    """The model's answer broke off. The message says so to the caller, who can continue in the same task."""


def with_own_ids(calls: Iterable[FunctionCall], known: Set[str]) -> Iterator[FunctionCall]:
    """Yield the calls of an answer with ids that are unique in the task, because records are found by them."""
    used = set(known)
    for call in calls:
        usable = len(call.id) <= _LONGEST_ID and call.id.isprintable() and not _OUR_IDS.search(call.id)
        new = call.id if call.id and usable and call.id not in used else unused_id(used)
        used.add(new)
        yield msgspec.structs.replace(call, id=new)


async def read_input(plan: Plan, key: str, message: Message, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the input that a message is; parameters that it does not give are as they were `before`.

    Records know the message by `key`. An agent with parameters takes them from data parts that are objects. Raises
    `ArgumentsError`.
    """
    said: list[dict[str, Any]] = []
    given: dict[str, Any] = {}
    for index, part in enumerate(message.parts):
        if plan.takes_parameters and part.data is not UNSET and isinstance(part.data, dict):
            given |= part.data
            continue
        content = content_part(part)
        if part.raw is not None:
            content["file"] = f"{_IN_MESSAGE}{key}/{index}"
        said.append(content)
    known = {name: value for name, value in (before or {}).items() if name != MESSAGE}
    values = {**known, **{name: value for name, value in given.items() if name != MESSAGE}}
    if said:
        values[MESSAGE] = said
    if is_cut(values):
        raise ArgumentsError(f"message: it has {TOO_MUCH}; send less at once, or send it as a text or a file")
    return await plan.inputs.resolve(values)


def with_files(said: Sequence[Said], history: Sequence[Message]) -> tuple[Said, ...]:
    """Return the conversation with the bytes of files that came with messages."""
    files = {
        f"{_IN_MESSAGE}{key}/{index}": part
        for key, message in inputs(history)
        for index, part in enumerate(message.parts)
        if part.raw is not None
    }

    def filled(part: dict[str, Json]) -> dict[str, Json]:
        held = files.get(str(part.get("file")))
        if held is None or held.raw is None:
            return part
        return {**part, "file": f"data:{part['mimeType']};base64,{base64.b64encode(held.raw).decode()}"}

    return tuple(UserSaid(list(map(filled, one.parts))) if isinstance(one, UserSaid) else one for one in said)
