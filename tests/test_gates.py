"""The gradient through a fused ReLU, and which elements the ReLU lets pass.

A gated call must give, bit for bit, what the plain call gives for a diff_dst with zeros in place of
the elements that did not pass.
"""

import itertools
import math
from functools import partial

import cases
import fuzz
import numpy as np
import pytest
from cases import (
    DATA_DTYPES,
    DTYPES,
    EPSILON,
    Family,
    all_bits,
    bits,
    dtype,
    packed,
    placed,
    shape,
)  # fmt: skip
from oracle import running
from oracle.dtypes import DTYPES as STORED
from oracle.values import boundary
from relu_gates import GATES, SIZES, forward, gated, lets_pass, passed, plain, problem

import bn_ext
from bn_ext import _core
from bn_ext._derivatives import gated_double_backward, workspace_size

pytestmark = [pytest.mark.fast, pytest.mark.results]

RELU = {"relu": True}
every_mode = pytest.mark.parametrize("is_training", [True, False])
every_gate = pytest.mark.parametrize("gate", GATES)
every_format = pytest.mark.parametrize("data_format", cases.FORMATS)


@every_mode
@every_gate
@every_format
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_gated_is_plain_with_zeros_where_nothing_passed(
    rng, data, vector, data_format, gate, is_training
):
    """The fourth result is the part of diff_dst that passed; a gate computed from src has none."""
    for dims in SIZES:
        p = problem(rng, dims, data_format, data, vector)
        assert p.passes.any() or p.src.size < 20
        assert not p.passes.all() or p.src.size < 20
        want = all_bits(plain(p, is_training=is_training))
        for diff_src_1 in [False] if gate == "beta" else [False, True]:
            options = {"is_training": is_training, "diff_src_1": diff_src_1}
            results, came_through = gated(p, gate, **options), [passed(p)] * diff_src_1
            kind = bn_ext.BatchNormAddGradients if diff_src_1 else bn_ext.BatchNormGradients
            assert type(results) is kind
            assert results._fields[:3] == bn_ext.BatchNormGradients._fields
            assert all_bits(results) == [*want, *all_bits(came_through)], dims
            assert results[-1].strides == p.src.strides or not diff_src_1
            alone = gated(p, gate, param_grads=False, **options)
            assert all_bits(alone) == [want[0], None, None, *all_bits(came_through)]


@pytest.mark.parametrize("size", [65535, 65537, 131072, 200_003, 3 * 65536])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_every_bit_of_a_workspace_counts(size, num_threads):
    """Even the last bits: with all bits set, all elements pass, whatever memory held before."""
    src, vector = np.ones((size, 1), np.float32), np.ones(1, np.float32)
    options = {"epsilon": 1, "num_threads": num_threads}

    def diff_src(**gate):
        return bn_ext.batch_norm_backward(src, src, 0 * vector, vector, **gate, **options).diff_src

    none_of_all, bits_of_all = (packed(np.full(src.shape, on), src, "NXC") for on in (False, True))
    bits_of_all[-11] = 0xFF  # past the last element too
    assert not diff_src(relu=True, workspace=none_of_all).any()
    assert bits(diff_src(relu=True, workspace=bits_of_all)) == bits(diff_src())
    assert cases.team_of(num_threads) == num_threads


@every_format
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_training_with_statistics_in_doubles_passes_the_same(rng, data, data_format):
    """Some means are far from 0, and beta is small, so that many results lie near 0."""
    for dims in SIZES:
        for ratio in (0, 30, 1e3 if dtype(data).itemsize == 4 else 30):
            p = Family(rng, shape(*dims, data_format), data_format, data, "float64", ratio=ratio)
            p.beta /= 100
            options = {"data_format": data_format, "relu": True}
            out = (None, np.empty(dims[1]), np.empty(dims[1]))
            p.workspace = workspace_for(p.src.shape)
            names = ("src", "gamma", "beta")
            p.dst, p.mean, p.variance = p.take(
                bn_ext.batch_norm_training, *names, workspace=p.workspace, out=out, **options
            )
            p.passes = lets_pass(p.dst)
            assert bits(p.workspace) == bits(packed(p.passes, p.src, data_format))
            want = all_bits(plain(p))
            assert [all_bits(gated(p, gate)) == want for gate in GATES] == [True] * 3, dims


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_results_at_the_edge_of_zero(isa, data):
    """Among the sums of src and beta, some just round to 0 when stored, and some just do not."""
    stored = STORED[data]
    kinds = boundary(stored)
    src = np.concatenate([kinds] * 2).view(dtype(data))[:, None]
    smallest = stored.widen(np.array([1], stored.bits))[0]
    largest_zero = smallest / 2 if data in cases.SHORT else 0
    ulp = np.nextafter(stored.number.type(largest_zero), stored.number.type(1))
    for beta in (0.0, -0.0, largest_zero, -largest_zero, ulp, -ulp, -smallest, smallest, np.nan):
        one, none = np.ones(1, stored.number), np.zeros(1, stored.number)
        offset = np.array([beta], stored.number)
        # With variance 1 and epsilon 0, src + beta is rounded once, before it is stored.
        dst = bn_ext.batch_norm_inference(src, none, one, one, offset, epsilon=0.0, relu=True)
        passes = lets_pass(dst)
        diff_dst = np.ones_like(src)
        options = {"epsilon": 0.0, "relu": True, "is_training": False, "param_grads": False}
        for gate in ({"beta": offset}, {"dst": dst}, {"workspace": packed(passes, src, "NXC")}):
            results = bn_ext.batch_norm_backward(src, diff_dst, none, one, one, **gate, **options)
            assert bits(results.diff_src) == bits(passes.astype(src.dtype)), (beta, list(gate))


@every_gate
def test_what_is_nan_passes(rng, isa, gate):
    """NaN passes, as in PyTorch and oneDNN. A NaN of diff_dst that does not pass becomes 0."""
    for data in DATA_DTYPES:
        p = problem(rng, (4, 3, 40), "NCX", data)
        p.src[1, 1, ::3] = np.nan
        p.dst = forward(p, relu=True)
        p.passes = lets_pass(p.dst)
        p.dst[1, 1, ::6] = -p.dst[1, 1, ::6]
        p.workspace = packed(p.passes, p.src, p.data_format)
        assert p.passes[1, 1, ::3].all()
        p.diff_dst[2, :, ::5] = -np.asarray(np.nan, p.src.dtype)
        results = gated(p, gate, is_training=False, param_grads=False)
        assert bits(results.diff_src) == bits(plain(p, is_training=False).diff_src)
        wanted = p.passes & np.isnan(p.diff_dst.astype(np.float64))
        assert wanted.any()
        assert (np.isnan(results.diff_src.astype(np.float64)) == wanted).all()


@every_format
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_forward_pass_fills_it(rng, isa, data, added, data_format):
    for dims in SIZES:
        p = Family(rng, shape(*dims, data_format), data_format, data)
        src_1 = p.src_1 if added else None
        p.src.flat[-1] = np.nan
        options = {"relu": True, "src_1": src_1, "data_format": data_format, "epsilon": EPSILON}
        workspace = workspace_for(p.src.shape)
        results = bn_ext.batch_norm_training(p.src, p.gamma, p.beta, workspace=workspace, **options)
        passes = lets_pass(results.dst)
        assert bits(workspace) == bits(packed(passes, p.src, data_format)), dims
        dst = bn_ext.batch_norm_inference(
            p.src, *p.vectors(), p.beta, workspace=workspace, out=p.src_1, **options
        )
        passes = lets_pass(dst)
        assert bits(workspace) == bits(packed(passes, p.src, data_format)), dims


@every_format
@pytest.mark.parametrize("memory", ["gaps", "backwards", "spread"])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_it_has_the_bits_of_any_view_that_is_written(rng, data, memory, data_format):
    """In whatever order the view's axes lie: bits are in src's."""
    for dims in SIZES:
        p = Family(rng, shape(*dims, data_format), data_format, data)
        statistics = {"training": [], "inference": ["mean", "variance"]}
        for (name, more), order in itertools.product(statistics.items(), (None, (2, 1, 0))):
            out = placed(np.zeros_like(p.src), memory, order=order)
            workspace = workspace_for(p.src.shape)
            p.take(
                getattr(bn_ext, f"batch_norm_{name}"), "src", *more, "gamma", "beta",
                workspace=workspace, out=out if more else (out, None, None), **RELU,
            )  # fmt: skip
            assert bits(workspace) == bits(packed(lets_pass(out), p.src, data_format)), dims


def workspace_for(dims):
    return np.full(workspace_size(math.prod(dims), len(dims)), 0xA5, np.uint8)


def end_of_workspace(dims):
    options = {"epsilon": 0, "data_format": "NXC", "workspace": workspace_for(dims), **RELU}
    bn_ext.batch_norm_inference(np.zeros(dims, np.float16), *np.ones((2, dims[-1])), **options)
    return options["workspace"][-len(dims) - 8 :]


def test_no_workspace_of_another_shape_is_taken(rng):
    """All shapes of one size, which has more of them than those near it; and other channels."""
    shapes = [
        (rows, n // rows) for n in range(7553, 7561) for rows in range(1, n + 1) if n % rows == 0
    ]
    assert len({len(workspace_for(dims)) for dims in shapes}) == 1
    assert len({end_of_workspace(dims).tobytes() for dims in shapes}) == len(shapes) > 100
    ends = {cases.order_bytes(dims, (0, 1), axis).tobytes() for dims in shapes for axis in (0, 1)}
    assert len(ends) == 2 * len(shapes)
    made, mismatched = Family(rng, (192, 40), "NXC"), Family(rng, (128, 60), "NXC")
    workspace = packed(made.src > 0, made.src, "NXC")
    with pytest.raises(ValueError, match="^workspace: expected what a forward pass wrote for src"):
        mismatched.run(bn_ext.batch_norm_backward, workspace=workspace, **RELU)


@pytest.mark.parametrize("axes", [2, 3, 9])
def test_sixty_four_bits_tell_a_shape(rng, axes):
    shapes = {tuple(map(int, dims)) for dims in rng.integers(2, 6, (200, axes))}
    marks = np.unpackbits([end_of_workspace(dims)[-8:] for dims in shapes], 1)
    assert (marks.min(0) < marks.max(0)).all()


def gradients(src, diff_dst, workspace, **options):
    return bn_ext.batch_norm_backward(src, diff_dst, workspace=workspace, **RELU, **options)


def from_sums(src, diff_dst, workspace, *, mean, variance, gamma, epsilon, exact=False, **options):
    shared = {"workspace": workspace, **RELU, **options}
    sums = bn_ext.GradientSums(src, diff_dst, mean, exact=exact, **shared)
    results = bn_ext.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon=epsilon, sums=sums, **shared
    )
    return [sums._sums if not exact else _core.canonical_state(sums.array, sums._format), *results]


def in_place(src, diff_dst, workspace, **options):
    out = src.copy(order="K"), None, None, diff_dst.copy(order="K")
    options |= {"diff_src_1": True, "out": out}
    return gradients(out[0], out[3], workspace, **options)


def twice(src, diff_dst, workspace, **options):
    second = diff_dst[::-1], options["mean"], options["mean"]
    vectors = (options.pop(name) for name in ("mean", "variance", "gamma"))
    return gated_double_backward(
        src, diff_dst, *vectors, *second, of_src_1=diff_dst, workspace=workspace, **options
    )


#: What reads a workspace.
READERS = {
    "backward": gradients,
    "frozen": partial(gradients, is_training=False),
    "added": partial(gradients, diff_src_1=True),
    "exact": partial(gradients, exact=True),
    "in place": in_place,
    "sums": from_sums,
    "exact sums": partial(from_sums, exact=True),
    "second derivatives": twice,
}


@every_format
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("dims", [(3, 4, 5, 6), (2, 1, 4, 3), (3, 4, 1, 1), (3, 1, 1, 5), (3, 7)])
def test_its_bits_are_of_the_same_elements_of_src_in_any_order(rng, dims, reader, data_format):
    """Results have the bits of the order that src had in the forward pass, and src's own layout."""
    p = Family(rng, dims, data_format, "float64")
    options = {"data_format": data_format, "epsilon": EPSILON}
    workspace = workspace_for(p.src.shape)
    for _ in range(8):
        src, _ = fuzz.anyhow(rng, p.src, rng.permutation(p.src.ndim))
        _, mean, variance = bn_ext.batch_norm_training(
            src, p.gamma, src_1=p.src_1, workspace=workspace, **RELU, **options
        )
        vectors = {"mean": mean, "variance": variance, "gamma": p.gamma}
        right = reader(src, p.diff_dst, workspace, **vectors, **options)
        for _ in range(6):
            again, _ = fuzz.anyhow(rng, src, rng.permutation(src.ndim))
            if np.array_equal(src, again):
                results = reader(again, p.diff_dst, workspace, **vectors, **options)
                if reader is twice:  # its sums follow src
                    for a, b in zip(results, right, strict=True):
                        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
                else:
                    assert all_bits(results) == all_bits(right)
                if reader is gradients:
                    assert cases.axis_order(results.diff_src) == cases.axis_order(again)


@pytest.mark.parametrize("dims", [(0, 4, 3), (3, 0, 3), (3, 4, 0), (0, 0)])
def test_an_empty_one_has_an_order_too(dims):
    src, vector = np.empty(dims, np.float32), np.ones(dims[-1], np.float32)
    options = {"relu": True, "data_format": "NXC", "epsilon": EPSILON}
    options["workspace"] = workspace_for(dims)
    bn_ext.batch_norm_inference(src, vector, vector, **options)
    assert bn_ext.batch_norm_backward(src, src, vector, vector, **options).diff_src.shape == dims


@pytest.mark.parametrize("name", STORED)
def test_every_short_value_by_itself(isa, name):
    stored = STORED[name]
    every = np.arange(1 << 16, dtype=np.uint16)
    elements = every if stored.bits.itemsize == 2 else boundary(stored)
    passing = np.unpackbits(
        running.run_relu_mask(isa, stored, elements).view(np.uint8), bitorder="little"
    )[: len(elements)]
    with np.errstate(invalid="ignore"):
        assert (passing == ~(stored.widen(elements) <= 0)).all()
