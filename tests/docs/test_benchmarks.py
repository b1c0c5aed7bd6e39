"""The benchmarks can be run: what they import is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_every_benchmark_finds_what_it_imports(script: object) -> None:
    program = "import runpy, sys; sys.path.insert(0, 'benchmarks'); runpy.run_path(sys.argv[1], run_name='benchmark')"
    done = subprocess.run([sys.executable, "-c", program, str(script)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
