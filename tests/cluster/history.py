"""The package as it was: taken from the history of this repository, where that is at hand."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> bytes:
    """What git says; nothing when it refuses, or when there is no repository."""
    answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    return answer.stdout if answer.returncode == 0 else b""


def source_at(commit: str, folder: Path) -> Path:
    """Where the package of this commit is, once it is put into a folder."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"
