"""Aesara's functions, once Theano's; the gradient is automatic, and has none itself."""

from functools import cache

import aesara
from aesara import tensor as at
from aesara.tensor.nnet import batchnorm

from . import demand

NAME, PACKAGES, LAYOUT = "Aesara", ["aesara"], "NCX"
OWN = ("backward",)


@cache
def compiled(operation, axes, epsilon):
    """A function of this operation, for tensors of so many axes."""
    src, diff_dst = (at.TensorType("float32", (None,) * axes)() for _ in range(2))
    gamma, beta, mean, variance = at.fvectors("gamma", "beta", "mean", "variance")
    options = {"axes": "spatial", "epsilon": epsilon}
    if operation == "inference":
        dst = batchnorm.batch_normalization_test(src, gamma, beta, mean, variance, **options)
        return aesara.function([src, mean, variance, gamma, beta], dst)
    dst, _, _ = batchnorm.batch_normalization_train(src, gamma, beta, **options)
    if operation == "training":
        return aesara.function([src, gamma, beta], dst)
    first = aesara.grad((dst * diff_dst).sum(), [src, gamma, beta])
    return aesara.function([src, diff_dst, gamma, beta], first)


def training(src, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    return compiled("training", src.ndim, epsilon)(src, gamma, beta)


def inference(src, mean, variance, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    return compiled("inference", src.ndim, epsilon)(src, mean, variance, gamma, beta)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    demand(gamma)
    return tuple(compiled("backward", src.ndim, epsilon)(src, diff_dst, gamma, 0 * gamma))
