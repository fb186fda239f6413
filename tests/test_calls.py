"""Calls: which arguments they accept, and that they keep none alive."""

import tracemalloc
import weakref

import guarded
import numpy as np
import pytest
from cases import FORMATS, placed

import bn_ext

pytestmark = pytest.mark.quick


LAYOUTS = ["contiguous", "gaps", "backwards", "spread", "other order"]


def laid(array, how):
    return placed(array, order=(1, 0, 2)) if how == "other order" else placed(array, how)


def operands(rng, shape, data_format, how):
    """The operands of guarded.py's calls, laid out as `how` says."""
    a = guarded.dense(rng, shape, data_format, "float64")
    for name in (*guarded.READ, *guarded.WRITTEN):
        setattr(a, name, laid(getattr(a, name), how))
    for name in (*guarded.VECTORS, *guarded.VECTORS_WRITTEN):
        setattr(a, name, placed(getattr(a, name), "spread"))
    return a


def refusals(a, data_format):
    """Make all calls; return how many of them are refused."""
    count = 0
    for call in guarded.calls(a, {"data_format": data_format}):
        try:
            call()
        except ValueError:
            count += 1
    return count


#: What is wrong with some calls: nothing, a number, an output's shape, an output that is an input.
WRONG = [{}, {"epsilon": -1.0}, {"another_vector": np.zeros(1)}, {"another_vector": "mean"}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("how", LAYOUTS)
def test_arrays_are_let_go_of(rng, how, wrong):
    """After every call, even a refused one, nothing refers to the arrays."""
    for data_format in FORMATS:
        a = operands(rng, (4, 5, 6), data_format, how)
        alive = {name: weakref.ref(array) for name, array in vars(a).items()
                 if isinstance(array, np.ndarray)}  # fmt: skip
        for name, value in wrong.items():
            setattr(a, name, getattr(a, value) if isinstance(value, str) else value)
        assert bool(refusals(a, data_format)) == bool(wrong)
        del a
        assert [name for name, array in alive.items() if array() is not None] == []


@pytest.mark.parametrize("how", LAYOUTS)
def test_copies_are_let_go_of(rng, how):
    a = operands(rng, (40, 30, 20), "NXC", how)
    refusals(a, "NXC")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    refusals(a, "NXC")
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < a.src.nbytes / 2


def test_epsilon_has_no_default(p):
    with pytest.raises(TypeError, match="epsilon"):
        bn_ext.batch_norm_backward(p.src, p.diff_dst, *p.vectors())
