"""What pyproject.toml says of the package."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import errands

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
#: The adapter for version 0.3 of the official SDK needs that version, which `tests/interop` installs elsewhere.
ELSEWHERE = {"errands.__main__", "errands.interop.pydantic_types"}
MODULES = [module.name for module in pkgutil.walk_packages(errands.__path__, "errands.")]
PYTHONS = ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ELSEWHERE])
def test_every_module_can_be_imported(module: str) -> None:
    importlib.import_module(module)


def test_the_names_of_the_root_are_the_same_for_type_checkers_and_at_run_time() -> None:
    tree = ast.parse(Path(errands.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        (alias.asname or alias.name, node.module)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = {name: getattr(errands, name) for name, _ in imported}
    assert imported == {(name, module) for name, module in errands._MODULES.items()}
    assert set(errands.__all__) <= {*names, "__version__"}
    assert set(dir(errands)) >= set(names)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = errands.Nothing


SUBMODULES = [name.removeprefix("errands.") for name in MODULES if name.count(".") == 1 and name not in ELSEWHERE]


@pytest.mark.parametrize("name", SUBMODULES)
def test_every_submodule_is_an_attribute_of_the_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As before the first import of the submodule.
    monkeypatch.delattr(errands, name, raising=False)
    assert getattr(errands, name).__name__ == f"errands.{name}"


def test_a_submodule_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(errands, "testing", raising=False)
    monkeypatch.delitem(sys.modules, "errands.testing", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ModuleNotFoundError, match="httpx"):
        _ = errands.testing


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("import errands", ["client", "engines", "model", "policy", "runtime", "server", "wire"]),
        ("from errands import TaskContext, Worker, agent", ["agents", "cli", "client", "policy", "server"]),
        ("from errands import A2AClient", ["agents", "cli", "engines", "policy", "runtime", "server"]),
        ("from errands import A2AServer", ["agents", "cli", "client", "testing"]),
    ],
)
def test_a_program_loads_only_the_packages_that_it_uses(program: str, unused: list[str]) -> None:
    script = f"import sys\n{program}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in unused if f"errands.{name}" in loaded] == []


def test_every_dependency_has_a_lowest_version_that_is_tested() -> None:
    script = ROOT / "scripts" / "lowest_requirements.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.splitlines()
    declared = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in declared} - {"errands"}
    assert {line.partition("==")[0] for line in printed} == names


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    prefix = "Programming Language :: Python :: "
    assert [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == PYTHONS[0]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{PYTHONS[0].replace('.', '')}"
    image = re.findall(r"FROM python:([0-9.]+)", (ROOT / "deploy" / "Dockerfile").read_text())
    assert set(image) <= set(PYTHONS)
