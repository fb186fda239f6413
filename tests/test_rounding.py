"""16-bit types at every level: exact widening, right rounding at each boundary, no double rounding.

Arithmetic that changes nothing shows the kernels' conversions. With one element per channel,
sum(dy) is that element; with variance 1, epsilon 0, frozen statistics and dy = 1, diff_src is
gamma, rounded.
"""

import numpy as np
import pytest
from cases import SHORT, dtype

import bn_ext

pytestmark = [pytest.mark.fast, pytest.mark.results]


def all_patterns(name):
    return np.arange(1 << 16, dtype=np.uint16).view(dtype(name))


def as_doubles(values):
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float64)


@pytest.mark.parametrize("name", SHORT)
def test_every_pattern_up(isa, name):
    values = all_patterns(name)
    one = np.ones(1, values.dtype)
    zeros = np.zeros(1 << 16, np.float32)
    for length in (1 << 16, (1 << 16) - 1):  # whole registers, and an edge
        arguments = np.broadcast_to(one, (1, length)), values[None, :length]
        want = as_doubles(values[:length])
        for k in (0, 1):
            sums = bn_ext.GradientSums(*arguments, zeros[:length])._sums
            np.testing.assert_array_equal(sums[k], want)
            arguments = arguments[::-1]


def boundaries(name):
    """A type's finite values from 0 up, as doubles, and the next one, which would be infinite."""
    patterns = all_patterns(name)
    values = as_doubles(patterns[: 1 << 15])
    values = values[np.isfinite(values)]
    return np.append(values, 2 * values[-1] - values[-2])


def around_every_boundary(name, wide):
    """Numbers of type `wide` at and just beside each halfway point; the patterns they round to."""
    values = boundaries(name)
    halfway = ((values[1:] + values[:-1]) / 2).astype(wide)
    assert (halfway == (values[1:] + values[:-1]) / 2).all()
    below, above = np.arange(len(values) - 1), np.arange(1, len(values))
    even = np.where(below % 2 == 0, below, above)
    # Each number, and the pattern that it rounds to.
    cases = (halfway, even), (np.nextafter(halfway, wide(0)), below)
    cases += (np.nextafter(halfway, wide(np.inf)), above), (values[:-1].astype(wide), below)
    numbers, patterns = map(np.concatenate, zip(*cases, strict=True))
    extremes = np.array([np.finfo(wide).max, np.inf, np.finfo(wide).smallest_subnormal, 0], wide)
    infinite = (1 << 15) - (1 << (10 if name == "float16" else 7))
    numbers = np.concatenate([numbers, extremes])
    patterns = np.concatenate([patterns, [infinite, infinite, 0, 0]]).astype(np.uint16)
    return np.concatenate([numbers, -numbers]), np.concatenate([patterns, patterns | 0x8000])


@pytest.mark.parametrize("name", SHORT)
def test_every_boundary_down_in_the_kernel(isa, name):
    with np.errstate(over="ignore"):
        gamma, want = around_every_boundary(name, np.float32)
    n = len(gamma)
    ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
    for length in (n, n - 1, n - 13):
        diff_dst = np.ones((1, length), dtype(name))
        arguments = diff_dst, diff_dst, *(a[:length] for a in (zeros, ones, gamma))
        grads = bn_ext.batch_norm_backward(*arguments, epsilon=0.0, is_training=False)
        assert (grads.diff_src[0].view(np.uint16) == want[:length]).all()


@pytest.mark.parametrize("name", SHORT)
def test_doubles_are_rounded_once(isa, name):
    """From a double straight to 16 bits: rounding to float32 first would lose the last digits."""
    with np.errstate(over="ignore"):
        numbers, want = around_every_boundary(name, np.float64)
    n = len(numbers)
    vector = np.ones(n, dtype(name))
    data = np.ones((1, n), dtype(name))
    sums = bn_ext.GradientSums(data, data, vector)._with(np.array([numbers, numbers]), 1)
    grads = bn_ext.batch_norm_backward(data, data, vector, vector, epsilon=0.0, sums=sums)
    assert (grads.diff_beta.view(np.uint16) == want).all()
    assert (grads.diff_gamma.view(np.uint16) == want).all()
