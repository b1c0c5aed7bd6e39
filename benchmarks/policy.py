"""Measure the cost of a policy: compiling, evaluating and running a typical step, with small and large contexts.

    python benchmarks/policy.py

"fresh" starts from an unused context, as after each new record; "again" shares it with earlier steps, as later steps of
one call do. "whole" is an expression that needs the entire context.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from errands.policy import cel
from errands.policy.cel import Session, Variables, run, scopes
from errands.policy.cel.evaluators import Evaluators, use_evaluators
from errands.policy.context_object import Context, replay
from errands.policy.records import CapabilityFinished, InputArrived, ModelCalled, Started
from errands.policy.steps import Passed, Phase, StepCall, StepConfig, Subject, compile_steps, run_steps
from errands.policy.template import compile_template

NOW = "2026-05-20T03:45:00Z"
TYPICAL = "context.capabilities.f0.count_successful < 20 && input.amount <= 100 && context.user.id != ''"
WHOLE = f"context != {{}} && {TYPICAL}"
ROUNDS = 5


def context_of(functions: int) -> Context:
    """Return a context with nine keys per function and a few more, with one call of the first function."""
    names = tuple(f"f{number}" for number in range(functions))
    return replay(
        [
            Started(at=NOW, agent="support", user="ann", model="m", functions=names),
            InputArrived(at=NOW, values={"message": [{"text": "hello"}]}),
            ModelCalled(at=NOW, model="m", prompt=10, completion=10),
            CapabilityFinished(at=NOW, call="1", function="f0", arguments={"amount": 3}, output={"ok": True}),
        ]
    )


def keys_of(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(keys_of(item) for item in value.values())
    return sum(keys_of(item) for item in value) if isinstance(value, list) else 0


def microseconds(action: Callable[[], object], times: int) -> float:
    """Return the median of several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(times):
            action()
        rounds.append((time.perf_counter() - begun) / times * 1e6)
    return statistics.median(rounds)


def report(what: str, figure: float) -> None:
    print(f"{what:<62}{figure:>10.1f} µs")


def measure(functions: int, times: int) -> None:
    context = context_of(functions)
    seen = context.plain()
    size = f"{keys_of(seen):,} keys"
    session = Session(NOW)
    shared = Variables(seen, input={"amount": 3})
    typical, whole = (cel.compile(scopes.BEFORE, source, condition=True) for source in (TYPICAL, WHOLE))

    def fresh(program: object) -> Callable[[], object]:
        return lambda: run(program, Variables(seen, input={"amount": 3}), session)  # type: ignore[arg-type]

    report(f"typical condition, again, {size}", microseconds(lambda: run(typical, shared, session), times))
    report(f"typical condition, fresh, {size}", microseconds(fresh(typical), times))
    report(f"whole context, again, {size}", microseconds(lambda: run(whole, shared, session), times))
    report(f"whole context, fresh, {size}", microseconds(fresh(whole), max(5, times // 20)))
    report(f"one step of a pipeline, fresh, {size}", step(seen, times))
    anew = microseconds(lambda: context_of(functions).plain(), times // 5)
    report(f"context as expressions see it, from nothing, {size}", anew)
    decided = ModelCalled(at=NOW, model="m")

    def move() -> None:
        context.take(decided)
        context.plain()

    report(f"context as expressions see it, one record on, {size}", microseconds(move, times // 5))


def step(seen: dict[str, object], times: int) -> float:
    steps = compile_steps(Phase.BEFORE, [StepConfig(assert_=TYPICAL, error_message="{input.amount} is too much")])
    subject = Subject(context=lambda: seen, input={"amount": 3})

    async def invoke(invocation: StepCall) -> None:
        raise AssertionError("nothing is invoked here")

    async def once() -> None:
        assert isinstance(await run_steps(steps, subject, Session(NOW), invoke=invoke), Passed)

    async def many() -> float:
        # As in a server, which estimates the work of each evaluation.
        use_evaluators(Evaluators())
        rounds = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(times):
                await once()
            rounds.append((time.perf_counter() - begun) / times * 1e6)
        return statistics.median(rounds)

    return asyncio.run(many())


def main() -> None:
    measure(functions=4, times=2000)
    measure(functions=330, times=500)
    report("compile, new", microseconds(lambda: cel.compile.__wrapped__(scopes.BEFORE, TYPICAL), 200))
    report("compile, known", microseconds(lambda: cel.compile(scopes.BEFORE, TYPICAL), 2000))
    text = compile_template(scopes.PROMPT, "Help {context.user.id} of {context.agent.name} at {now}.")
    variables = Variables(Context(Started(at=NOW, agent="support", user="ann")).plain())
    prompt = microseconds(lambda: asyncio.run(text.text(variables, Session(NOW))), 100)
    report("a prompt with three expressions", prompt - microseconds(lambda: asyncio.run(asyncio.sleep(0)), 100))


if __name__ == "__main__":
    main()
