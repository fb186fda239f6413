"""Calls of a function, judged: every error in units of its limit."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bn_ext import _core
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext.testing._cases import TENSORS, Case
from bn_ext.testing._limits import arithmetic, distance, half_ulp

__all__ = ["Finding", "Report", "as_array", "called", "compared", "judged", "run", "said"]


class Finding(NamedTuple):
    """A result of a case, judged; or what is wrong with the whole call."""

    case: str
    result: str
    #: The largest error in units of its limit; Inf if something else is wrong; NaN: not judged.
    share: float
    element: tuple[int, ...] = ()
    got: float = float("nan")
    expected: float = float("nan")
    #: What is wrong, or why it was not judged, if that is not an error of an element.
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """What the checks of `bn_ext.testing` found; ``str(report)`` is a table, failures first."""

    findings: list[Finding] = field(default_factory=list)
    #: The largest error that passes, in units of the limits of docs/numerics.md.
    limit: float = 1

    @property
    def worst(self) -> Finding | None:
        """The finding with the largest error."""
        judged = [each for each in self.findings if each.share == each.share]
        return max(judged, key=lambda each: each.share, default=None)

    @property
    def failures(self) -> list[Finding]:
        """The findings whose error is larger than the limit."""
        return [each for each in self.findings if each.share > self.limit]

    @property
    def passed(self) -> bool:
        """Was something judged, and nothing wrong?"""
        return self.worst is not None and not self.failures

    def lines(self, *, failures_alone: bool = False) -> list[str]:
        """The table: what it says, its head, and a line per case."""
        cases: dict[str, list[Finding]] = {}
        for each in self.findings:
            cases.setdefault(each.case, []).append(each)
        parts: tuple[list[tuple[str, ...]], ...] = ([], [], [])
        failed, unknown, passed = parts
        for found in cases.values():
            wrong = [each for each in found if each.share > self.limit]
            unclear = [each for each in found if each.share != each.share]
            if wrong:  # a wrong sum spoils more than itself
                wrong.sort(key=lambda each: (not each.reason, each.result in TENSORS))
                failed.append(_cells(*wrong))
            elif unclear:
                unknown.append(_cells(*unclear))
            else:
                passed.append(_cells(max(found, key=lambda each: each.share)))
        said = f"{len(failed)} of {len(cases)} cases fail"
        said += f", {len(unknown)} could not be judged" * bool(unknown)
        rows = [row for part in parts[: 2 if failures_alone else 3] for row in _merged(part)]
        if not rows:
            return [said]
        rows.insert(0, ("error/limit", "case", "result", "element", "got", "expected", ""))
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        lines = [said]
        for *cells, reason in rows:
            aligned = [f"{c:{side}{w}}" for c, side, w in zip(cells, "><<<>>", widths, strict=True)]
            lines.append("  ".join([*aligned[:3], reason] if reason else aligned).rstrip())
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _cells(each: Finding, *others: Finding) -> tuple[str, ...]:
    share = "-" if each.share != each.share else "wrong" if each.reason else f"{each.share:.3g}"
    result = each.result + f" +{len(others)}" * bool(others)
    if each.reason or not each.element:
        return share, each.case, result, "", "", "", each.reason
    element = f"[{', '.join(map(str, each.element))}]"
    return share, each.case, result, element, f"{each.got:.6g}", f"{each.expected:.6g}", ""


def _merged(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that say the same of several cases, once; numbers, such as those of shapes, aside."""
    alike: dict[Any, list[tuple[str, ...]]] = {}
    for row in rows:
        key = (row[2], re.sub(r"[\d, ]+", "", row[6])) if row[6] else row
        alike.setdefault(key, []).append(row)
    return [
        (first[0], first[1] + f" and {len(more)} more" * bool(more), *first[2:])
        for first, *more in alike.values()
    ]


# ---- one call --------------------------------------------------------------------------


def said(error: BaseException) -> str:
    """What someone else's exception says, on one short line."""
    try:
        text = " ".join(str(error).split())[:100]
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def as_array(result: Any) -> Any:
    """The result as NumPy has it; TypeError if it is no array."""
    if hasattr(result, "detach"):  # a torch tensor
        if str(result.dtype) == "torch.bfloat16":  # unknown to torch's NumPy arrays
            return result.float().numpy(force=True).astype(dtype_of("bfloat16"))
        return result.numpy(force=True)
    if isinstance(result, np.ma.MaskedArray):
        raise TypeError("it has a mask")
    if hasattr(result, "__array__"):
        return np.asarray(result)
    if hasattr(result, "__dlpack__"):
        return np.from_dlpack(result)
    raise TypeError("it is neither a NumPy array nor a tensor, and has no DLPack")


def called(function: Callable[..., Any], case: Case) -> dict[str, Any] | Finding:
    """What the function returned, by name; or what is wrong with the call."""

    def wrong(reason: str, share: float = np.inf) -> Finding:
        return Finding(case.name, "function", share, reason=reason)

    before = {name: a for name, a in {**case.arrays, **case.more}.items() if a is not None}
    given = {name: a.copy() for name, a in before.items()}
    arrays = [given.get(name) for name in case.arrays]
    try:
        with np.errstate(all="ignore"):
            more = {name: given[name] for name in case.more}
            found = function(*arrays, epsilon=case.epsilon, **more)
    except (Exception, SystemExit) as error:  # someone else's function may fail in any way
        refused = isinstance(error, NotImplementedError) or (
            any(a is None for a in arrays) and isinstance(error, (TypeError, AttributeError))
        )
        return wrong(f"raised {said(error)}", np.nan if refused else np.inf)
    changed = [name for name, a in before.items() if a.tobytes() != given[name].tobytes()]
    if changed:
        return wrong(f"wrote to {', '.join(changed)}")
    names = case.results
    results = found if isinstance(found, (tuple, list)) else (found,)
    alone = "" if case.kind.results else ", or the first alone"
    if found is None or (len(results) != len(names) and not (alone and results is not found)):
        got = "None" if found is None else f"{len(results)} results"
        return wrong(f"expected {', '.join(names)}{alone}, got {got}")
    return dict(zip(names, results, strict=False))


def judged(
    case: Case, results: Mapping[str, Any], *, narrow: bool = False, limit: float = 1
) -> list[Finding]:
    """Compare the results of a case with the exact ones."""
    exact = case.exact()
    return [
        compared(case.name, name, result, *exact[name], case.data, narrow=narrow, limit=limit)
        for name, result in results.items()
        if name in exact
    ]


def compared(
    case: str, name: str, result: Any, right: Any, allowed: Any, data: str, *, narrow: bool,
    limit: float,
) -> Finding:  # fmt: skip
    """Compare a result, of this data, with what is right, and its errors with those `allowed`."""

    def wrong(reason: str) -> Finding:
        return Finding(case, name, np.inf, reason=reason)

    try:
        array = as_array(result)
    except (Exception, SystemExit) as error:  # a foreign object may fail in any way
        shown = " ".join(_core.shown(result).split())[:40]
        return wrong(f"expected an array, got {shown}: {said(error)}")
    kind = array.dtype.name
    if kind not in DTYPES and not np.issubdtype(array.dtype, np.floating):
        return wrong(f"expected floating-point numbers, got {kind}")
    if array.shape != right.shape:
        return wrong(f"expected shape {right.shape}, got {array.shape}")
    mine, its = DTYPES.get(kind, DTYPES["float64"]), DTYPES[data]  # or a long double
    if not narrow and (mine.unit > its.unit or mine.largest < its.largest):
        return wrong(f"expected at least {data}, like the data, got {kind}")
    if not array.size:
        return Finding(case, name, 0.0)
    with _core.DefaultMode():
        got, known = array.astype(np.longdouble), allowed < np.inf
        if mine.unit > DTYPES[data if name in TENSORS else arithmetic(data)].unit:
            allowed = allowed + half_ulp(right, kind)
        share = distance(got, right) / allowed
        alike = (got == right) | (np.isnan(got) & np.isnan(right))
        alike |= (abs(right) + allowed >= mine.largest) & (got == np.copysign(np.inf, right))
        if name in ("mean", "running_mean"):  # of Inf: NaN or Inf
            alike |= ~np.isfinite(got) & ~np.isfinite(right)
        share = np.where(alike, 0, np.where(np.isnan(share), np.inf, share))
        share = np.where(known, share, -1)
    if not known.all() and share.max() <= limit:
        part = " in part" if known.any() else ""
        return Finding(case, name, np.nan, reason=f"cannot be judged{part}: too near to overflow")
    at = np.unravel_index(share.argmax(), share.shape)
    where = tuple(int(k) for k in at)
    return Finding(case, name, float(share[at]), where, float(got[at]), float(right[at]))


def run(
    function: Callable[..., Any], cases: Iterable[Case], *, narrow: bool = False, limit: float = 1
) -> Report:
    """Call a function with each case, and judge what it returns."""
    report = Report(limit=limit)
    for case in cases:
        found = called(function, case)
        if isinstance(found, Finding):
            report.findings.append(found)
        else:
            report.findings.extend(judged(case, found, narrow=narrow, limit=limit))
    return report
