"""How errors become a sentence and an exit code."""

from __future__ import annotations

import pytest

from errands.cli.failures import CommandError, ExitCode, reporting
from errands.client import AgentTimeoutError, AgentUnreachableError, ProtocolError, StreamInterruptedError
from errands.errors import ConfigurationError, InternalError, StorageError, UnavailableError


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (CommandError("it broke"), ExitCode.FAILED, "it broke"),
        (StorageError("the disk is full"), ExitCode.FAILED, "the disk is full"),
        (ConfigurationError("port=x is wrong"), ExitCode.USAGE, "port=x is wrong"),
        (UnavailableError("not now"), ExitCode.UNREACHABLE, "not now. Try again"),
        (InternalError("reference 12"), ExitCode.UNREACHABLE, "reference 12"),
        (ProtocolError("HTML"), ExitCode.UNREACHABLE, "not an A2A answer: HTML"),
        (AgentUnreachableError("no route"), ExitCode.UNREACHABLE, "no route. Check that the agent is running"),
        (AgentTimeoutError("late", message_id="m1"), ExitCode.UNREACHABLE, "--message-id"),
        (StreamInterruptedError("t1", "7", "cut"), ExitCode.UNREACHABLE, "errands tasks watch URL t1 --after 7"),
        (StreamInterruptedError("t1", None, "cut"), ExitCode.UNREACHABLE, "errands tasks watch URL t1`"),
        (
            StreamInterruptedError("t; reboot", "$(id)", "cut"),
            ExitCode.UNREACHABLE,
            "errands tasks watch URL 't; reboot' --after '$(id)'",
        ),
    ],
)
def test_an_error_is_one_line_on_stderr_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str], error: Exception, code: ExitCode, words: str
) -> None:
    with pytest.raises(SystemExit) as ended, reporting():
        raise error
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (code, "")
    assert printed.err.startswith("Error: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_an_interruption_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, reporting():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


def test_a_bug_of_ours_is_not_dressed_up() -> None:
    with pytest.raises(ZeroDivisionError), reporting():
        raise ZeroDivisionError
