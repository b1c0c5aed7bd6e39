"""docs/architecture.md is a map of the tree as it is."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "errands"
#: Every path in the page: `runtime/pool.py`, `policy/cel/`, `lifecycle.py`.
PATHS = sorted(set(re.findall(r"`((?:[\w.]+/)*(?:\w+\.py|\w+/))`", PAGE)))
#: The names that files have in each durable engine.
OF_EACH_ENGINE = {"store.py", "queries.py", "retention.py", "schema.py", "connection.py"}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    if path in OF_EACH_ENGINE:
        assert all((PACKAGE / "engines" / engine / path).is_file() for engine in ("sqlite", "postgres", "redis"))
    else:
        root = ROOT if path.startswith(("src/", "tests/")) else PACKAGE
        assert (root / path).is_dir() if path.endswith("/") else (root / path).is_file()


def test_every_package_is_named() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if not re.search(rf"\b{name}\b", PAGE)} == set()
    assert len(PAGE.splitlines()) < 220
