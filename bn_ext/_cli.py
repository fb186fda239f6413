"""The command line: `bn-ext info`, `bn-ext verify`, `bn-ext bench`.

Exit status: 0 if all is well; 1 if verify found a wrong bit; 2 for wrong usage or a package
that is missing, or a file that cannot be written; 130 if interrupted, or if nobody reads on.
"""

import argparse
import importlib
import json
import math
import os
import statistics
import sys
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import bn_ext
from bn_ext import _verify
from bn_ext._bench.peers import MODES, PEERS
from bn_ext._bench.problems import DTYPES, LAYOUTS, SETS, Shape, dtype_of
from bn_ext._bench.timing import Case, Row, cases_of, row

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["main"]


class UsageError(Exception):
    """What was asked for cannot be done; the message is a sentence for the user."""


def needs(module: str, what: str, extra: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{what} needs {module}: pip install 'bn_ext[{extra}]'") from None


# ---- info -------------------------------------------------------------------

INFO = """Say what this build and this process are: the version, the instruction-set level, the
number of threads and what sets it, the caches, and the OpenMP runtimes loaded."""

POOLS = """warning: {} OpenMP runtimes are loaded. Each keeps threads of its own, and those that
wait busily for work take the CPUs from the others. If calls in turn are slow, start Python with
OMP_WAIT_POLICY=passive, or give one of them fewer threads (threadpoolctl, num_threads=)."""


def info(options: argparse.Namespace) -> int:
    for name in options.together_with:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"--with {name}: cannot be imported ({error})") from None
    config = bn_ext.show_config(mode="dicts")
    assert config is not None
    if options.json:
        print(json.dumps(config, indent=1))
        return 0
    l2, last_level = config["cache_sizes"]
    forced = "forced by BN_EXT_ISA" if config["isa_forced"] else "the best this CPU can run"
    threads = "thread" if config["default_threads"] == 1 else "threads"
    lines = {
        "bn_ext": config["version"],
        "processor": f"{config['processor']} ({config['machine']})",
        "level": f"{config['isa']}, {forced}; there are {', '.join(config['available_isas'])}",
        "threads": f"{config['default_threads']} {threads}, set by {config['threads_set_by']}",
        "caches": f"{l2 >> 10} KiB second level, {last_level >> 10} KiB last level",
        "OpenMP": ", ".join(config["openmp_libraries"]) or str(config["openmp"]),
        "idle threads": f"set by {config['idle_threads_set_by']}",
        "Python, NumPy": f"{config['python']}, {config['numpy']}",
    }
    if not config["openmp"]:
        del lines["idle threads"]
    width = max(map(len, lines))
    for key, value in lines.items():
        print(f"{key:<{width}}  {value}")
    if len(config["openmp_libraries"]) > 1:
        print("\n" + POOLS.format(len(config["openmp_libraries"])))
    return 0


# ---- verify -----------------------------------------------------------------


def verify(options: argparse.Namespace) -> int:
    if options.digests:
        _verify.print_digests()
        return 0
    status = _verify.verify(options.seed)
    if options.bench and status == 0:
        _verify.print_speeds()
    return status


# ---- bench ------------------------------------------------------------------

BENCH = """Time the gradient on this CPU, next to the NumPy formula and to whichever of torch, JAX
and TensorFlow are installed, on the same arrays with the same threads. Calls are interleaved and
the least time of each counts. GB/s: the bytes of src, diff_dst and diff_src over the time. A
peer's column says how many times longer it takes than bn_ext."""


def as_shape(text: str) -> Shape:
    """8x64x28x28 or 8,64,28,28 as (N, C, ...)."""
    try:
        shape = tuple(int(word) for word in text.replace(",", "x").split("x"))
    except ValueError:
        shape = ()
    if len(shape) < 2 or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            f"expected N, C and more, each at least 1, as 8x64x28x28, got {text!r}"
        )
    return shape


def as_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, got {text!r}")
    return value


def as_threads(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return int(text)


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    named = [(name, shape) for name in options.sets or [] for shape in SETS[name]]
    named += [("", shape) for shape in options.shapes or []]
    if not named:
        named = [("resnet", shape) for shape in SETS["resnet"]]
    found = cases_of(named, options.modes, options.threads, options.dtypes, options.layouts)
    if not found:
        raise UsageError("--layouts: shapes (N, C) have the layout NXC alone")
    return found


def cells(r: Row, peers: list[str]) -> list[str]:
    ours = r["seconds"]["bn_ext"]
    what = [r["dtype"], r["layout"], str(r["threads"])]
    return [
        "x".join(map(str, r["shape"])),
        *(what if r["mode"] == "training" else [*what[:2], f"{what[2]}, {r['mode']}"]),
        f"{1e3 * ours:.3f}",
        f"{3e-9 * r['bytes'] / ours:.1f}",
        *(f"{r['seconds'][n] / ours:.1f}x" if n in r["seconds"] else "" for n in peers),
    ]


def show_table(console: "Console", rows: list[Row], peers: list[str], title: str) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("N, C, ...", "dtype", "layout", "threads"):
        table.add_column(name)
    for name in ("ms", "GB/s", *peers):
        table.add_column(name, justify="right")
    for r in rows:
        table.add_row(*cells(r, peers))
    means = []
    for name in peers:
        ratios = [r["seconds"][name] / r["seconds"]["bn_ext"] for r in rows if name in r["seconds"]]
        means.append(f"{statistics.geometric_mean(ratios):.1f}x" if ratios else "")
    table.add_section()
    table.add_row("geometric mean", "", "", "", "", "", *means)
    console.print(table)


def plot(rows: list[Row], peers: list[str], title: str, path: Path) -> None:
    """Bars: how many times longer each peer takes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    height = 1.2 + len(rows) * (0.2 + 0.2 * max(1, len(peers)))
    figure, panel = plt.subplots(figsize=(9, height), layout="constrained")
    thick = 0.8 / max(1, len(peers))
    for k, name in enumerate(peers):
        times = [r["seconds"].get(name, math.nan) / r["seconds"]["bn_ext"] for r in rows]
        places = [i + (k - (len(peers) - 1) / 2) * thick for i in range(len(rows))]
        bars = panel.barh(places, times, thick, label=name)
        panel.bar_label(bars, [f"{t:.1f}" if t == t else "" for t in times], padding=2, fontsize=7)
    panel.axvline(1, color="black", linewidth=0.8)
    labels = []
    for r in rows:
        shape, dtype, layout, threads, ms, speed = cells(r, [])
        labels.append(f"{shape} {dtype} {layout}\nthreads: {threads}; {ms} ms, {speed} GB/s")
    panel.set_yticks(range(len(rows)), labels, fontsize=7)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.margins(x=0.1, y=0.01)
    panel.set_xlabel("time as a multiple of bn_ext's")
    panel.set_title(title, fontsize=9)
    if peers:
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def bench(options: argparse.Namespace) -> int:
    needs("rich", "bench", "cli")
    if options.plot:
        needs("matplotlib", "--plot", "bench")
    for name in options.dtypes:
        try:
            dtype_of(name)
        except ImportError:
            needs("ml_dtypes", name, "bf16")
    for path in (options.plot, options.json):
        if path and not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}")

    from rich.console import Console
    from rich.progress import Progress

    cases = chosen_cases(options)
    config = bn_ext.show_config(mode="dicts")
    assert config is not None
    title = f"{config['processor']}, {config['isa']}, bn_ext {config['version']}, {date.today()}"
    console = Console()
    said = set()

    def skipped(name: str, why: str) -> None:
        if (name, why) not in said:
            said.add((name, why))
            progress.console.print(f"{name}: {why}", style="dim", highlight=False)

    peers = {name: PEERS[name] for name in options.peers}
    rows = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            shape = "x".join(map(str, case.shape))
            progress.update(task, description=f"{shape} {case.dtype} {case.layout}")
            rows.append(row(case, options.seconds, skipped, peers))
            progress.advance(task)
    shown = [name for name in peers if any(name in r["seconds"] for r in rows)]
    show_table(console, rows, shown, title)
    if options.json:
        facts = {"date": str(date.today()), "config": config, "rows": rows}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
        console.print(f"written: {options.json}", highlight=False)
    if options.plot:
        plot(rows, shown, title, options.plot)
        console.print(f"written: {options.plot}", highlight=False)
    return 0


# ---- the parser -------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="bn-ext",
        description="Batch normalization's gradient for NumPy arrays: what runs here, proof that "
        "every bit is as promised, and how fast it is.",
        epilog="Exit status: 0 if all is well; 1 if verify found a wrong bit; 2 for wrong usage "
        "or a package that is missing, or a file that cannot be written; 130 if interrupted, or if "
        "nobody reads on.",
    )
    top.add_argument("--version", action="version", version=f"bn_ext {bn_ext.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="{info,verify,bench}")

    command = commands.add_parser(
        "info", help="what this build and this process are", description=INFO
    )
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command.add_argument(
        "--with", dest="together_with", nargs="+", default=[], metavar="MODULE",
        help="import these first, to see whether their thread pools and ours fight",
    )  # fmt: skip
    command.set_defaults(run=info)

    command = commands.add_parser(
        "verify",
        help="prove on this CPU that every bit is as promised",
        description=_verify.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--seed", type=int, default=0, help="of the random values (default: %(default)s)"
    )
    command.add_argument(
        "--bench", action="store_true", help="also print each kernel's speed at each level"
    )
    command.add_argument("--digests", action="store_true", help="print digests and check nothing")
    command.set_defaults(run=verify)

    command = commands.add_parser(
        "bench", help="time this CPU, next to NumPy and other peers", description=BENCH
    )
    command.add_argument(
        "--shapes", nargs="+", type=as_shape, metavar="NxCx...",
        help="N, C and the rest, as 8x64x28x28",
    )  # fmt: skip

    def choose(name: str, choices: Collection[str], default: list[str] | None, said: str) -> None:
        command.add_argument(
            f"--{name}", nargs="*" if name == "peers" else "+", choices=choices, default=default,
            metavar=name[:-1].upper(), help=f"of {', '.join(choices)} (default: {said})",
        )  # fmt: skip

    choose("sets", SETS, None, "resnet")
    choose("dtypes", DTYPES, ["float32"], "float32")
    choose("layouts", LAYOUTS, list(LAYOUTS), "both")
    choose("modes", MODES, ["training"], "training")
    choose("peers", PEERS, list(PEERS), "all that are installed")
    command.add_argument(
        "--threads", nargs="+", type=as_threads, default=[os.cpu_count() or 1],
        metavar="N", help="(default: all CPUs)",
    )  # fmt: skip
    command.add_argument(
        "--seconds", type=as_seconds, default=1.0, help="per row (default: %(default)s)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it")
    command.set_defaults(run=bench)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except UsageError as error:
        print(f"bn-ext {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # What is still in the buffer has nowhere to go when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 130
    except (MemoryError, OSError) as error:
        print(f"bn-ext {options.command}: {str(error) or 'not enough memory'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
