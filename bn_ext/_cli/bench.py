"""`bn-ext bench`: measure rows on this machine, show them as a table, write them to a file."""

import argparse
import json
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
from bn_ext._bench.problems import (
    BEHIND,
    LAYOUTS,
    OPS,
    SETS,
    Case,
    cases_of,
    shape_text,
)
from bn_ext._bench.table import noise, table
from bn_ext._bench.timing import Row, packages_of, row
from bn_ext._cli.usage import (
    UsageError,
    as_seconds,
    as_shape,
    as_whole,
    demand_writable,
    writing,
)
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext._runtime import spelled

__all__ = ["BENCH", "WORDS", "add_options", "bench", "measured"]

BENCH = """Time bn_ext on this CPU, next to the NumPy formula and torch.

Calls are timed as programs make them: each package in a process of its own,
with its default threads, every call behind other work of NumPy (--behind): a
pass over a million elements, a product of 256 x 256, or nothing. The processes
take turns. torch is left out if it is not installed or does not have the
operation. If interrupted, the command shows and writes what was measured."""

WORDS = """operations (--op):
  backward             the gradient
  backward-frozen      with frozen statistics
  backward-frozen-src  with frozen statistics, diff_src alone
  backward-relu        through a ReLU
  training             the forward pass in training
  training-relu        with a ReLU
  inference            the forward pass in inference
  inference-add-relu   with an addition and a ReLU
  double-backward      the gradient of the gradient

tensors with gaps (--sets views):
  crop                 without a border
  step                 every other sample
  flip                 in reverse order
  half                 half of the channels

columns:
  used                 threads that took part in a call
  ms                   median time of a call
  shortest             shortest time; much less if other programs are running
  GB/s                 bytes read and written, each tensor once, per median
  pair                 median time of a call and of what stands before it
  numpy, torch         the package's median as a multiple of bn_ext's: of a
                       call / of a pair
  dense                the same of bn_ext on dense arrays instead of views
  copied               the same of bn_ext on such arrays, after NumPy copied"""

NOTE = (
    "ms: median time of a call; shortest: the shortest; pair: median with what stands before it, "
    "in ms"
)
PEER_NOTE = "; {}: median as a multiple of bn_ext's, of a call / of a pair"


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
        f"bn_ext's is up to {_core.default_threads()})")  # fmt: skip
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

    for name, (shape, own, view) in named:
        if not {*own} & {*options.layouts}:
            text = f"{shape_text(shape, view)} of {name}: left out, it is timed in "
            print(f"{text}{', '.join(own)} alone", file=sys.stderr)
    rows: list[Row] = []
    try:
        with packages_of(chosen) as packages:
            for number, case in enumerate(cases, 1):
                print(f"{number} of {len(cases)}: {case}", file=sys.stderr)
                rows.append(row(case, packages, options.seconds, skipped))
    except (KeyboardInterrupt, MemoryError, OSError) as error:
        return cases, rows, error
    return cases, rows, None


def demand_what_it_needs(options: argparse.Namespace) -> None:
    """Raise UsageError before measuring if a package is missing or the file cannot be written."""
    for name in options.dtypes:
        try:
            dtype_of(name)
        except ImportError as error:
            raise UsageError(f"--dtypes: {error}") from None
    if options.json not in (None, "-"):
        demand_writable("--json", Path(options.json))


def report(rows: list[Row], facts: dict[str, Any], options: argparse.Namespace) -> None:
    """The table, and the file that was asked for."""
    config = facts["config"]
    title = f"{config['processor']}, {spelled(config['isa'])}"
    title += f", bn_ext {config['version']}, {facts['date']}"
    shown = list(dict.fromkeys(name for r in rows for name in r["medians"] if name != "bn_ext"))
    stream = sys.stderr if options.json == "-" else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize
    notes = [NOTE + (PEER_NOTE.format(", ".join(shown)) if shown else ""), noise(rows)]
    filled = [textwrap.fill(note, width) for note in notes if note]
    print(title, "", *table(rows, shown), "", *filled, sep="\n", file=stream)
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
