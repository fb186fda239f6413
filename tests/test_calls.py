"""Calls: the whole and its halves; what they take, and that they let go of it."""

import inspect
import tracemalloc
import weakref

import numpy as np
import pytest
from cases import EPSILON, FORMATS, OUTPUTS, VECTORS, Problem, placed, with_count

import bn_ext

pytestmark = pytest.mark.quick


LAYOUTS = ["contiguous", "gaps", "backwards", "spread", "other order"]


def laid(array, how):
    return placed(array, order=(1, 0, 2)) if how == "other order" else placed(array, how)


def every_array(p, how):
    """Arguments of apply and an out, all of them new arrays."""
    arrays = {"src": p.src, "diff_dst": p.diff_dst, "diff_src": np.zeros_like(p.src)}
    arrays = {name: laid(a, how) for name, a in arrays.items()}
    vectors = {name: placed(v, "spread") for name, v in zip(VECTORS, p.vectors(), strict=True)}
    outs = {name: placed(np.zeros_like(p.mean), "spread") for name in OUTPUTS[1:]}
    sums = with_count(np.ones((2, len(p.mean))), p.src.size // len(p.mean))
    sums = np.asfortranarray(sums) if how == "spread" else sums
    return {**arrays, **vectors, **outs, "sums": sums}


#: What is called with what wrong.
CALLS = [
    ("batch_norm_backward", {}),
    ("batch_norm_backward_reduce", {}),
    ("batch_norm_backward_apply", {}),
    ("batch_norm_backward_apply", {"epsilon": -1.0}),
    ("batch_norm_backward_apply", {"sums": np.zeros((3, 5))}),
    ("batch_norm_backward_apply", {"diff_beta": np.zeros(1)}),
    ("batch_norm_backward_apply", {"diff_beta": "mean"}),
]


@pytest.mark.parametrize(("function", "wrong"), CALLS)
@pytest.mark.parametrize("how", LAYOUTS)
def test_arrays_are_let_go_of(rng, how, function, wrong):
    """After every call, one that is refused too, nothing refers to them."""
    for data_format in FORMATS:
        p = Problem(rng, (4, 5, 6), data_format, "float64")
        arrays = every_array(p, how)
        alive = {name: weakref.ref(a) for name, a in arrays.items()}
        arrays |= {name: arrays.get(value, value) if isinstance(value, str) else value
                   for name, value in wrong.items()}  # fmt: skip
        arguments = {"data_format": data_format, "epsilon": EPSILON} | arrays
        arguments["out"] = tuple(arguments.pop(name) for name in OUTPUTS)
        takes = inspect.signature(getattr(bn_ext, function)).parameters
        arguments = {name: value for name, value in arguments.items() if name in takes}
        try:
            getattr(bn_ext, function)(**arguments)
            raised = False
        except ValueError:
            raised = True
        assert raised == bool(wrong)
        del arrays, arguments
        assert [name for name, array in alive.items() if array() is not None] == []


@pytest.mark.parametrize("how", LAYOUTS)
def test_copies_are_let_go_of(rng, how):
    p = Problem(rng, (40, 30, 20), "NXC", "float64")
    arrays = every_array(p, how)
    outs = tuple(arrays.pop(name) for name in OUTPUTS)
    sums = arrays.pop("sums")
    names = ("src", "diff_dst", "mean")

    def call():
        bn_ext.batch_norm_backward(**arrays, epsilon=EPSILON, out=outs)
        bn_ext.batch_norm_backward(**arrays, epsilon=EPSILON)
        bn_ext.batch_norm_backward_reduce(**{name: arrays[name] for name in names})
        bn_ext.batch_norm_backward_apply(**arrays, sums=sums, epsilon=EPSILON, out=outs)

    call()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        call()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < p.src.nbytes / 2


def test_epsilon_has_no_default(p):
    with pytest.raises(TypeError, match="epsilon"):
        bn_ext.batch_norm_backward(p.src, p.diff_dst, *p.vectors())


@pytest.mark.parametrize("given", [np.asfortranarray, np.ndarray.tolist])
def test_sums_in_any_order(p, given):
    sums = with_count(np.arange(10).reshape(2, 5), 24)
    found = bn_ext.batch_norm_backward_apply(
        p.src, p.diff_dst, *p.vectors(), given(sums), epsilon=EPSILON
    )
    assert (found.diff_beta == sums[0]).all()
