"""Whatever stands in a manifest: it is loaded, or there are findings; nothing else is raised."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from errands.agents.manifests import examine
from tests.soak import examples
from tests.unit.agents.support import VALID

_WORDS = ["", "*", "{", "{context.x}", "context.user", "input", "$ref", "message", "_meta", "-", "..", "1h", "block"]
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(_WORDS), st.text(max_size=20)
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS) | st.text(), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        found += places(inner, (*path, step))
    return found


PLACES = places(VALID)


def assert_is_answered(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.yaml")
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        found = examine(file)
    assert found.valid == (not any(finding.severity == "error" for finding in found.findings))
    assert all(str(finding) and finding.problem and finding.remedy for finding in found.findings)


@settings(max_examples=examples(100), deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from(PLACES), _values, st.sampled_from(["put", "add", "drop"])), max_size=3)
)
def test_a_spoiled_manifest_is_answered(changes: list[tuple[tuple[Any, ...], Any, str]]) -> None:
    documents: Any = copy.deepcopy(VALID)
    for path, value, kind in changes:
        holder = documents
        try:
            for step in path[:-1]:
                holder = holder[step]
            if kind == "add" and isinstance(holder, dict):
                holder["x" if not isinstance(value, str) else value] = value
            elif kind == "drop":
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    assert_is_answered(yaml.safe_dump_all(documents.values(), sort_keys=False, allow_unicode=True))


_TEXT = yaml.safe_dump_all(copy.deepcopy(list(VALID.values())), sort_keys=False)


@settings(max_examples=examples(100), deadline=None)
@given(
    start=st.integers(0, len(_TEXT)),
    length=st.integers(0, 40),
    piece=st.sampled_from(["\t", "&a ", "*a", "- ", "? ", "!!x ", "---\n", ": ", "{", "}", "'", "\x00", "<<: "])
    | st.text(),
)
def test_a_spoiled_text_is_answered(start: int, length: int, piece: str) -> None:
    assert_is_answered(_TEXT[:start] + piece + _TEXT[start + length :])
