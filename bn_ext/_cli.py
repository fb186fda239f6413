"""The command line: `bn-ext info`, `bn-ext verify`, `bn-ext bench`.

The exit status is in EXIT.
"""

import argparse
import errno
import importlib
import io
import json
import math
import os
import shutil
import statistics
import sys
import textwrap
from collections.abc import Collection
from datetime import date
from pathlib import Path

import bn_ext
from bn_ext import _core
from bn_ext._bench.peers import MODES, PEERS, Peer, usable_cpus
from bn_ext._bench.problems import DTYPES, LAYOUTS, SETS, Shape, dtype_of
from bn_ext._bench.timing import Case, Load, Row, cases_of, row, spread
from bn_ext._verify import command as _verify

__all__ = ["main"]

EXIT = """Exit status: 0 on success; 1 if verify found a wrong bit; 2 for wrong usage (without a
command this help is printed), a missing package, a file that cannot be written or too little
memory; 130 if interrupted, or if the reader of the output closed the pipe."""


class UsageError(Exception):
    """The request cannot be carried out; the message is for the user."""


def needs(module: str, what: str, extra: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{what} needs {module}: pip install 'bn_ext[{extra}]'") from None


# ---- info -------------------------------------------------------------------

INFO = """Show the version, the instruction-set level, the number of threads and what sets it, the
caches, and the OpenMP runtimes that are loaded."""

POOLS = """warning: {} OpenMP runtimes are loaded. Each has its own threads, and idle threads that
spin while they wait for work slow down the others. If calls that alternate between them are slow,
start Python with OMP_WAIT_POLICY=passive, or give one of them fewer threads (threadpoolctl,
num_threads=)."""


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
    forced = "forced by BN_EXT_ISA" if config["isa_forced"] else "the highest this CPU can run"
    threads = "thread" if config["default_threads"] == 1 else "threads"
    lines = {
        "bn_ext": config["version"],
        "processor": f"{config['processor']} ({config['machine']})",
        "level": f"{config['isa']}, {forced}; available: {', '.join(config['available_isas'])}",
        "threads": f"{config['default_threads']} {threads}, set by {config['threads_set_by']}",
        "caches": f"{l2 >> 10} KiB second-level, {last_level >> 10} KiB last-level",
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

BENCH = """Time the gradient on this CPU, next to the NumPy formula and whichever of torch, JAX and
TensorFlow are installed, on the same arrays with the same number of threads. Calls are interleaved.
threads: those that took part in a call; "1 of 2" where bn_ext chose fewer, as it does for small
problems. ms: the shortest time of a call. median: the median of all calls, in ms. GB/s: the bytes
of src, diff_dst and diff_src (frozen-src does not read src) divided by the shortest time. A peer's
column gives its time as a multiple of bn_ext's. If interrupted, shows and writes what was measured
so far."""

#: Geometric mean over rows of median / shortest time. A process with priority over all others has
#: 1.1, one that shares its CPUs 1.3 to 1.7.
SPREAD = 1.25
#: CPUs that others may use of those that our threads need. A constant load raises the shortest
#: time as well, so the spread does not show it.
SHARED = 0.2

NOTE = "ms: shortest time of a call; median: of all its calls, in ms"
PEER_NOTE = "; {}: time as a multiple of bn_ext's"
BUSY = "Close other programs and measure again."

#: What was timed. If the terminal is too narrow, these leave the table, in this order.
FACTS = ("threads", "dtype", "layout", "mode")


def as_shape(text: str) -> Shape:
    """8x64x28x28 or 8,64,28,28 as (N, C, ...)."""
    try:
        shape = tuple(int(word) for word in text.replace(",", "x").split("x"))
    except ValueError:
        shape = ()
    if len(shape) < 2 or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            f"expected N, C and any other sizes, each at least 1, like 8x64x28x28, got {text!r}"
        )
    return shape


def as_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, more than 0, got {text!r}")
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
        raise UsageError("--layouts: shapes (N, C) have only the layout NXC")
    return found


def cells(r: Row, peers: Collection[str]) -> dict[str, str]:
    """A line of the table: {column: text}."""
    ours = r["seconds"]["bn_ext"]
    asked, used = r["threads"], r["threads_used"]
    return {
        "N, C, ...": "x".join(map(str, r["shape"])),
        "dtype": r["dtype"],
        "layout": r["layout"],
        "mode": r["mode"],
        "threads": f"{used}" if used == asked else f"{used} of {asked}",
        "ms": f"{1e3 * ours:.4f}",
        "median": f"{1e3 * r['medians']['bn_ext']:.4f}",
        "GB/s": f"{1e-9 * r['bytes_moved'] / ours:.1f}",
        **{n: f"{r['seconds'][n] / ours:.1f}x" if n in r["seconds"] else "" for n in peers},
    }


def means(rows: list[Row], peers: Collection[str]) -> dict[str, str]:
    """The last line of the table: each peer's geometric mean."""
    found = {}
    for name in peers:
        ratios = [r["seconds"][name] / r["seconds"]["bn_ext"] for r in rows if name in r["seconds"]]
        found[name] = f"{statistics.geometric_mean(ratios):.1f}x" if ratios else ""
    return found


def text_of(lines: list[dict[str, str]], last: dict[str, str]) -> list[str]:
    """Columns below their names, text to the left and numbers to the right; nothing is cut."""
    widths = {
        name: max(len(name), len(last.get(name, "")), *(len(line[name]) for line in lines))
        for name in lines[0]
    }

    def joined(line: dict[str, str]) -> str:
        words = [
            line[name].ljust(width) if name in FACTS or name == "N, C, ..." else
            line[name].rjust(width)
            for name, width in widths.items()
        ]  # fmt: skip
        return "  ".join(words).rstrip()

    text = [
        joined({name: name for name in widths}),
        joined({n: "-" * w for n, w in widths.items()}),
    ]
    text += map(joined, lines)
    if any(last.values()):
        end = joined({name: last.get(name, "") for name in widths})
        label = "geometric mean"
        text += [text[1], label + end[len(label) :]]
    return text


def table(rows: list[Row], peers: Collection[str], width: int = sys.maxsize) -> list[str]:
    """Lines of text; in a narrow terminal several tables, with facts in headings instead."""
    lines = [cells(r, peers) for r in rows]
    # What all rows have in common goes first: it needs no further table.
    leaving = sorted(FACTS, key=lambda name: len({line[name] for line in lines}) > 1)
    above: list[str] = []
    while len(text_of(lines, means(rows, peers))[1]) > width and leaving:
        above.append(leaving.pop(0))
        lines = [{k: v for k, v in line.items() if k != above[-1]} for line in lines]
    kinds: dict[tuple[str, ...], list[int]] = {}
    for i, r in enumerate(rows):
        facts = cells(r, ())
        kinds.setdefault(tuple(facts[name] for name in above), []).append(i)
    text: list[str] = []
    for kind, places in kinds.items():
        if above:
            named = zip(above, kind, strict=True)
            text += [""] * bool(text) + [", ".join(f"{name}: {value}" for name, value in named)]
        text += text_of([lines[i] for i in places], means([rows[i] for i in places], peers))
    return text


def disturbances(rows: list[Row], others: float | None) -> list[str]:
    """Signs that these are not the times of a quiet machine; empty if there are none."""
    found = []
    free = usable_cpus() - max(r["threads_used"] for r in rows)
    if others is not None and others > max(0, free) + SHARED:
        found.append(f"other programs used {others:.1f} of {usable_cpus()} CPUs")
    if spread(rows) > SPREAD:
        found.append(f"the median call took {spread(rows):.1f} times as long as the shortest")
    return found


def plot(rows: list[Row], peers: list[str], title: str, path: Path) -> None:
    """Bars: each peer's time as a multiple of bn_ext's."""
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
        shape, dtype, layout, mode, threads, ms, _, speed = cells(r, ()).values()
        labels.append(
            f"{shape} {dtype} {layout}, {mode}\nthreads: {threads}; {ms} ms, {speed} GB/s"
        )
    panel.set_yticks(range(len(rows)), labels, fontsize=7)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.margins(x=0.1, y=0.01)
    panel.set_xlabel("time as a multiple of bn_ext's")
    panel.set_title(title, fontsize=9)
    if peers:
        # Below, where no bar is.
        figure.legend(loc="outside lower center", ncols=len(peers), fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def demand_writable(option: str, path: Path) -> None:
    """UsageError before measuring, rather than an OSError afterwards."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {folder}")
    if path.is_dir():
        raise UsageError(f"{option} {path}: expected a file, got a folder")
    existed = os.path.lexists(path)
    try:
        if path.exists() and not path.is_file():
            # Opening and closing a pipe would end it.
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None
    if not existed:
        path.unlink()


def demand_picture(option: str, path: Path) -> None:
    """UsageError unless matplotlib can write a picture with this ending here."""
    from matplotlib.figure import Figure

    ending = path.suffix[1:].lower()
    known = Figure().canvas.get_supported_filetypes()
    if ending not in known:
        raise UsageError(f"{option} {path}: expected a file name that ends in {', '.join(known)}")
    try:
        figure = Figure()
        figure.suptitle(str(path))
        figure.savefig(io.BytesIO(), format=ending)
    except Exception as error:  # what a format needs besides matplotlib: LaTeX, Pillow
        raise UsageError(f"{option} {path}: {ending} cannot be written here ({error})") from None


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


def bench(options: argparse.Namespace) -> int:
    needs("rich", "bench", "cli")
    if options.plot:
        needs("matplotlib", "--plot", "bench")
    for name in options.dtypes:
        try:
            dtype_of(name)
        except ImportError:
            needs("ml_dtypes", name, "bf16")
    cases = chosen_cases(options)
    json_to_stdout = options.json == "-"
    json_file = Path(options.json) if options.json and not json_to_stdout else None
    if json_file:
        demand_writable("--json", json_file)
    if options.plot:
        demand_picture("--plot", options.plot)
        demand_writable("--plot", options.plot)

    config = bn_ext.show_config(mode="dicts")
    assert config is not None
    title = f"{config['processor']}, {config['isa']}, bn_ext {config['version']}, {date.today()}"
    peers = {name: PEERS[name] for name in options.peers}
    load = Load()
    rows, stopped = measured(cases, peers, options.seconds)
    others = load.of_others()
    if rows:
        shown = [name for name in peers if any(name in r["seconds"] for r in rows)]
        stream = sys.stderr if json_to_stdout else sys.stdout
        width = shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize
        notes = [NOTE + (PEER_NOTE.format(", ".join(shown)) if shown else "")]
        busy = disturbances(rows, others)
        if busy:
            notes.append(f"The machine is busy: {' and '.join(busy)}. {BUSY}")
        notes = [textwrap.fill(note, width) for note in notes]
        print(title, "", *table(rows, shown, width), "", *notes, sep="\n", file=stream)
        facts = {
            "date": str(date.today()), "config": config, "complete": stopped is None,
            "cpus_used_by_others": others, "spread": spread(rows), "rows": rows,
        }  # fmt: skip
        text = json.dumps(facts, indent=1)
        if json_to_stdout:
            print(text)
        if json_file:
            json_file.write_text(text + "\n")
            print(f"written: {json_file}", file=stream)
        if options.plot:
            plot(rows, shown, title, options.plot)
            print(f"written: {options.plot}", file=stream)
    if stopped:
        print(f"{len(rows)} of {len(cases)} rows were measured", file=sys.stderr)
        raise stopped
    return 0


# ---- the parser -------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="bn-ext",
        description="The gradient of batch normalization for NumPy arrays: show what is in use "
        "here, check that every bit is as promised, measure the speed.",
        epilog=EXIT,
    )
    top.add_argument("--version", action="version", version=f"bn_ext {bn_ext.__version__}")
    commands = top.add_subparsers(dest="command", metavar="{info,verify,bench}")

    command = commands.add_parser(
        "info", help="show the build, the CPU and the threads in use", description=INFO
    )
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command.add_argument(
        "--with", dest="together_with", nargs="+", default=[], metavar="MODULE",
        help="import these first, to see which OpenMP runtimes they load",
    )  # fmt: skip
    command.set_defaults(run=info)

    command = commands.add_parser(
        "verify",
        help="check on this CPU that every bit is as promised",
        description=_verify.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--seed", type=int, default=0, help="seed of the random values (default: %(default)s)"
    )
    command.add_argument(
        "--bench", action="store_true", help="also print each kernel's speed at each level"
    )
    command.add_argument("--digests", action="store_true", help="print the digests, check nothing")
    command.set_defaults(run=verify)

    command = commands.add_parser(
        "bench",
        help="time bn_ext on this CPU, next to NumPy and other peers",
        description=BENCH,
    )
    command.add_argument(
        "--shapes", nargs="+", type=as_shape, metavar="NxCx...",
        help="N, C and any other sizes, like 8x64x28x28",
    )  # fmt: skip

    def choose(name: str, choices: Collection[str], default: list[str] | None, said: str) -> None:
        command.add_argument(
            f"--{name}", nargs="*" if name == "peers" else "+", choices=choices, default=default,
            metavar=name[:-1].upper(), help=f"any of {', '.join(choices)} (default: {said})",
        )  # fmt: skip

    choose("sets", SETS, None, "resnet")
    choose("dtypes", DTYPES, ["float32"], "float32")
    choose("layouts", LAYOUTS, list(LAYOUTS), "both")
    choose("modes", MODES, ["training"], "training")
    choose("peers", PEERS, list(PEERS), "all that are installed")
    command.add_argument(
        "--threads", nargs="+", type=as_threads, default=[_core._default_threads()], metavar="N",
        help=f"numbers of threads (default: {_core._default_threads()}, as calls here use)",
    )  # fmt: skip
    command.add_argument(
        "--seconds", type=as_seconds, default=1.0, help="time per row (default: %(default)s)"
    )
    command.add_argument(
        "--json", metavar="FILE",
        help="write the measurements as JSON; - for standard output (table: standard error)",
    )  # fmt: skip
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw a chart: .png, .svg, .pdf, ..."
    )
    command.set_defaults(run=bench)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    top = parser()
    options = top.parse_args(arguments)
    if sys.stdout is None:
        print("bn-ext: standard output is closed", file=sys.stderr)
        return 2
    if options.command is None:
        top.print_help(sys.stderr)
        return 2
    try:
        status: int = options.run(options)
        return status
    except UsageError as error:
        print(f"bn-ext {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Python would fail to flush what is still in the buffer when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 130
    except (MemoryError, OSError) as error:
        print(f"bn-ext {options.command}: {str(error) or 'not enough memory'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
