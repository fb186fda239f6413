"""What is right in a case, and how far off it may be in each kind of arithmetic."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

import bn_ext._core as _core
from bn_ext.testing import _formulas as formulas, _limits as limits, _weaker as weaker
from bn_ext.testing._case import FACTOR, TENSORS, Case
from bn_ext.testing._wide import wide_of, widened

#: {result: (its right values; the largest errors that pass, for each of ARITHMETICS)}: doubles or,
#: of float64 data, Wide
Exact: TypeAlias = dict[str, tuple[Any, Any]]

#: Kinds of arithmetic, and what a result is called that is right in none before.
ARITHMETICS = {"double": "", "float32": "float32 sums", "any": "folded constants or squares"}
ARITHMETICS |= {"float16": "float16 sums", "bfloat16": "bfloat16 sums"}  # of such data alone


def exact(case: Case) -> Exact:
    """What is right for results in the dtype of the data or, of vectors, of the arithmetic; and
    limits, no wider for arithmetic that is less weak. Where NaN or Inf is right, they are 0; or
    0 for "double" and else Inf, if sums may give NaN in place of an Inf. Any other Inf: nothing
    can be said, since the channel comes near overflow or the arithmetic may give anything.
    """
    kind = case.kind
    with _core.DefaultMode():
        arrays = judged_arrays(case)
        formula = _formula(case, arrays)
        want: Any = formula()
        p = case.by_channel(arrays)
        if kind.is_forward:
            p.mean, p.variance = want.mean, want.variance
        values = want._asdict()
        own = kind.own_statistics or kind.operation == "training"
        number = limits.arithmetic(case.data)
        starts = [
            weaker.start(p, name, folded=k > 0, from_batch=own, exact=case.exact_sums)
            for k, name in enumerate([number, number, *["float16"] * (case.data == "float16")])
        ]
        bounds = [_bounds(want, case), *(_weaker(start, p, formula, case) for start in starts)]
        known = _known(case, p, want)
        for bound in bounds:
            update(case, values, bound)
        names = [name for name in case.results if name in bounds[0]]
        if kind.is_forward and not case.src.size:
            names = ["dst"]  # specifications differ in what the statistics are
        if kind.correction and case.src.size <= case.src.shape[case.axis]:
            names = [name for name in names if name != "running_variance"]  # NaN, or none
        return {
            name: (values[name], _limits(case, name, values[name], bounds, known, starts))
            for name in names
        }


def values(case: Case) -> dict[str, Any]:
    """What is right, without limits."""
    results: dict[str, Any] = _formula(case, judged_arrays(case))()._asdict()
    return update(case, results)


def judged_arrays(case: Case) -> dict[str, Any]:
    """The arrays for which results are right: the function's, or exact statistics."""
    own = case.kind.own_statistics and case.src.size
    return {**case.arrays, **batch_statistics(case)} if own else case.arrays


def batch_statistics(case: Case) -> dict[str, Any]:
    formula: Any = formulas.batch_norm_training
    batch = formula(case.src, epsilon=0, axis=case.axis, wide=wide_of(case.data))
    return {"mean": batch.mean, "variance": batch.variance}


def update(
    case: Case, values: dict[str, Any], bounds: dict[str, Any] | None = None, factor: float = FACTOR
) -> dict[str, Any]:
    """Add new running statistics; `factor`: the weight of the batch's."""
    m, u = case.src.size // case.src.shape[case.axis], limits.unit(limits.arithmetic(case.data))
    for name in case.kind.running:
        of_batch = name.removeprefix("running_")
        share, kept = factor, (1 - factor) * case.by_name[name]
        batch = values[of_batch] * factor
        if of_batch == "variance":
            divisor = max(1, m - (case.kind.correction or 0))
            share, batch = share * m / divisor, batch * m / divisor
        values[name] = kept + batch
        if bounds is not None:
            error = 4 * u * (kept + share * abs(values[of_batch]))
            bounds[name] = share * bounds[of_batch] + error
    return values


def _formula(case: Case, arrays: dict[str, Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"src_1": case.by_name.get("src_1"), "relu": case.kind.relu}
    if not case.kind.is_forward:
        options = {"is_training": case.kind.is_training, "exact_sums": case.exact_sums}
        if "dst" in case.by_name:
            options["gate"] = ~(case.by_name["dst"] <= 0)
    options |= {"epsilon": case.epsilon, "axis": case.axis, "wide": wide_of(case.data)}
    formula = getattr(formulas, f"batch_norm_{case.kind.operation}")
    return partial(formula, *arrays.values(), **options)


def _known(case: Case, p: Any, want: Any) -> Any:
    """(C,): Can anything be said of a channel?"""
    if case.kind.is_forward:
        known, factor = limits.forward_holds(p, want, case.axis, case.data), want.scale
    elif case.kind.operation == "backward":
        known, factor = limits.gradient_holds(p, want, case.data), limits.rstd_of(p)
    else:
        known, factor = limits.second_holds(p, want, case.data), limits.rstd_of(p)
        for terms in want[3:]:
            sizes = formulas.by_channel(terms, case.axis) if terms.ndim > 1 else terms[:, None]
            known &= (sizes < limits.tops(case.data)).all(axis=1)
    # If an operand is not finite, neither are right results; but diff_diff_* times Inf: nobody
    # says what.
    twice = case.kind.operation == "double_backward"
    finite = (lambda a: ~np.isnan(a)) if twice else np.isfinite
    for a in (factor, *vars(p).values(), *vars(case.by_channel(case.by_name)).values()):
        if np.ndim(a):
            known |= ~finite(a).reshape(len(a), -1).all(axis=1)
    if case.kind.operation == "backward":
        known &= ~limits.gradient_open(p, case.data)
    return known


def _limits(case: Case, name: str, right: Any, bounds: Any, known: Any, starts: Any) -> Any:
    """The bounds with the result's last rounding, if that is not part of it."""
    number = limits.arithmetic(case.data)
    kind = case.data if name in TENSORS else number
    is_rounded = name not in TENSORS or limits.unit(kind) > limits.unit(number)
    last = limits.half_ulp(right, kind) if is_rounded else 0

    known = case.like(right, known)
    widths: list[Any] = []
    for bound in bounds:
        width = bound[name] + last + 0 * np.where(np.isfinite(right), right, 0)  # in its shape
        width = np.where(np.isnan(width) | ~known, np.inf, width)
        widths.append(np.maximum(widths[-1], width) if widths else width)
    widths = [np.where(known & ~np.isfinite(right), 0, width) for width in widths]
    if name not in TENSORS or (case.kind.is_training and case.kind.operation != "inference"):
        # It is a sum, or has one as a term.
        widths[1:] = [np.where(np.isinf(right), np.inf, width) for width in widths[1:]]
    for k, start in enumerate(starts, 1):
        open_ = np.isnan(right) & case.like(right, start.open)
        widths[k] = np.where(open_, np.inf, widths[k])
    if name == "dst" and case.kind.add and case.data == "bfloat16":  # rounded before src_1, too
        first = limits.half_ulp(right - widened(case.by_name["src_1"], np.float64), case.data)
        widths.append(widths[-1] + np.where(np.isfinite(right), 1.01 * first, 0))
    return np.stack(widths)


def _bounds(want: Any, case: Case) -> dict[str, Any]:
    """{result: a bound}, of what the formula returned."""
    kind, data = case.kind, case.data
    if kind.operation == "double_backward":
        return limits.second_bounds(want, data)
    if kind.operation == "backward":
        return limits.gradient_bounds(want, data, is_training=kind.is_training)
    from_batch = kind.operation == "training"
    dst = limits.dst_bound(want, data, case.axis, from_batch=from_batch, added=kind.add)
    return {"dst": dst, **(limits.statistics_bounds(want, data) if from_batch else {})}


def _weaker(start: weaker.Start, p: Any, formula: Callable[..., Any], case: Case) -> dict[str, Any]:
    """{result: a bound} of weaker arithmetic, from its start and operands by channel."""
    kind, axis = case.kind, case.axis
    if kind.is_forward:
        src_1 = case.by_name.get("src_1", np.zeros_like(case.src))
        bounds = weaker.forward_bounds(start, p, formulas.by_channel(src_1, axis))
        return {**bounds, "dst": formulas.as_before(bounds["dst"], case.src, axis)}
    if kind.operation == "backward":
        return weaker.gradient_bounds(start, p, formula, axis, is_training=kind.is_training)
    return weaker.double_backward_bounds(start, p, formula, axis)
