"""What exact sums cost: times as multiples of those of plain sums of the same data, one thread."""

from functools import partial

import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.problems import LAYOUTS, Problem
from bn_ext._bench.timing import cases_of, least_seconds, markdown

from . import pages
from .accuracy import shown

DTYPES = ("float32", "bfloat16", "float64")
#: Large, and small enough for a cache: here diff_dst has other exponents too.
SPREAD = [(64, 256, 14, 14), (8, 64, 28, 28)]
CALLS = [*SPREAD, (2, 64, 14, 14), (2, 4096)]
SHAPES = [*CALLS, (50, 64, 56, 56), (128, 512)]


def log_normal(rng, z, least):
    return np.copysign(np.exp(3 * z), rng.standard_normal(z.shape))


def half_subnormal(rng, z, least):
    # Random z stay below 16.
    return np.where(rng.random(z.shape) < 0.5, z, z * (least / 16))


def exponents(most, rng, z, least):
    return np.ldexp(z, rng.integers(-most, most + 1, z.shape))


def some_nan(rng, z, least):
    return np.where(rng.random(z.shape) < 0.02, np.nan, z)


NORMAL, LOG_NORMAL = "normal", "log-normal, sigma = 3"
WIDEST = "exponents from -1000 to 1000"
#: What diff_dst is, of random z; `least`: the smallest normal number.
KINDS = {
    NORMAL: lambda rng, z, least: z,
    LOG_NORMAL: log_normal,
    "half normal, half subnormal": half_subnormal,
    "exponents from -100 to 100": partial(exponents, 100),
    WIDEST: partial(exponents, 1000),
    "2 % NaN": some_nan,
}


def problem_of(case, kind):
    problem = Problem(case.shape, case.layout, case.dtype, op=case.op)
    if case.op == "backward":
        rng = np.random.default_rng(1)  # not src's seed: the two would be equal
        z, least = rng.standard_normal(problem.src.shape), np.finfo(problem.mean.dtype).tiny
        problem.diff_dst[...] = KINDS[kind](rng, z, least)
    return problem


def reduce_call(problem, exact):
    p, more = problem, {"data_format": problem.layout, "num_threads": 1, "exact": exact}
    return lambda: bn_ext.batch_norm_backward_reduce(p.src, p.diff_dst, p.mean, **more)


def whole_call(problem, exact):
    return bn_ext_call(problem, 1, exact=exact)


def kinds_for(case):
    if case.shape not in SPREAD:
        return [NORMAL]
    return [kind for kind in KINDS if kind != WIDEST or case.dtype == "float64"]


def measured():
    """[(level, which call, case, kind)]"""
    sums, whole = ([("", shape) for shape in shapes] for shapes in (SHAPES, CALLS))
    sums = cases_of(sums, ["backward"], [1], DTYPES, LAYOUTS)
    whole = cases_of(whole, ["backward", "training"], [1], ["float32"], ["NXC"])
    spread = [case for case in sums if case.shape in SPREAD]
    isas = bn_ext.available_isas()
    return [
        *((isas[-1], reduce_call, case, kind) for case in sums for kind in kinds_for(case)),
        *((isas[-1], whole_call, case, NORMAL) for case in whole),
        *(
            (level, reduce_call, case, kind)
            for level in isas[1:-1]
            for case in spread
            for kind in (NORMAL, LOG_NORMAL)
        ),
    ]


def measure(seconds, advance):
    """{(level, which call, case, kind): multiple}"""
    found, before = {}, bn_ext.get_isa()
    for isa, call, case, kind in measured():
        _core._use_isa(isa)
        problem = problem_of(case, kind)
        times = least_seconds({e: call(problem, e) for e in (False, True)}, seconds)
        found[isa, call, case, kind] = times[True] / times[False]
        advance()
    _core._use_isa(before)
    return found


def table(corner, cells):
    """Markdown of {(row, column): multiple}, where a row is named by as many cells as `corner`."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    lines = [[*r, *(shown(cells[r, c]) if (r, c) in cells else "" for c in columns)] for r in rows]
    return markdown([*corner, *columns], lines)


def tables(found):
    sums, spread, whole, lower = {}, {}, {}, {}
    for (isa, call, case, kind), multiple in found.items():
        shape = " x ".join(map(str, case.shape))
        if isa != bn_ext.available_isas()[-1]:
            lower[(isa, case.dtype, kind), f"{shape} {case.layout}"] = multiple
            continue
        if call is whole_call:
            whole[(shape,), f"batch_norm_{case.op}"] = multiple
            continue
        if kind == NORMAL:
            sums[(shape, case.layout), case.dtype] = multiple
        if case.shape in SPREAD:
            spread[(case.dtype, kind), f"{shape} {case.layout}"] = multiple
    shape = "shape (N, C, ...)"
    return (
        f"`batch_norm_backward_reduce`, normal data:\n\n{table([shape, 'layout'], sums)}\n\n"
        f"The same, exponents of diff_dst that differ:\n\n{table(['dtype', 'diff_dst'], spread)}"
        f"\n\nWhole calls, outputs given, float32, NXC:\n\n{table([shape], whole)}"
        f"\n\n`batch_norm_backward_reduce` at a lower level, of plain sums there:\n\n"
        f"{table(['level', 'dtype', 'diff_dst'], lower)}\n"
    )


def report(options, console):
    """Put the tables between their marks in docs/exact.md."""
    title = pages.machine()
    with pages.counted(console, "rows", len(measured())) as advance:
        found = measure(options.seconds, advance)
    pages.put("exact", "docs/exact.md", f"{title}.\n\n{tables(found)}", console)
