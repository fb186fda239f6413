"""The formula that a function was found to compute: its value in a case, and its text beside the
right one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bn_ext._dtypes import DTYPES
from bn_ext.testing._case import RUNNING, TENSORS, Case
from bn_ext.testing._terms import (
    ALONE,
    CHANNEL,
    GAMMA,
    GATE,
    RSTD,
    Factor,
    Group,
    Quantities,
    Term,
    number_text,
    value_of,
)  # fmt: skip


def _leaky(slope: float) -> Callable[[Any, Quantities], Any]:
    return lambda z, q: np.where(z < 0, slope * z, z)


#: What a forward pass may do in place of max(0, ...): its name, and the function.
OUTER: dict[str, Callable[[Any, Quantities], Any]] = {
    "max(0, ...)": lambda z, q: np.where(z <= 0, 0, z),
    "no ReLU": lambda z, q: z,
    "abs(...)": lambda z, q: abs(z),
    "min(0, ...)": lambda z, q: np.minimum(z, 0),
    "min(max(0, ...), 6)": lambda z, q: np.clip(z, 0, 6),
    "max(0, ...) before beta is added": (
        lambda z, q: np.maximum(0, z - q.of("beta")) + q.of("beta")),
}  # fmt: skip
RELU = next(iter(OUTER))
LEAKY = "a ReLU with slope {:.4g} below 0"


def outer_of(name: str) -> Callable[[Any, Quantities], Any]:
    """The function of a name: one of OUTER, or with a slope that was read."""
    return OUTER[name] if name in OUTER else _leaky(float(name.split()[4]))


@dataclass(frozen=True)
class Formula:
    """What a function computes for a result, where its data is ordinary."""

    result: str
    terms: tuple[Term, ...]
    right: tuple[Term, ...]
    #: Over which elements sums go.
    group: Group = CHANNEL
    #: Where a gradient passes the ReLU: one of GATES.
    gate: str = GATE
    #: One of OUTER, or LEAKY, of a forward pass with a ReLU.
    outer: str = RELU
    #: Is src_1 added behind the ReLU?
    added_last: bool = False
    #: Is it a gradient through a ReLU?
    is_gated: bool = False

    @property
    def is_right(self) -> bool:
        usual = self.group is CHANNEL and self.gate == GATE and not self.added_last
        return usual and self.outer == RELU and not any(self.differing)

    @property
    def deviations(self) -> list[Factor]:
        """What stands for rstd in its terms."""
        return [f for term in self.terms for f, _ in term.factors if is_deviation(f)]

    @property
    def differing(self) -> tuple[list[Term], list[Term]]:
        """The terms that are not right, and the right ones that are missing."""
        ours, theirs = ({term.key for term in terms} for terms in (self.terms, self.right))
        return (
            [term for term in self.terms if term.key not in theirs],
            [term for term in self.right if term.key not in ours],
        )

    def value(self, case: Case) -> tuple[Any, Any]:
        """What it gives in a case, and the sizes of its terms: with four axes, or by channel."""
        q = Quantities(case, self.group, self.gate)
        if self.result not in TENSORS:
            shape = 1, 1, 1, q.channels
            values = [np.broadcast_to(term.coefficient(q), shape).ravel() for term in self.terms]
            size = np.broadcast_to(size_of(self.result, q), shape).ravel()
            return sum(values, start=0 * size), sum(map(abs, values), start=size)
        last = [term for term in self.terms if self.added_last and "src_1" in term.elements]
        value, size = value_of([term for term in self.terms if term not in last], q)
        if case.kind.relu and case.kind.is_forward:
            value = outer_of(self.outer)(value, q)
        added, size_of_added = value_of(last, q)
        return value + added, size + size_of_added

    def fits(self, case: Case, got: Any, noise: float) -> bool:
        """Does it give a result, but for rounding?"""
        if not self.group.size(case.src.shape[case.axis]):
            return False
        with np.errstate(all="ignore"):
            value, size = self.value(case)
            size = size + np.max(size, where=np.isfinite(size), initial=0) * 1e-3
            dtype = DTYPES[case.data]
            known = abs(value) < dtype.largest / 2
            room = 4 * (noise * size + dtype.smallest)
            return bool((abs(got - value) <= room)[known].all())


def size_of(name: str, q: Quantities) -> Any:
    """What the rounding errors of a vector are relative to."""
    rstd = 1 / np.sqrt(q.variance + q.epsilon)
    if name == "diff_beta":
        return q.sum(abs(q.of("diff_dst")))
    if name == "diff_gamma":
        other = "xc" if q.case.kind.operation == "backward" else "diff_diff_src"
        return q.sum(abs(q.of("diff_dst") * q.of(other))) * rstd
    deviation = np.sqrt(q.batch_variance)
    if name.endswith("mean"):
        return abs(q.batch_mean) + deviation
    return q.batch_variance + 0.1 * q.batch_mean**2 + (0.1 * deviation if q.epsilon < 0.01 else 0)


# ---- text ------------------------------------------------------------------------------------

#: No line is longer, but for a term that is.
WIDTH = 118


def lines_of(formulas: Sequence[Formula]) -> list[str]:
    """What is computed and what is right, for each formula that is not right."""
    lines: list[str] = []
    wrong = [formula for formula in formulas if not formula.is_right]
    # One line says what rstd is where nothing else differs.
    by_rstd: dict[Factor, list[str]] = {}
    for formula in wrong:
        factor = rstd_of(formula)
        if factor is not None and factor != RSTD:
            by_rstd.setdefault(factor, []).append(formula.result)
    for factor, names in by_rstd.items():
        heads = [f"{', '.join(names)}: rstd = ", "right: rstd = "]
        width = max(map(len, heads))
        lines += [f"{head:>{width}}{f.text}" for head, f in zip(heads, (factor, RSTD), strict=True)]
    notes: dict[str, list[str]] = {}
    for formula in wrong:
        for note in Text(formula).notes():
            notes.setdefault(note, []).append(formula.result)
    lines += [f"{', '.join(names)}: {note}" for note, names in notes.items()]
    for formula in wrong:
        lines += Text(formula).lines()
    said = " ".join(lines)
    known = {
        "rstd": f"rstd = {RSTD.text}", "xhat": "xhat = (src - mean) * rstd",
        "n": "n: the elements of a channel", "positions": "positions: n / len(src)",
        "gated": f"gated = diff_dst * ({GATE})",
    }  # fmt: skip
    if any(formula.gate != GATE for formula in wrong):
        known["gated"] = "gated: what of diff_dst passes the ReLU"
    if any(formula.group is not CHANNEL for formula in wrong):
        known["n"] = "n: the elements of a sum"
    if by_rstd:
        del known["rstd"]
    words = {*re.findall(r"\w+", said), *["rstd"] * ("xhat" in said)}
    legend: list[str] = []
    for text in (text for name, text in known.items() if name in words):
        if legend and len(f"{legend[-1]}; {text}") <= WIDTH:
            legend[-1] += f"; {text}"
        else:
            legend.append(text)
    return [*lines, *legend]


def rstd_of(formula: Formula) -> Factor | None:
    """What stands for rstd in all terms, if it is one thing, with powers as they should be."""
    factors = {*formula.deviations}
    if len(factors) != 1 or formula.result in ("mean", "variance", *RUNNING):
        return None
    return next(iter(factors))


def is_deviation(factor: Factor) -> bool:
    return factor.text.startswith("1 / ")


class Text:
    """The lines of a formula."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.is_forward = formula.result in ("dst", "mean", "variance", *RUNNING)
        self.of_statistics = formula.result in ("mean", "variance", *RUNNING)
        self.rstd = rstd_of(formula) or RSTD

    def lines(self) -> list[str]:
        formula, name = self.formula, self.formula.result
        name = f"new {name}" if name in RUNNING else name
        lines: list[str] = []
        # With the same thing for rstd, which has a line of its own.
        ours = self.in_order([self.with_rstd(term) for term in formula.terms])
        ours = _with_ungated(ours) if formula.gate == GATE else ours
        kept = {term.key for term in formula.right}
        wrong = [term for term in ours if term.key not in kept]
        missing = [t for t in formula.right if t.key not in {term.key for term in ours}]
        if not wrong and not missing:
            return lines
        if self.as_written(ours, [])[1]:  # another is subtracted from src
            missing += [t for t in formula.right if t.elements == ("xc",) and t not in missing]
        heads = [f"{name} = ", "right: "]
        width = max(map(len, heads))
        sums = [self.sum(ours, wrong), self.sum(formula.right, missing)]
        if sums[0].inside == sums[1].inside and sums[0].outside != sums[1].outside:
            sums = [sum_.with_outside_marked() for sum_ in sums]
        if any(len(sum_.text) + width > WIDTH for sum_ in sums):
            return [*lines, *self.parts(name, wrong, missing, len(ours) - len(wrong))]
        for head, (text, marks) in zip(heads, ((s.text, s.marks) for s in sums), strict=True):
            lines.append(f"{head:{width}}{text}")
            if marks.strip():
                lines.append(f"{'':{width}}{marks}".rstrip())
        return lines

    def parts(
        self, name: str, wrong: Sequence[Term], missing: Sequence[Term], rest: int
    ) -> Iterable[str]:
        """The lines of a long formula: its terms that differ, if they are few."""
        if wrong and missing:
            heads = f"{name} has ", "in place of "
        else:
            heads = f"{name} has, too, ", f"{name} lacks "
        width = max(map(len, heads)) if wrong and missing else 0
        for head, terms in zip(heads, (wrong, missing), strict=True):
            if not terms:
                continue
            text = self.sum(terms, []).text
            if len(text) + width > WIDTH and len(terms) > 1:
                text = f"{self.sum(terms[:1], []).text} ... ({len(terms)} such terms)"
            yield f"{head:{width}}{text}"
        if rest:
            yield f"{rest} other term{'s are' if rest > 1 else ' is'} right"

    def notes(self) -> Iterable[str]:
        formula = self.formula
        if formula.group is not CHANNEL:
            group = formula.group
            what = "mean and variance" if self.is_forward and group.has_statistics else "sums"
            known = f", as in {group.known_as}" if group.known_as else ""
            yield f"{what} of {group.name}{known}; right: of each channel"
        if formula.outer != RELU:
            yield f"{formula.outer}; right: {RELU}"
        if formula.gate != GATE:
            alone = formula.gate == "everywhere" or "times" in formula.gate
            where = formula.gate if alone else f"where {formula.gate}"
            yield f"diff_dst passes the ReLU {where}; right: where {GATE}"
        if formula.added_last:
            yield "src_1 is added behind the ReLU; right: before it"

    def in_order(self, terms: Sequence[Term]) -> list[Term]:
        """As the right ones: those of the same factors, then those of the same elements."""
        right = self.formula.right

        def place(term: Term) -> tuple[int, int]:
            alike = [
                k
                for k, other in enumerate(right)
                if other.key[1] == term.key[1] and other.elements == term.elements
            ]
            near = [k for k, other in enumerate(right) if other.elements == term.elements]
            return (alike or near or [len(right)])[0], not alike

        return sorted(terms, key=place)

    def with_rstd(self, term: Term) -> Term:
        factors = tuple((RSTD if f == self.rstd else f, power) for f, power in term.factors)
        return replace(term, factors=factors)

    # ---- a sum of terms

    def sum(self, terms: Sequence[Term], marked: Sequence[Term]) -> "Sum":
        """The text, and ^ below the terms that are marked."""
        terms, marked = self.as_written(terms, marked)
        if not terms:
            return Sum("", "0", "")
        powers = [dict(t.factors).get(RSTD, 0) for t in terms if not _atoms(t)]
        reserved = 0 if self.is_forward else max(0, min(powers, default=0))
        products = [self.product(term, reserved) for term in terms]
        common = Counter(products[0].scale)
        for product in products[1:]:
            common &= Counter(product.scale)
        outside = [word for word in products[0].scale if word in common]
        if len(terms) == 1 or not outside or self.is_forward:
            outside = []
        turned = bool(outside) and terms[0].number < 0  # then the sign stands outside, too
        numbers = {abs(term.number) for term in terms}
        if outside and len(numbers) == 1 and numbers != {1.0}:
            outside.insert(0, number_text(numbers.pop()))
            products = [replace(product, number="") for product in products]
        text, marks = "", ""
        for place, (term, product) in enumerate(zip(terms, products, strict=True)):
            sign = "-" if (term.number < 0) != turned else "+"
            lead = f"{sign} " if place else "-" * (sign == "-")
            piece = lead + product.without(outside)
            mark = "^" if any(term is other for other in marked) else " "
            text, marks = text + piece, marks + mark * len(piece)
            if place < len(terms) - 1:
                text, marks = text + " ", marks + " "
        return Sum("-" * turned + " * ".join(outside), text, marks)

    def as_written(self, terms: Sequence[Term], marked: Sequence[Term]) -> tuple[Any, Any]:
        """With what is subtracted from src in one term, src - mean."""
        slope = next((term for term in terms if term.elements == ("xc",)), None)
        if self.of_statistics or (slope and not self.is_forward and len(slope.factors) < 3):
            return terms, marked
        if slope is None:
            return terms, marked
        center: list[tuple[float, str]] = [(1.0, "mean")]
        kept: list[Term] = []
        moved: list[Term] = []
        for term in terms:
            rest = _without(term, slope) if term.elements == () else None
            if rest is None:
                kept.append(term)
                continue
            moved.append(term)
            center.append((-rest.number, self.product(replace(rest, number=1.0)).text))
        totals: dict[str, float] = {}
        for number, name in center:
            totals[name] = totals.get(name, 0) + number
        if not moved and not self.is_forward:
            return terms, marked
        parts = [(number, name) for name, number in totals.items() if abs(number) > 1e-9]
        words = "src"
        for number, name in parts:
            product = " * ".join([*filter(None, [number_text(number)]), name])
            words += f" {'-' if number > 0 else '+'} {product}"
        slope_now = replace(slope, elements=(f"({words})" if parts else words,))
        is_marked = any(slope is other for other in marked) or bool(moved)
        kept = [slope_now if term is slope else term for term in kept]
        marks = [term for term in marked if any(term is other for other in kept)]
        return kept, [*marks, *[slope_now] * is_marked]

    # ---- a product

    def product(self, term: Term, reserved: int = 0) -> "Product":
        """Its words; so many powers of rstd stay outside xhat."""
        factors = dict(term.factors)
        power = factors.pop(RSTD, 0)
        free = power - reserved
        sums = [(f, p) for f, p in factors.items() if f.summed]
        scale = [
            self.factor(f, p)
            for f, p in factors.items()
            if not f.summed and p > 0 and not is_deviation(f)
        ]
        below = [
            self.factor(f, -p)
            for f, p in factors.items()
            if not f.summed and p < 0 and not is_deviation(f)
        ]
        for factor, p in factors.items():
            if is_deviation(factor):
                (below if p > 0 else scale).append(self.deviation(factor, abs(p)))

        def scaled(name: str) -> str:
            nonlocal free, power
            if name != "xc" or free <= 0 or self.is_forward:
                return self.element(name)
            free, power = free - 1, power - 1
            return self.element("xhat")

        elements = [scaled(name) for name in term.elements]
        inner: list[str] = []
        for factor, p in sums:
            for _ in range(abs(p)):
                words = f"sum({' * '.join(map(scaled, factor.summed))})"
                (inner if p > 0 else below).append(words)
        if power and self.of_statistics:
            (below if power > 0 else scale).append(self.deviation(RSTD, abs(power)))
        elif power:
            parts = (reserved, power - reserved) if 0 < reserved < power else (power,)
            for part in parts:
                (scale if part > 0 else below).append(_power("rstd", abs(part)))
        count = term.count.text
        return Product(number_text(term.number), scale, [*elements, *inner], below, count)

    def deviation(self, factor: Factor, power: int) -> str:
        """A power of what the factor is the inverse of."""
        text = self.named(factor.text.removeprefix("1 / "))
        if text.startswith("sqrt(") and power % 2 == 0:
            text, power = text.removeprefix("sqrt"), power // 2
            if re.fullmatch(r"\w+(\([^()]*\))?", text[1:-1]):  # one thing
                text = text[1:-1]
        return _power(text, power)

    def factor(self, factor: Factor, power: int) -> str:
        text = self.named(factor.text)
        if factor.text.startswith("mean(") or factor.text.startswith("var("):
            text = factor.text
        return _power(text, power)

    def named(self, text: str) -> str:
        """Statistics that are results are those of src."""
        if self.formula.is_gated:
            return re.sub(r"\bdiff_dst\b", "gated", text)
        if not self.of_statistics or "running" in text:
            return text
        return {"mean": "mean(src)"}.get(text, text.replace("variance", "var(src)"))

    def element(self, name: str) -> str:
        if name.startswith("("):
            return name
        known = {"xc": "(src - mean)", "src - mean(src)": "(src - mean(src))"}
        known |= {
            "src + mean": "(src + mean)",
            "open": "(dst > 0)",
            "closed": "diff_dst * (dst <= 0)",
            "ungated": "diff_dst",
        }
        if self.formula.is_gated:  # diff_dst alone is the argument
            is_short = self.formula.result == "diff_src_1" and self.formula.gate == GATE
            known["diff_dst"] = f"diff_dst * ({GATE})" if is_short else "gated"
        return known.get(name, name)


def _with_ungated(terms: Sequence[Term]) -> list[Term]:
    """With all of diff_dst where what passes the ReLU and what does not have the same factors."""
    kept = [*terms]
    for term in terms:
        if term.elements == ("diff_dst",):
            others = [t for t in kept if t.key == replace(term, elements=("closed",)).key]
            if others:
                kept[kept.index(term)] = replace(term, elements=("ungated",))
                kept.remove(others[0])
    return kept


def _atoms(term: Term) -> int:
    """How many xc a term has, that rstd makes xhat."""
    return [*term.elements, *(name for f, _ in term.factors for name in f.summed)].count("xc")


@dataclass
class Sum:
    """What stands before a parenthesis, and in it; ^ below terms that differ."""

    outside: str
    inside: str
    below: str

    @property
    def text(self) -> str:
        return f"{self.outside} * ({self.inside})" if self.outside else self.inside

    @property
    def marks(self) -> str:
        return " " * (len(self.text) - len(self.inside) - bool(self.outside)) + self.below

    def with_outside_marked(self) -> "Sum":
        """If the rest is alike."""
        indent = len(self.outside) + len(" * (")
        return Marked(self.outside, self.inside, "^" * len(self.outside) + " " * indent)


class Marked(Sum):
    @property
    def marks(self) -> str:
        return "^" * len(self.outside)


@dataclass
class Product:
    """The words of a term."""

    number: str
    #: Factors that may stand before a parenthesis.
    scale: list[str]
    inner: list[str]
    below: list[str]
    count: str

    def without(self, outside: Sequence[str]) -> str:
        left = Counter(outside)
        scale = []
        for word in self.scale:
            if left[word]:
                left[word] -= 1
            else:
                scale.append(word)
        words = [word for word in (self.number, *scale, *self.inner) if word]
        text = " * ".join(words) or "1"
        return text + "".join(f" / {word}" for word in self.below) + self.count

    @property
    def text(self) -> str:
        return self.without(())


def _power(text: str, power: int) -> str:
    if power == 1:
        return text
    return f"{text}**{power}" if text.isidentifier() or text.endswith(")") else f"({text})**{power}"


def _without(term: Term, slope: Term) -> Term | None:
    """The term divided by the slope, if it is the slope times a few factors."""
    factors = dict(term.factors)
    for factor, power in slope.factors:
        factors[factor] = factors.get(factor, 0) - power
    rest = tuple((f, p) for f, p in factors.items() if p)
    means = [f for f, p in rest if "mean" in f.text and p == 1]
    others = {f for f, _ in rest} - {*means, RSTD, GAMMA}
    if len(means) != 1 or others or slope.count.text not in ("", term.count.text):
        return None
    return Term(term.number / slope.number, rest, ALONE if slope.count.text else term.count)
