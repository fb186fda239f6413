"""`bn-ext bench`: measure rows on this machine, and show them as tables."""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date
from itertools import product
from typing import Any

import bn_ext._core as _core
from bn_ext._bench import LAYOUTS, OPS, PEERS, SHAPES, WORK, Case, Row, Shape, row
from bn_ext._cli.usage import UsageError, as_layout, as_seconds, as_shape, as_whole
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext._runtime import _processor, get_isa, spelled
from bn_ext._version import __version__

WORDS = """used: threads in a call; ms: median time of a call; shortest: the shortest, much
less if other programs are running; GB/s: bytes read and written, each tensor
once, by the median; pair: median time of a call and of what stands before it;
others: their medians as multiples of bn_ext's, of a call / of a pair."""

#: A median this many times the shortest is not this machine's, but that of all that runs on it.
BUSY = 2
#: What the rows of one table have in common.
FACTS = ("op", "dtype", "layout", "threads", "behind")
#: The least widths of columns; of others, alone or in a pair.
WIDTHS = {"used": 4, "ms": 7, "shortest": 8, "GB/s": 5, "pair": 8}
ALONE, IN_A_PAIR = 5, 9


def add_options(add: Callable[..., Any], ops: Iterable[str] = OPS) -> None:
    """The options that choose rows."""
    text = "N, C and any other sizes, like 8x64x28x28 (default: ResNet-50's)"
    add("--shapes", nargs="+", type=as_shape, metavar="NxCx...", help=text)
    for name, choices, default, default_text in (
        ("dtypes", DTYPES, ["float32"], "float32"),
        ("layouts", LAYOUTS, LAYOUTS, "both"),
        ("op", ops, ["backward"], "backward"),
        ("behind", WORK, ["pass"], "pass"),
    ):
        text = f"any of {', '.join(choices)} (default: {default_text})"
        options = {"type": _layout if name == "layouts" else str, "choices": choices}
        options |= {"default": default, "metavar": name.removesuffix("s").upper(), "help": text}
        add(f"--{name}", nargs="+", **options)
    most = _core.default_threads()
    text = f"numbers of threads (default: each package's own; bn_ext's is up to {most})"
    add("--threads", nargs="+", type=as_whole, default=[None], metavar="N", help=text)
    add("--seconds", type=as_seconds, default=1.0, help="seconds per row (default: %(default)s)")


def _layout(text: str) -> str:
    """NXC or NCX, of any name of a data format."""
    return LAYOUTS[_core.channel_axis_of(as_layout(text)) == 1]


def cases_of(options: argparse.Namespace, shapes: Iterable[Shape]) -> list[Case]:
    """Every combination. (N, C) is the same in all layouts."""
    for name in options.dtypes:
        try:
            dtype_of(name)
        except ImportError as error:
            raise UsageError(f"--dtypes: {error}") from None
    return [
        Case(shape, layout, dtype, op, threads, behind)
        for op, threads, behind, dtype, layout, shape in product(
            options.op, options.threads, options.behind, options.dtypes, options.layouts, shapes
        )
        if len(shape) > 2 or layout == options.layouts[0]
    ]


def cells(r: Row, peers: Iterable[str]) -> dict[str, str]:
    """The cells of a row: {name: text}."""
    times = ["medians"] if r["behind"] == "nothing" else ["medians", "pairs"]
    texts = {
        "used": str(r["threads_used"]),
        "ms": f"{1e3 * r['medians']['bn_ext']:.4f}",
        "shortest": f"{1e3 * r['shortest']['bn_ext']:.4f}",
        "GB/s": f"{1e-9 * r['bytes_moved'] / r['medians']['bn_ext']:.1f}",
    }
    if "pairs" in times:
        texts["pair"] = f"{1e3 * r['pairs']['bn_ext']:.4f}"
    for name in peers:
        ratios = [r[key][name] / r[key]["bn_ext"] for key in times if name in r[key]]
        text = "/".join(f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}" for ratio in ratios)
        texts[name] = text and text + "x"
    return texts


def table(rows: Iterable[Row], peers: Collection[str]) -> Iterator[str]:
    """Lines, each as soon as its row is there. They fit 80 columns with NumPy and torch."""
    last = ""
    for r in rows:
        facts = ", ".join(f"{name}: {r[name]}" for name in FACTS).removeprefix("op: ")
        texts = cells(r, (name for name in peers if name != "bn_ext"))
        least = ALONE if r["behind"] == "nothing" else IN_A_PAIR
        heading = {name: f"{name:>{WIDTHS.get(name, least)}}" for name in texts}
        if facts != last:
            yield from ("", facts, "  ".join([f"{'N, C, ...':<14}", *heading.values()]))
        last = facts
        numbers = (f"{text:>{len(heading[name])}}" for name, text in texts.items())
        yield "  ".join([f"{r['title']:<14}", *numbers]).rstrip()


def show(rows: Iterable[Row], peers: Collection[str]) -> None:
    """Print rows as they come."""
    isa = spelled(get_isa())
    print(f"{_processor()}, {isa}, bn_ext {__version__}, {date.today()}", flush=True)
    noises: list[float] = []

    def watched() -> Iterator[Row]:
        for r in rows:
            medians = r["medians"]
            if r["behind"] != "product":  # whose idle threads spread times, too
                noises.append(max(medians[name] / r["shortest"][name] for name in medians))
            yield r

    for line in table(watched(), peers):
        print(line, flush=True)
    print(f"\n{WORDS}")
    busy = sum(noise > BUSY for noise in noises)
    if busy:
        print(
            f"\nBUSY: in {busy} of {len(noises)} rows, medians are up to {max(noises):.1f} times "
            "the shortest.\nOther programs are running: measure again without them."
        )


def bench(options: argparse.Namespace) -> int:
    """Time bn_ext on this CPU, next to the NumPy formula and, if it is installed, torch. Each call
    stands behind other work of NumPy (--behind), as in programs: a pass over a million elements, a
    product of 256 x 256, or nothing. The packages share this process and take turns of 50 ms; one
    begins when no thread of another spins any more. Operations (--op): the gradient in training,
    the forward pass in training and in inference.
    """
    peers, cases = dict(PEERS), cases_of(options, options.shapes or SHAPES)
    show((row(case, peers, options.seconds) for case in cases), peers)
    return 0
