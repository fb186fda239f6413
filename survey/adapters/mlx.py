"""MLX's layer; gradients are the automatic ones."""

import mlx.core as mx
from mlx import nn

from . import demand

NAME, PACKAGES, LAYOUT = "MLX", ["mlx"], "NXC"
OWN = "backward", "double_backward"


def layer_of(channels, gamma, beta, epsilon):
    layer = nn.BatchNorm(channels, epsilon, 1.0, affine=gamma is not None)
    if gamma is not None:
        demand(beta)
        layer.weight, layer.bias = mx.array(gamma), mx.array(beta)
    elif beta is not None:
        demand(gamma)
    return layer


def training(src, gamma, beta, epsilon):
    return layer_of(src.shape[-1], gamma, beta, epsilon)(mx.array(src))


def inference(src, mean, variance, gamma, beta, epsilon):
    layer = layer_of(src.shape[-1], gamma, beta, epsilon).eval()
    layer.running_mean, layer.running_var = mx.array(mean), mx.array(variance)
    return layer(mx.array(src))


def first(src, diff_dst, gamma, epsilon):
    leaves = [src] if gamma is None else [src, gamma, mx.zeros_like(gamma)]

    def forward(src, gamma=None, beta=None):
        return training(src, gamma, beta, epsilon)

    return mx.vjp(forward, leaves, [diff_dst])[1]


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    arrays = (None if a is None else mx.array(a) for a in (src, diff_dst, gamma))
    grads = first(*arrays, epsilon)
    return grads if gamma is not None else grads[0]


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    leaves, second = [*map(mx.array, (src, diff_dst, gamma))], [*map(mx.array, second)]
    return mx.vjp(lambda *leaves: first(*leaves, epsilon), leaves, second)[1]
