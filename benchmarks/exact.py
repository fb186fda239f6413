"""What exact sums cost: times as multiples of plain sums' times, same data, one thread."""

from functools import partial

import numpy as np

from bn_ext._bench import LAYOUTS, WORK, burst, in_turns

from . import pages
from .peers import bn_ext_call
from .problems import Case, Problem

DTYPES = ("float32", "bfloat16", "float64")
LARGE = (64, 256, 14, 14)
SHAPES = [(50, 64, 56, 56), LARGE, (8, 64, 28, 28), (2, 64, 14, 14), (2, 4096)]


def log_normal(rng, z):
    return np.copysign(np.exp(3 * z), rng.standard_normal(z.shape))


def exponents(most, rng, z):
    return np.ldexp(z, rng.integers(-most, most + 1, z.shape))


NORMAL, WIDEST = "normal", "exponents from -1000 to 1000"
#: diff_dst, computed from normal random z.
KINDS = {
    NORMAL: lambda rng, z: z,
    "log-normal, sigma = 3": log_normal,
    "exponents from -100 to 100": partial(exponents, 100),
    WIDEST: partial(exponents, 1000),
    "2 % NaN": lambda rng, z: np.where(rng.random(z.shape) < 0.02, np.nan, z),
}
ROWS = [
    *((op, NORMAL, shape) for op in ("backward", "training") for shape in SHAPES),
    *(("backward", kind, LARGE) for kind in KINDS if kind != NORMAL),
]


def multiple(op, kind, shape, dtype, seconds):
    """The larger multiple of the two layouts."""
    ratios = []
    for layout in LAYOUTS:
        problem = Problem(Case(shape, layout, dtype, op, threads=1))
        if op == "backward":
            rng = np.random.default_rng(1)  # not the seed of src, or the two would be equal
            problem.diff_dst[...] = KINDS[kind](rng, rng.standard_normal(problem.src.shape))
        bursts = {
            exact: partial(burst, bn_ext_call(problem, exact=exact), WORK["nothing"])
            for exact in (False, True)
        }
        times = in_turns(bursts, seconds)
        ratios.append(min(times[True]).call / min(times[False]).call)
    return max(ratios)


def report(options):
    """Write docs/exact.csv, and the table of docs/exact.md."""
    lines = []
    for op, kind, shape in ROWS:
        cells = [
            f"{multiple(op, kind, shape, dtype, options.seconds):.3g}"
            if kind != WIDEST or dtype == "float64"
            else ""
            for dtype in DTYPES
        ]
        lines.append([f"batch_norm_{op}", kind, " x ".join(map(str, shape)), *cells])
        print(*lines[-1])
    heading = ["call", "data", "shape (N, C, ...)", *DTYPES]
    pages.put_rows("exact", "docs/exact.md", heading, lines)
