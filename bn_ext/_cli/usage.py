"""Conversion of command-line arguments, and the messages for wrong ones."""

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bn_ext._bench.problems import Shape

__all__ = [
    "UsageError",
    "as_limit",
    "as_seconds",
    "as_shape",
    "as_whole",
    "demand_picture",
    "demand_writable",
    "writing",
]


class UsageError(Exception):
    """The request cannot be carried out; the message is for the user."""


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def as_shape(text: str) -> Shape:
    """8x64x28x28 or 8,64,28,28 as (N, C, ...)."""
    try:
        shape = tuple(int(word) for word in text.replace(",", "x").split("x"))
    except ValueError:
        shape = ()
    if len(shape) < 2 or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            "expected N, C and any other sizes, each at least 1, like 8x64x28x28, "
            f"got {shown(text)}"
        )
    # The lowest limits of NumPy's versions, for elements of 8 bytes.
    if len(shape) > 32 or 8 * math.prod(shape) >= 1 << 63:
        raise argparse.ArgumentTypeError(
            f"expected at most 32 sizes and fewer than 2**60 elements, got {shown(text)}"
        )
    return shape


def as_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds, more than 0, got {shown(text)}"
        )
    return value


def as_limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number >= 0, got {shown(text)}")
    return value


def as_whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {shown(text)}")
    return int(text)


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Name the option and the file if the system refuses to write."""
    try:
        yield
    except BrokenPipeError:  # has an exit status of its own
        raise
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def demand_writable(option: str, path: Path) -> None:
    """Raise UsageError before measuring, instead of an OSError afterwards."""
    existed = os.path.lexists(path)
    if existed and not path.is_file() and not path.is_dir():
        return  # a pipe would end if it were opened and closed
    with writing(option, path):
        path.open("ab").close()
    if not existed:
        path.unlink()


def demand_picture(option: str, path: Path) -> None:
    """Likewise, if matplotlib cannot write such a file."""
    from matplotlib.figure import Figure

    endings = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise UsageError(
            f"{option}: expected a file name that ends in {', '.join(endings)}, "
            f"got {shown(str(path))}"
        )
    demand_writable(option, path)
