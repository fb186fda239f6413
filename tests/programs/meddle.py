"""meddle.py BY: a method of the argument BY changes each other argument of a gradient, in each way.

The call must be refused or have the right bits.
"""

import contextlib
import itertools
import sys

import numpy as np

import bn_ext

CHANGES = [
    lambda a: setattr(a, "shape", (a.size,)),
    lambda a: setattr(a, "shape", (1, a.size, 1)),
    lambda a: setattr(a, "dtype", np.uint8),
    lambda a: setattr(a, "dtype", np.float64),
    lambda a: a.resize((1,) * a.ndim, refcheck=False),
    lambda a: a.resize((4000,), refcheck=False),
    lambda a: setattr(a.flags, "writeable", False),
]


class Meddling:
    """A number or an array that makes a change when it is first read."""

    def __init__(self, value, change):
        self.value, self.change = value, change

    def read(self, *_, **__):
        change, self.change = self.change, lambda: None
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            change()
        return self.value

    __float__ = __index__ = read


class MeddlingArray(Meddling):
    __array__ = Meddling.read


class MeddlingList(Meddling, list):
    def __iter__(self):
        return iter(self.read())


def arguments():
    rng = np.random.default_rng(0)
    given = {name: rng.random((50, 20), np.float32) for name in ("src", "diff_dst")}
    given |= {name: rng.random(20, np.float32) for name in ("mean", "variance", "gamma")}
    sums = bn_ext.GradientSums(*list(given.values())[:3], exact=True)
    out = [np.full(shape, 7, np.float32) for shape in ((50, 20), 20, 20)]
    return {**given, "epsilon": 0.5, "num_threads": 2, "out": out, "sums": sums}


def bits(found):
    return [array.tobytes() for array in found]


by = sys.argv[1]
kind = {"epsilon": Meddling, "num_threads": Meddling, "out": MeddlingList}.get(by, MeddlingArray)
wanted = bits(bn_ext.batch_norm_backward(**arguments()))
for target, change in itertools.product(range(9), CHANGES):
    given = arguments()
    arrays = [*list(given.values())[:5], *given["out"], given["sums"].array]
    given[by] = kind(given[by], lambda a=arrays[target], change=change: change(a))
    with contextlib.suppress(TypeError, ValueError):
        assert bits(bn_ext.batch_norm_backward(**given)) == wanted, (target, change)
