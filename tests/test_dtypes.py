"""Dtypes: one table, and what of it is computed in what."""

import ml_dtypes
import numpy as np
import pytest
from cases import (
    DATA_DTYPES,
    DTYPES,
    INPUTS,
    Problem,
    arithmetic,
    dtype,
    half_ulp,
    unit,
    with_count,
)
from refusals import refused

import bn_ext

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", ["int32", "uint8", "bool", "complex64", "longdouble", "object"])
@pytest.mark.parametrize("argument", INPUTS)
def test_dtypes_outside_the_table(p, argument, name):
    with np.errstate(invalid="ignore"):  # what a negative number becomes does not matter
        array = getattr(p, argument).astype(name)
    refused(
        TypeError, rf"^{argument}: expected .*float32.*, got {array.dtype}", p, **{argument: array}
    )


def test_units():
    """The bounds stand on these."""
    assert unit("float32") == 2.0**-24
    assert unit("float64") == 2.0**-53
    assert unit("float16") == 2.0**-11
    assert unit("bfloat16") == 2.0**-8
    assert ml_dtypes.finfo(dtype("bfloat16")).eps == 2.0**-7
    assert half_ulp(np.float64(1.5), "float16") >= 2.0**-11
    assert [arithmetic(data) for data in DATA_DTYPES].count("float64") == 1


def test_doubles_to_float32():
    rng = np.random.default_rng(5)
    numbers = rng.standard_normal(10000) * 10.0 ** rng.integers(-50, 45, 10000)
    n = len(numbers)
    data, vector = np.ones((1, n), np.float32), np.ones(n, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        want = numbers.astype(np.float32)
    grads = bn_ext.batch_norm_backward_apply(
        data, data, vector, vector, None, with_count([numbers, numbers], 1), epsilon=0.0
    )
    assert (grads.diff_beta == want).all()


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_the_table_and_nothing_else(rng, data):
    """Another dtype beside data of each: as vectors computed if the table has them, or refused."""
    for other in DATA_DTYPES:
        p = Problem(rng, (6, 5), "NXC", data, other)
        if (data, other) in DTYPES or other == "float64":
            grads = p.run(bn_ext.batch_norm_backward)
            assert [a.dtype for a in grads] == [dtype(data), dtype(other), dtype(other)]
        else:
            refused(TypeError, f"^mean: expected .* with {data} data, got {other}", p)
        if other == data:
            continue
        p = Problem(rng, (6, 5), "NXC", data, data)
        changed = p.diff_dst.astype(dtype(other))
        message = f"^diff_dst: expected {data}, like src, got {other}"
        refused(TypeError, message, p, diff_dst=changed)
        for name in ("variance", "gamma"):
            changed = getattr(p, name).astype(dtype(other))
            like = "like mean" if (data, other) in DTYPES or other == "float64" else "with .* data"
            message = f"^{name}: expected .*{data}.*{like}.*, got {other}"
            refused(TypeError, message, p, **{name: changed})
