"""Keras's layer on TensorFlow."""

from .keras import functions

NAME, PACKAGES, LAYOUT, OWN = "Keras on TensorFlow", ["keras", "tensorflow"], "NXC", True
globals().update(functions("tensorflow"))
