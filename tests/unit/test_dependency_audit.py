"""`make audit`: what it does with the answers of the vulnerability service, and without any."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit_dependencies.py"
PROJECT = """
[project]
dependencies = ["httpx>=0.1", "starlette"]
optional-dependencies = { missing = ["no-such-package>=1"], grpc = ["grpcio>=1"] }
[tool.errands.audit.ignore]
"""


@contextmanager
def service(vulnerabilities: dict[str, dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """A service that knows vulnerabilities by the names of packages, and the names that it was asked for."""
    asked: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            names = [query["package"]["name"] for query in question["queries"]]
            assert all(query["version"] for query in question["queries"])
            asked.extend(names)
            found = [[{"id": vulnerabilities[name]["id"]}] if name in vulnerabilities else [] for name in names]
            self._answer({"results": [{"vulns": one} if one else {} for one in found]})

        def do_GET(self) -> None:
            [about] = [one for one in vulnerabilities.values() if one["id"] == self.path.rpartition("/")[2]]
            self._answer(about)

        def _answer(self, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


def audit(folder: Path, url: str, ignored: str = "") -> tuple[int, str]:
    project = folder / "pyproject.toml"
    project.write_text(PROJECT + ignored)
    done = subprocess.run(
        [sys.executable, SCRIPT, "--service", url, "--project", project], capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


LEAK = {"id": "GHSA-1", "summary": "Leaks.", "aliases": ["CVE-1"]}


def test_a_known_vulnerability_of_an_indirect_dependency_fails_the_audit(tmp_path: Path) -> None:
    with service({"httpcore": LEAK}) as (url, asked):
        code, said = audit(tmp_path, url)
    assert {"httpx", "httpcore", "starlette", "grpcio"} <= set(asked)
    assert not {"pytest", "no-such-package"} & set(asked)
    assert code == 1
    assert "GHSA-1 Leaks.\n  https://osv.dev/vulnerability/GHSA-1\n" in said


@pytest.mark.parametrize("known_as", ["GHSA-1", "CVE-1"])
def test_one_that_is_ignored_with_a_reason_does_not(tmp_path: Path, known_as: str) -> None:
    with service({"httpcore": LEAK}) as (url, _):
        code, said = audit(tmp_path, url, f'{known_as} = "no fix yet, and we do not call it"\nold = "fixed long ago"\n')
    assert code == 0
    assert "old is ignored in pyproject.toml and no longer found: remove it" in said


def test_without_vulnerabilities_it_succeeds(tmp_path: Path) -> None:
    with service({"httpx": {**LEAK, "withdrawn": "2026-01-01T00:00:00Z"}}) as (url, asked):
        assert audit(tmp_path, url) == (0, f"{len(asked)} packages audited, 0 known vulnerabilities\n")


def test_without_the_service_it_says_so_and_succeeds(tmp_path: Path) -> None:
    code, said = audit(tmp_path, "http://127.0.0.1:1/v1")
    assert code == 0
    assert said.startswith("The dependencies were not audited: http://127.0.0.1:1/v1 did not answer (")
