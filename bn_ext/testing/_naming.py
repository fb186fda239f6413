"""Names of coefficients: which factors, with which number and divisor, give a row of numbers.

A row has a number for each sample: a channel, or group of elements, of one of a few calls. In all
samples a name must give the number, but for rounding.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from bn_ext._dtypes import DTYPES
from bn_ext.testing._case import TENSORS, Kind
from bn_ext.testing._terms import (
    ADDED,
    ALONE,
    BETA,
    COUNT_OF,
    COUNTS,
    DEVIATIONS,
    EPSILONS,
    GAMMA,
    GAMMAS,
    MEAN,
    NAMED,
    OVER_N,
    OWN,
    OWN_MEAN,
    RSTD,
    RUNNING,
    Count,
    Factor,
    Quantities,
    Term,
    cost_of,
    deviation_with,
    inner_of,
    merged,
    plain,
    sum_of,
    total_of,
    vector,
)  # fmt: skip

#: The relative error of a coefficient of float32 arithmetic.
FLOOR = 2e-5
#: What one more term costs.
OF_TERM = 1.5
#: Pairs of products that are looked at more closely.
MOST_PAIRS = 200

Powers = tuple[tuple[Factor, int], ...]


class Samples:
    """The values of factors in all groups of all calls, one after the other."""

    def __init__(self, quantities: Sequence[Quantities]) -> None:
        self.quantities, self.group = quantities, quantities[0].group
        #: How far off a factor may be that is the same in all samples.
        self.floor = max(FLOOR, DTYPES[quantities[0].case.data].unit / 8)
        self.known: dict[tuple[str, int], Any] = {}
        sizes = [int(np.prod(self.shape_of(q))) for q in quantities]
        ends = np.cumsum(sizes)
        #: Those of each call.
        self.blocks = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def shape_of(self, q: Quantities) -> tuple[int, ...]:
        return tuple(1 if axis in self.group.axes else size for axis, size in enumerate(q.shape))

    def joined(self, value: Callable[[Quantities], Any]) -> Any:
        return np.concatenate(
            [np.broadcast_to(value(q), self.shape_of(q)).ravel() for q in self.quantities]
        )

    def of(self, powers: Powers) -> Any:
        """The value of a product of factors."""
        product = self.joined(lambda q: 1.0)
        for factor, power in powers:
            key = factor.text, power
            if key not in self.known:
                self.known[key] = self.joined(factor.value) ** float(power)
            product = product * self.known[key]
        return product

    def value(self, terms: Sequence[Term]) -> tuple[Any, Any]:
        """The sum of the terms' coefficients, and that of their sizes."""
        zero = self.joined(lambda q: 0.0)
        values = [self.joined(term.coefficient) for term in terms]
        return sum(values, start=zero), sum(map(abs, values), start=zero)

    def parts(self, array: Any) -> Any:
        """(samples, elements of each), of a tensor of one call."""
        axes = self.group.axes
        moved = np.moveaxis(array, axes, range(-len(axes), 0))
        return moved.reshape(-1, int(np.prod([array.shape[axis] for axis in axes])))


@dataclass
class Values:
    """A number for each sample, and how far off it may be; Inf: nothing is known."""

    value: Any
    room: Any

    def __post_init__(self) -> None:
        most = np.max(self.room, where=np.isfinite(self.room), initial=0)
        self.room = np.maximum(self.room, 1e-9 * most or 1)  # so that weights stay finite

    def less(self, other: Any, sizes: Any) -> "Values":
        """Minus another number, which has terms of these sizes."""
        known = np.isfinite(self.room)
        value = np.where(known, self.value - other, 0)
        return Values(value, np.where(known, self.room + FLOOR * sizes, np.inf))

    @property
    def is_zero(self) -> bool:
        return bool((abs(self.value) <= self.room).all())


Found = TypeVar("Found")


class Best(Generic[Found]):
    """What costs least to believe in; found: None if there is nothing."""

    def __init__(self) -> None:
        self.cost: float = np.inf
        self.found: Found | None = None

    def add(self, cost: float, found: Found) -> None:
        if cost < self.cost:
            self.cost, self.found = cost, found


def cost(powers: Powers) -> float:
    return float(sum(factor.cost * abs(power) ** 0.5 for factor, power in powers))


# ---- one product -------------------------------------------------------------------------------


class Candidates:
    """All products of one choice from each part, with their values in all samples."""

    def __init__(self, samples: Samples, parts: Iterable[Sequence[Powers]]) -> None:
        self.samples, self.parts = samples, [list(part) for part in parts]
        rows, self.costs = samples.of(())[None], np.zeros(1)
        for part in self.parts:
            values = np.stack([samples.of(powers) for powers in part])
            rows = (rows[:, None] * values).reshape(-1, rows.shape[1])
            self.costs = (self.costs[:, None] + [cost(powers) for powers in part]).ravel()
        self.rows = np.where(np.isfinite(rows), rows, 0)

    def powers(self, place: int) -> Powers:
        """The factors of a row."""
        found: list[tuple[Factor, int]] = []
        for part in reversed(self.parts):
            place, of_part = divmod(place, len(part))
            found = [*part[of_part], *found]
        return tuple(found)

    def fitting(self, wanted: Values) -> Iterator[tuple[int, Any, Any]]:
        """Of each row that gives all that is wanted, but for a factor in each call: its place, that
        factor, and how far off it may be.
        """
        places, ratios, rooms = np.arange(len(self.rows)), [], []  # type: ignore[var-annotated]
        for block in self.samples.blocks:
            weight = 1 / wanted.room[block]
            rows, goal = self.rows[places, block] * weight, wanted.value[block] * weight
            size = (rows**2).sum(axis=1)
            ratio = np.where(size > 0, rows @ goal / size, 0)
            good = (abs(goal - ratio[:, None] * rows) <= 1).all(axis=1)
            places, room = places[good], np.where(size > 0, size**-0.5, np.inf)[good]
            ratios = [*(row[good] for row in ratios), ratio[good]]
            rooms = [*(row[good] for row in rooms), room]
        rooms = [
            np.maximum(b, self.samples.floor * abs(a)) for a, b in zip(ratios, rooms, strict=True)
        ]
        yield from zip(places, np.transpose(ratios), np.transpose(rooms), strict=True)

    def found(self, wanted: Values) -> Term | None:
        """The simplest term, without elements, that is what is wanted."""
        best: Best[Term] = Best()
        for place, ratios, rooms in self.fitting(wanted):
            if self.costs[place] < best.cost:
                named = number_and_count(self.samples.quantities, ratios, rooms)
                if named:
                    number, count = named
                    price = self.costs[place] + count.cost + cost_of(number)
                    best.add(price, Term(number, self.powers(place), count))
        return best.found


def number_and_count(
    quantities: Sequence[Quantities], ratios: Any, rooms: Any
) -> tuple[float, Count] | None:
    """What number and count a factor is, from its value in each call."""
    best: Best[tuple[float, Count]] = Best()
    known = np.isfinite(rooms)
    for count in COUNTS if known.any() else ():
        divisors = np.array([count.value(q) for q in quantities])
        numbers, off = (ratios / divisors)[known], (rooms / divisors)[known]
        number = mean_of(numbers, off)
        if (abs(numbers - number) > 2 * off).any():
            continue
        room = 2 * off.min()
        simple = plain(number, room)
        # Any number, with a divisor that is as it should be.
        if simple is not None or (abs(number) > 10 * room and count in (ALONE, OVER_N)):
            chosen = rounded(number, room) if simple is None else simple
            best.add(count.cost + cost_of(chosen), (chosen, count))
    return best.found


def mean_of(numbers: Any, room: Any) -> Any:
    """The mean of numbers that are off by this much: what is known better counts more."""
    least = room.min()
    return np.average(numbers, weights=(least / room) ** 2 if least > 0 else None)


def rounded(number: float, room: float) -> float:
    """To the digits that are known, four at most."""
    digits = np.clip(np.log10(abs(number) / room), 1, 4)
    return float(f"{number:.{int(digits)}g}")


# ---- sums of products --------------------------------------------------------------------------


class Namer:
    """Names the coefficients of a result as sums of terms."""

    def __init__(
        self, samples: Samples, kind: Kind, result: str, known: Sequence[Factor] = ()
    ) -> None:
        self.samples, self.kind = samples, kind
        self.twice = kind.operation == "double_backward"
        self.of_statistics = result in ("mean", "variance", *kind.running)
        self.is_sum = result not in TENSORS and not self.of_statistics
        of_batch = samples.quantities[0].of_batch
        #: What may stand in rstd's place: what does in other results first.
        self.deviations = [*known, *DEVIATIONS, *(() if of_batch else OWN)]
        self.deviations += RUNNING if kind.running and result == "dst" else ()
        self.deviations += ADDED if kind.add and of_batch and kind.is_forward else ()
        self.gammas: list[Powers] = [()]
        if not self.of_statistics:
            self.gammas += [
                ((factor, power),) for factor, power in GAMMAS[: 3 if self.twice else None]
            ]
        self.others: list[Powers] = [()]
        means: list[Powers] = [(), ((MEAN, 1),)]
        if kind.is_forward:
            has_beta = not self.of_statistics or result in kind.running  # those of dst
            self.others += [((BETA, 1),), ((BETA, 2),)] if has_beta else []
            means += [((MEAN, 2),), *([] if of_batch else [((OWN_MEAN, 1),)])]
            if self.of_statistics:
                means += [((vector(name), 1),) for name in kind.running]
        if self.twice:
            self.others += [((NAMED[name], 1),) for name in ("h", "k")]
            means = [()]
        self.sums, self.means = sums_of(kind), means
        powers: list[Powers] = [()]
        for factor in self.deviations[: len(known) + 3 if self.twice else None]:
            ends = (-4, 7) if factor is RSTD else (-2, 6)
            powers += [((factor, power),) for power in range(*ends) if power]
        if kind.operation == "backward":
            both = itertools.product((1, 2), DEVIATIONS[1:4], (1, 2))
            powers += [((RSTD, one), (factor, other)) for one, factor, other in both]
        self.powers = powers
        parts = self.gammas, self.others, powers, self.sums, means
        self.candidates = Candidates(samples, parts)

    def coefficient(self, wanted: Values, right: Sequence[Term]) -> list[Term] | None:
        """The terms, without elements, whose sum it is; None if it has no name."""
        right = [replace(term, elements=()) for term in right]
        if wanted.is_zero:
            return []
        if self.is_sum_of(wanted, right):
            return right
        for way in self._by_one, self._by_factors, self._by_numbers:
            found = way(wanted, right)
            if found is not None:
                return found
        for kept in ([], *([term] for term in right[: len(right) * (len(right) > 2)])):
            found = self._by_two(wanted.less(*self.samples.value(kept)))
            if found is not None:
                return [*kept, *found]
        return None

    def is_sum_of(self, wanted: Values, terms: Sequence[Term]) -> bool:
        """But not if it may be nothing at all, since then it may be any term."""
        if not terms or wanted.is_zero:
            return not terms and wanted.is_zero
        value, sizes = self.samples.value(terms)
        known = np.isfinite(wanted.room)
        return bool(np.isfinite(value[known]).all()) and wanted.less(value, sizes).is_zero

    def _by_one(self, wanted: Values, right: Sequence[Term]) -> list[Term] | None:
        """One term; or the right ones, but one of them another, missing, or one too many."""
        best: Best[list[Term]] = Best()
        places = range(len(right) + 1)
        for kept in ([], *([right[k] for k in places[:-1] if k != place] for place in places)):
            rest = wanted.less(*self.samples.value(kept))
            if rest.is_zero:
                return [*kept]
            one = self.candidates.found(rest)
            if one is None and len(kept) < min(2, len(right)):
                one = self._by_deviation(rest)
            if one is not None:
                found = merged([*kept, one])
                best.add(sum(term.cost + OF_TERM for term in found), found)
        return best.found

    def _by_factors(self, wanted: Values, right: Sequence[Term]) -> list[Term] | None:
        """The right terms, some of which have the same factors too many or too few."""
        if len(right) < 2:
            return None
        gammas: list[Powers] = [(), ((GAMMA, 1),), ((GAMMA, -1),)]
        for name in ("", "gamma", "diff_diff_gamma"):
            has = [not name or any(f.text == name for f, _ in term.factors) for term in right]
            for powers, power in itertools.product(gammas, (-2, -1, 0, 1, 2)):
                new = [
                    term.times(*powers, (RSTD, power)) if is_one else term
                    for term, is_one in zip(right, has, strict=True)
                ]
                if self.is_sum_of(wanted, new):
                    return new
        return None

    def _by_numbers(self, wanted: Values, right: Sequence[Term]) -> list[Term] | None:
        """The right terms, each with another number or divisor, by least squares in each call."""
        if len(right) < 2:
            return None
        quantities, numbers, rooms = self.samples.quantities, [], []
        rows = np.stack([self.samples.value([term])[0] for term in right], axis=1)
        for block in self.samples.blocks:
            weight = 1 / wanted.room[block]
            matrix, goal = rows[block] * weight[:, None], wanted.value[block] * weight
            norms = np.sqrt((matrix**2).sum(axis=0))
            if not (norms.all() and np.isfinite(norms).all()):
                return None
            if np.linalg.cond(matrix / norms) > 1e3:
                return None
            inverse = np.linalg.pinv(matrix / norms)
            solution = inverse @ goal
            if (abs(matrix / norms @ solution - goal) > 1 + FLOOR * abs(matrix).max()).any():
                return None
            numbers.append(solution / norms)
            room, floor = np.sqrt((inverse**2).sum(axis=1)), self.samples.floor
            rooms.append((room + floor * abs(solution)) / norms)
        found: list[Term] = []
        for term, ratios, off in zip(right, np.stack(numbers, 1), np.stack(rooms, 1), strict=True):
            if (abs(ratios) <= off).all():
                continue
            # The number and the divisor together: n / (n - 1) of an average is 1 / (n - 1).
            counts = np.array([term.count.value(q) for q in quantities])
            named = number_and_count(quantities, ratios * counts, off * counts)
            if named is None:
                return None
            found.append(replace(term, number=term.number * named[0], count=named[1]))
        return found

    def _by_two(self, wanted: Values) -> list[Term] | None:
        """Any two terms of few factors, with plain numbers."""
        samples = self.samples
        powers: list[Powers] = [
            (),
            *(((RSTD, power),) for power in range(1, 6 if self.twice else 5)),
        ]
        if self.of_statistics:
            powers = [some for some in self.powers if cost(some) < 3]
        gammas = [some for some in self.gammas if cost(some) < 2.2]
        table = Candidates(samples, [gammas, self.others, powers, self.sums, self.means])
        size = len(table.rows)
        choices = [(place, count) for count in self._divisors() for place in range(size)]
        if self.twice:  # each sum is an average
            choices = [(place, self._average(table.powers(place))) for place in range(size)]
        places, counts = zip(*choices, strict=True)
        scales = {count: samples.joined(count.value) for count in {*counts}}
        rows = table.rows[[*places]] * np.stack([scales[count] for count in counts])
        weight = 1 / wanted.room
        rows, goal = rows * weight, wanted.value * weight
        norms = np.sqrt((rows**2).sum(axis=1))
        useful = np.flatnonzero((norms > 0) & np.isfinite(norms))
        unit = rows[useful] / norms[useful, None]
        along, products = unit @ goal, unit @ unit.T
        # What the least squares of each pair leave.
        both = along[:, None] ** 2 + along**2 - 2 * along[:, None] * along * products
        apart = 1 - products**2
        left = np.where(apart > 1e-6, goal @ goal - both / apart, np.inf)
        left[np.tril_indices(len(useful))] = np.inf
        pairs = np.argwhere(left <= len(goal) + 1e-9 * (goal @ goal))
        nearest = np.argsort(left[tuple(pairs.T)])[:MOST_PAIRS]
        best: Best[list[Term]] = Best()
        for one, other in pairs[nearest]:
            pair = unit[[one, other]]
            solution, *_ = np.linalg.lstsq(pair.T, goal, rcond=None)
            if (abs(solution @ pair - goal) > 1 + FLOOR * (abs(solution) @ abs(pair))).any():
                continue
            found = []
            for place, amount in zip((one, other), solution, strict=True):
                row = useful[place]
                number, of_number = amount / norms[row], 4 / np.sqrt(apart[one, other]) / norms[row]
                simple = plain(number, of_number + FLOOR * abs(number))
                if simple is not None:
                    found.append(Term(simple, table.powers(places[row]), counts[row]))
            if len(found) == 2:
                best.add(sum(term.cost for term in found), found)
        return best.found

    def _divisors(self) -> list[Count]:
        """Those of one of two terms."""
        texts = ["", *[" / n"] * (not self.kind.is_forward or self.of_statistics)]
        texts += [" * n / (n - 1)"] * self.of_statistics + [" / n**2"] * (not self.kind.is_forward)
        return [COUNT_OF[text] for text in texts]

    def _average(self, powers: Powers) -> Count:
        """What makes sums averages; in a sum over a channel, all but one."""
        number = sum(power for factor, power in powers if factor.summed) - self.is_sum
        return COUNT_OF[("", " / n", " / n**2")[max(0, number)]]

    # ---- a deviation that is no candidate

    def _by_deviation(self, wanted: Values) -> Term | None:
        """A product with a power of a deviation that is read as numbers, and then named."""
        best: Best[Term] = Best()
        samples = self.samples
        gammas = [some for some in self.gammas if cost(some) < 3]
        rests = Candidates(samples, [gammas, self.sums])
        variance = samples.joined(lambda q: q.variance)
        known = np.isfinite(wanted.room)
        for place, power, count in itertools.product(range(len(rests.rows)), (1, 3, 2), COUNTS[:2]):
            row = rests.rows[place] * samples.joined(count.value)
            ratio = row / wanted.value
            sign = np.sign(ratio[known][:1]).sum()
            if not (np.sign(ratio[known]) == sign).all():
                continue
            deviation = abs(ratio) ** (1 / power)
            factor = self._deviation(
                deviation, deviation * wanted.room / abs(wanted.value) / power, variance
            )
            if factor is not None:
                term = Term(float(sign), (*rests.powers(place), (factor, power)), count)
                best.add(term.cost, term)
        return best.found

    def _deviation(self, deviation: Any, room: Any, variance: Any) -> Factor | None:
        """The inverse of such a deviation, if it has a name."""
        epsilon = self.samples.joined(lambda q: q.epsilon)
        of_square = 2 * deviation * room
        ways: tuple[tuple[str, Any, Any], ...] = (
            ("sqrt(variance + {})", deviation**2 - variance, of_square),
            ("(sqrt(variance) + {})", deviation - np.sqrt(variance), room),
            ("sqrt({} + epsilon)", (deviation**2 - epsilon) / variance, of_square / variance),
            ("sqrt({})", deviation**2 / variance, of_square / variance),
            (
                "sqrt({}**2 + epsilon)",
                (deviation**2 - epsilon) / variance**2,
                of_square / variance**2,
            ),
        )
        for text, value, off in ways:
            inner = self._inner(value, off, is_epsilon="variance" in text)
            if inner is not None:
                return deviation_with(text, *inner)
        return None

    def _inner(self, value: Any, off: Any, *, is_epsilon: bool) -> Any:
        """The text and value of what stands in epsilon's or in the variance's place, if it is one
        number in each call.
        """
        numbers, rooms, quantities = [], [], []
        for q, block in zip(self.samples.quantities, self.samples.blocks, strict=True):
            known = np.isfinite(off[block])
            if known.any():
                some, of_some = value[block][known], np.maximum(off[block][known], 1e-300)
                number = mean_of(some, of_some)
                if (abs(some - number) > 1.5 * of_some).any():
                    return None
                numbers.append(number)
                rooms.append(of_some.min())
                quantities.append(q)
        ratios, room = np.array(numbers), np.array(rooms)
        for text, of_call in EPSILONS if is_epsilon else (("", lambda q: 1.0),):
            scale = np.array([of_call(q) for q in quantities])
            named = number_and_count(quantities, ratios / scale, room / scale)
            # A count alone, or a number alone, stands for epsilon or the variance.
            if named and (named[1] is ALONE or (named[0] == 1 and (text or not is_epsilon))):
                return inner_of(text, of_call, *named, is_epsilon=is_epsilon)
        return None


def sums_of(kind: Kind) -> list[Powers]:
    """Sums that a coefficient may have as factors."""
    if kind.is_forward:
        return [()]
    dy, dyx = sum_of("diff_dst"), sum_of("diff_dst", "xc")
    if kind.operation == "double_backward":
        g, gx = sum_of("diff_diff_src"), sum_of("diff_diff_src", "xc")
        singles = dy, dyx, g, gx, sum_of("diff_dst", "diff_diff_src")
        pairs = itertools.combinations(singles, 2)
        return [(), *(((a, 1),) for a in singles), *(((a, 1), (b, 1)) for a, b in pairs)]
    sums = [dy, dyx, sum_of("diff_dst", "src", cost=1.5), sum_of("src", cost=2)]
    sums += [total_of("diff_dst"), total_of("diff_dst", "xc")]
    sums += [sum_of("diff_dst", "src + mean", cost=2.5)]
    sums += [sum_of("diff_dst", "src - mean(src)", cost=2)] * (not kind.is_training)
    return [(), *(((factor, 1),) for factor in sums)]
