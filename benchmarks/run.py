"""Compare errands with its peers in one run on one machine: `make bench`.

Starts each server in turn with the load generator next to it, and prints the figures and the targets.
Exit code: 0 if every target is met, 1 if one is missed, 2 if something could not run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from contenders import CONTENDERS, Contender, ContenderError, Running, cores, install, old_errands, pin, serving
from load import DRAIN_S
from noise import Watch
from report import describe, print_report, verdict, write_json
from stores import StoreError, storing
from workloads import STORAGES, TARGETS, WORKLOADS, Cell, Figures, Workload

ROOT = Path(__file__).resolve().parent.parent
BENCH_DIR = ROOT / ".bench"
LOAD = Path(__file__).with_name("load.py")
LOAD_GRPC = Path(__file__).with_name("load_grpc.py")
WARMUP_S = 1.0


@dataclass(frozen=True)
class Plan:
    """The options of the command line."""

    contenders: tuple[Contender, ...]
    workloads: tuple[Workload, ...]
    seconds: float
    repeats: int
    tuned: bool
    engines: tuple[str, ...] = STORAGES

    def work_for(self, contender: Contender, storage: str) -> list[Workload]:
        return [one for one in self.workloads if storage in one.storages and contender.does(one)]


@dataclass
class Record:
    """The figures so far, and the failures."""

    repeats: dict[Cell, list[Figures]] = field(default_factory=dict)
    problems: dict[Cell, str] = field(default_factory=dict)

    def results(self) -> dict[Cell, Figures]:
        """Return the combined repeats; a cell with a wrong response has no result."""
        return {cell: Figures.over(each) for cell, each in self.repeats.items() if cell not in self.problems}


def measure(server: Running, dialect: str, workload: Workload, seconds: float) -> Figures:
    """Run the load generator next to the server."""
    options = {
        "port": server.grpc_port if workload.is_grpc else server.port,
        "dialect": workload.dialect or dialect,
        "chunks": workload.chunks,
        "connections": workload.connections,
        "seconds": seconds * workload.share,
        "warmup": WARMUP_S,
    }
    script = LOAD_GRPC if workload.is_grpc else LOAD
    command = [sys.executable, str(script), *(f"--{name}={value}" for name, value in options.items())]
    watch = Watch(cores(), server.pids)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            pin(process.pid, 1)
            output, _ = process.communicate(timeout=seconds + WARMUP_S + 2 * DRAIN_S + 10)
        except subprocess.TimeoutExpired as error:
            raise ContenderError("the load generator did not finish") from error
        finally:
            process.kill()
    if process.returncode:
        raise ContenderError(f"the load generator failed with {process.returncode}")
    answer = json.loads(output)
    errors, first_error = answer.pop("errors"), answer.pop("first_error")
    if errors or not answer["requests"]:
        raise ContenderError(f"{errors} wrong answers, the first: {first_error}")
    return Figures(foreign=watch.foreign_share(answer.pop("cpu_s")), **answer)


def measure_storage(plan: Plan, record: Record, contender: Contender, python: Path, storage: str) -> None:
    """Start the contender once on this storage and measure all its work there."""
    pending = {Cell(contender.name, storage, one.name): one for one in plan.work_for(contender, storage)}
    if not pending:
        return
    # Not in /tmp, which is memory on many machines and would make SQLite look faster than it is.
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=BENCH_DIR))
    try:
        with (
            storing(storage, directory) as store,
            serving(contender, python, storage, store, directory, tuned=plan.tuned) as server,
        ):
            server = server.beside(store.pid)
            for cell, workload in pending.items():
                measure_cell(plan, record, contender, cell, workload, server)
    except (ContenderError, StoreError) as error:
        record.problems.update(dict.fromkeys(pending, str(error)))
        say(f"{contender.name} {storage}: {error}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure_cell(
    plan: Plan, record: Record, contender: Contender, cell: Cell, workload: Workload, server: Running
) -> None:
    try:
        figures = measure(server, contender.dialect, workload, plan.seconds)
    except ContenderError as error:
        record.problems[cell] = str(error)
        say(f"{cell}: {error}")
    else:
        record.repeats.setdefault(cell, []).append(figures)
        say(f"{cell}: {describe(workload, figures)}")


def run(plan: Plan, record: Record) -> None:
    """Interleave the repeats, so that a slow minute of the machine does not affect only one contender."""
    pythons: dict[str, Path] = {}
    for contender in plan.contenders:
        say(f"{contender.name}: preparing")
        try:
            pythons[contender.name] = install(contender, BENCH_DIR)
        except ContenderError as error:
            for storage in set(contender.storages) & set(plan.engines):
                for workload in plan.work_for(contender, storage):
                    record.problems[Cell(contender.name, storage, workload.name)] = str(error)
    for repeat in range(plan.repeats):
        say(f"round {repeat + 1} of {plan.repeats}")
        for contender in plan.contenders:
            for storage in contender.storages:
                if contender.name in pythons and storage in plan.engines:
                    measure_storage(plan, record, contender, pythons[contender.name], storage)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    names = [one.name for one in CONTENDERS] + [one.name for one in WORKLOADS]
    parser = argparse.ArgumentParser(description="errands beside its peers")
    parser.add_argument("--seconds", type=float, help="measuring time of one figure (5, or 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument("--engine", nargs="+", default=STORAGES, choices=STORAGES, help="where tasks live; all of them")
    parser.add_argument("--tuned-peers", action="store_true", help="peers without their tracing, and with a WAL")
    parser.add_argument("--rounds", type=int, help="how often each figure is measured (3, or 1 with --quick)")
    parser.add_argument("--old", metavar="REVISION", help="compare with errands as it was at this git revision")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures")
    return parser.parse_args()


def chosen(arguments: argparse.Namespace) -> Plan:
    """Return what to run: the servers and workloads of `--only`, or all of a kind that it does not name."""
    only = set(arguments.only)
    contenders = tuple(one for one in CONTENDERS if one.name in only) or CONTENDERS
    if arguments.old:
        contenders = (old_errands(arguments.old, BENCH_DIR), *contenders)
    workloads = tuple(one for one in WORKLOADS if one.name in only) or WORKLOADS
    seconds = arguments.seconds or (2.0 if arguments.quick else 5.0)
    repeats = arguments.rounds or (1 if arguments.quick else 3)
    return Plan(contenders, workloads, seconds, repeats, arguments.tuned_peers, tuple(arguments.engine))


def exit_code(record: Record) -> int:
    if record.problems:
        return 2
    return int(any(verdict(target, record.results()) == "MISS" for target in TARGETS))


def main() -> int:
    arguments = parse_arguments()
    plan, record = chosen(arguments), Record()
    # SIGTERM must run the `finally` blocks that stop the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    BENCH_DIR.mkdir(exist_ok=True)
    try:
        run(plan, record)
    except KeyboardInterrupt:
        say("interrupted")
        return 2
    results = record.results()
    print_report([one.name for one in plan.contenders], results, record.problems)
    if arguments.json:
        settings = {"seconds": plan.seconds, "repeats": plan.repeats, "tuned_peers": plan.tuned}
        write_json(arguments.json, settings, record.repeats, results, record.problems)
    return exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
