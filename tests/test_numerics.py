"""The error bounds of docs/numerics.md, held against long doubles.

u is half the spacing of 1 in the arithmetic type: 2^-24, and 2^-53 for float64 data.
"""

import ml_dtypes
import numpy as np
import pytest
import reference
from cases import (
    DATA_DTYPES,
    DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    arithmetic,
    dtype,
    half_ulp,
    shape,
    unit,
)

import bn_ext

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
)

FOLD = 8  # rows that are summed in the arithmetic type before they join the running sum
MANY = [1, 2, 3, 7, 8, 9, 31, 64, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000]


def dims_of(m, data_format):
    """A shape of M elements per channel: channels enough for statistics, elements few enough."""
    channels = max(1, min(64, 500_000 // m))
    n = next(n for n in (32, 10, 7, 3, 2, 1) if m % n == 0)
    return shape(n, channels, m // n, data_format)


def relative_error(got, want):
    """Largest error over largest value."""
    return float(abs(got.astype(np.longdouble) - want).max() / abs(want).max())


def largest(error, size):
    """Of the quotients, where there is something to divide by."""
    some = size > 0
    return float((error[some] / size[some]).max()) if some.any() else 0.0


def check_param_grads(grads, want, vector, u, factor):
    """Half an ulp of the result, and factor u times the terms' Euclidean norm."""
    worst = 0.0
    for got, exact, terms in (
        (grads.diff_gamma, want.diff_gamma, want.gamma_terms),
        (grads.diff_beta, want.diff_beta, want.beta_terms),
    ):
        norm = np.sqrt((terms**2).sum(axis=1))
        error = abs(got.astype(np.longdouble) - exact) - half_ulp(exact, vector)
        assert (error <= factor * u * norm).all()
        worst = max(worst, largest(error / u, norm))
    return worst


def random_cases(rng, data, vector=None):
    for m in MANY:
        for ratio in (0, 10, 1000):
            if m == MANY[-1] and ratio != 10:
                continue
            for data_format in list(FORMATS)[m == MANY[-1] :]:
                dims = dims_of(m, data_format)
                # With one or two elements the batch's own statistics leave next to
                # nothing of dy, and the result is made of rounding errors.
                statistics = "batch" if m > 2 else "given"
                problem = Problem(
                    rng, dims, data_format, data, vector, ratio=ratio, statistics=statistics
                )
                for is_training in (True, False):
                    if m >= 1_000_000 and not is_training and data_format == "NXC":
                        continue
                    grads = problem.run(
                        bn_ext.batch_norm_backward,
                        data_format=data_format,
                        is_training=is_training,
                    )
                    want = problem.run(
                        reference.batch_norm_backward,
                        axis=problem.axis,
                        is_training=is_training,
                        wide=np.longdouble,
                    )
                    yield (m, ratio, data_format, is_training), grads, want


def test_random_float32(rng):
    errors = []
    for case, grads, want in random_cases(rng, "float32"):
        errors.append(relative_error(grads.diff_src, want.diff_src))
        assert errors[-1] <= (1.8e-7 if case[0] > 2 else 3e-7), case
        check_param_grads(grads, want, "float32", unit("float32"), 6)
    print(f"largest {max(errors):.3g}, median {np.median(errors):.3g}")
    assert np.median(errors) <= 1.2e-7


def test_random_float64(rng):
    errors = []
    for case, grads, want in random_cases(rng, "float64"):
        errors.append(relative_error(grads.diff_src, want.diff_src))
        assert errors[-1] <= 1e-15, case
        check_param_grads(grads, want, "float64", unit("float64"), 10)
    print(f"largest {max(errors):.3g}, median {np.median(errors):.3g}")


def neighbours(array):
    """The next number of its dtype below and above in magnitude, as doubles."""
    patterns = array.view(np.uint16)
    below = np.where(patterns & 0x7FFF, patterns - 1, patterns).astype(np.uint16)
    above = (patterns + 1).astype(np.uint16)
    return (p.view(array.dtype).astype(np.float64) for p in (below, above))


@pytest.mark.parametrize(("data", "vector"), [d for d in DTYPES if dtype(d[0]).itemsize == 2])
def test_random_16_bit(rng, data, vector):
    """Almost every diff_src is the number nearest to the exact result."""
    right = total = 0
    for case, grads, want in random_cases(rng, data, vector):
        got = grads.diff_src.astype(np.float64)
        exact = want.diff_src.astype(np.float64)
        error = abs(got - exact)
        with np.errstate(invalid="ignore"):
            below, above = neighbours(grads.diff_src)
            nearest = (error <= abs(below - exact)) & (error <= abs(above - exact))
            one_ulp = error <= abs(above - got) * (1 + 1e-9)
        right += np.count_nonzero(nearest)
        total += nearest.size
        assert one_ulp[abs(exact) > 0.1].all(), case
        check_param_grads(grads, want, vector, unit("float32"), 6)
    print(f"correctly rounded: {100 * right / total:.4f} %")
    assert right >= 0.9998 * total


STRUCTURES = ["constant", "xhat", "mask", "one-hot"]


def structured(rng, problem, structure):
    """Gradients that make every lane err alike, or leave next to nothing of a sum."""
    dy = np.moveaxis(problem.diff_dst, problem.axis, 0)
    x = np.moveaxis(problem.src, problem.axis, 0).astype(np.float64)
    column = (-1,) + (1,) * (dy.ndim - 1)
    if structure == "constant":
        values = np.broadcast_to(rng.uniform(0.5, 2, dy.shape[:1]).reshape(column), dy.shape)
    elif structure == "xhat":
        mean, variance = (
            v.astype(np.float64).reshape(column) for v in (problem.mean, problem.variance)
        )
        values = (x - mean) / np.sqrt(variance + EPSILON)
    elif structure == "mask":
        values = rng.random(dy.shape) < 0.5
    else:
        values = np.zeros(dy.shape)
        values.reshape(dy.shape[0], -1)[:, rng.integers(values[0].size)] = 1
    dy[...] = values.astype(dy.dtype)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_structured(rng, data, structure):
    """Element by element: 5 u of the terms, and half an ulp of a 16-bit result."""
    u = unit(arithmetic(data))
    worst = worst_sum = 0.0
    for m in MANY[:-1]:
        for ratio in (0, 10, 1000):
            for data_format in FORMATS:
                problem = Problem(
                    rng, dims_of(m, data_format), data_format, data, ratio=ratio,
                    statistics="batch" if m > 1 else "given",
                )  # fmt: skip
                structured(rng, problem, structure)
                for is_training in (True, False):
                    if m > 10_000 and (data_format == "NXC") != is_training:
                        continue
                    grads = problem.run(
                        bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training
                    )
                    want = problem.run(
                        reference.batch_norm_backward, axis=problem.axis, is_training=is_training,
                        wide=np.longdouble,
                    )  # fmt: skip
                    error = abs(grads.diff_src.astype(np.longdouble) - want.diff_src)
                    if dtype(data).itemsize == 2:
                        error -= half_ulp(want.diff_src, data)
                    assert (error <= 5 * u * want.diff_src_terms).all(), (m, ratio, data_format)
                    worst = max(worst, largest(error / u, want.diff_src_terms))
                    for got, exact, terms in (
                        (grads.diff_gamma, want.diff_gamma, want.gamma_terms),
                        (grads.diff_beta, want.diff_beta, want.beta_terms),
                    ):
                        size = abs(terms).sum(axis=1)
                        error = abs(got.astype(np.longdouble) - exact)
                        error -= half_ulp(exact, problem.mean.dtype.name)
                        error -= 3 * 2.0**-53 * abs(exact)
                        assert (error <= (FOLD + 3) * u * size).all()
                        worst_sum = max(worst_sum, largest(error / u, size))
    print(f"diff_src {worst:.2f} u of 5, sums {worst_sum:.2f} u of {FOLD + 3}")


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_any_input(rng, data):
    """Element by element, for gradients that cancel: what a sum lost comes on top."""
    u = unit(arithmetic(data))
    for data_format in FORMATS:
        for m in (1, 5, 64, 1000, 30_000):
            problem = Problem(rng, dims_of(m, data_format), data_format, data, ratio=3)
            dy = np.moveaxis(problem.diff_dst, problem.axis, 0).reshape(len(problem.mean), -1)
            half = m // 2
            dy[:, half : 2 * half] = -dy[:, :half]
            dy *= (10.0 ** rng.integers(-3, 3, dy.shape)).astype(dy.dtype)
            problem.diff_dst[...] = np.moveaxis(
                dy.reshape(np.moveaxis(problem.diff_dst, problem.axis, 0).shape), 0, problem.axis
            )
            grads = problem.run(bn_ext.batch_norm_backward, data_format=data_format)
            want = problem.run(reference.batch_norm_backward, axis=problem.axis, wide=np.longdouble)
            error = abs(grads.diff_src.astype(np.longdouble) - want.diff_src)
            bound = u * (7 * want.diff_src_terms + (FOLD + 3) * want.diff_src_sums)
            if dtype(data).itemsize == 2:
                bound += half_ulp(want.diff_src, data)
            assert (error <= bound).all()


def test_sum_of_a_hundred_million(rng):
    """At 10^8 elements per channel the sums are still as good (broadcast: little memory)."""
    row = rng.standard_normal((1, 1, 100_000)).astype(np.float32)
    mean = np.array([0.25], np.float32)
    src = np.broadcast_to(row, (1000, 1, 100_000))
    sums = bn_ext.batch_norm_backward_reduce(src, src, mean, data_format="NCX")
    wide = row.astype(np.longdouble).ravel()
    for got, terms in zip(sums, (wide, wide * (wide - mean[0])), strict=True):
        exact, norm = 1000 * terms.sum(), np.sqrt(1000 * (terms**2).sum())
        # The same terms a thousand times err alike: 1000, not its square root.
        assert abs(got[0] - exact) <= 6 * unit("float32") * norm * np.sqrt(1000)


def test_finfo_of_the_table():
    """Half_ulp and unit stand on these."""
    assert unit("float32") == 2.0**-24
    assert unit("float64") == 2.0**-53
    assert unit("float16") == 2.0**-11
    assert unit("bfloat16") == 2.0**-8 / 1
    assert ml_dtypes.finfo(dtype("bfloat16")).eps == 2.0**-7
