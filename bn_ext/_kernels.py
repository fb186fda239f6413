"""The kernels, one by one: what each must compute, in NumPy, and a way to run it.

`expected` does the arithmetic of src_c/kernels in the same order, so results can be
compared bit for bit. Columns never meet in these kernels, so one reference of many columns
serves every number of columns and every alignment.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core, available_isas

__all__ = [
    "DTYPES",
    "KERNELS",
    "SUMS_KERNELS",
    "TIMED",
    "Case",
    "Dtype",
    "expand_expected",
    "expected",
    "run",
    "run_expand",
    "speed",
    "speeds",
    "sums_kernel_expected",
]

Array = NDArray[Any]

#: (pass, formula). The sums of both formulas are one kernel.
KERNELS = (("sum", "backward"), ("write", "backward"), ("write", "frozen"))
SUMS_KERNELS = ("flush", "add", "sum_columns")
ROWS = 8
#: Bytes of a stretch: so far reach the coefficients of a uniform block.
STRETCH = 128
#: Columns behind the last one to which a kernel may add zeros.
PAD = 64
#: The widest register, in bytes; a unit of columns is one of it.
REGISTER = 64


@dataclass(frozen=True)
class Dtype:
    """A storage type as bits, and the type it is computed in."""

    name: str
    bits: np.dtype[Any]
    number: np.dtype[Any]
    fraction: int  # bits of it
    nan: int
    short: bool = False

    def widen(self, bits: Array) -> Array:
        """Values in the arithmetic type."""
        if self.name == "bfloat16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.name == "float16":
            return bits.view(np.float16).astype(np.float32)
        return bits.view(self.number)

    def narrow(self, values: Array) -> Array:
        """Bits, rounded to nearest even; every NaN the canonical one."""
        if self.name == "bfloat16":
            word = values.view(np.uint32)
            kept = word >> np.uint32(16)
            bits = ((word + np.uint32(0x7FFF) + (kept & np.uint32(1))) >> np.uint32(16)).astype(
                np.uint16
            )
        elif self.name == "float16":
            bits = values.astype(np.float16).view(np.uint16)
        else:
            bits = values.view(self.bits)
        bits = bits.copy()
        bits[np.isnan(values)] = self.nan
        return bits


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
DTYPES = {
    d.name: d
    for d in (
        Dtype("float32", np.dtype(np.uint32), _F32, 23, 0x7FC00000),
        Dtype("float64", np.dtype(np.uint64), _F64, 52, 0x7FF8 << 48),
        Dtype("float16", np.dtype(np.uint16), _F32, 10, 0x7E00, short=True),
        Dtype("bfloat16", np.dtype(np.uint16), _F32, 7, 0x7FC0, short=True),
    )
}


@dataclass
class Case:
    """Operands of a kernel: (rows, columns) bits, (4, columns) coefficients, sums so far."""

    dtype: Dtype
    src: Array
    diff_dst: Array
    coefs: Array
    planes: Array
    float_sums: Array


# ---- what a kernel must compute ---------------------------------------------


def _two_sum(total: Array, lost: Array, term: Array) -> tuple[Array, Array]:
    new = total + term
    added = new - total
    return new, lost + ((total - (new - added)) + (term - added))


def _tree(terms: Array) -> Array:
    """The sum of up to eight rows, as FN(tree) adds them."""
    n = len(terms)
    zero = np.zeros_like(terms[0])

    def two(k: int) -> Array:
        pair: Array = terms[k] + terms[k + 1]
        return pair

    def four(k: int) -> Array:
        return two(k) + two(k + 2)

    left = four(0) if n >= 4 else zero
    if n == ROWS:
        return left + four(4)
    k = n & 4
    right = two(k) if n & 2 else zero
    if n & 1:
        right = right + terms[k + (n & 2)]
    return left + right


def _expected_sums(case: Case, rows: int) -> tuple[Array, Array]:
    """The sums after one more block of `rows` rows."""
    mean = case.coefs[0]
    dy = case.dtype.widen(case.diff_dst)[:rows]
    dy_xc = dy * (case.dtype.widen(case.src)[:rows] - mean)
    planes, float_sums = case.planes.copy(), case.float_sums.copy()
    if case.dtype.short:
        float_sums[0] += _tree(dy)
        float_sums[1] += _tree(dy_xc)
    elif case.dtype.name == "float32":
        for row in dy:
            planes[0] += row
        planes[1] += _tree(dy_xc)
    else:
        for row in dy:
            planes[0], planes[2] = _two_sum(planes[0], planes[2], row)
        planes[1], planes[3] = _two_sum(planes[1], planes[3], _tree(dy_xc))
    return planes, float_sums


def expected(kernel: tuple[str, str], case: Case, rows: int, uniform: bool = False) -> Any:
    """What one block of the first `rows` rows gives: diff_src's bits, or (planes, float_sums)."""
    with np.errstate(all="ignore"):
        if kernel[0] == "sum":
            return _expected_sums(case, rows)
        coefs = case.coefs[:, :1] if uniform else case.coefs
        mean, shift, slope, scale = coefs
        dx = case.dtype.widen(case.diff_dst)[:rows]
        if kernel[1] == "backward":
            xc = case.dtype.widen(case.src)[:rows] - mean
            dx = dx - (shift + xc * slope)
        return case.dtype.narrow(scale * dx)


def sums_kernel_expected(kernel: str, case: Case, other: Array) -> tuple[Array, Array]:
    """What flush, add and sum_columns leave in (planes, float_sums); sum_columns' sums are its column 0."""
    planes, float_sums = case.planes.copy(), case.float_sums.copy()
    loses = case.dtype.name == "float64"
    with np.errstate(all="ignore"):
        if kernel == "flush" and case.dtype.short:
            planes[:2] += float_sums
            float_sums[:] = 0
        elif kernel == "add":
            for k in range(2):
                if loses:
                    total, lost = _two_sum(planes[k], planes[k + 2], other[k])
                    planes[k], planes[k + 2] = total, lost + other[k + 2]
                else:
                    planes[k] += other[k]
        elif kernel == "sum_columns":
            planes = _expected_sum_columns(planes, loses)
    return planes, float_sums


def _expected_sum_columns(planes: Array, loses: bool) -> Array:
    lanes = 8
    columns = -(-planes.shape[1] // lanes) * lanes
    padded = np.zeros((4, columns))
    padded[:, : planes.shape[1]] = planes
    for k in range(2):
        total, lost = np.zeros(lanes), np.zeros(lanes)
        for at in range(0, columns, lanes):
            if loses:
                total, lost = _two_sum(total, lost, padded[k, at : at + lanes])
                lost = lost + padded[k + 2, at : at + lanes]
            else:
                total = total + padded[k, at : at + lanes]
        while len(total) > 1:
            half = len(total) // 2
            a, b = total[:half], total[half:]
            lost = lost[:half] + lost[half:]
            if loses:
                total, lost = _two_sum(a, lost, b)
            else:
                total = a + b
        planes[k, 0] = total[0]
        if loses:
            planes[k + 2, 0] = lost[0]
    return planes


def expand_expected(channel: Array, all_: int, each: int) -> Array:
    """Per-channel values laid out by columns: (all, channels, each), flat."""
    return np.tile(np.repeat(channel, each), all_)


# ---- float_sums one ------------------------------------------------------------


def run(
    isa: str,
    kernel: tuple[str, str],
    case: Case,
    operands: Sequence[Array],
    rows: int,
    columns: int,
    nontemporal: bool = False,
    uniform: bool = False,
    calls: int = 1,
) -> None:
    """Run a kernel on (rows, columns) views of memory; sums go to the case's own arrays."""
    block = (
        [a.ctypes.data for a in operands],
        [a.strides[0] for a in operands],
        [0, 0, 0],
        1,
        rows,
        columns,
        nontemporal,
        uniform,
    )
    coefs = case.coefs
    if uniform:
        coefs = np.repeat(coefs[:, :1], STRETCH // case.dtype.bits.itemsize, axis=1)
    coefs = np.ascontiguousarray(coefs)
    _core._run_kernel(
        isa, case.dtype.name, *kernel, block, coefs.view(np.uint8), case.planes, case.float_sums,
        coefs.shape[1], calls,
    )  # fmt: skip


def run_expand(isa: str, dtype: Dtype, channel: Array, all_: int, each: int, column: Array) -> None:
    """Lay `channel`, of the arithmetic type, out in `column`; either may be bits."""
    _core._run_expand(
        isa, dtype.name, channel.view(np.uint8), all_, len(channel), each, column.view(np.uint8)
    )


# ---- timing one -------------------------------------------------------------

#: (kernel, uniform) that are worth timing by themselves.
TIMED = [(KERNELS[0], False), (KERNELS[1], False), (KERNELS[1], True), (KERNELS[2], False)]
_TENSORS = dict(zip(KERNELS, (2, 3, 2), strict=True))
_COLUMNS = 128


def speed(
    isa: str, dtype: str, kernel: tuple[str, str], uniform: bool, seconds: float = 0.1
) -> float:
    """GB/s of the bytes of src, diff_dst and diff_src that a kernel must touch.

    One thread; eight (sum) or four rows, so few that all is in the first-level cache.
    """
    d = DTYPES[dtype]
    rows = ROWS if kernel[0] == "sum" else ROWS // 2
    # Rows a line further apart than they are long: no two of them in one cache set.
    pitch = _COLUMNS * d.bits.itemsize + REGISTER
    memory = [np.zeros(rows * pitch + 8192, np.uint8) for _ in range(3)]
    # All at one place of their pages: elsewhere loads may wait for stores 4096 bytes apart.
    operands = tuple(
        np.ndarray(
            (rows, _COLUMNS), d.bits, m.data, -m.ctypes.data % 4096, (pitch, d.bits.itemsize)
        )
        for m in memory
    )
    for a in operands[:2]:
        a[:] = d.narrow(np.linspace(-1, 1, a.size).astype(d.number)).reshape(a.shape)
    case = Case(
        d,
        operands[0],
        operands[1],
        np.full((4, _COLUMNS), 0.1, d.number),
        np.zeros((4, _COLUMNS + PAD)),
        np.zeros((2, _COLUMNS + PAD), np.float32),
    )
    calls, best, end = 2000, float("inf"), time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        run(isa, kernel, case, operands, rows, _COLUMNS, uniform=uniform, calls=calls)
        best = min(best, time.perf_counter() - before)
    return 1e-9 * _TENSORS[kernel] * rows * _COLUMNS * d.bits.itemsize * calls / best


def speeds(dtype: str, seconds: float = 0.1) -> Iterator[tuple[str, dict[str, float]]]:
    """What is timed of one dtype, in words, with its speed at each level."""
    for kernel, uniform in TIMED:
        found = {isa: speed(isa, dtype, kernel, uniform, seconds) for isa in available_isas()}
        yield " ".join(kernel) + (", one channel" if uniform else ""), found
