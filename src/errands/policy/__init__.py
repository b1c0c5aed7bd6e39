"""Policy: what a task may do, written as expressions over its context, and enforced for every kind of agent.

    cel/                 the expression language
    template.py          `{expression}` inside of text
    records.py           what the log stores about a run
    context_object.py    the context object, folded from records
    limits.py            limits that end a task
    steps.py             steps of capabilities and guardrails: compiled, and run over a call, an input or an answer
    document.py          a policy, and the rules of an agent: limits, guardrails and steps around capabilities
    replay.py            what a policy would have decided about a task that has run

These are pure. The others work with the runtime, which knows only the protocols of `errands.runtime.oversight`:

    run.py               the records of a task while a turn adds to them
    enforcement.py       steps, guardrails, limits, reviews and records in one turn, and around one call
    agent_oversight.py   which rules hold for an agent, and the overseer of workers, functions and executors
    reviews.py           questions and answers of reviews, and the operations of reviewers

`docs/policy.md` is the reference.
"""
