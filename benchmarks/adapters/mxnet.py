"""MXNet's operator; gradients are the automatic ones."""

import numpy as np

np.bool = np.bool_  # MXNet asks NumPy for a name that went
import mxnet as mx  # noqa: E402

from . import demand  # noqa: E402

NAME, PACKAGES, LAYOUT = "MXNet", ["mxnet"], "NCX"
OWN = "backward", "double_backward"


def arrays_of(*arrays):
    return [mx.nd.array(demand(a), dtype=a.dtype) for a in arrays]


def normalized(src, gamma, beta, epsilon, *statistics, **others):
    statistics = statistics or (mx.nd.zeros_like(gamma), mx.nd.ones_like(gamma))
    options = {"eps": epsilon, "fix_gamma": False, **others}
    return mx.nd.BatchNorm(src, gamma, beta, *statistics, **options)


def training(src, gamma, beta, epsilon):
    with mx.autograd.train_mode():
        return normalized(*arrays_of(src, gamma, beta), epsilon).asnumpy()


def inference(src, mean, variance, gamma, beta, epsilon):
    src, *vectors = arrays_of(src, gamma, beta, mean, variance)
    return normalized(src, *vectors[:2], epsilon, *vectors[2:], use_global_stats=True).asnumpy()


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    src, diff_dst, gamma = arrays_of(src, diff_dst, gamma)
    leaves = src, gamma, mx.nd.zeros_like(gamma)
    for leaf in leaves:
        leaf.attach_grad()
    with mx.autograd.record():
        dst = normalized(*leaves, epsilon)
    dst.backward(diff_dst)
    return tuple(leaf.grad.asnumpy() for leaf in leaves)
