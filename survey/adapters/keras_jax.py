"""Keras's layer on JAX."""

from .keras import functions

NAME, PACKAGES, LAYOUT = "Keras on JAX", ["keras", "jax"], "NXC"
OWN = "backward", "double_backward"
globals().update(functions("jax"))
