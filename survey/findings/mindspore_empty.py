"""MindSpore: the gradient of a gradient of an empty batch."""

import mindspore as ms
import numpy as np
from mindspore import ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
print("mindspore", ms.__version__, flush=True)
gamma, beta, mean, variance = (ms.Tensor(np.full(2, v, "f4")) for v in (1, 0, 0, 1))


def loss(x):
    return ops.BatchNorm(True)(x, gamma, beta, mean, variance)[0].sum()


def penalty(x):
    return (ms.grad(loss)(x) ** 2).sum()


x = ms.Tensor(np.zeros((0, 2), "f4"))
print("gradient:", ms.grad(loss)(x).shape, "- of it:", flush=True)
print(ms.grad(penalty)(x).asnumpy())
