"""A plain function as an agent: its parameters are the input, and what it yields is streamed.

Run it:

    errands serve examples/function_agent.py

Try:

    errands send http://localhost:8000 3            # 3 2 1 liftoff
    errands send http://localhost:8000 "soon"       # not a number: it asks for one

The function can be tested without a server: `list(countdown(3))`.
"""

from collections.abc import Iterator

from errands import agent


@agent(name="Countdown", description="Counts down from a number.")
def countdown(start: int) -> Iterator[str]:
    for number in range(start, 0, -1):
        yield f"{number} "
    yield "liftoff"
