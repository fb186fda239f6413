"""The standard cases: data on which kernels go wrong, for every operation."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

import bn_ext._core as _core
from bn_ext._dtypes import DTYPES, dtype_of
from bn_ext.testing import _limits as limits
from bn_ext.testing._case import OPERANDS, TENSORS, Case, Kind
from bn_ext.testing._exact import values
from bn_ext.testing._wide import wide_of, widened

#: {dtype: exponents near the ends of what src, diff_dst and gamma may be}
EXPONENTS = {
    "float32": {"src": (60, -50), "diff_dst": (105, -140), "gamma": (100, -132)},
    "float64": {"src": (480, -480), "diff_dst": (900, -1060), "gamma": (800, -1040)},
    "bfloat16": {"src": (60, -50), "diff_dst": (105, -130), "gamma": (100, -132)},
    "float16": {"src": (11, -10), "diff_dst": (9, -18), "gamma": (7, -18)},
}


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
        rng=rng, dtype=dtype, number=DTYPES[dtype.name].number, epsilon=1e-5,
        spoil=lambda _: None, src=src + 1, src_1=src_1, has_statistics=False, exact_sums=False,
        diff_diff_src=g + 0.5, diff_dst=np.copysign(noise, src) + 1 + rest,
        gamma=np.resize([-1, 1, 1], channels) * rng.uniform(0.5, 2, channels),
        beta=rng.standard_normal(channels), diff_diff_gamma=rng.standard_normal(channels) + 1,
        diff_diff_beta=rng.standard_normal(channels),
        running_mean=np.full(channels, 3.0), running_variance=np.full(channels, 2.0),
    )  # fmt: skip


def _scaled(name: str) -> Change:
    """Large numbers in a channel, small ones in the next, and two sizes of small ones that no
    arithmetic takes as 0.
    """

    def change(draw: Draw) -> None:
        large, small = EXPONENTS[draw.dtype.name][name]
        if draw.operation == "double_backward":  # it has products of three factors
            large, small = large // 3, small // 3
        array = getattr(draw, name)
        exponents = large, small, 3 * small // 4, 6 * small // 7
        setattr(draw, name, np.ldexp(array, np.resize(exponents, array.shape[-1])))
        draw.epsilon = 0.0 if name == "src" else draw.epsilon

    return change


def _marked(name: str, value: float) -> Change:
    """In a register of channels, and in the rest; in two rows, of which a ReLU may let one pass."""

    def change(draw: Draw) -> None:
        array = getattr(draw, name)
        array[2, ..., [1, -2]] = array[6, ..., [1, -2]] = value
        if np.isinf(value):
            array[5, ..., [2, -1]] = -value

    return change


def _nan_in_planes(draw: Draw) -> None:
    """In each array, each at a channel of its own."""
    draw.gamma[1] = 0
    for channel, name in ((1, "src"), (2, "src"), (3, "diff_dst")):
        getattr(draw, name)[1, ..., channel].flat[[channel, 6, 8]] = np.nan
    draw.spoil = _spoiled({"beta": [3], "gamma": [4], "variance": [5], "mean": [6]})


def _inf_in_planes(draw: Draw) -> None:
    for channel, name in ((1, "src"), (3, "diff_dst")):
        for place, value in enumerate((-np.inf, np.inf)):
            getattr(draw, name)[1, ..., channel + place].flat[channel] = value


def as_set(**values: Any) -> Change:
    """Set arrays; callables are given the draw."""

    def change(draw: Draw) -> None:
        for name, value in values.items():
            setattr(draw, name, value(draw) if callable(value) else value)

    return change


def _spread(draw: Draw) -> None:
    octaves = 12 if draw.dtype.name == "float16" else 60
    draw.gamma[-1] = 0
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
        # The first row, which may be a pivot, is near the mean.
        counts[[*range(4096, rows, 4096), *(k for k in EDGES if k < rows)]] = True
        for array in (draw.src, draw.diff_dst, draw.diff_diff_src):
            array.reshape(rows, -1)[~counts, -1] = 0
        # The mean is 0, so that src - mean is, too, where no row counts.
        values = np.resize([2.0, -2.0], counts.sum())
        values[-3:] = [2, 2, -4] if counts.sum() % 2 else [-2, 2, -2]
        draw.src.reshape(rows, -1)[counts, -1] = values
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


def _scaled_gamma(draw: Draw) -> None:
    """And small or subnormal dst, which a ReLU lets pass."""
    before = draw.gamma
    _scaled("gamma")(draw)
    draw.beta = draw.beta * np.minimum(1, abs(draw.gamma / before))


def _zeros(draw: Draw) -> None:
    """As behind a ReLU."""
    for name in ("src", "diff_dst", "diff_diff_src"):
        array = getattr(draw, name)
        array[draw.rng.random(array.shape) < 0.5] = 0


def _spoiled(channels: dict[str, list[int]]) -> Change:
    """Vectors with a NaN in these channels."""

    def spoil(draw: Draw) -> None:
        for name, places in channels.items():
            getattr(draw, name)[places] = np.nan

    return spoil


#: A vector has a NaN in a register of channels and in the rest, each elsewhere.
_SPOILED = {name: [k, k - 4] for k, name in enumerate(("gamma", "beta", "mean", "variance"))}


def _constant(draw: Draw) -> None:
    channels = draw.src[..., ::2]
    channels[:] = np.resize([0.1, -7, 1000], channels.shape[-1])


def _like_xhat_or_cancels(draw: Draw) -> None:
    """In every other channel."""
    like_xhat = (draw.src - draw.src.mean(0)) / draw.src.std(0)
    cancels = abs(draw.diff_dst) * np.resize([[1], [-1]], (len(draw.src), 1))
    draw.diff_dst = np.where(np.arange(draw.src.shape[-1]) % 2, cancels, like_xhat)


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
    "without gamma": ((21, 19), as_set(gamma=None, beta=None)),
    "no gamma in planes": ((4, 3, 5, 4), as_set(gamma=None)),
    "gamma without beta": ((3, 3, 5, 4), as_set(beta=None)),
    "beta without gamma": ((4, 3, 3, 5), as_set(gamma=None)),
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
    "means of 1000 and -30 deviations": (
        (7, 128), as_set(src=lambda d: d.src + np.resize([1000, -30, -30], 128)),
    ),
    "epsilon 2": ((33, 1, 3, 2), as_set(epsilon=2.0)),
    "variance near epsilon": ((18, 3, 1, 1), as_set(src=lambda d: d.src / 256)),
    "constant channels": ((2, 2, 5, 24), _constant),
    "constant with epsilon 0": ((8, 2), as_set(src=np.full((8, 2), 7.0), epsilon=0.0)),
    "many zeros": ((20, 16), _zeros),
    "zero and negative gamma": (
        (2, 3, 5, 19), as_set(gamma=np.resize([0.0, -1.5, -0.0, 2.0], 19)),
    ),
    "numbers of many sizes": ((40, 4), _spread),
    "large and small src": ((33, 19), _scaled("src")),
    "large or small src in planes": ((6, 5, 5, 4), _scaled("src")),
    "large and small diff_dst": ((128, 8), _scaled("diff_dst")),
    "large or small diff_dst in planes": ((5, 3, 5, 4), _scaled("diff_dst")),
    "large and small gamma": ((8, 43), _scaled_gamma),
    "large or small gamma in planes": ((3, 3, 3, 4), _scaled_gamma),
    "subnormal src": ((12, 3), _subnormal),
    "diff_dst like xhat or that cancels": ((40, 6), _like_xhat_or_cancels),
    "NaN in src": ((33, 19), _marked("src", np.nan)),
    "NaN in diff_dst": ((33, 19), _marked("diff_dst", np.nan)),
    "NaN in vectors": ((9, 19), as_set(spoil=lambda _: _spoiled(_SPOILED))),
    "NaN in planes": ((3, 3, 5, 7), _nan_in_planes),
    "Inf in src": ((33, 19), _marked("src", np.inf)),
    "-Inf in diff_dst": ((33, 19), _marked("diff_dst", -np.inf)),
    "Inf in planes": ((3, 5, 3, 5), _inf_in_planes),
}  # fmt: skip
LARGE = 1040  # elements; quick runs have no more
#: Cases that say something only where an operation has this array.
NEEDS = {name: "diff_dst" for name in RECIPES if "diff_dst" in name}
NEEDS["no gamma in planes"] = "diff_dst"  # forward, the next two are in planes
#: Words of those that a double backward does not have: of diff_diff_* times Inf, specifications
#: differ, and its bounds end where products underflow.
UNBOUNDED = "Inf", "with eps", "subnormal"
_OF_BETA = "gamma without beta", "beta without gamma", "each of 70 016 rows in a channel"
NEEDS |= dict.fromkeys(_OF_BETA, "beta")


def random_case(
    kind: Kind,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    change: Change | None = None,
) -> Case:
    """A case of random numbers; the shape is that of channels last."""
    with _core.DefaultMode():
        draw = _drawn(name.partition(",")[0], shape, dtype)
        draw.operation = kind.operation
        if change:
            change(draw)
        x = widened(draw.src.astype(draw.dtype), wide_of(draw.dtype.name)).reshape(-1, shape[-1])
        draw.mean, draw.variance = np.zeros(shape[-1]), np.ones(shape[-1])
        x = np.where(np.isfinite(x), x, 0)  # a NaN or Inf in src stays alone
        if len(x):
            draw.mean, draw.variance = x.mean(axis=0), x.var(axis=0)
        if kind.operation == "inference" or not kind.is_training:  # those of other data
            draw.mean = draw.mean + np.sqrt(draw.variance) / 3
            draw.variance = draw.variance * 1.25
        draw.mean, draw.variance = (a.astype(draw.number) for a in (draw.mean, draw.variance))
        draw.spoil(draw)
        return _case(kind, name, draw)


def _case(kind: Kind, name: str, draw: Draw) -> Case:
    """The case of these arrays."""
    shape, axes = draw.src.shape, kind.axes or draw.src.ndim
    first = max(0, len(shape) - axes) + 1  # so many axes become one
    shape = prod(shape[:first]), *[1] * (axes - len(shape)), *shape[first:]

    def cast(name: str) -> Any:
        array = getattr(draw, name)
        if array is None:
            return None
        if name not in TENSORS:
            return array.astype(draw.number)
        whole = array.astype(draw.dtype).reshape(shape)
        return np.ascontiguousarray(np.moveaxis(whole, -1, kind.axis))

    arrays = {name: cast(name) for name in OPERANDS[kind.operation]}
    case = Case(name, kind, arrays, draw.epsilon, exact_sums=draw.exact_sums)
    if kind.is_forward:
        by_name = *["src_1"] * kind.add, *kind.running
        return replace(case, by_name={name: cast(name) for name in by_name})
    if not kind.relu:
        return case
    from_batch = kind.is_training and not draw.has_statistics
    forward = replace(
        kind, operation="training" if from_batch else "inference", own_statistics=False
    )
    dst = values(_case(forward, name, draw))["dst"]
    # Packages differ in whether NaN passes, and in what NaN or Inf is where a mask of 0 stops it.
    gone = np.isnan(dst) | ((dst <= 0) & ~np.isfinite(arrays["diff_dst"].astype(np.float64)))
    arrays["diff_dst"][gone] = 0
    return replace(case, by_name={"dst": dst.astype(draw.dtype)})


def as_words(argument: str, value: Any, good: Callable[[str], bool], expected: str) -> list[str]:
    """Good words, which were passed alone or in a sequence."""
    words = [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
    for word in words:
        if not isinstance(word, str) or not good(word):
            raise ValueError(f"{argument}: expected {expected}, got {_core.shown(word)}")
    return words


def known(dtypes: Any, argument: str = "dtypes") -> list[np.dtype[Any]]:
    """The dtypes of these names."""
    expected = f"any of {', '.join(DTYPES)}"
    return [
        dtype_of(name)
        for name in as_words(argument, dtypes or [dtypes], DTYPES.__contains__, expected)
    ]


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
        random_case(kind, f"{name}, {dtype.name}", shape, dtype, change)
        for dtype in known(dtypes)
        for name, shape, change in chosen
        if not any(names(word, name, dtype.name) for word in words)
    )
