"""The overseer of agents from manifests: the enforcement of every agent, with what a manifest declares.

A manifest declares functions, a model and files. Its steps may call tools and reach files. Before a task ends, the
sessions of its tools are closed and the tasks that it delegated are canceled.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from errands.agents.delegation import Delegation
from errands.agents.loop.plan import Plan, Progress, Repertoire
from errands.agents.manifests.functions import MESSAGE
from errands.agents.mounts import MountError
from errands.agents.tools.base import BrokenToolError
from errands.agents.tools.toolbox import ToolTurn
from errands.clock import to_iso
from errands.errors import TaskStoppedError
from errands.model.core import CANCELED, StreamResponse
from errands.model.log import EventKind
from errands.policy import records
from errands.policy.agent_oversight import AgentOversight
from errands.policy.cel import Call, CallFailed, Perform
from errands.policy.cel.evaluators import Evaluators
from errands.policy.cel.values import Json
from errands.policy.enforcement import TurnOverseer, ask_reviewer
from errands.policy.records import Answered, AnyRecord, CapabilityBegan, Reason
from errands.policy.run import Run
from errands.policy.steps import Steps
from errands.runtime.oversight import Admitted, Overseer
from errands.runtime.turn import Ending, Turn

if TYPE_CHECKING:
    from errands.agents.loop.manifest_worker import ManifestWorker

logger = logging.getLogger(__name__)


class ManifestOversight(AgentOversight):
    """The enforcement of an agent from a manifest: its own rules together with the server's policy."""

    def __init__(self, worker: ManifestWorker, plan: Plan, evaluators: Evaluators) -> None:
        super().__init__(evaluators=evaluators, rules=plan.rules)
        self.worker = worker
        self.plan = plan
        self.evaluators = evaluators
        self._known: Repertoire | None = None

    def overseer(self, turn: Turn) -> Overseer:
        return ManifestOverseer(self, turn)

    def listed_steps(self) -> list[tuple[str, Steps]]:
        """See `AgentOversight.listed_steps`; with the steps that the manifest has around its capabilities."""
        return super().listed_steps() + [(ref, steps) for ref, steps in self.plan.own_steps() if steps.steps]

    async def repertoire(self) -> Repertoire:
        """Return all functions, which are discovered once. Raises `BrokenToolError`."""
        if self._known is None:
            functions = await self.worker.toolbox.functions()
            self._known = Repertoire(self.plan, functions, refused=self.plan.unruled(functions))
        return self._known


class ManifestOverseer(TurnOverseer):
    """Oversees one turn of an agent from a manifest."""

    def __init__(self, agent: ManifestOversight, turn: Turn) -> None:
        super().__init__(agent.rules, turn)
        worker = agent.worker
        self.agent = agent
        self.worker = worker
        self.files = worker.mounts.files(worker.agent, turn.task_id)
        #: What expressions see as `runtime`.
        self.runtime = dict(worker.runtime)
        self.progress = Progress()
        self._follows = False

    async def opened(self) -> Run:
        run = await super().opened()
        if not self._follows:
            self._follows = True
            run.follow(self.progress.take)
        return run

    async def begin(self, run: Run) -> None:
        if run.started is not None:
            return
        try:
            repertoire = await self.agent.repertoire()
        except BrokenToolError:
            # The turn finds that out, too, and fails.
            repertoire = self.worker.declared()
        agent, options = self.worker.agent, self.options
        run.note(
            records.Started(
                at=to_iso(self.stored.head.created_at),
                agent=agent.name,
                namespace=agent.namespace,
                user=self.stored.scope.owner,
                email=options.email or None,
                model=self.worker.model_name,
                functions=repertoire.names(delegations=False),
                delegations=repertoire.names(delegations=True),
                parent=options.parent,
                depth=options.depth,
            )
        )

    async def admit(self, *, is_cancelled: bool) -> Admitted | None:
        """See `Overseer.admit`. The turn itself asks the guardrails, as their steps may need its tools."""
        if not is_cancelled and (await self.run()).over is not None:
            await self.conclude()
            return None
        return Admitted(self.stored.task, self.options)

    def hold_back(self, kind: EventKind, update: StreamResponse) -> bool:
        """See `Overseer.hold_back`. The turn streams nothing before guardrails have looked at it."""
        return False

    async def end(self, ending: Ending) -> None:
        await self.turn.finish(Ending(state=CANCELED) if ending.state is CANCELED else ending)

    # Ends

    async def stop(self, reason: Reason, text: str, *last: AnyRecord) -> NoReturn:
        """See `TurnOverseer.stop`. The turn ends when the concurrent calls have ended."""
        run = await self.run()
        run.note(*last, records.Ended(at=run.now(), reason=reason, detail=text))
        raise TaskStoppedError(text, reason)

    async def fail(self, text: str, problem: object, *last: AnyRecord) -> NoReturn:
        """End the task because it cannot continue; see `refer`."""
        await self.stop("errored", self.refer(text, problem), *last)

    def refer(self, text: str, problem: object) -> str:
        """Log a problem for operators, and return the text for the caller, with the same reference in both."""
        reference = secrets.token_hex(4)
        known = {"correlation": reference}
        logger.error("task %s: %s [%s]: %s", self.turn.task_id, text, reference, problem, extra=known)
        return f"{text} (reference {reference})."

    async def release(self) -> None:
        run = await self.opened()
        if run.started is None:
            return

        async def cancel(began: CapabilityBegan) -> None:
            routine = self.worker.declared().routines.get(began.function)
            delegate = None if routine is None else self.worker.delegates.get(routine.function.ref)
            if delegate is not None:
                try:
                    await delegate.cancel(self.delegation(began))
                except Exception:
                    logger.exception("task %s: the child of %s could not be canceled", self.turn.task_id, began.call)

        async with self.worker.toolbox.turn(task_id=self.turn.task_id) as tools:
            # At the same time: there may be no time left for the last when the first is through.
            await asyncio.gather(*map(cancel, self.progress.open_calls))
            await self.close_tools(tools)

    async def close_tools(self, tools: ToolTurn) -> None:
        """End the sessions of the tools that the task has opened."""
        if self.progress.tools:
            run = await self.run()
            await tools.teardown(self.progress.tools)
            with suppress(Exception):
                run.note(records.ToolsClosed(at=run.now()))

    # Calls

    def calls_under_way(self, run: Run) -> int:
        return len(self.progress.calls) - len(run.context.invocations)

    def delegation(self, began: CapabilityBegan) -> Delegation:
        """Return the delegation of a call. Repeating the call yields the same one, so retries are safe."""
        run, children = self._run, self.progress.children
        assert run is not None
        assert run.started is not None

        async def start(task_id: str) -> None:
            if children.get(began.call) != task_id:
                await run.append(records.DelegationBegan(at=run.now(), call=began.call, task_id=task_id))

        return Delegation(
            call=began.call,
            message=began.arguments[MESSAGE],
            parameters={name: value for name, value in began.arguments.items() if name != MESSAGE},
            parent=self.turn.task_id,
            scope=self.stored.scope,
            email=run.started.email or "",
            depth=run.started.depth + 1,
            task_id=children.get(began.call),
            began=start,
        )

    def perform(self, key: str) -> Perform:
        """See `TurnOverseer.perform`. What files gave is durable before it is used."""

        async def perform(call: Call) -> Json:
            if call.function == "review":
                return await ask_reviewer(call)
            run = await self.run()
            at = run.now()
            try:
                if self.files is None:
                    raise MountError("this agent has no mount")
                reach = self.files.read if call.function == "mount.read" else self.files.write
                value = await reach(*call.arguments)
            except MountError as error:
                await run.append(Answered(at=at, key=key, call=call, error=str(error)))
                raise CallFailed(str(error)) from None
            await run.append(Answered(at=at, key=key, call=call, value=value))
            return value

        return perform
