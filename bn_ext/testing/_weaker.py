"""How far off results may be in weaker arithmetic than bn_ext's: docs/numerics.md derives it.

Its *any* is "folded" here. What may be off by any amount has the bound Inf.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bn_ext._dtypes import DTYPES
from bn_ext.testing import _formulas as formulas
from bn_ext.testing._limits import rstd_of
from bn_ext.testing._wide import wide_of

#: Roundings on a path to a result: those of rstd, from variance + epsilon; and, a sum's terms
#: aside, all others.
RSTD, PATH = 8, 16
#: The most rows that count where sums are exact, or else few.
FEW = 32


class Start(NamedTuple):
    """What weaker arithmetic starts with; (C, 1) unless said otherwise."""

    unit: Any  # a number, as are the next two
    least: Any  # the smallest normal number: what is smaller may count as 0
    of_data: Any  # the relative error of a sum of the data, in terms of its terms' sizes
    of_products: Any  # the same of products of two, and of all other sums
    mean: Any  # the error of the mean; 0 if it is given
    variance: Any  # the same
    off: Any  # that of src - mean before it is rounded
    rstd: Any  # the relative error of rstd
    far: Any  # (C, M): what the rounding errors of src - mean are relative to
    top: Any  # a number: no sum may reach it
    open: Any  # (C,): may rstd be Inf where src - mean need not be 0?

    def grown(self, error: Any, power: int) -> Any:
        """A relative error together with that of a power of rstd."""
        return (1 + self.rstd) ** power * (1 + error) - 1


def start(p: Any, number: str, *, folded: bool, from_batch: bool, exact: bool = False) -> Start:
    """Of arithmetic in this dtype. `p` has src (C, M); mean and variance, (C,), are exact or,
    unless `from_batch`, given. Exact: in each channel sums of the data, and of products of two,
    are, or few rows count.
    """
    u, info = DTYPES[number].unit, np.finfo(number)
    least, top = wide_of(number)(info.tiny), float(info.max)
    x, mean, variance = p.src, p.mean[:, None], p.variance[:, None]
    m = max(1, x.shape[1])
    n = u * (m + np.log2(m) + PATH)
    total = products = n / (1 - n) if n < 1 else np.inf
    data_alone = of_src = of_squares = total
    if exact:  # a running mean moves by less and less, and errors of squares are as by chance
        steps = 0, np.log2(m), np.sqrt(m)
        data_alone, of_src, of_squares = (u * (FEW + PATH + 4 * k) for k in steps)
        products = of_squares if from_batch else data_alone
    far = abs(x) + abs(mean) if folded else abs(x - mean)
    with np.errstate(over="ignore"):
        off = abs(mean - mean.astype(number))
    of_mean = of_variance = 0 * mean
    if from_batch:
        size, about = abs(x).sum(axis=1, keepdims=True) / m, abs(mean)
        if folded and x.shape[1] and not exact:  # squares about 0, or about the first element
            away = abs(x[:, :1] - mean)
            size, about = np.maximum(size, away + np.sqrt(variance)), np.maximum(about, away)
        of_mean = np.where(m * size < top, of_src * size + least, np.inf)
        # Of a few equal numbers of few bits, each order of summation has the exact mean.
        first = x.max(axis=1, initial=-np.inf)[:, None]
        most = (2 * m - 1) * first
        few = (x == first).all(axis=1, keepdims=True) & (most.astype(number) == most)
        of_mean = np.where(few & (m & (m - 1) == 0), 0, of_mean)
        off = np.where(of_mean > 0, of_mean + u * abs(mean), of_mean)
        squares = variance + about**2 if folded else variance
        of_variance = of_squares * squares + off**2 + 2 * least
        # A running mean is off when it is subtracted, and so is the squared one.
        of_variance += 2 * off * about if folded else 4 * of_src * size * np.sqrt(variance)
        of_variance = np.where(m * squares * (1 + total) < top, of_variance, np.inf)
    lost = np.asarray((of_variance + least) / (variance + p.epsilon), np.float64)
    rstd = np.where(lost < 1, np.expm1(np.log1p(-np.where(lost < 1, lost, 0)) / -2), np.inf)
    rstd = (1 + rstd) * (1 + RSTD * u) - 1
    open_ = ((lost >= 1) & (far + off > 0)).any(axis=1)
    return Start(u, least, data_alone, products, of_mean, of_variance, off, rstd, far, top, open_)


#: Results that formulas have with products which may leave the range where the result does not.
OF_PRODUCTS = "dst", "diff_src", "diff_gamma", "diff_diff_dst"


def out_of_range(p: Any, number: str, result: str) -> tuple[Any, Any]:
    """(C,), of operands: does a product of some formula of the result, which does not, overflow or
    underflow? And the relative error of one that is subnormal, at most 1.
    """
    info, x, mean = np.finfo(number), p.src, abs(p.mean)
    far, most = (abs(a).max(axis=1, initial=0) for a in (x - p.mean[:, None], x))
    rstd, scale, m = rstd_of(p), abs(p.gamma), max(1, x.shape[1])
    names = [name for name in ("diff_dst", "diff_diff_src") if hasattr(p, name)]
    factors = [abs(getattr(p, name)).max(axis=1, initial=0) for name in names]
    if factors:
        factors += [factors[0] * factors[-1]] * (len(factors) > 1)
        scales = (1,) if result == "diff_gamma" else (1, scale)
        products = [a * far * m * b for a in factors for b in scales]
        if result != "diff_gamma" or len(factors) > 1:
            products += [a * rstd**k for a in products for k in (2, 3)]
            products += [far**2 * m, *(rstd**k for k in (2, 3, -3, -4))]
    else:
        products = [rstd**2, *(scale * a for a in (far, most, mean))]
    sizes = np.stack(products)
    overflows, underflows = (sizes > info.max) & (sizes < np.inf), (sizes < info.tiny) & (sizes > 0)
    least = wide_of(number)(DTYPES[number].smallest)
    # One that is far below the smallest number is 0.
    errors = np.asarray(np.where(underflows & (sizes > least / 4), least / sizes, 0), np.float64)
    return (overflows | underflows).any(axis=0), np.minimum(errors, 1).max(axis=0)


def forward_bounds(start: Start, p: Any, src_1: Any) -> dict[str, Any]:
    """Bounds of a forward pass; dst is (C, M)."""
    gamma, beta = (abs(a)[:, None] for a in (p.gamma, p.beta))
    xc = abs(p.src - p.mean[:, None])
    scale, u = gamma * rstd_of(p)[:, None], PATH // 2 * start.unit
    error = start.rstd * xc + (1 + start.rstd) * (start.off + u * (start.far + start.off))
    dst = scale * error + u * (beta + abs(src_1))
    dst = dst + PATH * start.least * (1 + gamma + scale + start.far)
    dst = dst + np.where(gamma < start.least, scale * start.far, 0)
    dst = np.where(scale * start.far < start.top, dst, np.inf)
    return {"dst": dst, "mean": start.mean[:, 0], "variance": start.variance[:, 0]}


def gradient_bounds(
    start: Start, p: Any, formula: Callable[..., Any], axis: int, *, is_training: bool
) -> dict[str, Any]:
    """Bounds of a gradient; `formula` takes sizes of src - mean, as batch_norm_backward does."""
    near, want = formula(far=start.far), formula(far=start.far + start.off)
    m, rstd = max(1, p.src.shape[1]), rstd_of(p)[:, None]
    dy = abs(want.beta_terms)
    total = dy.sum(axis=1, keepdims=True)
    terms = want.gamma_terms.sum(axis=1, keepdims=True)
    lost = start.least * (PATH + m * (1 + rstd) + total * (1 + rstd))
    lost = lost + start.least * rstd * start.far.sum(axis=1, keepdims=True)
    diff_gamma = start.grown(start.of_products, 1) * terms + lost
    diff_gamma += terms - near.gamma_terms.sum(axis=1, keepdims=True)
    sums = (dy * start.far).sum(axis=1, keepdims=True)
    diff_gamma = np.where(sums < start.top, diff_gamma, np.inf)
    diff_beta = np.where(total < start.top, start.of_data * total + m * start.least, np.inf)

    def back(rows: Any) -> Any:
        return formulas.as_before(rows, want.diff_src, axis)

    diff_src = PATH * start.least * want.diff_src_tiny
    gone = abs(p.gamma) < start.least
    diff_src = diff_src + back(gone[:, None]) * want.diff_src_terms
    if is_training:
        sums = want.diff_src_sums
        diff_src = diff_src + back(start.grown(PATH * start.unit, 3)) * want.diff_src_terms
        diff_src += back(start.grown(start.of_products, 3)) * sums + (sums - near.diff_src_sums)
        scale = abs(p.gamma)[:, None] * rstd
        missing = scale * start.far * rstd * lost / m
        diff_src += back(np.where(np.isinf(diff_gamma), np.inf, missing))
        # sum(src - mean) is 0 for the exact mean. Forms that have it as a term, as what is derived
        # node by node, add up what a mean that was rounded leaves, and what they round in it.
        x, mean = p.src, p.mean[:, None]
        left = np.minimum(abs((x - mean).sum(axis=1, keepdims=True)) / m, start.unit * abs(mean))
        left = left + start.of_products * abs(x - mean).sum(axis=1, keepdims=True) / m
        diff_src += back(scale * rstd * left * terms / m)
    else:
        diff_src = diff_src + back(start.grown(PATH * start.unit, 1)) * want.diff_src_terms
    sums = {"diff_gamma": diff_gamma[:, 0], "diff_beta": diff_beta[:, 0]}
    return {"diff_src": diff_src, **sums, "diff_src_1": 0.0}


def double_backward_bounds(
    start: Start, p: Any, formula: Callable[..., Any], axis: int
) -> dict[str, Any]:
    """Bounds of a double backward: two sums on a path, and rstd to the fifth power."""
    near, want = formula(far=start.far), formula(far=start.far + start.off)
    share, m = start.grown(2 * (start.of_products + PATH * start.unit), 5), max(1, p.src.shape[1])
    bounds = {}
    for name, less, terms in zip(want._fields[:3], near[3:], want[3:], strict=True):
        factor = share[:, 0] if terms.ndim == 1 else formulas.as_before(share, terms, axis)
        bounds[name] = factor * terms + (terms - less) + 2 * (m + PATH) * start.least
    return bounds
