"""What oneDNN Graph's operator for forward training computes, and its edges."""

import numpy as np
import pytest
from bounds import dst_error, running_errors, statistics_errors
from cases import DTYPES, EPSILON, FORMATS, Family, all_bits, bits, dtype
from needs import needs_long_double

from bn_ext.specs import onednn_graph
from bn_ext.testing import _formulas as reference

pytestmark = [pytest.mark.fast, pytest.mark.any_level, needs_long_double]

WIDE = {"epsilon": EPSILON, "wide": np.longdouble}
#: The spec's table: without float64, and with 16-bit vectors for bfloat16 only.
ONEDNN = [pair for pair in DTYPES if pair[0] != "float64" and pair != ("float16", "float16")]
SHAPES = [(6, 5), (4, 3, 7), (3, 5, 4, 6), (1, 5), (2, 2, 3, 2, 4, 3)]
training = onednn_graph.batch_norm_forward_training


def problems(rng, data_format, data, vector, ratio=3.0):
    for dims in SHAPES:
        yield Family(rng, dims, data_format, data, vector, ratio=ratio)


def holds(errors):
    for name, error in errors.items():
        assert error.holds(), name


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1, 1.75])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), ONEDNN)
def test_onednn_training(rng, data, vector, data_format, momentum):
    for p in problems(rng, data_format, data, vector):
        want = reference.batch_norm_training(p.src, p.gamma, p.beta, axis=p.axis, **WIDE)
        results = training(
            p.src, p.mean, p.variance, p.gamma, p.beta, epsilon=EPSILON, momentum=momentum,
            data_format=data_format,
        )  # fmt: skip
        assert results.dst.dtype == dtype(data)
        assert {a.dtype for a in results[1:]} == {dtype(vector)}
        holds({"dst": dst_error(results.dst, want, data, p.axis)})
        holds(statistics_errors(results.batch_mean, results.batch_variance, want, data, vector))
        holds(
            running_errors(
                results[1:3], (p.mean, p.variance), (want.mean, want.variance), 1 - momentum, want,
                data, vector=vector,
            )
        )  # fmt: skip


def test_onednn_without_scale_and_shift(rng):
    p = Family(rng, (6, 5), "NXC")
    ones, zeros = np.ones_like(p.gamma), np.zeros_like(p.gamma)
    results = training(p.src, p.mean, p.variance, epsilon=EPSILON)
    same = training(p.src, p.mean, p.variance, ones, zeros, epsilon=EPSILON)
    assert all_bits(results) == all_bits(same)


def test_onednns_momentum_is_a_half_and_of_the_old(rng):
    p = Family(rng, (6, 5), "NXC")
    arguments = p.src, p.mean, p.variance
    by_default = training(*arguments, epsilon=EPSILON)
    half = training(*arguments, epsilon=EPSILON, momentum=0.5)
    assert all_bits(by_default) == all_bits(half)
    kept = training(*arguments, epsilon=EPSILON, momentum=1)
    assert bits(kept.running_mean) == bits(p.mean)
    assert bits(kept.running_variance) == bits(p.variance)
    biased = training(*arguments, epsilon=EPSILON, momentum=1e-30)
    np.testing.assert_allclose(biased.running_variance, p.src.var(axis=0), rtol=1e-6)
