"""The data of kernels: numbers of every kind, and Case, which holds them."""

from dataclasses import dataclass, replace

import numpy as np

from oracle import compiled
from oracle.dtypes import Array, Dtype
from oracle.formulas import COEFS, GATE, INPUTS

#: A kernel may add 0 to this many columns past the last one.
PAD: int = compiled.interface()["pad"]


def padded(columns: Array) -> Array:
    """A copy, followed by PAD columns of zeros."""
    return np.pad(columns, ((0, 0), (0, PAD)))


@dataclass
class Case:
    """What kernels read: (rows, columns) bits by operand, coefficients, sums so far.

    coefs is (COEFS, columns) in the arithmetic type. planes is (2 x sums, columns) in float64: the
    sums, then the rounding errors of each.
    """

    dtype: Dtype
    operands: dict[str, Array]
    coefs: Array
    planes: Array

    def with_columns(self, columns: int) -> "Case":
        """A copy with its own sums for the first columns, and padding after them."""
        return replace(self, planes=padded(self.planes[:, :columns]))


def boundary(dtype: Dtype) -> Array:
    """Bits at the edges of a format: zeros, subnormals, ones, the largest, Inf, NaNs."""
    size = 8 * dtype.bits.itemsize
    fraction = dtype.fraction
    infinite = ((1 << (size - 1 - fraction)) - 1) << fraction
    one = (infinite >> 1) & ~((1 << fraction) - 1) & infinite
    positive = [0, 1, (1 << fraction) - 1, 1 << fraction, one - 1, one, one + 1, infinite - 1]
    positive += [infinite - (1 << fraction), infinite, infinite + 1, infinite | 1 << (fraction - 1)]
    positive += [infinite | ((1 << fraction) - 1)]
    bits = [p | sign << (size - 1) for p in positive for sign in (0, 1)]
    return np.array(bits, dtype.bits)


def values(dtype: Dtype, rows: int, columns: int, rng: np.random.Generator) -> Array:
    """(rows, columns) bits; each column is of one kind, with kinds in random order."""
    normal = rng.standard_normal((rows, columns)).astype(dtype.number)
    few = rng.integers(-8, 9, (rows, columns)).astype(dtype.number)
    cancelling = np.where(np.arange(rows)[:, None] % 2, -normal[:1], normal[:1])
    wide = normal * np.exp2(rng.integers(-14, 15, (rows, columns))).astype(dtype.number)
    kinds = [dtype.narrow(np.ascontiguousarray(k)) for k in (normal, few, cancelling, wide)]
    anything = rng.integers(0, np.iinfo(dtype.bits).max, (rows, columns), dtype.bits)
    kinds += [rng.choice(boundary(dtype), (rows, columns)), anything]
    kind = rng.permutation(np.arange(columns) % (len(kinds) + 3))
    numbers = kinds[0].copy()
    for k, bits in enumerate(kinds):
        numbers[:, kind == k] = bits[:, kind == k]
    return numbers


def case_of(dtype: Dtype, rows: int, columns: int, rng: np.random.Generator, sums: int = 1) -> Case:
    """Values of every kind for every operand that any formula reads; a gate gets zeros and ones.

    `sums` is the number of sums, which start from random values.
    """
    operands = {name: values(dtype, rows, columns, rng) for name in INPUTS if name != GATE}
    operands[GATE] = rng.integers(0, 2, (rows, columns), dtype.bits)
    return Case(
        dtype,
        operands,
        values(dtype.computed, len(COEFS), columns, rng).view(dtype.number),
        rng.standard_normal((2 * sums, columns)),
    )
