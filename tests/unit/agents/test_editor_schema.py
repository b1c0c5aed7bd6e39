"""The JSON Schema for editors: every valid manifest satisfies it, and it marks what is misspelled."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
import yaml

from errands.agents.manifests.documents import AGENT_KIND, TOOL_KIND, editor_schema
from tests.docs.pages import PAGES, ROOT, blocks

CHECK = jsonschema_rs.validator_for(editor_schema())
FILES = sorted([*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "src/errands/cli/starters").glob("*.yaml.txt")])


def manifests(text: str) -> list[Any]:
    """The documents of a file that are manifests."""
    found = [document for document in yaml.safe_load_all(text.replace("{{name}}", "demo")) if document]
    return [one for one in found if str(one.get("kind", "")).startswith("commonagents.info/")]


CASES = [
    (f"{path.name}-{number}", document)
    for path in FILES
    for number, document in enumerate(manifests(path.read_text("utf-8")))
]
CASES += [
    (block.place, document)
    for page in PAGES
    if page.name in ("manifests.md", "tools.md")
    for block in blocks(page)
    if block.language == "yaml"
    for document in yaml.safe_load_all(block.source)
]


@pytest.mark.parametrize("document", [document for _, document in CASES], ids=[name for name, _ in CASES])
def test_every_example_satisfies_it(document: Any) -> None:
    assert [error.message for error in CHECK.iter_errors(document)] == []


def test_there_are_examples_of_every_kind() -> None:
    kinds = {document.get("kind") for _, document in CASES}
    assert {AGENT_KIND, TOOL_KIND, None} <= kinds


AGENT = {"kind": AGENT_KIND, "namespace": "a", "name": "b", "description": "c", "prompt": "d"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"promt": "x"},
        {"prompt": 1},
        {"mount": "disk"},
        {"limits": {"max_turn": 1}},
        {"limits": {"max_turns": "many"}},
        {"capabilities": {"x": "?"}},
        {"capabilities": {"x": {"before": [{"asert": "true"}]}}},
        {"model": None},
        {"kind": "agent"},
    ],
    ids=str,
)
def test_a_mistake_is_marked(wrong: dict[str, Any]) -> None:
    assert CHECK.is_valid(AGENT)
    assert not CHECK.is_valid(AGENT | wrong)


def test_a_capability_can_be_short() -> None:
    assert CHECK.is_valid(AGENT | {"capabilities": {"x": "*"}})
