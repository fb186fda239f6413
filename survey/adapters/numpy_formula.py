"""The formula as one writes it in NumPy."""

import numpy as np

NAME, PACKAGES, LAYOUT, OWN = "NumPy's formula", ["numpy"], "NXC", ()


def training(src, gamma, beta, epsilon):
    axes = tuple(range(src.ndim - 1))
    mean, variance = src.mean(axes), src.var(axes)
    return inference(src, mean, variance, gamma, beta, epsilon), mean, variance


def inference(src, mean, variance, gamma, beta, epsilon):
    return gamma * (src - mean) / np.sqrt(variance + np.float32(epsilon)) + beta


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    axes, m = tuple(range(src.ndim - 1)), np.float32(max(1, src[..., 0].size))
    rstd = 1 / np.sqrt(variance + np.float32(epsilon))
    xhat = (src - mean) * rstd
    diff_gamma, diff_beta = (diff_dst * xhat).sum(axes), diff_dst.sum(axes)
    diff_src = gamma * rstd * (diff_dst - (diff_beta + xhat * diff_gamma) / m)
    return diff_src, diff_gamma, diff_beta
