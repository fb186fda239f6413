"""Chainer's functions; gradients are the automatic ones."""

import chainer
import numpy as np
from chainer import functions

from . import demand

NAME, PACKAGES, LAYOUT = "Chainer", ["chainer"], "NCX"
OWN = "backward", "double_backward"


def training(src, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    return functions.batch_normalization(src, gamma, beta, eps=epsilon).array


def inference(src, mean, variance, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    normalized = functions.fixed_batch_normalization
    return normalized(src, gamma, beta, mean, variance, eps=epsilon).array


def first(src, diff_dst, gamma, epsilon, **options):
    leaves = src, gamma, chainer.Variable(np.zeros_like(gamma.array))
    dst = functions.batch_normalization(*leaves, eps=epsilon)
    return chainer.grad([dst], leaves, [diff_dst], **options)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    demand(gamma)
    return tuple(a.array for a in first(*map(chainer.Variable, (src, diff_dst, gamma)), epsilon))


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    leaves = [*map(chainer.Variable, (src, diff_dst, gamma))]
    results = first(*leaves, epsilon, enable_double_backprop=True)
    second = [*map(chainer.Variable, second)]
    return tuple(a.array for a in chainer.grad(results, leaves, second))
