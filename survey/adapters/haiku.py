"""Haiku's layer; gradients are JAX's."""

import haiku

from .jax import backward_of, double_backward_of

NAME, PACKAGES, LAYOUT = "Haiku", ["haiku", "jax"], "NXC"
OWN = "backward", "double_backward"
AVERAGES = "batch_norm/~/mean_ema", "batch_norm/~/var_ema"


def layer_of(epsilon, training):
    def layer(src, gamma, beta):
        norm = haiku.BatchNorm(False, False, decay_rate=0.0, eps=epsilon)
        return norm(src, training, scale=gamma, offset=beta)

    return haiku.without_apply_rng(haiku.transform_with_state(layer))


def training(src, gamma, beta, epsilon):
    layer = layer_of(epsilon, True)
    dst, state = layer.apply(*layer.init(None, src, gamma, beta), src, gamma, beta)
    return dst, *(state[name]["average"].reshape(-1) for name in AVERAGES)


def inference(src, mean, variance, gamma, beta, epsilon):
    state = {name: {"average": a} for name, a in zip(AVERAGES, (mean, variance), strict=True)}
    return layer_of(epsilon, False).apply({}, state, src, gamma, beta)[0]


backward = backward_of(training)
double_backward = double_backward_of(backward)
