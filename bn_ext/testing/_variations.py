"""Mistakes that people make, as variations of the formulas: what a function is *as if*."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES
from bn_ext.testing import _formulas as formulas, _limits as limits
from bn_ext.testing._case import FACTOR, OPERANDS, TENSORS, Case
from bn_ext.testing._exact import Exact, batch_statistics, judged_arrays, update, values
from bn_ext.testing._wide import wide_of, widened

Values = dict[str, Any]


class Varied:
    """A case whose right results can be had for other arguments."""

    def __init__(self, case: Case, exact: Exact) -> None:
        self.case, arrays = case, judged_arrays(case)
        self.right = {name: right for name, (right, _) in exact.items()}
        kind = replace(case.kind, own_statistics=False)
        self.training = kind.operation == "training"
        if self.training:  # as an inference with the batch's statistics, which can be varied
            kind = replace(kind, operation="inference")
            arrays = {**arrays, **batch_statistics(case)}
        self.arrays = {name: arrays[name] for name in OPERANDS[kind.operation]}
        self.base, self.channels = replace(case, kind=kind), case.src.shape[case.axis]
        self.m = case.src.size // self.channels
        gamma = self.arrays["gamma"]
        self.gamma = np.ones(self.channels) if gamma is None else gamma
        self.wide = wide_of(case.data)
        self.variance = widened(self.arrays["variance"], self.wide)
        self.epsilon = case.epsilon
        self.spread = self.variance + self.epsilon

    def results(self, *, kind: Any = None, **changes: Any) -> Values:
        """Those for other arrays, another epsilon, other by_name, or other fields of the Kind."""
        fields = {name: changes.pop(name) for name in ("epsilon", "by_name") if name in changes}
        arrays, kind = {**self.arrays, **changes}, replace(self.base.kind, **(kind or {}))
        results = values(replace(self.base, kind=kind, arrays=arrays, **fields))
        if self.training:
            results |= {name: arrays[name] for name in ("mean", "variance")}
            update(self.case, results)
        return {name: results[name] for name in self.right if name in results}

    def frozen(self, **arrays: Any) -> Values:
        """Those for constant statistics."""
        return self.results(kind={"is_training": False}, **arrays)

    def rows(self, array: Any) -> Any:
        return widened(formulas.by_channel(array, self.case.axis), self.wide)

    def back(self, rows: Any) -> Any:
        return formulas.as_before(rows, self.case.src, self.case.axis)

    def through(self, statistic: str) -> Values:
        """The gradient through one statistic alone; what passes through the mean is the mean of the
        gradient for constant statistics.
        """
        frozen = self.frozen()["diff_src"]
        mean = self.back(self.rows(frozen).mean(axis=1, keepdims=True))
        return {"diff_src": frozen - mean if statistic == "mean" else self.right["diff_src"] + mean}

    def divided(self, divisor: float) -> Values:
        """The gradient with another divisor of sums."""
        frozen = self.frozen()["diff_src"]
        return {"diff_src": frozen + self.m / divisor * (self.right["diff_src"] - frozen)}

    def scaled(self, spread: Any) -> Values:
        """For this in place of variance + epsilon."""
        results = self.results(variance=spread, epsilon=0.0)
        return {**results, **{n: self.right[n] for n in ("mean", "variance") if n in results}}

    def summed(self, end: int = 0, multiple: int = 1) -> Values:
        """Sums of the rows before `end`, or before the last multiple."""
        end = end or self.m // multiple * multiple
        kept = np.broadcast_to(np.arange(self.m) < end, (self.channels, self.m))
        if self.training:
            src = self.rows(self.case.src)
            mean = (src * kept).sum(axis=1) / self.m
            square = ((src - mean[:, None]) ** 2 * kept).sum(axis=1) / self.m
            return self.results(mean=mean, variance=square)
        diff_dst = np.where(self.back(kept), self.case.arrays["diff_dst"], 0)
        part, diff_src = self.results(diff_dst=diff_dst), self.frozen()["diff_src"]
        if self.case.kind.is_training:  # what passes through sums is of those rows alone
            diff_src = diff_src + (part["diff_src"] - self.frozen(diff_dst=diff_dst)["diff_src"])
        return {**part, "diff_src": diff_src}

    def cut(self, axis: int, end: int = 0, multiple: int = 1) -> Values:
        """The tensors, 0 from a channel (axis 0) or a row (1) on, or after the last multiple."""
        size = self.m if axis else self.channels
        places = np.arange(size) < (end or size // multiple * multiple)
        kept = self.back(places if axis else places[:, None])
        return {n: np.where(kept, a, 0) for n, a in self.right.items() if n in TENSORS}

    def turned(self) -> Values:
        """Where memory of NXC is read as NCX, or the other way round."""
        case, src = self.case, self.case.src
        kind = replace(case.kind, data_format="NCX" if case.axis == -1 else "NXC")

        def read(arrays: Values, like: Any) -> Values:
            return {n: a.reshape(like.shape) if n in TENSORS else a for n, a in arrays.items()}

        turned = np.moveaxis(src, case.axis, kind.axis)
        arrays, by_name = read(case.arrays, turned), read(case.by_name, turned)
        return read(values(replace(case, kind=kind, arrays=arrays, by_name=by_name)), src)

    def swapped(self, one: str, other: str) -> Values:
        return {one: self.right[other], other: self.right[one]}

    def mean_in_variance(self) -> Values:
        """Of a double backward: variance = mean((src - stopped mean)**2)."""
        p = self.arrays
        dy, g, x = (self.rows(p[name]) for name in ("diff_dst", "diff_diff_src", "src"))
        xc = x - widened(p["mean"], self.wide)[:, None]
        gone = (dy * xc).mean(axis=1) * g.mean(axis=1) / (self.spread * np.sqrt(self.spread))
        gone = (gone * self.gamma)[:, None]
        return {"diff_src": self.right["diff_src"] - self.back(gone)}


def remains(varied: Varied) -> Iterator[Values]:
    """What is left of the results if a factor of some of their terms becomes 0."""
    operation = varied.case.kind.operation
    if operation != "backward":
        yield varied.results(gamma=0 * varied.gamma)
    elif varied.case.kind.is_training:
        yield varied.through("mean")
    if operation == "double_backward":
        yield varied.results(diff_diff_gamma=None)
        yield varied.frozen()


_FORWARD, _GRADIENT = ("training", "inference"), ("backward",)
_GIVEN = "inference", "backward", "double_backward"
_ALL = *_FORWARD, *_GRADIENT, "double_backward"
#: {what a function is as if: (operations, the results)}
VARIATIONS: dict[str, tuple[tuple[str, ...], Callable[[Varied], Values]]] = {
    "rstd is constant": (_GRADIENT, lambda v: v.through("mean")),
    "the mean is constant": (_GRADIENT, lambda v: v.through("rstd")),
    "statistics are constant": (_GIVEN[1:], lambda v: v.frozen()),
    "the mean in the variance is constant": (_GIVEN[2:], Varied.mean_in_variance),
    "the divisor is n - 1": (_GRADIENT, lambda v: v.divided(max(1, v.m - 1))),
    "the divisor is the images": (_GRADIENT, lambda v: v.divided(len(v.case.src))),
    "sums are not divided": (_GRADIENT, lambda v: v.divided(1)),
    "epsilon is outside the root": (
        _ALL, lambda v: v.scaled((np.sqrt(v.variance) + v.epsilon) ** 2)),
    "epsilon is missing": (_ALL, lambda v: v.results(epsilon=0.0)),
    "epsilon is always 1e-5": (_ALL, lambda v: v.results(epsilon=1e-5)),
    "epsilon is always 1e-3": (_ALL, lambda v: v.results(epsilon=1e-3)),
    "the variance is unbiased": (_ALL, lambda v: v.results(
        variance=v.variance * v.m / max(1, v.m - 1))),
    "the variance is the deviation": (_ALL, lambda v: v.scaled(v.spread**2)),
    "gamma is missing": (_ALL, lambda v: v.results(gamma=None)),
    "gamma is 1 + gamma": (_ALL, lambda v: v.results(gamma=v.gamma + 1)),
    "gamma's sign is lost": (_ALL, lambda v: v.results(gamma=abs(v.gamma))),
    "beta is missing": (_FORWARD, lambda v: v.results(beta=None)),
    "gamma and beta are swapped": (_FORWARD, lambda v: v.results(
        gamma=v.arrays["beta"], beta=v.arrays["gamma"])),
    "diff_gamma and diff_beta are swapped": (
        _GRADIENT, lambda v: v.swapped("diff_gamma", "diff_beta")),
    "mean and variance are swapped": (_FORWARD[:1], lambda v: v.swapped("mean", "variance")),
    "rstd is returned for the variance": (_FORWARD[:1], lambda v: {
        "variance": 1 / np.sqrt(v.spread)}),
    "diff_gamma has no rstd": (_GRADIENT, lambda v: {
        "diff_gamma": v.right["diff_gamma"] * np.sqrt(v.spread)}),
    "diff_gamma and diff_beta are divided by n": (_GRADIENT, lambda v: {
        n: v.right[n] / v.m for n in ("diff_gamma", "diff_beta")}),
    "momentum is the other convention": (_FORWARD[:1], lambda v: update(
        v.case, {**v.right}, factor=1 - FACTOR)),
    "given statistics are ignored": (_GIVEN, lambda v: v.results(**batch_statistics(v.case))),
    "the ReLU is missing": (_ALL[:3], lambda v: v.results(kind={"relu": False}, by_name={
        n: np.ones_like(a) if n == "dst" else a for n, a in v.case.by_name.items()})),
    "layouts are confused": (_ALL, Varied.turned),
    **{f"sums miss the last rows after a multiple of {k}": (
        ("training", "backward"), partial(Varied.summed, multiple=k))
       for k in (2, 4, 8, 16, 32, 64, 128, 256)},
    **{f"sums miss rows from {k} on": (("training", "backward"), partial(Varied.summed, end=k))
       for k in (256, 1024, 4096, 16_384, 65_536)},
    **{f"the last {name} after a multiple of {k} are 0": (
        _ALL, partial(Varied.cut, axis=axis, multiple=k))
       for axis, name in enumerate(("channels", "rows")) for k in (2, 4, 8, 16, 32, 64, 128)},
    **{f"{name} from {k} on are 0": (_ALL, partial(Varied.cut, axis=axis, end=k))
       for axis, name in enumerate(("channels", "rows")) for k in (64, 128, 256, 512, 1024, 4096)},
}  # fmt: skip


def fitting(case: Case, exact: Exact, results: Values, at: Any, names: Any) -> list[str]:
    """Which of these variations, or of all, give the results; `at`: a result's element, which is
    wrong with the function, and so must be with a variation.
    """
    if names is None:
        names = [name for name in VARIATIONS if case.kind.operation in VARIATIONS[name][0]]
    with _core.DefaultMode():
        varied = Varied(case, exact)
        return [name for name in names if _fits(varied, name, exact, results, at)]


def _changed(varied: Varied, name: str) -> Values:
    """The results that a variation changes; none if it cannot be had."""
    try:
        return VARIATIONS[name][1](varied)
    except (TypeError, KeyError):  # without gamma; no running statistics
        return {}


def _fits(varied: Varied, name: str, exact: Exact, results: Values, at: Any) -> bool:
    changed = {**varied.right, **_changed(varied, name)}
    result, element = at
    right, bounds = exact[result]
    if not abs(changed[result][element] - right[element]) > bounds[0][element]:
        return False
    for result, got in results.items():
        right, bounds = exact[result]
        if got.shape != right.shape:
            return False
        want, finite = changed[result], np.isfinite(right)
        finite &= np.isfinite(want) & np.isfinite(bounds[1])
        kinds = str(got.dtype), limits.arithmetic(varied.case.data)
        unit = max(limits.unit(kind) for kind in kinds if kind in DTYPES)
        sizes = [abs(np.where(finite, a, 0)).max(initial=0) for a in (want, right)]
        growth = max(1, sizes[0] / sizes[1] if sizes[1] else 1)
        room = 2 * bounds[1] * growth + 16 * unit * abs(want)
        if (finite & ~(abs(widened(got, varied.wide) - want) <= room)).any():
            return False
    return True


def contradicted(names: list[str], right: Iterable[tuple[Case, Exact]]) -> list[str]:
    """The variations that are not clearly wrong in a case in which the function is right."""
    with _core.DefaultMode():
        for case, exact in right:
            varied = Varied(case, exact)
            names = [name for name in names if not _shows(varied, name, exact)]
    return names


def _shows(varied: Varied, name: str, exact: Exact) -> bool:
    return any(
        (abs(value - exact[result][0]) > 2 * exact[result][1][-1]).any()
        for result, value in _changed(varied, name).items()
        if result in exact
    )
