"""What exact sums cost: times as multiples of plain sums' times, same data, one thread."""

from functools import partial

import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.problems import LAYOUTS, Problem
from bn_ext._bench.timing import least_seconds

from . import pages
from .accuracy import shown

DTYPES = ("float32", "bfloat16", "float64")
LARGE = (64, 256, 14, 14)
SHAPES = [(50, 64, 56, 56), LARGE, (8, 64, 28, 28), (2, 64, 14, 14), (2, 4096)]


def log_normal(rng, z, least):
    return np.copysign(np.exp(3 * z), rng.standard_normal(z.shape))


def half_subnormal(rng, z, least):
    # Random z stay below 16, so the scaled ones are subnormal.
    return np.where(rng.random(z.shape) < 0.5, z, z * (least / 16))


def exponents(most, rng, z, least):
    return np.ldexp(z, rng.integers(-most, most + 1, z.shape))


def some_nan(rng, z, least):
    return np.where(rng.random(z.shape) < 0.02, np.nan, z)


NORMAL, LOG_NORMAL = "normal", "log-normal, sigma = 3"
WIDEST = "exponents from -1000 to 1000"
#: diff_dst, computed from normal random z; `least` is the smallest normal number.
KINDS = {
    NORMAL: lambda rng, z, least: z,
    LOG_NORMAL: log_normal,
    "half normal, half subnormal": half_subnormal,
    "exponents from -100 to 100": partial(exponents, 100),
    WIDEST: partial(exponents, 1000),
    "2 % NaN": some_nan,
}


REDUCE = "GradientSums"
#: (call, diff_dst, shape), at the highest level; LOWER: at the level below it.
ROWS = [
    *((REDUCE, NORMAL, shape) for shape in SHAPES),
    *((REDUCE, kind, LARGE) for kind in KINDS if kind != NORMAL),
    *((f"batch_norm_{op}", NORMAL, shape) for op in ("backward", "training") for shape in SHAPES),
]
LOWER = [(REDUCE, NORMAL, LARGE), (REDUCE, LOG_NORMAL, LARGE)]
#: What the page shows: whole calls with these shapes, reductions of these data.
SHOWN = {"50 x 64 x 56 x 56", "8 x 64 x 28 x 28", "2 x 4096", LOG_NORMAL, WIDEST}


def problem_of(name, kind, shape, layout, dtype):
    problem = Problem(shape, layout, dtype, op="training" if "training" in name else "backward")
    if problem.op == "backward":
        rng = np.random.default_rng(1)  # not the seed of src, or the two would be equal
        z, least = rng.standard_normal(problem.src.shape), np.finfo(problem.mean.dtype).tiny
        problem.diff_dst[...] = KINDS[kind](rng, z, least)
    return problem


def call_of(name, p, exact):
    if name != REDUCE:
        return bn_ext_call(p, 1, exact=exact)
    more = {"data_format": p.layout, "num_threads": 1, "exact": exact}
    return lambda: bn_ext.GradientSums(p.src, p.diff_dst, p.mean, **more)


def multiple(row, dtype, seconds):
    """The larger multiple of the two layouts."""
    found = []
    for layout in LAYOUTS:
        problem = problem_of(*row, layout, dtype)
        times = least_seconds({e: call_of(row[0], problem, e) for e in (False, True)}, seconds)
        found.append(times[True] / times[False])
    return max(found)


def is_shown(line):
    """Is it a row of the page?"""
    name, level, kind, shape = line[:4]
    seen = kind if name == REDUCE else shape
    return level == bn_ext.get_isa() and seen in SHOWN


def report(options, console):
    """Write docs/exact.csv, and some rows to docs/exact.md."""
    *_, lower, highest = bn_ext.available_isas()
    rows = [(highest, row) for row in ROWS] + [(lower, row) for row in LOWER]
    before, lines = bn_ext.get_isa(), []
    with pages.counted(console, "rows", len(rows)) as advance:
        for level, row in rows:
            _core._use_isa(level)
            name, kind, shape = row
            cells = [
                shown(multiple(row, dtype, options.seconds))
                if kind != WIDEST or dtype == "float64"
                else ""
                for dtype in DTYPES
            ]
            lines.append([name, level, kind, " x ".join(map(str, shape)), *cells])
            advance()
    _core._use_isa(before)
    heading = ["call", "level", "data", "shape (N, C, ...)", *DTYPES]
    pages.put_rows("exact", "docs/exact.md", pages.run([]), heading, lines, is_shown, console)
