"""Equinox's layer; gradients are JAX's."""

import equinox
import jax
import jax.numpy as jnp

from . import demand
from .jax import backward_of, double_backward_of

NAME, PACKAGES, LAYOUT = "Equinox", ["equinox", "jax"], "NCX"
OWN = "backward", "double_backward"


def normalized(src, mean, variance, gamma, beta, epsilon, inference):
    if (gamma is None) != (beta is None):
        demand(None)
    layer, state = equinox.nn.make_with_state(equinox.nn.BatchNorm)(
        src.shape[1], "batch", epsilon, gamma is not None, 0.0, mode="batch"
    )
    if gamma is not None:
        layer = equinox.tree_at(lambda a: (a.weight, a.bias), layer, (gamma, beta))
    if mean is not None:
        state = state.set(layer.batch_counter, jnp.array(1))
        state = state.set(layer.batch_state_index, (jnp.array(mean), jnp.array(variance)))

    def of_sample(sample, state):
        return layer(sample, state, inference=inference)

    dst, state = jax.vmap(of_sample, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
        src, state
    )
    return dst, *state.get(layer.batch_state_index)


def training(src, gamma, beta, epsilon):
    return normalized(src, None, None, gamma, beta, epsilon, False)


def inference(src, mean, variance, gamma, beta, epsilon):
    return normalized(src, mean, variance, gamma, beta, epsilon, True)[0]


backward = backward_of(training)
double_backward = double_backward_of(backward)
