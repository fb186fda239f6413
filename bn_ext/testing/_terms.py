"""Formulas as sums of terms: what they are made of, their values in a case, and their text.

A term is a number times factors, of which each channel (or group of elements) has one value, times
a product of elements: in `gamma * rstd * sum(diff_dst) / n`, of none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from bn_ext.testing._case import FACTOR, TENSORS, Case
from bn_ext.testing._exact import judged_arrays

# ---- over which elements sums go -----------------------------------------------------------


class Group(NamedTuple):
    """Elements that have sums of their own: which axes of (samples, rows, columns, channels) are
    summed.
    """

    name: str
    axes: tuple[int, ...]
    #: How many neighboring channels are summed: 1, some, or 0, all.
    channels: int = 1
    #: What normalization with such statistics is called.
    known_as: str = ""
    #: Are mean and variance those of the group, too, if the function makes them?
    has_statistics: bool = True
    #: Into how many groups channels are divided, or into as many of them as can be; 0: see above.
    groups: int = 0

    def size(self, channels: int) -> int:
        """How many of so many channels are summed; 0 if they cannot be divided so."""
        if self.groups:
            return channels // gcd(channels, self.groups)
        size = self.channels or channels
        return 0 if channels % size else size


CHANNEL = Group("each channel", (0, 1, 2))
GROUPS = (
    Group("each sample and channel", (1, 2), known_as="instance normalization"),
    Group("each position and channel", (0,)),
    Group("each row of the images and channel", (0, 2)),
    Group("each column of the images and channel", (0, 1)),
    Group("each sample, row of it and channel", (2,)),
    Group("each sample, column of it and channel", (1,)),
)
#: Of several channels: gamma differs within a group.
ACROSS = (
    Group("each sample", (1, 2), 0, "layer normalization"),
    Group("each position of each sample", (), 0, "layer normalization over the channels"),
    Group("each position", (0,), 0),
    Group("all elements", (0, 1, 2), 0),
    *(Group(f"each sample and {k} neighboring channels", (1, 2), k, "group normalization")
      for k in (2, 3, 4, 6, 8)),
    *(Group(f"each sample and of {k} groups of channels", (1, 2), 0, "group normalization",
            groups=k) for k in (2, 4, 8, 16, 32)),
)  # fmt: skip


#: Where a function lets the gradient of a ReLU pass, and which elements, or what shares of them,
#: that are.
GATES: dict[str, Callable[["Quantities"], Any]] = {
    "dst > 0": lambda q: _open(q),
    "everywhere": lambda q: np.ones(q.shape, bool),
    "dst <= 0": lambda q: ~_open(q),
    "src > 0": lambda q: q.of("src") > 0,
    "diff_dst > 0": lambda q: q.whole(q.arrays["diff_dst"]) > 0,
}
GATE = "dst > 0"


def leaky_gate(slope: float) -> str:
    """The name of a gate that lets a share pass elsewhere, too."""
    return f"where dst > 0, and {number_text(slope) or '1'} times elsewhere"


def gate_of(name: str) -> Callable[["Quantities"], Any]:
    """The gate of a name: one of GATES, or leaky."""
    if name in GATES:
        return GATES[name]
    slope = SLOPES[name]
    return lambda q: np.where(_open(q), 1.0, slope)


# ---- what terms are made of ----------------------------------------------------------------


class Quantities:
    """The values of factors and elements in a case, in shapes that broadcast with its tensors, as
    doubles; the channels are on the last of four axes.
    """

    def __init__(self, case: Case, group: Group = CHANNEL, gate: str = GATE) -> None:
        self.case, self.group, self.known = case, group, {}  # type: ignore[var-annotated]
        self.arrays: dict[str, Any] = {**case.arrays, **case.by_name}
        judged = judged_arrays(case)
        self.vectors = {**self.arrays, **{n: judged[n] for n in judged if n not in TENSORS}}
        self.gate, self.epsilon = gate, float(case.epsilon)
        self.shape: tuple[int, ...] = self.whole(case.src).shape
        self.batch, self.rows, self.columns, self.channels = self.shape
        self.positions = self.rows * self.columns
        self.n = prod(self.shape[axis] for axis in group.axes) * group.size(self.channels)

    def whole(self, array: Any) -> Any:
        """A tensor, with four axes."""
        last = np.moveaxis(np.asarray(array, np.float64), self.case.axis, -1)
        first, *plane, channels = last.shape
        plane = [*plane[:1], prod(plane[1:])] if plane else [1, 1]
        return last.reshape(first, *plane, channels)

    def sum(self, array: Any) -> Any:
        group = self.group
        array = np.broadcast_to(array, self.shape).sum(axis=group.axes, keepdims=True)
        if group.channels == 1:
            return array
        size = group.size(self.channels)
        parts = array.reshape(*array.shape[:-1], -1, size).sum(axis=-1)
        return np.repeat(parts, size, axis=-1)

    def of(self, name: str) -> Any:
        """A factor, or the elements of a tensor."""
        if name not in self.known:
            self.known[name] = self._of(name)
        return self.known[name]

    def _of(self, name: str) -> Any:
        if name in ELEMENTS:
            return ELEMENTS[name](self)
        if name in TENSORS:
            return self.whole(self.arrays[name])
        vector = self.vectors[name]
        if vector is None:
            return np.full((1, 1, 1, self.channels), float(name == "gamma"))
        return np.asarray(vector, np.float64).reshape(1, 1, 1, -1)

    def product(self, names: Iterable[str]) -> Any:
        """Of elements."""
        return prod((self.of(name) for name in names), start=np.ones((1, 1, 1, 1)))

    @property
    def of_batch(self) -> bool:
        """Are mean and variance made by the function?"""
        return self.case.kind.operation == "training" or self.case.kind.own_statistics

    @property
    def mean(self) -> Any:
        is_ours = self.of_batch and self.group.has_statistics
        return self.batch_mean if is_ours else self.of("mean")

    @property
    def variance(self) -> Any:
        is_ours = self.of_batch and self.group.has_statistics
        return self.batch_variance if is_ours else self.of("variance")

    @property
    def batch_mean(self) -> Any:
        return self.sum(self.of("src")) / self.n

    @property
    def batch_variance(self) -> Any:
        return self.sum((self.of("src") - self.batch_mean) ** 2) / self.n


def _open(q: Quantities) -> Any:
    """Where the ReLU lets the gradient pass."""
    return ~(q.of("dst") <= 0) if "dst" in q.arrays else np.ones(q.shape, bool)


def _gated(q: Quantities) -> Any:
    shares = gate_of(q.gate)(q)
    return np.where(shares, shares * q.whole(q.arrays["diff_dst"]), 0)


#: Elements of src's shape.
ELEMENTS: dict[str, Callable[[Quantities], Any]] = {
    "diff_dst": _gated,
    "closed": lambda q: np.where(_open(q), 0, q.whole(q.arrays["diff_dst"])),
    "open": lambda q: np.where(_open(q), 1.0, 0.0),
    "xc": lambda q: q.of("src") - q.mean,
    "src - mean(src)": lambda q: q.of("src") - q.batch_mean,
    "src + mean": lambda q: q.of("src") + q.mean,
    "xhat": lambda q: q.of("xc") / np.sqrt(q.variance + q.epsilon),
}
#: How elements are called in a text.
CALLED = {"closed": "diff_dst where the ReLU is closed", "open": "where the ReLU is open"}
CALLED |= {"src - mean(src)": "(src - mean(src))", "src + mean": "(src + mean)"}


@dataclass(frozen=True)
class Factor:
    """What each channel, or group of elements, has one value of."""

    text: str
    value: Callable[[Quantities], Any]
    #: How much it takes to believe in it.
    cost: float = 1.0
    #: Of a sum: the product whose sum it is.
    summed: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and other.text == self.text


def vector(name: str, cost: float = 1.0) -> Factor:
    return Factor(name, lambda q: q.of(name), cost)


def sum_of(*names: str, cost: float = 1.0) -> Factor:
    """The sum of a product of elements."""
    text = " * ".join(CALLED.get(name, name) for name in names)
    return Factor(f"sum({text})", lambda q: q.sum(prod(q.of(n) for n in names)), cost, names)


def total_of(*names: str, cost: float = 3.0) -> Factor:
    """The same, of all channels."""
    text = " * ".join(CALLED.get(name, name) for name in names)
    whole = Factor(
        f"sum over all axes({text})", lambda q: np.sum(prod(q.of(n) for n in names)), cost
    )
    return whole


def rstd_of(text: str, value: Callable[[Quantities], Any], cost: float = 2.5) -> Factor:
    return Factor(f"1 / {text}", lambda q: 1 / value(q), cost)


GAMMA, BETA, MEAN = vector("gamma"), vector("beta"), vector("mean", 1.5)
MEAN = replace(MEAN, value=lambda q: q.mean)
VARIANCE = Factor("variance", lambda q: q.variance, 1.5)
RSTD = rstd_of("sqrt(variance + epsilon)", lambda q: np.sqrt(q.variance + q.epsilon), 0.5)
#: What else gamma may be taken for.
GAMMAS = (
    (GAMMA, 1), (GAMMA, 2), (GAMMA, -1),
    (Factor("abs(gamma)", lambda q: abs(q.of("gamma")), 2), 1),
    (Factor("(1 + gamma)", lambda q: 1 + q.of("gamma"), 2.5), 1),
    (Factor("tanh(gamma)", lambda q: np.tanh(q.of("gamma")), 3), 1),
    (Factor("sigmoid(gamma)", lambda q: 1 / (1 + np.exp(-q.of("gamma"))), 3), 1),
    (Factor("softplus(gamma)", lambda q: np.log1p(np.exp(q.of("gamma"))), 3), 1),
    (Factor("exp(gamma)", lambda q: np.exp(q.of("gamma")), 3), 1),
    (Factor("sqrt(abs(gamma))", lambda q: np.sqrt(abs(q.of("gamma"))), 3), 1),
)  # fmt: skip


def _unbiased(q: Quantities) -> Any:
    return q.variance * q.n / max(1, q.n - 1)


def _mean_square(q: Quantities) -> Any:
    return q.variance + q.mean**2


#: What else may stand in rstd's place.
DEVIATIONS = (
    RSTD,
    rstd_of("(sqrt(variance) + epsilon)", lambda q: np.sqrt(q.variance) + q.epsilon, 2),
    rstd_of("sqrt(variance)", lambda q: np.sqrt(q.variance), 2),
    rstd_of("sqrt(variance * n / (n - 1) + epsilon)", lambda q: np.sqrt(_unbiased(q) + q.epsilon)),
    rstd_of("(sqrt(variance * n / (n - 1)) + epsilon)", lambda q: np.sqrt(_unbiased(q)) + q.epsilon,
            3.5),
    rstd_of("sqrt(variance * n / (n - 1))", lambda q: np.sqrt(_unbiased(q)), 3.5),
    rstd_of("sqrt(mean(src**2) + epsilon)", lambda q: np.sqrt(_mean_square(q) + q.epsilon)),
    rstd_of("sqrt(mean(src**2))", lambda q: np.sqrt(_mean_square(q)), 3.5),
    rstd_of("sqrt(max(variance, epsilon))", lambda q: np.sqrt(np.maximum(q.variance, q.epsilon))),
    rstd_of("max(sqrt(variance), epsilon)", lambda q: np.maximum(np.sqrt(q.variance), q.epsilon)),
    rstd_of("(sqrt(variance + epsilon) + epsilon)",
            lambda q: np.sqrt(q.variance + q.epsilon) + q.epsilon, 3.5),
    rstd_of("sqrt(sqrt(variance + epsilon))", lambda q: (q.variance + q.epsilon) ** 0.25, 3.5),
    rstd_of("cbrt(variance + epsilon)", lambda q: np.cbrt(q.variance + q.epsilon), 3.5),
    rstd_of("sqrt(epsilon)", lambda q: np.sqrt(q.epsilon) + 0 * q.variance, 3.5),
    rstd_of("(mean(abs(src - mean)) + epsilon)",
            lambda q: q.sum(abs(q.of("xc"))) / q.n + q.epsilon, 4),
    rstd_of("mean(abs(src - mean))", lambda q: q.sum(abs(q.of("xc"))) / q.n, 4),
    Factor("variance", lambda q: q.variance, 2),
    Factor("mean", lambda q: q.mean, 3),
)  # fmt: skip
#: Where statistics are given: those of src itself.
OWN_MEAN = Factor("mean(src)", lambda q: q.batch_mean, 2)
OWN = (
    rstd_of("sqrt(var(src) + epsilon)", lambda q: np.sqrt(q.batch_variance + q.epsilon)),
    rstd_of("sqrt(var(src))", lambda q: np.sqrt(q.batch_variance), 3.5),
    Factor("var(src)", lambda q: q.batch_variance, 2.5),
)


def _added(q: Quantities) -> Any:
    """What is normalized if src_1 is added first."""
    return q.of("src") + q.of("src_1")


def _mean_with(q: Quantities) -> Any:
    return q.sum(_added(q)) / q.n


def _variance_with(q: Quantities) -> Any:
    return q.sum((_added(q) - _mean_with(q)) ** 2) / q.n


ADDED = (
    rstd_of("sqrt(var(src + src_1) + epsilon)", lambda q: np.sqrt(_variance_with(q) + q.epsilon)),
)
ADDED_MEANS = (Factor("mean(src + src_1)", _mean_with, 2),)


def _new(name: str) -> Callable[[Quantities], Any]:
    """New running statistics, as the function should return them."""

    def value(q: Quantities) -> Any:
        batch = q.batch_mean
        if name == "running_variance":
            batch = q.batch_variance * q.n / max(1, q.n - (q.case.kind.correction or 0))
        return (1 - FACTOR) * q.of(name) + FACTOR * batch

    return value


RUNNING_MEANS = vector("running_mean", 2), Factor("new running_mean", _new("running_mean"), 2)
RUNNING = (
    rstd_of("sqrt(running_variance + epsilon)",
            lambda q: np.sqrt(q.of("running_variance") + q.epsilon)),
    rstd_of("sqrt(new running_variance + epsilon)",
            lambda q: np.sqrt(_new("running_variance")(q) + q.epsilon)),
)  # fmt: skip


class Count(NamedTuple):
    """What a term is divided by or multiplied with."""

    text: str
    value: Callable[[Quantities], float]
    cost: float


COUNTS = (
    Count("", lambda q: 1.0, 0),
    Count(" / n", lambda q: 1 / q.n, 0.5),
    Count(" / (n - 1)", lambda q: 1 / max(1, q.n - 1), 1),
    Count(" / len(src)", lambda q: 1 / q.batch, 1),
    Count(" / n**2", lambda q: 1 / q.n**2, 1),
    Count(" * n", lambda q: q.n, 1),
    Count(" / positions", lambda q: 1 / q.positions, 1.5),
    Count(" / channels", lambda q: 1 / q.channels, 1.5),
    Count(" / (n * channels)", lambda q: 1 / (q.n * q.channels), 1.5),
    Count(" * n / (n - 1)", lambda q: q.n / max(1, q.n - 1), 1.5),
    Count(" * (n - 1) / n", lambda q: (q.n - 1) / q.n, 1.5),
    Count(" / (n + 1)", lambda q: 1 / (q.n + 1), 2),
    Count(" * n / (n + 1)", lambda q: q.n / (q.n + 1), 2.5),
    Count(" * n / (n - 2)", lambda q: q.n / max(1, q.n - 2), 2.5),
    Count(" / (n - 2)", lambda q: 1 / max(1, q.n - 2), 2),
    Count(" / sqrt(n)", lambda q: q.n**-0.5, 2),
    Count(" * sqrt(n)", lambda q: q.n**0.5, 2),
    Count(" / (len(src) - 1)", lambda q: 1 / max(1, q.batch - 1), 2),
    Count(" * positions", lambda q: q.positions, 2),
    Count(" * len(src)", lambda q: q.batch, 2),
    Count(" / (n * (n - 1))", lambda q: 1 / (q.n * max(1, q.n - 1)), 2),
    Count(" / (n * len(src))", lambda q: 1 / (q.n * q.batch), 2),
    Count(" / src.shape[1]", lambda q: 1 / q.rows, 2),
    Count(" / src.shape[2]", lambda q: 1 / q.columns, 2),
    Count(" * (n - 1)", lambda q: q.n - 1.0, 2),
    Count(" * (n - 1) / n**2", lambda q: (q.n - 1) / q.n**2, 2),
    Count(" * (1 + 1 / n)", lambda q: 1 + 1 / q.n, 3),
    Count(" / n**3", lambda q: q.n**-3.0, 3),
)
ALONE, OVER_N = COUNTS[:2]
COUNT_OF = {count.text: count for count in COUNTS}

# ---- terms and formulas --------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    number: float
    factors: tuple[tuple[Factor, int], ...] = ()
    count: Count = ALONE
    #: The product of elements; () is 1.
    elements: tuple[str, ...] = ()

    def coefficient(self, q: Quantities) -> Any:
        """All but the elements."""
        factors = [factor.value(q) ** power for factor, power in self.factors]
        return self.number * self.count.value(q) * prod(factors, start=np.float64(1))

    def times(self, *factors: tuple[Factor, int], number: float = 1.0) -> "Term":
        """With more factors."""
        total: dict[Factor, int] = {}
        for factor, power in (*self.factors, *factors):
            total[factor] = total.get(factor, 0) + power
        kept = tuple((factor, power) for factor, power in total.items() if power)
        return replace(self, factors=kept, number=self.number * number)

    def replaced(self, old: Factor, new: Iterable[tuple[Factor, int]]) -> "Term":
        """With other factors in a factor's place."""
        power = dict(self.factors).get(old, 0)
        return self.times((old, -power), *((factor, p * power) for factor, p in new))

    def value(self, q: Quantities) -> Any:
        return self.coefficient(q) * q.product(self.elements)

    @property
    def cost(self) -> float:
        total = sum(f.cost * abs(power) ** 0.5 for f, power in self.factors) + self.count.cost
        return float(total + cost_of(self.number))

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it the same term as another."""
        factors = sorted((factor.text, power) for factor, power in self.factors)
        return round(self.number, 9), tuple(factors), self.count.text, self.elements


def term(text: str, *elements: str, count: Count = ALONE, number: float = 1.0) -> Term:
    """A term of factors with powers, such as "gamma rstd**3"."""
    powers: dict[Factor, int] = {}
    for word in text.split():
        name, _, power = word.partition("**")
        powers[NAMED[name]] = powers.get(NAMED[name], 0) + int(power or 1)
    return Term(number, tuple(powers.items()), count, elements)


#: Sums of a gradient, and of a double backward.
NAMED = {"gamma": GAMMA, "rstd": RSTD, "beta": BETA, "mean": MEAN, "variance": VARIANCE}
NAMED |= {"h": vector("diff_diff_gamma"), "k": vector("diff_diff_beta")}
NAMED |= {
    "dy": sum_of("diff_dst"), "dyx": sum_of("diff_dst", "xc"), "g": sum_of("diff_diff_src"),
    "gx": sum_of("diff_diff_src", "xc"), "dyg": sum_of("diff_dst", "diff_diff_src"),
}  # fmt: skip
N2 = COUNT_OF[" / n**2"]


def right_terms(case: Case) -> dict[str, list[Term]]:
    """{result: the terms of its right formula}, channel by channel."""
    kind = case.kind
    if kind.is_forward:
        terms = {"dst": [term("gamma rstd", "xc"), term("beta")]}
        terms["dst"] += [term("", "src_1")] * kind.add
        if kind.operation == "training":
            terms |= {"mean": [term("mean")], "variance": [term("variance")]}
        correction = COUNT_OF[" * n / (n - 1)"] if kind.correction else ALONE
        for name, count in (("mean", ALONE), ("variance", correction)):
            if f"running_{name}" in kind.running:
                old = Term(1 - FACTOR, ((vector(f"running_{name}"), 1),))
                terms[f"running_{name}"] = [old, term(name, count=count, number=FACTOR)]
        return terms
    if kind.operation == "backward":
        terms = {"diff_src": [term("gamma rstd", "diff_dst")]}
        if kind.is_training:
            terms["diff_src"] += [
                term("gamma rstd dy", count=OVER_N, number=-1),
                term("gamma rstd**3 dyx", "xc", count=OVER_N, number=-1),
            ]
        terms |= {"diff_gamma": [term("rstd dyx")], "diff_beta": [term("dy")]}
        return {**terms, "diff_src_1": [term("", "diff_dst")]}
    terms = {"diff_src": [term("h rstd", "diff_dst")]}
    terms["diff_diff_dst"] = [term("gamma rstd", "diff_diff_src")]
    terms["diff_gamma"] = [term("rstd dyg")]
    if kind.is_training:
        terms["diff_src"] += [
            term("gamma rstd**3 gx", "diff_dst", count=OVER_N, number=-1),
            term("gamma rstd**3 dyx", "diff_diff_src", count=OVER_N, number=-1),
            term("gamma rstd**3 g dy", "xc", count=N2),
            term("gamma rstd**3 dyg", "xc", count=OVER_N, number=-1),
            term("gamma rstd**5 dyx gx", "xc", count=N2, number=3),
            term("h rstd**3 dyx", "xc", count=OVER_N, number=-1),
            term("gamma rstd**3 gx dy", count=N2),
            term("gamma rstd**3 dyx g", count=N2),
            term("h rstd dy", count=OVER_N, number=-1),
        ]
        terms["diff_diff_dst"] += [
            term("gamma rstd g", count=OVER_N, number=-1),
            term("gamma rstd**3 gx", "xc", count=OVER_N, number=-1),
        ]
        terms["diff_gamma"] += [
            term("rstd g dy", count=OVER_N, number=-1),
            term("rstd**3 dyx gx", count=OVER_N, number=-1),
        ]
    terms["diff_diff_dst"] += [term("h rstd", "xc"), term("k")]
    return terms


def merged(terms: Iterable[Term]) -> list[Term]:
    """With one term where several have the same factors, and none where they cancel."""
    numbers: dict[Term, float] = {}
    for term in terms:
        alike = next((other for other in numbers if other.key[1:] == term.key[1:]), term)
        numbers[alike] = numbers.get(alike, 0) + term.number
    whole = []
    for term, number in numbers.items():
        simple = plain(number, 1e-9)
        if abs(number) > 1e-9:
            whole.append(replace(term, number=float(f"{number:.5g}") if simple is None else simple))
    return whole


def value_of(terms: Iterable[Term], q: Quantities) -> tuple[Any, Any]:
    """The sum of the terms, in the shape of src; and that of their sizes."""
    values = [np.broadcast_to(term.value(q), q.shape) for term in terms]
    zero = np.zeros(q.shape)
    return sum(values, start=zero), sum(map(abs, values), start=zero)


# ---- numbers -------------------------------------------------------------------------------

#: Numbers that people write, and their texts.
PLAIN = {1.0: "", 2.0: "2", 3.0: "3", 4.0: "4", 5.0: "5", 6.0: "6", 8.0: "8", 10.0: "10"}
PLAIN |= {0.5: "1/2", 0.25: "1/4", 1 / 3: "1/3", 2 / 3: "2/3", 0.75: "3/4", 1.5: "3/2"}
PLAIN |= {
    0.05: "1/20",
    0.3: "3/10",
    0.125: "1/8",
    0.2: "1/5",
    0.1: "1/10",
    0.9: "9/10",
    0.01: "1/100",
    0.99: "99/100",
}
PLAIN |= {2.0**0.5: "sqrt(2)", 0.5**0.5: "1/sqrt(2)"}


def plain(number: float, room: float) -> float | None:
    """The number that people write which is that near, if there is one."""
    size = abs(number)
    near = [known for known in PLAIN if abs(known - size) <= room]
    return (
        float(np.copysign(min(near, key=lambda known: abs(known - size)), number)) if near else None
    )


def number_text(number: float) -> str:
    """Of its size."""
    return PLAIN.get(abs(number), f"{abs(number):.4g}")


#: Shares that leaky gradients let pass where the ReLU is closed.
SLOPES = {leaky_gate(slope): slope for slope in (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5)}


def cost_of(number: float) -> float:
    size = abs(number)
    return 0.0 if size == 1 else 1.0 if size in PLAIN else 3.0


# ---- deviations that are read ----------------------------------------------------------------

#: What may stand in epsilon's place, apart from a number and a count.
EPSILONS: tuple[tuple[str, Callable[[Quantities], float]], ...] = (
    ("epsilon", lambda q: q.epsilon),
    ("", lambda q: 1.0),
    ("epsilon**2", lambda q: q.epsilon**2),
    ("sqrt(epsilon)", lambda q: q.epsilon**0.5),
)


def inner_of(
    text: str, of_call: Callable[[Quantities], float], number: float, count: Count, *,
    is_epsilon: bool,
) -> tuple[str, Callable[[Quantities], Any]]:  # fmt: skip
    """The text and the value of what stands in the place of epsilon, or of the variance."""
    size = number_text(number)
    if is_epsilon:
        words = f"{size} * {text}" if text and size else text or size or "1"
        value: Callable[[Quantities], Any] = lambda q: number * count.value(q) * of_call(q)  # noqa: E731
    else:
        words = f"{size} * variance" if size else "variance"
        value = lambda q: number * count.value(q) * q.variance  # noqa: E731
    return "-" * (number < 0) + words + count.text, value


def deviation_with(text: str, words: str, inner: Callable[[Quantities], Any]) -> Factor:
    """The inverse of a deviation, of a text with a gap for what was read."""
    outside, power = text.startswith("("), 2 if "**2" in text else 1

    def value(q: Quantities) -> Any:
        if "variance" in text:
            return np.sqrt(q.variance) + inner(q) if outside else np.sqrt(q.variance + inner(q))
        return np.sqrt(inner(q) ** power + q.epsilon * text.count("epsilon"))

    return rstd_of(text.format(words).replace("+ -", "- "), value, 4)
