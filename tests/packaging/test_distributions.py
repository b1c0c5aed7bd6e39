"""What is published: the same bytes each time, complete, and usable in a fresh environment."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from errands import __version__
from tests.packaging.environments import PROJECT, ROOT, VERSIONS, Environment, clean, pythons
from tests.soak import LONG

#: For each extra, a module of errands that needs it.
EXTRAS = {
    "agents": "errands.agents.manifests",
    "auth": "errands.server.tokens",
    "fastapi": "fastapi",
    "gcs": "gcsfs",
    "grpc": "errands.server.grpc",
    "mcp": "errands.agents.tools.mcp_connection",
    "models": "errands.agents.models.any_llm",
    "otel": "errands.telemetry",
    "policy": "errands.policy.cel.program",
    "postgres": "errands.engines.postgres",
    "redis": "errands.engines.redis",
    "s3": "s3fs",
    "sdk": "errands.interop.protobuf_types",
    "signing": "errands.wire.card_signing",
}
#: What the base install must not bring along, by the names that are imported.
HEAVY = ["google.protobuf", "grpc", "pydantic", "sqlalchemy", "opentelemetry", "yaml", "fastapi", "a2a"]


def build(source: Path, output: Path) -> dict[str, Path]:
    """Build both distributions. Returns them by what they are."""
    environment = {**clean(), "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(output)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel], [sdist] = output.glob("*.whl"), output.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def unpacked(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(folder, filter="data")
    [source] = folder.iterdir()
    return source


def test_both_are_the_same_bytes_when_they_are_built_again_from_the_sdist(
    built: dict[str, Path], unpacked: Path, tmp_path: Path
) -> None:
    # Other times and permissions than in the checkout must not matter.
    for path in unpacked.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
        path.chmod(path.stat().st_mode & 0o755 | 0o400)
    again = build(unpacked, tmp_path)
    digests = [
        {kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in each.items()} for each in (built, again)
    ]
    assert digests[0] == digests[1]
    assert [path.name for path in built.values()] == [path.name for path in again.values()]


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: dict[str, Path]) -> None:
    tracked = subprocess.run(["git", "ls-files", "src/errands"], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = wheel.read(f"errands-{__version__}.dist-info/METADATA").decode()
        licenses = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
    assert names >= {path.removeprefix("src/") for path in tracked.stdout.split()}
    assert "errands/py.typed" in names
    assert all(name.startswith("errands/") and "__pycache__" not in name for name in names)
    assert licenses
    assert f"Version: {__version__}" in metadata
    assert "# errands" in metadata


def test_the_sdist_has_what_a_packager_needs(unpacked: Path) -> None:
    present = {path.name for path in unpacked.iterdir()}
    assert present >= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src", "tests", "docs", "examples"}
    assert present & {".venv", ".git", ".github", ".interop", ".bench", "site", "dist"} == set()


def test_every_extra_is_tried() -> None:
    assert sorted(EXTRAS) == sorted(PROJECT["optional-dependencies"])


def test_this_machine_has_a_python_to_try_it_with() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in pythons()
    assert set(VERSIONS) >= {version for version in pythons() if version in VERSIONS}


TRIED = sorted(pythons()) if LONG else [f"{sys.version_info.major}.{sys.version_info.minor}"]


@pytest.mark.soak
@pytest.mark.parametrize("version", TRIED)
@pytest.mark.parametrize("kind", ["wheel", "sdist"] if LONG else ["wheel"])
def test_the_base_install_serves_an_agent_that_answers(
    built: dict[str, Path], kind: str, version: str, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "env", pythons()[version])
    environment.install(str(built[kind]))
    assert environment.command("--version").startswith(f"errands {__version__} (Python {version}.")
    finds = (
        f"import importlib.util as u\nprint([n for n in {HEAVY} if u.find_spec(n.split('.')[0]) and u.find_spec(n)])"
    )
    assert environment.run(finds) == "[]\n"

    command = [str(environment.bin / "errands"), "serve", str(ROOT / "examples" / "echo.py"), "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = next(found[1] for line in server.stdout if (found := re.match(r"url +(\S+)", line)))
        assert environment.command("send", url, "hello") == "Echo: hello\n"
        assert "completed" in environment.command("tasks", "list", url)
        server.terminate()
        assert server.wait() == 0


ALL = f"[{','.join(sorted(EXTRAS))}]"
IMPORT_ALL = """
import importlib, pkgutil, errands
elsewhere = {"errands.__main__", "errands.interop.pydantic_types"}
names = [module.name for module in pkgutil.walk_packages(errands.__path__, "errands.")]
print(len([importlib.import_module(name) for name in names if name not in elsewhere]))
"""
#: The modules of this tree, without the two that need other things.
MODULES = (
    sum(path.name != "__init__.py" or path.parent.name != "errands" for path in ROOT.glob("src/errands/**/*.py")) - 2
)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", TRIED)
@pytest.mark.parametrize("extra", sorted(EXTRAS) if LONG else ["signing"])
def test_each_extra_works_alone(built: dict[str, Path], extra: str, version: str, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", pythons()[version])
    environment.install(f"{built['wheel']}[{extra}]")
    assert environment.run(f"import {EXTRAS[extra]}, errands; print(errands.A2AServer.__name__)") == "A2AServer\n"


@pytest.mark.soak
@pytest.mark.skipif(not LONG, reason="`make soak` installs all extras; the other tests run with them, too")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", TRIED)
def test_all_extras_work_together(built: dict[str, Path], version: str, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", pythons()[version])
    environment.install(f"{built['wheel']}{ALL}")
    assert environment.run(IMPORT_ALL) == f"{MODULES}\n"
