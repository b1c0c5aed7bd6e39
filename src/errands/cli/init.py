"""`errands init`: a new project with an agent that can be served, and a test that passes."""

from __future__ import annotations

import enum
import re
import shlex
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from errands.agents.manifests.documents import editor_schema
from errands.cli.failures import CommandError, UsageError, command
from errands.cli.printing import err, out
from errands.model.base import encode

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


class Kind(enum.StrEnum):
    """The kinds of agents for which there are starters."""

    WORKER = "worker"
    FUNCTION = "function"
    EXECUTOR = "executor"
    MANIFEST = "manifest"


_MEANINGS = {
    Kind.WORKER: "a class with a method that handles a message; can do everything",
    Kind.FUNCTION: "a Python function whose parameters are the input",
    Kind.EXECUTOR: "a class as in the official SDK, which publishes events",
    Kind.MANIFEST: "YAML: a prompt, a model, tools and rules; no Python",
}


@command
def init(
    name: Annotated[str, Argument(metavar="NAME", help="The folder to create for the project.")],
    kind: Annotated[
        Kind | None, Option(help="What the agent is.", show_default="asked in a terminal, else worker")
    ] = None,
) -> None:
    """Create a project with an agent and a test: NAME is its folder, and the agent's name.

    Existing files are not changed. In the folder, `errands serve` serves the agent.

    Example:

        errands init demo --kind worker
    """
    folder = Path(name)
    if not _NAME.fullmatch(folder.name):
        raise UsageError(
            f"{folder.name!r} cannot be the name of an agent: use letters, digits, - and _, and begin with a letter"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{name} exists and is not empty; choose another name")
    if kind is None:
        kind = _ask_kind() if sys.stdin.isatty() else Kind.WORKER
    try:
        for path, content in project_files(folder.name, kind).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written ({error.strerror})") from None
    console = out()
    console.print(f"Created {folder}: an agent ({kind}) and its test. Next:\n")
    if kind is Kind.MANIFEST and find_spec("yaml") is None:
        console.print("  pip install 'errands[agents]'")
    console.print(f"  cd {shlex.quote(str(folder))}")
    console.print("  errands serve")


def _ask_kind() -> Kind:
    """Ask which kind of agent is wanted."""
    kinds = list(Kind)
    console = err()
    console.print("What is the agent?\n")
    for number, kind in enumerate(kinds, 1):
        console.print(f"  {number}  {kind:<9} {_MEANINGS[kind]}")
    console.print()
    while True:
        console.print(f"1 to {len(kinds)}, or a name [worker]: ", end="")
        try:
            text = input().strip().lower()
        except EOFError:
            raise UsageError("no kind was chosen; name one with --kind") from None
        if not text:
            return Kind.WORKER
        if text in set(kinds):
            return Kind(text)
        if text.isdecimal() and 1 <= int(text) <= len(kinds):
            return kinds[int(text) - 1]


def project_files(name: str, kind: Kind) -> dict[str, str]:
    """Return the files of a new project by their paths."""
    is_manifest = kind is Kind.MANIFEST
    target = "agent.yaml" if is_manifest else "agent.py"
    # The names of manifests are lower case.
    values = {
        "name": name.lower().replace("_", "-") if is_manifest else name,
        "target": target,
        "requirement": "errands[agents]" if is_manifest else "errands",
    }
    found = {
        target: _starter(f"{kind}.yaml" if is_manifest else f"{kind}.py", values),
        "tests/test_agent.py": _starter(f"{kind}_test.py", values),
        "README.md": _starter("readme.md", values),
        "pyproject.toml": _starter("pyproject.toml", values),
        ".gitignore": _starter("gitignore", values),
    }
    if is_manifest:
        found["scripted.json"] = _starter("scripted.json", values)
        found["agent.schema.json"] = msgspec.json.format(encode(editor_schema()), indent=2).decode() + "\n"
    return found


def _starter(name: str, values: dict[str, str]) -> str:
    text = files("errands.cli").joinpath("starters", f"{name}.txt").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)
