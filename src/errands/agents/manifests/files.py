"""The files of a load: one, or all of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from errands.agents.manifests.findings import Notebook, Source

SUFFIXES = (".yaml", ".yml")
MAX_FILE = 2 * 1024 * 1024
MAX_FILES = 500


def texts(path: Path, notebook: Notebook) -> Iterator[tuple[str, str | None]]:
    """The name and the text of each file; None for one that cannot be read, of which the notebook hears."""
    if path.is_dir():
        files = sorted(_below(path))
        if len(files) > MAX_FILES:
            problem = f"has {len(files)} files"
            return notebook.error(Source(str(path)), (), problem, f"load at most {MAX_FILES} at a time")
        if not files:
            notebook.error(Source(str(path)), (), "has no .yaml or .yml files", "name a folder with manifests")
    elif path.is_file():
        files = [path]
    else:
        return notebook.error(Source(str(path)), (), "is neither a file nor a folder", "check the path")
    for file in files:
        yield str(file), _text(file, notebook)
    return None


def _below(folder: Path) -> Iterator[Path]:
    """Hidden files and folders are left out, and links to other folders are not followed."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def _text(file: Path, notebook: Notebook) -> str | None:
    source = Source(str(file))
    try:
        if not file.is_file():
            notebook.error(source, (), "is no file", "take it away")
            return None
        if file.stat().st_size > MAX_FILE:
            notebook.error(source, (), f"has more than {MAX_FILE // 1024 // 1024} MB", "make several files of it")
            return None
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        notebook.error(source, (), f"is no UTF-8 (at byte {error.start})", "save it as UTF-8")
    except OSError as error:
        notebook.error(source, (), f"cannot be read ({error.strerror})", "check the file and its permissions")
    return None
