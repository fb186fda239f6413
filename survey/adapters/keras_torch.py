"""Keras's layer on torch."""

from .keras import functions

NAME, PACKAGES, LAYOUT = "Keras on torch", ["keras", "torch"], "NXC"
OWN = "backward", "double_backward"
globals().update(functions("torch"))
