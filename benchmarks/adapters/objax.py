"""Objax's layer; gradients are JAX's."""

import jax.numpy as jnp
from objax import StateVar
from objax.nn import BatchNorm

from . import demand
from .jax import backward_of, double_backward_of

NAME, PACKAGES, LAYOUT = "Objax", ["objax", "jax"], "NCX"
OWN = "backward", "double_backward"


def layer_of(src, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    shape = (1, src.shape[1], *[1] * (src.ndim - 2))
    redux = (0, *range(2, src.ndim))
    layer = BatchNorm(shape, redux, momentum=0.0, eps=epsilon)
    layer.gamma, layer.beta = (StateVar(a.reshape(shape)) for a in (gamma, beta))
    layer.running_var = StateVar(jnp.zeros(shape))  # to which the batch's is added
    return layer


def training(src, gamma, beta, epsilon):
    layer = layer_of(src, gamma, beta, epsilon)
    dst = layer(src, True)
    return dst, layer.running_mean.value.reshape(-1), layer.running_var.value.reshape(-1)


def inference(src, mean, variance, gamma, beta, epsilon):
    layer = layer_of(src, gamma, beta, epsilon)
    shape = layer.running_mean.value.shape
    layer.running_mean, layer.running_var = (
        StateVar(jnp.array(a).reshape(shape)) for a in (mean, variance)
    )
    return layer(src, False)


backward = backward_of(training)
double_backward = double_backward_of(backward)
