"""The command line application: every command under its name."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer

from errands.cli.agents import print_schema, show_agents, validate_agents
from errands.cli.archives import export_tasks, import_tasks
from errands.cli.audit import audit
from errands.cli.card import CardGroup, show_card, sign_card, verify_card
from errands.cli.chat import chat
from errands.cli.db import check_db, damaged_tasks, print_sql, upgrade_db
from errands.cli.doctor import doctor
from errands.cli.failures import EXIT_CODES
from errands.cli.init import init
from errands.cli.options import AsJson
from errands.cli.policy import decisions, replay, validate_policy
from errands.cli.printing import out, print_json
from errands.cli.push import drop_push, list_pushes, retry_push
from errands.cli.reviews import approve_review, deny_review, list_reviews
from errands.cli.send import send
from errands.cli.serve import serve
from errands.cli.tasks import cancel_task, get_task, list_tasks, running_tasks, task_records, watch_task
from errands.cli.top import top
from errands.version import __version__

_HELP = "A durable runtime for A2A agents: serve an agent, talk to agents, manage their tasks."
_EXAMPLES = "\n\n    ".join(["errands serve examples/echo.py", 'errands send http://localhost:8000 "hello"'])
_CODES = "\n".join(f"{code.value}: {meaning}" for code, meaning in EXIT_CODES.items())

# Typer's own tracebacks show local variables, tokens among them.
app = typer.Typer(
    name="errands",
    help=f"{_HELP}\n\nExample:\n\n    {_EXAMPLES}\n\nExit codes:\n\n{_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def version(as_json: AsJson = False) -> None:
    """Print the version of errands.

    Example:

        errands version
    """
    if as_json:
        print_json({"errands": __version__, "python": platform.python_version()})
        return
    out().print(f"errands {__version__} (Python {platform.python_version()})")


def _group(what: str, example: str, **options: Any) -> typer.Typer:
    return typer.Typer(help=f"{what}\n\nExample:\n\n    {example}", no_args_is_help=True, **options)


tasks = _group("List, follow and cancel an agent's tasks.", "errands tasks list http://localhost:8000")
reviews = _group("Approve or deny pending reviews.", "errands reviews list")
push = _group("List webhooks whose deliveries failed, and retry or drop them.", "errands push list")
policy = _group("Validate policies and show their decisions.", "errands policy validate examples/policy.yaml")
card = _group("Show, sign and verify agent cards.", "errands card http://localhost:8000", cls=CardGroup)
db = _group(
    "Manage the tables of a store, and find damaged tasks in it.",
    "errands db upgrade --storage sqlite:///tasks.db",
)
agents = _group(
    "Validate and show agents that are written as manifests.", "errands agents validate examples/support-agent"
)

app.command("init")(init)
app.command("serve")(serve)
app.command("send")(send)
app.command("chat")(chat)
app.command("top")(top)
app.add_typer(tasks, name="tasks")
# The name of the same group in the protocol's own command line.
app.add_typer(tasks, name="task", hidden=True)
app.add_typer(reviews, name="reviews")
app.add_typer(push, name="push")
app.add_typer(policy, name="policy")
app.command("audit")(audit)
app.add_typer(card, name="card")
app.add_typer(db, name="db")
app.add_typer(agents, name="agents")
app.command("doctor")(doctor)
app.command("version")(version)

tasks.command("list")(list_tasks)
tasks.command("get")(get_task)
tasks.command("watch")(watch_task)
tasks.command("cancel")(cancel_task)
tasks.command("running")(running_tasks)
tasks.command("records")(task_records)
tasks.command("export")(export_tasks)
tasks.command("import")(import_tasks)

policy.command("validate")(validate_policy)
policy.command("test")(replay)
policy.command("decisions")(decisions)

reviews.command("list")(list_reviews)
reviews.command("approve")(approve_review)
reviews.command("deny")(deny_review)

push.command("list")(list_pushes)
push.command("retry")(retry_push)
push.command("drop")(drop_push)

agents.command("validate")(validate_agents)
agents.command("show")(show_agents)
agents.command("schema")(print_schema)

card.command("show")(show_card)
card.command("sign")(sign_card)
card.command("verify")(verify_card)

db.command("upgrade")(upgrade_db)
db.command("check")(check_db)
db.command("sql")(print_sql)
db.command("damaged")(damaged_tasks)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _errands(
    wants_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    # The name is part of the scripts for completion, also after `python -m errands`.
    app(prog_name="errands")
