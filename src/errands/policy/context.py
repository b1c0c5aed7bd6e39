"""The context object: the part of a running task's state that expressions see. Immutable, folded from records.

The readings that the specification leaves open are listed in docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
from msgspec.structs import asdict, replace

from errands.policy.cel.values import Json, normalise
from errands.policy.records import (
    AllowListSealed,
    Answered,
    AnyRecord,
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

_CallRecord = CapabilityFinished | CapabilityErrored | CapabilityRestricted


class _Part(msgspec.Struct, frozen=True):
    """Lists are tuples, so that an older context never changes."""


class Agent(_Part, frozen=True):
    name: str
    namespace: str
    started_at: str


class User(_Part, frozen=True):
    id: str
    email: str | None = None


class Tokens(_Part, frozen=True):
    total: int = 0
    prompt: int = 0
    completion: int = 0


class Llm(_Part, frozen=True):
    model: str
    tokens: Tokens = Tokens()


class History(_Part, frozen=True):
    turns: tuple[str, ...] = ()
    turn_count: int = 0


class Meta(_Part, frozen=True):
    #: Function names, one per invocation.
    invocations: tuple[str, ...] = ()
    count: int = 0
    delegation_count: int = 0


class Capability(_Part, frozen=True):
    """All calls of one function. The lists have one entry per call, the first call first."""

    count_successful: int = 0
    count_errored: int = 0
    count_restricted: int = 0
    timestamps: tuple[str, ...] = ()
    inputs: tuple[Json, ...] = ()
    outputs: tuple[Json, ...] = ()
    successful: tuple[bool, ...] = ()
    errored: tuple[bool, ...] = ()
    restricted: tuple[bool, ...] = ()
    #: Only delegations have it; a call that reached no child task has an empty string.
    task_ids: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Context(_Part, frozen=True):
    agent: Agent
    user: User
    llm: Llm
    history: History = History()
    input: tuple[TaskIO, ...] = ()
    output: tuple[TaskIO, ...] = ()
    meta: Meta = Meta()
    capabilities: dict[str, Capability] = {}
    #: Functions that really ran; expressions do not see it.
    executed: frozenset[str] = frozenset()

    def is_first(self, function: str) -> bool:
        """Whether `before_first` steps are due: the function has not been executed yet, tried or not."""
        return function not in self.executed


def start(record: Started) -> Context:
    """The context of a new task: every declared function has a record of zeros."""
    return Context(
        agent=Agent(normalise(record.agent), normalise(record.namespace), record.at),
        user=User(normalise(record.user), normalise(record.email)),
        llm=Llm(normalise(record.model)),
        capabilities={
            **{normalise(name): Capability() for name in record.functions},
            **{normalise(name): Capability(task_ids=()) for name in record.delegations},
        },
    )


def fold(context: Context, record: AnyRecord) -> Context:
    """The context after `record`. A record that says nothing about the context gives the very same object."""
    match record:
        case InputArrived():
            return replace(
                context, input=(*context.input, normalise(record.values)), history=_turn(context.history, "input")
            )
        case OutputGiven():
            return replace(context, output=(*context.output, normalise(record.values)))
        case ModelCalled():
            return replace(context, llm=_llm(context.llm, record), history=_turn(context.history, "llm"))
        case CapabilityFinished() | CapabilityErrored() | CapabilityRestricted():
            return _called(context, record)
        case CapabilityShown():
            return replace(context, history=_turn(context.history, "capability")) if record.turn else context
        case CapabilityBegan() | InputPassed() | InputRefused() | ToolOpened() | ToolsClosed() | DelegationBegan():
            return context
        case AllowListSealed() | Decided() | Waiting() | Answered() | Ended() | OutputHeld():
            return context
        case Started():
            raise ValueError("a task starts once: `started` is only ever the first record")
        case _:  # pragma: no cover
            assert_never(record)


def replay(records: Iterable[AnyRecord]) -> Context:
    """The context after all of them. ValueError when the first is not `Started`."""
    remaining = iter(records)
    first = next(remaining, None)
    if not isinstance(first, Started):
        raise ValueError("the first record of a task must be `started`")
    current = CurrentContext(start(first))
    for record in remaining:
        current.fold(record)
    return current.context


class InOrder:
    """Calls that the model made in one answer count in the order in which it made them, whenever they are over."""

    def __init__(self) -> None:
        self._expected: list[str] = []
        self._early: dict[str, _CallRecord] = {}

    def __call__(self, record: AnyRecord) -> list[AnyRecord]:
        """What counts now: the record, or nothing yet, or it and those that waited for it."""
        if isinstance(record, ModelCalled):
            waited = [self._early[call] for call in self._expected if call in self._early]
            self._expected = list(dict.fromkeys(call.id for call in record.calls))
            self._early = {}
            return [*waited, record]
        if isinstance(record, CapabilityShown) and record.turn and record.call in self._expected:
            # A script, or a function that does not exist: nothing else is recorded of it.
            self._expected.remove(record.call)
            return [record, *self._ready()]
        if not isinstance(record, _CallRecord) or record.call not in self._expected:
            return [record]
        self._early[record.call] = record
        return self._ready()

    def _ready(self) -> list[AnyRecord]:
        ready: list[AnyRecord] = []
        while self._expected and self._expected[0] in self._early:
            ready.append(self._early.pop(self._expected.pop(0)))
        return ready


def _turn(history: History, kind: str) -> History:
    return History((*history.turns, kind), history.turn_count + 1)


def _llm(llm: Llm, record: ModelCalled) -> Llm:
    prompt, completion = llm.tokens.prompt + record.prompt, llm.tokens.completion + record.completion
    return Llm(normalise(record.model), Tokens(prompt + completion, prompt, completion))


def _called(context: Context, record: _CallRecord) -> Context:
    name = normalise(record.function)
    capability = context.capabilities.get(name, Capability())
    executed = isinstance(record, CapabilityFinished) or (isinstance(record, CapabilityErrored) and record.executed)
    delegation = capability.task_ids is not msgspec.UNSET
    return replace(
        context,
        capabilities={**context.capabilities, name: _appended(capability, record)},
        meta=Meta(
            (*context.meta.invocations, name),
            context.meta.count + 1,
            context.meta.delegation_count + delegation,
        ),
        history=_turn(context.history, "capability") if record.caller == "model" else context.history,
        executed=context.executed | {name} if executed else context.executed,
    )


def _appended(capability: Capability, record: _CallRecord) -> Capability:
    finished = isinstance(record, CapabilityFinished)
    errored = isinstance(record, CapabilityErrored)
    restricted = isinstance(record, CapabilityRestricted)
    task_ids = capability.task_ids
    if task_ids is not msgspec.UNSET:
        task_ids = (*task_ids, normalise(getattr(record, "task_id", None) or ""))
    return Capability(
        count_successful=capability.count_successful + finished,
        count_errored=capability.count_errored + errored,
        count_restricted=capability.count_restricted + restricted,
        timestamps=(*capability.timestamps, record.at),
        inputs=(*capability.inputs, normalise(record.arguments)),
        outputs=(*capability.outputs, normalise(getattr(record, "output", None))),
        successful=(*capability.successful, finished),
        errored=(*capability.errored, errored),
        restricted=(*capability.restricted, restricted),
        task_ids=task_ids,
    )


def plain(context: Context) -> dict[str, Json]:
    """The context as expressions see it."""
    return _assembled(context, {name: _shown(capability) for name, capability in context.capabilities.items()})


def _assembled(context: Context, capabilities: dict[str, Json]) -> dict[str, Json]:
    return {
        "agent": _shown(context.agent),
        "user": _shown(context.user),
        "llm": {"model": context.llm.model, "tokens": _shown(context.llm.tokens)},
        "_history": _shown(context.history),
        "input": list(context.input),
        "output": list(context.output),
        "capabilities": {"_meta": _shown(context.meta), **capabilities},
    }


class CurrentContext:
    """The context of a running task: it moves with every record, and is made plain once per version.

    Records of capabilities that have not changed are taken over, because there may be very many.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._in_order = InOrder()
        self._plain: dict[str, Json] | None = None
        self._shown: dict[str, tuple[Capability, Json]] = {}

    def fold(self, record: AnyRecord) -> None:
        folded = self.context
        for one in self._in_order(record):
            folded = fold(folded, one)
        if folded is not self.context:
            self.context = folded
            self._plain = None

    def plain(self) -> dict[str, Json]:
        """The same object until a record changes the context."""
        if self._plain is None:
            for name, capability in self.context.capabilities.items():
                known = self._shown.get(name)
                if known is None or known[0] is not capability:
                    self._shown[name] = (capability, _shown(capability))
            self._plain = _assembled(self.context, {name: shown for name, (_, shown) in self._shown.items()})
        return self._plain


def _shown(part: _Part) -> dict[str, Json]:
    """One level: what is below is plain already."""
    return {
        name: list(value) if type(value) is tuple else value
        for name, value in asdict(part).items()
        if value is not msgspec.UNSET
    }
