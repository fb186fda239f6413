"""Reduce and apply over parts: what every part must get."""

import itertools

import numpy as np
import pytest
from cases import DTYPES, EPSILON, FORMATS, Problem, all_bits, shape

import bn_ext

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_a_part_without_elements_has_the_gradients_of_the_whole(
    rng, data, vector, data_format, is_training
):
    p = Problem(rng, shape(12, 5, 7, data_format), data_format, data, vector)
    parts = [(p.src[a:b], p.diff_dst[a:b]) for a, b in itertools.pairwise([0, 5, 5, 12])]
    options = {"data_format": data_format}
    sums = sum(bn_ext.batch_norm_backward_reduce(*part, p.mean, **options) for part in parts)
    found = [
        bn_ext.batch_norm_backward_apply(
            *part, *p.vectors(), sums, epsilon=EPSILON, is_training=is_training, **options
        )
        for part in parts
    ]
    assert [len(f.diff_src) for f in found] == [5, 0, 7]
    assert all_bits(found[1][1:]) == all_bits(found[0][1:]) == all_bits(found[2][1:])
    assert found[1].diff_beta.any()
    out = (np.empty_like(parts[1][0]), *(np.full_like(p.mean, 7) for _ in range(2)))
    given = bn_ext.batch_norm_backward_apply(
        *parts[1], *p.vectors(), sums, epsilon=EPSILON, is_training=is_training, out=out,
        **options,
    )  # fmt: skip
    assert all(a is b for a, b in zip(given, out, strict=True))
    assert all_bits(given) == all_bits(found[1])


@pytest.mark.parametrize("number", [1, 2])
def test_an_empty_part_of_the_shortest_whole(rng, number):
    """An empty part gets the same vectors as the other, which may have one element a channel."""
    p = Problem(rng, (number, 5), "NXC", "float64")
    none = p.src[:0]
    sums = bn_ext.batch_norm_backward_reduce(p.src, p.diff_dst, p.mean)
    sums += bn_ext.batch_norm_backward_reduce(none, none, p.mean)
    found = [
        bn_ext.batch_norm_backward_apply(*part, *p.vectors(), sums, epsilon=EPSILON)
        for part in ((p.src, p.diff_dst), (none, none))
    ]
    assert all_bits(found[0][1:]) == all_bits(found[1][1:])
    assert found[1].diff_beta.all()
    stats = [bn_ext.batch_norm_training_reduce(part) for part in (none, p.src)]
    whole = bn_ext.batch_norm_training_merge(stats)
    given = [
        bn_ext.batch_norm_training_apply(part, whole, epsilon=EPSILON) for part in (p.src, none)
    ]
    assert all_bits(given[0][1:]) == all_bits(given[1][1:])
    assert np.isfinite(given[1].mean).all()


@pytest.mark.parametrize("data", ["float32", "float64", "float16"])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("x", [1, 5, 1100])
def test_sums_that_are_nan_have_one_pattern(rng, isa, data, data_format, x):
    """Otherwise a NaN's sign would depend on the CPU and the order of additions."""
    p = Problem(rng, shape(9, 4, x, data_format), data_format, data)
    for array, sign in ((p.src, -1), (p.diff_dst, 1)):
        np.moveaxis(array, p.axis, 0)[2].flat[::4] = np.copysign(np.nan, sign)
        np.moveaxis(array, p.axis, 0)[1].flat[:2] = np.inf, -np.inf
    sums = bn_ext.batch_norm_backward_reduce(p.src, p.diff_dst, p.mean, data_format=data_format)
    assert np.isnan(sums[[0, 0, 1], [1, 2, 2]]).all()
    assert set(sums[np.isnan(sums)].view(np.uint64)) == {0x7FF8 << 48}
