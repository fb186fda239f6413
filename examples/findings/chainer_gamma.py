"""Chainer: the gradient of a gradient of batch normalization where gamma is 0."""

import chainer
import numpy as np
from chainer import functions


def first(gamma):
    """A directional derivative of a loss behind the function, by x, and gamma's variable."""
    leaves = [chainer.Variable(a) for a in (x, gamma)]
    loss = functions.sum(weights * functions.batch_normalization(*leaves, np.zeros(3)) ** 2)
    grads = chainer.grad([loss], leaves[:1], enable_double_backprop=True)
    return functions.sum(grads[0] * direction), leaves[1]


x, weights, direction = np.random.default_rng(0).standard_normal((3, 8, 3))
gamma = np.array([1.0, 0.0, -2.0])
total, leaf = first(gamma)
print("chainer", chainer.__version__, chainer.grad([total], [leaf])[0].array)
steps = 1e-6 * np.eye(3)
print(
    "finite differences",
    [f"{(first(gamma + s)[0].array - first(gamma - s)[0].array) / 2e-6:.6f}" for s in steps],
)
