"""Limits that end a task. Each check returns the limit that was exceeded, with its numbers, or None."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from errands.clock import from_iso
from errands.errors import ConfigurationError
from errands.policy.context_object import Context

_UNITS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_TERM = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_TERM})+")


def parse_duration(text: str) -> int:
    """Return the milliseconds of a duration such as `90s`, `1h30m` or `1.5h`. Raises `ConfigurationError`."""
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is not a duration: write numbers with units, such as 30s, 1h30m or 1.5h (ns, us, ms, s, m, h)"
        )
    return round(sum(float(number) * _UNITS[unit] for number, unit in re.findall(_TERM, text)))


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None means no limit. `max_age` is a duration."""

    max_turns: int | None = None
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_age: Annotated[str, msgspec.Meta(examples=["30m"])] | None = None
    max_tool_calls: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_prompt_tokens", "max_completion_tokens", "max_tool_calls"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"{name} is {value}: a limit cannot be negative")
        if self.max_age is not None:
            parse_duration(self.max_age)

    @property
    def max_age_ms(self) -> int | None:
        """`max_age` in milliseconds."""
        return None if self.max_age is None else parse_duration(self.max_age)


#: The limits of an agent from a manifest that does not set its own, so that a model that loops is stopped.
DEFAULT_LIMITS = Limits(max_turns=500, max_tool_calls=1000, max_age="720h")


def with_defaults(limits: Limits) -> Limits:
    """Return the limits, with those of `DEFAULT_LIMITS` that are not set."""
    given = {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
    return msgspec.structs.replace(DEFAULT_LIMITS, **given)


def stricter(one: Limits, other: Limits) -> Limits:
    """Return the lower one of each limit."""
    bounds: dict[str, Any] = {}
    for name in Limits.__struct_fields__:
        given = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        bounds[name] = min(given, key=parse_duration if name == "max_age" else int, default=None)
    return Limits(**bounds)


class Exceeded(msgspec.Struct, frozen=True):
    """The task must end with reason `limit_exceeded`. Ages are in milliseconds."""

    limit: str
    allowed: int
    #: The number that was reached, or would be with what is about to be done.
    actual: int

    @property
    def message(self) -> str:
        unit = " ms" if self.limit == "max_age" else ""
        return f"{self.limit} is {self.allowed}{unit} and the task has come to {self.actual}{unit}"


def check_age(limits: Limits, context: Context, now_ms: int) -> Exceeded | None:
    """Check the age of the task: whenever an input arrives, and before everything else."""
    return _over("max_age", limits.max_age_ms, now_ms - from_iso(context.started_at))


def check_before_model(limits: Limits, context: Context, now_ms: int) -> Exceeded | None:
    """Check before the model is called: exactly `max_turns` answers of the model are possible."""
    turns = context.turns.count("llm") + 1
    return check_age(limits, context, now_ms) or _over("max_turns", limits.max_turns, turns)


def check_after_model(limits: Limits, context: Context) -> Exceeded | None:
    """Check after each answer of the model."""
    return _over("max_prompt_tokens", limits.max_prompt_tokens, context.prompt_tokens) or _over(
        "max_completion_tokens", limits.max_completion_tokens, context.completion_tokens
    )


def check_before_capability(limits: Limits, context: Context, now_ms: int, *, under_way: int = 0) -> Exceeded | None:
    """Check before a capability is executed. `under_way` counts calls that began and have no record yet."""
    calls = len(context.invocations) + under_way + 1
    return check_age(limits, context, now_ms) or _over("max_tool_calls", limits.max_tool_calls, calls)


def _over(limit: str, allowed: int | None, actual: int) -> Exceeded | None:
    return Exceeded(limit, allowed, actual) if allowed is not None and actual > allowed else None
