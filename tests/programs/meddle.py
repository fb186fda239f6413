"""Arguments that change during a call: by methods of others, or by garbage that is collected.

Nothing is asked of errors, and of results only that they have room for their elements. But the
process lives, with a heap that is whole.
"""

import contextlib
import gc
import itertools
import operator
import pickle

import numpy as np

import bn_ext

VIEWS = [
    lambda a: setattr(a, "shape", (a.size,)),
    lambda a: setattr(a, "shape", (1, a.size, 1)),
    lambda a: setattr(a, "shape", (a.size // 2, 2, 1)),
    lambda a: setattr(a, "dtype", np.uint8),
    lambda a: setattr(a, "dtype", np.float64),
    lambda a: setattr(a.flags, "writeable", False),
]
#: These free memory, which no array may do once it is in use.
SIZES = [
    lambda a: a.resize((1,) * a.ndim, refcheck=False),
    lambda a: a.resize((4000,), refcheck=False),
]
survives = contextlib.suppress(ArithmeticError, AttributeError, TypeError, ValueError)


class Meddling:
    """A number or an array that makes a change when it is first read."""

    def __init__(self, value, change):
        self.value, self.change = value, change

    def read(self, *_, **__):
        change, self.change = self.change, lambda: None
        with survives:
            change()
        return self.value

    __float__ = __index__ = read


class MeddlingArray(Meddling):
    __array__ = Meddling.read


class MeddlingList(Meddling, list):
    def __iter__(self):
        return iter(self.read())


class Garbage:
    def __init__(self, change):
        self.me, self.change = self, change

    def __del__(self):
        with survives:
            self.change()


def collected_meanwhile(change, use, after):
    """Use something; garbage is collected after so many allocations."""
    gc.collect()
    gc.set_threshold(after)
    Garbage(change)
    with survives:
        use()
    gc.set_threshold(0)


def arguments(channels=20):
    rng = np.random.default_rng(0)
    arrays = {name: rng.random((50, channels), np.float32) for name in ("src", "diff_dst")}
    arrays |= {name: rng.random(channels, np.float32) for name in ("mean", "variance", "gamma")}
    sums = bn_ext.GradientSums(*list(arrays.values())[:3], exact=True)
    out = [np.full(shape, 7, np.float32) for shape in ((50, channels), channels, channels)]
    return {**arrays, "epsilon": 0.5, "num_threads": 2, "out": out, "sums": sums}


def arrays_of(values):
    return [*list(values.values())[:5], *values["out"], values["sums"].array]


def by_methods():
    kinds = {"epsilon": Meddling, "num_threads": Meddling, "out": MeddlingList}
    names = [*kinds, "src", "diff_dst", "mean", "variance", "gamma"]
    for by, target, change in itertools.product(names, range(9), VIEWS + SIZES):
        values = arguments()
        array = arrays_of(values)[target]
        kind = kinds.get(by, MeddlingArray)
        values[by] = kind(values[by], lambda array=array, change=change: change(array))
        with survives:
            bn_ext.batch_norm_backward(**values)


def by_garbage():
    for target, change, after in itertools.product(range(9), VIEWS, range(1, 60, 2)):
        values = arguments()
        array = arrays_of(values)[target]
        if after % 4 == 1:
            values["out"] = None

        def call(values=values):
            assert bn_ext.batch_norm_backward(**values).diff_src.nbytes == 4000

        collected_meanwhile(lambda array=array, change=change: change(array), call, after)


USES = [operator.attrgetter("count"), operator.attrgetter("mean"), pickle.dumps, str]
USES += [lambda s: s == s, lambda s: s + s]


def by_garbage_in_sums():
    channels = 2000
    sums = bn_ext.Statistics(np.zeros((1, channels), np.float32), exact=True)
    sums.array[...] = 0
    state = sums.array
    shapes = (40 * channels, 1, 1), (400, 2, channels // 20)
    for shape, use, after in itertools.product(shapes, USES, range(1, 300)):
        state.shape = 20, 2, channels
        collected_meanwhile(
            lambda shape=shape: setattr(state, "shape", shape), lambda use=use: use(sums), after
        )


if __name__ == "__main__":
    gc.freeze()  # what is there is never collected, which would take long
    by_methods()
    by_garbage()
    by_garbage_in_sums()
