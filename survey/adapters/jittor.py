"""Jittor's layer; gradients are the automatic ones."""

import os

os.environ |= {"nvcc_path": "", "use_mkl": "0"}  # CPUs only, and no download
import jittor as jt

from . import demand

NAME, PACKAGES, LAYOUT = "Jittor", ["jittor"], "NCX"
OWN = "backward", "double_backward"


def layer_of(channels, gamma, beta, epsilon, training):
    layer = jt.nn.BatchNorm(channels, epsilon, 1.0, is_train=training)
    layer.weight, layer.bias = gamma, beta
    layer.running_var = jt.zeros(channels)  # to which the batch's is added
    return layer


def arrays_of(*arrays):
    return [jt.array(demand(a)) for a in arrays]


def training(src, gamma, beta, epsilon):
    src, gamma, beta = arrays_of(src, gamma, beta)
    layer = layer_of(len(gamma), gamma, beta, epsilon, True)
    return tuple(a.numpy() for a in (layer(src), layer.running_mean, layer.running_var))


def inference(src, mean, variance, gamma, beta, epsilon):
    src, mean, variance, gamma, beta = arrays_of(src, mean, variance, gamma, beta)
    layer = layer_of(len(gamma), gamma, beta, epsilon, False)
    layer.running_mean, layer.running_var = mean, variance
    return layer(src).numpy()


def first(src, diff_dst, gamma, epsilon):
    beta = jt.zeros_like(gamma)
    dst = layer_of(len(gamma), gamma, beta, epsilon, True)(src)
    return jt.grad((dst * diff_dst).sum(), [src, gamma, beta])


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    return tuple(a.numpy() for a in first(*arrays_of(src, diff_dst, gamma), epsilon))


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    leaves, second = arrays_of(src, diff_dst, gamma), arrays_of(*second)
    results = first(*leaves, epsilon)
    total = sum((a * b).sum() for a, b in zip(results, second, strict=True))
    return tuple(a.numpy() for a in jt.grad(total, leaves))
