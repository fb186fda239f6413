"""Exact sums against those of integers, limbs and what is rounded."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext._typing import DataFormat
from bn_ext._verify.dtypes import Array, Dtype, known_dtypes
from bn_ext._verify.kernels import WrongBitsError, demand
from bn_ext._verify.problems import at_level
from bn_ext._verify.values import values

__all__ = ["check_level", "units_of"]

INTERFACE: dict[str, Any] = _core._kernel_interface()

#: By rows and by runs: parts of blocks, a few blocks, and enough of them that the way of adding
#: changes and changes back.
SHAPES: list[tuple[tuple[int, ...], DataFormat]] = [
    ((1, 8), "NXC"), ((40, 200), "NXC"), ((700, 130), "NXC"), ((300, 7), "NXC"),
    ((9000, 64), "NXC"), ((2, 3, 48), "NCX"), ((37, 6, 49), "NCX"), ((70, 2, 255), "NCX"),
    ((1, 2, 70_000), "NCX"),
]  # fmt: skip


def units_of(terms: Array, lowest: int) -> int:
    """The sum of finite numbers, in units of 2**lowest; each number is a multiple of that."""
    if not terms.size:
        return 0
    mantissa, exponent = np.frexp(terms.astype(np.float64))
    shift = exponent.astype(np.int64) - 53 - lowest
    order = np.argsort(shift)
    shift, whole = shift[order], np.ldexp(mantissa, 53).astype(np.int64)[order]
    first = np.flatnonzero(np.diff(shift, prepend=shift[0] - 1))
    half = 27  # bits: sums of more would not fit
    upper, lower = (np.add.reduceat(part, first) for part in (whole >> half, whole % (1 << half)))
    total = 0
    for high, low, left in zip(upper.tolist(), lower.tolist(), shift[first].tolist(), strict=True):
        number = (high << half) + low
        total += number << left if left >= 0 else number >> -left
    return total


def _rounded(terms: Array, total: int, lowest: int) -> float:
    """The sum of all terms, to nearest even; `total` is that of the finite ones, in units."""
    other = terms[~np.isfinite(terms)]
    if other.size:
        special: float = sum(other.tolist())
        return special
    try:
        return total / (1 << -lowest)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _check(state: Array, terms: tuple[Array, Array], dtype: Dtype, what: str) -> None:
    """Limbs, and what they are rounded to."""
    limbs, lowest = INTERFACE["limbs"][dtype.name]
    sums = bn_ext.batch_norm_sums(state)
    for s, of in enumerate(terms):
        for c, column in enumerate(of.T):
            total = units_of(column[np.isfinite(column)], lowest)
            found = sum(int(state[k, s, c]) << INTERFACE["limb_bits"] * k for k in range(limbs))
            if found != total:
                raise WrongBitsError(f"{what}: at ({s}, {c}) got {found} units, expected {total}")
            wanted = np.array([_rounded(column, total, lowest)])
            demand(sums[s, c : c + 1], wanted, f"{what}: sum {s} of channel {c}")


def _stretches(dtype: Dtype, rows: int, columns: int, rng: np.random.Generator) -> Array:
    """(rows, columns) bits: one stretch of rows is of other exponents than the next."""
    most = {"float64": 300, "float16": 10}.get(dtype.name, 30)
    normal = rng.standard_normal((rows, columns))
    ends = np.append(np.flatnonzero(rng.random(rows) < 0.005), rows)
    for first, end in zip([0, *ends], ends, strict=False):
        some = normal[first:end]
        shape = some.shape if rng.random() < 0.3 else (1, 1)
        some *= np.exp2(rng.integers(-most, most + 1, shape))
    return dtype.narrow(normal.astype(dtype.number))


def _problems(
    dtype: Dtype, rng: np.random.Generator
) -> Iterator[tuple[Array, Array, tuple[int, ...], DataFormat]]:
    """Both operands as (elements, channels) bits, and the shape that they shall have."""
    for shape, layout in SHAPES:
        channels = shape[-1 if layout == "NXC" else 1]
        rows = math.prod(shape) // channels
        for of in (values, _stretches):
            src, diff_dst = (of(dtype, rows, channels, rng) for _ in "ab")
            yield src, diff_dst, shape, layout


def _shaped(bits: Array, shape: tuple[int, ...], layout: DataFormat, storage: Any) -> Array:
    if layout == "NCX":
        bits = np.moveaxis(bits.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    shaped: Array = np.ascontiguousarray(bits).view(storage).reshape(shape)
    return shaped


def check_exact(isa: str, dtype: Dtype, storage: np.dtype[Any], rng: np.random.Generator) -> int:
    """Check both operations' sums, at the level in use; return the number of calls."""
    calls = 0
    for src, diff_dst, shape, layout in _problems(dtype, rng):
        mean: Array = rng.standard_normal(src.shape[1:]).astype(dtype.number)
        x, y = (_shaped(bits, shape, layout, storage) for bits in (src, diff_dst))
        options: Any = {"data_format": layout, "exact": True}
        with np.errstate(all="ignore"):
            xc, dy = dtype.widen(src) - mean, dtype.widen(diff_dst)
            gradients, moments = (dy, dy * xc), (xc, xc * xc)
        for what, state, terms in (
            ("gradients", bn_ext.batch_norm_backward_reduce(x, y, mean, **options), gradients),
            ("moments", bn_ext.batch_norm_training_reduce(x, mean=mean, **options), moments),
        ):
            _check(state, terms, dtype, f"{isa} exact {what} {dtype.name}: {shape} {layout}")
            calls += 1
    return calls


def check_level(isa: str, seed: int) -> int:
    """Check every dtype at one level; return the number of calls."""
    with at_level(isa):
        return sum(
            check_exact(isa, dtype, storage, np.random.default_rng([seed, *dtype.name.encode()]))
            for dtype, storage in known_dtypes()
        )
