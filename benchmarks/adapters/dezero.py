"""DeZero's function; gradients are the automatic ones."""

import numpy as np

np.int = int  # noqa: NPY001 (DeZero asks NumPy for a name that went)
import dezero  # noqa: E402
from dezero import Variable, functions  # noqa: E402

from . import demand  # noqa: E402

NAME, PACKAGES, LAYOUT = "DeZero", ["dezero"], "NCX"
OWN = "backward", "double_backward"


def normalized(src, gamma, beta, epsilon, *statistics):
    if src.ndim not in (2, 4):
        raise NotImplementedError("the package takes two axes or four")
    demand(gamma), demand(beta)
    zeros = np.zeros_like(getattr(gamma, "data", gamma))
    return functions.batch_nrom(src, gamma, beta, *statistics or (zeros, zeros + 1), 0.0, epsilon)


def training(src, gamma, beta, epsilon):
    return normalized(src, gamma, beta, epsilon).data


def inference(src, mean, variance, gamma, beta, epsilon):
    with dezero.test_mode():
        return normalized(src, gamma, beta, epsilon, mean, variance).data


def first(src, diff_dst, gamma, epsilon, again):
    leaves = src, gamma, Variable(np.zeros_like(gamma.data))
    dst = normalized(*leaves, epsilon)
    dst.grad = diff_dst
    dst.backward(create_graph=again)
    return [leaf.grad for leaf in leaves]


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    demand(gamma)
    arrays = map(Variable, (src, diff_dst, gamma))
    return tuple(a.data for a in first(*arrays, epsilon, False))


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    leaves = [*map(Variable, (src, diff_dst, gamma))]
    results = first(*leaves, epsilon, True)
    for leaf in leaves:
        leaf.cleargrad()
    total = 0
    for a, b in zip(results, second, strict=True):
        total += functions.sum(a * b)
    total.backward()
    return tuple(leaf.grad.data for leaf in leaves)
