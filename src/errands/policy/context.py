"""The context object: the part of a running task's state that expressions see. Immutable, folded from records.

The readings that the specification leaves open are listed in docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
from msgspec.structs import asdict, replace

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

_OUTCOMES = {"successful": CapabilityFinished, "errored": CapabilityErrored, "restricted": CapabilityRestricted}


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

    @property
    def are_delegations(self) -> bool:
        return self.task_ids is not msgspec.UNSET


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
    #: See `SeenContext`.
    cut: frozenset[tuple[str, ...]] = frozenset()

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


def replay(records: Iterable[AnyRecord]) -> Context:
    """The context after all of them. ValueError when the first is not `Started`."""
    remaining = iter(records)
    first = next(remaining, None)
    if not isinstance(first, Started):
        raise ValueError("the first record of a task must be `started`")
    current = CurrentContext(start(first))
    current.fold(*remaining)
    return current.context


class _Folding:
    """A context while records are added to it. Lists grow in place, so that a long log takes no longer than it is."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lists: dict[str, list[Any]] = {}
        self._calls: dict[str, _Calls] = {}
        self._llm = context.llm
        self._delegations = context.meta.delegation_count
        self._executed: set[str] = set()
        self._cut: set[tuple[str, ...]] = set()

    def take(self, record: AnyRecord) -> None:
        match record:
            case InputArrived():
                self._list("input", self._context.input).append(as_seen(record.values))
                self._look_for_cuts(("input",), record.values)
                self._turn("input")
            case OutputGiven():
                self._list("output", self._context.output).append(as_seen(record.values))
                self._look_for_cuts(("output",), record.values)
            case ModelCalled():
                self._llm = _llm(self._llm, record)
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

    def context(self) -> Context:
        """What has come of it; the very same as before when nothing has changed."""
        before = self._context
        grown = {name: tuple(items) for name, items in self._lists.items()}
        changed: dict[str, Any] = {name: grown[name] for name in ("input", "output") if name in grown}
        if "turns" in grown:
            changed["history"] = History(grown["turns"], len(grown["turns"]))
        if "invocations" in grown:
            changed["meta"] = Meta(grown["invocations"], len(grown["invocations"]), self._delegations)
            called = {name: calls.capability() for name, calls in self._calls.items()}
            changed["capabilities"] = {**before.capabilities, **called}
        if self._llm is not before.llm:
            changed["llm"] = self._llm
        if not before.cut.issuperset(self._cut):
            changed["cut"] = before.cut | self._cut
        if self._executed:
            changed["executed"] = before.executed | self._executed
        return replace(before, **changed) if changed else before

    def _list(self, name: str, before: tuple[Any, ...]) -> list[Any]:
        if name not in self._lists:
            self._lists[name] = list(before)
        return self._lists[name]

    def _look_for_cuts(self, part: tuple[str, ...], *values: Any) -> None:
        if any(map(is_cut, values)):
            self._cut.add(part)

    def _turn(self, kind: str) -> None:
        self._list("turns", self._context.history.turns).append(kind)

    def _called(self, record: CallEnded) -> None:
        name = normalise(record.function)
        if name not in self._calls:
            self._calls[name] = _Calls(self._context.capabilities.get(name, Capability()))
        calls = self._calls[name]
        calls.add(record)
        self._look_for_cuts(("capabilities", name), record.arguments, getattr(record, "output", None))
        self._list("invocations", self._context.meta.invocations).append(name)
        self._delegations += calls.are_delegations
        if record.caller == "model":
            self._turn("capability")
        if isinstance(record, CapabilityFinished) or (isinstance(record, CapabilityErrored) and record.executed):
            self._executed.add(name)


class _Calls:
    """The calls of one function while there come more."""

    def __init__(self, before: Capability) -> None:
        self._fields: dict[str, Any] = {
            name: list(value) if type(value) is tuple else value for name, value in asdict(before).items()
        }
        self.are_delegations = before.are_delegations

    def add(self, record: CallEnded) -> None:
        fields = self._fields
        for name, kind in _OUTCOMES.items():
            fields[f"count_{name}"] += isinstance(record, kind)
            fields[name].append(isinstance(record, kind))
        fields["timestamps"].append(record.at)
        fields["inputs"].append(as_seen(record.arguments))
        fields["outputs"].append(as_seen(getattr(record, "output", None)))
        if self.are_delegations:
            fields["task_ids"].append(normalise(getattr(record, "task_id", None) or ""))

    def capability(self) -> Capability:
        return Capability(**{name: _frozen(value) for name, value in self._fields.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


class InOrder:
    """Calls that the model made in one answer count in the order in which it made them, whenever they are over."""

    def __init__(self) -> None:
        self._expected: list[str] = []
        self._early: dict[str, CallEnded] = {}

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
        if not isinstance(record, CallEnded) or record.call not in self._expected:
            return [record]
        self._early[record.call] = record
        return self._ready()

    def _ready(self) -> list[AnyRecord]:
        ready: list[AnyRecord] = []
        while self._expected and self._expected[0] in self._early:
            ready.append(self._early.pop(self._expected.pop(0)))
        return ready


def _llm(llm: Llm, record: ModelCalled) -> Llm:
    prompt, completion = llm.tokens.prompt + record.prompt, llm.tokens.completion + record.completion
    return Llm(normalise(record.model), Tokens(prompt + completion, prompt, completion))


def plain(context: Context) -> SeenContext:
    """The context as expressions see it."""
    return _assembled(context, {name: _shown(capability) for name, capability in context.capabilities.items()})


def _assembled(context: Context, capabilities: dict[str, Json]) -> SeenContext:
    seen = SeenContext(
        agent=_shown(context.agent),
        user=_shown(context.user),
        llm={"model": context.llm.model, "tokens": _shown(context.llm.tokens)},
        _history=_shown(context.history),
        input=list(context.input),
        output=list(context.output),
        capabilities={"_meta": _shown(context.meta), **capabilities},
    )
    seen.cut = context.cut
    return seen


class CurrentContext:
    """The context of a running task: it moves with every record, and is made plain once per version.

    Records of capabilities that have not changed are taken over, because there may be very many.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._in_order = InOrder()
        self._plain: SeenContext | None = None
        self._shown: dict[str, tuple[Capability, Json]] = {}

    def fold(self, *records: AnyRecord) -> None:
        """Moves on. Records that say nothing about the context leave the very same object in place."""
        folding = _Folding(self.context)
        for record in records:
            for one in self._in_order(record):
                folding.take(one)
        folded = folding.context()
        if folded is not self.context:
            self.context = folded
            self._plain = None

    def plain(self) -> SeenContext:
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
