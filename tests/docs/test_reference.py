"""Everything that is public is documented: the reference of the site describes each name, and leaves nothing out."""

from __future__ import annotations

import enum
import re

import msgspec
import pytest
from markdown_tables import tables
from python_pages import (
    MODULES,
    PublicName,
    anchors,
    documentation_of,
    members_of,
    public_names,
    python_pages,
    topic_of,
)
from table_pages import commands, error_classes, settings_by_part, table_pages

import errands
from errands import client
from errands.operations import OPERATIONS
from errands.runtime.settings import Settings

NAMES = public_names()
DESCRIBED = [name for name in NAMES if name.is_described_here]
PAGES = {**python_pages(), **table_pages()}
#: The page of objects whose fields PraisonAI's dialect defines.
OF_ANOTHER_PROTOCOL = "praisonai"


def path_of(name: PublicName) -> str:
    return name.path


def test_the_reference_has_the_names_of_every_public_module() -> None:
    assert {name.module for name in NAMES} >= set(MODULES)
    assert {name.name for name in NAMES if name.module == "errands"} >= set(errands.__all__) - {"__version__"}
    assert {name.name for name in NAMES if name.module == "errands.client"} == set(client.__all__)


@pytest.mark.parametrize("name", DESCRIBED, ids=path_of)
def test_a_public_name_says_what_it_is(name: PublicName) -> None:
    if callable(name.value):
        assert re.search(r"\w+.*[.`]", documentation_of(name.value)), f"{name.path} has no docstring"
    assert f"{{ #{name.path} }}" in PAGES[f"reference/{topic_of(name)}.md"]


@pytest.mark.parametrize("name", [name for name in DESCRIBED if isinstance(name.value, type)], ids=path_of)
def test_every_public_member_says_what_it_is(name: PublicName) -> None:
    members = members_of(name.value)
    if topic_of(name) == OF_ANOTHER_PROTOCOL or issubclass(name.value, enum.Enum):
        members = [member for member in members if member.is_method]
    mentioned = documentation_of(name.value)
    silent = [each.name for each in members if not each.documentation and f"`{each.name}`" not in mentioned]
    assert silent == [], "write a docstring, or a comment that begins with #: before the attribute"


def test_every_link_within_the_reference_leads_to_a_name() -> None:
    for place in anchors().values():
        page, _, anchor = place.partition("#")
        assert f"{{ #{anchor} }}" in PAGES[page], place


def test_every_setting_is_in_a_part_of_the_server_and_says_what_it_means() -> None:
    parts = settings_by_part()
    listed = [name for settings in parts.values() for name in settings]
    assert listed == [field.name for field in msgspec.structs.fields(Settings)]
    assert [
        name for settings in parts.values() for name, meaning in settings.items() if not meaning.endswith(".")
    ] == []
    assert "" not in parts
    assert all(f"## {part}\n" in PAGES["reference/settings.md"] for part in parts)


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_and_option_says_what_it_does(name: str, command: object) -> None:
    assert f"\n## {name}\n" in PAGES["reference/commands.md"]
    parameters = {parameter.name: parameter for parameter in command.params}  # type: ignore[attr-defined]
    silent = [each for each, parameter in parameters.items() if not getattr(parameter, "help", "")]
    assert silent == []


def test_every_operation_is_described_with_its_fields() -> None:
    page = PAGES["reference/operations.md"]
    for operation in OPERATIONS.values():
        section = page.partition(f"\n## {operation.name}\n")[2].partition("\n## ")[0]
        fields = [*msgspec.structs.fields(operation.request), *msgspec.structs.fields(operation.response)]
        assert [field.name for field in fields if f"`{field.encode_name}`" not in section] == []


def test_every_error_is_listed_with_its_reason_and_says_when_it_is_raised() -> None:
    rows = {row[0]: row for table in tables(PAGES["reference/errors.md"]) for row in table.rows}
    named = {re.sub(r".*`(\w+)`", r"\1", cell): row for cell, row in rows.items()}
    assert set(named) == set(error_classes())
    assert [name for name, row in named.items() if not row[-1].strip().endswith(".")] == []
