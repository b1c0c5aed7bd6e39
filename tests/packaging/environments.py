"""Every Python of this machine, and fresh environments with what is built from this tree.

uv makes an environment within a second and shares the packages among them; without it, venv and pip do the same.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The versions that pyproject.toml names, such as "3.11".
VERSIONS = [
    version
    for line in PROJECT["classifiers"]
    if (version := line.removeprefix("Programming Language :: Python :: "))[:2] == "3."
]


@functools.cache
def pythons() -> dict[str, str]:
    """Return the interpreters of this machine by their versions: the one of the tests, pyenv's, and those in PATH."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {running: sys.executable}
    for version in VERSIONS:
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for path in [*map(str, reversed(of_pyenv)), shutil.which(f"python{version}")]:
            if path is not None and version not in found and _works(path, version):
                found[version] = path
    return found


def _works(path: str, version: str) -> bool:
    """Return whether it is an interpreter of that version: the commands of pyenv are there for every version."""
    script = "import sys, venv, ssl, sqlite3; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-c", script], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def clean() -> dict[str, str]:
    """Return the variables of this process without those that change what a program imports or how it is set."""
    names = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONWARNINGS", "COVERAGE_PROCESS_START")
    return {name: value for name, value in os.environ.items() if name not in names and not name.startswith("ERRANDS_")}


class Environment:
    """A virtual environment of its own, with nothing in it but what is installed."""

    def __init__(self, folder: Path, python: str) -> None:
        self.bin = folder / "bin"
        self._folder = folder
        if uv():
            self._run(str(uv()), "venv", "--quiet", "--python", python, str(folder))
        else:
            self._run(python, "-m", "venv", str(folder))

    def install(self, requirement: str) -> None:
        """Install from the index. Where it cannot be reached, the test is skipped, or fails in CI."""
        if uv():
            command = [str(uv()), "pip", "install", "--quiet", "--python", str(self.bin / "python"), requirement]
        else:
            command = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", requirement]
        done = subprocess.run(command, capture_output=True, text=True, env=clean(), check=False)
        if done.returncode == 0:
            return
        unreachable = re.search(r"error sending request|Failed to fetch|Connection|Max retries|dns error", done.stderr)
        if unreachable and not os.environ.get("CI"):
            pytest.skip("the package index cannot be reached")
        raise AssertionError(done.stderr)

    def run(self, script: str) -> str:
        """Return what a program prints in it."""
        return self._run(str(self.bin / "python"), "-I", "-c", script)

    def command(self, *arguments: str) -> str:
        """Return what `errands` prints in it."""
        return self._run(str(self.bin / "errands"), *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, env=clean(), cwd=self._folder.parent, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
