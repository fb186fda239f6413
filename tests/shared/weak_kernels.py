"""Right kernels in the arithmetic of their data, as CPUs and GPUs have them: sums in any order.

Tensors are (M, C) inside; each kernel takes channels last. `add` sums rows in the dtype it gets.
"""

import numpy as np

from bn_ext._dtypes import DTYPES


def row_after_row(a, rng):
    return np.add.accumulate(a, axis=0)[-1] if len(a) else a.sum(axis=0)


def backwards(a, rng):
    return row_after_row(a[::-1], rng)


def shuffled(a, rng):
    """Atomics: any order."""
    return row_after_row(rng.permutation(a), rng)


def tree(a, rng):
    while len(a) > 1:
        if len(a) % 2:
            a = np.concatenate([a, np.zeros_like(a[:1])])
        a = a[::2] + a[1::2]
    return a.sum(axis=0)


def blocks(a, rng):
    """Each block of 64 rows one after the other, then the blocks in any order."""
    if len(a) <= 64:
        return row_after_row(a, rng)
    rest = -len(a) % 64
    a = np.concatenate([a, np.zeros((rest, *a.shape[1:]), a.dtype)]).reshape(-1, 64, *a.shape[1:])
    return shuffled(np.add.accumulate(a, axis=1)[:, -1], rng)


def kahan(a, rng):
    total, low = np.zeros_like(a.sum(axis=0)), 0
    for row in a:
        y = row - low
        new = total + y
        low, total = (new - total) - y, new
    return total


def wide(a, rng):
    return a.astype(np.longdouble).sum(axis=0).astype(a.dtype)


SUMS = {f.__name__: f for f in (row_after_row, backwards, shuffled, tree, blocks, kahan, wide)}


class Kernels:
    """The operations, with these sums; `fused`: a product and an addition are rounded once."""

    def __init__(self, add, seed=0, *, fused=False, folded=False, moments="two passes"):
        self.rng, self.sum = np.random.default_rng(seed), add
        self.fused, self.folded, self.moments = fused, folded, moments

    def add(self, a):
        return self.sum(a, self.rng)

    def fma(self, a, b, c):
        if not self.fused:
            return a * b + c
        number = np.result_type(a, b, c)
        wider = np.longdouble if number == np.float64 else np.float64
        return (np.asarray(a, wider) * b + c).astype(number)

    def rows(self, a, number):
        return a.astype(number).reshape(-1, a.shape[-1])

    def start(self, src, *vectors):
        number = DTYPES[src.dtype.name].number
        vectors = [None if a is None else a.astype(number) for a in vectors]
        return number, self.rows(src, number), vectors

    def statistics(self, x):
        m = x.dtype.type(max(1, len(x)))
        if self.moments == "Welford":
            mean = square = np.zeros_like(x.sum(axis=0))
            for k, row in enumerate(x):
                step = row - mean
                mean = mean + step / x.dtype.type(k + 1)
                square = self.fma(step, row - mean, square)
            return mean, square / m
        if self.moments == "merged":  # Welford's parts of 32 rows, by Chan
            count, mean, square = 0, 0, 0
            for place in range(0, len(x), 32):
                part = x[place : place + 32]
                size = x.dtype.type(len(part))
                means = self.add(part) / size
                apart = self.add((part - means) ** 2)
                both, step = count + size, means - mean
                mean = mean + step * (size / both)
                square = square + apart + step * step * (count * size / both)
                count = both
            return (mean, square / m) if len(x) else (x.sum(axis=0), x.sum(axis=0))
        mean = self.add(x) / m
        if self.moments == "squares":
            return mean, self.add(x * x) / m - mean * mean
        xc = x - mean
        return mean, self.add(xc * xc) / m

    def normalized(self, src, x, mean, variance, gamma, beta, epsilon, number):
        scale = 1 / np.sqrt(variance + number.type(epsilon))
        scale = scale if gamma is None else gamma * scale
        beta = number.type(0) if beta is None else beta
        if self.folded:
            dst = self.fma(x, scale, self.fma(-mean, scale, beta))
        else:
            dst = self.fma(x - mean, scale, beta)
        return dst.astype(src.dtype).reshape(src.shape)

    def training(self, src, gamma, beta, epsilon):
        number, x, (gamma, beta) = self.start(src, gamma, beta)
        mean, variance = self.statistics(x)
        dst = self.normalized(src, x, mean, variance, gamma, beta, epsilon, number)
        return dst, mean, variance

    def inference(self, src, mean, variance, gamma, beta, epsilon):
        number, x, vectors = self.start(src, mean, variance, gamma, beta)
        return self.normalized(src, x, *vectors, epsilon, number)

    def backward(self, src, diff_dst, mean, variance, gamma, epsilon, frozen=False, own=False):
        number, x, (mean, variance, gamma) = self.start(src, mean, variance, gamma)
        dy, m = self.rows(diff_dst, number), number.type(max(1, len(x)))
        if own and len(x):
            mean, variance = self.statistics(x)
        rstd = 1 / np.sqrt(variance + number.type(epsilon))
        scale = rstd if gamma is None else gamma * rstd
        diff_beta = self.add(dy)
        if self.folded:
            diff_gamma = (self.add(dy * x) - mean * diff_beta) * rstd
            slope = -scale * rstd * diff_gamma / m
            shift = self.fma(-slope, mean, -scale * diff_beta / m)
            diff_src = self.fma(dy, scale, self.fma(x, slope, shift))
        else:
            xhat = (x - mean) * rstd
            diff_gamma = self.add(dy * xhat)
            diff_src = scale * (dy - self.fma(xhat, diff_gamma / m, diff_beta / m))
        diff_src = scale * dy if frozen else diff_src
        return diff_src.astype(src.dtype).reshape(src.shape), diff_gamma, diff_beta

    def double_backward(self, src, diff_dst, mean, variance, gamma, ggx, ggg, ggb, epsilon):
        number, x, (mean, variance, gamma, ggg, ggb) = self.start(
            src, mean, variance, gamma, ggg, ggb
        )
        dy, g, m = self.rows(diff_dst, number), self.rows(ggx, number), number.type(max(1, len(x)))
        r = 1 / np.sqrt(variance + number.type(epsilon))
        xhat, weight = (x - mean) * r, number.type(1) if gamma is None else gamma
        of_dy, of_g, cross = self.add(dy) / m, self.add(g) / m, self.add(dy * g) / m
        of_dy_x, of_g_x = self.add(dy * xhat) / m, self.add(g * xhat) / m
        bent = of_g * of_dy - cross + 3 * of_dy_x * of_g_x
        through = xhat * bent + of_g_x * (of_dy - dy) + of_dy_x * (of_g - g)
        diff_src = weight * r**2 * through + ggg * r * (dy - of_dy - xhat * of_dy_x)
        diff_diff_dst = weight * r * (g - of_g - xhat * of_g_x) + ggg * xhat + ggb
        diff_gamma = m * r * (cross - of_g * of_dy - of_g_x * of_dy_x)
        whole = (a.astype(src.dtype).reshape(src.shape) for a in (diff_src, diff_diff_dst))
        return *whole, diff_gamma
