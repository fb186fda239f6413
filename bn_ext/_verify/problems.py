"""The data of whole calls: problems in every form, with the same bits on every machine."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import bn_ext
from bn_ext import _core
from bn_ext._typing import DataFormat
from bn_ext._verify.dtypes import Array, Dtype

__all__ = [
    "SEAMS", "Problem", "at_level", "exact_problems", "large_problems", "moderate_problems",
    "numbers",
]  # fmt: skip

Shapes = list[tuple[tuple[int, ...], DataFormat]]
Problem = tuple[Array, Array, DataFormat]  # src, diff_dst

#: Each form of src_c/plan.c, and lengths on both sides of every limit at which a problem
#: takes another form, or splits its sums in another way.
SHAPES: Shapes = [
    ((1, 8), "NXC"), ((3, 5), "NXC"), ((300, 7), "NXC"), ((40, 200), "NXC"), ((5000, 16), "NXC"),
    ((700, 127), "NXC"), ((700, 128), "NXC"), ((3000, 9), "NXC"),
    ((2, 3, 5), "NCX"), ((37, 6, 7, 7), "NCX"), ((300, 3, 49), "NCX"),
    ((2, 3, 47), "NCX"), ((2, 3, 48), "NCX"), ((9, 3, 143), "NCX"), ((9, 3, 144), "NCX"),
    ((70, 2, 255), "NCX"), ((70, 2, 256), "NCX"), ((1, 3, 500), "NCX"), ((70, 2, 1024), "NCX"),
    ((1, 2, 70001), "NCX"), ((2, 2, 1500), "NCX"), ((2, 2, 70001), "NCX"), ((11, 1, 13), "NCX"),
    ((3, 2, 9000), "NCX"), ((9, 3, 20, 20), "NCX"), ((4, 2, 40000), "NCX"),
]  # fmt: skip
#: With gaps in memory along all axes.
GAPPED: Shapes = [
    ((6, 50, 7), "NXC"), ((3, 5, 140), "NXC"), ((40, 3, 5, 6), "NCX"),
    ((2, 2, 30, 90), "NCX"), ((5, 2, 30, 90), "NCX"),
]  # fmt: skip


def _large(size: int) -> Shapes:
    """Large shapes: how sums are split depends on the number of tasks and the bytes of a strand."""
    return [
        ((20_000, 128), "NXC"), ((67_100, 128), "NXC"), ((17_500, 4096 // size), "NXC"),
        ((300, 2, 1100), "NCX"), ((3, 2, 200_000), "NCX"), ((3, 64, 16_900), "NCX"),
    ]  # fmt: skip


#: Problems whose last chunk (src_c/plan.c) ends within a group. In the first, a channel has two
#: runs; in the second, the last strand has three rows fewer than the others.
SEAMS: Shapes = [((2, 2, 20_000), "NCX"), ((19_929, 128), "NXC")]
#: For exact sums, by rows and by runs: parts of blocks, a few blocks, and so many blocks that the
#: method of addition changes, and later changes back.
EXACT: Shapes = [
    ((1, 8), "NXC"), ((40, 200), "NXC"), ((700, 130), "NXC"), ((300, 7), "NXC"),
    ((9000, 64), "NXC"), ((2, 3, 48), "NCX"), ((37, 6, 49), "NCX"), ((70, 2, 255), "NCX"),
    ((1, 2, 70_000), "NCX"),
]  # fmt: skip
#: How many adjacent elements have exponents of the same kind.
PATCH = 700


#: (first, number): the data of a digest is in 2^first ... 2^(first + number), evenly over the
#: exponents. The range is so wide that sums must be rounded, which reveals the order of additions,
#: but no product of two elements overflows. The first exponent of float16 stands for subnormals.
EXPONENTS = {
    "float32": (-20, 40), "float64": (-40, 80), "float16": (-15, 19), "bfloat16": (-16, 32),
}  # fmt: skip
#: Where the random bits of src and of diff_dst begin.
STARTS = (1, 1 << 40)


@contextmanager
def at_level(isa: str) -> Iterator[None]:
    """A context whose calls run at this instruction-set level."""
    before = bn_ext.get_isa()
    _core._use_isa(isa)
    try:
        yield
    finally:
        _core._use_isa(before)


def _scrambled(count: int, start: int) -> Array:
    """Random bits, from integers alone: the same on every machine."""
    mixed = np.arange(start, start + count, dtype=np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def numbers(dtype: Dtype, count: int, start: int, exponents: tuple[int, int]) -> Array:
    """Bits of `count` numbers of either sign, evenly over a range of exponents."""
    first, number = exponents
    sign_bit = 8 * dtype.bits.itemsize - 1
    lowest = first + (1 << (sign_bit - dtype.fraction - 1)) - 1
    fraction = _scrambled(count, start) & np.uint64((1 << dtype.fraction) - 1)
    other = _scrambled(count, start + (1 << 60))
    exponent = np.uint64(lowest) + (other >> np.uint64(32)) % np.uint64(number)
    sign = (other & np.uint64(1)) << np.uint64(sign_bit)
    bits: Array = sign | exponent << np.uint64(dtype.fraction) | fraction
    return bits.astype(dtype.bits)


def _cancel(diff_dst: Array, layout: DataFormat, sign: Array) -> None:
    """Let every third channel sum to nearly zero, so that rounding errors show."""
    channels = np.moveaxis(diff_dst, -1 if layout == "NXC" else 1, 0)[1::3]
    rows = np.moveaxis(channels, 1 if channels.shape[1] > 1 else -1, 0)
    half = len(rows) // 2
    rows[half : 2 * half] = rows[:half] ^ sign


def moderate_problems(dtype: Dtype, storage: np.dtype[Any]) -> Iterator[Problem]:
    """Problems of moderate size."""
    sign = dtype.bits.type(1 << (8 * dtype.bits.itemsize - 1))
    for gap, shapes in ((0, SHAPES), (3, GAPPED)):
        for shape, layout in shapes:
            room = [n + gap for n in shape]
            src, diff_dst = (
                numbers(dtype, math.prod(room), start, EXPONENTS[dtype.name])
                .reshape(room)[tuple(slice(n) for n in shape)]
                for start in STARTS
            )  # fmt: skip
            _cancel(diff_dst, layout, sign)
            yield src.view(storage), diff_dst.view(storage), layout


def large_problems(
    dtype: Dtype, storage: np.dtype[Any], shapes: Shapes | None = None
) -> Iterator[Problem]:
    """Large problems, or those of `shapes`. Rows overlap, to save memory."""
    for shape, layout in shapes or _large(storage.itemsize):
        steps = [8 * math.prod(shape[1 + i : -1]) for i in range(len(shape) - 1)] + [1]
        room = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        strides = [step * storage.itemsize for step in steps]
        src, diff_dst = (
            numbers(dtype, room, start, EXPONENTS[dtype.name]).view(storage) for start in STARTS
        )
        yield as_strided(src, shape, strides), as_strided(diff_dst, shape, strides), layout


def exact_problems(dtype: Dtype, storage: np.dtype[Any]) -> Iterator[Problem]:
    """Most patches have few exponents and take the fastest method of addition. Others have many
    exponents, or numbers that are nearly too large, or numbers whose squares are nearly too large,
    or all exponents: also those of subnormal numbers, Inf and NaN.
    """
    top = 1 << (8 * dtype.bits.itemsize - 1 - dtype.fraction)
    kinds = [(0, 2), EXPONENTS[dtype.name], (top // 2 - 4, 3), (top // 4 - 3, 3)]
    kinds += [(1 - top // 2, top)]
    for shape, layout in EXACT:
        count = math.prod(shape)
        kind = _scrambled(-(-count // PATCH), count) % np.uint64(10)
        which = np.repeat(np.maximum(kind, 5) - 5, PATCH)[:count].astype(int)
        src, diff_dst = (
            np.choose(which, [numbers(dtype, count, start, kind) for kind in kinds])
            .reshape(shape).view(storage) for start in STARTS
        )  # fmt: skip
        yield src, diff_dst, layout
