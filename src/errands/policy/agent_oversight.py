"""The oversight of agents: which rules hold for each, and the overseer of workers, functions and executors.

Their handlers are opaque: the overseer sees what they are given, what they record and what they show. When guardrails
look at the answer, everything that a turn wants to show is held back until then (`Output`). It is stored while a review
is pending, so that the agent is not run again to show it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from errands import lifecycle
from errands.clock import to_iso
from errands.errors import ConfigurationError, TaskStoppedError, TurnError
from errands.model import core
from errands.model.base import encode
from errands.model.log import EventKind, StoredTask
from errands.policy import records
from errands.policy.cel.evaluators import Evaluators, use_evaluators
from errands.policy.cel.values import normalise
from errands.policy.document import NO_POLICY, CompiledPolicy, Rules
from errands.policy.enforcement import ReviewPendingError, TurnOverseer, limit_decision
from errands.policy.limits import Exceeded
from errands.policy.run import Run, content_part, inputs, whole_part
from errands.policy.steps import Steps, Subject
from errands.runtime.executor_worker import new_artifacts
from errands.runtime.expiry import Expired, expiry_message
from errands.runtime.oversight import Admitted, Overseer
from errands.runtime.turn import ALREADY_ENDED, Ending, Turn
from errands.runtime.worker import TurnWorker, Worker

#: The field of an input with the metadata of the request.
REQUEST_METADATA = "request_metadata"
_ANSWERS = core.PAUSED_STATES | {core.TaskState.COMPLETED}
_ENCODER = msgspec.json.Encoder(order="sorted")


# Agents


class AgentOversight:
    """The `Oversight` of one agent. Long evaluations of expressions are left to `evaluators`."""

    def __init__(
        self,
        policy: CompiledPolicy | None = None,
        evaluators: Evaluators | None = None,
        *,
        rules: Rules | None = None,
    ) -> None:
        self.rules = rules or Rules.of(policy or NO_POLICY)
        self.is_required = rules is not None or policy is not None
        self.max_age = self.rules.limits.max_age_ms
        self._evaluators = evaluators

    def expire(self, stored: StoredTask, now: int) -> Expired:
        assert self.max_age is not None
        exceeded = Exceeded("max_age", self.max_age, max(now - stored.head.created_at, self.max_age + 1))
        text, at = self.rules.limit_text.format(exceeded.message), to_iso(now)
        decided = limit_decision(self.rules, exceeded, at)
        ended = records.Ended(at=at, reason="limit_exceeded", detail=text)
        message = expiry_message(stored, text, "limit_exceeded")
        return Expired(core.TaskState.FAILED, message, (records.encode(decided), records.encode(ended)))

    def listed_steps(self) -> list[tuple[str, Steps]]:
        """Return all steps with the capability that they guard, for people who read what is enforced.

        It is "" for steps on the input and the answer, and "*" for steps on all other calls.
        """
        rules = self.rules
        around = [(name, steps) for name, phases in rules.policy.capabilities.items() for steps in phases.values()]
        others = [("*", steps) for steps in rules.policy.others.values()]
        return [("", rules.before), ("", rules.after), *around, *others]

    def oversee(self, turn: Turn) -> Overseer:
        if self._evaluators is not None:
            use_evaluators(self._evaluators)
        return self.overseer(turn)

    def overseer(self, turn: Turn) -> Overseer:
        """Return the overseer of one turn, of the kind that the agent needs."""
        return HandlerOverseer(self.rules, turn)


class RuledWorker(TurnWorker):
    """A worker that brings limits, guardrails and steps of its own."""

    @abstractmethod
    def function_names(self) -> tuple[set[str], tuple[str, ...]]:
        """Return the names of its functions, and the prefixes of names that only a run makes known."""

    @abstractmethod
    def oversight(self, policy: CompiledPolicy, elsewhere: Collection[str], evaluators: Evaluators) -> AgentOversight:
        """Return its rules together with the server's policy.

        `elsewhere` are the functions of all agents of the server: the policy may have rules for those, too.
        """


def build_oversight(
    worker: Worker, policy: CompiledPolicy | None, evaluators: Evaluators, workers: Iterable[Worker] = ()
) -> AgentOversight:
    """Return what oversees the turns of a worker; `workers` are all those of the server."""
    if not isinstance(worker, RuledWorker):
        return AgentOversight(policy, evaluators)
    return worker.oversight(policy or NO_POLICY, _function_names(workers)[0], evaluators)


def check_functions(policy: CompiledPolicy, workers: Iterable[Worker]) -> None:
    """Raise `ConfigurationError` when the policy has rules for functions that no agent has: they would never apply.

    Only agents that declare their functions are checked.
    """
    ruled = [worker for worker in workers if isinstance(worker, RuledWorker)]
    names, prefixes = _function_names(ruled)
    unknown = [name for name in policy.functions - names if not name.startswith(prefixes)]
    if ruled and unknown:
        raise ConfigurationError(
            f"the policy names functions that this agent does not have: {', '.join(sorted(unknown))}; "
            f"it has {', '.join(sorted(names)) or 'none'}"
        )


def _function_names(workers: Iterable[Worker]) -> tuple[set[str], tuple[str, ...]]:
    found = [worker.function_names() for worker in workers if isinstance(worker, RuledWorker)]
    return {name for names, _ in found for name in names}, tuple(one for _, prefixes in found for one in prefixes)


# Handlers


class HandlerOverseer(TurnOverseer):
    """The overseer of workers, functions and executors: it sees what their handlers are given, record and show."""

    def __init__(self, rules: Rules, turn: Turn) -> None:
        super().__init__(rules, turn)
        #: Events that must not be seen before the guardrails have looked at them.
        self._held: list[core.StreamResponse] = []
        self._is_ending = False

    async def begin(self, run: Run) -> None:
        scope, options, message = self.stored.scope, self.options, self.message
        if run.started is None:
            started = records.Started(
                at=to_iso(self.stored.head.created_at),
                agent=scope.agent,
                user=scope.owner,
                email=options.email or None,
                functions=tuple(self.rules.policy.capabilities),
                parent=options.parent,
                depth=options.depth,
            )
            run.note(started)
        if not run.has_input(self.message_key):
            # Everything that the handler can read: it may act on metadata, too.
            beside = {"metadata": message.metadata, REQUEST_METADATA: options.metadata}
            values = as_values(message.parts) | {name: value for name, value in beside.items() if value}
            run.note(records.InputArrived(at=run.now(), values=values, message_id=self.message_key))

    # Input

    async def admit(self, *, is_cancelled: bool) -> Admitted | None:
        """See `Overseer.admit`. A message that passed before a crash or a review is not looked at again."""
        run = await self.run()
        has_passed = self.message_key in _passed(run)
        if is_cancelled:
            return self._admitted(run) if has_passed else None
        if run.over is not None:
            await self.conclude()
            return None
        try:
            if (held := _held_output(run)) is not None:
                await self._show(run, Output.restored(held.turn))
                return None
            if not has_passed:
                await self.check_age()
                await self.guard_input(run.arrived, place=f"input:{self.message_key}", at=run.now())
        except ReviewPendingError as pending:
            await self.suspend(pending)
            return None
        return self._admitted(run)

    def _admitted(self, run: Run) -> Admitted:
        """Return the task and the options as the guardrails let them pass; what they do not mention stays."""
        task, options, passed = self.stored.task, self.options, _passed(run)
        if REQUEST_METADATA in (current := passed.get(self.message_key) or {}):
            options = msgspec.structs.replace(options, metadata=current[REQUEST_METADATA] or {})
        changed = {id(message): values for key, message in inputs(task.history) if (values := passed.get(key))}
        if not changed:
            return Admitted(task, options)
        history = list(task.history or ())
        for position, message in enumerate(history):
            if values := changed.get(id(message)):
                parts, metadata = as_parts(values, message.parts), values.get("metadata", message.metadata)
                history[position] = msgspec.structs.replace(message, parts=parts, metadata=metadata)
        return Admitted(msgspec.structs.replace(task, history=history), options)

    # Output

    def hold_back(self, kind: EventKind, update: core.StreamResponse) -> bool:
        """See `Overseer.hold_back`. Until guardrails have seen the answer, only states without words are shown."""
        if not self.rules.after.steps:
            return False
        report = update.status_update
        if report is not None and report.status.state in (core.TaskState.SUBMITTED, core.TaskState.WORKING):
            report = msgspec.structs.replace(report, status=msgspec.structs.replace(report.status, message=None))
            self.turn.emit(kind, core.StreamResponse(status_update=report), approved=True)
        else:
            self._held.append(update)
        return True

    async def end(self, ending: Ending) -> None:
        holds = bool(self.rules.after.steps)
        if ending.asks:
            return await self.turn.finish(ending)
        if ending.state is core.TaskState.CANCELED:
            # Guardrails do not look at what the agent says with it.
            return await self.turn.finish(Ending(state=core.TaskState.CANCELED) if holds else ending)
        if self._is_ending:
            raise TurnError(ALREADY_ENDED)
        self._is_ending = True
        try:
            run = await self.run()
            if holds:
                await self._show(run, self._output(ending))
            else:
                if ending.state in _ANSWERS:
                    await self.check_age()
                    run.note(records.OutputGiven(at=run.now(), values=as_values(self._output(ending).parts)))
                await self.turn.finish(ending)
        except ReviewPendingError as pending:
            await self.suspend(pending)
        except TaskStoppedError:
            # The turn has ended, which is what the handler wanted.
            pass
        finally:
            self._is_ending = False

    def _output(self, ending: Ending) -> Output:
        """Return what the agent has added to its task in this turn, with what is held back and what ends the turn."""
        before, updates = self.stored.task, list(self._held)
        updates += [core.StreamResponse(artifact_update=update) for update in ending.artifacts]
        ending = msgspec.structs.replace(ending, artifacts=())
        if ending.announced:
            # The last pause that an executor has published becomes the end of the turn.
            ending = Ending(state=ending.state)
            pauses = [position for position, update in enumerate(updates) if update.status_update is not None]
            pause = updates.pop(pauses[-1]).status_update if pauses else None
            if pause is not None:
                ending.message, ending.metadata = pause.status.message, pause.metadata
        after = lifecycle.fold_updates(self.turn.task, updates)
        # Not by their ids, which an agent may use twice.
        since = (after.history or [])[len(before.history or ()) :]
        return Output(
            ending=ending,
            messages=[message for message in since if message.role is core.Role.AGENT],
            artifacts=new_artifacts(before, after),
            metadata=None if after.metadata == before.metadata else after.metadata,
        )

    async def _show(self, run: Run, output: Output) -> None:
        """Show what the guardrails let through, and keep it in the log while they wait."""
        is_answer = output.ending.state in _ANSWERS
        if is_answer:
            await self.check_age()
        values = as_values(output.parts)
        try:
            subject = Subject(context=run.context.plain, output=values)
            passed = await self.guard_output(subject, place=f"output:{self.message_key}", at=run.now())
        except ReviewPendingError:
            if _held_output(run) is None:
                run.note(records.OutputHeld(at=run.now(), values=values, turn=msgspec.json.decode(encode(output))))
            raise
        if passed.transformed:
            output = output.replaced(as_parts(passed.value, output.parts), self.turn)
        if is_answer:
            run.note(records.OutputGiven(at=run.now(), values=as_values(output.parts)))
        self._held.clear()
        turn, task = self.turn, self.turn.task
        if output.messages or output.metadata:
            history, metadata = [*(task.history or ()), *output.messages], output.metadata or task.metadata
            said = msgspec.structs.replace(task, history=history, metadata=metadata)
            turn.emit("task", core.StreamResponse(task=said), approved=True)
        for artifact in output.artifacts:
            update = core.TaskArtifactUpdateEvent(turn.task_id, turn.context_id, artifact, last_chunk=True)
            turn.emit("artifact", core.StreamResponse(artifact_update=update), approved=True)
        await turn.finish(output.ending)

    async def release(self) -> None:
        """Handlers release what they hold themselves, when `TaskStoppedError` is raised in them."""


def _passed(run: Run) -> dict[str, dict[str, Any] | None]:
    """Return what guardrails made of the messages that they let pass, by their keys; None for an unchanged one."""
    return {record.message_id: record.values for record in run.records if isinstance(record, records.InputPassed)}


def _held_output(run: Run) -> records.OutputHeld | None:
    """Return what an earlier turn wanted to show while a review is pending."""
    ends = (records.OutputHeld, records.OutputGiven, records.Ended)
    last = next((record for record in reversed(run.records) if isinstance(record, ends)), None)
    return last if isinstance(last, records.OutputHeld) else None


# Output


class Output(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an agent adds to its task in a turn, and how the turn ends."""

    ending: Ending
    messages: list[core.Message] = []
    artifacts: list[core.Artifact] = []
    metadata: dict[str, Any] | None = None

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Output:
        """Return it from a record."""
        output = msgspec.json.decode(msgspec.json.encode(stored), type=cls)
        # The sender of the message was answered with the task that waits.
        output.ending.direct = False
        return output

    @property
    def parts(self) -> list[core.Part]:
        """The parts that guardrails check: those of artifacts first, then those of messages."""
        last = [] if self.ending.message is None else [self.ending.message]
        added: list[core.Artifact | core.Message] = [*self.artifacts, *self.messages, *last]
        return [part for one in added for part in one.parts]

    def replaced(self, parts: list[core.Part], turn: Turn) -> Output:
        """Return the same end with these parts instead: as its message, or else as its first artifact."""
        message = self.ending.message
        if message is None and self.artifacts:
            artifact = msgspec.structs.replace(self.artifacts[0], parts=parts or [core.Part(text="")])
            return Output(ending=self.ending, artifacts=[artifact])
        said = msgspec.structs.replace(message, parts=parts) if message is not None else turn.agent_message(parts)
        return Output(ending=msgspec.structs.replace(self.ending, message=said if parts else None))


def as_values(parts: list[core.Part]) -> dict[str, Any]:
    """Return parts as the context has them."""
    return {"message": [whole_part(part) for part in parts]}


def as_parts(value: dict[str, Any], originals: list[core.Part]) -> list[core.Part]:
    """Return the parts that a transform has made; those that it left as they were are the originals, with files."""
    known: dict[bytes, core.Part] = {}
    for part in originals:
        known.setdefault(_key(whole_part(part)), part)
    for part in originals:
        # A transform may have dropped its metadata.
        if part.metadata:
            known.setdefault(_key(content_part(part)), msgspec.structs.replace(part, metadata=None))
    parts: list[core.Part] = []
    for shown in value["message"]:
        metadata, media_type, text = shown.get("metadata"), shown["mimeType"], shown.get("text")
        if (original := known.get(_key(shown))) is not None:
            parts.append(original)
        elif isinstance(text, str):
            kind = None if media_type == "text/plain" else media_type
            parts.append(core.Part(text=text, media_type=kind, metadata=metadata))
        else:
            parts.append(core.Part(data=shown["data"], media_type=media_type, metadata=metadata))
    return parts


def _key(shown: dict[str, Any]) -> bytes:
    """Return a part as expressions see it, as a key: comparing each with each would take too long."""
    return _ENCODER.encode(normalise(shown))
