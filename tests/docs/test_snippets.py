"""The files in YAML and JSON that the pages show are read as the program that they are for reads them.

Python blocks and commands are in `test_docs.py`; manifests and policies there, too, and in `test_policy.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from errands.agents.tools.tool_settings import read_settings
from errands.policy.steps import Phase, StepConfig, compile_steps
from errands.server.auth_file import load_auth
from tests.docs.pages import PAGES, ROOT, Block, blocks

KNOWN = {"python", "bash", "text", "yaml", "yml", "json", "sql", ""}
DATA = [block for page in PAGES for block in blocks(page) if block.language in ("yaml", "yml", "json")]


def place_of(block: Block) -> str:
    return block.place


def only(name: str, language: str) -> Block:
    [block] = [block for block in blocks(ROOT / "docs" / name) if block.language == language]
    return block


def test_every_block_is_of_a_language_that_a_test_knows() -> None:
    assert {block.language for page in PAGES for block in blocks(page)} <= KNOWN


@pytest.mark.parametrize("block", DATA, ids=place_of)
def test_every_block_of_data_can_be_read(block: Block) -> None:
    if block.language == "json":
        assert values_of(block.source)
    else:
        # A block may be a comment, such as the one that names a schema.
        assert list(yaml.safe_load_all(block.source)) != [] or block.source.startswith("#")


def values_of(text: str) -> list[object]:
    """One value, or one on each line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def test_the_auth_file_of_the_page_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_KEY", "secret-of-ci")
    (tmp_path / "ops").write_text("secret-of-ops")
    file = tmp_path / "auth.yaml"
    file.write_text(only("authentication.md", "yml").source.replace("/run/secrets/ops", str(tmp_path / "ops")))
    auth = load_auth(file)
    assert [type(scheme).__name__ for scheme in auth.schemes] == ["OIDCAuth", "ApiKeyAuth"]
    assert [rule.name for rule in auth.rules] == ["auditors"]


def test_the_settings_of_tools_on_the_page_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(only("tools.md", "yml").source)
    tokens = {name: name.lower() for name in ("TICKETS_TOKEN", "PARTNER_TOKEN", "GITHUB_TOKEN")}
    assert read_settings(file, tokens)["partner"] == {"headers": {"Authorization": "Bearer partner_token"}}


def test_the_steps_of_the_page_on_reviews_are_accepted() -> None:
    steps = msgspec.convert(yaml.safe_load(only("reviews.md", "yaml").source)["before"], list[StepConfig])
    assert compile_steps(Phase.BEFORE, steps) is not None
