"""Objects that lie, or change during a call: an error or the right answer, never others' memory.

Each call runs beside canaries: bytes behind and before every array given, which must not
change. Most of these ended the process, or wrote where they should not, when what an
object said of itself was believed, or an array was checked before a method of another
argument could change it.
"""

import collections
import contextlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from cases import EPSILON, Problem, all_bits, dtype, placed

import bn_ext


@pytest.fixture
def p(rng):
    return Problem(rng, (6, 4, 5), "NXC")


def fenced(shape, name="float32"):
    """(an array of sevens in the middle of a buffer, the buffer's bytes)."""
    size = int(np.prod(shape)) * dtype(name).itemsize
    memory = np.full(size + 8192, 0xA5, np.uint8)
    array = memory[4096 : 4096 + size].view(dtype(name)).reshape(shape)
    array[...] = 7
    return array, memory


def untouched(memory):
    return (memory[:4096] == 0xA5).all() and (memory[-4096:] == 0xA5).all()


# ---- outputs that lie -----------------------------------------------------------


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


@pytest.mark.parametrize("which", range(3))
def test_an_output_that_lies_about_its_dtype(p, which):
    """A float16 array that says it is float32: half as many bytes as would be written."""
    shape = p.src.shape if which == 0 else p.mean.shape
    array, memory = fenced(shape, "float16")
    out = [None, None, None]
    out[which] = lie(array, dtype=np.dtype(np.float32), itemsize=4)
    with pytest.raises(ValueError, match=r"^out: .*: expected dtype float32, got float16"):
        p.run(bn_ext.batch_norm_backward, out=tuple(out))
    assert untouched(memory)
    assert (array == 7).all()


@pytest.mark.parametrize("which", range(3))
def test_an_output_that_lies_about_its_shape(p, which):
    shape = p.src.shape if which == 0 else p.mean.shape
    array, memory = fenced((2,))
    out = [None, None, None]
    strides = np.empty(shape, np.float32).strides
    out[which] = lie(array, shape=shape, ndim=len(shape), strides=strides, size=np.prod(shape))
    with pytest.raises(ValueError, match=r"^out: .*: expected shape"):
        p.run(bn_ext.batch_norm_backward, out=tuple(out))
    assert untouched(memory)


@pytest.mark.parametrize("which", range(3))
def test_an_output_that_says_it_is_writable(p, which):
    """Memory of a bytes object, which is shared by all who hold it."""
    like = (p.src, p.mean, p.mean)[which]
    held = bytes(like.nbytes)
    array = np.frombuffer(held, np.float32).reshape(like.shape)
    out = [None, None, None]
    out[which] = lie(array, flags=Flags())
    with pytest.raises(ValueError, match=r"^out: .*: expected a writable array"):
        p.run(bn_ext.batch_norm_backward, out=tuple(out))
    assert held == bytes(like.nbytes)


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_an_output_whose_view_is_another_array(rng, name, which):
    """16-bit vectors are seen as integers: by their memory, not by their view method."""
    p = Problem(rng, (6, 5), "NXC", name, name)
    want = p.run(bn_ext.batch_norm_backward)
    array, _ = fenced(p.mean.shape, name)
    elsewhere = np.frombuffer(bytes(10), np.uint16)
    out = [None, None, None]
    out[which] = lie(array, view=lambda *_: elsewhere)
    grads = p.run(bn_ext.batch_norm_backward, out=tuple(out))
    assert grads[which] is out[which]
    assert array.tobytes() == want[which].tobytes()
    assert not elsewhere.any()


def test_a_subclass_that_does_not_lie_is_written_and_returned(p):
    class Named(np.ndarray):
        pass

    out = tuple(np.empty_like(a).view(Named) for a in (p.src, p.mean, p.mean))
    grads = p.run(bn_ext.batch_norm_backward, out=out)
    assert all(a is b for a, b in zip(grads, out, strict=True))
    assert all_bits(map(np.asarray, out)) == all_bits(p.run(bn_ext.batch_norm_backward))


# ---- arrays that change while arguments are read ------------------------------------


CHANGES = {
    "other shape": lambda a: setattr(a, "shape", (a.size,)),
    "more axes": lambda a: setattr(a, "shape", (1, a.size, 1)),
    "other dtype": lambda a: setattr(a, "dtype", np.uint8),
    "wider dtype": lambda a: setattr(a, "dtype", np.float64),
    "smaller": lambda a: a.resize((1,) * a.ndim, refcheck=False),
    "larger": lambda a: a.resize((4000,), refcheck=False),
    "read-only": lambda a: setattr(a.flags, "writeable", False),
}


class Meddling:
    """A number, an array or a device whose method changes another argument first."""

    def __init__(self, value, change):
        self.value, self.change = value, change

    def _meddle(self):
        change, self.change = self.change, lambda: None
        change()
        return self.value

    def __float__(self):
        return float(self._meddle())

    def __index__(self):
        return int(self._meddle())


class MeddlingArray(Meddling):
    def __array__(self, *_, **__):
        return self._meddle()


class MeddlingList(list):
    """An out= whose entries change one another as they are read."""

    change = None

    def __iter__(self):
        change, self.change = self.change, None
        if change:
            change()
        return super().__iter__()


def fresh_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "MALLOC_CHECK_": "3", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


TARGETS = ["src", "diff_dst", "mean", "variance", "gamma", "out 0", "out 1", "out 2"]
BY = ["epsilon", "num_threads", "mean", "variance", "gamma", "diff_dst", "out", "count", "sums"]
CODE = """
import sys
sys.path.insert(0, {tests!r})
from test_hostile import TARGETS, meddle
for target in TARGETS:
    print(target, flush=True)
    meddle({by!r}, target)
"""


def changed_by(by, target, change, function, how, given):
    """A call in which a method of `by` changes `target`: its results or None, and the right ones.

    None for both where there is no such call.
    """
    p = Problem(np.random.default_rng(0), (50, 20), "NXC", "float32")
    arrays = {"src": placed(p.src, how), "diff_dst": p.diff_dst, "mean": p.mean}
    if how == "own":
        arrays["src"] = p.src.copy()
    options = {"num_threads": 2}
    outs = [np.full_like(a, 7) for a in (p.src, p.mean, p.mean)]
    if function is not bn_ext.batch_norm_backward_reduce:
        arrays |= {"variance": p.variance, "gamma": p.gamma}
        options |= {"epsilon": EPSILON}
    if function is bn_ext.batch_norm_backward_apply:
        sums = bn_ext.batch_norm_backward_reduce(p.src, p.diff_dst, p.mean)
        options |= {"sums": sums, "count": 50}
    want = function(**{n: a.copy() for n, a in arrays.items()}, **options)
    if given and "epsilon" in options:
        options["out"] = tuple(outs)
    changed = outs[int(target[-1])] if target[:3] == "out" else arrays.get(target)
    if changed is None or (by not in arrays and by not in options) or by == target:
        return None, None

    def now():
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            change(changed)

    if by in arrays or by == "sums":
        holder = arrays if by in arrays else options
        holder[by] = MeddlingArray(holder[by], now)
    elif by == "out":
        options["out"] = MeddlingList(outs)
        options["out"].change = now
    else:
        options[by] = Meddling(options[by], now)
    with contextlib.suppress(TypeError, ValueError):
        return function(**arrays, **options), want
    return None, None


def meddle(by, target):
    """Every change of the target by a method of another argument, in one call and in halves."""
    for (name, change), function, how, given in itertools.product(
        CHANGES.items(),
        (
            bn_ext.batch_norm_backward,
            bn_ext.batch_norm_backward_apply,
            bn_ext.batch_norm_backward_reduce,
        ),
        ("own", "spread"),
        (True, False),
    ):
        found, want = changed_by(by, target, change, function, how, given)
        if found is None or name in ("smaller", "larger", "other dtype", "wider dtype"):
            continue  # refused, or computed from values that are others by now
        found, want = (a if isinstance(a, tuple) else (a,) for a in (found, want))
        for a, b in zip(found, want, strict=True):
            assert a.tobytes() == b.tobytes(), (name, function, how, given)


@pytest.mark.parametrize("by", BY)
def test_arguments_that_change_one_another(by):
    """In a separate process: what goes wrong here ends it, or corrupts its heap."""
    code = CODE.format(tests=os.path.dirname(__file__), by=by)
    done = fresh_process(code, MALLOC_PERTURB_="165")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_dtype_whose_type_runs_code(p):
    """The name of a dtype's type would come from its metaclass: it is not read."""
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
        arguments = {n: getattr(p, n) for n in ("src", "diff_dst", "mean", "variance", "gamma")}
        with pytest.raises((TypeError, ValueError), match=f"^{next(iter(changed))}: "):
            bn_ext.batch_norm_backward(**{**arguments, **changed}, epsilon=EPSILON)


def test_bfloat16_is_ml_dtypes_own(p, rng, monkeypatch):
    """Recognised by identity; what calls itself bfloat16 is not, nor a module that is none."""

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

    for argument in ("src", "diff_dst", "mean", "variance", "gamma"):
        arguments = {"src": p.src, "diff_dst": p.diff_dst, "mean": p.mean, "variance": p.variance}
        arguments |= {"gamma": p.gamma, argument: Pretender()}
        with pytest.raises(TypeError, match=f"^{argument}: expected"):
            bn_ext.batch_norm_backward(**arguments, epsilon=EPSILON)
    with pytest.raises((TypeError, ValueError), match="^out: diff_src: expected"):
        p.run(bn_ext.batch_norm_backward, out=(Pretender(), None, None))


# ---- finalizers, which run at any allocation ------------------------------------------


FINALIZER = """
import gc, sys
import ml_dtypes, numpy as np, bn_ext

class Fuse(np.ndarray):
    target = None
    def __del__(self):
        if Fuse.target is not None:
            Fuse.target.dtype = np.uint8

class Sums:
    # Sums of which a copy is made: the array that they were in is let go of then.
    def __init__(self, target):
        self.target = target
    def __array__(self, *_, **__):
        array = np.ones((C, 2)).view(Fuse).T
        Fuse.target = self.target
        return array

n, C = 4000, 64
for name in ("float32", "bfloat16"):
    for which in ("src", "diff_dst", "mean", "variance", "gamma"):
        for order in ("C", "F"):
            Fuse.target = None
            dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
            arrays = {"src": np.ones((n, C), dtype)}
            arrays["diff_dst"] = np.ones((n, C), dtype, order=order)
            arrays |= {v: np.ones(C, dtype) for v in ("mean", "variance", "gamma")}
            copies = {k: a.copy() for k, a in arrays.items()}
            want = bn_ext.batch_norm_backward_apply(
                **copies, sums=np.ones((2, C)), count=n, epsilon=0)
            try:
                found = bn_ext.batch_norm_backward_apply(
                    **arrays, sums=Sums(arrays[which]), count=n, epsilon=0)
            except (TypeError, ValueError):
                continue
            for a, b in zip(found, want, strict=True):
                assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), (name, which, order)
for size in range(1, 4000):
    np.empty(size, np.uint8)
"""


def test_finalizers_that_change_an_array():
    """What was read of an array is not read again: new memory has the size that is written."""
    done = fresh_process(FINALIZER)
    assert done.returncode == 0, done.stderr[-2000:]


def test_garbage_that_changes_an_array():
    """The same by a cycle that is collected between the checks and the first allocation."""
    code = """
import gc, numpy as np, bn_ext
x, dy, v = np.ones((16, 16), np.float32), np.ones((16, 16), np.float32), np.ones(16, np.float32)

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        x.dtype = np.uint8

class Epsilon:
    def __float__(self):
        Cycle()
        gc.set_threshold(1)
        return 0.5

grads = bn_ext.batch_norm_backward(x, dy, v, v, epsilon=Epsilon())
assert grads.diff_src.dtype == np.float32 and grads.diff_src.nbytes == 1024, grads.diff_src.dtype
"""
    done = fresh_process(code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_lists_that_change_while_they_are_read(p):
    """NumPy would read what is no longer there."""

    class Clearing:
        def __init__(self, change):
            self.change = change

        def __array__(self, *_, **__):
            self.change()
            return np.zeros(2)

    for change in (list.clear, lambda a: a.extend([1.0] * 1000)):
        flat = []
        flat += [1.0, Clearing(lambda change=change, flat=flat: change(flat)), 1.0]
        inner = [1.0, 2.0]
        nested = [inner, Clearing(lambda change=change, inner=inner: change(inner)), inner]
        for thing in (flat, nested):
            with pytest.raises(TypeError, match="^mean: expected (an array of numbers: |float32)"):
                bn_ext.batch_norm_backward(p.src, p.diff_dst, thing, p.variance, epsilon=EPSILON)
    for sequence in (collections.deque, collections.UserList):
        flat = []
        flat += [1.0, Clearing(flat.clear), 1.0]
        with pytest.raises(TypeError, match="^mean: expected an array of numbers: it holds a"):
            bn_ext.batch_norm_backward(
                p.src, p.diff_dst, [sequence([flat])], p.variance, epsilon=EPSILON
            )
    endless = []
    endless += [endless, endless]
    with pytest.raises(TypeError, match="^gamma: .* too deep"):
        bn_ext.batch_norm_backward(p.src, p.diff_dst, p.mean, p.variance, endless, epsilon=EPSILON)
    shared = [1.0]
    for _ in range(60):  # 2^60 elements to who counts them
        shared = [shared, shared]
    for argument in ("epsilon", "data_format", "num_threads", "is_training"):
        with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
            p.run(bn_ext.batch_norm_backward, **{argument: shared})


@pytest.mark.parametrize(
    "argument", ["is_training", "param_grads", "epsilon", "src", "mean", "out"]
)
def test_an_object_that_does_not_tell_its_class(p, argument):
    class Silent:
        @property
        def __class__(self):
            raise KeyError("none of your business")

    arguments = {n: getattr(p, n) for n in ("src", "diff_dst", "mean", "variance", "gamma")}
    with pytest.raises((KeyError, TypeError), match=f"none of your business|^{argument}: "):
        bn_ext.batch_norm_backward(**{**arguments, "epsilon": EPSILON, argument: Silent()})


def test_names_that_are_not_told(p):
    """A message is written even where the type or the repr of a thing refuses."""

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

    arguments = {n: getattr(p, n) for n in ("src", "diff_dst", "mean", "variance", "gamma")}
    for argument in ("src", "mean", "epsilon", "is_training", "num_threads", "data_format"):
        for thing in (Thing(), Mute()):
            with pytest.raises((TypeError, ValueError), match=f"^{argument}: ") as caught:
                bn_ext.batch_norm_backward(**{**arguments, "epsilon": EPSILON, argument: thing})
            assert len(str(caught.value)) < 200
