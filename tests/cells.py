"""Cells of the matrix of engines and dialects, for tests that need not run in all of them.

A test without a mark runs in every cell. One about the wire runs over every dialect on one engine, one about what is
stored runs on every engine over one dialect, and one about what messages mean needs a single cell.
"""

from __future__ import annotations

import pytest

from tests.conftest import STORAGES

#: Where the fixtures of a folder have fewer engines.
every_engine = pytest.mark.parametrize("storage", STORAGES, indirect=True)
one_engine = pytest.mark.parametrize("storage", ["memory"], indirect=True)
