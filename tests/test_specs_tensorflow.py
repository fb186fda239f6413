"""What TensorFlow's forward operators compute, and their edges."""

import inspect

import numpy as np
import pytest
import reference
from bounds import distance, dst_error, running_errors, statistics_errors
from cases import EPSILON, Family, all_bits, bits, dtype, half_ulp
from needs import needs_long_double

from bn_ext.specs import tensorflow

pytestmark = [pytest.mark.quick, needs_long_double]

WIDE = {"epsilon": EPSILON, "wide": np.longdouble}
DATA = ["float32", "float16", "bfloat16"]
LAYOUTS = {"NHWC": (2, 3, 4, 5), "NCHW": (2, 5, 3, 4), "NDHWC": (2, 3, 1, 4, 5),
           "NCDHW": (2, 5, 3, 1, 4)}  # fmt: skip
FORMS = {name: "NXC" if name.endswith("C") else "NCX" for name in LAYOUTS}
OPERATORS = {"v3": tensorflow.fused_batch_norm_v3, "ex": tensorflow.fused_batch_norm_ex}
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


def problem(rng, layout="NHWC", data="float32", dims=None):
    return Family(rng, dims or LAYOUTS[layout], FORMS[layout], data, ratio=3.0)


def run(operator, p, *more, **options):
    options = {"epsilon": EPSILON, **options}
    return operator(p.src, p.gamma, p.beta, p.mean, p.variance, *more, **options)


@pytest.mark.parametrize("factor", [0, 0.3, 1, 2, -1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("data", DATA)
def test_training(rng, data, layout, factor):
    p = problem(rng, layout, data)
    want = reference.batch_norm_training(p.src, p.gamma, p.beta, axis=p.axis, **WIDE)
    found = run(
        tensorflow.fused_batch_norm_v3, p, data_format=layout, exponential_avg_factor=factor
    )
    assert [a.dtype for a in found] == [dtype(data)] + [np.float32] * 5
    assert found.reserve_space_3.shape == (0,)
    errors = {
        "y": dst_error(found.y, want, data, p.axis),
        **statistics_errors(found.reserve_space_1, found.reserve_space_2, want, data, "float32"),
    }
    for name, error in errors.items():
        assert error.holds(), name
    for name, error in running_errors(
        found[1:3], (p.mean, p.variance), (want.mean, want.variance), factor, want, data,
        vector="float32", count=p.count, correction=1,
    ).items():  # fmt: skip
        assert error.holds(), name
    if factor == 0:
        assert bits(found.batch_mean) == bits(p.mean)
        assert bits(found.batch_variance) == bits(p.variance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("data", DATA)
def test_inference_returns_the_statistics(rng, data, layout):
    p = problem(rng, layout, data)
    found = run(tensorflow.fused_batch_norm_v3, p, data_format=layout, is_training=False)
    for a, given in zip(found[1:5], [p.mean, p.variance] * 2, strict=True):
        assert bits(a) == bits(given)
    assert found.reserve_space_3.shape == (0,)


@every_operator
def test_fresh_statistics_ignore_the_old_ones(rng, operator):
    """With factor 1, old statistics may have any length or be NaN; batch_variance is unbiased."""
    p = problem(rng)
    found = run(operator, p)
    assert bits(found.batch_mean) == bits(found.reserve_space_1)
    unbiased = found.reserve_space_2 * (p.count / (p.count - 1))
    assert (distance(found.batch_variance, unbiased) <= 4 * half_ulp(unbiased, "float32")).all()
    for of in (0, 1, 2, 7):
        p.mean, p.variance = (np.full(of, np.nan, np.float32) for _ in range(2))
        assert all_bits(run(operator, p)) == all_bits(found)
    p.mean = np.ones((1, 5), np.float32)
    with pytest.raises(ValueError, match=r"^mean: expected one dimension, got shape \(1, 5\)$"):
        run(operator, p)


@pytest.mark.parametrize("dims", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 4, 0)])
@pytest.mark.parametrize(
    "options",
    [{}, {"exponential_avg_factor": 0.5}, {"is_training": False}],
    ids=["fresh", "half", "inference"],
)
@every_operator
def test_without_elements(rng, operator, dims, options):
    p = problem(rng, dims=dims)
    found = run(operator, p, **options)
    assert found.y.shape == dims
    for a in (found.batch_mean, found.batch_variance):
        assert np.isnan(a).all()
        assert a.shape == dims[-1:]
    for a in (found.reserve_space_1, found.reserve_space_2):
        assert (a == 0).all()
        assert a.shape == dims[-1:]
    assert found.reserve_space_3.shape == (0,)


@every_operator
def test_one_element_per_channel(rng, operator):
    """Bessel's correction divides by max(M - 1, 1)."""
    p = problem(rng, dims=(1, 1, 1, 5))
    found = run(operator, p)
    assert (found.batch_mean == p.src.ravel()).all()
    assert (found.batch_variance == 0).all()
    assert (found.reserve_space_2 == 0).all()
    half = run(operator, p, exponential_avg_factor=0.5)
    assert (half.batch_variance == p.variance / 2).all()


@every_operator
def test_two_elements_per_channel(rng, operator):
    """Bessel's correction doubles the variance of two elements."""
    p = problem(rng, dims=(2, 1, 1, 5))
    found = run(operator, p)
    assert (found.batch_variance == 2 * found.reserve_space_2).all()
    assert (found.reserve_space_2 > 0).all()


def test_attributes_as_tensorflow_has_them(rng):
    """Attributes with a default may be None; strings may be bytes, as graph mode passes them."""
    for layout in ("NHWC", "NCHW"):
        p = problem(rng, layout)
        statistics = p.mean, p.variance
        for operator, arguments in (
            (tensorflow.fused_batch_norm_v3, (p.src, p.gamma, p.beta, *statistics)),
            (tensorflow.fused_batch_norm_ex, (p.src, p.gamma, p.beta, *statistics)),
            (tensorflow.fused_batch_norm_grad_v3, (p.diff_dst, p.src, p.gamma, *statistics, None)),
        ):
            parameters = inspect.signature(operator).parameters.values()
            defaults = {a.name: a.default for a in parameters if a.kind is a.KEYWORD_ONLY}
            given = {**defaults, "data_format": layout}
            wanted = all_bits(operator(*arguments, **given))
            words = {name: value for name, value in given.items() if isinstance(value, str)}
            for name, value in words.items():
                found = operator(*arguments, **{**given, name: value.encode()})
                assert all_bits(found) == wanted
            for name in [n for n in given if given[n] == defaults[n]]:
                assert all_bits(operator(*arguments, **{**given, name: None})) == wanted


def test_old_statistics_that_are_nan_stay_so(rng):
    p = problem(rng)
    p.mean[1] = p.variance[2] = np.nan
    found = run(tensorflow.fused_batch_norm_v3, p, exponential_avg_factor=0.5)
    assert np.isnan(found.batch_mean).tolist() == [False, True, False, False, False]
    assert np.isnan(found.batch_variance).tolist() == [False, False, True, False, False]
    assert np.isfinite(found.y).all()


@pytest.mark.parametrize("data_format", ["NHWC", "NDHWC", "NCHW", "NCDHW"])
def test_the_rank_says_how_many_axes(rng, data_format):
    """data_format only says where C is."""
    for layout, dims in LAYOUTS.items():
        if FORMS[layout] == FORMS[data_format]:
            p = problem(rng, layout)
            a = run(tensorflow.fused_batch_norm_v3, p, data_format=layout)
            b = run(tensorflow.fused_batch_norm_v3, p, data_format=data_format)
            assert all_bits(a) == all_bits(b), dims


@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
def test_the_fused_one_has_rank_4_alone(rng, layout):
    with pytest.raises(ValueError, match="^x: expected rank 4, got shape "):
        run(tensorflow.fused_batch_norm_ex, problem(rng, layout))


# ---- _FusedBatchNormEx ------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["Identity", "Relu"])
@pytest.mark.parametrize("with_side", [False, True])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("data", DATA)
def test_activation_and_side_input(rng, data, layout, with_side, mode, training):
    p = problem(rng, layout, data)
    options = {"src_1": p.src_1 if with_side else None, "relu": mode == "Relu", "axis": p.axis}
    if training:
        want = reference.batch_norm_training(p.src, p.gamma, p.beta, **options, **WIDE)
    else:
        vectors = p.mean, p.variance, p.gamma, p.beta
        want = reference.batch_norm_inference(p.src, *vectors, **options, **WIDE)
    found = run(
        tensorflow.fused_batch_norm_ex, p, [p.src_1] if with_side else [], data_format=layout,
        activation_mode=mode, is_training=training,
    )  # fmt: skip
    assert dst_error(found.y, want, data, p.axis, from_batch=training, added=with_side).holds()
    plain = run(tensorflow.fused_batch_norm_v3, p, data_format=layout, is_training=training)
    assert all_bits(found[1:]) == all_bits(plain[1:])
    if mode == "Identity" and not with_side:
        assert bits(found.y) == bits(plain.y)
    elif not with_side:
        assert bits(found.y) == bits(np.where(plain.y <= 0, plain.y.dtype.type(0), plain.y))


def test_a_nan_passes_relu(rng):
    p = problem(rng)
    p.src_1[0, 0, 0, 2] = np.nan
    found = run(tensorflow.fused_batch_norm_ex, p, [p.src_1], activation_mode="Relu")
    assert np.argwhere(np.isnan(found.y)).tolist() == [[0, 0, 0, 2]]


def test_side_inputs_are_a_list_of_at_most_one(rng):
    p = problem(rng)
    for thing in ([p.src_1] * 2, p.src_1, None, "ab"):
        hint = r"; pass \[side_input\]" if thing is p.src_1 else ""
        message = f"^side_input: expected a list of at most one array, got [^;]*{hint}$"
        with pytest.raises(TypeError, match=message):
            run(tensorflow.fused_batch_norm_ex, p, thing)
    for kind in (list, tuple):
        run(tensorflow.fused_batch_norm_ex, p, kind([p.src_1]))
    message = r"^side_input\[0\]: expected shape \(2, 3, 4, 5\), like x"
    with pytest.raises(ValueError, match=message):
        run(tensorflow.fused_batch_norm_ex, p, [p.src_1[:1]])
    message = r"^side_input\[0\]: expected float32, like x, got float16"
    with pytest.raises(TypeError, match=message):
        run(tensorflow.fused_batch_norm_ex, p, [p.src_1.astype(np.float16)])


def test_the_gradient_takes_the_reserve_spaces(rng):
    p = problem(rng)
    found = run(tensorflow.fused_batch_norm_v3, p)
    grads = tensorflow.fused_batch_norm_grad_v3(
        p.diff_dst, p.src, p.gamma, *found[3:], epsilon=EPSILON
    )
    want = reference.batch_norm_backward(
        p.src, p.diff_dst, found.reserve_space_1, found.reserve_space_2, p.gamma, **WIDE
    )
    np.testing.assert_allclose(grads.x_backprop, want.diff_src.astype(float), atol=1e-6)
