"""The numbers that nGraph's unit tests record: test/backend/batch_norm.in.cpp.

test_backward.py has the gradient's numbers.
"""

import numpy as np
import pytest

from bn_ext.specs import ngraph

ROWS, MOVED = [[1, 2, 3], [-1, -2, -3]], [[3, 0, 6], [1, -4, 0]]
ONES, ZEROS = [1, 1, 1], [0, 0, 0]
#: {epsilon: [(input, gamma, beta, mean, variance, normalized_input)]}; nothing is rounded.
INFERENCE = {
    epsilon: [
        (ROWS, [2, 3, 4], ZEROS, ZEROS, [unit] * 3, [[2, 6, 12], [-2, -6, -12]]),
        (ROWS, ONES, [2, -2, 3], ZEROS, [unit] * 3, MOVED),
        (ROWS, ONES, ZEROS, [-2, 2, -3], [unit] * 3, MOVED),
    ]
    for epsilon, unit in ((0, 1), (0.25, 0.75))
}
INFERENCE[0] += [(ROWS, ONES, ZEROS, ZEROS, [0.25, 0.0625, 4], [[2, 8, 1.5], [-2, -8, -1.5]])]
INFERENCE[0.25] += [([[3, 5, 1], [-3, -5, -1]], ONES, ZEROS, ZEROS, [2, 6, 0], [[2] * 3, [-2] * 3])]
#: Ten values with variance 4; channels have them as they are, shifted, and scaled.
TRAINING = [0, 1, 1, 3, 3, 0, -1, -1, -3, -3]
#: {shape: (mean, variance, result)} of the first eight numbers of NumPy's old generator, seed 0.
FIRST = [-0.71498716, 1.48388731, -0.00196938, -0.76693159]
FIRST += [-0.91316032, 0.23943391, -0.84090298, 1.51462936]
SECOND = [-0.30327, 1.1561, -0.0963782, -0.434702, -1.4011, 0.548275, -1.06187, 1.59295]
RECORDED = {(1, 2, 2, 2): ([0.602912, 0.599727], [0.00472505, 0.0361782], FIRST)}
for shape in (2, 2, 2, 1), (2, 2, 2, 1, 1):
    RECORDED[shape] = [0.583388, 0.619252], [0.0119972, 0.0282681], SECOND
in_both_types = pytest.mark.parametrize("name", ["float32", "float64"])


@in_both_types
@pytest.mark.parametrize("epsilon", INFERENCE)
def test_inference(ran, epsilon, name):
    for case in INFERENCE[epsilon]:
        *arguments, want = (np.array(each, name) for each in case)
        assert (ngraph.batch_norm_inference(*arguments, epsilon=epsilon) == want).all()
        ran["nGraph", name] += 1


@in_both_types
@pytest.mark.parametrize(("gamma", "beta"), [(ONES, ZEROS), ([2, 1, 2], [0, 1, 1])])
def test_training(ran, gamma, beta, name):
    values = np.array(TRAINING, name)[:, None]
    src = values * np.array([1, 1, 0.25], name) + np.array([0, 1, 0], name)
    gamma, beta = np.array(gamma, name), np.array(beta, name)
    dst, mean, variance = ngraph.batch_norm_training(src, gamma, beta, epsilon=0)
    assert (dst == values / 2 * gamma + beta).all()
    assert mean.tolist() == [0, 1, 0]
    assert variance.tolist() == [4, 4, 0.25]
    ran["nGraph", name] += 1


@pytest.mark.parametrize("shape", RECORDED)
def test_recorded(ran, shape):
    src = np.random.RandomState(0).rand(8).astype(np.float32).reshape(shape)
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    mean, variance, dst = (np.array(each, np.float32) for each in RECORDED[shape])
    results = ngraph.batch_norm_training(src, ones, zeros, epsilon=1e-3)
    for got, want in zip(results, (dst.reshape(shape), mean, variance), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    got = ngraph.batch_norm_inference(src, ones, zeros, mean, variance, epsilon=1e-3)
    np.testing.assert_allclose(got.ravel(), dst.ravel(), rtol=1e-5, atol=1e-5)
    ran["nGraph", "float32"] += 2
