"""Makes a virtual environment for other people's packages and prints its interpreter.

    python scripts/environment.py DIRECTORY REQUIREMENT ...

The benchmark, the conformance runs and the interoperability tests keep peers and kits out of our own environment with
it. A directory is kept while its requirements stay the same, and several processes may ask for it at once.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL_S = 600.0


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, timeout=INSTALL_S)


def make(directory: Path, requirements: list[str]) -> Path:
    """The interpreter of an environment that holds these requirements."""
    python, stamp = directory / "bin" / "python", directory / "installed.txt"
    wanted = "\n".join(requirements)
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        run(uv, "venv", "--quiet", "--python", sys.executable, directory)
        run(uv, "pip", "install", "--quiet", "--python", python, *requirements)
    else:
        run(sys.executable, "-m", "venv", directory)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    stamp.write_text(wanted)
    return python


def main() -> None:
    directory, requirements = Path(sys.argv[1]), sys.argv[2:]
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            python = make(directory, requirements)
        except (subprocess.SubprocessError, OSError) as error:
            sys.exit(f"{directory.name} could not be installed: {error}")
    sys.stdout.write(f"{python}\n")


if __name__ == "__main__":
    main()
