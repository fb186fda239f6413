"""Calls: the whole and its halves; what they take, and that they let go of it."""

import inspect
import tracemalloc
import weakref

import numpy as np
import pytest
from cases import EPSILON, FORMATS, OUTPUTS, VECTORS, Problem, placed

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
    sums = np.ones((len(p.mean), 2)).T if how == "spread" else np.ones((2, len(p.mean)))
    return {**arrays, **vectors, **outs, "sums": sums}


#: What is called with what wrong.
CALLS = [
    ("batch_norm_backward", {}),
    ("batch_norm_backward_reduce", {}),
    ("batch_norm_backward_apply", {}),
    ("batch_norm_backward_apply", {"epsilon": -1.0}),
    ("batch_norm_backward_apply", {"count": 0}),
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
        arguments = {"data_format": data_format, "epsilon": EPSILON, "count": 24} | arrays
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
        bn_ext.batch_norm_backward_apply(**arrays, sums=sums, count=1200, epsilon=EPSILON, out=outs)

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


@pytest.mark.parametrize("count", [1.5, "3", None])
def test_count_that_is_no_integer(p, count):
    with pytest.raises(TypeError, match="^count: expected an integer"):
        bn_ext.batch_norm_backward_apply(
            p.src, p.diff_dst, *p.vectors(), np.zeros((2, 5)), count, epsilon=EPSILON
        )


def test_count_and_sums(p):
    def apply(sums, count):
        return bn_ext.batch_norm_backward_apply(
            p.src, p.diff_dst, *p.vectors(), sums, count, epsilon=EPSILON
        )

    for count in (0, -1, 23, -(10**400)):
        with pytest.raises(ValueError, match="^count: expected at least 24, the elements per"):
            apply(np.zeros((2, 5)), count)
    with pytest.raises(
        ValueError, match="^count: expected a number that fits a float64, got 10000"
    ):
        apply(np.zeros((2, 5)), 10**400)
    for dims in ((2, 4), (5, 2), (10,), (2, 5, 1)):
        with pytest.raises(ValueError, match=r"^sums: expected shape \(2, 5\), got"):
            apply(np.zeros(dims), 24)
    for wrong in (np.zeros((2, 5), np.float32), np.zeros((2, 5), ">f8"), [[1] * 5] * 2):
        with pytest.raises(TypeError, match="^sums: expected"):
            apply(wrong, 24)
    strided = np.asfortranarray(np.arange(10.0).reshape(2, 5))
    assert (apply(strided, 24).diff_beta == strided[0]).all()
    assert (apply(strided.tolist(), 24).diff_beta == strided[0]).all()
