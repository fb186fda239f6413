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


TARGETS = [*INPUTS, "out 0", "out 1", "out 2", "sums", "mean of sums"]
BY = ["epsilon", "num_threads", *VECTORS, "diff_dst", "out"]
KINDS = ["alone", "with sums", "sums"]
CODE = """
import sys
sys.path.insert(0, {tests!r})
from test_hostile import TARGETS, meddle
for target in TARGETS:
    print(target, flush=True)
    meddle({by!r}, target)
"""


def bits(found):
    arrays = found if isinstance(found, tuple) else (found._sums, found.mean)
    return [array.tobytes() for array in arrays]


def changed_by(by, target, change, kind, how, given):
    """A call in which a method of `by` changes `target`: return its bits, and the right ones.

    Both are None if there is no such call, or if it is refused.
    """
    p = Problem(np.random.default_rng(0), (50, 20), "NXC", "float32")
    arrays = {"src": placed(p.src, how), "diff_dst": p.diff_dst, "mean": p.mean}
    if how == "own":
        arrays["src"] = p.src.copy()
    options = {"num_threads": 2}
    outs = [np.full_like(a, 7) for a in (p.src, p.mean, p.mean)]
    function, targets = bn_ext.GradientSums, arrays
    if kind != "sums":
        function = bn_ext.batch_norm_backward
        arrays |= {"variance": p.variance, "gamma": p.gamma}
        options |= {"epsilon": EPSILON}
    if kind == "with sums":
        total = bn_ext.GradientSums(p.src, p.diff_dst, p.mean, exact=True)
        options |= {"sums": total}
        targets = arrays | {"sums": total.array, "mean of sums": total.mean}
    want = function(**{n: a.copy() for n, a in arrays.items()}, **options)
    if given and "epsilon" in options:
        options["out"] = tuple(outs)
    changed = outs[int(target[-1])] if target[:3] == "out" else targets.get(target)
    if changed is None or (by not in arrays and by not in options) or by == target:
        return None, None

    def now():
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            change(changed)

    if by in arrays:
        arrays[by] = MeddlingArray(arrays[by], now)
    elif by == "out":
        options["out"] = MeddlingList(outs)
        options["out"].change = now
    else:
        options[by] = Meddling(options[by], now)
    with contextlib.suppress(TypeError, ValueError):
        return bits(function(**arrays, **options)), bits(want)
    return None, None


def meddle(by, target):
    """Try every change of the target by a method of `by`, in each kind of call."""
    for (name, change), kind, how, given in itertools.product(
        CHANGES.items(), KINDS, ("own", "spread"), (True, False)
    ):
        found, want = changed_by(by, target, change, kind, how, given)
        assert found == want, (name, kind, how, given)


@pytest.mark.parametrize("by", BY)
def test_arguments_that_change_one_another(by):
    """A separate process runs this: a bug would end it, or corrupt its heap."""
    code = CODE.format(tests=str(TESTS), by=by)
    printed_by(code, MALLOC_CHECK_="3", MALLOC_PERTURB_="165")


# ---- finalizers, which run at any allocation ------------------------------------------


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
                p.run(bn_ext.batch_norm_backward, mean=thing)
    for sequence in (collections.deque, collections.UserList):
        flat = []
        flat += [1.0, Clearing(flat.clear), 1.0]
        with pytest.raises(
            TypeError, match="^mean: expected an array of numbers, got a list that holds a"
        ):
            p.run(bn_ext.batch_norm_backward, mean=[sequence([flat])])
    endless = []
    endless += [endless, endless]
    with pytest.raises(TypeError, match="^gamma: .* got lists nested more than 64 deep$"):
        p.run(bn_ext.batch_norm_backward, gamma=endless)
    shared = [1.0]
    for _ in range(60):  # 2^60 elements, if they were counted
        shared = [shared, shared]
    for argument in ("epsilon", "data_format", "num_threads", "is_training"):
        with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
            p.run(bn_ext.batch_norm_backward, **{argument: shared})
