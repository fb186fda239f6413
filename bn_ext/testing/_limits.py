"""How far a result may be from the exact one: the bounds of docs/numerics.md, and where they hold.

Each function takes what bn_ext.testing._formulas returned, `want`, and gives bounds on what is
beyond half an ulp of the result.
"""

from typing import Any

import numpy as np

from bn_ext._dtypes import DTYPES
from bn_ext.testing import _formulas as formulas
from bn_ext.testing._wide import Wide, wide_of, widened

#: Roundings on the longest path, plus one for terms of higher order, as docs/numerics.md counts
#: them: to diff_src, in training and with frozen statistics;
DIFF_SRC, FROZEN_DIFF_SRC = 8, 3
#: to sum(dy * xc), where xc is src - mean, by type of the arithmetic;
SUM = {"float32": 12, "float64": 13}
#: to a result of the double backward;
SECOND = {"float32": 30, "float64": 48}
#: to dst, through scale * xc and through the shift: none more there, but one each for src_1.
DST_PRODUCT, DST_SHIFT = 4, 2
#: Bounds of the batch's mean, in units of u sigma, and of its variance, in units of u sigma^2.
MEAN = 10 * 5**0.5 + 1
VARIANCE = 12 * 5 + 2 * 2 * 10 * 5**0.5 + 1
#: What products and coefficients lose to underflow, in units of the smallest number.
UNDERFLOW = 8


def arithmetic(name: str) -> str:
    """The type of the arithmetic on data of this dtype."""
    return DTYPES[name].number.name


def unit(name: str) -> float:
    return DTYPES[name].unit


def half_ulp(values: Any, name: str) -> Any:
    """At least half the spacing of a dtype's numbers around values."""
    return np.maximum(abs(values) * unit(name), wide_of(name)(DTYPES[name].smallest) / 2)


def smallest(data: str) -> Any:
    """The arithmetic's smallest positive number, as one that can be halved."""
    return wide_of(data)(DTYPES[arithmetic(data)].smallest)


def distance(got: Any, exact: Any) -> Any:
    wide = Wide if isinstance(exact, Wide) else np.asarray(exact).dtype
    return abs(widened(got, wide) - exact)


# ---- backward -------------------------------------------------------------------------


def gradient_bounds(want: Any, data: str, *, is_training: bool = True) -> dict[str, Any]:
    u, least, k = unit(arithmetic(data)), smallest(data), SUM[arithmetic(data)]
    a = DIFF_SRC if is_training else FROZEN_DIFF_SRC
    bound = u * (a * want.diff_src_terms + k * want.diff_src_sums)
    bound = bound + UNDERFLOW * smallest(data) * want.diff_src_tiny
    gamma_terms = abs(want.gamma_terms).sum(axis=1)
    return {
        "diff_src": bound,
        "diff_gamma": k * u * gamma_terms + least * (UNDERFLOW + want.gamma_tiny),
        "diff_beta": k * u * abs(want.beta_terms).sum(axis=1),
        "diff_src_1": 0.0,
    }


# ---- forward --------------------------------------------------------------------------


def statistics_bounds(want: Any, data: str) -> dict[str, Any]:
    """Bounds of a batch's mean and variance."""
    u, lost = unit(arithmetic(data)), UNDERFLOW * smallest(data)
    mean, variance = MEAN * u * want.deviation, VARIANCE * u * want.variance
    return {"mean": mean + lost, "variance": variance + lost}


def dst_bound(
    want: Any, data: str, axis: int, *, from_batch: bool = True, added: bool = False
) -> Any:
    """The bound of dst; `from_batch`: with the batch's own statistics; `added`: with src_1."""
    u = unit(arithmetic(data))
    product, shift = DST_PRODUCT + added, DST_SHIFT + added

    def by_channel(vector: Any) -> Any:  # in a shape that broadcasts with dst
        return np.moveaxis(vector.reshape(-1, *[1] * (want.dst.ndim - 1)), 0, axis)

    bound = u * (1 + 8 * u) * (product * want.product_terms + shift * want.shift_terms)
    if from_batch:
        bound = bound + MEAN * u * by_channel(want.scale * want.deviation)
        if arithmetic(data) == "float64":  # the mean is rounded to a double
            bound = bound + u * by_channel(want.scale * abs(want.mean))
        bound = bound + VARIANCE / 2 * u * by_channel(want.spread) * want.product_terms
    return bound + UNDERFLOW * smallest(data) * (1 + by_channel(want.scale) + want.distances)


# ---- backward, once more ----------------------------------------------------------------


def second_bounds(want: Any, data: str) -> dict[str, Any]:
    """Bounds of a double backward."""
    u, least = unit(arithmetic(data)), smallest(data)
    return {
        name: SECOND[arithmetic(data)] * (u * terms + least)
        for name, terms in zip(want._fields[:3], want[3:], strict=True)
    }


# ---- where they hold --------------------------------------------------------------------
# p has tensors of shape (C, M), vectors of shape (C,), all of the type of wide_of, and epsilon;
# results are (C,).


def tops(data: str) -> float:
    """No intermediate value may reach this; for float64, pairs of doubles need room above it."""
    return 2.0**996 if data == "float64" else 2.0**127


def rstd_of(p: Any) -> Any:
    """1 / sqrt(variance + epsilon), from the given variance."""
    return 1 / np.sqrt(p.variance + p.epsilon)


def gradient_holds(p: Any, want: Any, data: str) -> Any:
    """Does nothing come near overflow? The size of the results aside."""
    top, rstd = tops(data), rstd_of(p)
    scale = abs(p.gamma) * rstd
    x = abs(p.src).max(axis=1, initial=0) + abs(p.mean)
    dy = abs(want.beta_terms).sum(axis=1)
    product = abs(want.gamma_terms).sum(axis=1)
    bracket = dy + x * rstd * product
    sums = product, product / rstd, product * rstd, bracket, scale * bracket
    good = (np.stack([x, dy, rstd, scale, *sums]) < top).all(axis=0)
    if data == "float64":
        good &= (rstd**2 < top) & (rstd**2 > 1 / top)
    return good


def gradient_open(p: Any, data: str) -> Any:
    """Is rstd Inf while src is not its mean, or 0 while sums may overflow? Then orders differ."""
    far = abs(p.src - p.mean[:, None]).max(axis=1, initial=0)
    sums = far * abs(p.diff_dst).sum(axis=1)
    rstd = rstd_of(p)
    return np.where(rstd == 0, sums >= tops(data), np.isinf(rstd) & (far > 0))


def forward_holds(p: Any, want: Any, axis: int, data: str) -> Any:
    """Does nothing come near overflow, and what a variance loses to underflow not matter?"""
    spread = want.variance + p.epsilon
    x = abs(p.src).max(axis=1, initial=0) + abs(want.mean)
    sizes = want.product_terms + want.shift_terms
    sizes = formulas.by_channel(sizes, axis).max(axis=1, initial=0)
    largest = np.stack([x, want.scale, sizes, spread])
    least = 2.0**16 / unit(arithmetic(data)) * smallest(data)
    return (largest < tops(data)).all(axis=0) & (spread > least)


def second_holds(p: Any, want: Any, data: str) -> Any:
    """Does nothing overflow, and do neither products nor factors underflow?"""
    top = 2.0**900 if data == "float64" else 2.0**126
    mean, gamma, ggg = (a[:, None] for a in (p.mean, p.gamma, p.diff_diff_gamma))
    x, dy, g = abs(p.src - mean), abs(p.diff_dst), abs(p.diff_diff_src)
    r, m = rstd_of(p)[:, None], max(1, p.src.shape[1])
    scale, scale_ggg = abs(gamma) * r, abs(ggg) * r
    products = dy * x, g * x, dy * g
    averages = [a.sum(axis=1, keepdims=True) / m for a in (dy, g, *products)]
    of_dy, of_g, of_dy_x, of_g_x, of_dy_g = averages
    both, bent = r**2 * of_dy_x * of_g_x, [of_dy * of_g, of_dy_g]
    factors = [r, r**2, scale, scale_ggg, *averages, r * of_dy_x, r * of_g_x, both, r * both]
    factors += [*bent, *(r * a for a in bent), *(scale * a for a in (of_g, both, *bent))]
    through = of_g_x, of_dy_x, both, *bent, of_g_x * of_dy, of_dy_x * of_g
    factors += [*(scale * r**2 * a for a in through), scale_ggg * r**2 * of_dy_x, scale_ggg * of_dy]
    good = x.max(axis=1, initial=0) < top
    for sizes in (*products, *factors):
        good &= ((sizes == 0) | ((sizes > 1 / top) & (sizes * m < top))).all(axis=1)
    return good
