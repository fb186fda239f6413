"""Keras's layer on torch."""

from .keras import functions

NAME, PACKAGES, LAYOUT, OWN = "Keras on torch", ["keras", "torch"], "NXC", True
globals().update(functions("torch"))
