"""Completion: the scripts that `errands --install-completion` installs, and what they offer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.processes import errands

SHELLS = {
    "bash": "complete -o default -F _errands_completion errands",
    "zsh": "compdef _errands_completion errands",
    "fish": "complete --command errands",
}


def script_for(shell: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("_ERRANDS_COMPLETE", f"source_{shell}")
    script = errands().stdout
    monkeypatch.delenv("_ERRANDS_COMPLETE")
    return script


@pytest.mark.parametrize(("shell", "line"), SHELLS.items(), ids=list(SHELLS))
def test_there_is_a_script_for_each_shell(monkeypatch: pytest.MonkeyPatch, shell: str, line: str) -> None:
    script = script_for(shell, monkeypatch)
    assert line in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("errands ta", {"tasks"}),
        ("errands tasks ex", {"export"}),
        ("errands init --kind ", {"worker", "function", "executor", "manifest"}),
        ("errands serve --work", {"--workers"}),
    ],
)
def test_commands_options_and_their_values_are_offered(
    monkeypatch: pytest.MonkeyPatch, typed: str, offered: set[str]
) -> None:
    monkeypatch.setenv("_ERRANDS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    assert set(errands().stdout.split()) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_itself_completes_with_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script_for("bash", monkeypatch))
    (tmp_path / "errands").write_text(f'#!/bin/sh\nexec {sys.executable} -m errands "$@"\n')
    (tmp_path / "errands").chmod(0o755)
    # What Tab does: it calls the function of the script and reads its answer.
    program = """
    PATH="$PWD:$PATH"; source ./script
    COMP_WORDS=(errands doc); COMP_CWORD=1
    _errands_completion errands doc errands; echo "${COMPREPLY[*]}"
    """
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "doctor\n"


def test_the_option_installs_the_script_for_the_shell_that_runs_it(tmp_path: Path) -> None:
    # The shell is found among the parents of the process.
    command = f"{sys.executable} -m errands --install-completion; exit"
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "bash completion installed" in done.stdout
    installed = tmp_path / ".bash_completions" / "errands.sh"
    assert SHELLS["bash"] in installed.read_text()
    assert str(installed) in (tmp_path / ".bashrc").read_text()
