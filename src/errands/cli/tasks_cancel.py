"""`errands tasks cancel`."""

from __future__ import annotations

from errands.cli.failures import ExitCode, run
from errands.cli.options import AsJson, Headers, Remote, TaskId, Timeout, Token, Url
from errands.cli.terminal import clean, out, print_json


def cancel_task(
    url: Url,
    task_id: TaskId,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> None:
    """Cancel a task, and wait until it is.

    Example:

        errands tasks cancel http://localhost:8000 TASK_ID
    """
    run(_cancel(Remote(url, header, token), task_id, as_json), timeout)


async def _cancel(remote: Remote, task_id: str, as_json: bool) -> ExitCode:
    async with remote.client() as client:
        result = await client.cancel(task_id)
    if as_json:
        print_json(result.raw_task)
    else:
        out().print(clean(f"Task {result.task_id} is {result.state}."))
    return ExitCode.OK
