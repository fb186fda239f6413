"""Calls of a function, judged: every error in units of its limit, and what explains it."""

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext.testing import _formulas as formulas
from bn_ext.testing._case import FACTOR, TENSORS, Case
from bn_ext.testing._cases import LARGE, as_words
from bn_ext.testing._exact import ARITHMETICS, Exact, exact as solved
from bn_ext.testing._formula import lines_of
from bn_ext.testing._limits import arithmetic as number_of, distance, half_ulp, unit
from bn_ext.testing._places import Places
from bn_ext.testing._progress import Progress
from bn_ext.testing._reading import SHAPES, ignored_statistics, in_other_format, is_ordinary, read
from bn_ext.testing._script import program
from bn_ext.testing._variations import Varied, contradicted, fitting, remains
from bn_ext.testing._weaker import OF_PRODUCTS, out_of_range
from bn_ext.testing._wide import wide_of, widened

#: A case's verdict is the first of these that one of its results has; the first four fail.
VERDICTS = "crashed", "raised", "wrong", "weaker", "range", "not judged", "refused", "right"
#: Data, and what a kernel without the type returns of it.
BITS = "bfloat16", "uint16"
#: Of a result that is right, or weaker.
FLUSHED = "subnormal numbers are 0"


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
    #: One of VERDICTS.
    verdict: str = "right"
    #: The first of double, float32 and any whose limits the result keeps, if it keeps one's.
    arithmetic: str = ""
    #: Which elements are wrong.
    where: str = ""
    #: The result's dtype, if it is wider than the data's.
    wider: str = ""

    @property
    def fails(self) -> bool:
        return VERDICTS.index(self.verdict) < 4

    @property
    def has_wrong_numbers(self) -> bool:
        return self.verdict == "wrong" and bool(self.element)


@dataclass(frozen=True, repr=False)
class Report:
    """What the checks of `bn_ext.testing` found; ``str(report)`` is a table, failures last."""

    findings: list[Finding] = field(default_factory=list)
    #: The names of cases whose results differed from call to call.
    differing: list[str] = field(default_factory=list)
    #: What is computed in place of what is right, as formulas, where that can be read.
    formulas: list[str] = field(default_factory=list)
    #: For each case with wrong numbers, the variations that give them; for some right cases, those
    #: that are left.
    variations: list[list[str]] = field(default_factory=list)
    #: What makes a program that shows the worst mistake, or an empty text.
    maker: Callable[[], str] = field(default=str)

    @property
    def worst(self) -> Finding:
        """The finding with the largest error; its share is NaN if nothing was judged."""
        known = [finding for finding in self.findings if finding.share == finding.share]
        none = Finding("", "", np.nan, reason="nothing was judged", verdict="not judged")
        return max(known, key=lambda finding: finding.share, default=none)

    @property
    def failures(self) -> list[Finding]:
        """The findings that are wrong, or weaker than asked."""
        return [finding for finding in self.findings if finding.fails]

    @property
    def passed(self) -> bool:
        """Was something judged, and nothing wrong?"""
        return self.worst.share == self.worst.share and not self.failures

    @property
    def verdicts(self) -> dict[str, str]:
        """Each case's verdict: that of its worst result."""
        return {name: findings[0].verdict for name, findings in self.cases().items()}

    @property
    def as_if(self) -> list[str]:
        """What is wrong with the function, in words: the lines of formulas or, where none was read,
        the variations of right results that are its numbers in all cases that fail.
        """
        if self.formulas:
            return self.formulas
        first, *others = self.variations or [[]]
        return [name for name in first if all(name in names for names in others)]

    @property
    def summary(self) -> str:
        """How many cases have each verdict, on a line."""
        worst = [findings[0] for findings in self.cases().values()]
        counts = Counter(finding.verdict for finding in worst)
        kinds = Counter(ARITHMETICS[f.arithmetic] for f in worst if f.verdict == "weaker")
        named = ", ".join(name if len(kinds) == 1 else f"{n} {name}" for name, n in kinds.items())
        order = ("wrong", "weaker", "raised", "crashed", "range", "refused", "not judged", "right")
        flushed = len({finding.case for finding in self.findings if finding.reason == FLUSHED})
        kind_of = {"weaker": f" ({named})"}
        text = ", ".join(f"{counts[v]} {v}{kind_of.get(v, '')}" for v in order if v in counts)
        text += f"; {FLUSHED} in {flushed} case{'s' * (flushed > 1)}" * bool(flushed)
        wider = {finding.wider for finding in self.findings if finding.wider}
        return "; ".join([text, *sorted(wider)])

    def script(self) -> str:
        """The smallest program that shows the worst mistake, with exit status 1: at most 40 lines,
        which need NumPy (of bfloat16 data, ml_dtypes) and the function alone. It looks for a
        smaller one for 10 s. A function that keeps a state may be right in its first call: then
        the program says so, with exit status 0. One that cannot be imported has a gap, to be
        filled in: until then the exit status is 2.

        Raises
        ------
        ValueError
            If no number of a result is wrong.
        """
        text = self.maker()
        if not text:
            raise ValueError("script: expected a report with wrong numbers")
        return text

    def add(self, other: "Report") -> None:
        for name in ("findings", "differing", "formulas", "variations"):
            getattr(self, name).extend(getattr(other, name))

    def settle(self) -> None:
        """Where a result is wrong in more cases than it is weaker in, with finite numbers, the same
        mistake is what the latter show: limits of weak arithmetic are wide there. So it is where
        zeros could be subnormal numbers, if the result is wrong in any other case.
        """
        verdicts = Counter(
            (finding.result, finding.verdict)
            for finding in self.findings
            if np.isfinite((finding.got, finding.expected)).all()
        )
        for place, finding in enumerate(self.findings):
            flushed = finding.reason == FLUSHED
            others = 0 if flushed else verdicts[finding.result, finding.verdict]
            doubtful = flushed or finding.verdict in ("weaker", "range")
            if doubtful and others < verdicts[finding.result, "wrong"]:
                self.findings[place] = finding._replace(verdict="wrong", arithmetic="", reason="")

    def cases(self) -> dict[str, list[Finding]]:
        """Each case's findings, the worst verdict first; a wrong sum spoils more than itself."""
        cases: dict[str, list[Finding]] = {}
        for finding in self.findings:
            cases.setdefault(finding.case, []).append(finding)
        for findings in cases.values():
            findings.sort(key=lambda finding: (
                VERDICTS.index(finding.verdict),
                finding.verdict == "weaker" and finding.arithmetic != "any",
                not finding.reason,
                finding.result in TENSORS if finding.fails else -finding.share,
            ))  # fmt: skip
        return cases

    def lines(self, *, verbose: bool = False) -> list[str]:
        """The table: its head, a line per mistake, and what it says in all; verbose: also a line
        per right case. What fails is last.
        """
        groups: dict[tuple[int, str], list[tuple[str, ...]]] = {}
        cases = self.cases()
        for worst, *others in cases.values():
            if worst.verdict == "right" and not verbose:
                continue
            key = -VERDICTS.index(worst.verdict), worst.arithmetic * (worst.verdict == "weaker")
            count = sum(finding.verdict == worst.verdict for finding in others) * worst.fails
            groups.setdefault(key, []).append(_cells(worst, count))
        rows: list[tuple[str, ...]] = []
        for (place, kind), group in sorted(groups.items()):
            verdict = VERDICTS[-place]
            on_the_way = "a product overflows or underflows on the way"
            title = on_the_way if verdict == "range" else verdict
            if kind:
                title = f"as {ARITHMETICS[kind]} have it"
            rows += [(f"{title}:",), *(group if verdict == "right" else _merged(group))]
        lines = [f"{sum(f.fails for f, *_ in cases.values())} of {len(cases)} cases fail"]
        lines += self.formulas
        table = [row for row in rows if len(row) > 1]
        if rows:
            rows.insert(0, ("error/limit", "case", "result", "element", "got", "expected", ""))
        widths = [max(len(row[k]) for row in (rows[0], *table)) for k in range(6) if rows]
        for *cells, last in rows:
            sides = zip(cells, "><<<>>", widths, strict=False)
            aligned = [f"{cell:{side}{width}}" for cell, side, width in sides]
            whole = cells and not cells[4] and last  # a reason in place of an element
            lines.append("  ".join([*aligned[: 3 if whole else 6], last]).rstrip())
        legend = ["error/limit: up to 1 is rounding"] * any(row[0] != "-" for row in table)
        legend += ["+1: one more result fails"] * any("+" in row[2] for row in table)
        lines += ["; ".join(legend)] * bool(legend)
        if self.differing:
            first, *rest = self.differing
            names = first + f" and {len(rest)} more" * bool(rest)
            lines.append(f"not the same bits in every call: {names}")
        named = [] if self.formulas or len(self.as_if) > 3 else self.as_if  # more say nothing
        lines += [f"{'or ' * (k > 0)}as if {name}" for k, name in enumerate(named)]
        if not named and not self.formulas and any(f.has_wrong_numbers for f in self.findings):
            lines.append(
                "the smallest program that shows it: report.script(), bn-ext check --script"
            )
        return [*map(_core.escaped, lines), *[self.summary] * bool(cases)]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return self.summary or self.worst.reason


def _cells(finding: Finding, count: int) -> tuple[str, ...]:
    """A row; count: how many more results of the case have the verdict."""
    has_share = finding.share == finding.share and not finding.reason
    share, result = f"{finding.share:.3g}" if has_share else "-", finding.result
    head = share, finding.case, result + f" +{count}" * bool(count)
    if finding.reason or not finding.element:
        return *head, "", "", "", finding.reason
    element = f"[{', '.join(map(str, finding.element))}]"
    return *head, element, f"{finding.got:.6g}", f"{finding.expected:.6g}", finding.where


def _merged(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that say the same of several cases, once; numbers and addresses aside."""
    alike: dict[Any, list[tuple[str, ...]]] = {}
    for row in rows:
        text = re.sub(r"0x[\da-fA-F]+|(?<=an array, got ).*", "", row[6])
        text = re.sub(r"[\d, ]+", "", text)
        if row[4]:  # a place: is it a stretch of channels, rows, ...?
            text = "".join(re.findall("^(?:channel|row|sample|position)", row[6]))
        alike.setdefault((row[2].partition(" ")[0], text), []).append(row)
    return [
        (first[0], first[1] + f" and {len(others)} more" * bool(others), *first[2:])
        for first, *others in alike.values()
    ]


# ---- one call --------------------------------------------------------------------------


def message(error: BaseException) -> str:
    """What someone else's exception says, on one short line."""
    try:
        text = " ".join(str(error).split())[:100]
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def as_array(result: Any) -> Any:
    """The result as NumPy has it; TypeError if it is no array."""
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(result).__mro__):
        if str(result.dtype) == "torch.bfloat16":  # unknown to torch's NumPy arrays
            return result.detach().float().numpy(force=True).astype(dtype_of("bfloat16"))
        return result.numpy(force=True)
    if isinstance(result, np.ma.MaskedArray):
        raise TypeError("it has a mask")
    if hasattr(result, "__array__"):
        return np.asarray(result)
    if hasattr(result, "__dlpack__"):
        return np.from_dlpack(result)
    if callable(getattr(result, "numpy", None)):
        return np.asarray(result.numpy())
    raise TypeError("it is neither a NumPy array nor a tensor, and has no DLPack")


def is_real(array: Any) -> bool:
    """Has it floating-point numbers?"""
    return array.dtype.name in DTYPES or np.issubdtype(array.dtype, np.floating)


def call(
    function: Callable[..., Any], case: Case, places: Places | None = None
) -> dict[str, Any] | Finding:
    """What the function returned, by name; or what is wrong with the call."""

    def wrong(reason: str, verdict: str = "wrong") -> Finding:
        share = np.nan if verdict == "refused" else np.inf
        return Finding(case.name, "function", share, reason=reason, verdict=verdict)

    before = {name: a for name, a in {**case.arrays, **case.by_name}.items() if a is not None}
    copy = (places or Places()).copy
    passed = {name: copy(name, a) for name, a in before.items()}
    arrays = [passed.get(name) for name in case.arrays]
    try:
        with np.errstate(all="ignore"):
            by_name = {name: passed[name] for name in case.by_name}
            returned = function(*arrays, epsilon=case.epsilon, **by_name)
    except (Exception, SystemExit) as error:  # someone else's function may fail in any way
        of_none = isinstance(error, (TypeError, AttributeError, ctypes.ArgumentError))
        of_none = of_none and any(a is None for a in arrays)
        refused = of_none or isinstance(error, NotImplementedError)
        return wrong(f"raised {message(error)}", "refused" if refused else "raised")
    changed = [name for name, a in before.items() if a.tobytes() != passed[name].tobytes()]
    if changed:
        return wrong(f"wrote to {', '.join(changed)}")
    results = returned if isinstance(returned, (tuple, list)) else (returned,)
    is_alone = results is not returned and returned is not None
    names, running = case.results, case.kind.running
    if running and not is_alone and len(results) == 1 + len(running):
        names = names[:1] + running
    elif not is_alone and len(results) != len(names):
        got = "None" if returned is None else f"{len(results)} results"
        alone = f"{names[0]}, {', '.join(running)}, or dst alone" if running else "the first alone"
        return wrong(f"expected {', '.join(names)}, or {alone}, got {got}")
    return dict(zip(names, results, strict=False))


def judged(
    case: Case, results: Mapping[str, Any], arithmetic: str = "float32", exact: Exact | None = None
) -> list[Finding]:
    """Compare the results of a case with the exact ones."""
    exact, findings = solved(case) if exact is None else exact, []
    for name in [name for name in results if name in exact]:
        finding = compared(case, name, results[name], *exact[name], arithmetic)
        if finding.element and finding.fails and arithmetic != "double":
            mended = _in_range(case, exact, name, as_array(results[name]))
            verdict = compared(case, name, mended, *exact[name], arithmetic).verdict
            # What is weaker must be right without what left the range.
            if verdict != "wrong" and (finding.verdict == "wrong" or verdict == "right"):
                finding = finding._replace(verdict="range", arithmetic="")
        if name == "running_variance" and finding.verdict == "right":
            finding = _of_divisor(case, results, finding)
        findings.append(finding)
    return findings


def _of_divisor(case: Case, results: Mapping[str, Any], finding: Finding) -> Finding:
    """The running variance's, where it is right within its limits: of many elements, M and M - 1
    are so near that only the variance that was returned with it, of the same rounding, tells.
    """
    try:
        arrays = [as_array(results[name]) for name in ("variance", finding.result)]
    except (Exception, SystemExit):  # a foreign object may fail in any way
        return finding
    variance, new = (array.astype(np.float64) for array in arrays)
    if variance.shape != new.shape:
        return finding
    m, old = case.src.size // new.size, case.by_name[finding.result].astype(np.float64)
    kept, u = (1 - FACTOR) * old, unit(number_of(case.data))
    corrections = case.kind.correction or 0, 1 - (case.kind.correction or 0)
    with np.errstate(all="ignore"):
        right, other = (kept + FACTOR * variance * m / max(1, m - k) for k in corrections)
        room = 6 * u * (kept + FACTOR * variance)
        shows = abs(right - other) > 3 * room
        is_other = (abs(new - other) <= room)[shows]
    if is_other.size and is_other.all():
        names = ["n" if k == 0 else "n - 1" for k in corrections]
        reason = f"the variance is divided by {names[1]}; right: by {names[0]}"
        return Finding(case.name, finding.result, np.inf, reason=reason, verdict="wrong")
    return finding


def _in_range(case: Case, exact: Exact, name: str, array: Any) -> Any:
    """A result, made right where it is what an overflow or an underflow on the way leaves: no
    number, or what remains without a term that became 0, or lost digits as a subnormal number.
    """
    if name not in OF_PRODUCTS:
        return array
    with _core.DefaultMode():
        right, limits = exact[name]
        varied = Varied(case, exact)
        operands = case.by_channel(varied.arrays)
        leaves, lost = out_of_range(operands, number_of(case.data), name)
        mask, lost = case.like(right, leaves), case.like(right, lost)
        gone = mask & ~np.isfinite(array) & np.isfinite(right)
        for rest in remains(varied) if mask.any() else ():
            if name in rest:
                kind = array.dtype.name if array.dtype.name in DTYPES else "float64"
                room = limits[1] + half_ulp(rest[name], kind)
                near = distance(array, rest[name]) <= room
                near |= distance(array, right) <= lost * abs(rest[name] - right) + room
                gone |= mask & (array != 0) & near
        return np.where(gone, right, array).astype(array.dtype)


def compared(
    case: Case, name: str, result: Any, right: Any, limits: Any, arithmetic: str = "float32"
) -> Finding:
    """Compare a result with what is right, and its errors with the limits of each arithmetic."""

    def wrong(reason: str) -> Finding:
        return Finding(case.name, name, np.inf, reason=reason, verdict="wrong")

    try:
        array = as_array(result)
    except (Exception, SystemExit) as error:  # a foreign object may fail in any way
        shown = " ".join(_core.shown(result).split())[:40]
        return wrong(f"expected an array, got {shown}: {message(error)}")
    kind = array.dtype.name
    if kind not in DTYPES and not np.issubdtype(array.dtype, np.floating):
        hint = "; return result.view(src.dtype)" if (case.data, kind) == BITS else ""
        return wrong(f"expected floating-point numbers, got {kind}{hint}")
    if array.shape != right.shape:
        return wrong(f"expected shape {right.shape}, got {array.shape}")
    dtype, narrowest = DTYPES.get(kind, DTYPES["float64"]), DTYPES[case.least(name)]  # long double
    if dtype.unit > narrowest.unit or dtype.largest < narrowest.largest:
        return wrong(f"expected at least {narrowest.name}, like the data, got {kind}")
    is_wider = name in TENSORS and dtype.unit < DTYPES[case.data].unit
    wider = f"{kind} results of {case.data} data" if is_wider else ""
    if not array.size:
        return Finding(case.name, name, 0.0, arithmetic="double", wider=wider)
    kinds = ["double", "float32", "any", case.data][: len(limits)]
    asked = min([*ARITHMETICS].index(arithmetic), len(kinds) - 1)
    with _core.DefaultMode():
        got, finite = widened(array, wide_of(case.data)), np.isfinite(right)
        says = ~(np.isinf(limits) & (~np.isinf(right) | np.isinf(limits[0])))
        number = number_of(case.data)
        if dtype.unit > DTYPES[case.data if name in TENSORS else number].unit:
            limits = limits + np.where(finite, half_ulp(right, kind), 0)
        alike = (got == right) | (np.isnan(got) & np.isnan(right))
        alike = alike | (got == np.inf) & (right + limits >= dtype.largest)
        alike |= (got == -np.inf) & (right - limits <= -dtype.largest)
        alike |= np.isnan(got) & np.isinf(right) & np.isinf(limits)
        if name == "diff_src" and case.kind.is_training:  # of Inf in src: Inf of either sign
            infinite = np.isinf(np.asarray(case.src, np.float64))
            infinite = case.like(right, formulas.by_channel(infinite, case.axis).any(axis=1))
            alike |= infinite & (got == -right) & np.isinf(right) & np.isinf(limits)
        if name in ("mean", "running_mean"):  # of Inf: NaN or Inf
            alike |= ~np.isfinite(got) & ~finite
        share = np.asarray(distance(got, right) / limits, np.float64)
        share = np.where(np.isnan(share), np.inf, share)
        share = np.where(alike | ~says, 0, share)
        least = np.finfo(number).tiny
        small = abs(right) < least
        flushed = (got == 0) & (share[0] > 1) & small
        # If others are not, these were lost in another way.
        if (small & (got != 0) & (abs(got) < least)).any():
            share = np.where(flushed & np.isfinite(limits), share[0], share)
    kept = [not (shares > 1).any() for shares in share]
    fits = next((kind for kind, good in zip(kinds, kept, strict=True) if good), "")
    unsaid = ~says[asked] & ~(says[0] & (share[0] <= 1))
    if kept[asked] and unsaid.any():
        why = f"{ARITHMETICS[arithmetic]} may give anything"
        why = why if says[0].all() else "cannot be judged: too near to overflow"
        why += "" if unsaid.all() else " in part"
        return Finding(case.name, name, np.nan, reason=why, verdict="not judged", wider=wider)
    verdict = "right" if kept[asked] else "weaker" if any(kept) else "wrong"
    bad = share[-1 if verdict == "wrong" else asked] > 1
    most = np.where(bad, share[asked], -1) if bad.any() else share[asked]
    at = np.unravel_index(most.argmax(), most.shape)
    reason = FLUSHED if verdict != "wrong" and flushed.any() else ""
    return Finding(
        case.name, name, float(most[at]), tuple(map(int, at)), float(got[at]), float(right[at]),
        reason, verdict, fits, _place(bad, case.axis) if bad.any() else "", wider,
    )  # fmt: skip


def _place(bad: Any, axis: int) -> str:
    """Which elements: all, some channels, some rows, ..., or how many."""
    if bad.all():
        return "all"
    last = np.moveaxis(bad, axis, -1) if bad.ndim > 1 else bad[None]
    whole = last.reshape(len(last), -1, last.shape[-1])
    names = {2: "channel", 0: "row" if bad.ndim == 2 else "sample", 1: "position"}
    for kept, name in names.items():
        others = tuple({0, 1, 2} - {kept})
        if (whole.all(axis=others) == whole.any(axis=others)).all():
            return _span(name, whole.any(axis=others))
    count = f"{bad.sum()} of {bad.size}"
    channels = whole.any(axis=(0, 1))
    return count if channels.all() else f"{count}, in {_span('channel', channels)}"


def _span(name: str, mask: Any) -> str:
    (places,) = mask.nonzero()
    first, last = places[0], places[-1]
    if first == last:
        return f"{name} {first} of {mask.size}"
    if last - first + 1 == places.size:
        return f"{name}s {first} to {last} of {mask.size}"
    return f"{places.size} of {mask.size} {name}s"


# ---- all cases -----------------------------------------------------------------------------


@dataclass
class Trial:
    """Calls of a function, judged; and, for each result, the smallest case with wrong numbers."""

    function: Callable[..., Any]
    arithmetic: str = "float32"
    repeats: int = 1
    #: What the call before returned: case, result, the array, and its bytes then.
    returned: list[tuple[str, str, Any, bytes]] = field(default_factory=list)
    #: The variations that gave the wrong numbers of all cases before.
    left: list[str] | None = None
    #: Small cases without a fault, before the first that is wrong.
    right: list[tuple[Case, Exact]] = field(default_factory=list)
    #: The largest error, and its result.
    worst: tuple[float, str] = (-1.0, "")
    smallest: dict[str, tuple[Case, float]] = field(default_factory=dict)
    #: Ordinary cases, and what it returned.
    ordinary: list[tuple[Case, dict[str, Any]]] = field(default_factory=list)
    #: The first case in which it raised an error, or gave results that cannot be compared.
    failed: Case | None = None
    places: Places = field(default_factory=Places)

    def __post_init__(self) -> None:
        expected = f"one of {', '.join(ARITHMETICS)}"
        as_words("arithmetic", [self.arithmetic], ARITHMETICS.__contains__, expected)
        expected = "a whole number, 1 or more"
        self.repeats = _core.as_index(self.repeats, "repeats", expected, 1)

    def try_case(self, case: Case) -> Report:
        """What the calls with a case show. If numbers are wrong, or a small case is right, with the
        variations that are left.
        """
        worst: dict[tuple[str, str], Finding] = {}
        bits, exact, variations = set(), cache(partial(solved, case)), None
        for _ in range(self.repeats):
            results = call(self.function, case, self.places)
            findings = [
                Finding(name, result, np.inf, reason="a later call overwrites it", verdict="wrong")
                for name, result, array, before in self.returned
                if array.tobytes() != before and not self.places.hold(array)
            ]
            self.returned = []
            if isinstance(results, Finding):
                findings.append(results)
                if results.fails:
                    self.failed = self.failed or case
            else:
                findings += judged(case, results, self.arithmetic, exact())
                for name, result in results.items():
                    with suppress(Exception, SystemExit):  # judged() says why
                        array = as_array(result)
                        self.returned.append((case.name, name, array, array.tobytes()))
                rows = [row for row in self.returned if row[1] in exact()]
                arrays = {name: a for _, name, a, _ in rows if is_real(a)}
                for finding in findings:
                    finite = np.isfinite((finding.got, finding.expected)).all()
                    if finding.has_wrong_numbers and finite and self.left != []:
                        at = finding.result, finding.element
                        names = fitting(case, exact(), arrays, at, self.left)
                        self.left = variations = contradicted(names, self.right)
                        self.right = []
                bits.add(tuple(row[3] for row in self.returned))
            for finding in findings:
                key = finding.case, finding.result
                both = worst.get(key, finding), finding
                worst[key] = min(both, key=lambda f: (VERDICTS.index(f.verdict), -f.share))
        if case.src.size <= LARGE and self.returned and is_ordinary(case):
            self.ordinary.append((case, doubles(case, {row[1]: row[2] for row in self.returned})))
        for finding in worst.values():
            if finding.verdict == "wrong" and finding.reason.startswith("expected shape"):
                self.failed = self.failed or case
            if finding.has_wrong_numbers:
                self.worst = max(self.worst, (finding.share, finding.result))
                other, _ = self.smallest.get(finding.result, (case, 0))
                if case.src.size <= other.src.size:
                    self.smallest[finding.result] = case, finding.share
        is_right = all(finding.verdict == "right" for finding in worst.values())
        if is_right and 0 < case.src.size <= LARGE:
            if self.left is None:
                self.right.append((case, exact()))
            elif self.left:
                self.left = variations = contradicted(self.left, [(case, exact())])
        differing = [case.name] * (len(bits) > 1)
        left = [] if variations is None else [variations]
        return Report([*worst.values()], differing, variations=left)

    def formulas(self) -> list[str]:
        """What it computes in place of what is right, in words, where numbers are wrong; read off a
        few more calls.
        """
        case = next((case for case, _ in self.smallest.values()), self.failed)
        if case is None or any("exchanged" in name for name in self.left or ()):
            return []
        kind, dtype = case.kind, case.src.dtype
        names = [name for name in case.results if name in self.smallest]
        own = np.moveaxis(case.src, case.axis, -1).shape
        shapes = [[own] * max(3, -(-16 // own[-1]))] if case.is_own else [*SHAPES.values()]

        def returned(case: Case) -> dict[str, Any] | None:
            results = call(self.function, case)
            return None if isinstance(results, Finding) else doubles(case, results)

        def is_right(case: Case) -> bool:
            results = call(self.function, case)
            return not isinstance(results, Finding) and not any(
                finding.fails for finding in judged(case, results, self.arithmetic)
            )

        if self.failed and not case.is_own:
            turned = in_other_format(is_right, kind, dtype)
            if turned:
                return [turned]
        if not names or not case.src.size:
            return []
        found = read(returned, kind, dtype, names, shapes, self.ordinary)
        return ignored_statistics(returned, kind, dtype, shapes[0][0], found) + lines_of(found)

    def program(self, load: str = "") -> str:
        """The smallest program that shows the worst mistake, if numbers are wrong."""
        result = self.worst[1]
        if result not in self.smallest:
            return ""
        case, share = self.smallest[result]

        def fails(case: Case) -> bool:
            results = call(self.function, case)
            return not isinstance(results, Finding) and any(
                finding.has_wrong_numbers
                and finding.result == result
                and finding.share > min(100, share / 2)  # no cancellation that is hard to believe
                for finding in judged(case, results, self.arithmetic)
            )

        return program(self.function, case, result, fails, load)


def run(function: Callable[..., Any], cases: Iterable[Case], **options: Any) -> Report:
    """Call a function with each case, and judge what it returns; options as for `Trial`."""
    trial = Trial(function, **options)
    report = Report(maker=trial.program)
    with Progress() as progress:
        for count, case in enumerate(cases):
            progress.text = f"{count} cases, {case.name}"
            report.add(trial.try_case(case))
        report.settle()
        progress.text = f"{len(report.cases())} cases; which formula it computes"
        report.formulas.extend(trial.formulas())
    return report


def doubles(case: Case, results: Mapping[str, Any]) -> dict[str, Any]:
    """Results that have the shape that they should have."""
    arrays: dict[str, Any] = {}
    for name, result in results.items():
        with suppress(Exception, SystemExit):  # a foreign object may fail in any way
            array = as_array(result)
            shape = case.src.shape if name in TENSORS else (case.src.shape[case.axis],)
            if array.shape == shape and is_real(array):
                arrays[name] = array.astype(np.float64)
    return arrays
