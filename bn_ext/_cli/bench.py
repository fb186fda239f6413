"""`bn-ext bench`: measure rows on this machine, show them as a table, write them to a file."""

import argparse
import json
import multiprocessing
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import bn_ext
from bn_ext import _core
from bn_ext._bench.peers import OF_VIEWS, PEERS, Peer
from bn_ext._bench.problems import BEHIND, DTYPES, LAYOUTS, OPS, SETS, Case, cases_of, dtype_of
from bn_ext._bench.table import table
from bn_ext._bench.timing import Row, packages_of, row
from bn_ext._cli.usage import (
    UsageError,
    as_seconds,
    as_shape,
    as_whole,
    demand_writable,
    writing,
)

__all__ = ["BENCH", "add_options", "bench", "measured"]

BENCH = """Time bn_ext on this CPU, next to the NumPy formula and torch, as programs call them: each
package in a process of its own, with its default threads, every call behind other work of NumPy
(--behind): a pass over a million elements, a product of 256 x 256, or nothing. The processes take
turns. torch is left out if it is not installed or does not have the operation. Operations (--op):
backward is the gradient, backward-frozen the gradient with frozen statistics, backward-frozen-src
its diff_src alone; training and inference are forward passes; relu and add mean a fused ReLU and
addition; double-backward is the gradient of the gradient. The set views has tensors with gaps: crop
(without a border), step (every other sample), flip, half (of the channels); its column dense is
bn_ext on dense arrays, copied the same after NumPy copied the views. Other columns: used is the
number of threads that took part in a call. ms is the median time of a call, shortest the shortest,
in ms; it is much less than the median if other programs are running. GB/s is the bytes read and
written, each tensor counted once, divided by the median. A peer's column gives its median as a
multiple of bn_ext's. If interrupted, the command shows and writes what was measured so far."""

NOTE = "ms: median time of a call; shortest: the shortest, in ms"
PEER_NOTE = "; {}: median as a multiple of bn_ext's"


def add_options(add: Callable[..., Any], peers: Mapping[str, Peer]) -> None:
    """The options that choose rows and peers."""
    add("--shapes", nargs="+", type=as_shape, metavar="NxCx...",
        help="N, C and any other sizes, like 8x64x28x28")  # fmt: skip
    for name, choices, default, said in (
        ("sets", SETS, None, "resnet"),
        ("dtypes", DTYPES, ["float32"], "float32"),
        ("layouts", LAYOUTS, list(LAYOUTS), "both"),
        ("op", OPS, ["backward"], "backward"),
        ("behind", BEHIND, ["pass"], "pass"),
        ("peers", peers, None, "all that are installed"),
    ):
        add(f"--{name}", nargs="*" if name == "peers" else "+", choices=choices, default=default,
            metavar=name.removesuffix("s").upper(),
            help=f"any of {', '.join(choices)} (default: {said})")  # fmt: skip
    add("--threads", nargs="+", type=as_whole, default=[None], metavar="N",
        help="numbers of threads (default: each package's own; "
        f"bn_ext's is up to {_core._default_threads()})")  # fmt: skip
    add("--seconds", type=as_seconds, default=1.0, help="seconds per row (default: %(default)s)")


def measured(
    options: argparse.Namespace, peers: Mapping[str, Peer]
) -> tuple[list[Case], list[Row], BaseException | None]:
    """The cases, the rows measured, and what stopped the measurement early, if anything did.

    A peer that is not installed is an error only if the user asked for it.
    """
    named = [(name, each) for name in options.sets or [] for each in SETS[name]]
    named += [("", (shape, LAYOUTS, "")) for shape in options.shapes or []]
    named = named or [("resnet", each) for each in SETS["resnet"]]
    cases = cases_of(
        named, options.op, options.threads, options.behind, options.dtypes, options.layouts
    )
    chosen = {name: peers[name] for name in (peers if options.peers is None else options.peers)}
    if any(case.view for case in cases):
        chosen = {**OF_VIEWS, **chosen}
    said = set()

    def skipped(name: str, why: str) -> None:
        if why.startswith("not installed"):
            if options.peers is not None:
                raise UsageError(f"--peers: {name} is {why}")
        elif (name, why) not in said:
            said.add((name, why))
            print(f"{name}: {why}", file=sys.stderr)

    rows: list[Row] = []
    packages = packages_of(chosen)
    try:
        for case in cases:
            if sys.stderr.isatty():
                print(f"{len(rows)} of {len(cases)} rows", end="\r", file=sys.stderr)
            rows.append(row(case, packages, options.seconds, skipped))
    except (KeyboardInterrupt, MemoryError, OSError) as error:
        for process in multiprocessing.active_children():
            process.terminate()  # a call may take seconds
        return cases, rows, error
    finally:
        for package in packages.values():
            package.end()
    return cases, rows, None


def demand_what_it_needs(options: argparse.Namespace) -> None:
    """Raise UsageError before measuring if a package is missing or the file cannot be written."""
    for name in options.dtypes:
        try:
            dtype_of(name)
        except ImportError:
            message = f"--dtypes: {name} needs ml_dtypes: python -m pip install ml_dtypes"
            raise UsageError(message) from None
    if options.json not in (None, "-"):
        demand_writable("--json", Path(options.json))


def report(rows: list[Row], facts: dict[str, Any], options: argparse.Namespace) -> None:
    """The table, and the file that was asked for."""
    config = facts["config"]
    title = f"{config['processor']}, {config['isa']}, bn_ext {config['version']}, {facts['date']}"
    shown = list(dict.fromkeys(name for r in rows for name in r["medians"] if name != "bn_ext"))
    stream = sys.stderr if options.json == "-" else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize
    note = textwrap.fill(NOTE + (PEER_NOTE.format(", ".join(shown)) if shown else ""), width)
    print(title, "", *table(rows, shown), "", note, sep="\n", file=stream)
    text = json.dumps({**facts, "rows": rows}, indent=1)
    if options.json == "-":
        print(text)
    elif options.json:
        with writing("--json", Path(options.json)):
            Path(options.json).write_text(text + "\n")
        print(f"written: {options.json}", file=stream)


def bench(options: argparse.Namespace) -> int:
    """Measure, and report also what an interrupted measurement has found."""
    demand_what_it_needs(options)
    cases, rows, stopped = measured(options, PEERS)
    if rows:
        facts = {
            "date": str(date.today()),
            "config": bn_ext.show_config(mode="dicts"),
            "complete": stopped is None,
        }
        report(rows, facts, options)
    if stopped:
        print(f"{len(rows)} of {len(cases)} rows were measured", file=sys.stderr)
        raise stopped
    return 0
