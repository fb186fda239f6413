"""The standard cases: data on which kernels go wrong, for every operation."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._bench.problems import LAYOUTS, dtype_of
from bn_ext._reference import formulas, limits

__all__ = [
    "OPERANDS", "RECIPES", "RESULTS", "TENSORS", "Case", "Kind", "as_set", "drawn",
    "standard_cases",
]  # fmt: skip

Array = NDArray[Any]

#: {operation: the arrays that a function gets by position}
OPERANDS = {
    "training": ("src", "gamma", "beta"),
    "inference": ("src", "mean", "variance", "gamma", "beta"),
    "backward": ("src", "diff_dst", "mean", "variance", "gamma"),
    "double_backward": (
        "src", "diff_dst", "mean", "variance", "gamma",
        "diff_diff_src", "diff_diff_gamma", "diff_diff_beta",
    ),
}  # fmt: skip
#: {operation: its results, of which a function may return the first alone}
RESULTS = {
    "training": ("dst", "mean", "variance"),
    "inference": ("dst",),
    "backward": ("diff_src", "diff_gamma", "diff_beta"),
    "double_backward": ("diff_src", "diff_diff_dst", "diff_gamma"),
}
#: Arrays of src's shape.
TENSORS = {
    "src", "diff_dst", "diff_diff_src", "src_1", "dst", "diff_src", "diff_diff_dst", "diff_src_1"
}  # fmt: skip
#: {dtype: exponents near the ends of what src, diff_dst and gamma may be}
EXPONENTS = {
    "float32": {"src": (60, -50), "diff_dst": (105, -140), "gamma": (100, -100)},
    "float64": {"src": (480, -480), "diff_dst": (900, -1060), "gamma": (800, -800)},
    "float16": {"src": (11, -10), "diff_dst": (9, -18), "gamma": (7, -8)},
}


@dataclass(frozen=True)
class Case:
    """One call of a function."""

    name: str
    kind: "Kind"
    arrays: dict[str, Array | None]
    epsilon: float = 1e-5
    #: What else is passed by name: src_1 forward, dst backward.
    more: dict[str, Array] = field(default_factory=dict)

    @property
    def axis(self) -> int:
        return 1 if self.kind.data_format == "NCX" else -1

    @property
    def src(self) -> Array:
        src = self.arrays["src"]
        assert src is not None
        return src

    @property
    def data(self) -> str:
        """The dtype of the data."""
        return self.src.dtype.name

    @property
    def empty(self) -> bool:
        """Is there nothing to make statistics of? Specifications differ in what they are."""
        return self.kind.operation == "training" and self.src.size == 0

    @property
    def results(self) -> tuple[str, ...]:
        kind = self.kind
        more = ("diff_src_1",) * (kind.add and kind.operation == "backward")
        more += ("unbiased_variance",) * (kind.unbiased and kind.operation == "training")
        return (*RESULTS[kind.operation], *more)

    def refuse_wrong_arrays(self) -> None:
        """Raise TypeError or ValueError, which names the array."""
        how = {"epsilon": self.epsilon, "data_format": self.kind.data_format, "dry": True}
        getattr(_core, self.kind.operation)(*self.arrays.values(), **how)

    def exact(self) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """The exact results, the bounds of their errors beyond half an ulp, and for each channel
        whether it can be judged: nothing comes near overflow, or an operand is not finite, and then
        so are the right results.
        """
        kind, given = self.kind, self.arrays
        how: dict[str, Any] = {"epsilon": self.epsilon, "axis": self.axis, "wide": np.longdouble}
        forward = kind.operation in ("training", "inference")
        if forward:
            how |= {"src_1": self.more.get("src_1"), "relu": kind.relu}
        else:
            how["is_training"] = kind.is_training
        with _core.DefaultMode():
            if kind.relu and not forward:
                how["gate"] = ~(self.more["dst"] <= 0)
            want: Any = getattr(formulas, f"batch_norm_{kind.operation}")(*given.values(), **how)
            p = self._by_channel(given)
            if forward:
                from_batch = kind.operation == "training"
                bounds = limits.statistics_bounds(want, self.data) if from_batch else {}
                how = {"from_batch": from_batch, "added": kind.add}
                bounds["dst"] = limits.dst_bound(want, self.data, self.axis, **how)
                good = limits.forward_holds(p, want, self.axis, self.data)
                rstd = want.scale
            elif kind.operation == "backward":
                bounds = limits.gradient_bounds(want, self.data, is_training=kind.is_training)
                bounds["diff_src_1"] = np.zeros(want.diff_src.shape)
                good, rstd = limits.gradient_holds(p, want, self.data), limits.rstd_of(p)
            else:
                bounds = limits.second_bounds(want, self.data)
                good, rstd = limits.second_holds(p, want, self.data), np.ones(len(p.src))
            # diff_diff_* times Inf: specifications differ.
            special = np.isnan if kind.operation == "double_backward" else _not_finite
            good |= special(rstd)
            for a in (*vars(p).values(), *map(self._rows, self.more.values())):
                if np.ndim(a):
                    good |= special(a.astype(np.longdouble)).reshape(len(a), -1).any(axis=1)
            values = want._asdict()
            if kind.operation == "training":
                if self.empty:
                    good[:] = False
                m = np.longdouble(p.src.shape[1])
                for found in (values, bounds):
                    found["unbiased_variance"] = found["variance"] * (m / np.maximum(m - 1, 1))
        values = {name: values[name] for name in self.results}
        return values, {name: bounds[name] for name in self.results}, good

    def _rows(self, array: Array) -> Array:
        rows: Array = formulas.by_channel(array, self.axis)
        return rows

    def _by_channel(self, given: dict[str, Array | None]) -> Any:
        """The operands as bn_ext._reference.limits takes them."""
        found: dict[str, Any] = {"epsilon": self.epsilon}
        channels = self._rows(self.src).shape[0]
        for name, array in given.items():
            if array is None:
                array = np.full(channels, float(name == "gamma"))
            found[name] = self._rows(array) if name in TENSORS else array
        return SimpleNamespace(**found)


def _not_finite(array: Any) -> Any:
    return ~np.isfinite(array)


# ---- data ----------------------------------------------------------------------------


class Draw(SimpleNamespace):
    """The arrays of a case, channels last, as doubles (their dtype's range aside)."""

    def statistics(self) -> None:
        """Mean and variance of src, in case it was changed."""
        with _core.DefaultMode():
            x = self.src.astype(self.dtype).astype(np.longdouble).reshape(-1, self.src.shape[-1])
            self.mean = x.mean(axis=0) if len(x) else np.zeros(x.shape[1])
            self.variance = x.var(axis=0) if len(x) else np.ones(x.shape[1])


Change: TypeAlias = Callable[[Draw], None]


def drawn(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Draw:
    """Random numbers whose sums do not cancel, so that an error in them shows."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    channels = shape[-1]
    src, noise, more, g, src_1 = rng.standard_normal((5, *shape))
    draw = Draw(
        rng=rng, dtype=dtype, epsilon=1e-5, src=src + 1, src_1=src_1, diff_diff_src=g + 0.5,
        diff_dst=np.copysign(noise, src) + 1 + more,
        gamma=np.resize([-1, 1, 1], channels) * rng.uniform(0.5, 2, channels),
        beta=rng.standard_normal(channels), diff_diff_gamma=rng.standard_normal(channels) + 1,
        diff_diff_beta=rng.standard_normal(channels),
    )  # fmt: skip
    return draw


def _scaled(name: str, end: int) -> Change:
    def change(draw: Draw) -> None:
        kind = "float32" if draw.dtype.name == "bfloat16" else draw.dtype.name
        exponent = EXPONENTS[kind][name][end]
        if draw.operation == "double_backward":  # it has products of three factors
            exponent //= 3
        setattr(draw, name, np.ldexp(getattr(draw, name), exponent))
        if name == "src" and end == 1:
            draw.epsilon = 0.0

    return change


def _marked(name: str, value: float) -> Change:
    def change(draw: Draw) -> None:
        getattr(draw, name)[2, ..., 1] = value

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


def _swallowed(draw: Draw) -> None:
    """Each small term makes a float sum lose almost half an ulp of the first one."""
    u = limits.unit(limits.arithmetic(draw.dtype.name))
    draw.diff_dst = np.full(draw.src.shape, 0.99 * max(u, 2.0**-24))
    draw.diff_dst[0] = 1


def _far(draw: Draw) -> None:
    """Squares of these numbers have too few digits in doubles."""
    draw.src = draw.src + min(1e9, 2.0**-4 / limits.unit(draw.dtype.name))


def _subnormal(draw: Draw) -> None:
    exponent = {"float16": -18, "float64": -1040}.get(draw.dtype.name, -132)
    draw.gamma, draw.beta = (np.ldexp(a, exponent) for a in (draw.gamma, draw.beta))


def _constant(draw: Draw) -> None:
    draw.src[:, ::2] = [0.1, -7, 1000]


#: name: (shape, what changes, or None); the cases for all operations that have what is changed.
RECIPES: dict[str, tuple[tuple[int, ...], Change | None]] = {
    "two axes": ((64, 5), None),
    "three axes": ((12, 2, 3), None),
    "four axes": ((3, 5, 7, 3), None),
    "five axes": ((2, 3, 4, 2, 5), None),
    "planes of 165 positions": ((7, 5, 33, 9), None),
    "a plane of 300 x 300": ((1, 300, 300, 1), None),
    "without gamma": ((31, 4), as_set(gamma=None, beta=None)),
    "gamma without beta": ((11, 4), as_set(beta=None)),
    "beta without gamma": ((11, 4), as_set(gamma=None)),
    "one row": ((1, 8), None),
    "two rows": ((2, 8), None),
    "three rows": ((3, 8), None),
    "127 rows": ((127, 2), None),
    "100 000 rows": ((100_000, 3), None),
    "one channel": ((70, 1), None),
    "17 channels": ((300, 17), None),
    "133 channels": ((3, 133), None),
    "257 channels": ((40, 257), None),
    "empty batch": ((0, 5), None),
    "no positions": ((3, 0, 5), None),
    "mean far from zero": ((20, 3), _far),
    "mean of 1000 deviations": ((60, 3), as_set(src=lambda d: d.src + 1000)),
    "mean of -30 deviations": ((60, 3), as_set(src=lambda d: d.src - 30)),
    "epsilon 0": ((33, 3), as_set(epsilon=0.0)),
    "epsilon 0.5": ((33, 3), as_set(epsilon=0.5)),
    "variance near epsilon": ((33, 3), as_set(src=lambda d: d.src / 256)),
    "constant channels": ((41, 5), _constant),
    "zero and negative gamma": ((40, 4), as_set(gamma=np.array([0.0, -1.5, -0.0, 2.0]))),
    "numbers of many sizes": ((60, 3), _spread),
    "large src": ((150, 2), _scaled("src", 0)),
    "small src": ((33, 3), _scaled("src", 1)),
    "large diff_dst": ((60, 3), _scaled("diff_dst", 0)),
    "small diff_dst": ((33, 3), _scaled("diff_dst", 1)),
    "large gamma": ((33, 3), _scaled("gamma", 0)),
    "small gamma": ((33, 3), _scaled("gamma", 1)),
    "subnormal dst": ((12, 3), _subnormal),
    "diff_dst like xhat": (
        (60, 3), as_set(diff_dst=lambda d: (d.src - d.src.mean(0)) / d.src.std(0)),
    ),
    "diff_dst that cancels": (
        (60, 3), as_set(diff_dst=lambda d: abs(d.diff_dst) * np.resize([[1], [-1]], (60, 1))),
    ),
    "one large diff_dst": ((20_000, 2), _swallowed),
    "NaN in src": ((33, 3), _marked("src", np.nan)),
    "NaN in diff_dst": ((33, 3), _marked("diff_dst", np.nan)),
    "Inf in src": ((33, 3), _marked("src", np.inf)),
    "-Inf in diff_dst": ((33, 3), _marked("diff_dst", -np.inf)),
}  # fmt: skip
LARGE = 1000  # elements; quick runs have no more
#: Cases that say something only where an operation has this array.
NEEDS = {name: "diff_dst" for name in RECIPES if "diff_dst" in name}
NEEDS |= dict.fromkeys(("gamma without beta", "beta without gamma", "subnormal dst"), "beta")


@dataclass(frozen=True)
class Kind:
    """What the cases of one run have in common."""

    operation: str
    data_format: str = "NXC"
    is_training: bool = True
    relu: bool = False
    add: bool = False
    #: Is the variance also a result divided by max(M - 1, 1)?
    unbiased: bool = False
    #: The dtype of vectors; "": that of the arithmetic.
    vectors: str = ""
    #: The numbers of axes that are allowed; if empty, any.
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("is_training", "relu", "add"):
            _core.as_flag(getattr(self, name), name)
        if self.data_format not in LAYOUTS:
            got = _core.shown(self.data_format)
            raise ValueError(f"data_format: expected NXC or NCX, got {got}")

    @property
    def frozen(self) -> bool:
        return self.operation == "inference" or not self.is_training

    def random(
        self, name: str, shape: tuple[int, ...], dtype: str, change: Change | None = None
    ) -> Case:
        """A case of random numbers; the shape is that of channels last."""
        with _core.DefaultMode():
            draw = drawn(name.partition(",")[0], shape, dtype_of(dtype))
            draw.operation = self.operation
            if change:
                change(draw)
            draw.statistics()
            if self.frozen:  # those of other data
                draw.mean = draw.mean + draw.variance**0.5 / 3
                draw.variance = draw.variance * 1.25
        return self.case(name, draw)

    def case(self, name: str, draw: Draw) -> Case:
        """The case of these arrays."""
        kind, operation = draw.dtype, self.operation
        number = dtype_of(self.vectors or limits.arithmetic(kind.name))
        shape = draw.src.shape
        if self.ranks and len(shape) not in self.ranks:
            shape = (shape[0], *[1] * (min(self.ranks) - len(shape)), *shape[1:])

        def cast(name: str) -> Array | None:
            array = getattr(draw, name)
            if array is None or name not in TENSORS:
                return None if array is None else array.astype(number)
            whole: Array = array.astype(kind).reshape(shape)
            moved = np.moveaxis(whole, -1, 1) if self.data_format == "NCX" else whole
            return np.ascontiguousarray(moved)

        with _core.DefaultMode():
            arrays = {name: cast(name) for name in OPERANDS[operation]}
            case = Case(name, self, arrays, draw.epsilon)
            src_1 = cast("src_1") if self.add else None
            more = {} if src_1 is None else {"src_1": src_1}
            if operation in ("training", "inference"):
                return replace(case, more=more)
            if not self.relu:
                return case
            forward = "inference" if self.frozen else "training"
            before = {**case.arrays, "beta": cast("beta")}
            arrays = {name: before[name] for name in OPERANDS[forward]}
            passed = Case(name, replace(self, operation=forward), arrays, draw.epsilon, more)
            return replace(case, more={"dst": passed.exact()[0]["dst"].astype(kind)})


def standard_cases(
    kind: Kind, dtype: str = "float32", *, quick: bool = False, skip: Sequence[str] = ()
) -> Iterator[Case]:
    """The cases with data of this dtype, but those whose names contain a word of `skip`."""
    for name, (shape, change) in RECIPES.items():
        if NEEDS.get(name, "src") not in OPERANDS[kind.operation]:
            continue
        if quick and prod(shape) > LARGE:
            continue
        if kind.operation == "double_backward" and "Inf" in name:  # specifications differ
            continue
        if kind.ranks and len(shape) > max(kind.ranks):
            continue
        if any(word in name for word in skip):
            continue
        yield kind.random(f"{name}, {dtype}", shape, dtype, change)
