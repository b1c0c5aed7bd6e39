"""Request contexts of messages that wait are kept for this process's turns, and never without bound."""

from __future__ import annotations

from errands.runtime.call import MAX_TASKS, WaitingContexts


def test_what_other_processes_have_taken_up_does_not_pile_up() -> None:
    waiting = WaitingContexts()
    for number in range(MAX_TASKS + 1):
        with waiting.keeping(f"task {number}", "message", {"number": number}):
            pass
    assert waiting.take("task 0", "message") is None
    assert waiting.take("task 1", "message") == {"number": 1}
    assert waiting.take(f"task {MAX_TASKS}", "message") == {"number": MAX_TASKS}
