"""Check a gradient that is written with torch; tensors may have a gradient of their own."""

import torch

from bn_ext.testing import check_backward


def mine(src, diff_dst, mean, variance, gamma, epsilon):
    x, dy, mean, variance = (torch.from_numpy(a).double() for a in (src, diff_dst, mean, variance))
    weight = torch.ones_like(mean) if gamma is None else torch.from_numpy(gamma).double()
    axes, rstd = tuple(range(x.ndim - 1)), (variance + epsilon).rsqrt()
    xhat = (x - mean) * rstd
    diff_gamma, diff_beta = (dy * xhat).sum(axes), dy.sum(axes)
    through = (diff_beta + xhat * diff_gamma) / max(1, x[..., 0].numel())
    diff_src = weight.requires_grad_() * rstd * (dy - through)
    return diff_src.float(), diff_gamma.float(), diff_beta.float()


print(check_backward(mine))
