"""The context object: the part of a running task's state that expressions see, folded from its records.

The readings that the specification leaves open are listed in docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import asdict

from errands.policy import records
from errands.policy.cel.values import Json, SeenContext, as_seen, is_cut, normalise
from errands.policy.records import AnyRecord, CallEnded

#: `message` and, beside it, parameters (of an input) or exposed values (of an output).
TaskIO = dict[str, Any]


class CapabilityInfo(msgspec.Struct):
    """All calls of one function. The lists have one entry per call, the first call first."""

    count_successful: int = 0
    count_errored: int = 0
    count_restricted: int = 0
    timestamps: list[str] = []
    inputs: list[Json] = []
    outputs: list[Json] = []
    successful: list[bool] = []
    errored: list[bool] = []
    restricted: list[bool] = []
    #: Only delegations have it. A call that reached no child task has an empty string.
    task_ids: list[str] | msgspec.UnsetType = msgspec.UNSET

    @property
    def are_delegations(self) -> bool:
        return self.task_ids is not msgspec.UNSET

    def add(self, record: CallEnded) -> None:
        self.successful.append(isinstance(record, records.CapabilityFinished))
        self.errored.append(isinstance(record, records.CapabilityErrored))
        self.restricted.append(isinstance(record, records.CapabilityRestricted))
        self.count_successful += self.successful[-1]
        self.count_errored += self.errored[-1]
        self.count_restricted += self.restricted[-1]
        self.timestamps.append(record.at)
        self.inputs.append(as_seen(record.arguments))
        self.outputs.append(as_seen(getattr(record, "output", None)))
        if self.task_ids is not msgspec.UNSET:
            self.task_ids.append(normalise(getattr(record, "task_id", None) or ""))


class Context:
    """The context of one task, which changes with every record that it takes."""

    def __init__(self, started: records.Started) -> None:
        """Every declared function has a record of zeros."""
        self.started_at = started.at
        name, namespace = normalise(started.agent), normalise(started.namespace)
        self._agent = {"name": name, "namespace": namespace, "started_at": started.at}
        self._user = {"id": normalise(started.user), "email": normalise(started.email)}
        self._model = normalise(started.model)
        #: Tokens of all answers of the model.
        self.prompt_tokens = self.completion_tokens = 0
        #: What each turn was: `input`, `llm` or `capability`.
        self.turns: list[str] = []
        self.input: list[TaskIO] = []
        self.output: list[TaskIO] = []
        #: Function names, one per invocation.
        self.invocations: list[str] = []
        self._delegations = 0
        self.capabilities: dict[str, CapabilityInfo] = {
            **{normalise(name): CapabilityInfo() for name in started.functions},
            **{normalise(name): CapabilityInfo(task_ids=[]) for name in started.delegations},
        }
        #: Functions that were executed; expressions do not see it.
        self._executed: set[str] = set()
        #: See `SeenContext`.
        self._cut: set[tuple[str, ...]] = set()
        self._in_order = InOrder()
        #: The context as expressions see it, and its capabilities, until a record changes them.
        self._plain: SeenContext | None = None
        self._shown: dict[str, Json] = {}

    def is_first(self, function: str) -> bool:
        """Return whether `before_first` steps apply: the function has not been executed yet, even if it was tried."""
        return function not in self._executed

    def take(self, *new: AnyRecord) -> None:
        """Move on by these records."""
        for record in new:
            for one in self._in_order(record):
                self._take(one)

    def _take(self, record: AnyRecord) -> None:
        match record:
            case records.InputArrived():
                self._change("input", record.values)
                self.input.append(as_seen(record.values))
                self.turns.append("input")
            case records.OutputGiven():
                self._change("output", record.values)
                self.output.append(as_seen(record.values))
            case records.ModelCalled():
                self._plain = None
                self._model = normalise(record.model)
                self.prompt_tokens += record.prompt
                self.completion_tokens += record.completion
                self.turns.append("llm")
            case records.CapabilityFinished() | records.CapabilityErrored() | records.CapabilityRestricted():
                name = normalise(record.function)
                self._change("capabilities", record.arguments, getattr(record, "output", None), name=name)
                capability = self.capabilities.setdefault(name, CapabilityInfo())
                capability.add(record)
                self.invocations.append(name)
                self._delegations += capability.are_delegations
                if record.caller == "model":
                    self.turns.append("capability")
                is_executed = not isinstance(record, records.CapabilityErrored) or record.executed
                if is_executed and not isinstance(record, records.CapabilityRestricted):
                    self._executed.add(name)
            case records.CapabilityShown(turn=True):
                self._plain = None
                self.turns.append("capability")
            case records.Started():
                raise ValueError("a task starts once: `started` is only ever the first record")

    def _change(self, section: str, *values: Any, name: str = "") -> None:
        """Forget what was shown, and note where a value is too large to be seen as it is."""
        self._plain = None
        self._shown.pop(name, None)
        if any(map(is_cut, values)):
            self._cut.add((section, name) if name else (section,))

    def plain(self) -> SeenContext:
        """Return the context as expressions see it: the same object until a record changes the context.

        Capabilities that have not changed are taken over, because there may be very many. Lists are copied: they grow.
        """
        if self._plain is None:
            for name, capability in self.capabilities.items():
                if name not in self._shown:
                    fields = asdict(capability).items()
                    self._shown[name] = {
                        field: list(value) if type(value) is list else value
                        for field, value in fields
                        if value is not msgspec.UNSET
                    }
            prompt, completion = self.prompt_tokens, self.completion_tokens
            tokens = {"total": prompt + completion, "prompt": prompt, "completion": completion}
            calls = len(self.invocations)
            meta = {"invocations": list(self.invocations), "count": calls, "delegation_count": self._delegations}
            self._plain = SeenContext(
                agent=self._agent,
                user=self._user,
                llm={"model": self._model, "tokens": tokens},
                _history={"turns": list(self.turns), "turn_count": len(self.turns)},
                input=list(self.input),
                output=list(self.output),
                capabilities={"_meta": meta, **self._shown},
            )
            self._plain.cut = frozenset(self._cut)
        return self._plain


def replay(known: Iterable[AnyRecord]) -> Context:
    """Return the context after all records. Raises ValueError when the first is not `Started`."""
    remaining = iter(known)
    first = next(remaining, None)
    if not isinstance(first, records.Started):
        raise ValueError("the first record of a task must be `started`")
    context = Context(first)
    context.take(*remaining)
    return context


class InOrder:
    """Lets the calls of one answer of the model count in the order in which it made them, whenever they end."""

    def __init__(self) -> None:
        self._expected: list[str] = []
        self._early: dict[str, CallEnded] = {}

    def __call__(self, record: AnyRecord) -> list[AnyRecord]:
        """Return what counts now: the record and those that waited for it, or nothing yet."""
        if isinstance(record, records.ModelCalled):
            waited = [self._early[call] for call in self._expected if call in self._early]
            self._expected = list(dict.fromkeys(call.id for call in record.calls))
            self._early = {}
            return [*waited, record]
        if isinstance(record, records.CapabilityShown) and record.turn and record.call in self._expected:
            # A script, or a function that does not exist: nothing else records it.
            self._expected.remove(record.call)
            return [record, *self._ready()]
        if not isinstance(record, CallEnded) or record.call not in self._expected:
            return [record]
        self._early[record.call] = record
        return self._ready()

    def _ready(self) -> list[AnyRecord]:
        ready: list[AnyRecord] = []
        while self._expected and self._expected[0] in self._early:
            ready.append(self._early.pop(self._expected.pop(0)))
        return ready
