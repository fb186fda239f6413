"""Objects that lie about their memory, dtype or class: no call believes them.

An output that claims to be larger than it is has canaries on both sides: bytes that a call would
change if it believed the claim.
"""

import sys

import numpy as np
import pytest
from cases import EPSILON, INPUTS, OUTPUTS, SHORT, Problem, all_bits, dtype

import bn_ext


def fenced(shape, name="float32"):
    """(an array of sevens in the middle of a buffer, the buffer's bytes)."""
    size = int(np.prod(shape)) * dtype(name).itemsize
    memory = np.full(size + 8192, 0xA5, np.uint8)
    array = memory[4096 : 4096 + size].view(dtype(name)).reshape(shape)
    array[...] = 7
    return array, memory


def untouched(memory):
    return (memory[:4096] == 0xA5).all() and (memory[-4096:] == 0xA5).all()


class Lying(np.ndarray):
    """An array with properties and methods that say what the test wants."""

    lies = {}  # noqa: RUF012 - set by each test

    def _say(self, name):
        return self.lies.get(name, np.asarray(self).__getattribute__(name))

    dtype = property(lambda self: self._say("dtype"))
    flags = property(lambda self: self._say("flags"))
    shape = property(lambda self: self._say("shape"))
    strides = property(lambda self: self._say("strides"))
    ndim = property(lambda self: self._say("ndim"))
    size = property(lambda self: self._say("size"))
    itemsize = property(lambda self: self._say("itemsize"))

    def view(self, *arguments):
        return self.lies["view"](*arguments) if "view" in self.lies else self


class Flags:
    writeable = True


def lie(array, **lies):
    lying = np.ndarray.view(array, Lying)
    type(lying).lies = lies
    return lying


@pytest.mark.parametrize("which", range(len(OUTPUTS)))
def test_an_output_that_lies(p, which):
    """The output claims a dtype or a shape of more bytes than it has. Or it claims to be writable,
    but is the memory of a bytes object, which others may hold too.
    """
    like = (p.src, p.mean, p.mean)[which]
    short, memory = fenced(like.shape, "int16")
    small, others = fenced((2,))
    held = bytes(like.nbytes)
    says = {name: getattr(like, name) for name in ("shape", "ndim", "strides", "size")}
    for lying, message in (
        (lambda: lie(short, dtype=np.dtype(np.float32), itemsize=4),
         "expected dtype float32.*, got int16"),
        (lambda: lie(small, **says), "expected shape"),
        (lambda: lie(np.frombuffer(held, np.float32).reshape(like.shape), flags=Flags()),
         "expected a writable array"),
    ):  # fmt: skip
        out = [None, None, None]
        out[which] = lying()
        with pytest.raises(ValueError, match=f"^out: .*: {message}"):
            p.run(bn_ext.batch_norm_backward, out=tuple(out))
    assert untouched(memory)
    assert untouched(others)
    assert (short == 7).all()
    assert (small == 7).all()
    assert held == bytes(like.nbytes)


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("name", SHORT)
def test_an_output_whose_view_is_another_array(rng, name, which):
    """16-bit vectors are viewed as integers without calling their view method."""
    p = Problem(rng, (6, 5), "NXC", name, name)
    want = p.run(bn_ext.batch_norm_backward)
    array, memory = fenced(p.mean.shape, name)
    elsewhere = np.frombuffer(bytes(10), np.uint16)
    out = [None, None, None]
    out[which] = lie(array, view=lambda *_: elsewhere)
    grads = p.run(bn_ext.batch_norm_backward, out=tuple(out))
    assert grads[which] is out[which]
    assert array.tobytes() == want[which].tobytes()
    assert not elsewhere.any()
    assert untouched(memory)


def test_a_subclass_that_does_not_lie_is_written_and_returned(p):
    class Named(np.ndarray):
        pass

    out = tuple(np.empty_like(a).view(Named) for a in (p.src, p.mean, p.mean))
    grads = p.run(bn_ext.batch_norm_backward, out=out)
    assert all(a is b for a, b in zip(grads, out, strict=True))
    assert all_bits(map(np.asarray, out)) == all_bits(p.run(bn_ext.batch_norm_backward))


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_a_dtype_whose_type_runs_code(p):
    """Reading the name of a dtype's type may run code, so no dtype is recognized by this name."""
    asked = []

    class Meta(type(np.void)):
        @property
        def __name__(cls):
            asked.append(cls)
            p.src.shape = (1, 24, 5)
            return "bfloat16"

    class Void(np.void, metaclass=Meta):
        pass

    vector = np.zeros(5, np.dtype((Void, 2)))
    data = np.zeros((6, 4, 5), vector.dtype)
    for changed in (
        {"src": data, "diff_dst": data}, {"mean": vector}, {"variance": vector},
        {"gamma": vector}, {"diff_dst": data}, {"out": (data, None, None)},
        {"out": (None, vector, None)},
    ):  # fmt: skip
        asked.clear()
        p.src.shape = (6, 4, 5)
        with pytest.raises((TypeError, ValueError), match=f"^{next(iter(changed))}: "):
            p.run(bn_ext.batch_norm_backward, **changed)
        assert not asked


def test_bfloat16_is_ml_dtypes_own(p, rng, monkeypatch):
    """bfloat16 is recognized by identity: neither its name nor a false ml_dtypes is enough."""

    class bfloat16(np.void):  # noqa: N801 - the name is the point
        pass

    like = np.dtype((bfloat16, 2))
    with pytest.raises(TypeError, match="^src: expected float32, .* or bfloat16, got"):
        bn_ext.batch_norm_backward(
            np.zeros((6, 5), like), np.zeros((6, 5), like), *p.vectors(), epsilon=EPSILON
        )

    class Module:
        pass

    Module.bfloat16 = bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", Module())
    with pytest.raises(TypeError, match="^src: expected float32"):
        bn_ext.batch_norm_backward(
            np.zeros((6, 5), like), np.zeros((6, 5), like), *p.vectors(), epsilon=EPSILON
        )


def test_a_class_that_lies_about_being_an_array(p):
    class Pretender:
        __class__ = np.ndarray
        dtype, shape, ndim, nbytes = p.src.dtype, p.src.shape, 3, p.src.nbytes

    for argument in INPUTS:
        with pytest.raises(TypeError, match=f"^{argument}: expected"):
            p.run(bn_ext.batch_norm_backward, **{argument: Pretender()})
    with pytest.raises((TypeError, ValueError), match="^out: diff_src: expected"):
        p.run(bn_ext.batch_norm_backward, out=(Pretender(), None, None))


@pytest.mark.parametrize(
    "argument", ["is_training", "param_grads", "epsilon", "src", "mean", "out"]
)
def test_an_object_that_does_not_tell_its_class(p, argument):
    class Silent:
        @property
        def __class__(self):
            raise KeyError("none of your business")

    with pytest.raises((KeyError, TypeError), match=f"none of your business|^{argument}: "):
        p.run(bn_ext.batch_norm_backward, **{argument: Silent()})


def test_names_that_are_not_told(p):
    """A message is written even if a thing refuses to tell its type or its repr."""

    class Meta(type):
        __module__ = __name__ = property(lambda cls: 1 / 0)

    class Text(str):
        def __len__(self):
            raise KeyError

        __str__ = __getitem__ = __len__

    class Thing(metaclass=Meta):
        def __repr__(self):
            return Text("x" * 1000)

    class Mute(metaclass=Meta):
        def __repr__(self):
            raise KeyError

    for argument in ("src", "mean", "epsilon", "is_training", "num_threads", "data_format"):
        for thing in (Thing(), Mute()):
            with pytest.raises((TypeError, ValueError), match=f"^{argument}: ") as caught:
                p.run(bn_ext.batch_norm_backward, **{argument: thing})
            assert len(str(caught.value)) < 200
