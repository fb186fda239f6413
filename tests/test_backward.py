"""The gradients are those of the formula, at every shape, dtype, layout and mode: values."""

import numpy as np
import pytest
from bounds import assert_near
from cases import DTYPES, FORMATS, Problem, dtype

import bn_ext
from bn_ext.specs import ngraph

pytestmark = pytest.mark.quick

SHAPES = [
    (1, 8), (2, 1), (6, 5), (300, 64), (40, 200), (33, 1000), (3000, 3), (2000, 23), (700, 127),
    (5, 3, 7), (3, 7, 31), (130, 2, 3), (17, 4, 1100), (9, 3, 2048), (2, 2, 40000),
    (5, 33, 9, 9), (4, 20, 17, 16), (6, 23, 5, 5), (1, 19, 4, 6, 6), (2, 1, 70, 71), (1, 1, 1, 1),
    (2, 3, 2, 3, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_formula_at_odd_shapes(rng, data, vector, data_format, is_training):
    """With gamma, and every third time without."""
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


def test_large_values(rng):
    """Values around 1e20 overflows nothing on the way."""
    problem = Problem(rng, (200, 6), "NXC")
    problem.src *= np.float32(1e20)
    problem.mean *= np.float32(1e20)
    problem.variance = np.full(6, 1e38, np.float32)
    assert_near(problem, problem.run(bn_ext.batch_norm_backward))


def test_vector_published_by_onednn():
    src = np.array([1, 2, 3, 4], np.float32).reshape(1, 2, 2, 1)
    diff_dst = np.array([0.1, 0.1, 0.2, 0.2], np.float32).reshape(1, 2, 2, 1)
    vectors = [np.array([v], np.float32) for v in (2.5, 1.25, 2)]
    for data_format, axes in (("NXC", (0, 1, 2, 3)), ("NCX", (0, 3, 1, 2))):
        grads = bn_ext.batch_norm_backward(
            src.transpose(axes), diff_dst.transpose(axes), *vectors, epsilon=0,
            data_format=data_format,
        )  # fmt: skip
        expected = [0.01788854, -0.05366563, 0.05366563, -0.01788854]
        np.testing.assert_allclose(grads.diff_src.ravel(), expected, atol=1e-7)
        np.testing.assert_allclose(grads.diff_gamma, [0.17888544], atol=1e-7)
        np.testing.assert_allclose(grads.diff_beta, [0.6], atol=1e-7)


def test_vector_published_by_ngraph():
    """A constant gradient leaves nothing of itself in diff_src."""
    rng = np.random.default_rng(4322)
    x = rng.uniform(0, 1, (4, 3, 2, 2)).astype(np.float32)
    gamma, beta = np.full(3, 2, np.float32), np.zeros(3, np.float32)
    grads = ngraph.batch_norm_training_backprop(
        x, gamma, beta, x.mean((0, 2, 3)), x.var((0, 2, 3)), np.full_like(x, 20), epsilon=1e-3
    )
    assert abs(grads.input_delta).max() < 1e-4
    assert (grads.beta_delta == 320).all()
    assert abs(grads.gamma_delta).max() < 1e-3
