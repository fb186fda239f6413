"""A call runs an operation tile by tile; it overwrites only what it has read."""

import itertools

import numpy as np
import pytest
from cases import DTYPES, Problem, all_bits, dtype, placed, shape
from members import MEMBERS, problem

import bn_ext
from bn_ext import _core

pytestmark = pytest.mark.fast


#: data_format, N, C, X
IN_PLACE = [("NXC", 300, 40, 1), ("NXC", 50, 3, 9)]
IN_PLACE += [("NCX", 40, 6, 9), ("NCX", 9, 3, 900), ("NCX", 2, 3, 9000)]
every_member = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)


@every_member
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("data_format", "outer", "channels", "inner"), IN_PLACE)
def test_in_place(rng, data_format, outer, channels, inner, is_training, member):
    results = member.returns.count("tensor")
    overs = set(itertools.permutations([*member.reads, *[None] * (results - 1)], results))
    for types in DTYPES:
        p = problem(rng, shape(outer, channels, inner, data_format), data_format, *types)
        _, want = member.run(p, is_training=is_training)
        for over in overs:
            tensors = {name: getattr(p, name).copy() for name in member.reads}
            targets = map(tensors.get, over)
            out = [next(targets) if kind == "tensor" else None for kind in member.returns]
            outcome, bits = member.run(p, tensors, is_training=is_training, out=out)
            assert all(b is None or a is b for a, b in zip(outcome, out, strict=True))
            assert bits == want, (types, over)


@every_member
@pytest.mark.parametrize("x", [33, 131, 2077])
def test_ends_of_runs_in_place_of_every_operand(rng, isa, member, x):
    """Units at a run's ends overlap others, whose results may replace operands that the ends need.
    Runs start at a few offsets in a register.
    """
    for types, is_training, over in itertools.product(DTYPES, (True, False), member.reads):
        p = problem(rng, (5, 3, x), "NCX", *types)
        _, want = member.run(p, is_training=is_training)
        for first in (1, 6, 15):
            array = placed(getattr(p, over), offset=first * p.src.itemsize)
            out = [None] * len(member.returns)
            out[member.returns.index("tensor")] = array
            assert member.run(p, {over: array}, is_training=is_training, out=out)[1] == want


@every_member
def test_operands_may_be_one_array(rng, member):
    p = problem(rng, (6, 7, 5), "NXC")
    _, want = member.run(p, {name: p.src.copy() for name in member.reads})
    assert member.run(p, dict.fromkeys(member.reads, p.src))[1] == want
    together = p.src.copy()
    out = [together, *[None] * (len(member.returns) - 1)]
    assert member.run(p, dict.fromkeys(member.reads, together), out=out)[1] == want


@pytest.mark.parametrize(
    ("data_format", "dims"), [("NXC", (64, 200)), ("NXC", (40, 9, 30)), ("NCX", (6, 3, 900))]
)
def test_stores_past_the_cache_to_odd_addresses(rng, isa, data_format, dims):
    """Results go to fields of packed records, so row strides are not multiples of the itemsize."""
    _core.set_cache_sizes(1, 1)
    for data, vector in DTYPES:
        p = Problem(rng, dims, data_format, data, vector)
        record = np.dtype([("x", dtype(data), dims[1:]), ("odd", "u1")])
        for first in (0, 1):
            memory = np.zeros(dims[0] * record.itemsize + 1, np.uint8)
            records = memory[first:][: dims[0] * record.itemsize].view(record)
            for is_training in (True, False):
                options = {"data_format": data_format, "is_training": is_training}
                grads = p.run(bn_ext.batch_norm_backward, out=(records["x"], None, None), **options)
                want = p.run(bn_ext.batch_norm_backward, **options)
                assert all_bits(grads) == all_bits(want)
                assert not records["odd"].any()


@pytest.mark.parametrize(
    ("data_format", "dims"), [("NCX", (1, 5, 900)), ("NCX", (3, 5, 900)), ("NXC", (60, 512))]
)
def test_results_past_the_cache_each_with_gaps_of_its_own(rng, isa, data_format, dims):
    """Stores of whole registers would fit one result's rows or channels, but not the other's."""
    _core.set_cache_sizes(1 << 20, 1)  # several channels per tile
    for types in DTYPES:
        p = problem(rng, dims, data_format, *types)
        for member in MEMBERS.values():
            _, want = member.run(p)
            gaps = itertools.count()
            out = [
                np.empty((*dims[:-1], dims[-1] + next(gaps)), p.src.dtype)[..., : dims[-1]]
                if kind == "tensor"
                else None
                for kind in member.returns
            ]
            assert member.run(p, out=out)[1] == want
