"""The gradient through a fused ReLU: which elements it let pass, and all else as without it.

What a gated call must give is known bit for bit: what the plain one gives for a diff_dst whose
other elements are zeros.
"""

import numpy as np
import pytest
import reference
from bounds import errors
from cases import (
    DATA_DTYPES,
    DTYPES,
    EPSILON,
    FORMATS,
    SHORT,
    Family,
    all_bits,
    bits,
    dtype,
    full_order,
    memory_order,
    packed,
    placed,
    shape,
)
from relu_gates import (
    GATES,
    PLAIN,
    SIZES,
    forward,
    gated,
    lets_pass,
    passed,
    plain,
    problem,
)
from test_layouts import any_shape, any_view

import bn_ext
from bn_ext import _core
from bn_ext._verify import running
from bn_ext._verify.dtypes import DTYPES as STORED
from bn_ext._verify.values import boundary

pytestmark = pytest.mark.quick

every_mode = pytest.mark.parametrize("is_training", [True, False])
every_gate = pytest.mark.parametrize("gate", GATES)
every_format = pytest.mark.parametrize("data_format", FORMATS)


# ---- which elements pass ------------------------------------------------------------------


@every_mode
@every_gate
@every_format
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_gated_is_plain_with_zeros_where_nothing_passed(
    rng, data, vector, data_format, gate, is_training
):
    for dims in SIZES:
        p = problem(rng, dims, data_format, data, vector)
        assert p.passes.any() or p.src.size < 20
        assert not p.passes.all() or p.src.size < 20
        found = gated(p, gate, is_training=is_training)
        assert type(found) is bn_ext.BatchNormGradients
        assert all_bits(found) == all_bits(plain(p, is_training=is_training)), dims
        alone = gated(p, gate, is_training=is_training, param_grads=False)
        assert alone[1:] == (None, None)
        assert bits(alone.diff_src) == bits(found.diff_src)


@pytest.mark.parametrize("size", [65535, 65537, 131072, 200_003, 3 * 65536])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_every_bit_of_a_workspace_counts(size, num_threads):
    """Also those behind many: where all pass, nothing that memory had before lets one stop."""
    src, vector = np.ones((size, 1), np.float32), np.ones(1, np.float32)
    given = {"epsilon": 1, "num_threads": num_threads}

    def diff_src(**gate):
        return bn_ext.batch_norm_backward(src, src, 0 * vector, vector, **gate, **given).diff_src

    bits_of_all = np.full(-(-size // 8), 0xFF, np.uint8)
    assert not diff_src(relu=True, workspace=0 * bits_of_all).any()
    assert bits(diff_src(relu=True, workspace=bits_of_all)) == bits(diff_src())


@every_mode
@every_format
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_within_the_bounds_of_the_reference(rng, data, data_format, is_training):
    """The reference knows nothing of a plain call."""
    for dims in SIZES[:6]:
        p = problem(rng, dims, data_format, data)
        want = p.take(
            reference.batch_norm_backward, *PLAIN, axis=p.axis, is_training=is_training,
            gate=reference.gate(p.dst.astype(np.float64)), wide=np.longdouble,
        )  # fmt: skip
        for gate in GATES:
            found = gated(p, gate, is_training=is_training)
            vector = p.mean.dtype.name
            for name, error in errors(found, want, data, vector, is_training=is_training).items():
                assert error.holds(), (name, dims, gate)


@every_mode
@every_format
@pytest.mark.parametrize("gate", ["dst", "workspace"])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_fourth_result_is_what_came_through(rng, data, gate, data_format, is_training):
    for dims in SIZES:
        p = problem(rng, dims, data_format, data)
        found = gated(p, gate, is_training=is_training, diff_src_1=True)
        assert type(found) is bn_ext.BatchNormAddGradients
        assert found._fields[:3] == bn_ext.BatchNormGradients._fields
        assert all_bits(found[:3]) == all_bits(plain(p, is_training=is_training)), dims
        assert bits(found.diff_src_1) == bits(passed(p)), dims
        assert found.diff_src_1.strides == found.diff_src.strides
        alone = gated(p, gate, is_training=is_training, diff_src_1=True, param_grads=False)
        assert all_bits(alone) == [*all_bits(found[:1]), None, None, *all_bits(found[3:])]


@every_format
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_training_with_statistics_in_doubles_passes_the_same(rng, data, data_format):
    """With and without a src_1; means far from 0, so that many results lie near 0."""
    for dims in SIZES:
        for ratio in (0, 30, 1e3 if dtype(data).itemsize == 4 else 30):
            p = Family(rng, shape(*dims, data_format), data_format, data, "float64", ratio=ratio)
            p.beta /= 100
            options = {"data_format": data_format, "relu": True}
            out = (None, np.empty(dims[1]), np.empty(dims[1]))
            p.workspace = np.empty(-(-p.src.size // 8), np.uint8)
            names = ("src", "gamma", "beta")
            p.dst, p.mean, p.variance = p.take(
                bn_ext.batch_norm_training, *names, workspace=p.workspace, out=out, **options
            )
            p.passes = lets_pass(p.dst)
            assert bits(p.workspace) == bits(packed(p.passes, p.src))
            want = all_bits(plain(p))
            assert [all_bits(gated(p, gate)) == want for gate in GATES] == [True] * 3, dims


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_results_at_the_edge_of_zero(isa, data):
    """Sums of src and beta that are 0 when they are stored, or just not; and all other kinds."""
    stored = STORED[data]
    kinds = boundary(stored)
    src = np.concatenate([kinds] * 2).view(dtype(data))[:, None]
    smallest = stored.widen(np.array([1], stored.bits))[0]
    largest_zero = smallest / 2 if data in SHORT else 0
    ulp = np.nextafter(stored.number.type(largest_zero), stored.number.type(1))
    for beta in (0.0, -0.0, largest_zero, -largest_zero, ulp, -ulp, -smallest, smallest, np.nan):
        one, none = np.ones(1, stored.number), np.zeros(1, stored.number)
        given = np.array([beta], stored.number)
        # A variance of 1 without epsilon: y is src + beta, rounded once.
        dst = bn_ext.batch_norm_inference(src, none, one, one, given, epsilon=0.0, relu=True)
        passes = lets_pass(dst)
        diff_dst = np.ones_like(src)
        options = {"epsilon": 0.0, "relu": True, "is_training": False, "param_grads": False}
        for gate in ({"beta": given}, {"dst": dst}, {"workspace": packed(passes, src)}):
            found = bn_ext.batch_norm_backward(src, diff_dst, none, one, one, **gate, **options)
            assert bits(found.diff_src) == bits(passes.astype(src.dtype)), (beta, list(gate))
    assert isa == bn_ext.get_isa()


@every_gate
def test_what_is_nan_passes(rng, isa, gate):
    """As in PyTorch and oneDNN. A NaN that comes in and does not pass is 0."""
    for data in DATA_DTYPES:
        p = problem(rng, (4, 3, 40), "NCX", data)
        p.src[1, 1, ::3] = np.nan
        p.dst = forward(p, relu=True)
        p.passes = lets_pass(p.dst)
        p.dst[1, 1, ::6] = -p.dst[1, 1, ::6]
        p.workspace = packed(p.passes, p.src)
        assert p.passes[1, 1, ::3].all()
        p.diff_dst[2, :, ::5] = -np.asarray(np.nan, p.src.dtype)
        found = gated(p, gate, is_training=False, param_grads=False)
        assert bits(found.diff_src) == bits(plain(p, is_training=False).diff_src)
        wanted = p.passes & np.isnan(p.diff_dst.astype(np.float64))
        assert wanted.any()
        assert (np.isnan(found.diff_src.astype(np.float64)) == wanted).all()


# ---- whatever the machine does ---------------------------------------------------------------


@every_mode
@every_format
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_any_strides(rng, data, data_format, is_training):
    """Of each operand; bits are in the order of src's axes, without its gaps."""
    for _ in range(40):
        dims = any_shape(rng)
        p = Family(rng, dims, data_format, data)
        p.src, p.diff_dst = (any_view(rng, dims, a.dtype) for a in (p.src, p.diff_dst))
        dst = forward(p, relu=True)
        p.passes = lets_pass(dst)
        p.dst = any_view(rng, dims, p.src.dtype)
        if p.dst.flags.writeable:
            p.dst[...] = dst
        else:  # broadcast
            p.dst = dst
        p.workspace = np.empty(-(-p.src.size // 8), np.uint8)
        forward(p, relu=True, workspace=p.workspace)
        assert bits(p.workspace) == bits(packed(p.passes, p.src))
        order = full_order(p.src)
        dense = placed(p.src, order=order)
        want = p.run(
            bn_ext.batch_norm_backward, src=dense, diff_dst=placed(passed(p), order=order),
            data_format=data_format, is_training=is_training,
        )  # fmt: skip
        assert all_bits(gated(p, "beta", is_training=is_training)) == all_bits(want)
        for gate in ("dst", "workspace"):
            found = gated(p, gate, is_training=is_training, diff_src_1=True)
            assert all_bits(found) == [*all_bits(want), *all_bits([passed(p)])], (gate, dims)


#: Where results go: by name, or memory of their own, with gaps.
PLACES = [
    ("new", "new"), ("src", "diff_dst"), ("diff_dst", "src"), ("dst", "src"), ("gaps", "dst"),
    ("gaps", "gaps"), ("diff_dst", "odd"), ("odd", "diff_dst"),
]  # fmt: skip


@every_mode
@every_format
@pytest.mark.parametrize("places", PLACES)
def test_any_places(rng, data_format, places, is_training):
    for dims in SIZES:
        for channels_last in (True, False):
            p = problem(rng, dims, data_format)
            order = memory_order(3, p.axis, channels_last)
            want = p.run(
                bn_ext.batch_norm_backward, src=placed(p.src, order=order), diff_dst=passed(p),
                data_format=data_format, is_training=is_training,
            )  # fmt: skip
            want = [*all_bits(want), *all_bits([passed(p)])]
            for gate, nontemporal in (("dst", True), ("workspace", False)):
                arrays = {n: placed(getattr(p, n), order=order) for n in ("src", "diff_dst", "dst")}
                p.workspace = packed(p.passes, arrays["src"])
                arrays[gate] = arrays.get(gate, p.workspace)
                sevens = np.full_like(p.src, 7)
                here = {
                    "new": None,
                    "gaps": placed(sevens, "gaps", 4, order),
                    "odd": placed(sevens, offset=2, order=order),
                    **arrays,
                }
                diff_src, diff_src_1 = (here[name] for name in places)
                if diff_src is not None and diff_src is diff_src_1:
                    diff_src_1 = placed(sevens, "gaps", 8, order)
                out = (diff_src, None, None, diff_src_1)
                if nontemporal:
                    _core._set_cache_sizes(1, 1)
                found = bn_ext.batch_norm_backward(
                    arrays["src"], arrays["diff_dst"], *p.vectors(), epsilon=EPSILON, relu=True,
                    **{gate: arrays[gate]}, data_format=data_format, is_training=is_training,
                    diff_src_1=True, out=out,
                )  # fmt: skip
                _core._set_cache_sizes(0, 0)
                assert found.diff_src is diff_src or diff_src is None
                assert found.diff_src_1 is diff_src_1 or diff_src_1 is None
                assert all_bits(found) == want, (dims, gate)


# ---- halves --------------------------------------------------------------------------------


def test_parts(rng):
    """Of a batch, each with a gate of its own; one is empty."""
    p = problem(rng, (12, 5, 7), "NCX", "float64")
    want = gated(p, "workspace", diff_src_1=True)
    cuts = [slice(0, 5), slice(5, 5), slice(5, 12)]
    gates = [{"relu": True, "workspace": packed(p.passes[cut], p.src[cut])} for cut in cuts]
    options = {"data_format": "NCX"}
    sums = sum(
        bn_ext.batch_norm_backward_reduce(p.src[cut], p.diff_dst[cut], p.mean, **gate, **options)
        for cut, gate in zip(cuts, gates, strict=True)
    )
    found = [
        bn_ext.batch_norm_backward_apply(
            p.src[cut], p.diff_dst[cut], *p.vectors(), sums, epsilon=EPSILON,
            diff_src_1=True, **gate, **options,
        )
        for cut, gate in zip(cuts, gates, strict=True)
    ]  # fmt: skip
    assert [len(f.diff_src_1) for f in found] == [5, 0, 7]
    for name in ("diff_src", "diff_src_1"):
        whole = np.concatenate([getattr(f, name) for f in found])
        np.testing.assert_allclose(whole, getattr(want, name), rtol=1e-12, atol=1e-14)


@every_gate
@pytest.mark.parametrize("dims", [(0, 5, 7), (4, 0, 7), (4, 5, 0)])
def test_nothing(rng, dims, gate):
    p = problem(rng, dims, "NCX")
    found = gated(p, gate, diff_src_1=gate != "beta")
    assert found.diff_src.shape == found[-1 if gate != "beta" else 0].shape == p.src.shape
    assert not found.diff_gamma.any()
    assert len(p.workspace) == 0


# ---- the workspace of the forward pass --------------------------------------------------------


@every_format
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_forward_pass_fills_it(rng, isa, data, added, data_format):
    for dims in SIZES:
        p = Family(rng, shape(*dims, data_format), data_format, data)
        src_1 = p.src_1 if added else None
        p.src.flat[-1] = np.nan
        options = {"relu": True, "src_1": src_1, "data_format": data_format, "epsilon": EPSILON}
        workspace, again = (np.full(-(-p.src.size // 8), 0xA5, np.uint8) for _ in range(2))
        found = bn_ext.batch_norm_training(p.src, p.gamma, p.beta, workspace=workspace, **options)
        passes = lets_pass(found.dst)
        assert bits(workspace) == bits(packed(passes, p.src)), dims
        stats = bn_ext.batch_norm_training_reduce(p.src, data_format=data_format)
        halves = bn_ext.batch_norm_training_apply(
            p.src, stats, p.gamma, p.beta, workspace=again, **options
        )
        assert bits(halves.dst) == bits(found.dst)
        assert bits(again) == bits(workspace)
        dst = bn_ext.batch_norm_inference(
            p.src, *p.vectors(), p.beta, workspace=again, out=p.src_1, **options
        )
        passes = lets_pass(dst)
        assert bits(again) == bits(packed(passes, p.src)), dims


@pytest.mark.parametrize("name", STORED)
def test_every_short_value_by_itself(isa, name):
    """All bits of 16-bit types; of others, the kinds."""
    stored = STORED[name]
    every = np.arange(1 << 16, dtype=np.uint16)
    elements = every if stored.bits.itemsize == 2 else boundary(stored)
    found = np.unpackbits(
        running.run_passed(isa, stored, elements).view(np.uint8), bitorder="little"
    )[: len(elements)]
    with np.errstate(invalid="ignore"):
        assert (found == ~(stored.widen(elements) <= 0)).all()
