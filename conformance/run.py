"""Run the public conformance kits against `agent.py`: `make conformance`.

    python conformance/run.py [RUN ...] [--repository URL]

Each run clones the kit at its pinned commit, creates an environment for it, serves the agent in a separate process and
compares the failures with the explained ones. The exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kits import REPOSITORY, RUNS, Kit, Run

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".interop"
AGENT = Path(__file__).with_name("agent.py")
KIT_S = 900.0


@dataclass(frozen=True)
class Outcome:
    counts: Counter[str]
    #: The failed tests by name, with the first line of the failure.
    failures: Mapping[str, str]


def checkout(kit: Kit, repository: str) -> Path:
    """Return a work tree of the kit at its commit, reusing an existing clone."""
    directory = CACHE / f"kit-{kit.version}-source"
    git = ["git", "-C", str(directory)]
    if not directory.is_dir():
        subprocess.run(["git", "clone", "--quiet", repository, str(directory)], check=True)
    elif subprocess.run([*git, "cat-file", "-e", kit.commit], check=False, capture_output=True).returncode:
        subprocess.run([*git, "fetch", "--quiet", repository], check=True)
    subprocess.run([*git, "checkout", "--quiet", "--detach", kit.commit], check=True)
    return directory


def environment(kit: Kit) -> str:
    """Return the interpreter of the kit's environment."""
    command = [sys.executable, str(ROOT / "scripts" / "environment.py"), str(CACHE / f"kit-{kit.version}")]
    made = subprocess.run([*command, *kit.requirements], check=True, stdout=subprocess.PIPE, text=True)
    return made.stdout.strip()


@contextmanager
def serving(run: Run, log: Path) -> Iterator[str]:
    """Serve the agent and yield its URL."""
    command = [sys.executable, "-m", "errands", "serve", str(AGENT), "--port", "0", *run.serve]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **run.agent}
        )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"url +(\S+)", line):
                yield found[1]
                break
        else:
            sys.exit(f"the agent did not start:\n{log.read_text()}")
    finally:
        process.terminate()
        process.wait()


def perform(run: Run, repository: str) -> Outcome:
    source, python = checkout(run.kit, repository), environment(run.kit)
    reports = CACHE / "reports"
    reports.mkdir(exist_ok=True)
    report = reports / f"{run.name}.xml"
    report.unlink(missing_ok=True)
    with serving(run, reports / f"{run.name}-agent.log") as url, (reports / f"{run.name}.txt").open("w") as output:
        arguments = [argument.format(url=url) for argument in (*run.kit.arguments, *run.arguments)]
        command = [python, "-m", "pytest", *run.tests, *arguments, "-q", "--tb=short", f"--junitxml={report}"]
        subprocess.run(command, cwd=source, stdout=output, stderr=subprocess.STDOUT, timeout=KIT_S, check=False)
    if not report.is_file():
        sys.exit(f"the kit did not run:\n{(reports / f'{run.name}.txt').read_text()[-2000:]}")
    return outcome_of(report)


def outcome_of(report: Path) -> Outcome:
    """Read pytest's JUnit report. Expected failures (of a SHOULD) are counted separately from skips."""
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        wrong = [*case.findall("failure"), *case.findall("error")]
        if wrong:
            counts["failed"] += 1
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            failures[name] = (wrong[0].get("message") or "").splitlines()[0][:200]
        elif skipped is not None:
            counts["expected to fail" if skipped.get("type") == "pytest.xfail" else "skipped"] += 1
        else:
            counts["passed"] += 1
    return Outcome(counts, failures)


def judge(run: Run, outcome: Outcome) -> bool:
    """Print the outcome, and return whether the failures are exactly the explained ones."""
    figures = ", ".join(
        f"{outcome.counts[word]} {word}" for word in ("passed", "failed", "expected to fail", "skipped")
    )
    say(f"{run.name}: {figures}")
    if not run.is_judged:
        for name, message in sorted(outcome.failures.items()):
            say(f"  failed {name}: {message}")
        return True
    good = True
    for name, message in sorted(outcome.failures.items()):
        reason = run.explained.get(name)
        good = good and reason is not None
        say(f"  {'known ' if reason else 'FAILED'} {name}: {reason or message}")
    for name in run.explained.keys() - outcome.failures.keys():
        good = False
        say(f"  PASSES {name}: listed as explained, but it does not fail")
    return good


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    names = [run.name for run in RUNS]
    parser = argparse.ArgumentParser(description="the public conformance kits against errands")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(names))
    parser.add_argument("--repository", default=REPOSITORY, help="where to clone the kit from")
    arguments = parser.parse_args()
    if unknown := set(arguments.runs) - set(names):
        parser.error(f"unknown run {', '.join(unknown)}: expected one of {', '.join(names)}")
    chosen = [run for run in RUNS if run.name in arguments.runs or (run.is_judged and not arguments.runs)]
    try:
        results = [judge(run, perform(run, arguments.repository)) for run in chosen]
    except subprocess.SubprocessError as error:
        sys.exit(f"the kit could not be run: {error}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
