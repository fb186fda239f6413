"""Straightforward kernels in long doubles, whose text the tests change."""

import sys

from tree import ROOT

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from survey.practices import DOUBLE_BACKWARD, kernel_with

HEAD = """
def kernel(src, {arguments}, epsilon, **by_name):
    axes, number, wide = tuple(range(src.ndim - 1)), src.dtype, np.longdouble
    M, vector = max(1, src[..., 0].size), np.float64 if src.dtype == np.float64 else np.float32
    one = np.ones(src.shape[-1], wide)
    x = src.astype(wide)
    weight = one if gamma is None else gamma.astype(wide)
"""
OPERANDS = {
    "forward": "gamma, beta",
    "inference": "mean, variance, gamma, beta",
    "backward": "diff_dst, mean, variance, gamma",
    "frozen": "diff_dst, mean, variance, gamma",
    "double": "diff_dst, mean, variance, gamma, diff_diff_src, ggg, ggb",
}
BODIES = {
    "forward": """
    offset = 0 * one if beta is None else beta.astype(wide)
    mean = x.sum(axes) / M
    variance = ((x - mean) ** 2).sum(axes) / M
    rstd = 1 / np.sqrt(variance + wide(epsilon))
    dst = weight * rstd * (x - mean) + offset + by_name.get("src_1", 0)
    return dst.astype(number), mean.astype(vector), variance.astype(vector)
""",
    "inference": """
    offset = 0 * one if beta is None else beta.astype(wide)
    rstd = 1 / np.sqrt(variance.astype(wide) + wide(epsilon))
    return (weight * rstd * (x - mean) + offset).astype(number)
""",
    "backward": """
    dy = diff_dst.astype(wide)
    if "dst" in by_name:
        dy = np.where(by_name["dst"] <= 0, 0, dy)
    rstd = 1 / np.sqrt(variance.astype(wide) + wide(epsilon))
    xhat = (x - mean) * rstd
    diff_beta = dy.sum(axes)
    diff_gamma = (dy * xhat).sum(axes)
    through = (diff_beta + xhat * diff_gamma) / M
    diff_src = weight * rstd * (dy - through)
    return diff_src.astype(number), diff_gamma.astype(vector), diff_beta.astype(vector)
""",
    "frozen": """
    dy = diff_dst.astype(wide)
    rstd = 1 / np.sqrt(variance.astype(wide) + wide(epsilon))
    diff_gamma = (dy * (x - mean) * rstd).sum(axes)
    return (weight * rstd * dy).astype(number), diff_gamma.astype(vector), dy.sum(axes)
""",
    "double": DOUBLE_BACKWARD,
}
KERNELS = {n: HEAD.format(arguments=OPERANDS[n]) + body for n, body in BODIES.items()}


def kernel_of(name, *changes):
    return kernel_with(KERNELS[name], changes)


def kernel_from(text):
    return kernel_with(HEAD.format(arguments="diff_dst, mean, variance, gamma") + text, ())
