"""DeZero: the gradient of a gradient of batch normalization."""

import numpy as np

np.int = int  # noqa: NPY001 (DeZero asks NumPy for a name that went)
import dezero  # noqa: E402
from dezero import functions  # noqa: E402


def penalty(x):
    """The squared norm of the gradient of a loss behind the function, and x's variable."""
    leaf, vectors = dezero.Variable(x), (np.ones(3), np.zeros(3))
    dst = functions.batch_nrom(leaf, *map(dezero.Variable, vectors), np.zeros(3), np.ones(3))
    functions.sum(dst * weights).backward(create_graph=True)
    grad = leaf.grad
    leaf.cleargrad()
    return functions.sum(grad**2), leaf


x, weights, direction = np.random.default_rng(0).standard_normal((3, 8, 3))
total, leaf = penalty(x)
total.backward()
print(f"dezero {dezero.__version__}: {(leaf.grad.data * direction).sum():.5f}")
ahead, behind = (penalty(x + s * direction)[0].data for s in (1e-6, -1e-6))
print(f"finite differences: {(ahead - behind) / 2e-6:.5f}")
