"""Sums of floating-point numbers, computed exactly, and states made by hand."""

from fractions import Fraction
from math import isqrt

import numpy as np
from cases import dtype

import bn_ext._core as _core

LIMB = 40
#: A state's number of rows -> (number of limbs, exponent of the lowest limb's unit). The first two
#: are for gradients, the others for moments.
STATES = {11: (8, -160), 57: (54, -1080), 20: (17, -360), 111: (108, -2200)}
MOMENTS = (20, 111)
#: A state's number of rows -> its format.
STATE_FORMATS = {
    format.rows: format
    for format in (_core.STATE_FORMATS[n, m] for n in ("float32", "float64") for m in (False, True))
}
#: The lowest exponent that mantissas() returns: for 2**-1074, scaled to a mantissa of 53 bits.
LOWEST = -1074 - 52
MOST_PARTS, MOST_TERMS = 2**20 - 1, 2**43 - 1
#: A state's number of rows -> k: each term's magnitude is less than 2**k.
BEYOND = {11: 128, 57: 1024, 20: 256, 111: 2048}
#: A state's number of rows -> bits of the integers that its limbs hold: sums of 2**43 terms.
BITS = {rows: BEYOND[rows] + 43 - lowest for rows, (_, lowest) in STATES.items()}


def rounded(total):
    try:
        return float(total)
    except OverflowError:
        return np.inf if total > 0 else -np.inf


def exact_sum(terms, *, squared=False):
    """The sum of an array's numbers, or of their squares, rounded once."""
    terms = terms.astype(np.float64)
    infinite = terms[np.isinf(terms)] ** (1 + squared)
    if np.isnan(terms).any() or {np.inf, -np.inf} <= {*infinite}:
        return np.nan
    if infinite.size:
        return infinite[0]
    unit = LOWEST * (1 + squared)
    return rounded(Fraction(units_of(terms, unit, squared=squared), 2**-unit))


def exact_sums(*columns):
    return np.array([[exact_sum(c) for c in terms.T] for terms in columns])


def statistics(column):
    # In integers (ten times as fast): numbers in units of 2**LOWEST, deviations times n.
    n, (whole, shift) = len(column), mantissas(column)
    numbers = [x << up for x, up in zip(whole.tolist(), (shift - LOWEST).tolist(), strict=True)]
    total = sum(numbers)
    squares = sum((n * x - total) ** 2 for x in numbers)
    return Fraction(total, n << -LOWEST), Fraction(squares, n**3 << -2 * LOWEST)


def rstd(variance, epsilon):
    """1 / sqrt(variance + epsilon) of fractions, to 900 digits."""
    spread = Fraction(variance) + Fraction(epsilon)
    return Fraction(isqrt((spread.denominator << 6000) // spread.numerator), 1 << 3000)


def gradient(x, dy, mean, variance, gamma, epsilon):
    """A channel's diff_src, diff_gamma and diff_beta as fractions, from numbers of any kind."""
    x, dy = [*map(Fraction, x)], [*map(Fraction, dy)]
    r = rstd(variance, epsilon)
    xhat = [(a - Fraction(mean)) * r for a in x]
    diff_beta, diff_gamma = sum(dy), sum(a * b for a, b in zip(dy, xhat, strict=True))
    diff_src = [
        Fraction(gamma) * r * (a - (diff_beta + b * diff_gamma) / len(x))
        for a, b in zip(dy, xhat, strict=True)
    ]
    return diff_src, diff_gamma, diff_beta


def far_from_0(rng, name):
    """(elements, channels): deviations far below the mean, or none; some sums overflow doubles."""
    n = 1000
    ones = np.ones(n)
    columns = [
        rng.standard_normal(n) + 2.0 ** {"float64": 50, "float32": 22}.get(name, 6),
        1 + ones.cumsum() % 2 * 2.0 ** -{"float64": 52, "float32": 23, "float16": 10}.get(name, 7),
        np.where(ones.cumsum() == 7, 0.1 * (1 + 2.0**-9), 0.1),
        *(c * ones for c in (0.1, 1 / 3, -np.pi, 1763e3, 5e-324 * 7)),
    ]
    if name == "float64":
        columns += [
            1.7e9 + rng.random(n),  # seconds since 1970
            1e14 + rng.standard_normal(n) / 100,
            1.763e18 + 256 * ones,
            1e306 * ones,
            1.7e308 * ones,
            np.finfo(float).max * ones,
            1e306 + 1e151 * rng.standard_normal(n),
        ]
    with np.errstate(all="ignore"):
        return np.stack(columns, axis=1).astype(dtype(name))


def mantissas(terms):
    """(integers of 53 bits, exponents of their units) of finite numbers."""
    mantissa, exponent = np.frexp(terms.astype(np.float64))
    return np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(np.int64) - 53


def units_of(terms, lowest, *, squared=False):
    """The sum of finite numbers, or of their squares, in units of 2**lowest. Each summand must be a
    multiple of this unit.
    """
    if not terms.size:
        return 0
    whole, shift = mantissas(terms)
    if squared:
        return sum_shifted(whole.astype(object) ** 2, 2 * shift - lowest)
    shift -= lowest
    order = np.argsort(shift)
    shift, whole = shift[order], whole[order]
    first = np.flatnonzero(np.diff(shift, prepend=shift[0] - 1))
    half = 27  # bits: int64 would not hold sums of whole mantissas
    upper, lower = (np.add.reduceat(part, first) for part in (whole >> half, whole % (1 << half)))
    return sum_shifted(
        [(high << half) + low for high, low in zip(upper.tolist(), lower.tolist(), strict=True)],
        shift[first],
    )


def sum_shifted(numbers, shift):
    """The sum of numbers * 2**shift; each product must be an integer."""
    return sum(
        number << left if left >= 0 else number >> -left
        for number, left in zip(numbers, shift.tolist(), strict=True)
    )


def integer_of(state, s, c):
    """The sum s of channel c, in units of the lowest limb."""
    limbs, _ = STATES[len(state)]
    return sum(int(state[k, s, c]) << LIMB * k for k in range(limbs))


def are_units(state, s, c, terms, *, squared=False, times=1):
    """Is the sum s of channel c that of these terms, or of their squares, so many times?"""
    units = units_of(terms, STATES[len(state)][1], squared=squared)
    return integer_of(state, s, c) == times * units


def state_of(integers, rows, rng=None):
    """A state of one channel with these sums, in units of the lowest limb. With rng, its limbs are
    not carried, as after adding many parts.
    """
    limbs, _ = STATES[rows]
    state = np.zeros((rows, 2, 1), np.int64)
    for s, number in enumerate(integers):
        for k in range(limbs):
            last = k == limbs - 1
            limb = number if last else number % 2**LIMB
            if rng is not None and not last:
                limb += int(rng.integers(MOST_PARTS - 1)) << LIMB
            state[k, s, 0] = limb
            number = (number - limb) >> LIMB
    state[-2] = [[MOST_TERMS], [0]]
    state[-1] = [[1 if rng is None else MOST_PARTS], [0]]
    return state
