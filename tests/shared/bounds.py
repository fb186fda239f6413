"""Errors of results beside the bounds of bn_ext.testing._limits, for the tests."""

from typing import NamedTuple

import numpy as np
from cases import dtype

from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import (
    MEAN,
    UNDERFLOW,
    VARIANCE,
    arithmetic,
    distance,
    dst_bound,
    gradient_bounds,
    half_ulp,
    second_bounds,
    smallest,
    statistics_bounds,
    unit,
)
from bn_ext.testing._wide import wide_of

#: How many times as large MEAN is for n merged parts, and VARIANCE before 2n is added. A merge
#: rounds the step from the larger part's mean, up to five times. Over all parts, with M elements,
#: that adds at most 5 sqrt(log2 n) to MEAN and 10 sqrt(2 log2 M) to VARIANCE. Errors of the parts'
#: means add MEAN to VARIANCE; products and sums of squares, 8 + 2n.
MERGED_MEAN, MERGED_VARIANCE = 3, 2


class Error(NamedTuple):
    """By element: the error, what rounding to its dtype allows, and the bound on the rest."""

    off: np.ndarray
    half_ulp: np.ndarray
    bound: np.ndarray

    def holds(self):
        return bool((self.off <= self.half_ulp + self.bound).all())

    def share(self):
        """The error beyond half an ulp, as a share of its bound."""
        beyond, has_bound = np.maximum(self.off - self.half_ulp, 0), self.bound > 0
        share = np.where(has_bound, beyond, 0) / np.where(has_bound, self.bound, 1)
        return np.asarray(share, np.float64)


def error_of(got, exact, bound, kind):
    """The Error of a result that was rounded to `kind` in the end (None: that is not counted)."""
    return Error(distance(got, exact), half_ulp(exact, kind) if kind else 0 * bound, bound)


def short(data):
    """The dtype, if it has 16 bits."""
    return data if dtype(data).itemsize == 2 else None


def of_parts(want, data, parts, **options):
    """The bounds of a gradient; partial sums of float64 data were added up in float64."""
    u = unit("float64") * (parts - 1) * (data == "float64")
    sums = (abs(terms).sum(axis=1) for terms in (want.gamma_terms, want.beta_terms))
    sums = zip(("diff_src", "diff_gamma", "diff_beta"), (want.diff_src_sums, *sums), strict=True)
    bounds = gradient_bounds(want, data, **options)
    return {name: bounds[name] + u * terms for name, terms in sums}


def merged_bounds(want, data, parts):
    """Those of a batch's mean and variance."""
    if parts == 1:
        return statistics_bounds(want, data)
    u, lost = unit(arithmetic(data)), UNDERFLOW * parts * smallest(data)
    low = (u * u if data == "float64" else 2.0**-53) * abs(want.mean) * parts
    variance = (MERGED_VARIANCE * VARIANCE + 2 * parts) * u * want.variance
    return {
        "mean": MERGED_MEAN * MEAN * u * want.deviation + 2 * low + lost,
        "variance": variance + 4 * low * want.deviation + lost,
    }


def sum_errors(gamma_sum, beta_sum, want, data, vector=None, parts=1):
    """{output: Error} of sums rounded to `vector` (None: to doubles, which is not counted)."""
    bounds = of_parts(want, data, parts)
    return {
        "diff_gamma": error_of(gamma_sum, want.diff_gamma, bounds["diff_gamma"], vector),
        "diff_beta": error_of(beta_sum, want.diff_beta, bounds["diff_beta"], vector),
    }


def errors(grads, want, data, vector, *, is_training=True, parts=1):
    bound = of_parts(want, data, parts, is_training=is_training)["diff_src"]
    return {
        "diff_src": error_of(grads.diff_src, want.diff_src, bound, short(data)),
        **sum_errors(grads.diff_gamma, grads.diff_beta, want, data, vector, parts),
    }


def statistics_errors(mean, variance, want, data, vector="float64", parts=1):
    """{output: Error} of a batch's mean and variance, rounded to `vector`; merged from `parts`."""
    bounds = merged_bounds(want, data, parts)
    return {
        name: error_of(got, exact, bounds[name], vector)
        for name, got, exact in (("mean", mean, want.mean), ("variance", variance, want.variance))
    }


def dst_error(dst, want, data, axis, **options):
    """The Error of a dst; the options are those of dst_bound."""
    return error_of(dst, want.dst, dst_bound(want, data, axis, **options), short(data))


def forward_errors(results, want, data, axis, *, added=False):
    return {
        "dst": dst_error(results.dst, want, data, axis, added=added),
        **statistics_errors(results.mean, results.variance, want, data),
    }


def second_errors(results, want, data, vector):
    bounds = second_bounds(want, data)
    kinds = [short(data)] * 2 + [vector]
    return {
        name: error_of(getattr(results, name), getattr(want, name), bounds[name], kind)
        for name, kind in zip(bounds, kinds, strict=True)
    }


def reference_of(problem, is_training=True):
    """The reference's gradients of a problem."""
    return problem.run(
        reference.batch_norm_backward,
        axis=problem.axis,
        is_training=is_training,
        wide=wide_of(problem.src.dtype.name),
    )


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
