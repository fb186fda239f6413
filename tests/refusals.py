"""What the functions take and return, and how they refuse a call, writing nothing.

An error that one of the caller's objects raises reaches the caller unchanged.
"""

import functools

import numpy as np
import pytest
from cases import EPSILON, INPUTS, all_bits

import bn_ext
from bn_ext import _core
from bn_ext._sums import total_of

SECOND = ["diff_diff_src", "diff_diff_gamma", "diff_diff_beta"]
AFFINE = ["gamma", "beta"]
#: The arguments that each function gets here.
OPERANDS = {
    "backward": INPUTS,
    "GradientSums": INPUTS[:3],
    "training": ["src", *AFFINE],
    "Statistics": ["src"],
    "inference": ["src", "mean", "variance", *AFFINE],
    "double_backward": [*INPUTS, *SECOND],
}
FOUND = {"dst": "src", "mean": "mean", "variance": "mean"}
GRADIENTS = {"diff_src": "src", "diff_gamma": "mean", "diff_beta": "mean"}
#: The results of each function that takes `out`, and the argument that each is like.
RESULTS = {
    "backward": GRADIENTS,
    "training": FOUND,
    "inference": {"dst": "src"},
    "double_backward": {"diff_src": "src", "diff_diff_dst": "src", "diff_gamma": "mean"},
}
#: Arguments that may be absent.
OPTIONAL = [*AFFINE, *SECOND[1:]]


def function_of(name):
    """The function, or the class, whose call makes sums."""
    return getattr(bn_ext, name if name[0].isupper() else f"batch_norm_{name}")


def dry(name, **given):
    """Check a call's arguments, and compute nothing."""
    if "sums" in given:
        given["total"] = total_of(given.pop("sums"))
    return getattr(_core, name)(**given, dry=True)


def arguments(p, name):
    """The arguments that a function needs."""
    given = {each: getattr(p, each, None) for each in OPERANDS[name]}
    given["data_format"] = p.data_format
    return given | ({"epsilon": EPSILON} if name in RESULTS else {})


def outs(p, name):
    """An array of sevens for each result."""
    return [np.full_like(getattr(p, like), 7) for like in RESULTS[name].values()]


def as_out(name, out):
    """`out` as the function takes it."""
    return out[0] if name == "inference" else tuple(out)


def four(p, **changed):
    """Running statistics and how they are updated."""
    return {
        "running_mean": p.mean.copy(), "running_variance": p.variance.copy(),
        "exponential_avg_factor": 0.1, "correction": 1, **changed,
    }  # fmt: skip


def refused(kind, message, p, *names, **changed):
    """Check that each of these functions and its dry run raise this error and write nothing.

    Without names: the gradient, and its sums if they take what is changed.
    """
    of_sums = {*OPERANDS["GradientSums"], "data_format", "num_threads"}
    for name in names or ["backward", "GradientSums"][: 1 + (changed.keys() <= of_sums)]:
        given = arguments(p, name)
        if name in RESULTS:
            given["out"] = as_out(name, outs(p, name))
        given |= changed
        out = given.get("out")
        arrays = [*vars(p).values(), *changed.values(), *(out if isinstance(out, tuple) else [out])]
        arrays = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype != object]
        before = all_bits(arrays)
        for call in (function_of(name), functools.partial(dry, name))[: 1 + (name in RESULTS)]:
            with pytest.raises(kind, match=message):
                call(**given)
        assert all_bits(arrays) == before


# ---- errors that a caller's objects raise -----------------------------------------------


class CodedError(ValueError):
    """An error with more than a text, of the caller's own class."""

    def __init__(self, text, code=7):
        super().__init__(text)
        self.code = code


def undecodable(text):
    return UnicodeDecodeError("utf8", b"x", 0, 1, text)


RAISED = [BufferError, RuntimeError, TypeError, ValueError, OverflowError, CodedError, undecodable]
#: Methods that ask an argument for its array, or for its number.
ARRAYS = ["__array__", "__array_interface__", "__dlpack__", "__dlpack_device__"]
NUMBERS = ["__float__", "__index__"]


def raising(error, way):
    """An object that raises the error when it is asked."""

    def fail(self, *_, **__):
        raise error

    methods = {way: property(fail) if way == "__array_interface__" else fail}
    if way == "__dlpack__":
        methods["__dlpack_device__"] = lambda self: (1, 0)
    return type("Raising", (), methods)()


def check_passes(error, call):
    """The call raises the same error object, unchanged but for notes."""
    before = type(error), error.args, str(error)
    with pytest.raises(type(error)) as caught:
        call()
    assert caught.value is error
    assert (type(error), error.args, str(error)) == before
