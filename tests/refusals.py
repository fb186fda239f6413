"""How a call is refused: the same by the whole and its halves, and nothing is written."""

import numpy as np
import pytest
from cases import EPSILON, with_count

import bn_ext

#: What the sums need to be known: the arguments of the first half.
OF_REDUCE = ["src", "diff_dst", "mean", "data_format", "num_threads"]


def refused(kind, message, p, **changed):
    """The general function and both halves raise this, and write nothing."""
    arguments = {**p.arguments(), "epsilon": EPSILON, "out": tuple(p.outs()), **changed}
    written = [a for a in (*arguments["out"], *p.arguments().values()) if a is not None]
    before = [np.array(a).tobytes() for a in written]
    with pytest.raises(kind, match=message):
        bn_ext.batch_norm_backward(**arguments)
    sums = with_count(np.zeros((2, len(p.mean))), 24)
    with pytest.raises(kind, match=message):
        bn_ext.batch_norm_backward_apply(**arguments, sums=sums)
    if changed.keys() & set(OF_REDUCE):
        with pytest.raises(kind, match=message):
            bn_ext.batch_norm_backward_reduce(
                **{name: arguments[name] for name in OF_REDUCE if name in arguments}
            )
    assert [np.array(a).tobytes() for a in written] == before
