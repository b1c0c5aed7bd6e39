"""`errands policy`: validate a policy, show its decisions, and replay a task under another policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from rich.text import Text
from typer import Argument, Option

from errands.agents.manifests.loading import examine_policy, load_policy
from errands.cli.agents import print_findings
from errands.cli.failures import CommandError, ExitCode, UsageError, command
from errands.cli.options import AsJson, Storage, TaskId
from errands.cli.printing import clean, note, one_line, out, print_json, table
from errands.cli.tasks import records_of
from errands.policy.document import compile_policy
from errands.policy.records import AnyRecord, Decided
from errands.policy.replay import RuleVerdict, replay_policy

PolicyPath = Annotated[str, Argument(metavar="POLICY", help="A file with a policy.")]

_read_records = msgspec.json.Decoder(list[AnyRecord]).decode


@command
def validate_policy(path: PolicyPath, as_json: AsJson = False) -> ExitCode:
    """Report what is wrong with a policy, and how to fix it.

    Example:

        errands policy validate examples/policy.yaml
    """
    report = examine_policy(path)
    valid = report.policy is not None
    if as_json:
        print_json({"valid": valid, "findings": msgspec.to_builtins(report.findings)})
    else:
        print_findings(report.findings, out())
        out().print(clean(f"{path} is {'valid' if valid else 'not valid'}"), style="bold")
    return ExitCode.OK if valid else ExitCode.FAILED


@command
async def decisions(task_id: TaskId, storage: Storage = None, as_json: AsJson = False) -> None:
    """Show the decisions of policies about a task: rule, version and outcome.

    Example:

        errands policy decisions TASK_ID
    """
    found = [record for record in await records_of(storage, task_id) if isinstance(record, Decided)]
    if as_json:
        print_json(found)
    elif found:
        rows = [(record.at, record.policy or "-", record.step, record.outcome, record.detail) for record in found]
        _print_table(("AT", "POLICY", "RULE", "OUTCOME", "DETAIL"), rows)
    else:
        note("No policy has made decisions about this task.")


@command
async def replay(
    path: PolicyPath,
    task_id: Annotated[str | None, Argument(metavar="[TASK_ID]", help="The id of a task in the store.")] = None,
    storage: Storage = None,
    records: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="A file with the output of `errands tasks records --json`, instead of a task in the store.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> ExitCode:
    """Show what a policy would have decided about a task that has run, without running anything.

    The exit code is 1 if a call would have been blocked or the task ended.

    Example:

        errands policy test examples/policy.yaml TASK_ID
    """
    if (task_id is None) == (records is None):
        raise UsageError("expected either a TASK_ID in the store or a file with --records")
    policy = compile_policy(load_policy(path))
    known = _from_file(records) if records is not None else await records_of(storage, task_id or "")
    try:
        verdicts = await replay_policy(policy, known)
    except ValueError as error:
        raise CommandError(str(error)) from None
    first = next((verdict for verdict in verdicts if verdict.stops), None)
    if as_json:
        print_json(verdicts)
    elif verdicts:
        rows = [(v.at, v.moment, v.step, v.outcome, _was(v), v.detail) for v in verdicts]
        _print_table(("AT", "MOMENT", "RULE", "WOULD BE", "WAS", "DETAIL"), rows)
        if first is None:
            out().print("Nothing would have been stopped.", style="bold")
        else:
            out().print(clean(f"The first stop would have been at {first.moment}, by {first.step}."), style="bold red")
    else:
        out().print("No rule of the policy applies to this task.")
    return ExitCode.OK if first is None else ExitCode.FAILED


def _from_file(path: Path) -> list[AnyRecord]:
    try:
        return _read_records(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{path} does not contain records ({error}); write them with `errands tasks records TASK_ID --json`"
        ) from None


def _was(verdict: RuleVerdict) -> str:
    if verdict.outcome.startswith("would ask"):
        return "-"
    if verdict.was is None:
        return "not decided"
    return verdict.was if verdict.differs else "the same"


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in which refusals are red and reviews yellow."""
    styled: list[list[str | Text]] = []
    for *cells, detail in rows:
        texts = [Text(clean(cell)) for cell in cells]
        for text in texts:
            if text.plain == "exceeded" or text.plain.endswith((": block", ": lock_task")):
                text.stylize("red")
            elif text.plain.startswith("would ask"):
                text.stylize("yellow")
        styled.append([*texts, one_line(detail, 200)])
    out().print(table(names, styled, folds=True), soft_wrap=False)
