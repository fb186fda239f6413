"""After a call, even a refused one, nothing keeps its arrays. Copies: see test_memory.py."""

import weakref

import members
import numpy as np
import pytest
from cases import FORMATS, placed

import bn_ext

pytestmark = pytest.mark.fast


def test_every_function_is_called(p):
    called = {call.func.__name__ for call in members.calls(p)}
    functions = {name for name in bn_ext.__all__ if name.startswith("batch_norm_")}
    assert called == functions | {"Statistics", "GradientSums"}


LAYOUTS = ["contiguous", "gaps", "backwards", "spread", "other order"]


def operands(rng, shape, data_format, layout):
    p = members.problem(rng, shape, data_format, "float64")
    place = {"order": (1, 0, 2)} if layout == "other order" else {"memory": layout}
    return members.laid(
        p, lambda array: placed(array, **place), lambda array: placed(array, "spread")
    )


def refusals(p):
    count = 0
    for call in members.calls(p):
        try:
            call()
        except ValueError:
            count += 1
    return count


#: What is wrong with some calls: nothing, a number, an output's shape, an output that is an input.
WRONG = [{}, {"epsilon": -1.0}, {"another_vector": np.zeros(1)}, {"another_vector": "mean"}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_let_go_of(rng, layout, data_format, wrong):
    p = operands(rng, (4, 5, 6), data_format, layout)
    for name, value in wrong.items():
        setattr(p, name, getattr(p, value) if isinstance(value, str) else value)
    alive = {
        name: weakref.ref(array)
        for name, array in vars(p).items()
        if isinstance(array, np.ndarray) and array is not wrong.get(name)
    }
    assert bool(refusals(p)) == bool(wrong)
    del p
    assert [name for name, array in alive.items() if array() is not None] == []
