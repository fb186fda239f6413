"""Conversion of command-line arguments, and the messages for wrong ones."""

import argparse
import math
import sys

import bn_ext._core as _core
from bn_ext._bench import Shape


class UsageError(Exception):
    """The request cannot be carried out; the message is for the user."""


def as_shape(text: str) -> Shape:
    """8x64x28x28 or 8,64,28,28 as (N, C, ...)."""
    try:
        shape = tuple(int(word) for word in text.replace(",", "x").split("x"))
    except ValueError:
        shape = ()
    if len(shape) < 2 or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            f"expected N, C and any other sizes, each at least 1, like 8x64x28x28, got {text!r}"
        )
    return shape


def as_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not sys.float_info.min <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, more than 0, got {text!r}")
    return value


def as_timeout(text: str) -> float:
    """A process that does not answer is looked at ten times a second."""
    value = as_seconds(text)
    if value < 0.1:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, 0.1 or more, got {text!r}")
    return value


def as_layout(text: str) -> str:
    """The name of a data format."""
    try:
        _core.channel_axis_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None
    return text


def as_whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return int(text)
