"""Sums of floating-point numbers as fractions have them, and states made by hand."""

from fractions import Fraction

import numpy as np

DIGIT = 40
#: Rows of a state -> digits, and the exponent of the lowest one's unit.
STATES = {11: (8, -160), 57: (54, -1074)}


def rounded(total):
    """To the nearest double, ties to even."""
    try:
        return float(total)
    except OverflowError:
        return np.inf if total > 0 else -np.inf


def exact_sum(terms):
    """The sum of an array's numbers, rounded once."""
    terms = terms.astype(np.float64)
    if np.isnan(terms).any() or {np.inf, -np.inf} <= {*terms[np.isinf(terms)]}:
        return np.nan
    if np.isinf(terms).any():
        return terms[np.isinf(terms)][0]
    return rounded(sum(map(Fraction, terms[terms != 0].tolist()), Fraction(0)))


def exact_sums(*columns):
    """The same by columns."""
    return np.array([[exact_sum(c) for c in terms.T] for terms in columns])


def integer_of(state, s, c):
    """So many units are the sum s of channel c."""
    digits, _ = STATES[len(state)]
    return sum(int(state[k, s, c]) << DIGIT * k for k in range(digits))


def state_of(integers, rows, rng=None):
    """A state of one channel whose two sums are so many units; with rng, digits as additions leave
    them.
    """
    digits, _ = STATES[rows]
    state = np.zeros((rows, 2, 1), np.int64)
    for s, number in enumerate(integers):
        for k in range(digits):
            last = k == digits - 1
            digit = number if last else number % 2**DIGIT
            if rng is not None and not last:
                digit += int(rng.integers(-(2**20), 2**20)) << DIGIT
            state[k, s, 0] = digit
            number = (number - digit) >> DIGIT
    state[-2] = [[1], [0]]
    state[-1] = [[1], [0]]
    return state
