"""Manifests that are right, and what is made of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from errands.agents.manifests import ManifestError, load
from errands.errors import ConfigurationError
from tests.unit.agents.support import VALID, drop, loaded, put, report, spoiled, told, written

EXAMPLE = Path(__file__).parents[3] / "examples" / "support-agent"


def test_valid_manifests_have_no_findings(tmp_path: Path) -> None:
    assert report(tmp_path, lambda documents: None).findings == []


def test_the_example_is_valid() -> None:
    manifests = load(EXAMPLE)
    assert [agent.name for agent in manifests.agents] == ["analyst", "support"]


def test_a_file_has_agents_tools_and_a_mount(tmp_path: Path) -> None:
    manifests = loaded(tmp_path)
    assert [agent.name for agent in manifests.agents] == ["support", "analyst"]
    assert [tool.name for tool in manifests.tools] == ["github-file", "audit"]
    assert manifests.mount is not None
    assert manifests.mount.path_prefixes.task == "/{namespace}/{agent}/{task}/"


def test_a_folder_is_loaded_as_a_whole(tmp_path: Path) -> None:
    for name in VALID:
        (tmp_path / name).mkdir()
        written(tmp_path / name, {name: VALID[name]})
    (tmp_path / ".hidden.yaml").write_text("{")
    (tmp_path / "notes.txt").write_text("{")
    assert len(load(tmp_path).agents) == 2


def test_fields_that_are_left_out_have_their_defaults(tmp_path: Path) -> None:
    agent = next(agent for agent in loaded(tmp_path).agents if agent.name == "analyst")
    assert (agent.model, agent.mount, agent.limits.max_turns, agent.capabilities) == (None, "none", None, {})
    assert loaded(tmp_path).tools[0].synchronous is False


def test_an_empty_field_is_one_that_is_left_out(tmp_path: Path) -> None:
    manifests = loaded(tmp_path, put("analyst", "capabilities", value=None))
    assert manifests.agents[1].capabilities == {}


@pytest.mark.parametrize("kind", ["agent", "tool"])
def test_the_kinds_of_the_bundle_page_are_taken_too(tmp_path: Path, kind: str) -> None:
    name = {"agent": "agent", "tool": "tool"}[kind]
    assert report(tmp_path, put(name, "kind", value=f"commonagents.info/v1/{kind}")).valid


def test_what_is_wrong_is_raised_as_one_error(tmp_path: Path) -> None:
    file = written(tmp_path, spoiled(put("agent", "mount", value="disk")))
    file.write_text(file.read_text().replace("name: audit\n", ""))
    with pytest.raises(ManifestError) as raised:
        load(file)
    assert isinstance(raised.value, ConfigurationError)
    lines = str(raised.value).splitlines()
    assert any(line.startswith(f"{file}:7: mount: is 'disk'; write one of ") for line in lines)
    assert lines[-1] == f"{len(lines) - 1} errors in total"


def test_all_errors_are_found_at_once(tmp_path: Path) -> None:
    def spoil(documents: dict[str, dict[str, object]]) -> None:
        put("agent", "mount", value="disk")(documents)
        put("agent", "guardrails", "before", 0, "on_fail", value="block")(documents)
        drop("tool", "actions", 0, "execute")(documents)
        put("mount", "gcs", value={"bucket": "b"})(documents)

    fields = [finding.field for finding in report(tmp_path, spoil).findings]
    assert fields == ["mount", "guardrails.before[0].on_fail", "actions[0].execute", ""]


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = written(tmp_path, VALID)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'errands\[agents\]'"):
        load(file)


def test_warnings_leave_manifests_valid(tmp_path: Path) -> None:
    found = report(tmp_path, put("agent", "model_capabilities", value=["web-serch"]))
    assert found.valid
    assert told(found, "warning") == [
        "model_capabilities[0]: is 'web-serch', which few providers support; did you mean web-search?"
    ]
