"""What formula a function computes, read off its results.

Batch normalization is linear in known terms. So in each channel of a few calls with ordinary data,
a result is fitted with the elements of its terms by least squares; `_naming` names each
coefficient, one number per channel. A formula that is read must fit all cases of ordinary data.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES
from bn_ext.testing._case import TENSORS, Case, Kind
from bn_ext.testing._cases import Draw, random_case
from bn_ext.testing._formula import LEAKY, OUTER, Formula, size_of
from bn_ext.testing._naming import FLOOR, Best, Candidates, Namer, Powers, Samples, Values
from bn_ext.testing._terms import (
    ACROSS,
    ADDED_MEANS,
    BETA,
    CHANNEL,
    COUNTS,
    DEVIATIONS,
    GAMMA,
    GATE,
    GATES,
    GROUPS,
    MEAN,
    NAMED,
    OVER_N,
    OWN_MEAN,
    RSTD,
    RUNNING_MEANS,
    SLOPES,
    Count,
    Factor,
    Group,
    Quantities,
    Term,
    merged,
    right_terms,
    sum_of,
)  # fmt: skip

# ---- calls -------------------------------------------------------------------------------------

#: Shapes, channels last, for each number of axes: n, batch and each axis differ, n is small once.
SHAPES = {
    4: ((3, 2, 4, 12), (5, 4, 3, 16), (2, 9, 7, 8)),
    2: ((24, 12), (60, 16), (126, 8)),
    5: ((3, 2, 2, 2, 12), (5, 2, 3, 2, 16), (2, 9, 1, 7, 8)),
    3: ((3, 8, 12), (5, 12, 16), (2, 63, 8)),
}
#: Of each call, and the powers of ten that its channels' deviations lie between: in the last, some
#: variances are far below a usual epsilon.
EPSILONS, DECADES = (0.25, 0.6, 1e-3), ((-0.5, 0.5), (-0.5, 0.5), (-2.5, -1.0))


def probes(kind: Kind, dtype: Any, shapes: Iterable[tuple[int, ...]]) -> list[Case]:
    """Cases of ordinary numbers, whose channels, samples and positions differ."""
    return [
        random_case(kind, f"reading {k}", shape, dtype, partial(_draw, kind=kind, place=k % 3))
        for k, shape in enumerate(shapes)
    ]


def _draw(draw: Draw, kind: Kind, place: int) -> None:
    rng, channels = draw.rng, draw.src.shape[-1]
    draw.epsilon = EPSILONS[place]

    def signed(low: float, high: float) -> Any:
        return rng.uniform(low, high, channels) * rng.choice([-1.0, 1.0], channels)

    def along(axis: int) -> Any:
        shape = [1] * draw.src.ndim
        shape[axis] = draw.src.shape[axis]
        return rng.standard_normal(shape)

    low, high = DECADES[place]
    if draw.dtype == np.float16:  # which ends at 65504
        low, draw.epsilon = max(low, -1.2), max(0.02, EPSILONS[place])
    scale = 10 ** rng.permutation(np.linspace(low, high, channels))
    x, dy, g = rng.standard_normal((3, *draw.src.shape))
    for axis in range(draw.src.ndim - 1):
        x = x * (1 + 0.3 * along(axis)) + 0.3 * along(axis)
    draw.src = (x + signed(0.5, 2)) * scale
    draw.diff_dst = dy + signed(0.3, 1) + 0.3 * x + 0.3 * along(0)
    draw.diff_diff_src = g + signed(0.3, 1) - 0.2 * x
    draw.src_1 = rng.standard_normal(draw.src.shape)
    for name in ("gamma", "beta", "diff_diff_gamma", "diff_diff_beta", "running_mean"):
        setattr(draw, name, signed(0.5, 2))
    draw.running_variance = rng.uniform(0.5, 3, channels)
    of_mean, of_variance = rng.uniform(0.5, 2, (2, channels))

    def given(draw: Draw) -> None:
        if kind.operation == "inference" or not kind.is_training:  # far from those of src
            draw.mean = (of_mean * scale).astype(draw.number)
            draw.variance = (of_variance * scale**2).astype(draw.number)

    draw.spoil = given


def is_ordinary(case: Case) -> bool:
    """Are all numbers of usual size, and would a mistake of a formula show in each channel?"""
    if not case.src.size or case.exact_sums:
        return False
    with _core.DefaultMode():
        return _is_usual(case)


def _is_usual(case: Case) -> bool:
    for array in (*case.arrays.values(), *case.by_name.values()):
        if array is None:
            return False
        sizes = abs(np.asarray(array, np.float64))
        least = sizes[sizes > 0].min(initial=1) if sizes.ndim == 1 else sizes.max()
        if not (np.isfinite(sizes).all() and sizes.max() < 2.0**20 and least > 2.0**-20):
            return False
    q = Quantities(case)
    mean, spread = q.batch_mean**2, q.batch_variance
    shows = (spread > 1e-6 * (1 + mean)) & (mean < 100 * spread)
    return q.n > 2 and case.epsilon > 0 and bool(shows.all())


# ---- least squares -----------------------------------------------------------------------------

#: Samples that say something; fewer may agree by chance.
MANY = 8

Elements = tuple[str, ...]


def noise_of(data: str) -> float:
    """How far off ordinary results may be, relative to their terms."""
    return max(5e-5, 2 * DTYPES[data].unit)


def fitted(
    samples: Samples, results: Sequence[Any], elements: Sequence[Elements], noise: float,
    where: Sequence[Any] | None = None,
) -> dict[Elements, Values] | None:  # fmt: skip
    """The coefficients of products of elements; None if a result is no sum of them. `where`: masks
    of the elements that count.
    """
    values, rooms = [], []
    for k, (q, result) in enumerate(zip(samples.quantities, results, strict=True)):
        columns = [samples.parts(np.broadcast_to(q.product(names), q.shape)) for names in elements]
        masks = np.ones(q.shape, bool) if where is None else where[k]
        rows = zip(samples.parts(result), samples.parts(masks), np.stack(columns, -1), strict=True)
        for wanted, mask, matrix in rows:
            one = _least_squares(matrix[mask], wanted[mask], noise)
            if one is None:
                return None
            values.append(one[0])
            rooms.append(one[1])
    found = {
        n: Values(*both)
        for n, *both in zip(elements, np.array(values).T, np.array(rooms).T, strict=True)
    }
    known = all(np.isfinite(one.room).sum() >= MANY for one in found.values())
    return found if known else None


def _least_squares(matrix: Any, wanted: Any, noise: float) -> tuple[Any, Any] | None:
    """Coefficients, and how far off they may be; None if the rest is more than rounding."""
    rows, columns = matrix.shape
    if not (np.isfinite(wanted).all() and np.isfinite(matrix).all()):  # such as of 0 / 0
        return np.zeros(columns), np.full(columns, np.inf)
    norms = np.sqrt((matrix**2).sum(axis=0))
    scaled = matrix / np.where(norms > 0, norms, 1)
    if rows < columns + 3 or np.linalg.cond(scaled) > 1e4:
        return np.zeros(columns), np.full(columns, np.inf)
    inverse = np.linalg.pinv(scaled)
    solution = inverse @ wanted
    left = scaled @ solution - wanted
    size = np.sqrt((((scaled * solution) ** 2).sum(axis=1) + wanted**2).mean())
    if np.sqrt((left**2).mean()) > noise * size:
        return None
    of_rows = max(np.sqrt((left**2).sum() / (rows - columns)), 1e-8 * size)
    room = 8 * np.sqrt((inverse**2).sum(axis=1)) * of_rows
    return solution / norms, (room + FLOOR * abs(solution) + 1e-6 * size * rows**0.5) / norms


# ---- one result --------------------------------------------------------------------------------

#: The products of elements that a result of an operation may have as terms; so many are usual.
ELEMENTS_OF: dict[tuple[str, str], tuple[int, list[Elements]]] = {
    ("backward", "diff_src"): (3, [
        ("diff_dst",), (), ("xc",), ("xc", "xc"), ("diff_dst", "xc"), ("diff_dst", "xc", "xc")]),
    ("backward", "diff_src_1"): (3, [("diff_dst",), (), ("xc",)]),
    ("double_backward", "diff_src"): (4, [
        ("diff_dst",), ("diff_diff_src",), (), ("xc",), ("xc", "xc"), ("diff_dst", "xc"),
        ("diff_diff_src", "xc"), ("diff_dst", "diff_diff_src")]),
    ("double_backward", "diff_diff_dst"): (3, [
        ("diff_diff_src",), (), ("xc",), ("diff_dst",), ("diff_diff_src", "xc")]),
}  # fmt: skip
#: Of results that are sums of terms, some of which have no name.
UNNAMED = "unnamed"


class Reader:
    """Reads formulas off the results of a few calls."""

    def __init__(self, cases: Sequence[Case], results: Sequence[dict[str, Any]]) -> None:
        self.cases, self.results, self.kind = cases, results, cases[0].kind
        self.right, self.noise = right_terms(cases[0]), noise_of(cases[0].data)
        self.known: dict[tuple[Group, str], Samples] = {}
        #: What stands in rstd's place in the results that were read before.
        self.known_deviations: dict[Factor, None] = {}
        self.groups = [*GROUPS, *ACROSS]
        if self.kind.own_statistics:
            self.groups += [group._replace(has_statistics=False) for group in self.groups]
        self.gates = [*GATES, *SLOPES] if self.kind.relu and not self.kind.is_forward else [GATE]

    def formulas(self, names: Sequence[str]) -> list[Formula]:
        """Those of these results that can be read: first of vectors, whose sums round less; then
        once more of those that could not, with what stands in rstd's place in the others.
        """
        found: dict[str, Formula] = {}
        order = sorted(names, key=TENSORS.__contains__)
        for count, name in enumerate((*order, *order)):
            if name in found or (count >= len(order) and not self.known_deviations):
                continue
            with _core.DefaultMode(), suppress(np.linalg.LinAlgError):
                formula = self.formula(name)
                if formula is not None:
                    is_gated = self.kind.relu and not self.kind.is_forward
                    found[name] = replace(formula, is_gated=is_gated)
                    self.known_deviations |= dict.fromkeys(formula.deviations)
        return [found[name] for name in names if name in found]

    def formula(self, name: str) -> Formula | None:
        """That of a result, if it can be read."""
        got = [results[name] for results in self.results]
        if name not in TENSORS:
            return self._vector(name, got)
        samples = self._samples(CHANNEL)
        whole = [q.whole(a) for q, a in zip(samples.quantities, got, strict=True)]
        if name == "dst" and self.kind.relu:
            right = tuple(self.right[name])
            found = self._with_outer(Formula(name, right, right), whole)
            if found is not None:
                return found
        read = self._forward if name == "dst" else self._gradient
        for group in (CHANNEL, *(group for group in self.groups if group.channels == 1)):
            gates = self.gates if group is CHANNEL else [GATE]
            answers = [read(name, whole, group, gate) for gate in gates]
            for answer in answers:
                if isinstance(answer, Formula):
                    return answer
            if UNNAMED in answers:  # so it is in smaller groups
                break
        return self._of_groups(name, whole)

    def _samples(self, group: Group, gate: str = GATE) -> Samples:
        key = group, gate
        if key not in self.known:
            self.known[key] = Samples([Quantities(case, group, gate) for case in self.cases])
        return self.known[key]

    def _namer(self, samples: Samples, name: str) -> Namer:
        return Namer(samples, self.kind, name, [*self.known_deviations])

    def _fits(self, formula: Formula, whole: Sequence[Any]) -> bool:
        both = zip(self.cases, whole, strict=True)
        return all(formula.fits(case, result, self.noise) for case, result in both)

    def _vector(self, name: str, got: Sequence[Any]) -> Formula | None:
        """Of a result with one number per channel."""
        value = np.concatenate([a.ravel() for a in got])
        finite = np.isfinite(value)
        for gate in self.gates if finite.sum() >= MANY else ():
            samples = self._samples(CHANNEL, gate)
            room = 1e-5 * abs(value) + 4e-6 * samples.joined(lambda q: size_of(name, q))
            value, room = np.where(finite, value, 0), np.where(finite, room, np.inf)
            found: dict[Elements, Values] = {(): Values(value, room)}
            terms = self._named(found, self.right[name], self._namer(samples, name))
            if terms is not None:
                formula = Formula(name, tuple(terms), tuple(self.right[name]), gate=gate)
                # Where it is no number, the formula must have none, either.
                return formula if finite.all() or self._fits(formula, got) else None
        return None

    def _gradient(
        self, name: str, whole: Sequence[Any], group: Group, gate: str
    ) -> Formula | str | None:
        samples, (usual, elements) = (
            self._samples(group, gate),
            ELEMENTS_OF[self.kind.operation, name],
        )
        others = elements
        if self.kind.relu:
            others = [*elements[:usual], ("open",), ("open", "xc")]
            others += [("closed",)] * (gate != "dst <= 0")
        for some in (elements[:usual], others):
            found = fitted(samples, whole, some, self.noise)
            if found is not None:
                break
        else:
            return None
        right = self.right[name]
        terms = self._named(found, right, self._namer(samples, name))
        return UNNAMED if terms is None else Formula(name, tuple(terms), tuple(right), group, gate)

    def _named(
        self, found: dict[Elements, Values], right: Sequence[Term], namer: Namer
    ) -> list[Term] | None:
        """The terms that have these coefficients: the right ones, the right ones with something
        else throughout, or whatever terms each coefficient has.
        """
        for change in _substitutions(namer):
            terms = change(right)
            if {term.elements for term in terms} <= {*found} and all(
                namer.is_sum_of(wanted, [term for term in terms if term.elements == names])
                for names, wanted in found.items()
            ):
                return terms
        whole: list[Term] = []
        for names, wanted in found.items():
            of_names = namer.coefficient(wanted, [t for t in right if t.elements == names])
            if of_names is None:
                return None
            whole += [replace(term, elements=names) for term in of_names]
        return whole

    # ---- a forward pass

    def _forward(
        self, name: str, whole: Sequence[Any], group: Group, gate: str
    ) -> Formula | str | None:
        right, samples, answer = self.right[name], self._samples(group), None
        for added_last in (False, True)[: 1 + (self.kind.add and self.kind.relu)]:
            usual: list[Elements] = [("xc",), ()]
            results, where = whole, None
            if added_last:
                pairs = zip(samples.quantities, whole, strict=True)
                results = [result - q.of("src_1") for q, result in pairs]
            else:
                usual += [("src_1",)] * self.kind.add
            if self.kind.relu:  # above 0, it is a line
                where = [result > 0 for result in results]
            for elements in (usual, [*usual, ("xc", "xc")]):
                found = fitted(samples, results, elements, self.noise, where)
                if found is not None:
                    break
            else:
                continue
            namer = self._namer(samples, name)
            kept = [term for term in right if not (added_last and "src_1" in term.elements)]
            terms = self._named_forward(found, kept, namer)
            if terms is None:
                answer = UNNAMED
                continue
            if added_last:
                terms += right[2:]
            formula = Formula(name, tuple(terms), tuple(right), group, added_last=added_last)
            return self._with_outer(formula, whole) or UNNAMED
        return answer

    def _named_forward(
        self, found: dict[Elements, Values], right: Sequence[Term], namer: Namer
    ) -> list[Term] | None:
        slope = namer.coefficient(found["xc",], right[:1])
        shift = None if slope is None else self._shift(found[()], slope, right[1:2], namer)
        if shift is None:
            return self._named(found, right, namer)
        terms = [replace(term, elements=("xc",)) for term in slope or ()] + shift
        for names in [*found][2:]:
            others = namer.coefficient(found[names], [t for t in right if t.elements == names])
            if others is None:
                return None
            terms += [replace(term, elements=names) for term in others]
        return terms

    def _shift(
        self, wanted: Values, slope: Sequence[Term], beta: Sequence[Term], namer: Namer
    ) -> list[Term] | None:
        """What is added: beta, or another; and the slope times what the mean is too large by."""
        if len(slope) != 1 or wanted.is_zero or namer.is_sum_of(wanted, beta):
            return namer.coefficient(wanted, beta)
        (line,), samples = slope, namer.samples
        best: Best[list[Term]] = Best()
        line = replace(line, elements=())
        factor, mean = samples.value([line])[0], samples.joined(lambda q: q.mean)
        without_gamma = line.times((GAMMA, -dict(line.factors).get(GAMMA, 0)))
        offsets: list[list[Term]] = [
            [*beta], [], [Term(-1, ((BETA, 1),))], [Term(1, ((GAMMA, 1),))],
            [Term(1, ((GAMMA, 1), (BETA, 1)))], [Term(2, ((BETA, 1),))],
            [line.times((BETA, 1))], [without_gamma.times((BETA, 1))],
        ]  # fmt: skip
        for price, offset in enumerate(offsets):
            rest = wanted.less(*samples.value(offset))
            # rest = factor * (mean - what is subtracted from src)
            subtracted = Values(
                mean - rest.value / factor, rest.room / abs(factor) + FLOOR * abs(mean)
            )
            for center in self._centers(subtracted, namer):
                found = [*offset, line.times((MEAN, 1))]
                if center is not None:
                    less = line.times(*center.factors, number=-center.number)
                    found.append(replace(less, count=center.count))
                best.add(price + (center.cost if center else 0), merged(found))
        return namer.coefficient(wanted, beta) if best.found is None else best.found

    def _centers(self, wanted: Values, namer: Namer) -> Iterator[Term | None]:
        """What may be subtracted from src; None: nothing."""
        if wanted.is_zero:
            yield None
        means = [MEAN, *([] if namer.samples.quantities[0].of_batch else [OWN_MEAN])]
        means += RUNNING_MEANS if self.kind.running else ()
        means += ADDED_MEANS if self.kind.add and namer.samples.quantities[0].of_batch else ()
        others: list[Powers] = [(), *(((RSTD, power),) for power in (-1, -2, 1))]
        centers: list[Powers] = [*(((factor, 1),) for factor in means), ((MEAN, 2),)]
        parts = centers, others, [(), ((GAMMA, -1),)]
        found = Candidates(namer.samples, parts).found(wanted)
        if found is not None:
            yield found

    def _with_outer(self, formula: Formula, whole: Sequence[Any]) -> Formula | None:
        """With what stands in the ReLU's place, if that makes it fit."""
        names = [*OUTER][: None if self.kind.relu else 1]
        if self.kind.relu:
            names += self._slopes(formula, whole)
        for outer in names:
            other = replace(formula, outer=outer)
            if self._fits(other, whole):
                return other
        return None

    def _slopes(self, formula: Formula, whole: Sequence[Any]) -> list[str]:
        """The name of a ReLU whose slope below 0 is that of the first call."""
        inner, _ = replace(formula, outer="no ReLU", added_last=False).value(self.cases[0])
        below = inner < -0.1 * abs(inner).max()
        if not below.any() or formula.added_last:
            return []
        slope = float(np.median(whole[0][below] / inner[below]))
        return [LEAKY.format(slope)] if 1e-4 < abs(slope) < 100 and slope != 1 else []

    # ---- other groups

    def _of_groups(self, name: str, whole: Sequence[Any]) -> Formula | None:
        """The right formula with statistics, or sums, of other elements."""
        right = self.right[name]
        changes: list[Callable[[Sequence[Term]], list[Term]]] = [list]
        if self.kind.operation == "backward" and name == "diff_src":
            right = _with_xhat(right)
            changes.append(_with_gamma_inside)
        for group in self.groups:
            factors = DEVIATIONS[:6] if name == "dst" else (RSTD,)
            for factor, change in itertools.product(factors, changes):
                terms = change([term.replaced(RSTD, ((factor, 1),)) for term in right])
                formula = Formula(name, tuple(terms), tuple(right), group)
                if self._fits(formula, whole):
                    return formula
        return None


def _with_xhat(terms: Sequence[Term]) -> list[Term]:
    """With rstd in the sums, where a group has several channels."""
    dyx, dyxhat = NAMED["dyx"], sum_of("diff_dst", "xhat")
    return [
        replace(term.times((dyx, -1), (dyxhat, 1), (RSTD, -2)), elements=("xhat",))
        if term.elements == ("xc",) else term
        for term in terms
    ]  # fmt: skip


def _with_gamma_inside(terms: Sequence[Term]) -> list[Term]:
    """With gamma in the sums, as in the gradient of layer normalization."""
    changes = [
        (NAMED["dy"], sum_of("gamma", "diff_dst")),
        (sum_of("diff_dst", "xhat"), sum_of("gamma", "diff_dst", "xhat")),
    ]
    for old, new in changes:
        terms = [
            term.replaced(old, ((new, 1),)).times((GAMMA, -1))
            if old in dict(term.factors)
            else term
            for term in terms
        ]
    return [*terms]


def _substitutions(namer: Namer) -> Iterator[Callable[[Sequence[Term]], list[Term]]]:
    """Nothing, and then changes of all terms at once."""

    def of_factor(old: Factor, new: Powers) -> Callable[[Sequence[Term]], list[Term]]:
        return lambda terms: [term.replaced(old, new) for term in terms]

    yield list
    for factor in namer.deviations:
        for power in (1, 2, -1):
            yield of_factor(RSTD, ((factor, power),))
    for powers in namer.gammas:
        yield of_factor(GAMMA, powers)
    for count in COUNTS:
        yield partial(_divided, count=count)


def _divided(terms: Sequence[Term], count: Count) -> list[Term]:
    return [replace(term, count=count) if term.count is OVER_N else term for term in terms]


# ---- all results -------------------------------------------------------------------------------

#: What a function returns in a case, as doubles: results of other shapes are left out. None if it
#: returns nothing.
Call = Callable[[Case], dict[str, Any] | None]


def read(
    call: Call, kind: Kind, dtype: Any, wrong: Iterable[str],
    shapes: Iterable[Sequence[tuple[int, ...]]] = SHAPES.values(),
    ordinary: Sequence[tuple[Case, dict[str, Any]]] = (),
) -> list[Formula]:  # fmt: skip
    """The formulas of these results that can be read, and that fit all ordinary cases."""
    for some in shapes:
        cases = probes(kind, dtype, some)
        results = [found for found in map(call, cases) if found]
        if len(results) < len(cases):
            continue
        reader = Reader(cases, results)
        names = [name for name in wrong if all(name in found for found in results)]
        formulas = reader.formulas(names)
        return [formula for formula in formulas if _fits_all(formula, ordinary, reader.noise)]
    return []


def _fits_all(
    formula: Formula, ordinary: Iterable[tuple[Case, dict[str, Any]]], noise: float
) -> bool:
    with _core.DefaultMode():
        for case, results in ordinary:
            q = Quantities(case)
            # What samples and positions are where there is no plane, nobody says.
            if formula.result in results and (formula.group is CHANNEL or q.positions > 1):
                result = results[formula.result]
                if not formula.fits(case, result if result.ndim == 1 else q.whole(result), noise):
                    return False
    return True


def ignored_statistics(
    call: Call, kind: Kind, dtype: Any, shape: tuple[int, ...], found: Iterable[Formula]
) -> list[str]:
    """That a function returns the same for other statistics than those of src, which it is given,
    and has those of src: a result that depends on them is right, or a formula that was found has
    their deviation. Where they are not src's, formulas have those that it takes.
    """
    if kind.is_forward or kind.own_statistics or not kind.is_training:
        return []
    (case,) = probes(kind, dtype, [shape])
    other = {name: 2 * case.arrays[name] for name in ("mean", "variance")}
    one, two = call(case), call(replace(case, arrays={**case.arrays, **other}))
    if not (one and two and _bits(one) == _bits(two)):
        return []
    right = right_terms(case)
    formulas = [Formula(name, *2 * (tuple(right[name]),)) for name in one]
    of_statistics = [formula for formula in formulas if formula.deviations]
    has_own = any(formula.deviations for formula in found)
    if has_own or any(_fits_all(f, [(case, one)], noise_of(case.data)) for f in of_statistics):
        return [
            "the given mean and variance are ignored; own_statistics=True judges by those of src"
        ]
    return []


def _bits(results: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in results.items()}


#: Data formats for a number of axes, channels last and on axis 1.
FORMATS = {3: ("NWC", "NCW"), 4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}


def in_other_format(is_right: Callable[[Case], bool], kind: Kind, dtype: Any) -> str:
    """What to pass, if the function takes the channels on the other axis."""
    to_first = kind.data_format == "NXC"
    other = replace(kind, data_format="NCX" if to_first else "NXC")
    for axes in [kind.axes] if kind.axes else FORMATS:
        if axes in FORMATS and all(map(is_right, probes(other, dtype, SHAPES[axes]))):
            word = FORMATS[axes][to_first] if kind.axes else other.data_format
            where = "axis 1" if to_first else "the last axis"
            return f'it takes the channels on {where}: pass data_format="{word}"'
    return ""
