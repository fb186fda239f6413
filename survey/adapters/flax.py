"""flax's layer; gradients are JAX's."""

import numpy as np
from flax import linen

from .jax import backward_of, double_backward_of

NAME, PACKAGES, LAYOUT = "flax", ["flax", "jax"], "NXC"
OWN = "backward", "double_backward"


def applied(src, mean, variance, gamma, beta, epsilon, frozen):
    vectors = {"scale": gamma, "bias": beta}
    vectors = {name: a for name, a in vectors.items() if a is not None}
    used = {f"use_{name}": name in vectors for name in ("scale", "bias")}
    layer = linen.BatchNorm(use_running_average=frozen, momentum=0.0, epsilon=epsilon, **used)
    state = {"params": vectors, "batch_stats": {"mean": mean, "var": variance}}
    return layer.apply(state, src, mutable=["batch_stats"])


def training(src, gamma, beta, epsilon):
    zeros = np.zeros(src.shape[-1], "f4")
    dst, stats = applied(src, zeros, zeros + 1, gamma, beta, epsilon, False)
    return dst, stats["batch_stats"]["mean"], stats["batch_stats"]["var"]


def inference(src, mean, variance, gamma, beta, epsilon):
    return applied(src, mean, variance, gamma, beta, epsilon, True)[0]


backward = backward_of(training)
double_backward = double_backward_of(backward)
