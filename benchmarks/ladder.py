"""From the plain loop to the package, step by step: how much each step gains.

The steps are the package itself with parts of it switched off: the instruction-set level, the
threads, and stores that bypass the cache. Tiles cannot be switched off.
"""

import ctypes

import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext._bench.peers import bn_ext_call, numpy_call
from bn_ext._bench.problems import LAYOUTS, Problem
from bn_ext._bench.timing import least_seconds, markdown

from . import bare_loops, pages

SHAPES = [(50, 256, 56, 56), (50, 64, 56, 56), (50, 256, 14, 14), (8, 64, 28, 28)]
ENDLESS = 1 << 40


def plain_call(library, problem):
    """The textbook loops of bare_loops.c."""
    outer = problem.dims[0] if problem.layout == "NCX" else problem.src.size // problem.mean.size
    inner = problem.src.size // problem.mean.size // outer
    sums = np.empty((2, problem.mean.size))
    arguments = [
        *(ctypes.c_void_p(a.ctypes.data) for a in problem.tensors.values()),
        *(ctypes.c_int64(n) for n in (outer, problem.mean.size, inner)),
        *(ctypes.c_void_p(v.ctypes.data) for v in (*problem.vectors, *problem.out[1:])),
        ctypes.c_float(problem.epsilon),
        ctypes.c_void_p(sums.ctypes.data),
    ]

    def call():
        assert sums is not None  # keeps it alive as long as the call
        library.plain(*arguments)

    return call


def package_call(problem, isa, caches, threads):
    """A call of the package at a level, with assumed cache sizes and with threads.

    If the last-level cache is endless, no store bypasses it.
    """
    call = bn_ext_call(problem, threads)

    def restrained():
        _core._use_isa(isa)
        _core._set_cache_sizes(*caches)
        call()

    return restrained


def steps(library, problem, threads):
    """{description: call}; each has one thing more than the one before."""
    isas = bn_ext.available_isas()
    own = _core._cache_sizes()
    cached = own[0], ENDLESS
    found = {"NumPy formula": numpy_call(problem, 1)}
    found["plain C loops, -O3 -march=native"] = plain_call(library, problem)
    for isa in isas:
        label = f"vectors in rows and columns, {isa}"
        found[label] = package_call(problem, isa, cached, 1)
    found["stores that bypass the cache"] = package_call(problem, isas[-1], own, 1)
    if threads > 1:
        found[f"{threads} threads"] = package_call(problem, isas[-1], own, threads)
    return found


def measure(library, threads, seconds, advance):
    """{(shape, layout): {step: seconds}}"""
    found, own = {}, _core._cache_sizes()
    for shape in SHAPES:
        for layout in LAYOUTS:
            problem = Problem(shape, layout, "float32")
            found[shape, layout] = least_seconds(steps(library, problem, threads), seconds)
            advance()
    _core._use_isa(bn_ext.available_isas()[-1])
    _core._set_cache_sizes(*own)
    return found


def table(found):
    heading = ["step", *(f"{'x'.join(map(str, shape))} {layout}" for shape, layout in found)]
    lines = [
        [step, *(f"{1e3 * times[step]:.3g}" for times in found.values())]
        for step in next(iter(found.values()))
    ]
    return markdown(heading, lines)


def report(options, console):
    title = pages.machine()
    threads, library = max(options.threads), bare_loops.load()
    if library is None:
        raise SystemExit("ladder: needs a C compiler")
    with pages.counted(console, "problems", len(SHAPES) * len(LAYOUTS)) as advance:
        found = measure(library, threads, options.seconds, advance)
    text = f"{title}; milliseconds, float32\n\n{table(found)}\n"
    console.print(text, markup=False, soft_wrap=True)
