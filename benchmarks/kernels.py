"""GB/s of each kernel, at each level, with data in the first-level cache: to tune a single loop."""

import math
import time

import numpy as np
from oracle import running
from oracle.arithmetic import GROUP, ROWS
from oracle.dtypes import DTYPES
from oracle.formulas import COEFS, GATE, KERNELS, OPERANDS, SUMS, needs
from oracle.values import Case, padded

from bn_ext import available_isas
from bn_ext._bench.problems import aligned
from bn_ext._bench.timing import markdown

from . import pages

_MANY = 4
#: (kernel, uniform): what is timed. A write kernel that takes many coefficients is timed twice:
#: with coefficients that differ from column to column, and with uniform ones.
TIMED = [
    (kernel, uniform)
    for kernel in KERNELS
    for uniform in (False, True)
    if not uniform or (kernel[0] == "write" and len(needs(kernel)[2]) >= _MANY)
]
_COLUMNS = 128
#: Calls between two readings of the clock.
_CALLS = 2000


def _operands(dtype, rows):
    """Operands at the same offset in their pages. At other offsets, a load could have the
    address of an earlier store, modulo 4096, and wait for it.

    The pitch of rows is their length plus a cache line, so that no two begin in one cache set.
    """
    room = _COLUMNS + running.REGISTER // dtype.bits.itemsize
    found = {
        name: aligned((rows, room), dtype.bits)[:, :_COLUMNS] for name in OPERANDS if name != GATE
    }
    some = np.linspace(-1, 1, rows * _COLUMNS).astype(dtype.number).reshape(rows, _COLUMNS)
    for operand in found.values():
        operand[:] = dtype.narrow(some)
    some_bits, strides = np.full(rows * room, 0x69, np.uint8), found["src"].strides
    found[GATE] = running.Bits(some_bits, dtype.bits.itemsize, 0, strides)
    return found


def speed(isa, dtype, kernel, uniform, seconds):
    """GB/s of a kernel: the bytes of the operands that it reads and writes.

    One thread, and so little data that it fits the first-level cache: a group of blocks (sum), or
    one row (write).
    """
    pass_, formula = kernel
    rows = ROWS * GROUP if pass_ == "sum" else 1
    operands = _operands(dtype, rows)
    case = Case(
        dtype,
        operands,
        np.full((len(COEFS), _COLUMNS), 0.1, dtype.number),
        padded(np.zeros((2 * SUMS[formula], _COLUMNS))),
    )
    span = running.Span("one for all" if uniform else "as a ring", _COLUMNS, 0)

    def calls():
        if pass_ == "sum":
            running.run_sum(isa, formula, case, operands, ROWS, _CALLS)
        else:
            running.run_write(isa, formula, case, operands, span, _CALLS)

    best, end = math.inf, time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        calls()
        best = min(best, time.perf_counter() - before)
    reads, writes, _ = needs(kernel)
    touched = sum(operands[name].nbytes for name in {*reads, *writes} - {GATE})
    return 1e-9 * touched * _CALLS / best


def measure(dtypes, seconds, advance):
    """{(dtype, kernel): {level: GB/s}}"""
    found = {}
    for name in dtypes:
        for kernel, uniform in TIMED:
            what = " ".join(kernel) + (", one channel" if uniform else "")
            found[name, what] = {
                isa: speed(isa, DTYPES[name], kernel, uniform, seconds) for isa in available_isas()
            }
            advance()
    return found


def table(found):
    isas = list(next(iter(found.values())))
    lines = [[*key, *(f"{of_levels[isa]:.0f}" for isa in isas)] for key, of_levels in found.items()]
    return markdown(["dtype", "kernel", *isas], lines)


def report(options, console):
    title = pages.machine()
    with pages.counted(console, "kernels", len(TIMED) * len(options.dtypes)) as advance:
        found = measure(options.dtypes, options.seconds / 10, advance)
    text = f"{title}; GB/s, one thread, in the first-level cache\n\n{table(found)}\n"
    console.print(text, markup=False, soft_wrap=True)
