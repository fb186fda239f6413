"""Calls on views, next to copying them first, and next to the same calls on dense arrays.

    python -m benchmarks.views                     the gradient: 168 rows in three minutes
    python -m benchmarks.views double-backward     or another operation
    python -m benchmarks.views --kinds flip crop --threads 2
    python -m benchmarks.views --write             all of them, into docs/figures.md

Who has a view can also copy it to a dense array with NumPy, and pass that. So a call on a view that
takes longer than both is slow. All write to the same given outputs, and take turns in one process;
a time is the shortest of many. It uses only what users have, so it measures any revision.
"""

import argparse
import itertools
import math
import sys
import time
from statistics import geometric_mean, median

import numpy as np

#: {operation: the number of operands that are read, of those that are written, of vectors}
OPS = {
    "backward": (2, 1, 2),
    "training": (1, 1, 2),
    "inference": (1, 1, 0),
    "double-backward": (3, 2, 1),
}
#: What each operand is of a larger array, or of one with other axes in memory.
KINDS = "columns", "rows", "crop", "flip", "channels", "transposed", "transposed-columns"
LAYOUTS = "NXC", "NCX"
SHAPES = (8, 64, 28, 28), (50, 256, 14, 14), (32, 64, 56, 56)
#: A row above this is measured again, and counts as slow if it stays there.
SLOW, TRIES = 1.05, 3
#: A median of more than this many times the shortest time: other programs are running.
BUSY = 2


def busy(ratios):
    """What to say of rows, each the median as a multiple of the shortest time, that tell of other
    programs; "" if none does.
    """
    above = [ratio for ratio in ratios if ratio > BUSY]
    if not above:
        return ""
    return (
        f"BUSY: in {len(above)} of {len(ratios)} rows a median is over {BUSY} times the shortest "
        f"time, {max(above):.1f} times at most. Other programs are running: measure again without "
        "them.\n"
    )


def as_dtype(name):
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401 - it brings the dtype
    return np.dtype(name)


def placed(shape, dtype, place=16):
    """A dense array of zeros that begins so many bytes past a page: malloc puts large ones of NumPy
    16 past one.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(nbytes + 4096 + place, np.uint8)
    start = -memory.ctypes.data % 4096 + place
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def view_of(sizes, layout, dtype, kind, place=16):
    """An array with these sizes in memory; unless kind is "", a view with gaps, or transposed."""
    if kind.startswith("transposed"):
        sizes, part = (*sizes[:-2], sizes[-1], sizes[-2]), kind.removeprefix("transposed")
        return view_of(sizes, layout, dtype, part.removeprefix("-"), place).swapaxes(-1, -2)
    channels = 1 if layout == "NCX" else len(sizes) - 1
    height, width = ([0] + [axis for axis in range(len(sizes)) if axis != channels])[-2:]
    length, part = {
        "": (lambda n: n, slice(None)),
        "columns": (lambda n: 2 * n, slice(None, None, 2)),
        "rows": (lambda n: 2 * n, slice(None, None, 2)),
        "crop": (lambda n: n + 2, slice(1, -1)),
        "flip": (lambda n: n, slice(None, None, -1)),
        "channels": (lambda n: n + -(-n // 3), slice(sizes[channels])),  # three of four
    }[kind]
    axes = {"rows": [height], "crop": [height, width], "channels": [channels]}.get(kind, [width])
    whole = tuple(length(n) if axis in axes else n for axis, n in enumerate(sizes))
    values = np.random.default_rng(0).standard_normal(1 << 16).astype(dtype)
    index = tuple(part if axis in axes else slice(None) for axis in range(len(sizes)))
    array = placed(whole, dtype, place)
    array[...] = np.resize(values, whole)
    return array[index]


class Operands:
    """What an operation reads, each a view of a kind, and what it writes to, of another kind."""

    def __init__(self, op, shape, layout, dtype, kind="", place=16, out=""):
        reads, writes, vectors = OPS[op]
        count, channels, *lengths = shape
        sizes = (count, *lengths, channels) if layout == "NXC" else shape
        self.op, self.layout, dtype = op, layout, as_dtype(dtype)
        self.read = [view_of(sizes, layout, dtype, kind, place) for _ in range(reads)]
        self.written = [view_of(sizes, layout, dtype, out, place) for _ in range(writes)]
        self.written += [np.zeros(channels, np.float32) for _ in range(vectors)]
        self.mean, self.variance, self.gamma, self.beta = (
            np.full(channels, value, np.float32) for value in (0.01, 0.9, 1.1, 0.1)
        )

    def call(self, read=None, with_out=True, **options):
        """A call on these operands, or on dense copies; with `with_out`, it writes to `written`."""
        import bn_ext

        src, *others = read or self.read
        options = {"epsilon": 1e-5, "data_format": self.layout, **options}
        if with_out:
            options["out"] = tuple(self.written) if len(self.written) > 1 else self.written[0]
        vectors = self.mean, self.variance, self.gamma
        if self.op == "training":
            return lambda: bn_ext.batch_norm_training(src, self.gamma, self.beta, **options)
        if self.op == "inference":
            return lambda: bn_ext.batch_norm_inference(src, *vectors, self.beta, **options)
        if self.op == "backward":
            return lambda: bn_ext.batch_norm_backward(src, *others, *vectors, **options)
        diff_dst, diff_diff_src = others
        return lambda: bn_ext.batch_norm_double_backward(
            src, diff_dst, *vectors, diff_diff_src, **options
        )


def batch(call, seconds):
    """The seconds of each of some calls."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def row(operands, threads, seconds):
    """Times of the call on the views, of copying first, and of the call on dense arrays."""
    copies = [placed(a.shape, a.dtype) for a in operands.read]
    dense = operands.call(copies, num_threads=threads)

    def copied():
        for copy, a in zip(copies, operands.read, strict=True):
            np.copyto(copy, a)
        dense()

    calls = [operands.call(num_threads=threads), copied, dense]
    times = [[] for _ in calls]
    for _ in range(TRIES):
        end = time.perf_counter() + seconds
        while len(times[0]) < 3 or time.perf_counter() < end:
            for call, seconds_of_call in zip(calls, times, strict=True):
                call()  # what the other calls left in caches is not this call's
                seconds_of_call += batch(call, seconds / 30)
        if min(times[0]) <= SLOW * min(times[1]):
            break
    return times


def write(ratios):
    """Put a line for each kind of view into docs/figures.md, from {operation: {kind: ratios}}."""
    from . import pages

    lines = []
    for kind in KINDS:
        pairs = [zip(*kinds[kind], strict=True) for kinds in ratios.values()]
        means = (" / ".join(f"{geometric_mean(ratios):.2f}" for ratios in pair) for pair in pairs)
        lines.append([kind, *means])
    table = pages.markdown(["view", *ratios], lines)
    counts = []
    for op, kinds in ratios.items():
        of_copied = [pair[0] for pairs in kinds.values() for pair in pairs]
        above = sum(ratio > SLOW for ratio in of_copied)
        counts.append(f"{op} {above} of {len(of_copied)}, worst {max(of_copied):.2f}")
    text = f"Rows above {SLOW} of copying first: {'; '.join(counts)}."
    pages.put("views", "docs/figures.md", f"{pages.short(pages.run([]))}:\n\n{table}\n\n{text}\n")


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("op", nargs="?", choices=OPS, default="backward")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    add("--shapes", nargs="+", default=SHAPES, metavar="NxCxHxW",
        type=lambda text: tuple(map(int, text.split("x"))))  # fmt: skip
    add("--dtypes", nargs="+", default=["float32", "bfloat16"], metavar="DTYPE")
    add("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    add("--seconds", type=float, default=0.45, help="of each row (default: %(default)s)")
    add("--write", action="store_true", help="measure all operations, and write docs/figures.md")
    options = parser.parse_args(arguments)
    if not options.write:
        return measure(options, options.op)
    return write({op: measure(options, op) for op in OPS})


def measure(options, op):
    """Measure an operation's rows, and print them. Return {kind: [(of copied, of dense), ...]}."""
    print(f"{op}: view/copied  view/dense")
    ratios, spread = {kind: [] for kind in options.kinds}, []
    for shape, kind, dtype, layout in itertools.product(
        options.shapes, options.kinds, options.dtypes, LAYOUTS
    ):
        operands = Operands(op, shape, layout, dtype, kind)
        for threads in options.threads:
            times = row(operands, threads, options.seconds)
            view, copied, dense = map(min, times)
            ratios[kind].append((view / copied, view / dense))
            spread.append(max(median(seconds) / min(seconds) for seconds in times))
            title, ratio = "x".join(map(str, shape)), f"{view / copied:5.2f}  {view / dense:5.2f}"
            print(f"{title:>13} {kind:10} {dtype:8} {layout} {threads}  {ratio}", flush=True)
    of_copied, of_dense = zip(*itertools.chain(*ratios.values()), strict=True)
    print(
        f"{len(of_copied)} rows, {sum(ratio > SLOW for ratio in of_copied)} above {SLOW} of "
        f"copying first, worst {max(of_copied):.2f}, geometric means "
        f"{geometric_mean(of_copied):.3f} of copying first, {geometric_mean(of_dense):.3f} of dense"
    )
    print(end=busy(spread), file=sys.stderr)
    return ratios


if __name__ == "__main__":
    main()
