"""The standard cases: data on which kernels go wrong, for every operation."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext.testing import _formulas as formulas, _limits as limits, _weaker as weaker

#: {result: (its right values; the largest errors that pass, for each of ARITHMETICS)}, in long
#: doubles
Exact: TypeAlias = dict[str, tuple[Any, Any]]

#: Kinds of arithmetic, and what a result is called that is right in none before.
ARITHMETICS = {"double": "", "float32": "float32 sums", "any": "src * scale + shift"}
ARITHMETICS |= {"float16": "float16 sums", "bfloat16": "bfloat16 sums"}  # of such data alone

_GRADIENT = "src", "diff_dst", "mean", "variance", "gamma"
#: {operation: the arrays that a function gets by position}
OPERANDS = {
    "training": ("src", "gamma", "beta"),
    "inference": ("src", "mean", "variance", "gamma", "beta"),
    "backward": _GRADIENT,
    "double_backward": (*_GRADIENT, "diff_diff_src", "diff_diff_gamma", "diff_diff_beta"),
}
#: {operation: its results, of which a function may return the first alone}
RESULTS = {
    "training": ("dst", "mean", "variance"),
    "inference": ("dst",),
    "backward": ("diff_src", "diff_gamma", "diff_beta"),
    "double_backward": ("diff_src", "diff_diff_dst", "diff_gamma"),
}
#: Running statistics, and the weight of the batch's in the new ones.
RUNNING, FACTOR = ("running_mean", "running_variance"), 0.25
#: Arrays of src's shape.
TENSORS = {"src", "diff_dst", "diff_diff_src", "src_1"}
TENSORS |= {"dst", "diff_src", "diff_diff_dst", "diff_src_1"}
#: {dtype: exponents near the ends of what src, diff_dst and gamma may be}
EXPONENTS = {
    "float32": {"src": (60, -50), "diff_dst": (105, -140), "gamma": (100, -132)},
    "float64": {"src": (480, -480), "diff_dst": (900, -1060), "gamma": (800, -1040)},
    "bfloat16": {"src": (60, -50), "diff_dst": (105, -130), "gamma": (100, -132)},
    "float16": {"src": (11, -10), "diff_dst": (9, -18), "gamma": (7, -18)},
}


@dataclass(frozen=True)
class Case:
    """One call of a function."""

    name: str
    kind: "Kind"
    #: None for a gamma or beta that is missing.
    arrays: dict[str, Any]
    epsilon: float
    #: What is passed by name: src_1 and running statistics forward, dst backward.
    by_name: dict[str, Any] = field(default_factory=dict)
    #: Are sums of its data exact in the arithmetic's type, in any order?
    exact_sums: bool = False

    @property
    def axis(self) -> int:
        return self.kind.axis

    @property
    def src(self) -> Any:
        return self.arrays["src"]

    @property
    def data(self) -> str:
        """The dtype of the data."""
        return str(self.src.dtype)

    @property
    def results(self) -> tuple[str, ...]:
        kind = self.kind
        gate = ("diff_src_1",) * (kind.add and kind.operation == "backward")
        return (*RESULTS[kind.operation], *gate, *kind.running)

    def least(self, name: str) -> str:
        """The narrowest dtype that a result may have: the data's; of a sum, also gamma's."""
        gamma = self.arrays.get("gamma")
        if gamma is None or name not in ("diff_gamma", "diff_beta"):
            return self.data
        return max(self.data, str(gamma.dtype), key=limits.unit)

    def exact(self) -> Exact:
        """What is right for results in the dtype of the data or, of vectors, of the arithmetic; and
        limits, no wider for arithmetic that is less weak. Where NaN or Inf is right, they are 0; or
        0 for "double" and else Inf, if sums may give NaN in place of an Inf. Any other Inf: nothing
        can be said, since the channel comes near overflow or the arithmetic may give anything.
        """
        kind = self.kind
        with _core.DefaultMode():
            arrays = self.judged_arrays()
            formula = self._formula(arrays)
            want: Any = formula()
            p = self.by_channel(arrays)
            if kind.is_forward:
                p.mean, p.variance = want.mean, want.variance
            values = want._asdict()
            own = kind.own_statistics or kind.operation == "training"
            number = limits.arithmetic(self.data)
            starts = [
                weaker.start(p, name, folded=k > 0, from_batch=own, exact=self.exact_sums)
                for k, name in enumerate([number, number, *["float16"] * (self.data == "float16")])
            ]
            bounds = [_bounds(want, self), *(_weaker(start, p, formula, self) for start in starts)]
            known = self._known(p, want)
            for bound in bounds:
                self.update(values, bound)
            names = [name for name in self.results if name in bounds[0]]
            if kind.is_forward and not self.src.size:
                names = ["dst"]  # specifications differ in what the statistics are
            return {
                name: (values[name], self._limits(name, values[name], bounds, known, starts))
                for name in names
            }

    def _formula(self, arrays: dict[str, Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"src_1": self.by_name.get("src_1"), "relu": self.kind.relu}
        if not self.kind.is_forward:
            options = {"is_training": self.kind.is_training, "exact_sums": self.exact_sums}
            if "dst" in self.by_name:
                options["gate"] = ~(self.by_name["dst"] <= 0)
        options |= {"epsilon": self.epsilon, "axis": self.axis, "wide": np.longdouble}
        formula = getattr(formulas, f"batch_norm_{self.kind.operation}")
        return partial(formula, *arrays.values(), **options)

    def values(self) -> dict[str, Any]:
        """What is right, without limits."""
        values: dict[str, Any] = self._formula(self.judged_arrays())()._asdict()
        return self.update(values)

    def judged_arrays(self) -> dict[str, Any]:
        """The arrays for which results are right: the function's, or exact statistics."""
        own = self.kind.own_statistics and self.src.size
        return {**self.arrays, **self.batch_statistics()} if own else self.arrays

    def batch_statistics(self) -> dict[str, Any]:
        formula: Any = formulas.batch_norm_training
        batch = formula(self.src, epsilon=0, axis=self.axis, wide=np.longdouble)
        return {"mean": batch.mean, "variance": batch.variance}

    def _known(self, p: Any, want: Any) -> Any:
        """(C,): Can anything be said of a channel?"""
        if self.kind.is_forward:
            known, factor = limits.forward_holds(p, want, self.axis, self.data), want.scale
        elif self.kind.operation == "backward":
            known, factor = limits.gradient_holds(p, want, self.data), limits.rstd_of(p)
        else:
            known, factor = limits.second_holds(p, want, self.data), limits.rstd_of(p)
            for terms in want[3:]:
                sizes = formulas.by_channel(terms, self.axis) if terms.ndim > 1 else terms[:, None]
                known &= (sizes < limits.tops(self.data)).all(axis=1)
        # If an operand is not finite, neither are right results; but diff_diff_* times Inf: nobody
        # says what.
        twice = self.kind.operation == "double_backward"
        finite = (lambda a: a == a) if twice else np.isfinite
        for a in (factor, *vars(p).values(), *vars(self.by_channel(self.by_name)).values()):
            if np.ndim(a):
                known |= ~finite(a.astype(np.longdouble)).reshape(len(a), -1).all(axis=1)
        if self.kind.operation == "backward":
            known &= ~limits.gradient_open(p, self.data)
        return known

    def update(
        self, values: dict[str, Any], bounds: dict[str, Any] | None = None, factor: float = FACTOR
    ) -> dict[str, Any]:
        """Add new running statistics; `factor`: the weight of the batch's."""
        m, u = self.src.size // self.src.shape[self.axis], limits.unit(limits.arithmetic(self.data))
        for name in self.kind.running:
            of_batch = name.removeprefix("running_")
            share, kept = np.longdouble(factor), (1 - factor) * self.by_name[name]
            if of_batch == "variance":
                share *= m / np.longdouble(m - (self.kind.correction or 0))
            values[name] = kept + share * values[of_batch]
            if bounds is not None:
                error = 4 * u * (kept + share * abs(values[of_batch]))
                bounds[name] = share * bounds[of_batch] + error
        return values

    def _limits(self, name: str, right: Any, bounds: Any, known: Any, starts: Any) -> Any:
        """The bounds with the result's last rounding, if that is not part of it."""
        number = limits.arithmetic(self.data)
        kind = self.data if name in TENSORS else number
        is_rounded = name not in TENSORS or limits.unit(kind) > limits.unit(number)
        last = limits.half_ulp(right, kind) if is_rounded else 0

        known = self.like(right, known)
        widths = np.zeros((len(bounds), *right.shape), np.longdouble)
        for width, bound in zip(widths, bounds, strict=True):
            width[...] = bound[name] + last
            width[~known | np.isnan(width)] = np.inf
        widths = np.maximum.accumulate(widths)
        widths[:, known & ~np.isfinite(right)] = 0
        if name not in TENSORS or (self.kind.is_training and self.kind.operation != "inference"):
            widths[1:, np.isinf(right)] = np.inf  # it is a sum, or has one as a term
        for width, start in zip(widths[1:], starts, strict=True):
            width[np.isnan(right) & self.like(right, start.open)] = np.inf
        if name == "dst" and self.kind.add and self.data == "bfloat16":  # rounded before src_1, too
            first = limits.half_ulp(right - self.by_name["src_1"].astype(np.longdouble), self.data)
            first = np.where(np.isfinite(right), 1.01 * first, 0)
            widths = np.append(widths, [widths[-1] + first], axis=0)
        return widths

    def like(self, result: Any, channels: Any) -> Any:
        """(C,), in the shape of a result."""
        alone = result.ndim == 1
        return channels if alone else formulas.as_before(channels[:, None], result, self.axis)

    def by_channel(self, arrays: dict[str, Any]) -> Any:
        """The operands as bn_ext.testing._limits takes them."""
        p = SimpleNamespace(epsilon=self.epsilon)
        for name, array in arrays.items():
            if array is None:
                array = np.full(self.src.shape[self.axis], float(name == "gamma"))
            setattr(p, name, formulas.by_channel(array, self.axis) if name in TENSORS else array)
        return p


def _bounds(want: Any, case: Case) -> dict[str, Any]:
    """{result: a bound}, of what the formula returned."""
    kind, data = case.kind, case.data
    if kind.operation == "double_backward":
        return limits.second_bounds(want, data)
    if kind.operation == "backward":
        return limits.gradient_bounds(want, data, is_training=kind.is_training)
    from_batch = kind.operation == "training"
    dst = limits.dst_bound(want, data, case.axis, from_batch=from_batch, added=kind.add)
    return {"dst": dst, **(limits.statistics_bounds(want, data) if from_batch else {})}


def _weaker(start: weaker.Start, p: Any, formula: Callable[..., Any], case: Case) -> dict[str, Any]:
    """{result: a bound} of weaker arithmetic, from its start and operands by channel."""
    kind, axis = case.kind, case.axis
    if kind.is_forward:
        src_1 = case.by_name.get("src_1", np.zeros_like(case.src))
        src_1 = formulas.by_channel(src_1, axis).astype(np.longdouble)
        bounds = weaker.forward_bounds(start, p, src_1)
        return {**bounds, "dst": formulas.as_before(bounds["dst"], case.src, axis)}
    if kind.operation == "backward":
        return weaker.gradient_bounds(start, p, formula, axis, is_training=kind.is_training)
    return weaker.double_backward_bounds(start, p, formula, axis)


# ---- data ----------------------------------------------------------------------------

#: The arrays of a case, channels last, as doubles (their dtype's range aside).
Draw: TypeAlias = SimpleNamespace
Change: TypeAlias = Callable[[Draw], None]


def _drawn(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Draw:
    """Random numbers whose sums do not cancel, so that an error in them shows."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    channels = shape[-1]
    src, noise, rest, g, src_1 = rng.standard_normal((5, *shape))
    return Draw(
        rng=rng, dtype=dtype, epsilon=1e-5, spoil=lambda _: None, src=src + 1,
        src_1=src_1, has_statistics=False, exact_sums=False,
        diff_diff_src=g + 0.5, diff_dst=np.copysign(noise, src) + 1 + rest,
        gamma=np.resize([-1, 1, 1], channels) * rng.uniform(0.5, 2, channels),
        beta=rng.standard_normal(channels), diff_diff_gamma=rng.standard_normal(channels) + 1,
        diff_diff_beta=rng.standard_normal(channels),
        running_mean=np.full(channels, 3.0), running_variance=np.full(channels, 2.0),
    )  # fmt: skip


def _scaled(name: str, end: int) -> Change:
    def change(draw: Draw) -> None:
        exponent = EXPONENTS[draw.dtype.name][name][end]
        if draw.operation == "double_backward":  # it has products of three factors
            exponent //= 3
        array = getattr(draw, name)
        exponents = np.full(array.shape[-1], exponent)
        if end == 1:  # and small numbers that no arithmetic takes as 0
            exponents[1] = 3 * exponent // 4
            draw.epsilon = 0.0 if name == "src" else draw.epsilon
        setattr(draw, name, np.ldexp(array, exponents))

    return change


def _marked(name: str, value: float, **arrays: Any) -> Change:
    def change(draw: Draw) -> None:
        array = getattr(draw, name)
        array[2, ..., 1] = value
        if np.isinf(value):
            array[5, ..., 2] = -value
        vars(draw).update(arrays)

    return change


def as_set(**values: Any) -> Change:
    """Set arrays; callables are given the draw."""

    def change(draw: Draw) -> None:
        for name, value in values.items():
            setattr(draw, name, value(draw) if callable(value) else value)

    return change


def _spread(draw: Draw) -> None:
    octaves = 12 if draw.dtype.name == "float16" else 60
    draw.src = draw.src * np.exp2(draw.rng.uniform(-octaves / 2, 0, draw.src.shape))
    draw.diff_dst = draw.diff_dst * np.exp2(draw.rng.uniform(-octaves / 2, 0, draw.src.shape))


def _sparse(draw: Draw) -> None:
    """In the last channel few rows, each of equal weight, are all that counts: what a sum loses, or
    takes twice, is more than what float32 sums of so many terms may be off by.
    """
    for array in (draw.src, draw.diff_dst):
        column = array.reshape(-1, array.shape[-1])[:, -1]  # a view
        step = max(128, len(column) ** 2 // 8_000_000)
        column *= 2.0**-18
        column[[*range(step - 1, len(column), step), -1]] = 1 + 0.49 / 128  # no bfloat16


def _swallowed(draw: Draw) -> None:
    """In the first channel each small term makes a float sum lose almost half an ulp of the first
    one.
    """
    _sparse(draw)
    u = limits.unit(limits.arithmetic(draw.dtype.name))
    draw.diff_dst[:, 0] = 0.99 * max(u, 2.0**-24)
    draw.diff_dst[0, 0] = 1


#: Rows at which loops, blocks and grids of kernels begin or end; and each row 4096 k.
EDGES = 1, 4095, 4097, 8191, 8193, 32_768, 32_769, 65_535, 65_537, -2, -1


def _whole(draw: Draw) -> None:
    """Whole numbers of few bits, a mean of 0 and rstd 1/2: no order of a sum rounds it, so each row
    that a sum loses or takes twice shows. Of many rows, in the last channel only EDGES count.
    """
    shape, rng = draw.src.shape, draw.rng
    first = rng.choice([-1.0, 1.0], (prod(shape[:-1]) // 2, 1, shape[-1]))
    draw.src = np.concatenate([first, -first], axis=1).reshape(shape)  # a running mean is near 0
    draw.epsilon, draw.exact_sums = 3.0, True
    for name, most in (("diff_dst", 3), ("diff_diff_src", 3), ("src_1", 2)):
        setattr(draw, name, rng.choice([-1.0, *range(1, most + 1)], shape))
    for name in ("gamma", "beta", "diff_diff_gamma", "diff_diff_beta"):
        setattr(draw, name, rng.choice([-2.0, -1, 1, 2], shape[-1]))
    draw.spoil = _whole_statistics
    rows = prod(shape[:-1])
    if rows > 4096:
        counts = np.zeros(rows, bool)
        counts[[*range(0, rows, 4096), *(k for k in EDGES if k < rows)]] = True
        for array in (draw.src, draw.diff_dst, draw.diff_diff_src):
            array.reshape(rows, -1)[~counts, -1] = 0
        draw.src.reshape(rows, -1)[counts, -1] = np.resize([2, -2], counts.sum())
        _cancel(draw, rows)


def _cancel(draw: Draw, rows: int) -> None:
    """In two channels all averages nearly cancel, and rows of zeros show nothing else: there any
    row is much of an average. Rows that are zeros in one channel are not in the other.
    """
    for channel in range(2):
        for array in (draw.diff_dst, draw.diff_diff_src):
            column = draw.rng.choice([-1.0, 1.0], rows)
            column[5 + channel :: 16] = 0
            array.reshape(rows, -1)[:, channel] = column
    draw.diff_diff_gamma[:2] = draw.diff_diff_beta[:2] = 0


def _each_counts(draw: Draw) -> None:
    """Of each row, one channel has a number other than 0: one row in so few that a variance without
    it is off by more than that of a running mean may be.
    """
    _whole(draw)
    rows, channels = draw.src.shape
    draw.epsilon = 3.5  # with the variance, 4
    number = np.arange(rows)
    draw.src = np.zeros(draw.src.shape)
    draw.src[number, number % channels] = np.where(number // channels % 2, 2.0, -2.0)


def _whole_statistics(draw: Draw) -> None:
    """Those that are given: not the batch's."""
    if draw.mean[:1].any():
        draw.mean, draw.variance = np.full_like(draw.mean, 2), np.ones_like(draw.variance)


def _subnormal(draw: Draw) -> None:
    """Of src; in channel 1, of its variance. A beta of usual size would hide it."""
    exponent = {"float16": -18, "float64": -1040}.get(draw.dtype.name, -132)
    draw.src = np.ldexp(draw.src, [exponent, exponent // 2, exponent])
    draw.beta = np.ldexp(draw.beta, exponent)


def _small_gamma(draw: Draw) -> None:
    """And small or subnormal dst, which a ReLU lets pass."""
    before = draw.gamma
    _scaled("gamma", 1)(draw)
    draw.beta = draw.beta * abs(draw.gamma / before)


def _zeros(draw: Draw) -> None:
    """As behind a ReLU."""
    for name in ("src", "diff_dst", "diff_diff_src"):
        array = getattr(draw, name)
        array[draw.rng.random(array.shape) < 0.5] = 0


def _spoil(draw: Draw) -> None:
    """A vector has a NaN, each at another channel."""
    for place, name in enumerate(("gamma", "beta", "mean", "variance")):
        getattr(draw, name)[place] = np.nan


def _constant(draw: Draw) -> None:
    draw.src[:, ::2] = [0.1, -7, 1000]


#: name: (shape, what changes, or None); the cases for all operations that have what is changed.
RECIPES: dict[str, tuple[tuple[int, ...], Change | None]] = {
    "two axes": ((64, 5), None),
    "as many rows as channels": ((6, 6), None),
    "three axes": ((12, 2, 3), None),
    "four axes": ((3, 5, 3, 3), None),
    "five axes": ((2, 3, 2, 2, 5), None),
    "axes of one size": ((4, 4, 4), None),
    "planes of one position": ((9, 1, 1, 4), None),
    "planes of 7 positions": ((3, 7, 5), None),
    "one image": ((1, 5, 7, 3), None),
    "14 images, 16 channels": ((14, 2, 2, 16), None),
    "64 channels, planes of 256": ((2, 16, 16, 64), None),
    "planes of 165 positions": ((7, 5, 33, 9), None),
    "planes of 1536 positions": ((2, 48, 32, 3), None),
    "a plane of 300 x 300": ((1, 300, 300, 1), _sparse),
    "without gamma": ((21, 4), as_set(gamma=None, beta=None)),
    "gamma without beta": ((11, 4), as_set(beta=None)),
    "beta without gamma": ((11, 4), as_set(gamma=None)),
    "one row": ((1, 8), None),
    "two rows": ((2, 520), None),
    "three rows": ((3, 8), None),
    "127 rows": ((127, 2), None),
    "20 000 rows": ((20_000, 2), _swallowed),
    "140 000 rows": ((140_000, 2), _sparse),
    "few whole numbers": ((26, 30), _whole),
    "8198 rows of whole numbers": ((8198, 5), _whole),
    "70 002 rows of whole numbers": ((70_002, 3), _whole),
    "each of 70 016 rows in a channel": ((70_016, 8), _each_counts),
    "128 channels, planes of 56 x 56": ((1, 56, 56, 128), _whole),
    "256 channels, planes of 14 x 14": ((2, 14, 14, 256), _whole),
    "512 channels, planes of 7 x 7": ((4, 7, 7, 512), _whole),
    "1000 channels, planes of 7 x 7": ((2, 7, 7, 1000), _whole),
    "one channel": ((70, 1), None),
    "17 channels": ((300, 17), None),
    "133 channels": ((3, 133), None),
    "257 channels": ((40, 257), None),
    "4100 channels": ((3, 4100), None),
    "empty batch": ((0, 5), None),
    "no positions": ((3, 0, 5), None),
    "mean far from zero": (  # squares have too few digits in doubles
        (20, 3), as_set(src=lambda d: d.src + min(1e9, 2.0**-4 / limits.unit(d.dtype.name))),
    ),
    "mean of 1000 deviations": ((40, 3), as_set(src=lambda d: d.src + 1000)),
    "mean of -30 deviations": ((7, 128), as_set(src=lambda d: d.src - 30)),
    "epsilon 2": ((33, 1, 3, 2), as_set(epsilon=2.0)),
    "variance near epsilon": ((18, 3, 1, 4), as_set(src=lambda d: d.src / 256)),
    "constant channels": ((21, 5), _constant),
    "constant with epsilon 0": ((8, 2), as_set(src=np.full((8, 2), 7.0), epsilon=0.0)),
    "many zeros": ((20, 16), _zeros),
    "zero and negative gamma": ((25, 4), as_set(gamma=np.array([0.0, -1.5, -0.0, 2.0]))),
    "numbers of many sizes": ((40, 3), _spread),
    "large src": ((6, 5, 5, 1), _scaled("src", 0)),
    "small src": ((33, 3), _scaled("src", 1)),
    "large diff_dst": ((128, 3), _scaled("diff_dst", 0)),
    "small diff_dst": ((33, 3), _scaled("diff_dst", 1)),
    "large gamma": ((8, 40), _scaled("gamma", 0)),
    "small gamma": ((3, 2, 2, 24), _small_gamma),
    "subnormal src": ((12, 3), _subnormal),
    "diff_dst like xhat": (
        (40, 3), as_set(diff_dst=lambda d: (d.src - d.src.mean(0)) / d.src.std(0)),
    ),
    "diff_dst that cancels": (
        (40, 3), as_set(diff_dst=lambda d: abs(d.diff_dst) * np.resize([[1], [-1]], (40, 1))),
    ),
    "NaN in src": ((33, 3), _marked("src", np.nan)),
    "NaN in src with gamma 0": ((9, 3), _marked("src", np.nan, gamma=np.array([1.0, 0, -1]))),
    "NaN in diff_dst": ((33, 3), _marked("diff_dst", np.nan)),
    "NaN in vectors": ((9, 5), as_set(spoil=lambda _: _spoil)),
    "Inf in src": ((33, 3), _marked("src", np.inf)),
    "-Inf in diff_dst": ((33, 3), _marked("diff_dst", -np.inf)),
}  # fmt: skip
LARGE = 1040  # elements; quick runs have no more
#: Cases that say something only where an operation has this array.
NEEDS = {name: "diff_dst" for name in RECIPES if "diff_dst" in name}
#: Words of those that a double backward does not have: of diff_diff_* times Inf, specifications
#: differ, and its bounds end where products underflow.
UNBOUNDED = "Inf", "with eps", "subnormal"
_OF_BETA = "gamma without beta", "beta without gamma", "each of 70 016 rows in a channel"
NEEDS |= dict.fromkeys(_OF_BETA, "beta")


@dataclass(frozen=True)
class Kind:
    """What the cases of one run have in common."""

    operation: str
    data_format: str = "NXC"
    is_training: bool = True
    relu: bool = False
    add: bool = False
    #: Does a gradient make its own statistics, which it is not given?
    own_statistics: bool = False
    #: If there are running statistics, the batch's variance is divided by M - correction in them.
    correction: int | None = None
    #: How many axes src has, if the data format is for one number of axes.
    axes: int = 0

    def __post_init__(self) -> None:
        for name in ("is_training", "relu", "add", "own_statistics"):
            _core.as_flag(getattr(self, name), name)
        if self.own_statistics and (self.is_forward or not self.is_training):
            raise TypeError("own_statistics: expected only of a gradient with is_training=True")
        if self.relu and self.operation == "double_backward":
            raise TypeError("relu: expected only of a forward pass or its gradient")
        if self.add and self.operation == "backward" and not self.relu:
            raise TypeError("add: expected only with relu=True")
        if self.correction not in (None, 0, 1):
            raise ValueError(f"correction: expected 0 or 1, got {_core.shown(self.correction)}")
        if self.correction is not None and not (self.is_forward and self.is_training):
            raise TypeError("correction: expected only with is_training=True")
        if self.data_format is None:
            raise ValueError("data_format: expected 'NXC' or 'NCX', or another name, got None")
        axis, axes = _core.channel_axis_of(self.data_format), _core.rank_of(self.data_format)
        object.__setattr__(self, "data_format", "NXC" if axis == -1 else "NCX")
        object.__setattr__(self, "axes", axes or self.axes)

    @property
    def is_forward(self) -> bool:
        return self.operation in ("training", "inference")

    @property
    def axis(self) -> int:
        """The channels'."""
        return _core.channel_axis_of(self.data_format)

    @property
    def running(self) -> tuple[str, ...]:
        """Running statistics that the function gets, and updates."""
        return () if self.correction is None else RUNNING

    def random(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], change: Change | None = None
    ) -> Case:
        """A case of random numbers; the shape is that of channels last."""
        with _core.DefaultMode():
            draw = _drawn(name.partition(",")[0], shape, dtype)
            draw.operation = self.operation
            if change:
                change(draw)
            x = draw.src.astype(draw.dtype).astype(np.longdouble).reshape(-1, shape[-1])
            draw.mean, draw.variance = np.zeros(shape[-1]), np.ones(shape[-1])
            x = np.where(np.isfinite(x), x, 0)  # a NaN or Inf in src stays alone
            if len(x):
                draw.mean, draw.variance = x.mean(axis=0), x.var(axis=0)
            if self.operation == "inference" or not self.is_training:  # those of other data
                draw.mean = draw.mean + draw.variance**0.5 / 3
                draw.variance = draw.variance * 1.25
            draw.spoil(draw)
            return self._case(name, draw)

    def _case(self, name: str, draw: Draw) -> Case:
        """The case of these arrays."""
        shape, axes = draw.src.shape, self.axes or draw.src.ndim
        first = max(0, len(shape) - axes) + 1  # so many axes become one
        shape = prod(shape[:first]), *[1] * (axes - len(shape)), *shape[first:]
        number = limits.arithmetic(draw.dtype.name)

        def cast(name: str) -> Any:
            array = getattr(draw, name)
            if array is None:
                return None
            if name not in TENSORS:
                return array.astype(number)
            whole = array.astype(draw.dtype).reshape(shape)
            return np.ascontiguousarray(np.moveaxis(whole, -1, self.axis))

        arrays = {name: cast(name) for name in OPERANDS[self.operation]}
        case = Case(name, self, arrays, draw.epsilon, exact_sums=draw.exact_sums)
        if self.is_forward:
            by_name = *["src_1"] * self.add, *self.running
            return replace(case, by_name={name: cast(name) for name in by_name})
        if not self.relu:
            return case
        from_batch = self.is_training and not draw.has_statistics
        operation = "training" if from_batch else "inference"
        forward = replace(self, operation=operation, own_statistics=False)
        dst, _ = forward._case(name, draw).exact()["dst"]
        arrays["diff_dst"][np.isnan(dst)] = 0  # packages differ in whether NaN passes
        return replace(case, by_name={"dst": dst.astype(draw.dtype)})


def as_words(argument: str, value: Any, good: Callable[[str], bool], expected: str) -> list[str]:
    """Good words, which were passed alone or in a sequence."""
    words = [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
    for word in words:
        if not isinstance(word, str) or not good(word):
            raise ValueError(f"{argument}: expected {expected}, got {_core.shown(word)}")
    return words


def known(dtypes: Any, argument: str = "dtypes") -> list[np.dtype[Any]]:
    """The dtypes of these names, if right results for such data can be computed here."""
    expected = f"any of {', '.join(DTYPES)}"
    names = as_words(argument, dtypes or [dtypes], DTYPES.__contains__, expected)
    if "float64" in names and np.longdouble(1) + np.longdouble(2.0**-62) == 1:
        raise NotImplementedError("float64 needs long doubles wider than doubles")
    return [dtype_of(name) for name in names]


def standard_cases(
    kind: Kind, dtypes: Any = "float32", *, quick: bool = False, skip: Any = ()
) -> Iterator[Case]:
    """The cases with data of these dtypes, but those whose names contain a word of `skip`."""

    def names(word: str, case: str, dtype: str) -> bool:
        """Is the word a part of a case's name, or the whole name that reports print?"""
        return word in case or word == f"{case}, {dtype}"

    def is_known(word: str) -> bool:
        return bool(word) and any(names(word, case, d) for case in RECIPES for d in DTYPES)

    words = as_words("skip", skip, is_known, "a part of a standard case's name")
    chosen = [
        (name, *recipe)
        for name, recipe in RECIPES.items()
        if NEEDS.get(name, "src") in OPERANDS[kind.operation]
        if not (quick and prod(recipe[0]) > LARGE)
        if not (kind.correction and prod(recipe[0][:-1]) < 2)
        if not (kind.operation == "double_backward" and any(word in name for word in UNBOUNDED))
    ]
    return (
        kind.random(f"{name}, {dtype.name}", shape, dtype, change)
        for dtype in known(dtypes)
        for name, shape, change in chosen
        if not any(names(word, name, dtype.name) for word in words)
    )
