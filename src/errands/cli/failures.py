"""Failures of commands: one sentence on stderr and an exit code for scripts, never a traceback."""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import itertools
import shlex
import sysconfig
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import httpx

from errands import client, errors
from errands.cli.printing import clean, err

P = ParamSpec("P")

_PACKAGE = str(Path(errors.__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    #: 128 plus the number of SIGINT, as in shells.
    INTERRUPTED = 130


#: The meaning of each exit code, for `errands --help`.
EXIT_CODES = {
    ExitCode.OK: "success: the task completed, or it waits for an answer",
    ExitCode.FAILED: (
        "the task failed, was canceled or was rejected; the server could not run; the card or a manifest is not valid"
    ),
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.UNREACHABLE: "the agent could not be reached, refused the request, or broke the protocol",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}

_FAILED_STATES = frozenset({"failed", "canceled", "rejected"})

#: What to do about an error. The first matching class counts.
_HINTS: tuple[tuple[type[Exception], str], ...] = (
    (client.AgentNotFoundError, "Check the address, or start an agent there with `errands serve FILE.py`."),
    (client.AgentUnreachableError, "Check that the agent is running, and try again."),
    (client.AgentCapabilityError, "See what it offers with `errands card URL`."),
    (client.AnswerLostError, "On the command line that is --message-id ID."),
    (client.ForeignOriginError, "On the command line that is --allow-origin URL."),
    (
        errors.AuthenticationRequiredError,
        "Give credentials with --token TOKEN, --api-key KEY or --header 'NAME: VALUE'.",
    ),
    (errors.TaskNotFoundError, "List the tasks with `errands tasks list URL`."),
    (errors.UnavailableError, "Try again in a moment."),
)


def exit_code_of(state: str) -> ExitCode:
    """Return the exit code for the state in which a task was left."""
    return ExitCode.FAILED if state in _FAILED_STATES else ExitCode.OK


class CommandError(Exception):
    """A command failed. The message says what happened and what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED, *, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        #: Shown before the message, such as the traceback of the user's program.
        self.details = details


class UsageError(CommandError):
    """The command line is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)


@contextmanager
def reporting() -> Iterator[None]:
    """Exit with a sentence and an exit code if the body raises an expected error."""
    try:
        yield
    except CommandError as error:
        _end(str(error), error.code, error.details)
    except client.StreamInterruptedError as error:
        after = f" --after {shlex.quote(error.last_event_id)}" if error.last_event_id else ""
        follow = f"follow it with `errands tasks watch URL {shlex.quote(error.task_id)}{after}`"
        _end(f"the connection was lost, but the task may still be running; {follow}", ExitCode.UNREACHABLE)
    except (errors.ConfigurationError, httpx.InvalidURL) as error:
        _end(str(error), ExitCode.USAGE)
    except (errors.A2AError, client.A2AClientError) as error:
        _end(explained(error), ExitCode.UNREACHABLE)
    except errors.EngineError as error:
        _end(str(error), ExitCode.FAILED)
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None


def explained(error: Exception) -> str:
    """Return what happened in the communication with an agent, and what to do about it."""
    return _sentence(str(error)) + next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")


def command(
    function: Callable[P, Coroutine[Any, Any, ExitCode | None]] | Callable[P, ExitCode | None],
) -> Callable[P, None]:
    """Make a command of a function, async or not, that returns an exit code or None for success.

    Its errors are reported, and the argument `timeout`, if it has one, limits its time.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with reporting():
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = asyncio.run(_in_time(result, kwargs.get("timeout")))
            raise SystemExit(result)

    return run


async def _in_time(result: Coroutine[Any, Any, ExitCode | None], timeout: Any) -> ExitCode | None:
    try:
        async with asyncio.timeout(timeout):
            return await result
    except TimeoutError:
        if timeout is None:
            raise
        raise CommandError(
            f"no answer within {timeout:g} s; the agent may still be working: see `errands tasks list URL`, "
            "or allow more time with --timeout",
            ExitCode.UNREACHABLE,
        ) from None


def program_error(error: BaseException, where: str) -> CommandError:
    """Return an error about the user's program, with the lines of the traceback that are not ours."""

    def is_ours(frame: traceback.FrameSummary) -> bool:
        # Installed packages are below the standard library.
        is_stdlib = frame.filename.startswith(("<frozen", _STDLIB)) and "site-packages" not in frame.filename
        return is_stdlib or frame.filename.startswith(_PACKAGE)

    theirs = itertools.dropwhile(is_ours, traceback.extract_tb(error.__traceback__))
    lines = traceback.format_list(list(theirs)) + traceback.format_exception_only(error)
    name = type(error).__name__
    return CommandError(f"{where} failed with {name}; the last lines above say where", details="".join(lines))


def _end(message: str, code: ExitCode, details: str = "") -> NoReturn:
    if details:
        err().print(clean(details), end="")
    err().print(clean("Error: " + _sentence(message)).rstrip(), style="red")
    raise SystemExit(code)


def _sentence(text: str) -> str:
    text = text.strip()
    return text + (" " if text.endswith((".", "!", "?", "`")) else ". ")
