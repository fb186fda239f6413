"""How far a result may be from the exact one: the bounds of docs/numerics.md, as code."""

from typing import NamedTuple

import numpy as np
import reference
from cases import arithmetic, dtype, half_ulp, unit

#: Roundings on the longest path from exact operands to diff_src, in training and with frozen
#: statistics, plus one for terms of higher order.
DIFF_SRC, FROZEN_DIFF_SRC = 8, 3
#: The same for sum(dy * xc), where xc is src - mean.
SUM = {"float32": 12, "float64": 13, "float16": 12, "bfloat16": 12}
#: What products and coefficients lose to underflow, in units of the smallest number.
UNDERFLOW = 8
#: The number of roundings from exact operands to dst. scale * xc has four: in the difference, the
#: scale, the product and the addition. The shift has two: its own and the addition. src_1 adds one
#: to each.
DST_PRODUCT, DST_SHIFT = 4, 2
#: Bounds of the batch's mean, in units of u sigma, and of its variance, in units of u sigma^2;
#: sigma is the standard deviation. If the pivot p is at most 2 sigma from the mean, sum(|x - p|) is
#: at most sqrt(5) M sigma, and sum((x - p)^2) at most 5 M sigma^2. Terms of the first sum are
#: rounded once, those of the second three times; adding them up takes nine more roundings.
MEAN = 10 * 5**0.5 + 1
VARIANCE = 12 * 5 + 2 * 2 * 10 * 5**0.5 + 1
#: How many times as large the first is for n merged parts, and the second before 2n is added. A
#: merge rounds the step from the larger part's mean, up to five times. Over all parts, with M
#: elements, that adds at most 5 sqrt(log2 n) to MEAN and 10 sqrt(2 log2 M) to VARIANCE. Errors of
#: the parts' means add MEAN to VARIANCE; products and sums of squares, 8 + 2n.
MERGED_MEAN, MERGED_VARIANCE = 3, 2
#: The arithmetic's type -> roundings on the longest path to a result of the double backward, plus
#: one (float64: plus two).
SECOND = {"float32": 30, "float64": 48}


class Error(NamedTuple):
    """By element: the error, what rounding to its dtype allows, and the bound on the rest."""

    found: np.ndarray
    half_ulp: np.ndarray
    bound: np.ndarray

    def holds(self):
        """Is everything within its bound?"""
        return bool((self.found <= self.half_ulp + self.bound).all())

    def share(self):
        """The error beyond half an ulp, as a share of its bound."""
        beyond = np.maximum(self.found - self.half_ulp, 0)
        return np.divide(beyond, self.bound, out=np.zeros_like(beyond), where=self.bound > 0)


def smallest(data):
    """The arithmetic's smallest positive number, as a long double, so that it can be halved."""
    return np.exp2(np.longdouble(-1074 if arithmetic(data) == "float64" else -149))


def distance(got, exact):
    return abs(np.asarray(got).astype(np.longdouble) - exact)


def sum_errors(gamma_sum, beta_sum, want, data, vector=None, parts=1):
    """{output: Error} of sums rounded to `vector` (None: to doubles, which is not counted).

    `parts` is the number of partial sums that were added up in float64.
    """
    u = np.longdouble(unit(arithmetic(data)))
    k = SUM[data] + (parts - 1 if data == "float64" else 0)
    gamma_bound = k * u * abs(want.gamma_terms).sum(axis=1)
    gamma_bound = gamma_bound + smallest(data) * (UNDERFLOW + want.gamma_tiny)
    beta_bound = k * u * abs(want.beta_terms).sum(axis=1)
    return {
        name: Error(distance(got, exact), half_ulp(exact, vector) if vector else 0 * bound, bound)
        for name, got, exact, bound in (
            ("diff_gamma", gamma_sum, want.diff_gamma, gamma_bound),
            ("diff_beta", beta_sum, want.diff_beta, beta_bound),
        )
    }


def errors(grads, want, data, vector, *, is_training=True, parts=1):
    """{output: Error} of a whole gradient; `parts` as in sum_errors."""
    u = np.longdouble(unit(arithmetic(data)))
    k = SUM[data] + (parts - 1 if data == "float64" else 0)
    a = DIFF_SRC if is_training else FROZEN_DIFF_SRC
    bound = u * (a * want.diff_src_terms + k * want.diff_src_sums)
    bound = bound + UNDERFLOW * smallest(data) * want.diff_src_tiny
    short = dtype(data).itemsize == 2
    rounded = half_ulp(want.diff_src, data) if short else 0 * bound
    return {
        "diff_src": Error(distance(grads.diff_src, want.diff_src), rounded, bound),
        **sum_errors(grads.diff_gamma, grads.diff_beta, want, data, vector, parts),
    }


# ---- forward --------------------------------------------------------------------------


def statistics_errors(mean, variance, want, data, vector="float64", parts=1):
    """{output: Error} of a batch's mean and variance, rounded to `vector`; merged from `parts`."""
    u, least = np.longdouble(unit(arithmetic(data))), smallest(data)
    merged = parts > 1
    of_mean = MEAN * (MERGED_MEAN if merged else 1)
    of_variance = MERGED_VARIANCE * VARIANCE + 2 * parts if merged else VARIANCE
    low = np.longdouble(u * u if data == "float64" else 2.0**-53) * abs(want.mean) * parts * merged
    bounds = {
        "mean": of_mean * u * want.deviation + 2 * low,
        "variance": of_variance * u * want.variance + 4 * low * want.deviation,
    }
    bounds = {name: bound + UNDERFLOW * parts * least for name, bound in bounds.items()}
    return {
        name: Error(distance(got, exact), half_ulp(exact, vector), bounds[name])
        for name, got, exact in (("mean", mean, want.mean), ("variance", variance, want.variance))
    }


def dst_error(dst, want, data, axis, *, from_batch=True, added=False):
    """The Error of a dst; `from_batch`: with the batch's own statistics; `added`: with src_1."""
    u = np.longdouble(unit(arithmetic(data)))
    product, shift = DST_PRODUCT + added, DST_SHIFT + added

    def by_channel(vector):  # in a shape that broadcasts with dst
        return np.moveaxis(vector.reshape(-1, *[1] * (dst.ndim - 1)), 0, axis)

    bound = u * (1 + 8 * u) * (product * want.product_terms + shift * want.shift_terms)
    if from_batch:
        bound = bound + MEAN * u * by_channel(want.scale * want.deviation)
        if arithmetic(data) == "float64":  # the mean is rounded to a double
            bound = bound + u * by_channel(want.scale * abs(want.mean))
        bound = bound + VARIANCE / 2 * u * by_channel(want.spread) * want.product_terms
    bound = bound + UNDERFLOW * smallest(data) * (1 + by_channel(want.scale) + want.distances)
    rounded = half_ulp(want.dst, data) if dtype(data).itemsize == 2 else 0 * bound
    return Error(distance(dst, want.dst), rounded, bound)


def forward_errors(found, want, data, axis, *, added=False):
    """{output: Error} of a training step."""
    return {
        "dst": dst_error(found.dst, want, data, axis, added=added),
        **statistics_errors(found.mean, found.variance, want, data),
    }


def running_errors(found, old, new, factor, want, data, *, vector, count=None, correction=0):
    """{name: Error} of running statistics: their own half ulp, and the batch's errors."""
    errors = statistics_errors(want.mean, want.variance, want, data)
    results = {}
    for name, got, before, batch in zip(("mean", "variance"), found, old, new, strict=True):
        corrected = correction if name == "variance" else 0
        exact = reference.running(
            before, batch, factor, count=count, correction=corrected, wide=np.longdouble
        )
        part = abs(factor) * errors[name].bound * (count / (count - 1) if corrected else 1)
        sizes = abs((1 - factor) * np.asarray(before).astype(np.longdouble)) + abs(factor * batch)
        bound = part + 4 * np.longdouble(2.0**-53) * sizes
        results[name] = Error(distance(got, exact), half_ulp(exact, vector), bound)
    return results


# ---- backward, once more ------------------------------------------------------------


def second_errors(found, want, data, vector):
    """{result: Error} of a double backward."""
    computed = arithmetic(data)
    u, least = np.longdouble(unit(computed)), smallest(data)
    kinds = [data if dtype(data).itemsize == 2 else None] * 2 + [vector]
    return {
        name: Error(
            distance(getattr(found, name), true),
            half_ulp(true, kind) if kind else 0 * terms,
            SECOND[computed] * (u * terms + least),
        )
        for name, true, terms, kind in zip(found._fields, want[:3], want[3:], kinds, strict=True)
    }


# ---- backward, against the reference ------------------------------------------------


def reference_of(problem, is_training=True):
    """The reference's gradients of a problem, in the widest float there is."""
    return problem.run(
        reference.batch_norm_backward, axis=problem.axis, is_training=is_training,
        wide=np.longdouble,
    )  # fmt: skip


def assert_near(problem, grads, is_training=True):
    """Assert bounds for random data: half an ulp plus 8 u times the sizes of terms and sums."""
    want = reference_of(problem, is_training)
    data, vector = grads.diff_src.dtype.name, grads.diff_gamma.dtype.name
    u = 8 * unit(arithmetic(data))
    bound = u * (want.diff_src_terms + want.diff_src_sums) + half_ulp(want.diff_src, data)
    assert (distance(grads.diff_src, want.diff_src) <= bound).all()
    for got, true, terms in (
        (grads.diff_gamma, want.diff_gamma, want.gamma_terms),
        (grads.diff_beta, want.diff_beta, want.beta_terms),
    ):
        bound = u * abs(terms).sum(axis=1) + half_ulp(true, vector)
        assert (distance(got, true) <= bound).all()
