"""Mistakes of where, as variations of the results: what a function is *as if*."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES
from bn_ext.testing import _formulas as formulas, _limits as limits
from bn_ext.testing._case import OPERANDS, TENSORS, Case
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

    def without_mean(self) -> Values:
        """The gradient without what passes through the variance: that for constant statistics minus
        its mean.
        """
        frozen = self.frozen()["diff_src"]
        return {"diff_src": frozen - self.back(self.rows(frozen).mean(axis=1, keepdims=True))}

    def exchanged(self, one: str, other: str) -> Values:
        """The results where two arguments of the function are taken for each other."""
        return self.results(**{one: self.arrays[other], other: self.arrays[one]})

    def without_sums(self, end: int = 0, multiple: int = 1) -> Values:
        """The gradient with sums of 0 from a channel on, or after the last multiple."""
        kept = np.arange(self.channels) < (end or self.channels // multiple * multiple)
        results = {n: np.where(kept, a, 0) for n, a in self.right.items() if n not in TENSORS}
        diff_src = self.frozen()["diff_src"]
        return {
            **results,
            "diff_src": np.where(self.back(kept[:, None]), self.right["diff_src"], diff_src),
        }

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


def remains(varied: Varied) -> Iterator[Values]:
    """What is left of the results if a factor of some of their terms becomes 0."""
    operation = varied.case.kind.operation
    if operation != "backward":
        yield varied.results(gamma=0 * varied.gamma)
    elif varied.case.kind.is_training:
        yield varied.without_mean()
    if operation == "double_backward":
        yield varied.results(diff_diff_gamma=None)
        yield varied.frozen()


_FORWARD, _GRADIENT = ("training", "inference"), ("backward", "double_backward")
_ALL = *_FORWARD, *_GRADIENT
#: {what a function is as if: (operations, the results)}: mistakes of where, not of a formula.
VARIATIONS: dict[str, tuple[tuple[str, ...], Callable[[Varied], Values]]] = {
    "layouts are confused": (_ALL, Varied.turned),
    "src and diff_dst are exchanged": (_GRADIENT, lambda v: v.exchanged("src", "diff_dst")),
    "mean and variance are exchanged": (
        ("inference", *_GRADIENT), lambda v: v.exchanged("mean", "variance")),
    **{f"sums miss the last rows after a multiple of {k}": (
        ("training", "backward"), partial(Varied.summed, multiple=k))
       for k in (2, 4, 8, 16, 32, 64, 128, 256)},
    **{f"sums miss rows from {k} on": (("training", "backward"), partial(Varied.summed, end=k))
       for k in (256, 1024, 4096, 16_384, 65_536)},
    **{f"sums leave out the last channels after a multiple of {k}": (
        ("backward",), partial(Varied.without_sums, multiple=k))
       for k in (2, 4, 8, 16, 32, 64, 128)},
    **{f"sums leave out channels from {k} on": (("backward",), partial(Varied.without_sums, end=k))
       for k in (64, 128, 256, 512, 1024, 4096)},
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
        # The mistake may be in one result alone.
        wants = [changed[result], *[exact[result][0]] * (result != at[0])]
        if not any(_is_near(varied, got, want, *exact[result]) for want in wants):
            return False
    return True


def _is_near(varied: Varied, got: Any, want: Any, right: Any, bounds: Any) -> bool:
    """Is a result what a variation gives, but for rounding?"""
    if got.shape != right.shape:
        return False
    names = str(got.dtype), limits.arithmetic(varied.case.data)
    kinds = [DTYPES[name] for name in names if name in DTYPES]
    finite = np.isfinite(right) & np.isfinite(bounds[1])
    finite &= abs(want) < min(kind.largest for kind in kinds) / 2
    unit = max(kind.unit for kind in kinds)
    sizes = [abs(np.where(finite, a, 0)).max(initial=0) for a in (want, right)]
    growth = max(1, sizes[0] / sizes[1] if sizes[1] else 1)
    room = 2 * bounds[1] * growth + 16 * unit * abs(want)
    return not (finite & ~(abs(widened(got, varied.wide) - want) <= room)).any()


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
