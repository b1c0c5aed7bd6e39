"""One turn under oversight: what it records, what it is given, what it shows, and how a policy stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from errands.clock import to_iso
from errands.errors import TaskStoppedError, TurnError
from errands.model.core import (
    CANCELED,
    COMPLETED,
    FAILED,
    PAUSED_STATES,
    REJECTED,
    SUBMITTED,
    WORKING,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
)
from errands.model.log import EventKind, StoredTask
from errands.policy.cel.values import Json
from errands.policy.document import CompiledPolicy
from errands.policy.limits import Exceeded, Limits, check_after_model, check_age, check_before_model
from errands.policy.pipeline import Locked, Passed, Subject
from errands.policy.records import Ended, InputAdmitted, InputArrived, ModelCalled, OutputGiven, OutputHeld, Started
from errands.policy.steps import Phase, Steps
from errands.runtime.journal import Journal, new_id
from errands.runtime.oversight.capability import CapabilityCall
from errands.runtime.oversight.judging import Judge
from errands.runtime.oversight.output import Output, as_parts, as_values, new_parts, without_words
from errands.runtime.run import Run, content_parts
from errands.runtime.turn import ALREADY_ENDED, Ending, Turn

#: For agents that record something and are bound by nothing.
NO_POLICY = CompiledPolicy("", Limits(), Steps(Phase.GUARDRAIL_BEFORE), Steps(Phase.GUARDRAIL_AFTER), {})

_ANSWERS = PAUSED_STATES | {COMPLETED}
_ENDS = {"limit_exceeded": FAILED, "restricted": REJECTED}
