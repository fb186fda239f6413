"""The formulas: examples/plain_loop.py says, in three nested loops, what they compute.

The loops are compared with bn_ext/testing/_formulas.py, the reference. It computes the same for
whole arrays, and also the terms of the error bounds. test_backward.py compares the package with the
reference. For the rest of the family, finite differences and exact integer moments check it.
"""

import numpy as np
import pytest
from bounds import reference_of
from cases import EPSILON, FORMATS, Family, Problem, shape
from needs import needs_long_double
from tree import ROOT, load

from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import distance

pytestmark = [pytest.mark.fast, pytest.mark.results]

plain_loop = load(ROOT / "examples" / "plain_loop.py")
#: N, C, X: each is 1 in some problems, and more in others.
SIZES = [(1, 1, 1), (9, 5, 1), (1, 3, 7), (4, 1, 3), (35, 2, 3), (2, 3, 40)]
RANKS = [(3, 4), (2, 3, 2, 4), (2, 2, 3, 2, 2)]


@needs_long_double
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("with_gamma", [True, False])
@pytest.mark.parametrize("data_format", FORMATS)
def test_the_plain_loop_is_the_reference(rng, data_format, with_gamma, is_training):
    for dims in [*(shape(*size, data_format) for size in SIZES), *RANKS]:
        p = Problem(rng, dims, data_format, "float64")
        if not with_gamma:
            p.gamma = None
        plain = p.run(plain_loop.batch_norm_backward, is_training=is_training)
        want = reference_of(p, is_training)
        u = np.finfo(np.longdouble).eps / 2
        size = (want.diff_src_terms + want.diff_src_sums).max()
        terms = (want.gamma_terms, want.beta_terms)
        most = max(size, *(abs(a).sum(axis=1).max() for a in terms))
        for results, wanted in zip(plain, want[:3], strict=True):
            assert np.shape(results) == wanted.shape
            assert (distance(results, wanted) <= 100 * u * most).all()


WIDE = {"epsilon": EPSILON, "wide": np.longdouble, "axis": 1}


def slope(function, at, direction):
    """The directional derivative, by a fourth-order central difference."""
    step = np.longdouble(1e-3)
    near, far = (
        function(at + k * step * direction) - function(at - k * step * direction) for k in (1, 2)
    )
    return (8 * near - far) / (12 * step)


def wide_problem(rng):
    p = Family(rng, (5, 4, 3), "NCX", "float64")
    for name, value in vars(p).items():
        if isinstance(value, np.ndarray):
            setattr(p, name, value.astype(np.longdouble))
    return p


@needs_long_double
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("is_training", [True, False])
def test_backward_is_the_derivative_of_forward(rng, is_training, relu):
    p = wide_problem(rng)

    def forward(src, **others):
        if is_training:
            return reference.batch_norm_training(src, relu=relu, **others, **WIDE)
        return reference.batch_norm_inference(src, p.mean, p.variance, relu=relu, **others, **WIDE)

    at = {"src": p.src, "gamma": p.gamma, "beta": p.beta, "src_1": p.src_1}
    results = forward(**at)
    arguments = p.src, p.diff_dst, results.mean, results.variance, p.gamma
    options = {"is_training": is_training, "gate": ~(results.dst <= 0) if relu else None, **WIDE}
    grads = reference.batch_norm_backward(*arguments, **options)
    for name in at:
        grad = getattr(grads, f"diff_{name}")
        direction = rng.standard_normal(grad.shape) / 100

        def loss(value, name=name):
            return (p.diff_dst * forward(**{**at, name: value}).dst).sum()

        assert abs(slope(loss, at[name], direction) - (grad * direction).sum()) < 1e-12, name


@needs_long_double
@pytest.mark.parametrize("is_training", [True, False])
def test_double_backward_is_the_derivative_of_backward(rng, is_training):
    p = wide_problem(rng)

    def moments(src):
        batch = reference.batch_norm_training(src, **WIDE) if is_training else p
        return batch.mean, batch.variance

    def backward(src, diff_dst, gamma):
        options = {"is_training": is_training, **WIDE}
        return reference.batch_norm_backward(src, diff_dst, *moments(src), gamma, **options)

    at = {"src": p.src, "diff_dst": p.diff_dst, "gamma": p.gamma}
    incoming = p.diff_diff_src, p.diff_diff_gamma, p.diff_diff_beta
    arguments, mode = (p.src, p.diff_dst, *moments(p.src), p.gamma), {"is_training": is_training}
    results = reference.batch_norm_double_backward(*arguments, *incoming, **mode, **WIDE)
    for name, grad in zip(at, results, strict=False):
        direction = rng.standard_normal(grad.shape) / 100

        def loss(value, name=name):
            grads = backward(**{**at, name: value})
            return sum((a * b).sum() for a, b in zip(incoming, grads, strict=False))

        assert abs(slope(loss, at[name], direction) - (grad * direction).sum()) < 1e-12, name
    for exact, sizes in zip(results[:3], results[3:], strict=True):
        assert (abs(exact) <= sizes * (1 + 1e-15)).all()


@needs_long_double
@pytest.mark.parametrize("ratio", [0, 1e3, 1e7])
def test_moments_at_any_mean(rng, ratio):
    """The data are integers, so that the exact answer is known."""
    whole = rng.integers(-1000, 1000, (7, 3, 50))
    src = whole + np.rint(ratio * 600)
    results = reference.batch_norm_training(src, **WIDE)
    rows = reference.by_channel(whole, 1)
    m, sums, squares = rows.shape[1], rows.sum(axis=1), (rows**2).sum(axis=1)
    variance = (m * squares - sums**2) / np.longdouble(m * m)
    np.testing.assert_allclose(results.variance, variance, rtol=1e-17)
    mean = np.rint(ratio * 600) + sums / np.longdouble(m)
    assert (abs(results.mean - mean) <= 1e-18 * abs(mean) + 1e-16).all()
