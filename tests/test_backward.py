"""The gradient's values agree with the formula, for every shape, dtype, layout and mode."""

import math
from fractions import Fraction

import numpy as np
import pytest
from bounds import assert_near
from cases import DTYPES, EPSILON, FORMATS, Problem, all_bits, dtype, shapes

import bn_ext
from bn_ext import _core

pytestmark = [pytest.mark.fast, pytest.mark.results]

SHAPES = shapes("1x8 2x1 6x5 300x64 40x200 33x1000 3000x3 2000x23 700x127")
SHAPES += shapes("5x3x7 3x7x31 130x2x3 17x4x1100 9x3x2048 2x2x40000 5x33x9x9 4x20x17x16")
SHAPES += shapes("6x23x5x5 1x19x4x6x6 2x1x70x71 1x1x1x1 2x3x2x3x2x2")


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_formula_at_odd_shapes(rng, data, vector, data_format, is_training):
    for k, dims in enumerate(SHAPES):
        problem = Problem(rng, dims, data_format, data, vector)
        if k % 3 == 0:
            problem.gamma = None
        grads = problem.run(
            bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training
        )
        assert grads.diff_src.shape == dims
        assert grads.diff_src.dtype == dtype(data)
        assert grads.diff_gamma.dtype == grads.diff_beta.dtype == dtype(vector)
        assert_near(problem, grads, is_training)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", _core.DTYPES)
def test_gradient_of_given_statistics(rng, name, affine):
    """For float64, results are the loss's derivatives. For other dtypes, they are the results for
    the same values in float64, rounded.
    """
    p = Problem(rng, (40, 7), "NXC", "float64", "float64")
    p.gamma = p.gamma if affine else None
    grads = p.run(bn_ext.batch_norm_backward, is_training=False)
    arguments = {"diff_gamma": grads.diff_gamma, "diff_beta": grads.diff_beta}
    arguments |= {"variance": p.variance, "gamma": p.gamma}
    results = bn_ext.batch_norm_statistics_backward(**arguments, epsilon=EPSILON)
    for k in range(2):
        loss, step = [], 1e-5
        for sign in (1, -1):
            moved = [p.mean, p.variance]
            moved[k] = moved[k] + sign * step
            dst = bn_ext.batch_norm_inference(p.src, *moved, p.gamma, epsilon=EPSILON)
            loss.append((dst * p.diff_dst).sum(axis=0))
        np.testing.assert_allclose(
            results[k], (loss[0] - loss[1]) / (2 * step), rtol=1e-6, atol=1e-8
        )
    rounded = {n: None if a is None else a.astype(dtype(name)) for n, a in arguments.items()}
    of_short = bn_ext.batch_norm_statistics_backward(**rounded, epsilon=EPSILON)
    wide = {n: None if a is None else a.astype(float) for n, a in rounded.items()}
    wanted = bn_ext.batch_norm_statistics_backward(**wide, epsilon=EPSILON)
    assert all_bits(of_short) == all_bits(a.astype(dtype(name)) for a in wanted)
    rounded["diff_gamma"][:], rounded["diff_beta"][:] = -np.nan, -np.nan
    of_nan = bn_ext.batch_norm_statistics_backward(**rounded, epsilon=EPSILON)
    assert all_bits(of_nan) == all_bits([np.full(7, np.nan, dtype(name))] * 2)


def test_gradient_of_given_statistics_at_extremes():
    """Only a value that is too large overflows, whatever a product on the way is."""
    sizes = [5e-324, 1e-310, 1e-200, 0.7, 1e200, 1.7e308]
    arguments = np.array(np.meshgrid(*[sizes] * 4)).reshape(4, -1)
    results = bn_ext.batch_norm_statistics_backward(*arguments, epsilon=0.0)
    scale, least = Fraction(2) ** 1200, Fraction(1, 2**1074)
    for diff_gamma, diff_beta, variance, gamma, *both in zip(
        *arguments.tolist(), *results, strict=True
    ):
        square = (Fraction(gamma) * Fraction(diff_beta)) ** 2 / Fraction(variance)
        wanted = (
            Fraction(math.isqrt(int(square * scale**2))) / scale,
            Fraction(gamma) * Fraction(diff_gamma) / Fraction(variance) / 2,
        )
        for diff, size in zip(both, wanted, strict=True):
            if np.isinf(diff):
                assert size > 2**1024 * (1 - Fraction(1, 2**50))
            else:
                assert abs(-Fraction(diff) - size) <= size / 2**50 + least


@pytest.mark.parametrize("name", ["diff_gamma", "diff_beta", "variance", "gamma"])
def test_statistics_that_are_refused(name):
    arguments = dict.fromkeys(["diff_gamma", "diff_beta", "variance", "gamma"], np.ones(7))
    for wrong, error in (
        (np.ones(3), ValueError),
        (np.ones((1, 7)), ValueError),
        (np.ones(()), ValueError),
        (np.ones(7, "i4"), TypeError),
        (np.ones(7, ">f8"), TypeError),
        (1.0, TypeError),
    ):
        # An error about two arguments names the second.
        size = getattr(wrong, "size", 0)
        named = "diff_beta" if (name, size) == ("diff_gamma", 3) else name
        with pytest.raises(error, match=f"^{named}: expected .*, got "):
            bn_ext.batch_norm_statistics_backward(**{**arguments, name: wrong}, epsilon=EPSILON)
    with pytest.raises(ValueError, match="^epsilon: "):
        bn_ext.batch_norm_statistics_backward(**arguments, epsilon=-1.0)
