"""Batch normalization's gradient in a wide float, all channels at once, and its error's sizes.

examples/plain_loop.py is the same as loops, element by element; test_formulas.py holds them
together.
"""

from typing import NamedTuple

import numpy as np


class Reference(NamedTuple):
    """The gradients, and the sizes of the terms that their error bounds are made of."""

    diff_src: np.ndarray
    diff_gamma: np.ndarray
    diff_beta: np.ndarray
    diff_src_terms: np.ndarray  # |gamma rstd| (|dy| + |sum(dy)/M| + |xc rstd diff_gamma/M|)
    diff_src_sums: np.ndarray  # |gamma rstd| (sum|dy| + |xhat| sum|dy xhat|)/M: errors of sums
    diff_src_tiny: np.ndarray  # what the smallest number is multiplied by: losses by underflow
    gamma_terms: np.ndarray  # of diff_gamma: dy xc rstd, channels first, (C, M)
    beta_terms: np.ndarray  # of diff_beta: dy
    gamma_tiny: np.ndarray  # M rstd: diff_gamma's losses by underflow, (C,)


def by_channel(array, axis):
    """(C, M): one row a channel."""
    array = np.moveaxis(array, axis, 0)
    return array.reshape(array.shape[0], -1)


def accurate_sum(terms):
    """Sum over the last axis, kept: pairs of halves, with what each addition loses."""
    lost = np.zeros_like(terms)
    while terms.shape[-1] > 1:
        half = (terms.shape[-1] + 1) // 2
        a, b = terms[..., :half], np.zeros_like(terms[..., :half])
        b[..., : terms.shape[-1] - half] = terms[..., half:]
        total = a + b
        added = total - a
        missed = (a - (total - added)) + (b - added) + lost[..., :half]
        missed[..., : terms.shape[-1] - half] += lost[..., half:]
        terms, lost = total, missed
    return np.where(np.isfinite(lost), terms + lost, terms)


def batch_norm_backward(
    src, diff_dst, mean, variance, gamma=None, *, epsilon, axis=-1, is_training=True,
    wide=np.float64,
):  # fmt: skip
    """Compute everything in `wide`; the channels are on `axis`."""
    x, dy = (by_channel(a, axis).astype(wide) for a in (src, diff_dst))
    m = x.shape[1]
    mean, variance = (np.asarray(a).astype(wide)[:, None] for a in (mean, variance))
    gamma = wide(1) if gamma is None else np.asarray(gamma).astype(wide)[:, None]

    xc = x - mean  # explicit: folded into a constant, it would cost digits
    rstd = 1 / np.sqrt(variance + wide(epsilon))
    diff_beta = accurate_sum(dy)  # beta shifts every element alike
    gamma_terms = dy * xc * rstd  # gamma scales xhat = xc rstd
    diff_gamma = accurate_sum(gamma_terms)
    through_mean = diff_beta / m  # each element moves its channel's mean by 1/M
    through_variance = xc * rstd * diff_gamma / m  # and its variance by 2 xc/M
    scale = abs(gamma * rstd)
    if is_training:
        diff_src = gamma * rstd * (dy - (through_mean + through_variance))
        sizes = abs(dy) + abs(through_mean) + abs(through_variance)
        through_sums = abs(dy).sum(axis=1, keepdims=True)
        through_sums = through_sums + abs(xc * rstd) * abs(gamma_terms).sum(axis=1, keepdims=True)
        tiny = 1 + sizes + scale * (1 + abs(xc) * (1 + rstd**2))
    else:
        diff_src = gamma * rstd * dy
        sizes, through_sums, tiny = abs(dy), np.zeros_like(dy), 1 + abs(dy)

    def back(a):
        shape = np.moveaxis(src, axis, 0).shape
        return np.moveaxis(np.broadcast_to(a, x.shape).reshape(shape), 0, axis)

    return Reference(
        back(diff_src), diff_gamma[:, 0], diff_beta[:, 0], back(scale * sizes),
        back(scale * through_sums / m), back(tiny), gamma_terms, dy,
        np.broadcast_to(m * rstd[:, 0], len(x)),
    )  # fmt: skip
