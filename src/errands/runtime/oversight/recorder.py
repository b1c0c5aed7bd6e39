"""What an agent tells about its run, written down; and how a policy ends the task when it has heard enough."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from errands.clock import to_iso
from errands.errors import TaskStoppedError
from errands.model.core import FAILED, INPUT_REQUIRED, REJECTED, Message, Part, Role
from errands.model.log import RequestOptions, StoredTask
from errands.policy.cel import Call
from errands.policy.cel.values import Json
from errands.policy.document import CompiledPolicy
from errands.policy.limits import Exceeded, check_after_model, check_before_model
from errands.policy.records import Ended, InputArrived, ModelCalled, Started
from errands.runtime import validation
from errands.runtime.journal import Journal, new_id
from errands.runtime.oversight.capability import CapabilityCall
from errands.runtime.oversight.judging import Judge
from errands.runtime.oversight.output import as_values
from errands.runtime.review_messages import reviewer_of
from errands.runtime.run import Run, inputs
from errands.runtime.turn import Ending, Turn

#: The input's field with the metadata of the request.
REQUEST_METADATA = "request_metadata"

_ENDS = {"limit_exceeded": FAILED, "restricted": REJECTED}


class Recorder:
    """The records of one turn. The run begins with the first of them."""

    def __init__(
        self,
        turn: Turn,
        journal: Journal,
        stored: StoredTask,
        message: Message,
        options: RequestOptions,
        policy: CompiledPolicy,
    ) -> None:
        self._turn = turn
        self._journal = journal
        self._stored = stored
        self._message = message
        self._key = next(key for key, one in inputs(stored.task.history) if one is message)
        self._options = options
        self.policy = policy
        #: Capability calls that began and are not over.
        self.calls_under_way = 0
        self._run: Run | None = None
        self._opening = asyncio.Lock()

    async def run(self) -> Run:
        """The run of the task, begun, with the message of this turn taken in."""
        async with self._opening:
            if self._run is None:
                run = await Run.open(self._turn, self._journal, self._stored)
                self._begin(run)
                self._run = run
        return self._run

    def _begin(self, run: Run) -> None:
        scope, options, message = self._stored.scope, self._options, self._message
        if not run.started:
            started = Started(
                at=to_iso(self._stored.head.created_at),
                agent=scope.agent,
                user=scope.owner,
                email=options.email or None,
                functions=tuple(self.policy.capabilities),
                parent=options.parent,
                depth=options.depth,
            )
            run.note(started)
        if not run.has_input(self._key):
            # All that the agent can read: what it makes of metadata nobody knows.
            beside = {"metadata": message.metadata, REQUEST_METADATA: options.metadata}
            values = as_values(message.parts) | {name: value for name, value in beside.items() if value}
            run.note(InputArrived(at=run.now(), values=values, message_id=self._key))

    @property
    def turn_ended(self) -> bool:
        return self._turn.ended

    async def catch_up(self) -> None:
        """Waits until every record is durable."""
        await self._turn.catch_up()

    # What the agent tells

    async def context(self) -> dict[str, Json]:
        """The context as expressions see it; a copy."""
        plain: dict[str, Json] = msgspec.json.decode(msgspec.json.encode((await self.run()).plain()))
        return plain

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        """A model was called. Raises `TaskStoppedError` when that was too much."""
        model, text = validation.text("model", model), validation.text("text", text)
        prompt, completion = validation.count("prompt", prompt), validation.count("completion", completion)
        run, limits = await self.run(), self.policy.limits
        exceeded = check_before_model(limits, run.context, run.now_ms())
        run.note(ModelCalled(at=run.now(), model=model, prompt=prompt, completion=completion, text=text))
        exceeded = exceeded or check_after_model(limits, run.context)
        if exceeded is not None:
            await self.exceed(run, exceeded)
        await self._turn.catch_up()

    def capability(self, name: str, arguments: Mapping[str, Any]) -> CapabilityCall:
        return CapabilityCall(self, name, arguments)

    # What the policy says

    def judge(self, run: Run) -> Judge:
        return Judge(self.policy, run)

    async def exceed(self, run: Run, exceeded: Exceeded) -> None:
        """Ends the task, and raises `TaskStoppedError`."""
        await self._stop_at(run, exceeded)
        raise TaskStoppedError(exceeded.message, "limit_exceeded")

    async def _stop_at(self, run: Run, exceeded: Exceeded) -> None:
        self.judge(run).exceeded(exceeded)
        await self.stop(run, "limit_exceeded", exceeded.message)

    async def stop(self, run: Run, reason: Literal["limit_exceeded", "restricted"], text: str) -> None:
        """Ends the task for good. What is held back is never shown."""
        run.note(Ended(at=run.now(), reason=reason, detail=text))
        message = Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=[Part(text=text)],
            task_id=self._turn.task_id,
            context_id=self._turn.context_id,
            metadata={"reason": reason},
        )
        await self._turn.finish(Ending(state=_ENDS[reason], message=message))

    async def _suspend(self, call: Call, question: Message) -> None:
        """Lets go of the task until the reviewer has answered; the turn goes on then."""
        await self._turn.finish(Ending(state=INPUT_REQUIRED, message=question, asks=reviewer_of(call)))
