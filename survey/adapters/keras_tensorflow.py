"""Keras's layer on TensorFlow."""

from .keras import functions

NAME, PACKAGES, LAYOUT = "Keras on TensorFlow", ["keras", "tensorflow"], "NXC"
OWN = "backward", "double_backward"
globals().update(functions("tensorflow"))
