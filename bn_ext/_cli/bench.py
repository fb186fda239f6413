"""`bn-ext bench`: measure rows on this machine, show them as a table, write them to a file."""

import argparse
import json
import shutil
import sys
import textwrap
from datetime import date
from pathlib import Path
from typing import Any

import bn_ext
from bn_ext._bench.peers import PEERS, Peer
from bn_ext._bench.problems import SETS, dtype_of
from bn_ext._bench.timing import Case, Row, cases_of, row
from bn_ext._cli.table import table
from bn_ext._cli.usage import UsageError, demand_writable, writing

__all__ = ["BENCH", "bench"]

BENCH = """Time bn_ext on this CPU, next to the NumPy formula and torch, on the same arrays. torch
gets the same number of threads; it is left out if it is not installed or does not have the
operation. Calls are interleaved. Operations (--op): backward is the gradient, backward-frozen the
gradient with frozen statistics, backward-frozen-src its diff_src alone; training and inference are
forward passes; relu and add mean a fused ReLU and addition; double-backward is the gradient of the
gradient. Columns: used is the number of threads that took part in a call. ms is the shortest time
of a call. median is the median of all calls, in ms; it is much more than the shortest if other
programs are running. GB/s is the bytes read and written, each tensor counted once, divided
by the shortest time. A peer's column gives its time as a multiple of bn_ext's. If interrupted, the
command shows and writes what was measured so far."""

NOTE = "ms: shortest time of a call; median: of all calls, in ms"
PEER_NOTE = "; {}: time as a multiple of bn_ext's"


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    named = [(name, shape) for name in options.sets or [] for shape in SETS[name]]
    named += [("", shape) for shape in options.shapes or []]
    if not named:
        named = [("resnet", shape) for shape in SETS["resnet"]]
    return cases_of(named, options.op, options.threads, options.dtypes, options.layouts)


def measured(
    cases: list[Case], peers: dict[str, Peer], seconds: float, asked: bool
) -> tuple[list[Row], BaseException | None]:
    """The rows measured, and what stopped the measurement early, if anything did.

    A peer that is not installed is an error only if the user asked for it.
    """
    said = set()

    def skipped(name: str, why: str) -> None:
        if why.startswith("not installed"):
            if asked:
                raise UsageError(f"--peers: {name} is {why}")
        elif (name, why) not in said:
            said.add((name, why))
            print(f"{name}: {why}", file=sys.stderr)

    rows: list[Row] = []
    try:
        for case in cases:
            if sys.stderr.isatty():
                print(f"{len(rows)} of {len(cases)} rows", end="\r", file=sys.stderr)
            rows.append(row(case, seconds, skipped, peers))
    except (KeyboardInterrupt, MemoryError, OSError) as error:
        return rows, error
    return rows, None


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


def report(
    rows: list[Row], facts: dict[str, Any], shown: list[str], options: argparse.Namespace
) -> None:
    """The table, and the file that was asked for."""
    config = facts["config"]
    title = f"{config['processor']}, {config['isa']}, bn_ext {config['version']}, {facts['date']}"
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
    cases = chosen_cases(options)
    peers = {name: PEERS[name] for name in (PEERS if options.peers is None else options.peers)}
    asked = options.peers is not None
    rows, stopped = measured(cases, peers, options.seconds, asked)
    if rows:
        facts = {
            "date": str(date.today()),
            "config": bn_ext.show_config(mode="dicts"),
            "complete": stopped is None,
        }
        report(rows, facts, [n for n in peers if any(n in r["seconds"] for r in rows)], options)
    if stopped:
        print(f"{len(rows)} of {len(cases)} rows were measured", file=sys.stderr)
        raise stopped
    return 0
