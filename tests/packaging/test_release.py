"""A release says one version everywhere, and the workflows run what this repository has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from errands import __version__
from tests.packaging.environments import PROJECT, ROOT, VERSIONS
from tests.unit.cli.processes import errands

CHECK = ROOT / "scripts" / "release_check.py"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def check(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "release_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the check reads, to change."""
    for name in ("scripts/release_check.py", "src/errands/version.py", "CHANGELOG.md", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_version_is_the_same_everywhere() -> None:
    assert check(ROOT).stdout == ""
    assert PROJECT["version"] == __version__
    assert errands("--version").stdout.split()[:2] == ["errands", __version__]


def test_a_tag_is_the_version_and_has_a_dated_entry(copy: Path) -> None:
    assert check(copy, f"v{__version__}").returncode == 1, "the changes are still called unreleased"
    changelog = copy / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {__version__} - 2026-12-01"))
    assert check(copy, f"v{__version__}").stdout == ""
    assert "the tag is v9.9.9" in check(copy, "v9.9.9").stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("src/errands/version.py", __version__, "9.9.9", "version.py does not say"),
        ("CHANGELOG.md", "### Added", "### New", "'New' is not one of"),
        ("CHANGELOG.md", "## Unreleased", "## Soon", "neither 'Unreleased' nor a version"),
    ],
)
def test_what_disagrees_is_named(copy: Path, file: str, old: str, new: str, problem: str) -> None:
    path = copy / file
    path.write_text(path.read_text().replace(old, new))
    done = check(copy)
    assert (done.returncode, problem in done.stdout) == (1, True)


# Workflows


def workflow(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_major_version(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [name for name in used if not re.search(r"@(v\d+|release/v\d+)$", name)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_the_least_permissions_and_a_bound(path: Path) -> None:
    assert workflow(path)["permissions"] in ({}, {"contents": "read"})
    for job in workflow(path)["jobs"].values():
        assert job["timeout-minutes"] <= 60
        granted = {name: access for name, access in job.get("permissions", {}).items() if access == "write"}
        assert set(granted) <= {"id-token", "attestations"}
    keeping = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"] == {"persist-credentials": False} for step in keeping)


def test_every_target_that_a_workflow_makes_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {
        name for path in WORKFLOWS for step in steps(path) for name in re.findall(r"make ([\w-]+)", step.get("run", ""))
    }
    assert {"check", "test", "docs", "dist"} <= made
    assert made <= targets


def test_ci_runs_on_every_version_of_python_and_does_what_the_local_script_does() -> None:
    jobs = workflow(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == VERSIONS
    local = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    in_workflow = [
        name
        for job in jobs.values()
        for step in job["steps"]
        for name in re.findall(r"make ([\w-]+)", step.get("run", ""))
    ]
    assert sorted(in_workflow) == sorted(local)


def test_the_hooks_before_a_commit_run_what_make_check_runs() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    tools = {Path(hook["entry"].split()[0]).name for hook in repository["hooks"]}
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    assert tools == {"ruff", "mypy"}
    assert all(f"$(BIN)/{tool}" in recipe for tool in tools)
