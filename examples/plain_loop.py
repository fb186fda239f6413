"""The whole operation as three nested loops: what bn_ext computes, but not options.

Two passes over a channel's elements, one that sums and one that writes, with a little
arithmetic once per channel between them. The numbers are the widest that NumPy has.

    python examples/plain_loop.py     options far bn_ext, in float32, is from these loops
"""

import math

import numpy as np

import bn_ext


def batch_norm_backward(
    src, diff_dst, mean, variance, gamma=None, *, epsilon, is_training=True, data_format="NXC"
):
    """Return diff_src, diff_gamma and diff_beta; arguments as bn_ext has them."""
    channel_axis = {"NXC": -1, "NCX": 1}[data_format]
    # Seen as (batch, channels, inner); inner is all axes except the first and the channels.
    x, dy = (np.moveaxis(a, channel_axis, 1).astype(np.longdouble) for a in (src, diff_dst))
    batch, channels, *others = x.shape
    inner = math.prod(others)
    m = batch * inner
    x, dy = (a.reshape(batch, channels, inner) for a in (x, dy))
    mean, variance = (np.asarray(a).astype(np.longdouble) for a in (mean, variance))
    gamma = np.ones_like(mean) if gamma is None else np.asarray(gamma).astype(np.longdouble)
    diff_src, diff_gamma, diff_beta = np.empty_like(x), np.empty_like(mean), np.empty_like(mean)

    for c in range(channels):
        # The first pass: sums over the channel.
        sum_dy = sum_dy_xc = np.longdouble(0)
        for n in range(batch):
            for i in range(inner):
                xc = x[n, c, i] - mean[c]
                sum_dy += dy[n, c, i]  # beta shifts every element alike
                sum_dy_xc += dy[n, c, i] * xc  # gamma scales xhat = xc * rstd

        # Once per channel: what each of its m elements needs from the sums.
        rstd = 1 / np.sqrt(variance[c] + epsilon)
        diff_beta[c] = sum_dy
        diff_gamma[c] = rstd * sum_dy_xc
        scale = gamma[c] * rstd  # src reaches the output through gamma * (src - mean) * rstd ...
        shift = diff_beta[c] / m  # ... through the mean, which each element moves by 1/m
        slope = rstd * diff_gamma[c] / m  # ... and through rstd: the variance moves by 2 xc/m

        # The second pass: every element's gradient.
        for n in range(batch):
            for i in range(inner):
                xc = x[n, c, i] - mean[c]
                if is_training:
                    diff_src[n, c, i] = scale * (dy[n, c, i] - (shift + xc * slope))
                else:  # frozen statistics: src moves neither the mean nor the variance
                    diff_src[n, c, i] = scale * dy[n, c, i]

    diff_src = np.moveaxis(diff_src.reshape(batch, channels, *others), 1, channel_axis)
    return diff_src, diff_gamma, diff_beta


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    src, diff_dst = rng.standard_normal((2, 8, 14, 14, 3), np.float32)
    mean, variance = src.mean(axis=(0, 1, 2)), src.var(axis=(0, 1, 2))
    gamma = rng.uniform(0.5, 2, 3).astype(np.float32)
    plain = batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=1e-5)
    options = {"epsilon": 1e-5, "data_format": "NXC"}
    grads = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, gamma, **options)
    for name, fast, wanted in zip(grads._fields, grads, plain, strict=True):
        print(f"{name}: {abs(fast - wanted).max():.1e} of {abs(wanted).max():.1e} at most")
