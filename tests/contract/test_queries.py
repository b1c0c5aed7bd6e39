"""The statements of the engines that speak SQL stand in files, each with a name and a sentence."""

from __future__ import annotations

import re
from importlib.resources import files
from types import ModuleType

import pytest

from errands.engines import postgres, sqlite


@pytest.mark.parametrize("engine", [postgres, sqlite], ids=["postgresql", "sqlite"])
def test_every_query_is_explained_in_a_sentence_and_used(engine: ModuleType) -> None:
    package = files(engine)
    text = package.joinpath("queries.sql").read_text("utf-8")
    sections = re.findall(r"^-- (?:name|fragment): (\w+)\n-- (.+)", text, re.MULTILINE)
    assert len(sections) == len(re.findall(r"^-- (?:name|fragment):", text, re.MULTILINE))
    assert all(sentence[0].isupper() for _, sentence in sections)
    source = "".join(file.read_text("utf-8") for file in package.iterdir() if file.name.endswith(".py"))
    unnamed = {name for name in engine.queries.QUERIES if f'"{name}"' not in source}
    # Listings put the names of theirs together.
    assert {re.sub("scope|context|owners", "*", name) for name in unnamed} == {
        "list_*_in_order",
        "list_*_since_changed",
        "count_*",
    }
