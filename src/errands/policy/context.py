"""The context object: the part of a running task's state that expressions see, folded from its records.

The readings that the specification leaves open are listed in docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
from msgspec.structs import asdict

from errands.policy.cel.values import Json, SeenContext, as_seen, is_cut, normalise
from errands.policy.records import (
    Answered,
    AnyRecord,
    CallEnded,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    CapabilityShown,
    Decided,
    DelegationBegan,
    Ended,
    InputArrived,
    InputPassed,
    InputRefused,
    ModelCalled,
    OutputGiven,
    OutputHeld,
    Started,
    ToolOpened,
    ToolsClosed,
    Waiting,
)

#: `message` and, beside it, parameters (of an input) or exposed values (of an output).
TaskIO = dict[str, Any]


class AgentInfo(msgspec.Struct):
    name: str
    namespace: str
    started_at: str


class UserInfo(msgspec.Struct):
    id: str
    email: str | None = None


class Tokens(msgspec.Struct):
    total: int = 0
    prompt: int = 0
    completion: int = 0


class Llm(msgspec.Struct):
    model: str
    tokens: Tokens


class History(msgspec.Struct):
    turns: list[str] = []
    turn_count: int = 0


class Meta(msgspec.Struct):
    #: Function names, one per invocation.
    invocations: list[str] = []
    count: int = 0
    delegation_count: int = 0


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
        is_finished, is_errored = isinstance(record, CapabilityFinished), isinstance(record, CapabilityErrored)
        is_restricted = isinstance(record, CapabilityRestricted)
        self.count_successful += is_finished
        self.count_errored += is_errored
        self.count_restricted += is_restricted
        self.successful.append(is_finished)
        self.errored.append(is_errored)
        self.restricted.append(is_restricted)
        self.timestamps.append(record.at)
        self.inputs.append(as_seen(record.arguments))
        self.outputs.append(as_seen(getattr(record, "output", None)))
        if self.task_ids is not msgspec.UNSET:
            self.task_ids.append(normalise(getattr(record, "task_id", None) or ""))


class Context:
    """The context of one task, which changes with every record that it takes."""

    def __init__(self, started: Started) -> None:
        """Every declared function has a record of zeros."""
        self.agent = AgentInfo(normalise(started.agent), normalise(started.namespace), started.at)
        self.user = UserInfo(normalise(started.user), normalise(started.email))
        self.llm = Llm(normalise(started.model), Tokens())
        self.history = History()
        self.input: list[TaskIO] = []
        self.output: list[TaskIO] = []
        self.meta = Meta()
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

    def take(self, *records: AnyRecord) -> None:
        """Move on by these records."""
        for record in records:
            for one in self._in_order(record):
                self._take(one)

    def _take(self, record: AnyRecord) -> None:
        match record:
            case InputArrived():
                self._change("input", record.values)
                self.input.append(as_seen(record.values))
                self._turn("input")
            case OutputGiven():
                self._change("output", record.values)
                self.output.append(as_seen(record.values))
            case ModelCalled():
                self._plain = None
                tokens = self.llm.tokens
                prompt, completion = tokens.prompt + record.prompt, tokens.completion + record.completion
                self.llm = Llm(normalise(record.model), Tokens(prompt + completion, prompt, completion))
                self._turn("llm")
            case CapabilityFinished() | CapabilityErrored() | CapabilityRestricted():
                self._called(record)
            case CapabilityShown():
                if record.turn:
                    self._turn("capability")
            case CapabilityBegan() | InputPassed() | InputRefused() | ToolOpened() | ToolsClosed() | DelegationBegan():
                pass
            case Decided() | Waiting() | Answered() | Ended() | OutputHeld():
                pass
            case Started():
                raise ValueError("a task starts once: `started` is only ever the first record")
            case _:  # pragma: no cover
                assert_never(record)

    def _change(self, section: str, *values: Any, name: str = "") -> None:
        """Forget what was shown, and note where a value is too large to be seen as it is."""
        self._plain = None
        self._shown.pop(name, None)
        if any(map(is_cut, values)):
            self._cut.add((section, name) if name else (section,))

    def _turn(self, kind: str) -> None:
        self._plain = None
        self.history.turns.append(kind)
        self.history.turn_count += 1

    def _called(self, record: CallEnded) -> None:
        name = normalise(record.function)
        self._change("capabilities", record.arguments, getattr(record, "output", None), name=name)
        capability = self.capabilities.setdefault(name, CapabilityInfo())
        capability.add(record)
        self.meta.invocations.append(name)
        self.meta.count += 1
        self.meta.delegation_count += capability.are_delegations
        if record.caller == "model":
            self._turn("capability")
        if isinstance(record, CapabilityFinished) or (isinstance(record, CapabilityErrored) and record.executed):
            self._executed.add(name)

    def plain(self) -> SeenContext:
        """Return the context as expressions see it: the same object until a record changes the context.

        Capabilities that have not changed are taken over, because there may be very many.
        """
        if self._plain is None:
            for name, capability in self.capabilities.items():
                if name not in self._shown:
                    self._shown[name] = _shown(capability)
            self._plain = SeenContext(
                agent=_shown(self.agent),
                user=_shown(self.user),
                llm={"model": self.llm.model, "tokens": _shown(self.llm.tokens)},
                _history=_shown(self.history),
                input=list(self.input),
                output=list(self.output),
                capabilities={"_meta": _shown(self.meta), **self._shown},
            )
            self._plain.cut = frozenset(self._cut)
        return self._plain


def _shown(part: msgspec.Struct) -> dict[str, Json]:
    """Return the fields of a part, with lists copied: they grow when later records are taken."""
    return {
        name: list(value) if type(value) is list else value
        for name, value in asdict(part).items()
        if value is not msgspec.UNSET
    }


def replay(records: Iterable[AnyRecord]) -> Context:
    """Return the context after all records. Raises ValueError when the first is not `Started`."""
    remaining = iter(records)
    first = next(remaining, None)
    if not isinstance(first, Started):
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
        if isinstance(record, ModelCalled):
            waited = [self._early[call] for call in self._expected if call in self._early]
            self._expected = list(dict.fromkeys(call.id for call in record.calls))
            self._early = {}
            return [*waited, record]
        if isinstance(record, CapabilityShown) and record.turn and record.call in self._expected:
            # A script, or a function that does not exist: there is no other record of it.
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
