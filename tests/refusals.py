"""How a call is refused: the same by the whole and its halves, and nothing is written.

And errors that are the caller's own, which pass.
"""

import numpy as np
import pytest
from cases import EPSILON, with_count

import bn_ext
from bn_ext import _core

#: What the sums need to be known: the arguments of the first half.
OF_REDUCE = ["src", "diff_dst", "mean", "data_format", "num_threads"]


def refused(kind, message, p, **changed):
    """The general function, its dry run and both halves raise this, and write nothing."""
    arguments = {**p.arguments(), "epsilon": EPSILON, "out": tuple(p.outs()), **changed}
    written = [a for a in (*arguments["out"], *p.arguments().values()) if a is not None]
    before = [np.array(a).tobytes() for a in written]
    with pytest.raises(kind, match=message):
        bn_ext.batch_norm_backward(**arguments)
    with pytest.raises(kind, match=message):
        _core._dry_run(bn_ext.batch_norm_backward, **arguments)
    sums = with_count(np.zeros((2, len(p.mean))), 24)
    with pytest.raises(kind, match=message):
        bn_ext.batch_norm_backward_apply(**arguments, sums=sums)
    if changed.keys() & set(OF_REDUCE):
        with pytest.raises(kind, match=message):
            bn_ext.batch_norm_backward_reduce(
                **{name: arguments[name] for name in OF_REDUCE if name in arguments}
            )
    assert [np.array(a).tobytes() for a in written] == before


# ---- errors of the caller's own ---------------------------------------------------------


class CodedError(ValueError):
    """An error that cannot be made again from its text."""

    def __init__(self, text, code=7):
        super().__init__(text)
        self.code = code


def undecodable(text):
    return UnicodeDecodeError("utf8", b"x", 0, 1, text)


RAISED = [BufferError, RuntimeError, TypeError, ValueError, OverflowError, CodedError, undecodable]
#: What asks an argument for its array, or its number.
ARRAYS = ["__array__", "__array_interface__", "__dlpack__", "__dlpack_device__"]
NUMBERS = ["__float__", "__index__"]


def raising(error, way):
    """An object that raises it when it is asked."""

    def fail(self, *_, **__):
        raise error

    methods = {way: property(fail) if way == "__array_interface__" else fail}
    if way == "__dlpack__":
        methods["__dlpack_device__"] = lambda self: (1, 0)
    return type("Raising", (), methods)()


def check_passes(error, call):
    """The very object, unchanged but for notes."""
    before = type(error), error.args, str(error)
    with pytest.raises(type(error)) as caught:
        call()
    assert caught.value is error
    assert (type(error), error.args, str(error)) == before
