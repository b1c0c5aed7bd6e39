"""What the log stores about a run: records, in the order in which things happened. `context_object.py` folds them.

They are stored for as long as the task, so a field is never renamed, and a new one has a default.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from errands.policy.cel.session import Call, Session

#: What made a call: the model (or the handler in its place), or a step or script, which take no turn.
Caller = Literal["model", "step", "script"]
#: Why a task was ended by its policy, or because it cannot continue.
Reason = Literal["limit_exceeded", "restricted", "errored"]


class FunctionCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model wants a function called."""

    #: Unique within the task.
    id: str
    name: str
    #: What the model wrote. None when it was not a JSON object; then `raw` has it.
    arguments: dict[str, Any] | None
    raw: str = ""
    #: What the provider wants to be sent again together with this call, unchanged.
    extra: dict[str, Any] | None = None


class _Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record"):
    """The base of all records. Times are UTC, ISO 8601."""

    at: str


class Started(_Fact, frozen=True, kw_only=True, tag="started"):
    """The task exists. Always the first record, and the only one of its kind."""

    agent: str
    namespace: str = ""
    user: str = ""
    email: str | None = None
    model: str = ""
    #: Function names; each gets a record of zeros.
    functions: tuple[str, ...] = ()
    #: Names of functions that delegate to another agent.
    delegations: tuple[str, ...] = ()
    #: The task that delegated to this one, and how many delegations there are above it.
    parent: str = ""
    depth: int = 0


class InputArrived(_Fact, frozen=True, kw_only=True, tag="input"):
    """A message arrived: `message` and the agent's parameters."""

    values: dict[str, Any]
    #: The key of the message, see `errands.policy.run.inputs`. Each is taken in once.
    message_id: str = ""


class InputPassed(_Fact, frozen=True, kw_only=True, tag="passed"):
    """The guardrails let an input pass. `values` is what they made of it, None when they did not change it."""

    message_id: str
    values: dict[str, Any] | None = None


class InputRefused(_Fact, frozen=True, kw_only=True, tag="refused"):
    """A message was not a valid input for the agent, or could not be answered. Its sender got the reason."""

    message_id: str
    reason: str


class OutputGiven(_Fact, frozen=True, kw_only=True, tag="output"):
    """The agent gave an answer that passed the guardrails: `message` and what the agent exposes."""

    values: dict[str, Any]


class OutputHeld(_Fact, frozen=True, kw_only=True, tag="held"):
    """What a turn wants to show while a review is pending. The agent is not run again to show it."""

    #: The answer as guardrails see it.
    values: dict[str, Any]
    #: The events of the turn and its end.
    turn: dict[str, Any]


class ModelCalled(_Fact, frozen=True, kw_only=True, tag="llm"):
    """The model answered once. `at` is when it was asked, if the runtime asked it."""

    model: str
    prompt: int = 0
    completion: int = 0
    text: str = ""
    calls: tuple[FunctionCall, ...] = ()
    #: Why it was ended before the model was done: `length` or `content_filter`.
    incomplete: str | None = None
    #: When its first token arrived and when its answer was complete; empty when that is not known.
    first_token_at: str = ""
    ended_at: str = ""


class _CallRecord(_Fact, frozen=True, kw_only=True):
    """What all records of one capability call have in common. `at` is when the call began."""

    #: Ties the records of one call together; the model's own id when it has one.
    call: str
    function: str
    arguments: dict[str, Any] = {}
    caller: Caller = "model"


class CapabilityBegan(_CallRecord, frozen=True, kw_only=True, tag="began"):
    """The call is about to be executed. Without a later record of the same call it is unknown whether it was."""

    #: A digest of the function and the policy at that time: when they have changed, the call is decided again.
    form: str | None = None


class CapabilityFinished(_CallRecord, frozen=True, kw_only=True, tag="finished"):
    """The call returned. `output` is the result of the capability, before any steps change it."""

    output: Any = None
    #: The child task, for a delegation.
    task_id: str | None = None
    ended_at: str = ""


class CapabilityErrored(_CallRecord, frozen=True, kw_only=True, tag="errored"):
    """The call failed, and the model gets the error."""

    error: str
    task_id: str | None = None
    #: False when it failed before it began, for example by a missing argument.
    executed: bool = True
    ended_at: str = ""


class CapabilityRestricted(_CallRecord, frozen=True, kw_only=True, tag="restricted"):
    """A step stopped the call, which was not executed."""

    reason: str


#: How a call ended.
CallEnded = CapabilityFinished | CapabilityErrored | CapabilityRestricted


class CapabilityShown(_Fact, frozen=True, kw_only=True, tag="shown"):
    """What the model gets for a call: its result as steps left it, or what went wrong."""

    call: str
    function: str
    content: Any = None
    #: Whether it takes a turn itself, because nothing else records it: a script, or an unknown function.
    turn: bool = False


class ToolOpened(_Fact, frozen=True, kw_only=True, tag="opened"):
    """A session with a tool was opened for the task. Later calls need its `state`."""

    tool: str
    state: dict[str, Any] = {}


class ToolsClosed(_Fact, frozen=True, kw_only=True, tag="closed"):
    """The sessions with tools were closed."""


class DelegationBegan(_Fact, frozen=True, kw_only=True, tag="delegated"):
    """Another agent works on a delegated call, in this task of its own."""

    call: str
    task_id: str


class Decided(_Fact, frozen=True, kw_only=True, tag="decided"):
    """A step or a limit has decided something."""

    step: str
    action: str
    outcome: str
    #: The version of the policy, "" for a rule of the agent itself.
    policy: str = ""
    call: str | None = None
    detail: str = ""


class Waiting(_Fact, frozen=True, kw_only=True, tag="waiting"):
    """Steps wait for `call`, such as a review. With `session` they continue from there."""

    call: Call
    session: Session
    #: The name of the session within the task.
    key: str = ""
    #: What is reviewed, when the question does not say so because only the reviewer may see it yet.
    subject: Any = None


class Answered(_Fact, frozen=True, kw_only=True, tag="answered"):
    """A call inside of an expression has finished: the arguments of `Session.settle` or `Session.fail`."""

    call: Call
    value: Any = None
    error: str | None = None
    key: str = ""
    #: Who reviewed, and with which message.
    by: str = ""
    message_id: str = ""


class Ended(_Fact, frozen=True, kw_only=True, tag="ended"):
    """The task was ended by its policy, or because it cannot continue."""

    reason: Reason
    detail: str = ""


AnyRecord = (
    Started
    | InputArrived
    | InputPassed
    | InputRefused
    | OutputGiven
    | OutputHeld
    | ModelCalled
    | CapabilityBegan
    | CapabilityFinished
    | CapabilityErrored
    | CapabilityRestricted
    | CapabilityShown
    | ToolOpened
    | ToolsClosed
    | DelegationBegan
    | Decided
    | Waiting
    | Answered
    | Ended
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)

encode = _ENCODER.encode
decode = _DECODER.decode
