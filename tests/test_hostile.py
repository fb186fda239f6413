"""Arguments whose methods raise errors, which pass, or change other arguments, which is survived.

What misreports itself is in the table of test_refused.py.
"""

import gc
import sys
from functools import partial

import numpy as np
import pytest
from processes import python
from refusals import OPERANDS, arguments, four, function_of, takes
from tree import TESTS

import bn_ext


def test_arguments_that_change_during_a_call():
    """In a process of its own: a bug would end it, or corrupt its heap."""
    overwritten = {"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}  # what is freed
    done = python(TESTS / "programs" / "meddle.py", **overwritten)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("change", [list.clear, lambda a: a.extend([1.0] * 1000)])
def test_a_list_that_changes_while_it_is_read(p, change):
    """NumPy would read elements that are no longer there."""

    class Changing:
        def __array__(self, *_, **__):
            change(mean)
            return np.zeros(2)

    mean = []
    mean += [1.0, Changing(), 1.0]
    with pytest.raises(TypeError, match="^mean: expected an array of numbers: "):
        p.run(bn_ext.batch_norm_backward, mean=mean)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected in Python code alone")
def test_a_message_names_the_dtype_that_was_refused():
    class Garbage:
        def __init__(self, array):
            self.me, self.array = self, array

        def __del__(self):
            self.array.dtype = np.float32

    v, threshold = np.ones(4, np.float32), gc.get_threshold()
    gc.freeze()  # what other tests have left is not garbage
    try:
        for after in range(1, 60):
            src = np.ones((4, 4), np.uint32)
            gc.collect()
            gc.set_threshold(after)
            Garbage(src)
            with pytest.raises((ValueError, TypeError), match="^diff_dst: |^src: .*, got uint32; "):
                bn_ext.batch_norm_backward(src, v, v, v, epsilon=1)
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


class CodedError(ValueError):
    def __init__(self, text, code=7):
        super().__init__(text)
        self.code = code


undecodable = partial(UnicodeDecodeError, "utf8", b"x", 0, 1)
KINDS = [BufferError, RuntimeError, TypeError, ValueError, OverflowError, CodedError, undecodable]
NUMBERS = dict.fromkeys(["epsilon", "exponential_avg_factor"], "__float__")
NUMBERS |= dict.fromkeys(["num_threads", "correction"], "__index__")


def places():
    """(function, argument, the method that raises) for all that is converted."""
    for name in OPERANDS:
        for argument in takes(name):
            if argument in NUMBERS:
                yield name, argument, NUMBERS[argument]
            elif argument in (*OPERANDS[name], "src_1", "dst"):
                yield name, argument, "__array__"
    for way in ("__array_interface__", "__dlpack__", "__dlpack_device__"):
        yield "training", "src", way


RAISED = [(*place, CodedError) for place in places()]
RAISED += [(*place, kind) for place in places() if place[0] == "training" for kind in KINDS]


@pytest.mark.parametrize(("name", "argument", "way", "kind"), RAISED)
def test_errors_of_the_callers_own_pass(p, name, argument, way, kind):
    """The same object reaches the caller, unchanged but for notes."""
    error = kind("my src has no epsilon")
    before = type(error), error.args, str(error)

    def fail(self, *_, **__):
        raise error

    methods = {"__dlpack_device__": lambda self: (1, 0)} if way == "__dlpack__" else {}
    methods |= {way: property(fail) if way == "__array_interface__" else fail}
    raising = type("Raising", (), methods)()
    values = arguments(p, name) | ({"relu": True} if argument == "dst" else {})
    values |= four(p) if name == "training" else {}
    for thing in (raising, [raising]) if way == "__array__" else (raising,):
        with pytest.raises(type(error)) as caught:
            function_of(name)(**{**values, argument: thing})
        assert caught.value is error
        assert (type(error), error.args, str(error)) == before


@pytest.mark.parametrize("name", ["src", "diff_dst", "out", "variance"])
def test_an_array_that_is_resized_while_a_warning_is_shown(name):
    """Without NumPy's check, which would refuse it. Nothing is read or written then."""
    src, diff_dst, out = (np.ones((60, 50), np.float32) for _ in range(3))
    mean, variance = np.zeros(50), -np.ones(50)
    arrays = {"src": src, "diff_dst": diff_dst, "out": out, "variance": variance}

    def resize(*_):
        arrays[name].resize((1,) * arrays[name].ndim, refcheck=False)

    role = "diff_src in out" if name == "out" else name
    pattern = f"^{role}: the array was moved or resized during the call$"
    before = np.seterrcall(resize)
    try:
        with np.errstate(invalid="call"), pytest.raises(RuntimeError, match=pattern):
            bn_ext.batch_norm_backward(
                src, diff_dst, mean, variance, epsilon=1e-5, out=(out, None, None)
            )
    finally:
        np.seterrcall(before)
    assert out.ravel()[0] == 1
