"""Calls of a function, judged: every error in units of its limit, and what explains it."""

import ctypes
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext.testing._cases import ARITHMETICS, LARGE, TENSORS, Case, Exact
from bn_ext.testing._limits import arithmetic as number_of, distance, half_ulp
from bn_ext.testing._script import program
from bn_ext.testing._variations import Varied, contradicted, fitting, remains
from bn_ext.testing._weaker import out_of_range

#: A case's verdict is the first of these that one of its results has; the first four fail.
VERDICTS = "crashed", "raised", "wrong", "weaker", "range", "not judged", "refused", "right"
#: Of a result that is right, or weaker.
FLUSHED = "subnormal numbers are 0"
#: Of one that is neither right nor wrong.
RANGE = "a product overflows or underflows on the way"


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
    #: Right, weaker, wrong, range, raised, crashed, refused or not judged.
    verdict: str = "right"
    #: The first of double, float32 and any whose limits the result keeps, if it keeps one's.
    arithmetic: str = ""
    #: Which elements are wrong.
    where: str = ""


@dataclass(frozen=True)
class Report:
    """What the checks of `bn_ext.testing` found; ``str(report)`` is a table, failures last."""

    findings: list[Finding] = field(default_factory=list)
    #: The weakest arithmetic whose limits were allowed.
    arithmetic: str = "float32"
    #: The names of cases whose results differed from call to call.
    differing: list[str] = field(default_factory=list)
    #: For each case with wrong numbers, the variations that give them; for some right cases, those
    #: that are left.
    variations: list[list[str]] = field(default_factory=list, repr=False)
    #: What makes a program that shows the worst mistake.
    makers: list[Callable[[], str]] = field(default_factory=list, repr=False)

    @property
    def worst(self) -> Finding:
        """The finding with the largest error; its share is NaN if nothing was judged."""
        known = [each for each in self.findings if each.share == each.share]
        none = Finding("", "", np.nan, reason="nothing was judged", verdict="not judged")
        return max(known, key=lambda each: each.share, default=none)

    @property
    def failures(self) -> list[Finding]:
        """The findings that are wrong, or weaker than asked."""
        return [each for each in self.findings if _fails(each.verdict)]

    @property
    def passed(self) -> bool:
        """Was something judged, and nothing wrong?"""
        return self.worst.share == self.worst.share and not self.failures

    @property
    def verdicts(self) -> dict[str, str]:
        """Each case's verdict: that of its worst result."""
        return {name: found[0].verdict for name, found in self._cases().items()}

    @property
    def as_if(self) -> list[str]:
        """The variations of the formula that give the function's numbers in all cases that fail."""
        first, *others = self.variations or [[]]
        return [name for name in first if all(name in names for names in others)]

    def add(self, findings: list[Finding], differs: str, variations: list[str] | None) -> None:
        """What was found in a case, as `tried` yields it."""
        self.findings.extend(findings)
        self.differing.extend([differs] if differs else [])
        self.variations.extend([] if variations is None else [variations])

    @property
    def summary(self) -> str:
        """How many cases have each verdict, on a line."""
        worst = [each for each, *_ in self._cases().values()]
        counts = Counter(each.verdict for each in worst)
        kinds = Counter(ARITHMETICS[each.arithmetic] for each in worst if each.verdict == "weaker")
        named = ", ".join(name if len(kinds) == 1 else f"{n} {name}" for name, n in kinds.items())
        order = ("wrong", "weaker", "raised", "crashed", "range", "refused", "not judged", "right")
        flushed = {each.case for each in self.findings if each.reason == FLUSHED}
        more = f"; {FLUSHED} in {len(flushed)} case{'s' * (len(flushed) > 1)}" * bool(flushed)
        known = ", ".join(
            f"{counts[verdict]} {verdict}" + f" ({named})" * (verdict == "weaker")
            for verdict in order
            if verdict in counts
        )
        return known + more

    def script(self) -> str:
        """The smallest program that shows the worst mistake, with exit status 1: at most 40 lines,
        which need NumPy (of bfloat16 data, ml_dtypes) and the function alone. It looks for a
        smaller one for 10 s.

        Raises
        ------
        ValueError
            If no number of a result is wrong.
        """
        text = self.makers[0]() if self.makers else ""
        if not text:
            raise ValueError("script: expected a report with wrong numbers")
        return text

    def settle(self) -> None:
        """Where a result is wrong in more cases than it is weaker in, with finite numbers, the same
        mistake is what the latter show: limits of weak arithmetic are wide there. So it is where
        zeros could be subnormal numbers, if the result is wrong in any other case.
        """
        verdicts = Counter(
            (each.result, each.verdict)
            for each in self.findings
            if np.isfinite(each.got) and np.isfinite(each.expected)
        )
        for place, each in enumerate(self.findings):
            flushed, wrong = each.reason == FLUSHED, verdicts[each.result, "wrong"]
            others = 0 if flushed else verdicts[each.result, each.verdict]
            if (each.verdict in ("weaker", "range") or flushed) and others < wrong:
                each = each._replace(verdict="wrong", arithmetic="", reason="")
                self.findings[place] = each

    def _cases(self) -> dict[str, list[Finding]]:
        """Each case's findings, the worst verdict first; a wrong sum spoils more than itself."""
        cases: dict[str, list[Finding]] = {}
        for each in self.findings:
            cases.setdefault(each.case, []).append(each)
        for found in cases.values():
            found.sort(key=lambda each: (
                VERDICTS.index(each.verdict),
                each.verdict == "weaker" and each.arithmetic != "any",
                not each.reason,
                each.result in TENSORS if _fails(each.verdict) else -each.share,
            ))  # fmt: skip
        return cases

    def lines(self, *, verbose: bool = False) -> list[str]:
        """The table: its head, a line per mistake, and what it says in all; verbose: also a line
        per right case. What fails is last.
        """
        groups: dict[tuple[int, str], list[tuple[str, ...]]] = {}
        cases = self._cases()
        for worst, *others in cases.values():
            of = VERDICTS.index(worst.verdict), worst.arithmetic * (worst.verdict == "weaker")
            more = sum(each.verdict == worst.verdict for each in others) if of[0] < 4 else 0
            groups.setdefault(of, []).append(_cells(worst, more))
        rows: list[tuple[str, ...]] = []
        for (place, kind), found in sorted(
            groups.items(), key=lambda each: (-each[0][0], each[0][1])
        ):
            if verbose or VERDICTS[place] != "right":
                has = "have" if kind.startswith("float") else "has"
                said = f"as {ARITHMETICS[kind]} {has} it" if kind else VERDICTS[place]
                said = RANGE if said == "range" else said
                rows += [(f"{said}:",), *(found if VERDICTS[place] == "right" else _merged(found))]
        lines = [f"{sum(map(_fails, self.verdicts.values()))} of {len(cases)} cases fail"]
        if rows:
            rows.insert(0, ("error/limit", "case", "result", "element", "got", "expected", ""))
        widths = [max(len(row[k]) for row in rows if len(row) > 1) for k in range(6) if rows]
        for row in rows:
            *cells, last = row
            aligned = [
                f"{c:{side}{w}}" for c, side, w in zip(cells, "><<<>>", widths, strict=False)
            ]
            whole = cells and not cells[4] and last  # a reason in place of an element
            lines.append("  ".join([*aligned[: 3 if whole else 6], last]).rstrip())
        shares = any(row[0] not in ("-", "error/limit") for row in rows if len(row) > 1)
        legend = ["error/limit: up to 1 is rounding"] * shares
        legend += ["+1: one more result fails"] * any("+" in row[2] for row in rows if len(row) > 1)
        lines += ["; ".join(legend)] * bool(legend)
        if self.differing:
            first, *rest = self.differing
            names = first + f" and {len(rest)} more" * bool(rest)
            lines.append(f"not the same bits in every call: {names}")
        if len(self.as_if) <= 3:  # more say nothing
            lines += [f"{'or ' * (k > 0)}as if {name}" for k, name in enumerate(self.as_if)]
        return [*lines, self.summary] if cases else lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _fails(verdict: str) -> bool:
    return VERDICTS.index(verdict) < 4


def _cells(each: Finding, more: int) -> tuple[str, ...]:
    share = "-" if each.share != each.share or each.reason else f"{each.share:.3g}"
    result = each.result + f" +{more}" * bool(more)
    if each.reason or not each.element:
        return share, each.case, result, "", "", "", each.reason
    element = f"[{', '.join(map(str, each.element))}]"
    numbers = (f"{number:.6g}" for number in (each.got, each.expected))
    return share, each.case, result, element, *numbers, each.where


def _merged(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that say the same of several cases, once; numbers and addresses aside."""
    alike: dict[Any, list[tuple[str, ...]]] = {}
    for row in rows:
        what = re.sub(r"0x[\da-fA-F]+|(?<=an array, got ).*", "", row[6])
        what = re.sub(r"[\d, ]+", "", what)
        if row[4]:  # a place: is it a stretch of channels, rows, ...?
            what = "".join(re.findall("^(?:channel|row|sample|position)", row[6]))
        alike.setdefault((row[2].partition(" ")[0], what), []).append(row)
    return [
        (first[0], first[1] + f" and {len(more)} more" * bool(more), *first[2:])
        for first, *more in alike.values()
    ]


# ---- one call --------------------------------------------------------------------------


def message(error: BaseException) -> str:
    """What someone else's exception says, on one short line."""
    try:
        text = " ".join(str(error).split())[:100]
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def as_array(result: Any, data: str = "") -> Any:
    """The result as NumPy has it; TypeError if it is no array. Of bfloat16 data, two bytes that are
    no float are a bfloat16.
    """
    if any(each.__module__.partition(".")[0] == "torch" for each in type(result).__mro__):
        if str(result.dtype) == "torch.bfloat16":  # unknown to torch's NumPy arrays
            return result.detach().float().numpy(force=True).astype(dtype_of("bfloat16"))
        return result.numpy(force=True)
    if isinstance(result, np.ma.MaskedArray):
        raise TypeError("it has a mask")
    if hasattr(result, "__array__"):
        array = np.asarray(result)
    elif hasattr(result, "__dlpack__"):
        array = np.from_dlpack(result)
    elif callable(getattr(result, "numpy", None)):
        array = np.asarray(result.numpy())
    else:
        raise TypeError("it is neither a NumPy array nor a tensor, and has no DLPack")
    if data == "bfloat16" and array.dtype.kind in "Vui" and array.dtype.itemsize == 2:
        array = array.astype(array.dtype.newbyteorder("="), copy=False).view(dtype_of(data))
    return array


def _strided(array: Any) -> Any:
    """The same numbers with gaps between them."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def called(
    function: Callable[..., Any], case: Case, *, strided: bool = False
) -> dict[str, Any] | Finding:
    """What the function returned, by name; or what is wrong with the call."""

    def wrong(reason: str, verdict: str = "wrong") -> Finding:
        share = np.nan if verdict == "refused" else np.inf
        return Finding(case.name, "function", share, reason=reason, verdict=verdict)

    before = {name: a for name, a in {**case.arrays, **case.more}.items() if a is not None}
    given = {name: _strided(a) if strided else a.copy() for name, a in before.items()}
    arrays = [given.get(name) for name in case.arrays]
    try:
        with np.errstate(all="ignore"):
            more = {name: given[name] for name in case.more}
            found = function(*arrays, epsilon=case.epsilon, **more)
    except (Exception, SystemExit) as error:  # someone else's function may fail in any way
        none = TypeError, AttributeError, ctypes.ArgumentError
        refused = isinstance(error, NotImplementedError) or (
            any(a is None for a in arrays) and isinstance(error, none)
        )
        return wrong(f"raised {message(error)}", "refused" if refused else "raised")
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
    case: Case, results: Mapping[str, Any], *, arithmetic: str = "float32", narrow: bool = False,
    exact: Exact | None = None,
) -> list[Finding]:  # fmt: skip
    """Compare the results of a case with the exact ones."""
    exact, findings = case.exact() if exact is None else exact, []
    for name, result in results.items():
        if name not in exact:
            continue
        how: Any = {"data": case.data, "least": case.least(name), "axis": case.axis,
                    "arithmetic": arithmetic, "narrow": narrow}  # fmt: skip
        each = compared(case.name, name, result, *exact[name], **how)
        if each.verdict == "wrong" and each.element and arithmetic != "double":
            mended = _in_range(case, exact, name, as_array(result, case.data))
            if compared(case.name, name, mended, *exact[name], **how).verdict != "wrong":
                each = each._replace(verdict="range")
        findings.append(each)
    return findings


def _in_range(case: Case, exact: Exact, name: str, array: Any) -> Any:
    """A result, made right where it is what an overflow or an underflow on the way leaves: no
    number, or what remains without a term that became 0.
    """
    with _core.DefaultMode():
        right, limits = exact[name]
        varied = Varied(case, exact)
        mask = out_of_range(case.by_channel(varied.arrays), number_of(case.data))
        axes = [axis for axis in range(right.ndim) if axis != case.axis % right.ndim]
        mask = np.expand_dims(mask, axes if right.ndim > 1 else ())
        gone = mask & ~np.isfinite(array) & np.isfinite(right)
        for rest in remains(varied) if mask.any() else ():
            close = distance(array, rest.get(name, np.nan)) <= limits[1]
            gone |= mask & (array != 0) & close
        return np.where(gone, right, array).astype(array.dtype)


def compared(
    case: str, name: str, result: Any, right: Any, limits: Any, *, data: str, axis: int,
    least: str = "", arithmetic: str = "float32", narrow: bool = False,
) -> Finding:  # fmt: skip
    """Compare a result, of this data, with what is right, and its errors with the limits of each
    arithmetic; `least`: the narrowest dtype that it may have.
    """

    def wrong(reason: str) -> Finding:
        return Finding(case, name, np.inf, reason=reason, verdict="wrong")

    try:
        array = as_array(result, data)
    except (Exception, SystemExit) as error:  # a foreign object may fail in any way
        shown = " ".join(_core.shown(result).split())[:40]
        return wrong(f"expected an array, got {shown}: {message(error)}")
    kind = array.dtype.name
    if kind not in DTYPES and not np.issubdtype(array.dtype, np.floating):
        hint = "; bfloat16 may be uint16 if the data are bfloat16" * (kind == "uint16")
        return wrong(f"expected floating-point numbers, got {kind}{hint}")
    if array.shape != right.shape:
        return wrong(f"expected shape {right.shape}, got {array.shape}")
    mine, its = DTYPES.get(kind, DTYPES["float64"]), DTYPES[least or data]  # or a long double
    if not narrow and (mine.unit > its.unit or mine.largest < its.largest):
        return wrong(f"expected at least {its.name}, like the data, got {kind}")
    if not array.size:
        return Finding(case, name, 0.0, arithmetic="double")
    kinds = [*ARITHMETICS][: len(limits)]
    asked = min([*ARITHMETICS].index(arithmetic), len(kinds) - 1)
    with _core.DefaultMode():
        got, finite = array.astype(np.longdouble), np.isfinite(right)
        says = ~(np.isinf(limits) & (~np.isinf(right) | np.isinf(limits[0])))
        if mine.unit > DTYPES[data if name in TENSORS else number_of(data)].unit:
            limits = limits + np.where(finite, half_ulp(right, kind), 0)
        alike = (got == right) | (np.isnan(got) & np.isnan(right))
        alike = alike | (got == np.inf) & (right + limits >= mine.largest)
        alike |= (got == -np.inf) & (right - limits <= -mine.largest)
        alike |= np.isnan(got) & np.isinf(right) & np.isinf(limits)
        if name in ("mean", "running_mean"):  # of Inf: NaN or Inf
            alike |= ~np.isfinite(got) & ~finite
        share = distance(got, right) / limits
        share = np.where(np.isnan(share), np.inf, share)
        share = np.where(alike | ~says, 0, share)
        small = abs(right) < np.finfo(number_of(data)).tiny
        flushed = (got == 0) & (share[0] > 1) & small
        if (small & (got != 0)).any():  # others are not, so that these were lost in another way
            share = np.where(flushed & np.isfinite(limits), share[0], share)
    kept = [not (each > 1).any() for each in share]
    fits = next((k for k, good in zip(kinds, kept, strict=True) if good), "")
    open_ = ~says[asked] & ~(says[0] & (share[0] <= 1))
    if kept[asked] and open_.any():
        part = "" if open_.all() else " in part"
        why = f"{ARITHMETICS[arithmetic]} may give anything"
        if not says[0].all():
            why = "cannot be judged: too near to overflow"
        return Finding(case, name, np.nan, reason=f"{why}{part}", verdict="not judged")
    verdict = "right" if kept[asked] else "weaker" if any(kept) else "wrong"
    bad = share[-1 if verdict == "wrong" else asked] > 1
    most = np.where(bad, share[asked], -1) if bad.any() else share[asked]
    at = np.unravel_index(most.argmax(), most.shape)
    reason = FLUSHED if verdict != "wrong" and flushed.any() else ""
    numbers = float(got[at]), float(right[at]), reason, verdict, fits
    where = _place(bad, axis) if bad.any() else ""
    return Finding(case, name, float(most[at]), tuple(int(k) for k in at), *numbers, where)


def _place(bad: Any, axis: int) -> str:
    """Which elements: all, some channels, some rows, ..., or how many."""
    if bad.all():
        return "all"
    if bad.ndim == 1:
        return _span("channel", bad)
    axes = np.moveaxis(bad, axis, -1)
    by = {"channel": axes.reshape(-1, axes.shape[-1]).T}
    if bad.ndim == 2:
        by["row"] = axes
    else:
        by["sample"] = axes.reshape(len(axes), -1)
        by["position"] = axes.reshape(len(axes), -1, axes.shape[-1]).swapaxes(0, 1)
    for name, lines in by.items():
        some = lines.reshape(len(lines), -1)
        if (some.all(axis=1) == some.any(axis=1)).all():
            return _span(name, some.any(axis=1))
    count = f"{_number(bad.sum())} of {_number(bad.size)}"
    some = by["channel"].any(axis=1)
    return count if some.all() else f"{count}, in {_span('channel', some)}"


def _span(name: str, some: Any) -> str:
    (found,) = some.nonzero()
    first, last, of = found[0], found[-1], f" of {_number(some.size)}"
    if first == last:
        return f"{name} {_number(first)}{of}"
    if last - first + 1 == found.size:
        return f"{name}s {_number(first)} to {_number(last)}{of}"
    return f"{_number(found.size)}{of} {name}s"


def _number(number: Any) -> str:
    return f"{int(number):,}".replace(",", " ")


# ---- all cases -----------------------------------------------------------------------------


class Trial:
    """Calls of a function, judged; and, for each result, the smallest case with wrong numbers."""

    def __init__(
        self, function: Callable[..., Any], *, arithmetic: str = "float32", narrow: bool = False,
        repeats: int = 1, same_bits: bool = False, strided: bool = False,
    ) -> None:  # fmt: skip
        self.function, self.strided = function, strided
        self.repeats, self.same_bits = max(repeats, 1 + same_bits), same_bits
        self.limits: Any = {"arithmetic": arithmetic, "narrow": narrow}
        #: What the call before returned: case, result, the array, and its bytes then.
        self.kept: list[tuple[str, str, Any, bytes]] = []
        #: The variations that gave the wrong numbers of all cases before.
        self.left: list[str] | None = None
        #: Small cases without a fault, before the first that is wrong.
        self.right: list[tuple[Case, Exact]] = []
        self.worst = (-1.0, "")
        self.smallest: dict[str, tuple[Case, float]] = {}

    def tried(self, case: Case) -> tuple[list[Finding], str, list[str] | None]:
        """What was found; the case's name if results differed from call to call; and, if numbers
        are wrong, the variations that give them, of those that are left; if a small case is right,
        those that it does not contradict.
        """
        worst: dict[tuple[str, str], Finding] = {}
        bits, exact, variations = set(), cache(case.exact), None
        for _ in range(self.repeats):
            results = called(self.function, case, strided=self.strided)
            findings = [
                Finding(name, result, np.inf, reason="a later call overwrites it", verdict="wrong")
                for name, result, array, before in self.kept
                if _bits(array) != before
            ]
            if isinstance(results, Finding):
                findings, self.kept = [*findings, results], []
            else:
                findings += judged(case, results, exact=exact(), **self.limits)
                self.kept = _bytes(case, results)
                arrays = {name: array for _, name, array, _ in self.kept if name in exact()}
                for each in filter(_has_wrong_numbers, findings):
                    finite = np.isfinite((each.got, each.expected)).all()
                    if finite and each.case == case.name and self.left != []:
                        at = each.result, each.element
                        names = fitting(case, exact(), arrays, at, self.left)
                        self.left = variations = contradicted(names, self.right)
                        self.right = []
                bits.add(tuple(each[3] for each in self.kept))
            for each in findings:
                of = each.case, each.result
                worst[of] = min(worst.get(of, each), each, key=_rank)
        if self.same_bits and len(bits) > 1:
            reason = "other bits in another call"
            each = Finding(case.name, "function", np.inf, reason=reason, verdict="wrong")
            worst[each.case, each.result] = each
        for each in filter(_has_wrong_numbers, worst.values()):
            self.worst = max(self.worst, (each.share, each.result))
            other, _ = self.smallest.get(each.result, (case, 0))
            if each.case == case.name and case.src.size <= other.src.size:
                self.smallest[each.result] = case, each.share
        if all(each.verdict == "right" for each in worst.values()) and 0 < case.src.size <= LARGE:
            if self.left is None:
                self.right.append((case, exact()))
            elif self.left:
                self.left = variations = contradicted(self.left, [(case, exact())])
        return [*worst.values()], case.name if len(bits) > 1 else "", variations

    def program(self, load: str = "") -> str:
        """The smallest program that shows the worst mistake, if numbers are wrong."""
        result = self.worst[1]
        if result not in self.smallest:
            return ""
        case, share = self.smallest[result]

        def fails(case: Case) -> bool:
            results = called(self.function, case, strided=self.strided)
            return not isinstance(results, Finding) and any(
                _has_wrong_numbers(each)
                and each.result == result
                and each.share > min(100, share / 2)  # no cancellation that is hard to believe
                for each in judged(case, results, **self.limits)
            )

        return program(self.function, case, result, fails, load=load, strided=self.strided)


def run(function: Callable[..., Any], cases: Iterable[Case], **how: Any) -> Report:
    """Call a function with each case, and judge what it returns; options as for `Trial`."""
    report, trial = Report(arithmetic=how.get("arithmetic", "float32")), Trial(function, **how)
    for case in shown(cases):
        report.add(*trial.tried(case))
    report.makers.append(trial.program)
    report.settle()
    return report


def shown(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases; from the second second on, a terminal shows how many there were, and the next."""
    start = time.monotonic()
    for count, case in enumerate(cases):
        if sys.stderr and sys.stderr.isatty() and time.monotonic() - start > 1:
            print(f"\r\x1b[K{count} cases, {case.name}", end="", file=sys.stderr, flush=True)
        yield case
    clear()


def clear() -> None:
    """Leave nothing of `shown` on the line."""
    if sys.stderr and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _rank(each: Finding) -> tuple[int, float]:
    return VERDICTS.index(each.verdict), -each.share


def _has_wrong_numbers(each: Finding) -> bool:
    return each.verdict == "wrong" and bool(each.element)


def _bits(array: Any) -> bytes:
    """What an array holds; long doubles have bytes between them that may be anything."""
    is_long = array.dtype.char == "g"
    return repr(array.tolist()).encode() if is_long else array.tobytes()


def _bytes(case: Case, results: Mapping[str, Any]) -> list[tuple[str, str, Any, bytes]]:
    """The results that can be read, and their bytes now."""
    found = []
    for name, result in results.items():
        try:
            array = as_array(result, case.data)
            found.append((case.name, name, array, _bits(array)))
        except (Exception, SystemExit):  # judged() says why
            continue
    return found
