"""Calls of a function, judged: every error in units of its limit."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bn_ext import _core
from bn_ext._bench.problems import dtype_of
from bn_ext._reference.cases import TENSORS, Case
from bn_ext._reference.limits import FORMATS, arithmetic, distance, half_ulp

__all__ = ["Finding", "Report", "allowance", "as_array", "called", "judged", "run"]


class Finding(NamedTuple):
    """A result of a case, judged; or what is wrong with the whole call."""

    case: str
    result: str
    #: The largest error in units of its limit; Inf if something else is wrong; NaN: not judged.
    share: float
    element: tuple[int, ...] = ()
    got: float = float("nan")
    expected: float = float("nan")
    #: How many elements are off by more than their limit.
    wrong: int = 0
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
        failed, passed, unknown = [], [], []
        for found in cases.values():
            wrong = [each for each in found if each.share > self.limit]
            unclear = [each for each in found if each.share != each.share]
            if wrong:  # a wrong sum spoils more than itself
                wrong.sort(key=lambda each: (not each.reason, each.result in TENSORS))
                failed.append(_cells(wrong[0], [each.result for each in wrong[1:]]))
            elif unclear:
                unknown.append(_cells(unclear[0], [each.result for each in unclear[1:]]))
            else:
                passed.append(_cells(max(found, key=lambda each: each.share), []))
        head = [("error/limit", "case", "result", "element", "got", "expected", "")]
        parts = (failed, unknown) if failures_alone else (failed, unknown, passed)
        rows = head + [row for part in parts for row in _merged(part)]
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        said = f"{len(failed)} of {len(cases)} cases fail"
        said += f", {len(unknown)} could not be judged" * bool(unknown)
        lines = [said]
        for share, case, result, element, got, expected, reason in rows:
            start = f"{share:>{widths[0]}}  {case:<{widths[1]}}  {result:<{widths[2]}}  "
            rest = f"{element:<{widths[3]}}  {got:>{widths[4]}}  {expected:>{widths[5]}}"
            lines.append((start + (reason or rest)).rstrip())
        return lines if len(rows) > 1 else lines[:1]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _cells(each: Finding, others: list[str]) -> tuple[str, ...]:
    share = "-" if each.share != each.share else "wrong" if each.reason else f"{each.share:.3g}"
    result = ", ".join([each.result, *others])
    if each.reason or not each.element:
        return share, each.case, result, "", "", "", each.reason
    element = f"[{', '.join(map(str, each.element))}]"
    return share, each.case, result, element, f"{each.got:.9g}", f"{each.expected:.9g}", ""


def _merged(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that say the same of several cases, once."""
    alike: dict[Any, list[tuple[str, ...]]] = {}
    for row in rows:
        alike.setdefault((row[2], row[6]) if row[6] else row, []).append(row)
    return [
        (first[0], first[1] + f" and {len(more)} more" * bool(more), *first[2:])
        for first, *more in alike.values()
    ]


# ---- one call --------------------------------------------------------------------------


def as_array(result: Any) -> Any:
    """The result as NumPy has it; TypeError if it is no array."""
    if hasattr(result, "detach"):  # a torch tensor
        result = result.detach().cpu().to_dense().resolve_neg()
        if str(result.dtype) == "torch.bfloat16":  # unknown to torch's NumPy arrays
            return result.float().numpy().astype(dtype_of("bfloat16"))
        return result.numpy()
    if isinstance(result, np.ma.MaskedArray):
        raise TypeError("it has a mask")
    if hasattr(result, "__array__"):
        return np.asarray(result)
    if hasattr(result, "__dlpack__"):
        return np.from_dlpack(result)
    raise TypeError("it is neither a NumPy array nor a tensor, and has no DLPack")


def called(function: Callable[..., Any], case: Case) -> dict[str, Any] | Finding:
    """What the function returned, by name; or what is wrong with the call."""
    given = {name: None if a is None else a.copy() for name, a in case.arrays.items()}
    more = {name: a.copy() for name, a in case.more.items()}
    try:
        with np.errstate(all="ignore"):
            found = function(*given.values(), epsilon=case.epsilon, **more)
    except (Exception, SystemExit) as error:  # someone else's function may fail in any way
        text = f"raised {type(error).__name__}: {error}".splitlines()[0][:100]
        refused = isinstance(error, NotImplementedError) or (
            any(a is None for a in given.values())
            and isinstance(error, (TypeError, AttributeError))
        )
        return Finding(case.name, "function", float("nan") if refused else np.inf, reason=text)
    before = {**case.arrays, **case.more}
    changed = [
        name
        for name, a in {**given, **more}.items()
        if a is not None and a.tobytes() != before[name].tobytes()  # type: ignore[union-attr]
    ]
    if changed:
        return Finding(case.name, "function", np.inf, reason=f"wrote to {', '.join(changed)}")
    results = found if isinstance(found, (tuple, list)) else (found,)
    names = case.results
    if found is None or (results is found and len(found) != len(names)):
        expected = f"expected {', '.join(names)}, or the first alone"
        got = "None" if found is None else f"{len(found)} results"
        return Finding(case.name, "function", np.inf, reason=f"{expected}, got {got}")
    return dict(zip(names, results, strict=False))


def judged(
    case: Case, results: Mapping[str, Any], *, narrow: bool = False, limit: float = 1
) -> list[Finding]:
    """Compare results with the exact ones."""
    with _core.DefaultMode():
        exact, bounds, good = case.exact()
        return [
            _compared(case, name, result, exact[name], bounds[name], good, narrow, limit)
            for name, result in results.items()
            if name in TENSORS or not case.empty
        ]


def _compared(
    case: Case,
    name: str,
    result: Any,
    exact: Any,
    bound: Any,
    good: Any,
    narrow: bool,
    limit: float,
) -> Finding:
    def wrong(reason: str) -> Finding:
        return Finding(case.name, name, np.inf, reason=reason)

    shown = _core.shown(result)
    try:
        array = as_array(result)
    except (Exception, SystemExit) as error:  # a foreign object may fail in any way
        return wrong(f"expected an array, got {shown}: {error}".splitlines()[0][:160])
    kind, data = array.dtype.name, case.data
    if kind not in FORMATS and not np.issubdtype(array.dtype, np.floating):
        return wrong(f"expected floating-point numbers, got {kind}")
    if array.shape != exact.shape:
        return wrong(f"expected shape {exact.shape}, got {array.shape}")
    kind = kind if kind in FORMATS else "float64"  # a long double
    if not narrow and _narrower(kind, data):
        return wrong(f"expected at least {data}, like the data, got {kind}")
    good = np.broadcast_to(_as(good, exact, case.axis), exact.shape)
    got = array.astype(np.longdouble)
    bound = bound + _rounding(name, exact, kind, data)
    off, largest = distance(got, exact), FORMATS[kind].largest
    over = (abs(exact) + bound >= largest) & (got == np.copysign(np.inf, exact))
    share = np.where(over | (got == exact), 0, off / bound)
    share = np.where(np.isfinite(got) & np.isfinite(exact) & ~np.isfinite(bound), 0, share)
    both = np.isnan(got) & np.isnan(exact)
    if name == "mean":  # of Inf: NaN or Inf
        both = ~np.isfinite(got) & ~np.isfinite(exact)
    share = np.where(both, 0, np.nan_to_num(share, nan=np.inf, posinf=np.inf))
    share = np.where(good, share, -1)
    if not share.size:
        return Finding(case.name, name, 0.0)
    if not good.all() and share.max() <= limit:
        part = "" if not good.any() else "in part "
        reason = f"cannot be judged {part}: too near to overflow".replace(" :", ":")
        return Finding(case.name, name, np.nan, reason=reason)
    at = np.unravel_index(share.argmax(), share.shape)
    where = tuple(int(k) for k in at)
    return Finding(
        case.name, name, float(share[at]), where, float(got[at]), float(exact[at]),
        int((share > 1).sum()),
    )  # fmt: skip


def _rounding(name: str, exact: Any, kind: str, data: str) -> Any:
    """What a result's last rounding adds to its bound."""
    rounded = name not in TENSORS or FORMATS[kind].unit > FORMATS[arithmetic(data)].unit
    return half_ulp(exact, kind) if rounded else 0


def allowance(case: Case, name: str, exact: Any, bound: Any, good: Any) -> Any:
    """The largest error that passes, of a result in the dtype of the data or, for vectors, of the
    arithmetic; 0 where NaN or Inf is right, Inf where nothing is known.
    """
    data = case.data
    kind = data if name in TENSORS else arithmetic(data)
    found = bound + _rounding(name, exact, kind, data)
    found = np.where(np.isfinite(exact), np.nan_to_num(found, nan=np.inf), 0)
    good = np.broadcast_to(_as(good, exact, case.axis), exact.shape)
    return np.where(good, found, np.inf).astype(np.float64)


def _as(vector: Any, exact: Any, axis: int) -> Any:
    """A vector as it broadcasts with a result."""
    if exact.ndim == 1:
        return vector
    shape = [1] * exact.ndim
    shape[axis] = -1
    return vector.reshape(shape)


def _narrower(kind: str, data: str) -> bool:
    mine, its = FORMATS[kind], FORMATS[data]
    return mine.unit > its.unit or mine.largest < its.largest


def run(
    function: Callable[..., Any], cases: Iterable[Case], *, narrow: bool = False, limit: float = 1
) -> Report:
    """Call a function with each case, and judge what it returns."""
    report = Report(limit=limit)
    for case in cases:
        found = called(function, case)
        report.findings.extend(
            [found]
            if isinstance(found, Finding)
            else judged(case, found, narrow=narrow, limit=limit)
        )
    return report
