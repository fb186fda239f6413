"""States: integers, and the doubles they round to."""

import functools
import operator
import re
from fractions import Fraction

import numpy as np
import pytest
from exact_sums import (
    BEYOND,
    BITS,
    LIMB,
    MOMENTS,
    MOST_PARTS,
    STATES,
    integer_of,
    rounded,
    state_of,
)  # fmt: skip

import bn_ext

pytestmark = pytest.mark.quick


def sums_of(integers, rows, rng=None):
    return bn_ext.batch_norm_sums(state_of(integers, rows, rng))[:, 0]


def value(integer, rows):
    return rounded(Fraction(integer) * Fraction(2) ** STATES[rows][1])


@pytest.mark.parametrize("rows", STATES)
def test_integers_of_every_size(rng, rows):
    """Integers are rounded as fractions are, whatever limbs hold them."""
    for _ in range(600):
        bits = int(rng.integers(1, BITS[rows] - 8))
        integers = [int.from_bytes(rng.bytes(bits // 8 + 1)) >> int(rng.integers(8)) for _ in "ab"]
        integers = [i * int(sign) for i, sign in zip(integers, rng.choice([1, -1], 2), strict=True)]
        expected = [value(i, rows) for i in integers]
        assert sums_of(integers, rows).tolist() == expected
        assert sums_of(integers, rows, rng).tolist() == expected


@pytest.mark.parametrize("rows", STATES)
def test_ties(rows):
    """Ties round to even; lower bits break ties. Random data never comes so near to a tie."""
    for top in range(54, BITS[rows] - 2, 7):
        for odd in (0, 1):
            kept = (1 << 52 | odd) << (top - 52)
            half = 1 << (top - 53)
            for beside in (0, 1, -1, half >> 1, -(half >> 1)):
                for sign in (1, -1):
                    integer = sign * (kept + half + beside)
                    expected = value(integer, rows)
                    assert sums_of([integer, -integer], rows).tolist() == [expected, -expected]


@pytest.mark.parametrize("rows", STATES)
def test_nothing_is_plus_zero(rows):
    assert not np.signbit(sums_of([0, 0], rows)).any()


@pytest.mark.parametrize("rows", [57, 111])
def test_the_ends_of_float64(rows):
    _, lowest = STATES[rows]
    largest, half = ((2**53 - 1) << (971 - lowest)), 1 << (970 - lowest)
    most, tiny = np.finfo(float).max, 1 << (-1074 - lowest)
    assert sums_of([largest, -largest], rows).tolist() == [most, -most]
    assert sums_of([largest + half - 1, -largest - half], rows).tolist() == [most, -np.inf]
    found = sums_of([tiny, -(2**52 - 1) * tiny], rows).tolist()
    assert found == [2.0**-1074, -(2.0**-1022) + 2.0**-1074]
    # Odd multiples of half the smallest number are rounded to even, unless lower bits decide.
    for units, expected in ((1, 0), (3, 2), (5, 2), (2**53 - 1, 2**52), (2**53 + 1, 2**52)):
        for below, up in ((0, 0), (1, units % 4 == 1), (-1, -(units % 4 == 3))):
            found = sums_of([units * tiny // 2 + below, 0], rows)[0]
            assert found == (expected + up) * 2.0**-1074, (units, below)


@pytest.mark.parametrize("rows", STATES)
@pytest.mark.parametrize("flags", range(8))
def test_flags(rows, flags):
    """NaN wins, both infinities make a NaN, and all of a sum's 2**20 - 1 parts may have flags."""
    state = state_of([7, -7], rows)
    many = 2**20 - 1
    state[-3, 0] = sum(many << 20 * i for i in range(3) if flags >> i & 1)
    expected = {0: value(7, rows), 2: np.inf, 4: -np.inf}.get(flags, np.nan)
    found = bn_ext.batch_norm_sums(state)
    assert np.array_equal(found[:, 0], [expected, value(-7, rows)], equal_nan=True)
    canonical = bn_ext.batch_norm_canonical(state)
    assert canonical[-3, 0, 0] == sum(1 << 20 * i for i in range(3) if flags >> i & 1)


@pytest.mark.parametrize("rows", STATES)
def test_canonical_limbs(rng, rows):
    """The same integer has the same limbs; the caller's array is left alone."""
    for integer in (-1, 5, -(2**200) + 3, 2**300 - 1):
        loose, own = state_of([integer, -integer], rows, rng), state_of([integer, -integer], rows)
        before = loose.copy()
        assert np.array_equal(bn_ext.batch_norm_canonical(loose), own)
        assert np.array_equal(loose, before)


def test_parts_are_counted():
    part = bn_ext.batch_norm_training_reduce(np.ones((3, 2)), exact=True)
    most = functools.reduce(operator.add, [part] * 5) * ((2**20 - 1) // 5)
    assert bn_ext.batch_norm_count(most) == 3 * (2**20 - 1)
    assert bn_ext.batch_norm_sums(most).tolist() == [[3 * (2**20 - 1)] * 2] * 2
    with pytest.raises(ValueError, match=r"state.*2\*\*20 - 1 states, got a sum of 1048576"):
        bn_ext.batch_norm_sums(most + part)
    again = bn_ext.batch_norm_canonical(most) + part
    assert bn_ext.batch_norm_sums(again).tolist() == [[3 * 2**20] * 2] * 2


@pytest.mark.parametrize("part", ["count", "parts"])
def test_too_many_elements_and_numbers_below_0(part):
    """Refused: 2**43 elements or more in an allowed number of parts; a negative number of parts."""
    nine = bn_ext.batch_norm_training_reduce(np.zeros((9, 2)), exact=True)
    many = bn_ext.batch_norm_canonical(nine * MOST_PARTS)
    assert bn_ext.batch_norm_count(many * (MOST_PARTS - 2**18)) == 9 * MOST_PARTS * 786431
    wrong = many * MOST_PARTS
    if part == "parts":
        wrong = nine.copy()
        wrong[-1, 0] = -1
    for function in FUNCTIONS:
        message = (
            "2[*][*]20 - 1 states, got a sum of -1" if part == "parts" else "fewer than 2[*][*]43"
        )
        with pytest.raises(ValueError, match=f"state: expected a .*{message}"):
            function(wrong)


# ---- limbs that somebody made up -----------------------------------------------------


def data_of(rows):
    return np.float64 if rows in (57, 111) else np.float32


def honest(rows, channels, parts):
    """A state of this many parts of two zeros each."""
    zeros = np.zeros((2, channels), data_of(rows))
    if rows in MOMENTS:
        return bn_ext.batch_norm_training_reduce(zeros, exact=True) * parts
    return bn_ext.batch_norm_backward_reduce(zeros, zeros, zeros[0], exact=True) * parts


def used(state):
    """What is made of a state: statistics, or a gradient."""
    if len(state) in MOMENTS:
        return bn_ext.batch_norm_training_stats(state)
    zeros = np.zeros((1, state.shape[2]), data_of(len(state)))
    return bn_ext.batch_norm_backward_apply(
        zeros, zeros, zeros[0], zeros[0], None, state, epsilon=1.0
    )


def may_be_moments(state, count):
    """Are squares as large as the sums demand?"""
    _, lowest = STATES[len(state)]
    sums = ([integer_of(state, s, c) for s in (0, 1)] for c in range(state.shape[2]))
    return all(q >= 0 and count * q << -lowest >= s * s for s, q in sums)


def refused_or_right(state, count):
    """Do all functions refuse the state? If not, the sums must be those of its limbs."""
    rows, _, channels = state.shape
    found = []
    for call in (bn_ext.batch_norm_sums, bn_ext.batch_norm_canonical, used):
        try:
            found.append(call(state))
        except ValueError as error:
            expected = r"(state|sums): the integers of channel \d+ are impossible"
            assert re.search(expected, str(error))  # noqa: PT017
    if not found:
        return True
    sums, canonical, *_ = found
    assert len(found) == 2 + (rows not in MOMENTS or may_be_moments(state, count))
    for c, s in np.ndindex(channels, 2):
        integer = integer_of(state, s, c)
        assert integer_of(canonical, s, c) == integer
        assert sums[s, c] == value(integer, rows)
    return False


def test_squares_below_0():
    """Negative sums of squares are refused, however large."""
    state = bn_ext.batch_norm_training_reduce(np.ones((3, 2)), exact=True)
    for limb in (-1, -3):
        state[-4, 1, 1] = limb
        with pytest.raises(ValueError, match="state: the integers of channel 1 are impossible"):
            bn_ext.batch_norm_training_stats(state)


def test_flags_that_no_parts_have():
    """A sum has flags only if it has terms; squares have flags if and only if their numbers do."""
    part = bn_ext.batch_norm_training_reduce(np.ones((3, 2)), exact=True)
    numbers, squares, empty = part.copy(), part.copy(), part * 0
    numbers[-3, 0, 0] = squares[-3, 1, 0] = empty[-3, 0, 0] = 1
    for function, state in (
        (bn_ext.batch_norm_training_stats, numbers),
        (bn_ext.batch_norm_training_stats, squares),
        (bn_ext.batch_norm_training_stats, empty),
        (bn_ext.batch_norm_sums, empty),
        (bn_ext.batch_norm_canonical, empty),
    ):
        with pytest.raises(ValueError, match=r"state: the integers of channel \d+ are impossible"):
            function(state)


@pytest.mark.parametrize("rows", STATES)
def test_limbs_of_any_size_are_refused_or_summed(rng, rows):
    """Sums never overflow, and never change their sign."""
    limbs, _ = STATES[rows]
    refused = set()
    for _ in range(300):
        channels, parts = (int(rng.integers(1, n)) for n in (40, 2 ** int(rng.integers(1, 21))))
        state = honest(rows, channels, parts)
        for _ in range(3):
            at = tuple(int(rng.integers(n)) for n in (limbs, 2, channels))
            size = 2 ** int(rng.integers(64))
            state[at] = int(rng.integers(-size if rng.random() < 0.1 else 0, size))
        refused.add(refused_or_right(state, 2 * parts))
    assert refused == {True, False}


@pytest.mark.parametrize("rows", STATES)
def test_the_largest_limbs(rows):
    """A sum of `parts` states can have limbs from `least` to `most`; others are refused."""
    limbs, lowest = STATES[rows]
    for parts in (1, 5, MOST_PARTS):
        terms = 2 * parts
        highest = (terms << BEYOND[rows] - lowest) >> LIMB * (limbs - 1)
        for k, least, most in (
            (0, 0, parts * (2**LIMB - 1)),
            (limbs - 2, 0, parts * (2**LIMB - 1)),
            (limbs - 1, -highest - parts, highest),
        ):
            for limb, wrong in (
                (least, False), (most, False), (least - 1, True), (most + 1, True),
                (-(2**63), True), (2**63 - 1, True),
            ):  # fmt: skip
                state = honest(rows, 33, parts)
                state[k, :, 32] = limb
                assert refused_or_right(state, terms) == wrong, (parts, k, limb)
    empty = bn_ext.batch_norm_training_reduce(np.zeros((0, 3), np.float32), exact=True)
    assert not bn_ext.batch_norm_sums(empty).any()
    empty[2] = 1
    with pytest.raises(ValueError, match=r"the integers of channel \d+ are impossible"):
        bn_ext.batch_norm_sums(empty)


STATE = np.zeros((20, 2, 3), np.int64)
FUNCTIONS = [
    bn_ext.batch_norm_sums,
    bn_ext.batch_norm_count,
    bn_ext.batch_norm_canonical,
    bn_ext.batch_norm_training_stats,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (STATE.astype(float), TypeError, "state: expected int64, got float64"),
        (
            STATE.astype(STATE.dtype.newbyteorder()),
            TypeError,
            r"state: expected native byte order, got .i8; pass np.asarray\(state, ",
        ),
        (STATE[1:], ValueError, r"state: expected shape \(k, 2, C\), where k is 11, 57, 20 or 111"),
        (STATE[:, :1], ValueError, r"state: expected shape \(k, 2, C\)"),
        (STATE[0], ValueError, r"state: expected shape \(k, 2, C\)"),
        (STATE - 1, ValueError, "state"),
        (None, TypeError, "state: expected an array"),
    ],
)
def test_what_is_no_state(function, state, error, message):
    with pytest.raises(error, match=message):
        function(state)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_strides(function):
    part = bn_ext.batch_norm_training_reduce(np.ones((3, 4)), exact=True)
    spread = np.zeros((111, 4, 8), np.int64)[:, ::2, ::2]
    spread[...] = part
    assert repr(function(spread)) == repr(function(part))


def test_no_channels():
    state = bn_ext.batch_norm_training_reduce(np.ones((3, 0)), exact=True)
    assert state.shape == (111, 2, 0)
    assert bn_ext.batch_norm_sums(state).shape == (2, 0)
    assert bn_ext.batch_norm_canonical(state).shape == (111, 2, 0)
    assert bn_ext.batch_norm_training_stats(state).shape == (4, 0)
