"""`bn-ext verify`: whole calls with known digests, the same at every level, on every machine."""

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import bn_ext._core as _core
import bn_ext._functions as _functions
from bn_ext._derivatives import workspace_size
from bn_ext._dtypes import DTYPES, Dtype, dtype_of
from bn_ext._runtime import available_isas, get_isa, spelled
from bn_ext._sums import GradientSums, Statistics
from bn_ext._typing import DataFormat
from bn_ext._version import __version__

REPORT = "This breaks the promise of equal bits: please report it, and what `bn-ext info` says."


Array = NDArray[Any]
Problem = tuple[Array, Array, DataFormat]  # src, diff_dst


#: The exponents of the data, the first and how many: so many that sums are rounded, which reveals
#: the order of additions, but that no product overflows.
EXPONENTS = {
    "float32": (-20, 40), "float64": (-40, 80), "float16": (-15, 19),  # -15: subnormals
    "bfloat16": (-16, 32),
}  # fmt: skip


def known_dtypes() -> list[Dtype]:
    """All of DTYPES; without bfloat16 if there is no ml_dtypes."""
    try:
        dtype_of("bfloat16")
    except ImportError:
        return [dtype for dtype in DTYPES.values() if dtype.name != "bfloat16"]
    return [*DTYPES.values()]


SHAPES: dict[str, dict[DataFormat, list[tuple[int, ...]]]] = {
    # Each form of src_c/call/order.c, on both sides of every limit of forms and of splits of sums.
    "dense": {
        "NXC": [(1, 8), (3, 5), (300, 7), (40, 200), (5000, 16), (700, 127), (700, 128), (3000, 9)],
        "NCX": [
            (2, 3, 5), (37, 6, 7, 7), (300, 3, 49), (2, 3, 47), (2, 3, 48), (9, 3, 143),
            (9, 3, 144), (70, 2, 255), (70, 2, 256), (1, 3, 500), (70, 2, 1024), (1, 2, 70001),
            (2, 2, 1500), (2, 2, 70001), (11, 1, 13), (3, 2, 9000), (9, 3, 20, 20), (4, 2, 40000),
        ],
    },
    "gapped": {  # in memory, along all axes
        "NXC": [(6, 50, 7), (3, 5, 140)],
        "NCX": [(40, 3, 5, 6), (2, 2, 30, 90), (5, 2, 30, 90)],
    },
    # Split by the number of tasks and the bytes of a strand (0: 4096 bytes); rows overlap.
    "large": {
        "NXC": [(20_000, 128), (67_100, 128), (17_500, 0)],
        "NCX": [(300, 2, 1100), (3, 2, 200_000), (3, 64, 16_900), (1, 3, 270_336)],
    },
    # Large, too; the last chunk ends within a group, the second's last strand is shorter.
    "seams": {"NCX": [(2, 2, 20_000)], "NXC": [(19_929, 128)]},
    # Parts of blocks, a few blocks, and so many that the method of exact addition changes twice.
    "exact": {
        "NXC": [(1, 8), (40, 200), (700, 130), (300, 7), (9000, 64)],
        "NCX": [(2, 3, 48), (37, 6, 49), (70, 2, 255), (1, 2, 70_000)],
    },
}  # fmt: skip
#: Where the random bits of src and of diff_dst begin.
STARTS = (1, 1 << 40)


def _scrambled(count: int, start: int) -> Array:
    """Random bits, from integers alone: the same on every machine."""
    mixed = np.arange(start, start + count, dtype=np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(32))


def numbers(dtype: Dtype, count: int, start: int, exponents: tuple[int, int]) -> Array:
    """Bits of `count` numbers of either sign, evenly over a range of exponents."""
    first, number = exponents
    sign_bit = 8 * dtype.bits.itemsize - 1
    lowest = first + (1 << (sign_bit - dtype.fraction - 1)) - 1
    fraction = _scrambled(count, start) & np.uint64((1 << dtype.fraction) - 1)
    other = _scrambled(count, start + (1 << 60))
    exponent = np.uint64(lowest) + (other >> np.uint64(32)) % np.uint64(number)
    sign = (other & np.uint64(1)) << np.uint64(sign_bit)
    bits: Array = sign | exponent << np.uint64(dtype.fraction) | fraction
    return bits.astype(dtype.bits)


def _patched(dtype: Dtype, count: int, start: int, exponents: tuple[int, int]) -> Array:
    """Most patches have few exponents and take the fastest method of addition. Others have many
    exponents, or numbers that are nearly too large, or numbers whose squares are nearly too large,
    or all exponents: also those of subnormal numbers, Inf and NaN.
    """
    patch, top = 700, 1 << (8 * dtype.bits.itemsize - 1 - dtype.fraction)
    kinds = [(0, 2), exponents, (top // 2 - 4, 3), (top // 4 - 3, 3), (1 - top // 2, top)]
    kind = _scrambled(-(-count // patch), count) % np.uint64(10)
    chosen = np.repeat(np.maximum(kind, 5) - 5, patch)[:count].astype(int)
    return np.asarray(np.choose(chosen, [numbers(dtype, count, start, kind) for kind in kinds]))


def _operand(dtype: Dtype, kind: str, lengths: tuple[int, ...], start: int) -> Array:
    size = dtype.bits.itemsize
    shape = [n or 4096 // size for n in lengths]
    room = [n + 3 * (kind == "gapped") for n in shape]
    if kind in ("large", "seams"):
        room[-1] = 8
    steps = [math.prod(room[axis + 1 :]) for axis in range(len(room))]
    count = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    bits = (_patched if kind == "exact" else numbers)(dtype, count, start, EXPONENTS[dtype.name])
    return as_strided(bits.view(dtype_of(dtype.name)), shape, [size * step for step in steps])


def problems(dtype: Dtype, kinds: str) -> Iterator[Problem]:
    """All problems of these keys of SHAPES. If they are small, every third channel of diff_dst sums
    to nearly zero, so that rounding errors show.
    """
    for kind in kinds.split():
        for layout, shape in ((k, shape) for k, row in SHAPES[kind].items() for shape in row):
            src, diff_dst = (_operand(dtype, kind, shape, start) for start in STARTS)
            if kind in ("dense", "gapped"):
                channels = np.moveaxis(diff_dst, _core.channel_axis_of(layout), 0)[1::3]
                rows = np.moveaxis(channels, 1 if channels.shape[1] > 1 else -1, 0)
                half = len(rows) // 2
                rows[half : 2 * half] = -rows[:half]
            yield src, diff_dst, layout


#: {kinds of problems: modes of calls}; for large problems, only functions that sum are called.
MODES = {
    "dense gapped": (
        "training", "frozen", "forward", "gated", "double training", "double frozen", "in place",
    ),
    "large": ("large", "large forward"),
    "seams": ("seams", "seams forward"),
    "exact": ("exact", "passed"),
}  # fmt: skip
#: The first 16 digits of the SHA-256 of what a mode's calls return, for each of DTYPES.
DIGESTS = {
    "training": "7222834f54cf67de 81c2408faa302a82 f1c80cf55e37ed7e dde276e799796375",
    "frozen": "6534f30ba57fe86c 4b9555bcb597e518 cdb57cebcc7913bd fb1acabf00e9df6d",
    "forward": "5c5033485f479dd5 c683ad84738ed0d2 8cf2c79609208686 97c7bfdcdc095612",
    "gated": "79dfc0026777b2ed 2a3fbde37e271d44 13b62859a9860d87 4175163dd2735d30",
    "double training": "91de4ae683d2f3c7 6db6619afe019313 53e8dd3fd4d7222d 7f0b100cf97b5ec0",
    "double frozen": "3e6a9935c5a47d83 dd7e45a8b7f8886c d56d7fe8579eb498 0a2bf674bdb6b790",
    "in place": "7034e3c38a5cee65 0de62075bb41330b aa33fc992236c91c 768ddc26cdfacfd8",
    "large": "65299fb08449f3c2 72afde801e56d2ac b18a280b76d3242f d622272827c3d283",
    "large forward": "7345de5d2076b8b2 597f960eac09a136 6a15695378d686a6 024930f4c9e16b5e",
    "seams": "0cf2eef92746733c 879852d4619f5dec f901569588e23e8e 56e83643ef96e8b5",
    "seams forward": "c25ee6ceaf446066 93d6dde969e221a8 5a8fa5642978a85f 711227570ad020c5",
    "exact": "73ff3dc95a7084ac 00712784e98f5b4a 827bfcfcf352f103 0e9151f6406bcf18",
    "passed": "730739ce1a51111b 0d8c3eb9c15e31ca 8f89205e91063aea a5f8cb47c7405f08",
}


def _own(array: Array) -> Array:
    """A copy, with gaps if the array has some."""
    room = np.empty([n + 3 * (not array.flags.c_contiguous) for n in array.shape], array.dtype)
    view: Array = room[tuple(slice(n) for n in array.shape)]
    view[...] = array
    return view


def _results(dtype: Dtype, problem: Problem, mode: str, threads: int | None) -> Iterator[Array]:
    """What the calls of a mode return."""
    src, other, layout = problem
    channels = src.shape[_core.channel_axis_of(layout)]
    mean, variance, gamma, beta = (
        numbers(DTYPES[dtype.number.name], channels, k << 50, exponents).view(dtype.number)
        for k, exponents in ((1, (-20, 24)), (2, (-4, 8)), (3, (-4, 8)), (4, (-4, 8)))
    )
    shared: Any = {"data_format": layout, "num_threads": threads}
    options: Any = {"epsilon": 1e-3, **shared}
    forward = src, mean, abs(variance), gamma, beta
    backward = src, other, *forward[1:4]
    training = mode.endswith("training")
    if mode == "exact":  # limbs hold finite terms; flags mark the others
        moments = Statistics(src, exact=True, **shared)
        for sums in (GradientSums(src, other, mean, exact=True, **shared), moments):
            yield _core.canonical_state(sums.array, sums._format)
            yield np.nan_to_num(_core.state_sums(sums.array, sums._format), nan=0.5)
        statistics, count = _core.state_statistics(moments.array, moments._format)
        with np.errstate(over="ignore"):
            statistics[1] *= _core.power_above(count)
        yield np.nan_to_num(statistics, nan=0.5)
        yield np.tile([[float(count)], [1.0]], channels)
    elif mode == "passed":  # by numbers of every kind: half of the NaNs become Inf
        dst = src.copy()
        half = dst.view(dtype.bits)[..., ::2]
        half[...] = half >> dtype.fraction << dtype.fraction
        options |= {"relu": True, "dst": dst, "is_training": False}
        yield _functions.batch_norm_backward(
            src, np.ones_like(src), *backward[2:], **options
        ).diff_src
    elif mode == "gated":
        workspace = np.full(workspace_size(src.size, src.ndim), 0xA5, np.uint8)
        options |= {"relu": True, "workspace": workspace}
        yield _functions.batch_norm_inference(*forward, **options)
        yield workspace[: -(src.ndim + 8)]  # the bits
        yield from _functions.batch_norm_backward(*backward, **options)
    elif mode == "in place":  # of src, of diff_dst, and of what else has their shape
        array = _own(src)
        yield from _functions.batch_norm_training(
            array, gamma, beta, out=(array, None, None), **options
        )
        array = _own(src)
        yield _functions.batch_norm_inference(array, *forward[1:], out=array, **options)
        for frozen in (False, True):
            array, options["is_training"] = _own(other), not frozen
            out = array, None, None
            yield from _functions.batch_norm_backward(src, array, *backward[2:], out=out, **options)
            array, second = _own(other), _own(other[::-1])
            both = second, array, None
            yield from _functions.batch_norm_double_backward(
                src, array, *backward[2:], second, variance, mean, out=both, **options
            )
    elif mode.startswith("double"):
        yield from _functions.batch_norm_double_backward(
            *backward, other[::-1], variance, mean, is_training=training, **options
        )
    elif mode.endswith("forward"):  # first the sums as they are, before anything is rounded
        statistics, count, _ = _core.training_sums(src, **shared)
        statistics[1] *= _core.power_above(count)
        yield statistics[:2]
        if mode == "forward":
            out = None, *np.empty((2, channels), dtype.number)
            yield from _functions.batch_norm_training(src, gamma, beta, out=out, **options)
            yield _functions.batch_norm_inference(*forward, src_1=other, relu=True, **options)
    else:
        yield _core.backward_sums(src, other, mean, **shared)[0]
        if mode in ("training", "frozen"):
            yield from _functions.batch_norm_backward(*backward, is_training=training, **options)


def digests(isa: str, num_threads: int | None = None) -> dict[str, str]:
    """{"dtype mode": digest} at one level."""
    before, results = get_isa(), dict[str, str]()
    _core.use_isa(isa)
    try:
        for dtype, (kinds, modes) in product(known_dtypes(), MODES.items()):
            made = {mode: hashlib.sha256() for mode in modes}
            for problem in problems(dtype, kinds):
                for mode, digest in made.items():
                    for array in _results(dtype, problem, mode, num_threads):
                        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
            results |= {f"{dtype.name} {mode}": d.hexdigest()[:16] for mode, d in made.items()}
    finally:
        _core.use_isa(before)
    return results


def known() -> dict[str, str]:
    """What `digests` must return."""
    dtypes = known_dtypes()
    by_mode = {mode: dict(zip(DTYPES, row.split(), strict=True)) for mode, row in DIGESTS.items()}
    return {f"{d.name} {mode}": row[d.name] for mode, row in by_mode.items() for d in dtypes}


def changed_mode() -> list[str]:
    """What is not the default in this thread's floating-point mode."""
    smallest, step, wide = sys.float_info.min, 2.0**-60, np.finfo(np.longdouble)
    changes = {
        "subnormal numbers become 0": smallest / 2 == 0,
        "results are not rounded to nearest": 1 + step != 1 or 1 - step != 1,
        "long doubles lose bits": np.longdouble(1) + wide.eps == 1,
    }
    return [name for name, is_changed in changes.items() if is_changed]


def wrong() -> str:
    """The first thing that is wrong, or nothing."""
    if changed := changed_mode():
        return f"the floating-point mode is not the default: {', '.join(changed)}"
    right = known()
    missing = "" if any("bfloat16" in key for key in right) else " (no bfloat16 without ml_dtypes)"
    for isa in available_isas():
        computed = digests(isa)
        if computed != right:
            differ = {key: text for key, text in computed.items() if right.get(key) != text}
            other = dict(right.items() - computed.items())
            return f"{spelled(isa)}: digests of whole calls: {differ}, expected {other}"
        print(f"{spelled(isa):>15}: {len(computed)} digests correct{missing}", flush=True)
    return ""


def verify(_: argparse.Namespace) -> int:
    """Check that results have the same bits here as on every other machine. At each instruction-set
    level of this CPU, whole calls of every kind are compared with known digests, in a few seconds.
    The floating-point mode of the process is checked, too.
    """
    print(f"bn_ext {__version__}", flush=True)
    start = time.perf_counter()
    try:
        fault = wrong()
    except (MemoryError, OSError):  # no memory, or the output is closed
        raise
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        print(f"WRONG: {fault}\n{REPORT}")
        return 1
    print(f"every bit as promised, {time.perf_counter() - start:.1f} s")
    return 0
