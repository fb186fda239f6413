"""Outputs may share no memory with inputs, except in place, nor with one another."""

import itertools
import re

import numpy as np
import pytest
import refusals
from cases import EPSILON, INPUTS, OUTPUTS, TENSORS, VECTORS, Problem, all_bits, placed
from members import MEMBERS, problem
from numpy.lib.stride_tricks import as_strided

import bn_ext

pytestmark = [pytest.mark.fast, pytest.mark.results]

#: The error of an output whose elements share memory with one another.
IN_ONE_PLACE = "expected an array whose elements do not share memory"
ROWS, CHANNELS = 6, 5
#: The direction of each axis in memory.
TURNS = {"forwards": (1, 1), "first axis backwards": (-1, 1), "backwards": (-1, -1)}
SHAPES = dict.fromkeys(["src", "diff_dst", "diff_src"], (ROWS, CHANNELS))


def run(arrays):
    arrays = dict(arrays)
    out = tuple(arrays.pop(name, None) for name in OUTPUTS)
    return bn_ext.batch_norm_backward(**arrays, epsilon=EPSILON, out=out)


def inputs(rng):
    """All are float64, so that any two may lie in one piece of memory."""
    return Problem(rng, (ROWS, CHANNELS), "NXC", "float64").arguments()


def lay(memory, start, name, layout):
    """Elements of memory from `start` on, in the shape that `name` has, turned as `layout` says."""
    dims = SHAPES.get(name, (CHANNELS,))
    array = memory[start : start + int(np.prod(dims))].reshape(dims)
    return array[tuple(slice(None, None, step) for step in TURNS[layout][: len(dims)])]


def refused(message, arrays):
    before = {name: a.tobytes() for name, a in arrays.items()}
    with pytest.raises(ValueError, match=message):
        run(arrays)
    assert {name: a.tobytes() for name, a in arrays.items()} == before


PAIRS = [(out, other) for i, out in enumerate(OUTPUTS) for other in [*OUTPUTS[i + 1 :], *INPUTS]]


@pytest.mark.parametrize("first", ["out", "other"])
@pytest.mark.parametrize("other_turned", TURNS)
@pytest.mark.parametrize("turned", TURNS)
@pytest.mark.parametrize(("out", "other"), PAIRS)
def test_one_element_in_common(rng, out, other, turned, other_turned, first):
    base = inputs(rng)
    sizes = [int(np.prod(SHAPES.get(name, (CHANNELS,)))) for name in (out, other)]
    for common in (1, 0):
        memory = np.zeros(sum(sizes))
        starts = (0, sizes[0] - common) if first == "out" else (sizes[1] - common, 0)
        arrays = {**base, out: lay(memory, starts[0], out, turned)}
        arrays[other] = lay(memory, starts[1], other, other_turned)
        if other in INPUTS:
            arrays[other][...] = base[other]
        if common:
            name = other if other in INPUTS else f"{other} in out"
            refused(f"^{out} in out: shares memory with {name}", arrays)
        else:
            assert all_bits(run(arrays)) == all_bits(run(base))


@pytest.mark.parametrize("layout", ["halves of rows", "every other element"])
def test_between_the_elements_of_another(rng, layout):
    """Arrays whose extents overlap may be accepted: these have no element in common."""
    base = inputs(rng)
    wanted = all_bits(run(base))
    for which in TENSORS:
        both = np.zeros((ROWS, 2 * CHANNELS))
        array, diff_src = both[:, ::2], both[:, 1::2]
        if layout == "halves of rows":
            array, diff_src = np.hsplit(both, 2)
        array[...] = base[which]
        assert np.may_share_memory(array, diff_src)
        assert all_bits(run({**base, which: array, "diff_src": diff_src})) == wanted
    gradients = np.zeros((CHANNELS, 2))
    pairs = dict(zip(OUTPUTS[1:], gradients.T, strict=True))
    assert all_bits(run({**base, **pairs})) == wanted


@pytest.mark.parametrize("which", TENSORS)
def test_in_place_is_the_same_elements_in_the_same_places(rng, which):
    base = inputs(rng)
    wanted = all_bits(run(base))
    for turned in TURNS:
        memory = np.zeros(ROWS * CHANNELS)
        array = lay(memory, 0, which, turned)
        array[...] = base[which]
        for turn in TURNS.keys() - {turned}:
            arrays = {**base, which: array, "diff_src": lay(memory, 0, which, turn)}
            refused(f"^diff_src in out: shares memory with {which}", arrays)
        assert all_bits(run({**base, which: array, "diff_src": array})) == wanted


@pytest.mark.parametrize(
    "strides",
    [(0, 8), (-8, -8), (-40, 0), (-16, 8), (16, -8), (-8, 40), (-24, 8), (-32, -8), (32, -8)],
)
def test_diff_src_that_overlaps_itself(rng, strides):
    memory = np.zeros(200)
    start = sum(-s * (n - 1) for s, n in zip(strides, (ROWS, CHANNELS), strict=True) if s < 0)
    view = as_strided(memory[start // 8 :], (ROWS, CHANNELS), strides)
    refused(f"^diff_src in out: {IN_ONE_PLACE}", {**inputs(rng), "diff_src": view})
    assert not memory.any()


@pytest.mark.parametrize("name", OUTPUTS[1:])
def test_a_gradient_for_all_channels_in_one_number(rng, name):
    number = np.zeros(1)
    for step in (0, 1, 7, -4):  # less than the 8 bytes of an element
        view = as_strided(np.zeros(2 * CHANNELS)[CHANNELS:], (CHANNELS,), (step,))
        refused(f"^{name} in out: {IN_ONE_PLACE}", {**inputs(rng), name: view})
    # With one channel, the stride does not count.
    p = Problem(rng, (ROWS, 1), "NXC", "float64")
    out = {name: as_strided(number, (1,), (0,))}
    grads = p.run(bn_ext.batch_norm_backward, out=tuple(out.get(n) for n in OUTPUTS))
    assert getattr(grads, name) is out[name]
    assert number == getattr(p.run(bn_ext.batch_norm_backward), name)


HARD = [((4, 13, 11, 12), (5310, 408, 37, 3), (3758, 4614, 2545, 4819), 14773, False)]
HARD += [((13, 12, 8, 5), (2176, 181, 22, 3), (2446, 6639, 2891, 1871), 2367, True)]


@pytest.mark.parametrize(("dims", "steps", "src_steps", "start", "shared"), HARD)
def test_what_is_too_hard_to_decide_counts_as_shared(rng, dims, steps, src_steps, start, shared):
    reach = start + sum((n - 1) * s for n, s in zip(dims, src_steps, strict=True)) + 1
    memory = rng.standard_normal(reach, np.float32)
    diff_src = as_strided(memory, dims, [4 * s for s in steps])
    src = as_strided(memory[start:], dims, [4 * s for s in src_steps])
    with pytest.raises(RuntimeError):
        np.shares_memory(diff_src, src, max_work=10_000)
    assert np.shares_memory(diff_src, src, max_work=10**8) == shared
    before = memory.tobytes()
    p = Problem(rng, dims, "NXC")
    with pytest.raises(ValueError, match="^diff_src in out: shares memory with src"):
        p.run(bn_ext.batch_norm_backward, src=src, out=(diff_src, None, None))
    assert memory.tobytes() == before


@pytest.mark.parametrize("dims", [(0, 4, 5), (6, 0, 5)])
def test_outs_that_share_memory_when_there_are_no_elements(rng, dims):
    """Without elements, vectors of zeros are still written."""
    q = Problem(rng, dims, "NXC")
    vectors = dict(zip(VECTORS, q.vectors(), strict=True))
    for name, vector in vectors.items():
        for which in (1, 2):
            out = [np.empty_like(q.src), None, None]
            out[which] = vector
            message = f"^{OUTPUTS[which]} in out: shares memory with {name}"
            refusals.refused(ValueError, message, q, "backward", out=tuple(out))
    # Arrays without elements share nothing, wherever they are.
    empty = np.empty_like(q.src)
    q.run(bn_ext.batch_norm_backward, src=empty, diff_dst=empty, out=(empty, None, None))


def test_an_axis_of_length_2_counts():
    src = np.eye(2)
    in_one = as_strided(np.zeros(2), (2, 2), (0, 8))
    for out, message in ((src.T, "shares memory with src"), (in_one, IN_ONE_PLACE)):
        with pytest.raises(ValueError, match=f"^dst in out: {message}"):
            bn_ext.batch_norm_training(src, epsilon=1, out=(out, None, None))


def restrided(array, stride):
    strides = zip(array.shape, array.strides, strict=True)
    return as_strided(array, array.shape, [stride if n == 1 else s for n, s in strides])


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("dims", [(6, 1, 4), (1, 6, 4), (6, 4, 1), (3, 1, 4, 1)])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("summed", [False, True])
def test_a_place_does_not_depend_on_axes_of_length_1(rng, name, dims, data_format, summed):
    """The stride of an axis of length 1 has no effect. NumPy passes on only strides of arrays that
    are not contiguous.
    """
    member, p = MEMBERS[name], problem(rng, dims, data_format)
    _, wanted = member.run(p, summed=summed)
    written = [i for i, kind in enumerate(member.returns) if kind == "tensor"]
    strides = (0, 3, 4096, -8)
    for i, which, stride, step in itertools.product(written, member.reads, strides, strides):
        read = {n: restrided(placed(getattr(p, n), "gaps"), stride) for n in member.reads}
        out = [None] * len(member.returns)
        out[i] = restrided(read[which], step)
        results, bits = member.run(p, read, summed=summed, out=tuple(out))
        assert results[i] is out[i]
        assert bits == wanted


UPDATED = ["running_mean", "running_variance"]
#: What else a forward pass in training has, and whether it writes it.
BESIDE = {"src": 0, "gamma": 0, "beta": 0, "src_1": 0, "dst": 1, "mean": 1, "variance": 1}
BESIDE |= dict.fromkeys(UPDATED, 1)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("other", BESIDE)
@pytest.mark.parametrize("name", UPDATED)
def test_running_statistics_share_no_element_with_what_is_there(rng, name, other, exact, first):
    if name == other:
        return
    p = problem(rng, (ROWS, CHANNELS), "NXC", "float64")
    base = {key: getattr(p, key) for key in ("src", "gamma", "beta", "src_1")}
    base |= {key: getattr(p, key).astype(float) for key in UPDATED}
    base |= {"dst": p.result, "mean": np.zeros(CHANNELS), "variance": np.ones(CHANNELS)}

    def call(**changed):
        arrays = {**{key: array.copy() for key, array in base.items()}, **changed}
        before = [arrays[key].tobytes() for key in arrays]
        out = tuple(arrays.pop(key) for key in ("dst", "mean", "variance"))
        try:
            results = bn_ext.batch_norm_training(
                **arrays, out=out, epsilon=EPSILON, exact=exact,
                exponential_avg_factor=0.3, correction=0,
            )  # fmt: skip
        except ValueError:
            again = {**arrays, **dict(zip(("dst", "mean", "variance"), out, strict=True))}
            assert [again[key].tobytes() for key in base] == before
            raise
        return all_bits([*results, arrays[UPDATED[0]], arrays[UPDATED[1]]])

    right, sizes = call(), (base[name].size, base[other].size)
    for common in (0, 1):
        memory = np.zeros(sum(sizes))
        starts = (0, sizes[0] - common) if first else (sizes[1] - common, 0)
        arrays = {}
        for key, start in zip((name, other), starts, strict=True):
            arrays[key] = memory[start : start + base[key].size].reshape(base[key].shape)
            arrays[key][...] = base[key]
        if common:
            with pytest.raises(ValueError, match="shares memory with") as raised:
                call(**arrays)
            named = f"{other} in out" if other in ("dst", "mean", "variance") else other
            assert {name, named} == {*re.split(r": shares memory with | \(", str(raised.value))[:2]}
        else:
            assert call(**arrays) == right
