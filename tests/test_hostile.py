"""Arguments that change one another during a call: an error or the right answer.

Most of these would end the process, or write to wrong places, if methods of other arguments could
change arrays after their check. test_lies.py has objects that lie.
"""

import collections
import contextlib
import itertools

import numpy as np
import pytest
from cases import EPSILON, INPUTS, VECTORS, Problem, placed
from processes import printed_by
from tree import TESTS

import bn_ext

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
    """A number or an array whose method first changes another argument."""

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
    """An out= that changes another argument, or its own entry, when its entries are read."""

    change = None

    def __iter__(self):
        change, self.change = self.change, None
        if change:
            change()
        return super().__iter__()


TARGETS = [*INPUTS, "out 0", "out 1", "out 2"]
BY = ["epsilon", "num_threads", *VECTORS, "diff_dst", "out", "sums"]
CODE = """
import sys
sys.path.insert(0, {tests!r})
from test_hostile import TARGETS, meddle
for target in TARGETS:
    print(target, flush=True)
    meddle({by!r}, target)
"""


def changed_by(by, target, change, function, how, given):
    """A call in which a method of `by` changes `target`: return its results, and the right ones.

    Both are None if there is no such call, or if it is refused.
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
        options |= {"sums": sums}
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
    """Try every change of the target by a method of `by`, in one call and in halves."""
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
        if found is None:
            continue
        found, want = (a if isinstance(a, tuple) else (a,) for a in (found, want))
        for a, b in zip(found, want, strict=True):
            assert a.tobytes() == b.tobytes(), (name, function, how, given)


@pytest.mark.parametrize("by", BY)
def test_arguments_that_change_one_another(by):
    """A separate process runs this: a bug would end it, or corrupt its heap."""
    code = CODE.format(tests=str(TESTS), by=by)
    printed_by(code, MALLOC_CHECK_="3", MALLOC_PERTURB_="165")


# ---- finalizers, which run at any allocation ------------------------------------------


FINALIZER = """
import ml_dtypes, numpy as np, bn_ext

class Fuse(np.ndarray):
    target = None
    def __del__(self):
        if Fuse.target is not None:
            Fuse.target.dtype = np.uint8

class Sums:
    # A copy is made of these sums. Then the array that held them is released, and Fuse acts.
    def __init__(self, target):
        self.target = target
    def __array__(self, *_, **__):
        array = np.asfortranarray(SUMS).view(Fuse)
        Fuse.target = self.target
        return array

n, C = 4000, 64
SUMS = np.array([[1.0] * C, [1.0] * C, [n] * C])
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
                **copies, sums=SUMS, epsilon=0)
            try:
                found = bn_ext.batch_norm_backward_apply(
                    **arrays, sums=Sums(arrays[which]), epsilon=0)
            except (TypeError, ValueError):
                continue
            for a, b in zip(found, want, strict=True):
                assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), (name, which, order)
for size in range(1, 4000):
    np.empty(size, np.uint8)
"""


def test_finalizers_that_change_an_array():
    """An array's properties are read once, so that as much memory is allocated as is written."""
    printed_by(FINALIZER, MALLOC_CHECK_="3")


def test_garbage_that_changes_an_array():
    """At each allocation of a call in turn, collected garbage changes src's dtype. If that
    happens before the check, the call is refused; if after it, the change no longer matters.
    """
    code = """
import gc, numpy as np, bn_ext
dy, v = np.ones((16, 16), np.float32), np.ones(16, np.float32)

class Cycle:
    def __init__(self, target):
        self.me, self.target = self, target
    def __del__(self):
        self.target.dtype = np.uint8

class Epsilon:
    def __init__(self, target, after):
        self.target, self.after = target, after
    def __float__(self):
        gc.collect()
        gc.disable()
        Cycle(self.target)
        self.pairs = [(i, i) for i in range(3000)]  # else tuples come from a free list, uncounted
        gc.set_threshold(len(self.pairs) + self.after)
        gc.enable()
        return 0.5

before = gc.get_threshold()
for after in range(40):
    x = np.ones((16, 16), np.float32)
    try:
        grads = bn_ext.batch_norm_backward(x, dy, v, v, epsilon=Epsilon(x, after))
    except TypeError as error:
        assert str(error).startswith("src: expected float32"), error
    else:
        assert grads.diff_src.dtype == np.float32 and grads.diff_src.nbytes == 1024, after
    gc.set_threshold(*before)
"""
    printed_by(code, MALLOC_CHECK_="3")


def test_lists_that_change_while_they_are_read(p):
    """NumPy would read elements that are no longer there."""

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
        with pytest.raises(
            TypeError, match="^mean: expected an array of numbers, got a list that holds a"
        ):
            bn_ext.batch_norm_backward(
                p.src, p.diff_dst, [sequence([flat])], p.variance, epsilon=EPSILON
            )
    endless = []
    endless += [endless, endless]
    with pytest.raises(TypeError, match="^gamma: .* got lists nested more than 64 deep$"):
        bn_ext.batch_norm_backward(p.src, p.diff_dst, p.mean, p.variance, endless, epsilon=EPSILON)
    shared = [1.0]
    for _ in range(60):  # 2^60 elements, if they were counted
        shared = [shared, shared]
    for argument in ("epsilon", "data_format", "num_threads", "is_training"):
        with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
            p.run(bn_ext.batch_norm_backward, **{argument: shared})
