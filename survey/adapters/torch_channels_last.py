"""torch with strides of channels last, for which it has kernels of its own."""

import torch

from . import torch as first

NAME, PACKAGES, LAYOUT, OWN = "torch, channels last", ["torch"], "NXC", ("double_backward",)


def functions(function):
    def call(src, *arrays, epsilon):
        moved = [a if a is None or a.ndim == 1 else torch.from_numpy(a).movedim(-1, 1).numpy()
                 for a in (src, *arrays)]  # fmt: skip
        result = function(*moved, epsilon=epsilon)
        if not isinstance(result, tuple):
            return result.movedim(1, -1)
        return tuple(a if a.ndim == 1 else a.movedim(1, -1) for a in result)

    return call


training, inference, backward, double_backward = map(
    functions, (first.training, first.inference, first.backward, first.double_backward)
)
