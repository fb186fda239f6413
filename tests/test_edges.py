"""The edges of the four operators: one test for each line of docs/semantics.md."""

import itertools

import members
import numpy as np
import pytest
from cases import DATA_DTYPES, DTYPES, EPSILON, FORMATS, Problem, all_bits, dtype, shape
from members import MEMBERS

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

pytestmark = pytest.mark.quick


def f32(*values):
    return np.array(values, np.float32)


# ---- empty and tiny -------------------------------------------------------------


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(
    "dims", [(0, 3), (5, 0), (0, 0), (0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 2, 3, 4), (3, 0, 0, 2)]
)
@pytest.mark.parametrize("name", MEMBERS)
def test_empty_problems_give_empty_and_zeros(rng, name, dims, data_format):
    """New or given; but statistics of nothing are NaN, and running ones stay as they were."""
    member, nothing = MEMBERS[name], np.nan if name.startswith("training") else 0
    for (data, vector), is_training, halves in itertools.product(
        DTYPES, (True, False), (True, False)
    ):
        p = members.problem(rng, dims, data_format, data, vector)
        p.variance[:1] = -1  # its rstd is NaN, and 0 * rstd would be too
        before = all_bits([p.running_mean, p.running_variance])
        kinds = {"tensor": p.src, "vector": p.mean}
        given = [np.full_like(kinds[kind], 7) for kind in member.returns]
        for out in (None, given):
            options = {"is_training": is_training, "halves": halves, "out": out}
            found, bits = member.run(p, **options)
            for kind, array in zip(member.returns, found, strict=True):
                like = kinds[kind]
                assert (array.shape, array.dtype) == (like.shape, like.dtype)
                np.testing.assert_array_equal(array.astype(float), np.full(like.shape, nothing))
            assert out is None or all(a is b for a, b in zip(found, out, strict=True))
            if name.startswith("training, fused"):
                assert bits[3:5] == before


@pytest.mark.parametrize("is_training", [True, False])
def test_one_element_per_channel_follows_the_formula(rng, is_training):
    for dims, data_format in (((1, 7), "NXC"), ((1, 7, 1, 1), "NCX"), ((1, 1, 7), "NXC")):
        p = Problem(rng, dims, data_format, "float64")
        grads = p.run(bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training)
        x, dy = p.src.ravel(), p.diff_dst.ravel()
        rstd = 1 / np.sqrt(p.variance + EPSILON)
        xhat = (x - p.mean) * rstd
        np.testing.assert_allclose(grads.diff_beta, dy, rtol=1e-15)
        np.testing.assert_allclose(grads.diff_gamma, dy * xhat, rtol=1e-14)
        want = p.gamma * rstd * (-xhat * xhat * dy if is_training else dy)
        np.testing.assert_allclose(grads.diff_src.ravel(), want, rtol=1e-12)


# ---- statistics as given ----------------------------------------------------------


def test_negative_variance_gives_nan_and_no_warning(rng):
    p = Problem(rng, (50, 3), "NXC")
    p.variance[1] = -1
    for is_training in (True, False):
        grads = p.run(bn_ext.batch_norm_backward, is_training=is_training)
        assert np.isnan(grads.diff_src[:, 1]).all()
        assert np.isnan(grads.diff_gamma[1])
        assert np.isfinite(grads.diff_beta).all()
        assert np.isfinite(grads.diff_src[:, [0, 2]]).all()
        assert np.isfinite(grads.diff_gamma[[0, 2]]).all()


def test_zero_variance_and_zero_epsilon():
    src, diff_dst = f32(2, 2, 2)[:, None], f32(1, -1, 0)[:, None]
    arguments = src, diff_dst, f32(2), f32(0)
    training = bn_ext.batch_norm_backward(*arguments, epsilon=0)
    assert np.isnan(training.diff_src).all()
    off = bn_ext.batch_norm_backward(src + 1, abs(diff_dst), f32(2), f32(0), epsilon=0)
    assert off.diff_gamma[0] == np.inf
    assert (off.diff_src == -np.inf).all()
    frozen = bn_ext.batch_norm_backward(*arguments, epsilon=0, is_training=False)
    assert frozen.diff_src[0, 0] == np.inf
    assert frozen.diff_src[1, 0] == -np.inf
    assert np.isnan(frozen.diff_src[2, 0])
    ngraph_grads = ngraph.batch_norm_training_backprop(
        src, f32(1), f32(0), f32(2), f32(0), diff_dst, epsilon=0.0
    )
    assert np.isnan(ngraph_grads.input_delta).all()
    for operator in (
        onednn_graph.batch_norm_training_backprop,
        onednn_graph.batch_norm_training_backward,
    ):
        with pytest.raises(ValueError, match="epsilon"):
            operator(*arguments, epsilon=0)


def test_infinite_variance_gives_zeros(rng):
    p = Problem(rng, (50, 3), "NXC")
    p.variance[1] = np.inf
    for is_training in (True, False):
        grads = p.run(bn_ext.batch_norm_backward, is_training=is_training)
        assert (grads.diff_src[:, 1] == 0).all()
        assert grads.diff_gamma[1] == 0
        assert np.isfinite(grads.diff_beta[1])


@pytest.mark.parametrize("data", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("mean", [np.inf, -np.inf])
def test_frozen_about_an_infinite_mean(rng, mean, data):
    """It has no part beyond the data's type: diff_gamma is infinite, not NaN."""
    p = Problem(rng, (6, 4), "NXC", data, "float64")
    p.mean[:] = mean
    p.diff_dst[...] = abs(p.diff_dst)
    found = p.run(bn_ext.batch_norm_backward, is_training=False)
    assert (found.diff_gamma == -mean).all()
    assert np.isfinite(found.diff_src).all()


@pytest.mark.parametrize(("data", "vector"), DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_gamma_gives_infinities_by_sign(rng, data, vector, sign):
    for is_training in (True, False):
        p = Problem(rng, (50, 3), "NXC", data, vector)
        ones = p.run(bn_ext.batch_norm_backward, is_training=is_training)
        p.gamma = p.gamma.copy()
        direction = sign * np.sign(p.gamma[1].astype(float))
        p.gamma[1] = sign * np.inf
        grads = p.run(bn_ext.batch_norm_backward, is_training=is_training)
        finite = ones.diff_src[:, 1].astype(float) * direction
        assert (grads.diff_src[:, 1].astype(float) == np.where(finite > 0, np.inf, -np.inf)).all()
        assert np.isfinite(grads.diff_gamma.astype(float)).all()


# ---- NaN and Inf in the data -------------------------------------------------------


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("x", [1, 5, 1100])
@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_not_finite_stays_in_its_channel(rng, name, x, data_format):
    member, others = MEMBERS[name], [0, 1, 3]
    for types, is_training in itertools.product(DTYPES, (True, False)):
        p = members.problem(rng, shape(9, 4, x, data_format), data_format, *types)
        before, _ = member.run(p, is_training=is_training)
        for read, value in itertools.product(member.reads, (np.nan, np.inf, -np.inf)):
            changed = getattr(p, read).copy(order="K")
            np.moveaxis(changed, p.axis, 0)[2].flat[-1] = value
            found, _ = member.run(p, {read: changed}, is_training=is_training)
            for old, new in zip(before, found, strict=True):
                axis = p.axis if new.ndim > 1 else 0
                kept = [np.moveaxis(a, axis, 0)[others].tobytes() for a in (old, new)]
                assert kept[0] == kept[1], (types, read, value)


#: (is_training, where, value) -> what diff_src, diff_gamma and diff_beta of the channel hold; None:
#: diff_src is not finite where it is in diff_dst, and nowhere else.
NOT_FINITE = {
    (True, "src", np.nan): ("nan", "nan", "finite"),
    (True, "diff_dst", np.nan): ("nan", "nan", "nan"),
    (True, "src", np.inf): ("inf", "inf", "finite"),
    (False, "src", np.nan): ("finite", "nan", "finite"),
    (False, "diff_dst", np.nan): (None, "nan", "nan"),
    (False, "src", np.inf): ("finite", "inf", "finite"),
    (False, "diff_dst", -np.inf): (None, "inf", "inf"),
}
IS = {"nan": np.isnan, "inf": np.isinf, "finite": np.isfinite}


@pytest.mark.parametrize(("data", "vector"), DTYPES)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("x", [1, 5, 1100])
@pytest.mark.parametrize("case", NOT_FINITE, ids=str)
def test_nan_and_inf_go_where_the_arithmetic_puts_them(rng, case, x, data_format, data, vector):
    is_training, where, value = case
    p = Problem(rng, shape(9, 4, x, data_format), data_format, data, vector, ratio=0)
    np.moveaxis(getattr(p, where), p.axis, 0)[2].flat[-1] = value
    found = p.run(bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training)
    diff_src, *sums = (np.moveaxis(a, p.axis if a.ndim > 1 else 0, 0)[2].astype(np.float64)
                       for a in found)  # fmt: skip
    of_diff_src, *of_sums = NOT_FINITE[case]
    for got, kind in zip(sums, of_sums, strict=True):
        assert IS[kind](got)
    if of_diff_src is None:
        assert np.flatnonzero(~np.isfinite(diff_src)).tolist() == [diff_src.size - 1]
        assert np.array_equal(abs(diff_src.flat[-1]), abs(value), equal_nan=True)
    elif of_diff_src == "inf":  # but where src is the mean: 0 Inf
        at_mean = np.moveaxis(p.src, p.axis, 0)[2] == p.mean[2]
        assert np.isinf(diff_src[~at_mean]).all()
        assert np.isnan(diff_src[at_mean]).all()
    else:
        assert IS[of_diff_src](diff_src).all()


def test_frozen_diff_src_never_reads_src(rng):
    p = Problem(rng, (20, 3), "NXC")
    clean = p.run(bn_ext.batch_norm_backward, is_training=False, param_grads=False)
    p.src[...] = np.nan
    p.mean[...] = np.nan
    grads = p.run(bn_ext.batch_norm_backward, is_training=False, param_grads=False)
    assert all_bits(grads) == all_bits(clean)


# ---- the operators' gradients: the general function's, but for what each says ------------


@pytest.mark.parametrize(
    "operator",
    [onednn_graph.batch_norm_training_backprop, onednn_graph.batch_norm_training_backward],
)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("rank", range(2, 8))
def test_onednn_at_any_rank_with_gamma_or_without(rng, operator, rank, data_format):
    p = Problem(rng, (2, 3, 4, 2, 3, 2, 2)[:rank], data_format)
    for gamma in (p.gamma, None):
        p.gamma = gamma
        general = p.run(bn_ext.batch_norm_backward, data_format=data_format)
        assert all_bits(p.run(operator, data_format=data_format)) == all_bits(general)


def test_onednn_backward_alone_uses_the_training_formula_with_gamma_one(p):
    lone = p.run(onednn_graph.batch_norm_training_backward, diff_gamma=False, diff_beta=False)
    ones = bn_ext.batch_norm_backward(p.src, p.diff_dst, p.mean, p.variance, epsilon=EPSILON)
    assert (lone.diff_src == ones.diff_src).all()
    assert lone[1:] == (None, None)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW", "NDHWC", "NCDHW"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data", ["float32", "float16", "bfloat16"])
def test_tensorflow_in_every_layout_and_dtype(rng, data, is_training, data_format):
    """Reserve_space_2 is the variance; spaces 4 and 5 are empty; epsilon may be zero."""
    ours = "NXC" if data_format.endswith("C") else "NCX"
    p = Problem(rng, (2, 3, 4, 5) if len(data_format) == 4 else (2, 3, 2, 4, 5), ours, data)
    for epsilon in (EPSILON, 0):
        grads = tensorflow.fused_batch_norm_grad_v3(
            p.diff_dst, p.src, p.gamma, p.mean, p.variance, None, epsilon=epsilon,
            data_format=data_format, is_training=is_training,
        )  # fmt: skip
        want = p.run(
            bn_ext.batch_norm_backward, data_format=ours, is_training=is_training, epsilon=epsilon
        )
        assert all_bits(grads[:3]) == all_bits(want)
        assert all_bits(grads[3:]) == all_bits([np.empty(0, np.float32)] * 2)


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_ngraph_with_every_real_dtype(rng, data):
    """Epsilon stays a double: 1e-3 is no float32."""
    p = Problem(rng, (3, 4, 5), "NCX", data, data)
    p.variance[...] = 0
    for epsilon in (1e-3, float(np.float32(1e-3))):
        grads = ngraph.batch_norm_training_backprop(
            p.src, p.gamma, p.gamma, p.mean, p.variance, p.diff_dst, epsilon=epsilon
        )
        want = p.run(bn_ext.batch_norm_backward, data_format="NCX", epsilon=epsilon)
        assert all_bits(grads) == all_bits(want)


# ---- zeros -----------------------------------------------------------------------


@pytest.mark.parametrize(("data", "vector"), DTYPES)
@pytest.mark.parametrize(
    ("dims", "data_format"),
    [((3, 2), "NXC"), ((3, 2, 5), "NCX"), ((2, 2, 700), "NCX"), ((5, 2, 700), "NCX")],
)
@pytest.mark.parametrize("is_training", [True, False])
def test_zeros_have_the_sign_that_the_formula_gives(
    isa, data, vector, dims, data_format, is_training
):
    """Gamma of -0; with src - mean of -0 - (-0) and a diff_dst whose sums cancel, or not."""
    src = np.full(dims, -0.0).astype(dtype(data))
    diff_dst = np.ones(dims).astype(dtype(data))
    diff_dst[0] = -1
    mean, variance, gamma = (np.full(2, x).astype(dtype(vector)) for x in (-0.0, 1, -0.0))
    found = bn_ext.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon=0.0, data_format=data_format,
        is_training=is_training,
    )  # fmt: skip
    mean_of_sum = diff_dst.astype(float).mean() if is_training else 0.0
    want = -0.0 * (diff_dst.astype(float) - mean_of_sum)
    assert (np.signbit(found.diff_src) == np.signbit(want)).all()
    assert (found.diff_src == 0).all()
