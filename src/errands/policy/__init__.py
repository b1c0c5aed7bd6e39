"""Policy: what a task may do, written as expressions over its context. Pure: no I/O, no engine, no server.

    cel/          the expression language: scopes, programs, sessions that replay
    template.py   `{expression}` inside of text
    records.py    what a log stores about a run
    context.py    the context object, folded from records
    limits.py     limits that end a task
    steps.py      steps of capabilities and guardrails as they are written, checked and compiled
    pipeline.py   a list of steps, run over a call, an input or an answer
    document.py   a policy for an agent of any kind: limits, guardrails and steps around capabilities

`docs/policy.md` is the reference.
"""
