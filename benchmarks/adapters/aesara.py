"""Aesara's functions (Theano's); gradients are the automatic ones."""

from functools import cache

import aesara
from aesara import tensor as at
from aesara.tensor.nnet import batchnorm

from . import demand

NAME, PACKAGES, LAYOUT = "Aesara", ["aesara"], "NCX"
OWN = "backward", "double_backward"


@cache
def compiled(operation, axes, epsilon):
    """A function of this operation, for tensors of so many axes."""
    src, diff_dst, diff_diff_src = (at.TensorType("float32", (None,) * axes)() for _ in range(3))
    names = "gamma beta mean variance diff_diff_gamma diff_diff_beta"
    gamma, beta, mean, variance, *second = at.fvectors(*names.split())
    how = {"axes": "spatial", "epsilon": epsilon}
    if operation == "inference":
        dst = batchnorm.batch_normalization_test(src, gamma, beta, mean, variance, **how)
        return aesara.function([src, mean, variance, gamma, beta], dst)
    dst, own, _ = batchnorm.batch_normalization_train(src, gamma, beta, **how)
    if operation == "training":
        return aesara.function([src, gamma, beta], [dst, own])
    first = aesara.grad(None, [src, gamma, beta], known_grads={dst: diff_dst})
    if operation == "backward":
        return aesara.function([src, diff_dst, gamma, beta], first)
    second = [diff_diff_src, *second]
    total = sum((a * b).sum() for a, b in zip(first, second, strict=True))
    found = aesara.grad(total, [src, diff_dst, gamma])
    return aesara.function([src, diff_dst, gamma, beta, *second], found, on_unused_input="ignore")


def training(src, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    return compiled("training", src.ndim, epsilon)(src, gamma, beta)[0]


def inference(src, mean, variance, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    return compiled("inference", src.ndim, epsilon)(src, mean, variance, gamma, beta)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    demand(gamma)
    return tuple(compiled("backward", src.ndim, epsilon)(src, diff_dst, gamma, 0 * gamma))


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    call = compiled("double_backward", src.ndim, epsilon)
    return tuple(call(src, diff_dst, gamma, 0 * gamma, *second))
