"""Create an environment for third-party packages and print its interpreter.

    python scripts/environment.py DIRECTORY REQUIREMENT ...         packages for Python, in a virtual environment
    python scripts/environment.py --npm DIRECTORY PACKAGE@VERSION ...    packages for Node.js

The benchmark, the conformance runs and the interoperability tests use it to keep peers and kits out of the project's
environment. A directory is reused while its requirements stay the same, and several processes may request it at once.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

INSTALL_S = 600.0


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, timeout=INSTALL_S)


def make(directory: Path, requirements: list[str], install: Callable[[Path, list[str]], None]) -> None:
    """Make sure that the directory holds these requirements and no others."""
    stamp, wanted = directory / "installed.txt", "\n".join(requirements)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    shutil.rmtree(directory, ignore_errors=True)
    install(directory, requirements)
    stamp.write_text(wanted)


def install_python(directory: Path, requirements: list[str]) -> None:
    python, uv = directory / "bin" / "python", shutil.which("uv")
    if uv:
        run(uv, "venv", "--quiet", "--python", sys.executable, directory)
        run(uv, "pip", "install", "--quiet", "--python", python, *requirements)
    else:
        run(sys.executable, "-m", "venv", directory)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)


def install_node(directory: Path, requirements: list[str]) -> None:
    directory.mkdir()
    options = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
    run("npm", "install", *options, "--prefix", directory, *requirements)


def main() -> None:
    arguments = sys.argv[1:]
    is_node = arguments[0] == "--npm"
    name, *requirements = arguments[is_node:]
    directory = Path(name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            make(directory, requirements, install_node if is_node else install_python)
        except (subprocess.SubprocessError, OSError) as error:
            sys.exit(f"{directory.name} could not be installed: {error}")
    sys.stdout.write(f"{'node' if is_node else directory / 'bin' / 'python'}\n")


if __name__ == "__main__":
    main()
