"""What TensorFlow's forward operator computes, and its edges."""

import inspect

import numpy as np
import pytest
from cases import EPSILON, Family, all_bits, bits
from sheets import forward_of

from bn_ext.specs import tensorflow
from bn_ext.testing._limits import distance, half_ulp

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

DATA = ["float32", "float16", "bfloat16"]
LAYOUTS = {"NHWC": (2, 3, 4, 5), "NCHW": (2, 5, 3, 4)}
LAYOUTS |= {"NDHWC": (2, 3, 1, 4, 5), "NCDHW": (2, 5, 3, 1, 4)}
FORMS = {name: "NXC" if name.endswith("C") else "NCX" for name in LAYOUTS}


def problem(rng, layout="NHWC", data="float32", dims=None):
    return Family(rng, dims or LAYOUTS[layout], FORMS[layout], data, ratio=3.0)


def run(p, **options):
    options = {"epsilon": EPSILON, **options}
    return tensorflow.fused_batch_norm_v3(p.src, p.gamma, p.beta, p.mean, p.variance, **options)


@pytest.mark.parametrize("factor", [0, 0.3, 1, 2, -1, "inference"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("data", DATA)
def test_results_are_the_general_functions(rng, data, layout, factor):
    p, is_training = problem(rng, layout, data), factor != "inference"
    numbers = {"exponential_avg_factor": factor} if is_training else {}
    if is_training:
        wanted = forward_of(p, factor=factor, correction=1)
    else:
        wanted = [*forward_of(p, is_training=False), *[p.mean, p.variance] * 2]
    results = run(p, data_format=layout, is_training=is_training, **numbers)
    assert all_bits(results) == all_bits([*wanted, np.empty(0, np.float32)])


def test_fresh_statistics_ignore_the_old_ones(rng):
    """With factor 1, old statistics may have any length or be NaN; batch_variance is unbiased."""
    p = problem(rng)
    results = run(p)
    assert bits(results.batch_mean) == bits(results.reserve_space_1)
    unbiased = results.reserve_space_2 * (p.count / (p.count - 1))
    assert (distance(results.batch_variance, unbiased) <= 4 * half_ulp(unbiased, "float32")).all()
    for place in (0, 1, 2, 7):
        p.mean, p.variance = (np.full(place, np.nan, np.float32) for _ in range(2))
        assert all_bits(run(p)) == all_bits(results)
    p.mean = np.ones((1, 5), np.float32)
    with pytest.raises(ValueError, match=r"^mean: expected one dimension, got shape \(1, 5\)$"):
        run(p)


def test_one_element_or_two_per_channel(rng):
    """Bessel's correction divides by max(M - 1, 1): it doubles the variance of two elements."""
    p = problem(rng, dims=(1, 1, 1, 5))
    results = run(p)
    assert (results.batch_mean == p.src.ravel()).all()
    assert not results.batch_variance.any()
    half = run(p, exponential_avg_factor=0.5)
    assert (half.batch_variance == p.variance / 2).all()
    results = run(problem(rng, dims=(2, 1, 1, 5)))
    assert (results.batch_variance == 2 * results.reserve_space_2).all()
    assert (results.reserve_space_2 > 0).all()


def test_attributes_as_tensorflow_has_them(rng):
    """Attributes with a default may be None; strings may be bytes, as graph mode passes them."""
    for layout in ("NHWC", "NCHW"):
        p = problem(rng, layout)
        statistics = p.mean, p.variance
        for operator, arguments in (
            (tensorflow.fused_batch_norm_v3, (p.src, p.gamma, p.beta, *statistics)),
            (tensorflow.fused_batch_norm_grad_v3, (p.diff_dst, p.src, p.gamma, *statistics, None)),
        ):
            parameters = inspect.signature(operator).parameters.values()
            defaults = {a.name: a.default for a in parameters if a.kind is a.KEYWORD_ONLY}
            attributes = {**defaults, "data_format": layout}
            wanted = all_bits(operator(*arguments, **attributes))
            words = {name: value for name, value in attributes.items() if isinstance(value, str)}
            for name, value in words.items():
                results = operator(*arguments, **{**attributes, name: value.encode()})
                assert all_bits(results) == wanted
            for name in [n for n in attributes if attributes[n] == defaults[n]]:
                assert all_bits(operator(*arguments, **{**attributes, name: None})) == wanted


@pytest.mark.parametrize("data_format", ["NHWC", "NDHWC", "NCHW", "NCDHW"])
def test_the_rank_says_how_many_axes(rng, data_format):
    """data_format only says where C is."""
    for layout, dims in LAYOUTS.items():
        if FORMS[layout] == FORMS[data_format]:
            p = problem(rng, layout)
            a = run(p, data_format=layout)
            b = run(p, data_format=data_format)
            assert all_bits(a) == all_bits(b), dims
