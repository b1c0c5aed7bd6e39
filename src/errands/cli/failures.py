"""What goes wrong, in one sentence on stderr, and the exit code that says it to scripts. Never a traceback."""

from __future__ import annotations

import asyncio
import enum
import itertools
import sysconfig
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx

import errands
from errands.cli.terminal import clean, err
from errands.client import (
    A2AClientError,
    AgentCapabilityError,
    AgentNotFoundError,
    AgentUnreachableError,
    AnswerLostError,
    StreamInterruptedError,
)
from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    ConfigurationError,
    EngineError,
    TaskNotFoundError,
    UnavailableError,
)

_PACKAGE = str(Path(errands.__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    #: 128 and the number of SIGINT, as shells have it.
    INTERRUPTED = 130


#: What each exit code means, for `errands --help`.
EXIT_CODES = {
    ExitCode.OK: "done; the task completed, or waits for an answer",
    ExitCode.FAILED: (
        "the task failed, was canceled or was rejected; the server could not run; the card or a manifest is not valid"
    ),
    ExitCode.USAGE: "the command cannot be run as it was written",
    ExitCode.UNREACHABLE: "the agent could not be reached, refused the request, or did not answer as A2A says",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}

#: What to do about an error; the first class that fits.
_HINTS: tuple[tuple[type[Exception], str], ...] = (
    (AgentNotFoundError, "Check the address, or start an agent there with `errands serve FILE.py`."),
    (AgentUnreachableError, "Check that the agent is running, and try again."),
    (AgentCapabilityError, "See what it offers with `errands card URL`."),
    (AnswerLostError, "On the command line that is --message-id ID."),
    (AuthenticationRequiredError, "Give credentials with --token TOKEN or --header 'NAME: VALUE'."),
    (TaskNotFoundError, "See which tasks there are with `errands tasks list URL`."),
    (UnavailableError, "Try again in a moment."),
)


class CommandError(Exception):
    """A command cannot go on; the message says what happened and what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED, *, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        #: Shown before the message, such as the lines of somebody's program that failed.
        self.details = details


class UsageError(CommandError):
    """The command cannot be run as it was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)


@contextmanager
def reporting() -> Iterator[None]:
    """Ends the program with a sentence and an exit code when what it encloses fails in a way we know."""
    try:
        yield
    except CommandError as error:
        _end(str(error), error.code, error.details)
    except StreamInterruptedError as error:
        after = f" --after {error.last_event_id}" if error.last_event_id else ""
        go_on = f"errands tasks watch URL {error.task_id}{after}"
        _end(f"the connection broke, but the task may still be running; go on with `{go_on}`", ExitCode.UNREACHABLE)
    except (ConfigurationError, httpx.InvalidURL) as error:
        _end(str(error), ExitCode.USAGE)
    except (A2AError, A2AClientError) as error:
        hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")
        _end(_sentence(str(error)) + hint, ExitCode.UNREACHABLE)
    except EngineError as error:
        _end(str(error), ExitCode.FAILED)
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None


def run(work: Coroutine[Any, Any, ExitCode], timeout: float | None = None) -> NoReturn:
    """Runs a command to its end, which is the end of the program."""

    async def within() -> ExitCode:
        try:
            async with asyncio.timeout(timeout):
                return await work
        except TimeoutError:
            message = (
                f"no answer within {timeout:g} s; the agent may still be at work: look with `errands tasks list URL`, "
                "or give it more time with --timeout"
            )
            raise CommandError(message, ExitCode.UNREACHABLE) from None

    with reporting():
        raise SystemExit(asyncio.run(within()))


def blame(error: BaseException, where: str) -> CommandError:
    """The error of somebody's own program, with the lines of it that failed and none of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = itertools.dropwhile(lambda frame: not _is_theirs(frame.filename), frames)
    lines = traceback.format_list(list(theirs)) + traceback.format_exception_only(error)
    name = type(error).__name__
    return CommandError(f"{where} failed with {name}; the last lines above say where", details="".join(lines))


def _is_theirs(filename: str) -> bool:
    return "site-packages" in filename or not filename.startswith(("<frozen", _PACKAGE, _STDLIB))


def _end(message: str, code: ExitCode, details: str = "") -> NoReturn:
    if details:
        err().print(clean(details), end="")
    err().print(clean("Error: " + _sentence(message)).rstrip(), style="red")
    raise SystemExit(code)


def _sentence(text: str) -> str:
    text = text.strip()
    return text + (" " if text.endswith((".", "!", "?", "`")) else ". ")
