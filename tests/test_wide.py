"""bn_ext.testing._wide: what is right of float64 data has digits enough, on every system."""

import operator
import sys
from fractions import Fraction

import numpy as np
import pytest
from needs import needs_long_double
from remembered import KINDS, long_double
from weak_kernels import SUMS, Kernels

from bn_ext.testing._cases import standard_cases
from bn_ext.testing._exact import exact
from bn_ext.testing._report import call, judged
from bn_ext.testing._wide import Wide

pytestmark = [pytest.mark.fast, pytest.mark.any_level]


def fractions(array):
    """The exact values of a Wide."""
    wide = array.ravel()
    exponents = np.zeros(wide.shape, int) if wide.exponent is None else wide.exponent
    parts = wide.hi, np.broadcast_to(0.0 if wide.lo is None else wide.lo, wide.shape)
    return [
        (Fraction(hi) + Fraction(lo)) * Fraction(2) ** int(exponent)
        for hi, lo, exponent in zip(*parts, exponents, strict=True)
    ]


def drawn(rng, octaves, size=300):
    """Numbers of 106 bits, times powers of two, and some zeros."""
    hi, lo = np.ldexp(rng.uniform(-1, 1, (2, size)), rng.integers(-octaves, octaves + 1, size))
    zeros = rng.random(size) < 0.05
    return Wide(np.where(zeros, 0, hi)) + Wide(np.where(zeros, 0, lo)) * 2.0**-54


OPERATIONS = operator.add, operator.sub, operator.mul, operator.truediv
FAR = [0, 30, 450, 1000]


@pytest.mark.parametrize("octaves", FAR)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_arithmetic_has_a_hundred_bits(rng, operation, octaves):
    a, b = drawn(rng, octaves), drawn(rng, octaves)
    b = np.where(b == 0, 1.5, b) if operation is operator.truediv else b
    for one, other in ((a, b), (operation(a, b), a), (a, 0.75)):
        if operation is operator.truediv:
            other = np.where(Wide(other) == 0, 3, other)
        first = fractions(one)
        second = fractions(Wide(np.broadcast_to(other, len(one))) if np.ndim(other) == 0 else other)
        for got, x, y in zip(fractions(operation(one, other)), first, second, strict=True):
            size = abs(x) + abs(y) if operation in (operator.add, operator.sub) else None
            right = operation(x, y)
            assert abs(got - right) <= Fraction(2) ** -100 * (abs(right) if size is None else size)


@pytest.mark.parametrize("octaves", FAR)
def test_roots_sums_and_products(rng, octaves):
    a = drawn(rng, octaves)
    numbers = fractions(a)
    for root, number in zip(fractions(np.sqrt(a * a)), numbers, strict=True):
        assert abs(root - abs(number)) <= Fraction(2) ** -100 * abs(number)
    total, size = sum(numbers), sum(map(abs, numbers))
    (got,) = fractions(a.sum())
    assert abs(got - total) <= Fraction(2) ** -95 * size
    rows = a.reshape(3, -1)
    sums = rows.sum(axis=1, keepdims=True)
    assert sums.shape == (3, 1)
    assert fractions(sums) == fractions(rows.sum(axis=1))
    for got, number in zip(fractions(a**3), numbers, strict=True):
        assert abs(got - number**3) <= Fraction(2) ** -98 * abs(number**3)


@pytest.mark.parametrize("octaves", FAR)
def test_sizes_have_the_digits_of_doubles(rng, octaves):
    a, b = abs(drawn(rng, octaves)), drawn(rng, octaves)
    assert a.lo is None
    for operation in (operator.add, operator.mul):
        for got, x, y in zip(
            fractions(operation(a, abs(b))), fractions(a), fractions(abs(b)), strict=True
        ):
            assert abs(got - operation(x, y)) <= Fraction(2) ** -52 * operation(x, y)
    (got,) = fractions(a.sum())
    assert abs(got - sum(fractions(a))) <= Fraction(2) ** -48 * sum(fractions(a))


@pytest.mark.parametrize("octaves", FAR)
def test_comparisons_and_choices(rng, octaves):
    a, b = drawn(rng, octaves), drawn(rng, octaves)
    b = np.where(
        np.arange(a.size) % 3 == 0, a, np.where(np.arange(a.size) % 3 == 1, a * (1 + 2.0**-80), b)
    )
    first, second = fractions(a), fractions(b)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        assert compare(a, b).tolist() == [*map(compare, first, second)]
    assert fractions(np.maximum(a, b)) == [*map(max, first, second)]
    assert fractions(np.minimum(a, b)) == [*map(min, first, second)]
    assert fractions(a.reshape(3, -1).max(axis=1)) == [
        max(first[k : k + 100]) for k in (0, 100, 200)
    ]
    both = np.stack([a, b])
    assert fractions(both[1]) == second
    assert fractions(np.moveaxis(both, 0, -1)[:, 0]) == first
    assert fractions(np.where(a < b, a, b)) == [*map(min, first, second)]


def test_nan_and_inf_are_those_of_doubles():
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -2.0, 3.0])
    one, other = (a.ravel() for a in np.meshgrid(values, values))
    for far in (1.0, 2.0**500):  # with exponents, too
        with np.errstate(all="ignore"):
            for operation in OPERATIONS:
                want = operation(one, other)
                got = operation(Wide(one) * far, Wide(other) * far)
                got = got / far if operation in OPERATIONS[:2] else got
                got = got / far / far if operation is operator.mul else got
                np.testing.assert_array_equal(np.asarray(got), want, operation.__name__)
            np.testing.assert_array_equal(
                np.asarray(np.sqrt(Wide(values) * far**2) / far), np.sqrt(values)
            )
            for compare in (operator.lt, operator.le, operator.eq, operator.ne):
                wide = compare(Wide(one) * far, Wide(other) * far)
                np.testing.assert_array_equal(wide, compare(one, other))
            rows = values.reshape(3, 2)
            np.testing.assert_array_equal(
                np.asarray((Wide(rows) * far).sum(axis=1) / far), rows.sum(axis=1)
            )


def test_numbers_beyond_doubles():
    small = Wide(2.0**-1074) / 2
    assert (small > 0, float(small), float(small * 2)) == (True, 0, 2.0**-1074)
    large = Wide(1e308) ** 3
    assert (bool(np.isfinite(large)), float(large), float(large / 1e308 / 1e308)) == (
        True,
        np.inf,
        1e308,
    )


def test_what_is_not_there_is_refused():
    for function in (np.exp, np.cumsum, lambda a: np.add.reduce(a)):
        with pytest.raises(TypeError):
            function(Wide(np.ones(3)))


@pytest.fixture
def in_long_doubles(monkeypatch):
    """What is right, computed in long doubles."""

    def begin():
        for name, module in [*sys.modules.items()]:
            if name.startswith("bn_ext.testing.") and hasattr(module, "wide_of"):
                monkeypatch.setattr(module, "wide_of", lambda data: np.longdouble)

    return begin


@needs_long_double
@pytest.mark.parametrize("data", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_right_is_what_long_doubles_say(in_long_doubles, name, data):
    """In each case: the same NaN and Inf, the same numbers within a thousandth of a limit, and
    limits of the same width.
    """
    cases = [*standard_cases(KINDS[name], data, quick=True)]
    here = [exact(case) for case in cases]
    in_long_doubles()
    for case, results in zip(cases, here, strict=True):
        there = exact(case)
        assert results.keys() == there.keys()
        for result, (right, limits) in there.items():
            got, widths = map(long_double, results[result])
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(np.isfinite(got), np.isfinite(right))
                finite = np.isfinite(right)
                np.testing.assert_array_equal(got[~finite], right[~finite])
                np.testing.assert_array_equal(np.isinf(widths), np.isinf(limits))
                off, known = abs(got - right), np.isfinite(limits[0]) & finite
                # Long doubles have too few digits for a mean of 1000 deviations of a kernel's own.
                if not (name == "own" and "mean" in case.name):
                    assert (1000 * off <= limits[0])[known].all(), (case.name, result)
                some = np.isfinite(limits) & (limits > 0)
                assert (abs(widths / limits - 1) < 0.07)[some].all(), (case.name, result)


STYLES = {"add": SUMS["row_after_row"]}, {"add": SUMS["tree"], "folded": True, "moments": "squares"}


@needs_long_double
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("style", STYLES)
def test_verdicts_are_those_of_long_doubles(in_long_doubles, style):
    """Case by case, of float64 data, in each arithmetic."""
    kernels = Kernels(**style)
    functions = {"training": kernels.training, "inference": kernels.inference}
    functions |= {"backward": kernels.backward, "double": kernels.double_backward}

    def verdicts():
        found = {}
        for name, function in functions.items():
            for case in standard_cases(KINDS[name], "float64", quick=True):
                results, right = call(function, case), exact(case)
                found[name, case.name] = [
                    finding.verdict
                    for arithmetic in ("double", "float32", "any")
                    for finding in judged(case, results, arithmetic, right)
                ]
        return found

    here = verdicts()
    in_long_doubles()
    assert here == verdicts()
