"""The double backward, the gradient of the gradient, is near the exact one.

test_formulas.py tests that the reference is the derivative of the backward pass.
"""

import numpy as np
import pytest
from bounds import second_errors
from cases import DTYPES, INPUTS, Family, shape, shapes
from needs import needs_long_double

import bn_ext
from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import SECOND, distance, smallest, unit
from bn_ext.testing._wide import wide_of

pytestmark = [pytest.mark.fast, pytest.mark.results]

NAMES = [*INPUTS, "diff_diff_src", "diff_diff_gamma", "diff_diff_beta"]
#: data_format, N, C, X: each form of order.c, with incomplete blocks and units, and with several
#: chunks, tiles and groups.
SHAPES = [("NXC", *dims) for dims in shapes("1x8x1 300x7x1 290x130x1 40x9x30")]
SHAPES += [("NCX", *dims) for dims in shapes("1x3x50 37x6x9 9x3x144 2x3x1500 1x2x20000")]


def run(p, is_training):
    options = {"is_training": is_training}
    exact = {"axis": p.axis, "wide": wide_of(p.src.dtype.name), **options}
    results = p.take(bn_ext.batch_norm_double_backward, *NAMES, **options)
    return results, p.take(reference.batch_norm_double_backward, *NAMES, **exact)


def assert_within_bounds(results, want, data, vector):
    for name, error in second_errors(results, want, data, vector).items():
        assert error.holds(), (name, float(np.max(error.share())))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("data", "vector"), DTYPES)
@pytest.mark.parametrize("dims", SHAPES, ids=str)
def test_near_the_exact_one(rng, dims, data, vector, is_training):
    data_format, *sizes = dims
    for ratio, statistics in ((0, "batch"), (3, "given")):
        kind = {"ratio": ratio, "statistics": statistics}
        p = Family(rng, shape(*sizes, data_format), data_format, data, vector, **kind)
        results, want = run(p, is_training)
        assert [a.dtype for a in results] == [p.src.dtype, p.src.dtype, p.mean.dtype]
        assert [a.shape for a in results] == [p.src.shape, p.src.shape, p.mean.shape]
        assert_within_bounds(results, want, data, vector)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data", ["float32", pytest.param("float64", marks=needs_long_double)])
def test_products_that_underflow(data, is_training):
    """Each g*dy loses up to half the smallest positive number: far more than roundings cost."""
    m, rstd, least = 1000, 10, smallest(data)
    src = np.linspace(-1, 1, m, dtype=data)[:, None]
    signs = np.where(np.arange(m) % 2, 1, -1 if is_training else 1)[:, None].astype(data)
    # Each product is 1.3 times the smallest positive number, and is rounded to that number.
    diff_dst = (1.3 * np.sqrt(least)).astype(data) * signs
    g = np.sqrt(least).astype(data) * signs
    arguments = src, diff_dst, np.zeros(1), np.array([rstd**-2.0]), np.ones(1), g
    options = {"epsilon": 0, "is_training": is_training}
    results = bn_ext.batch_norm_double_backward(*arguments, **options)
    want = reference.batch_norm_double_backward(*arguments, wide=wide_of(data), **options)
    roundings = SECOND[data] * (unit(data) * want[5][0] + least)
    off = distance(results.diff_gamma, want[2])[0]
    assert roundings < off <= roundings + m * rstd * least / 2


@pytest.mark.parametrize("is_training", [True, False])
def test_a_mean_of_more_digits_than_the_data(rng, is_training):
    """float32 drops digits of a float64 mean. They matter: here up to 1/256 of the deviation."""
    p = Family(rng, (200, 3), "NXC", "float32", "float64", ratio=1e5, statistics="batch")
    assert (abs(p.mean - p.mean.astype(np.float32)) > 1e-4).any()
    results, want = run(p, is_training)
    assert_within_bounds(results, want, "float32", "float64")
