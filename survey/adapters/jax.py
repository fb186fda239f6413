"""JAX's function for it, `jax.nn.standardize`; gradients are the automatic ones."""

import jax
import jax.numpy as jnp

from . import demand

NAME, PACKAGES, LAYOUT = "JAX", ["jax"], "NXC"
OWN = "backward", "double_backward"


def training(src, gamma, beta, epsilon):
    axes = tuple(range(src.ndim - 1))
    mean, variance = jnp.mean(src, axes), jnp.var(src, axes)
    return inference(src, mean, variance, gamma, beta, epsilon), mean, variance


def inference(src, mean, variance, gamma, beta, epsilon):
    axes = tuple(range(src.ndim - 1))
    dst = jax.nn.standardize(src, axes, mean, variance, epsilon)
    dst = dst if gamma is None else dst * gamma
    return dst if beta is None else dst + beta


def backward_of(training):
    """The gradient, by reverse mode, of a forward pass in JAX."""

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        leaves = (src,) if gamma is None else (src, gamma, jnp.zeros_like(gamma))

        def forward(src, gamma=None, beta=None):
            grads = training(src, gamma, beta, epsilon)
            return grads[0] if isinstance(grads, tuple) else grads

        grads = jax.vjp(forward, *leaves)[1](diff_dst)
        return grads if gamma is not None else grads[0]

    return backward


def double_backward_of(backward):
    """The gradient of such a gradient."""

    def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
        demand(gamma)

        def first(src, diff_dst, gamma):
            return backward(src, diff_dst, None, None, gamma, epsilon)

        return jax.vjp(first, src, diff_dst, gamma)[1](second)

    return double_backward


backward = backward_of(training)
double_backward = double_backward_of(backward)
