"""`bn-ext bench`: rows measured on this machine, shown as a table, written as asked."""

import argparse
import json
import shutil
import sys
import textwrap
from datetime import date
from pathlib import Path
from typing import Any

import bn_ext
from bn_ext._bench.peers import PEERS, Peer, usable_cpus
from bn_ext._bench.problems import SETS
from bn_ext._bench.timing import Case, Load, Row, cases_of, row, spread
from bn_ext._cli.plot import plot
from bn_ext._cli.table import table
from bn_ext._cli.usage import UsageError, demand_picture, demand_writable, needs
from bn_ext._verify.dtypes import dtype_of

__all__ = ["BENCH", "bench"]

BENCH = """Time bn_ext on this CPU, next to the NumPy formula and whichever of torch, JAX and
TensorFlow are installed and have the operation, on the same arrays with the same number of threads.
Calls are interleaved. op: the gradient (backward), of frozen statistics, of these diff_src alone,
behind ReLU; the forward pass of training; inference; with ReLU or a sum behind them; the gradient
of the gradient. used: the threads that took part in a call, which bn_ext chooses to be fewer for
small problems. ms: the shortest time of a call. median: the median of all calls, in ms.
GB/s: the bytes that are read and written, each tensor counted once, divided by the shortest time. A
peer's column gives its time as a multiple of bn_ext's. If interrupted, shows and writes what was
measured so far."""

#: Geometric mean over rows of median / shortest time. A process with priority over all others has
#: 1.1, one that shares its CPUs 1.3 to 1.7.
SPREAD = 1.25
#: How many of the CPUs that our threads need others may use. A constant load raises the shortest
#: time too, so the spread does not show it.
SHARED = 0.2

NOTE = "ms: shortest time of a call; median: of all its calls, in ms"
PEER_NOTE = "; {}: time as a multiple of bn_ext's"
BUSY = "Close other programs and measure again."


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    named = [(name, shape) for name in options.sets or [] for shape in SETS[name]]
    named += [("", shape) for shape in options.shapes or []]
    if not named:
        named = [("resnet", shape) for shape in SETS["resnet"]]
    found = cases_of(named, options.op, options.threads, options.dtypes, options.layouts)
    if not found:
        raise UsageError("--layouts: shapes (N, C) have only the layout NXC")
    return found


def disturbances(rows: list[Row], others: float | None) -> list[str]:
    """Signs that these are not the times of a quiet machine; empty if there are none."""
    found = []
    free = usable_cpus() - max(r["threads_used"] for r in rows)
    if others is not None and others > max(0, free) + SHARED:
        found.append(f"other programs used {others:.1f} of {usable_cpus()} CPUs")
    if spread(rows) > SPREAD:
        found.append(f"the median call took {spread(rows):.1f} times as long as the shortest")
    return found


def measured(
    cases: list[Case], peers: dict[str, Peer], seconds: float
) -> tuple[list[Row], BaseException | None]:
    """The rows measured, and what stopped the measurement early, if anything did."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    said = set()

    def skipped(name: str, why: str) -> None:
        if (name, why) not in said:
            said.add((name, why))
            progress.console.print(f"{name}: {why}", style="dim", highlight=False, soft_wrap=True)

    rows: list[Row] = []
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with progress:
        task = progress.add_task("", total=len(cases))
        try:
            for case in cases:
                shape = "x".join(map(str, case.shape))
                progress.update(task, description=f"{shape} {case.dtype} {case.layout}")
                rows.append(row(case, seconds, skipped, peers))
                progress.advance(task)
        except (KeyboardInterrupt, MemoryError, OSError) as error:
            return rows, error
    return rows, None


def demand_what_it_needs(options: argparse.Namespace) -> None:
    """UsageError before measuring for a package that is missing, or a file that cannot be."""
    needs("rich", "bench")
    if options.plot:
        needs("matplotlib", "--plot")
    for name in options.dtypes:
        try:
            dtype_of(name)
        except ImportError:
            needs("ml_dtypes", name)
    if json_file(options):
        demand_writable("--json", Path(options.json))
    if options.plot:
        demand_picture("--plot", options.plot)
        demand_writable("--plot", options.plot)


def json_file(options: argparse.Namespace) -> bool:
    """Whether JSON goes to a file, rather than to standard output or nowhere."""
    return bool(options.json) and options.json != "-"


def report(
    rows: list[Row], facts: dict[str, Any], shown: list[str], options: argparse.Namespace
) -> None:
    """The table, and the files that were asked for."""
    config = facts["config"]
    title = f"{config['processor']}, {config['isa']}, bn_ext {config['version']}, {facts['date']}"
    stream = sys.stderr if options.json == "-" else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize
    notes = [NOTE + (PEER_NOTE.format(", ".join(shown)) if shown else "")]
    busy = disturbances(rows, facts["cpus_used_by_others"])
    if busy:
        notes.append(f"The machine is busy: {' and '.join(busy)}. {BUSY}")
    notes = [textwrap.fill(note, width) for note in notes]
    print(title, "", *table(rows, shown), "", *notes, sep="\n", file=stream)
    text = json.dumps({**facts, "rows": rows}, indent=1)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(text + "\n")
        print(f"written: {options.json}", file=stream)
    if options.plot:
        plot(rows, shown, title, options.plot)
        print(f"written: {options.plot}", file=stream)


def bench(options: argparse.Namespace) -> int:
    """Measure, and report also what an interrupted measurement has found."""
    demand_what_it_needs(options)
    cases = chosen_cases(options)
    peers = {name: PEERS[name] for name in options.peers}
    load = Load()
    rows, stopped = measured(cases, peers, options.seconds)
    if rows:
        facts = {
            "date": str(date.today()),
            "config": bn_ext.show_config(mode="dicts"),
            "complete": stopped is None,
            "cpus_used_by_others": load.of_others(),
            "spread": spread(rows),
        }
        report(rows, facts, [n for n in peers if any(n in r["seconds"] for r in rows)], options)
    if stopped:
        print(f"{len(rows)} of {len(cases)} rows were measured", file=sys.stderr)
        raise stopped
    return 0
