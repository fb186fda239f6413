"""Keras's layer on JAX."""

from .keras import functions

NAME, PACKAGES, LAYOUT, OWN = "Keras on JAX", ["keras", "jax"], "NXC", True
globals().update(functions("jax"))
