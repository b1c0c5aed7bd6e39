"""What `--reload` watches for agents that are not written in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from uvicorn.supervisors.statreload import StatReload

_WATCHED = ("*.yaml", "*.yml", "*.json")


class ManifestReload(StatReload):
    """Starts again when a manifest changes, or the script of the scripted model."""

    def iter_py_files(self) -> Iterator[Path]:
        for folder in self.config.reload_dirs:
            for pattern in _WATCHED:
                yield from folder.rglob(pattern)
