"""The results as tables for people and as JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from workloads import OLD, TARGETS, WORKLOADS, Cell, Figures, Results, Target, Workload

LOG_WIDTH = 132

Problems = Mapping[Cell, str]
Repeats = Mapping[Cell, Sequence[Figures]]


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def describe(workload: Workload, figures: Figures) -> str:
    noisy = "~" if figures.is_noisy else ""
    if workload.is_chunk_cost:
        return f"{noisy}{1000 * figures.best_ms / workload.chunks:.1f} µs per chunk"
    latency = f"{number(figures.median_ms)} / {number(figures.p99_ms)} ms"
    return f"{noisy}{number(figures.requests_per_s)}/s  {latency}"


def cell_text(cell: Cell, workload: Workload, results: Results, problems: Problems) -> str:
    if cell in problems:
        return "FAILED"
    return describe(workload, results[cell]) if cell in results else ""


def new_to_old(workload: Workload, storage: str, results: Results) -> str:
    """Return the speed of errands as a percentage of the old revision's."""
    new, old = (results.get(Cell(server, storage, workload.name)) for server in ("errands", OLD))
    if new is None or old is None:
        return ""
    ratio = old.best_ms / new.best_ms if workload.is_chunk_cost else new.requests_per_s / old.requests_per_s
    return f"{100 * ratio:.1f} %"


def measured_table(servers: Sequence[str], results: Results, problems: Problems) -> Table:
    table = Table(title="Measured: rate, median / p99 latency", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("work", no_wrap=True)
    for server in servers:
        table.add_column(server)
    if OLD in servers:
        table.add_column("new / old")
    for workload in WORKLOADS:
        for storage in workload.storages:
            cells = [Cell(server, storage, workload.name) for server in servers]
            texts = [cell_text(cell, workload, results, problems) for cell in cells]
            if OLD in servers:
                texts.append(new_to_old(workload, storage, results))
            if any(texts):
                table.add_row(f"{workload.name} {storage}", *texts)
    return table


def amount(target: Target, value: float) -> str:
    return f"{value:.2f} x" if target.against else f"{value:.2f} ms"


def verdict(target: Target, results: Results) -> str:
    value = target.value(results)
    if value is None:
        return "not measured"
    return "PASS" if target.holds(value) else "MISS"


def targets_table(results: Results) -> Table:
    table = Table(title="Figures to hold", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("errands", "against", "reached", "target", ""):
        table.add_column(heading)
    for target in TARGETS:
        value = target.value(results)
        reached = "" if value is None else amount(target, value)
        against = str(target.against) if target.against else "median latency"
        if target.scale != 1.0:
            against += ", per chunk"
        limit = ("≤ " if target.at_most else "≥ ") + amount(target, target.limit)
        own = f"{target.cell.storage} {target.cell.workload}"
        noisy = " ~" if value is not None and target.is_noisy(results) else ""
        table.add_row(own, against, reached, limit, f"{verdict(target, results)}{noisy}")
    return table


def print_report(servers: Sequence[str], results: Results, problems: Problems) -> None:
    out = console()
    out.print(measured_table(servers, results, problems))
    out.print(targets_table(results))
    if any(figures.is_noisy for figures in results.values()):
        out.print("~ the machine was busy with something else; measure again before believing these")
    for cell, problem in problems.items():
        out.print(f"FAILED {cell}: {problem}", markup=False, soft_wrap=True)


def target_document(target: Target, results: Results) -> dict[str, object]:
    return {
        "cell": target.cell._asdict(),
        "against": target.against._asdict() if target.against else None,
        "limit": target.limit,
        "at_most": target.at_most,
        "value": target.value(results),
        "verdict": verdict(target, results),
    }


def write_json(
    path: Path, settings: Mapping[str, object], repeats: Repeats, results: Results, problems: Problems
) -> None:
    document = {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        },
        "settings": settings,
        "figures": [
            {**cell._asdict(), "median": asdict(results[cell]), "repeats": [asdict(one) for one in figures]}
            for cell, figures in repeats.items()
            if cell in results
        ],
        "targets": [target_document(target, results) for target in TARGETS],
        "problems": [{**cell._asdict(), "problem": problem} for cell, problem in problems.items()],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
