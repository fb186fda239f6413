"""Batch normalization in wide numbers, all channels at once, and the terms of its error bounds.

`wide` is a dtype of NumPy, or bn_ext.testing._wide.Wide.

Forward, backward, and double backward; a ReLU's gate is a mask of the elements that it lets pass.

examples/plain_loop.py has the same formulas as loops, element by element; test_formulas.py compares
the two.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bn_ext.testing._wide import Wide, widened


class Reference(NamedTuple):
    """The gradients, and the sizes of the terms that their error bounds are made of."""

    diff_src: np.ndarray
    diff_gamma: np.ndarray
    diff_beta: np.ndarray
    diff_src_terms: np.ndarray  # |gamma rstd| (|dy| + |sum(dy)/M| + |xc rstd diff_gamma/M|)
    diff_src_sums: np.ndarray  # |gamma rstd| (sum|dy| + |xhat| sum|dy xhat|)/M: errors of sums
    diff_src_tiny: np.ndarray  # what is lost to underflow is multiplied by this
    gamma_terms: np.ndarray  # of diff_gamma: |dy xc| rstd, channels first, (C, M)
    beta_terms: np.ndarray  # of diff_beta: dy
    gamma_tiny: np.ndarray  # (C,), M rstd: what diff_gamma loses, in units of the smallest number
    diff_src_1: np.ndarray  # diff_dst, 0 where the gate is closed


class Normalized(NamedTuple):
    """A forward pass, and the sizes of the terms that its error bounds are made of."""

    dst: np.ndarray
    mean: np.ndarray  # (C,), as are all up to spread; the others are like src
    variance: np.ndarray  # biased: divided by M
    deviation: np.ndarray  # sqrt(variance)
    scale: np.ndarray  # |gamma rstd|
    #: variance / (variance + epsilon): scale's relative error is half the variance's, times this.
    spread: np.ndarray
    #: |scale xc|. In training, xc is src minus the mean as the arithmetic rounds it.
    product_terms: np.ndarray
    shift_terms: np.ndarray  # |beta - scale (mean - that mean)| + |src_1|
    distances: np.ndarray  # |that xc|; what scale loses to underflow is multiplied by it


class Second(NamedTuple):
    """What `batch_norm_double_backward` gives, and the sizes of each result's terms."""

    diff_src: np.ndarray
    diff_diff_dst: np.ndarray
    diff_gamma: np.ndarray
    diff_src_terms: np.ndarray
    diff_diff_dst_terms: np.ndarray
    diff_gamma_terms: np.ndarray


def by_channel(array: Any, axis: int) -> Any:
    """(C, M): one row per channel."""
    array = np.moveaxis(array, axis, 0)
    return array.reshape(array.shape[0], -1)


def as_subtracted(mean, src):
    """The mean as kernels subtract it: rounded to the arithmetic type."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = mean.astype(np.float64 if src.dtype == np.float64 else np.float32)
    return widened(rounded, Wide if isinstance(mean, Wide) else mean.dtype)


def accurate_sum(terms):
    """Sum the last axis to length 1, in pairs of sums: so NumPy adds what is contiguous."""
    terms = terms if isinstance(terms, Wide) else np.ascontiguousarray(terms)
    return terms.sum(axis=-1, keepdims=True)


def as_before(rows: Any, like: Any, axis: int) -> Any:
    """Put (C, M) back into the shape of `like`: the inverse of by_channel."""
    shape = np.moveaxis(like, axis, 0).shape
    whole = np.broadcast_to(rows, (shape[0], int(np.prod(shape[1:]))))
    return np.moveaxis(whole.reshape(shape), 0, axis)


def column(vector, wide, absent):
    """(C, 1), or, if the vector is missing, the number `absent`."""
    return wide(absent) if vector is None else widened(vector, wide)[:, None]


# ---- forward ------------------------------------------------------------------------


def moments(x):
    """The mean, in two parts, and each element minus the mean. The differences are accurate at any
    mean/std: the channel's first element is subtracted, then the mean of the differences.
    """
    pivot, m = x[:, :1] if x.shape[1] else np.full((len(x), 1), np.nan), x.shape[1]
    rest = x - pivot
    mean = accurate_sum(rest) / m
    mean = mean + accurate_sum(rest - mean) / m
    return pivot, mean, rest - mean


def batch_norm_training(src, gamma=None, beta=None, *, axis=-1, wide=np.float64, **options):
    """Normalize with the batch's own statistics; everything in `wide`."""
    x = widened(by_channel(src, axis), wide)
    with np.errstate(divide="ignore", invalid="ignore"):
        pivot, offset, xc = moments(x)
        variance = accurate_sum(xc * xc) / x.shape[1]
        near = as_subtracted(pivot + offset, src)
        low = (pivot - near) + offset
    vectors = pivot + offset, low, variance, gamma, beta
    return normalized(src, x - near, *vectors, axis, wide, **options)


def batch_norm_inference(
    src, mean, variance, gamma=None, beta=None, *, axis=-1, wide=np.float64, **options
):
    """Normalize with the statistics that are given."""
    x = widened(by_channel(src, axis), wide)
    mean, variance = column(mean, wide, 0), column(variance, wide, 0)
    return normalized(src, x - mean, mean, 0 * mean, variance, gamma, beta, axis, wide, **options)


def normalized(
    src, x_near, mean, low, variance, gamma, beta, axis, wide, *, epsilon, src_1=None, relu=False
):
    """Scale, shift, add src_1, apply the ReLU."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = variance + wide(epsilon)
        scale = column(gamma, wide, 1) / np.sqrt(spread)
        less = scale * low
        less = np.where((low != 0) & np.isfinite(less), less, 0)  # then scale * x_near has it
        shift = column(beta, wide, 0) - less
        y = scale * x_near + shift
        share = np.where(spread > 0, variance / spread, 1)
    sizes = abs(shift) + 0 * x_near
    if src_1 is not None:
        added = widened(by_channel(src_1, axis), wide)
        y, sizes = y + added, sizes + abs(added)
    if relu:
        y = np.where(y <= 0, 0, y)  # a NaN stays
    vectors = mean, variance, np.sqrt(variance), np.broadcast_to(abs(scale), mean.shape), share
    tensors = y, abs(scale * x_near), sizes, abs(x_near)
    dst, *terms = (as_before(rows, src, axis) for rows in tensors)
    return Normalized(dst, *(vector[:, 0] for vector in vectors), *terms)


# ---- backward -----------------------------------------------------------------------


def size_of_xc(src, x, mean, far=None):
    """|xc| in the bounds: with hi, the mean as the arithmetic rounds it, |x - hi| + |mean - hi|."""
    if far is not None:
        return far
    near = as_subtracted(mean, src)
    with np.errstate(invalid="ignore"):
        return abs(x - near) + abs(mean - near)


def size_of_sum(terms, exact_sums):
    """(C, 1): what a sum's rounding errors are relative to. If sums are exact, terms that cancel
    have no errors: it is the sum's own size, or that of as many random terms.
    """
    if not exact_sums:
        return abs(terms).sum(axis=1, keepdims=True)
    return np.maximum(abs(accurate_sum(terms)), np.sqrt(accurate_sum(terms**2)))


def batch_norm_backward(
    src, diff_dst, mean, variance, gamma=None, *, epsilon, axis=-1, is_training=True, gate=None,
    far=None, exact_sums=False, wide=np.float64,
):  # fmt: skip
    """Compute everything in `wide`; the channels are on `axis`. `far`, (C, M), replaces |xc| in the
    sizes of terms; exact_sums: of the sums in diff_src, see size_of_sum.
    """
    x, dy = (widened(by_channel(a, axis), wide) for a in (src, diff_dst))
    if gate is not None:
        dy = np.where(by_channel(gate, axis), dy, 0)
    m = x.shape[1]
    mean, variance, gamma = column(mean, wide, 0), column(variance, wide, 0), column(gamma, wide, 1)

    xc = x - mean  # explicit: folding the mean into a constant would cost digits
    far = size_of_xc(src, x, mean, far)
    rstd = 1 / np.sqrt(variance + wide(epsilon))
    diff_beta = accurate_sum(dy)  # beta shifts every element alike
    diff_gamma = accurate_sum(dy * xc * rstd)  # gamma scales xhat = xc rstd
    gamma_terms = abs(dy) * far * rstd
    through_mean = diff_beta / m  # each element moves its channel's mean by 1/M
    through_variance = xc * rstd * diff_gamma / m  # and its variance by 2 xc/M
    scale = abs(gamma * rstd)
    if is_training:
        diff_src = gamma * rstd * (dy - (through_mean + through_variance))
        sizes = abs(dy) + abs(through_mean) + abs(far * rstd * diff_gamma / m)
        through_sums = size_of_sum(dy, exact_sums)
        products = dy * np.copysign(far, xc) * rstd
        through_sums = through_sums + far * rstd * size_of_sum(products, exact_sums)
        tiny = 1 + sizes + scale * (1 + far * (1 + rstd**2))
    else:
        diff_src = gamma * rstd * dy
        sizes, through_sums, tiny = abs(dy), np.zeros_like(dy), 1 + abs(dy)

    tensors = diff_src, scale * sizes, scale * through_sums / m, tiny, dy
    diff_src, *terms, diff_src_1 = (as_before(rows, src, axis) for rows in tensors)
    terms += [gamma_terms, dy, np.broadcast_to(m * rstd[:, 0], len(x)), diff_src_1]
    return Reference(diff_src, diff_gamma[:, 0], diff_beta[:, 0], *terms)


# ---- backward, once more --------------------------------------------------------------


def batch_norm_double_backward(
    src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma=None,
    diff_diff_beta=None, *, epsilon, axis=-1, is_training=True, far=None, exact_sums=False,
    wide=np.float64,
):  # fmt: skip
    """The derivative of sum(diff_diff_src diff_src), plus the same for diff_gamma and diff_beta;
    `far` and `exact_sums` as in batch_norm_backward.
    """
    x, dy, ggx = (widened(by_channel(a, axis), wide) for a in (src, diff_dst, diff_diff_src))
    m = max(1, x.shape[1])
    mean, variance, gamma = column(mean, wide, 0), column(variance, wide, 0), column(gamma, wide, 1)
    ggg, ggb = column(diff_diff_gamma, wide, 0), column(diff_diff_beta, wide, 0)
    r = 1 / np.sqrt(variance + wide(epsilon))
    xhat = (x - mean) * r

    def averages(x, size):
        return (size(terms) / m for terms in (dy, dy * x, ggx, ggx * x, dy * ggx))

    def derivatives(x, dy, ggx, ggg, ggb, gamma, sign, of_dy, of_dy_x, of_g, of_g_x, cross):
        """The formulas; with absolute values and sign 1, the sizes of their terms."""
        if not is_training:
            return ggg * r * dy, gamma * r * ggx + ggg * x + ggb, m * r * cross

        def projected(u, of_u, of_u_x):  # what is left of u without its mean and its share of xhat
            return u + sign * of_u + sign * x * of_u_x

        bent = of_g * of_dy + sign * cross + 3 * of_dy_x * of_g_x
        through = x * bent + of_g_x * (of_dy + sign * dy) + of_dy_x * (of_g + sign * ggx)
        diff_src = gamma * r**2 * through + ggg * r * projected(dy, of_dy, of_dy_x)
        diff_diff_dst = gamma * r * projected(ggx, of_g, of_g_x) + ggg * x + ggb
        diff_gamma = m * r * (cross + sign * of_g * of_dy + sign * of_g_x * of_dy_x)
        return diff_src, diff_diff_dst, diff_gamma

    size = partial(size_of_sum, exact_sums=exact_sums)
    far = size_of_xc(src, x, mean, far) * r
    exact = derivatives(xhat, dy, ggx, ggg, ggb, gamma, -1, *averages(xhat, accurate_sum))
    terms = [*map(abs, (dy, ggx, ggg, ggb, gamma)), 1, *averages(np.copysign(far, xhat), size)]
    sizes = derivatives(far, *terms)

    def back(diff_src, diff_diff_dst, diff_gamma):
        yield from (as_before(a, src, axis) for a in (diff_src, diff_diff_dst))
        yield np.broadcast_to(diff_gamma, mean.shape)[:, 0]

    return Second(*back(*exact), *back(*sizes))
