"""Cells of the matrix of engines and dialects, for tests that need not run in all of them.

A test without a mark runs over every dialect on one engine and on every engine over one dialect. One about the wire
needs only the former, one about what is stored only the latter, and one about what messages mean a single cell.
"""

from __future__ import annotations

import pytest

from tests.conftest import STORAGES

#: Where the fixtures of a folder have fewer engines.
every_engine = pytest.mark.parametrize("storage", STORAGES, indirect=True)
one_engine = pytest.mark.parametrize("storage", ["memory"], indirect=True)
