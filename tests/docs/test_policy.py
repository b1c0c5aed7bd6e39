"""docs/policy.md says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from errands.agents.manifests.loading import examine_policy
from errands.agents.manifests.reading import field_names
from errands.policy.cel import scopes
from errands.policy.cel.program import MAX_GROWTH, MAX_ITEMS
from errands.policy.cel.session import MAX_CALLS
from errands.policy.document import Policy
from errands.policy.limits import Limits
from errands.policy.steps import Phase, StepConfig
from tests.docs.pages import ROOT, blocks, sections, table

PAGE = "docs/policy.md"
FIXED = {name: scope for name, scope in vars(scopes).items() if isinstance(scope, scopes.NameScope)}


def names(cell: str) -> set[str]:
    return {name.removesuffix("()") for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("name", FIXED)
def test_every_scope_is_documented_with_exactly_its_names(name: str) -> None:
    scope = FIXED[name]
    row = table(PAGE, "scope")[name]
    assert [names(cell) for cell in row[1:]] == [scope.variables, scope.aliases, scope.functions]


def test_no_other_scope_is_documented() -> None:
    assert set(table(PAGE, "scope")) == {*FIXED, "script(...)"}


def test_every_bound_is_documented() -> None:
    text = sections(PAGE)["Hostile expressions"]
    bounds = [scopes.BEFORE.max_source, scopes.script([]).max_source, MAX_GROWTH, MAX_CALLS, MAX_ITEMS]
    assert all(f"{bound:,}" in text for bound in bounds)


def test_every_limit_field_and_phase_is_mentioned() -> None:
    text = (ROOT / PAGE).read_text()
    fields = [name for struct in (Limits, StepConfig) for name in struct.__struct_encode_fields__]
    phases = [phase.value for phase in Phase if not phase.guards]
    assert all(f"`{name}`" in text for name in [*fields, *phases])


def test_every_field_of_a_policy_is_documented() -> None:
    assert set(table(PAGE, "field of a policy")) == set(field_names(Policy))


def test_the_policy_of_the_page_is_valid(tmp_path: Path) -> None:
    [block] = [block for block in blocks(ROOT / PAGE) if block.language == "yaml"]
    file = tmp_path / "policy.yaml"
    file.write_text(block.source)
    assert examine_policy(file).findings == []
