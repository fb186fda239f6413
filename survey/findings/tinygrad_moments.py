"""tinygrad: the gradient of a gradient of BatchNorm."""

import os
from importlib.metadata import version

os.environ.setdefault("DEV", "PYTHON")  # needs no compiler; DEV=CPU needs clang
import numpy as np
from tinygrad import Tensor, nn


def penalty(x):
    """The squared norm of the gradient of tanh, the layer and a loss."""
    (grad,) = (Tensor(weights) * layer(x.tanh())).sum().gradient(x)
    return (grad**2).sum()


rng, layer = np.random.default_rng(0), nn.BatchNorm(3, track_running_stats=False)
x, weights, direction = (rng.standard_normal((4, 3)).astype("f4") for _ in range(3))
leaf = Tensor(x)
slope = (penalty(leaf).gradient(leaf)[0].numpy() * direction).sum()
ahead, behind = (penalty(Tensor(x + s * direction)).item() for s in (1e-2, -1e-2))
print(f"tinygrad {version('tinygrad')}: {slope:.4f}")
print(f"finite differences: {(ahead - behind) / 2e-2:.4f}")
