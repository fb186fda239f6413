"""The engine: an operation over a problem, tile after tile; what it overwrites has been read."""

import itertools

import numpy as np
import pytest
from cases import DTYPES, Problem, all_bits, dtype, placed, shape
from members import MEMBERS, problem

import bn_ext
from bn_ext import _core

pytestmark = pytest.mark.quick


#: data_format, N, C, X
IN_PLACE = [("NXC", 300, 40, 1), ("NXC", 50, 3, 9), ("NCX", 40, 6, 9), ("NCX", 9, 3, 900),
            ("NCX", 2, 3, 9000)]  # fmt: skip
every_member = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)


@every_member
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("data_format", "outer", "channels", "inner"), IN_PLACE)
def test_in_place(rng, data_format, outer, channels, inner, is_training, member):
    """Each result over each operand, which has been read by then."""
    results = member.returns.count("tensor")
    overs = set(itertools.permutations([*member.reads, *[None] * (results - 1)], results))
    for types in DTYPES:
        p = problem(rng, shape(outer, channels, inner, data_format), data_format, *types)
        _, want = member.run(p, is_training=is_training)
        for over in overs:
            tensors = {name: getattr(p, name).copy() for name in member.reads}
            targets = iter(over)
            out = [tensors.get(next(targets)) if kind == "tensor" else None
                   for kind in member.returns]  # fmt: skip
            found, bits = member.run(p, tensors, is_training=is_training, out=out)
            assert all(b is None or a is b for a, b in zip(found, out, strict=True))
            assert bits == want, (types, over)


@every_member
def test_operands_may_be_one_array(rng, member):
    p = problem(rng, (6, 7, 5), "NXC")
    _, want = member.run(p, {name: p.src.copy() for name in member.reads})
    assert member.run(p, dict.fromkeys(member.reads, p.src))[1] == want
    together = p.src.copy()
    out = [together, *[None] * (len(member.returns) - 1)]
    assert member.run(p, dict.fromkeys(member.reads, together), out=out)[1] == want


#: Of many channels, so that there are many tiles: data_format, N, C, X.
MANY_CHANNELS = [("NXC", 300, 400, 1), ("NXC", 1201, 96, 1), ("NCX", 40, 300, 9),
                 ("NCX", 2, 100, 700), ("NCX", 5, 60, 900)]  # fmt: skip


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("data_format", "outer", "channels", "inner"), MANY_CHANNELS)
def test_tiles_decide_no_bit(rng, data_format, outer, channels, inner, is_training):
    """A channel at a time or all; stores past the caches or into them; shared out or not."""
    for types in DTYPES:
        p = Problem(rng, shape(outer, channels, inner, data_format), data_format, *types)
        found = set()
        for l2, last_level in ((1, 1), (1 << 18, 1), (1 << 40, 1 << 40)):
            _core._set_cache_sizes(l2, last_level)
            for threads in (1, 2, 16, 64):
                grads = p.run(
                    bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training,
                    num_threads=threads,
                )  # fmt: skip
                found.add(tuple(all_bits(grads)))
        gaps = p.run(
            bn_ext.batch_norm_backward, src=placed(p.src, "gaps"), data_format=data_format,
            is_training=is_training, num_threads=16,
        )  # fmt: skip
        assert {*found, tuple(all_bits(gaps))} == found
        assert len(found) == 1


def test_sizes_of_tiles_differ(rng):
    """Else the test above would compare a thing with itself: more tiles are more tasks."""
    p = Problem(rng, (2, 100, 700), "NCX")
    tasks = []
    for l2 in (1, 1 << 40):
        _core._set_cache_sizes(l2, 1)
        p.run(bn_ext.batch_norm_backward, data_format="NCX", num_threads=1)
        tasks.append(_core._last_call()[1])
    assert tasks[0] > tasks[1]


@pytest.mark.parametrize(
    ("data_format", "dims"), [("NXC", (64, 200)), ("NXC", (40, 9, 30)), ("NCX", (6, 3, 900))]
)
def test_stores_past_the_cache_to_odd_addresses(rng, isa, data_format, dims):
    """Fields of packed records: rows that are no multiple of an element apart."""
    _core._set_cache_sizes(1, 1)
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
