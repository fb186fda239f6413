"""`python -m bn_ext verify`: check the promise of equal bits on this CPU.

First, every kernel of every instruction-set level is compared, bit for bit,
with NumPy doing the same arithmetic: all numbers of rows, all lengths up to
four times the widest unit, all alignments, values of every kind. Then whole
calls, in every form and with every way of splitting their sums, are compared
with digests that are the same on every machine.
"""

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided

import bn_ext
from bn_ext import _core, _kernels
from bn_ext._bench.problems import dtype_of
from bn_ext._kernels import DTYPES, KERNELS, PAD, REGISTER, ROWS, SUMS_KERNELS, Array, Case, Dtype

__all__ = ["WrongBitsError", "digests", "print_digests", "print_speeds", "verify"]

REPORT = (
    "This breaks the promise of equal bits: please report it to the project's issue tracker,\n"
    "with the lines above and the output of `python -c 'import bn_ext; bn_ext.show_config()'`."
)

#: First 16 digits of the SHA-256 of what the calls of `digests` give; equal on every machine.
DIGESTS: dict[str, str] = {
    "float32 training": "88021e63b8977c4f",
    "float32 frozen": "b03361580f6430ea",
    "float32 large": "400249e5921ceb71",
    "float64 training": "2973fed1b2c0dc87",
    "float64 frozen": "858b8d774eb782c2",
    "float64 large": "a18ed48e2910ed02",
    "float16 training": "4e444d0424469307",
    "float16 frozen": "95da4fd97bdde838",
    "float16 large": "1da92e8f45c05a70",
    "bfloat16 training": "1f09ff2b6db00461",
    "bfloat16 frozen": "8f5b22fe1dc4c4ae",
    "bfloat16 large": "afc222220576f328",
}


class WrongBitsError(AssertionError):
    """The bits of a kernel or a call differ from what they must be."""


# ---- inputs -----------------------------------------------------------------


def _boundary(dtype: Dtype) -> Array:
    """Bits at the edges of a format: zeros, subnormals, ones, the largest, Inf, NaNs."""
    size = 8 * dtype.bits.itemsize
    fraction = dtype.fraction
    infinite = ((1 << (size - 1 - fraction)) - 1) << fraction
    one = (infinite >> 1) & ~((1 << fraction) - 1) & infinite
    positive = [0, 1, (1 << fraction) - 1, 1 << fraction, one - 1, one, one + 1, infinite - 1]
    positive += [infinite - (1 << fraction), infinite, infinite + 1, infinite | 1 << (fraction - 1)]
    positive += [infinite | ((1 << fraction) - 1)]
    bits = [p | sign << (size - 1) for p in positive for sign in (0, 1)]
    return np.array(bits, dtype.bits)


def values(dtype: Dtype, rows: int, columns: int, rng: np.random.Generator) -> Array:
    """(rows, columns) bits; each column is of one kind, and neighbours differ in kind."""
    normal = rng.standard_normal((rows, columns)).astype(dtype.number)
    few = rng.integers(-8, 9, (rows, columns)).astype(dtype.number)
    cancelling = np.where(np.arange(rows)[:, None] % 2, -normal[:1], normal[:1])
    wide = normal * np.exp2(rng.integers(-14, 15, (rows, columns))).astype(dtype.number)
    kinds = [dtype.narrow(np.ascontiguousarray(k)) for k in (normal, few, cancelling, wide)]
    anything = rng.integers(0, np.iinfo(dtype.bits).max, (rows, columns), dtype.bits)
    kinds += [rng.choice(_boundary(dtype), (rows, columns)), anything]
    kind = rng.permutation(np.arange(columns) % (len(kinds) + 3))
    found = kinds[0].copy()
    for k, bits in enumerate(kinds):
        found[:, kind == k] = bits[:, kind == k]
    return found


def case_of(dtype: Dtype, rows: int, columns: int, rng: np.random.Generator) -> Case:
    number_bits = DTYPES[dtype.number.name]
    return Case(
        dtype,
        values(dtype, rows, columns, rng),
        values(dtype, rows, columns, rng),
        values(number_bits, 4, columns, rng).view(dtype.number),
        rng.standard_normal((4, columns)),
        rng.standard_normal((2, columns)).astype(np.float32),
    )


# ---- kernels ----------------------------------------------------------------


def _wrong(found: Array, wanted: Array) -> Array:
    """Where bits differ; in sums, which no user sees, all NaNs count as equal."""
    if found.dtype.kind != "f":
        return np.asarray(found != wanted)
    bits = f"u{found.itemsize}"
    both_nan = np.isnan(found) & np.isnan(wanted)
    return np.asarray((found.view(bits) != wanted.view(bits)) & ~both_nan)


def _demand(found: Array, wanted: Array, what: str) -> None:
    wrong = _wrong(found, wanted)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise WrongBitsError(f"{what}: at {at} got {found[at]!r}, expected {wanted[at]!r}")


def _lengths(dtype: Dtype) -> Iterator[tuple[int, int]]:
    """(columns, bytes past a register boundary): every length, then every alignment."""
    size = dtype.bits.itemsize
    unit = REGISTER // dtype.number.itemsize * (2 if dtype.short else 1)
    for columns in range(4 * unit + 1):
        yield columns, columns * size * 5 % REGISTER
    for offset in range(0, REGISTER, size):
        yield 3 * unit - 1, offset


class Memory:
    """Three operands with rows of any length at any alignment, and room around them."""

    def __init__(self, case: Case, most: int):
        self.pitch = (most * case.dtype.bits.itemsize // REGISTER + 3) * REGISTER
        self.bytes = [np.zeros((ROWS + 2) * (self.pitch + 8), np.uint8) for _ in range(3)]

    def views(self, case: Case, columns: int, offset: int, rows: int) -> tuple[Array, ...]:
        """Filled (rows, columns) views, `offset` bytes past a register boundary.

        With an odd number of columns rows differ in alignment.
        """
        size = case.dtype.bits.itemsize
        pitch = self.pitch + columns % 2 * size
        found = []
        for k, memory in enumerate(self.bytes):
            memory[:] = 0xA5
            start = -memory.ctypes.data % REGISTER + REGISTER + offset
            view = np.ndarray((rows, columns), case.dtype.bits, memory.data, start, (pitch, size))
            if k < 2:
                view[:] = (case.src, case.diff_dst)[k][:rows, :columns]
            found.append(view)
        return tuple(found)


def check_block_kernel(
    isa: str, kernel: tuple[str, str], dtype: Dtype, rng: np.random.Generator
) -> int:
    """Check all numbers of rows, lengths and alignments; return the number of runs."""
    most = max(columns for columns, _ in _lengths(dtype))
    runs = 0
    variants = [(s, u) for s in (False, True) for u in (False, True)]
    for rows in range(1, ROWS + 1):
        case = case_of(dtype, rows, most, rng)
        memory = Memory(case, most)
        for nontemporal, uniform in variants[:1] if kernel[0] == "sum" else variants:
            wanted = _kernels.expected(kernel, case, rows, uniform)
            for columns, offset in _lengths(dtype):
                operands = memory.views(case, columns, offset, rows)
                here = replace(
                    case,
                    planes=np.pad(case.planes[:, :columns], ((0, 0), (0, PAD))),
                    float_sums=np.pad(case.float_sums[:, :columns], ((0, 0), (0, PAD))),
                )
                _kernels.run(isa, kernel, here, operands, rows, columns, nontemporal, uniform)
                runs += 1
                what = (
                    f"{isa} {' '.join(kernel)} {dtype.name}: {rows} rows of {columns}, {offset} bytes past "
                    f"a boundary, nontemporal={nontemporal}, uniform={uniform}"
                )
                if kernel[0] == "sum":
                    for name, found, all_ in zip(
                        ("sums", "float_sums"), (here.planes, here.float_sums), wanted, strict=True
                    ):
                        _demand(found[:, :columns], all_[:, :columns], f"{what}: {name}")
                        _demand(found[:, columns:], np.zeros_like(found[:, columns:]), what)
                else:
                    _demand(operands[2], wanted[:, :columns], what)
                operands[2][:] = np.frombuffer(b"\xa5" * 8, dtype.bits)[0]
                if not (memory.bytes[2] == 0xA5).all():
                    raise WrongBitsError(f"{what}: wrote outside its rows")
    return runs


def check_sums_kernel(isa: str, kernel: str, dtype: Dtype, rng: np.random.Generator) -> int:
    runs = 0
    for columns in range(1, 4 * REGISTER // 8 + 1):
        case = case_of(dtype, 1, columns, rng)
        other = rng.standard_normal((4, columns)) * np.exp2(rng.integers(-30, 31, (4, columns)))
        wanted = _kernels.sums_kernel_expected(kernel, case, other)
        # Room behind, as scratch has it; it must stay as it was.
        planes = np.pad(case.planes, ((0, 0), (0, PAD)))
        float_sums = np.pad(case.float_sums, ((0, 0), (0, PAD)))
        if kernel == "sum_columns":
            into = planes.copy()
            _core._run_sums_kernel(isa, dtype.name, kernel, planes, float_sums, columns, into)
            planes = into
        else:
            more = np.pad(other, ((0, 0), (0, PAD)))
            _core._run_sums_kernel(isa, dtype.name, kernel, planes, float_sums, columns, more)
        what = f"{isa} {kernel}_{dtype.name}: {columns} columns"
        _demand(planes[:, :columns], wanted[0], what)
        _demand(float_sums[:, :columns], wanted[1], what)
        _demand(planes[:, columns:], np.zeros_like(planes[:, columns:]), what)
        runs += 1
    return runs


def check_expand(isa: str, kernel: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check few and many repetitions, channels and columns; return the number of runs."""
    runs = 0
    sizes = (1, 2, 3, 7, 16, 33)
    for all_, channels, each in itertools.product(sizes, repeat=3):
        channel = values(DTYPES[dtype.number.name], 1, channels, rng)[0]
        wanted = np.zeros(all_ * channels * each + PAD, channel.dtype)
        wanted[:-PAD] = _kernels.expand_expected(channel, all_, each)
        found = np.zeros_like(wanted)
        _kernels.run_expand(isa, dtype, channel, all_, each, found)
        _demand(found, wanted, f"{isa} {kernel}_{dtype.name}: {all_} x {channels} x {each}")
        runs += 1
    return runs


def check_level(isa: str, seed: int) -> int:
    """Check every kernel of one level; return the number of runs."""
    checks: dict[Any, Any] = dict.fromkeys(KERNELS, check_block_kernel)
    checks |= dict.fromkeys(SUMS_KERNELS, check_sums_kernel) | {"expand": check_expand}
    runs = 0
    for dtype in DTYPES.values():
        for kernel, check in checks.items():
            rng = np.random.default_rng([seed, *f"{kernel}_{dtype.name}".encode()])
            runs += check(isa, kernel, dtype, rng)
    return runs


# ---- whole calls ------------------------------------------------------------

Layout = Literal["NXC", "NCX"]
Shapes = list[tuple[tuple[int, ...], Layout]]
Problem = tuple[Array, Array, Layout]  # src, diff_dst

#: Each form of src_c/backward.c, and both sides of every length at which it takes another
#: form, or splits its sums in another way.
SHAPES: Shapes = [
    ((1, 8), "NXC"), ((3, 5), "NXC"), ((300, 7), "NXC"), ((40, 200), "NXC"), ((5000, 16), "NXC"),
    ((700, 127), "NXC"), ((700, 128), "NXC"), ((3000, 9), "NXC"),
    ((2, 3, 5), "NCX"), ((37, 6, 7, 7), "NCX"), ((300, 3, 49), "NCX"),
    ((4, 3, 255), "NCX"), ((4, 3, 256), "NCX"), ((20, 3, 319), "NCX"), ((20, 3, 320), "NCX"),
    ((70, 2, 1023), "NCX"), ((70, 2, 1024), "NCX"),
    ((1, 2, 70001), "NCX"), ((2, 2, 1500), "NCX"), ((2, 2, 70001), "NCX"), ((11, 1, 13), "NCX"),
    ((3, 2, 9000), "NCX"), ((9, 3, 20, 20), "NCX"), ((4, 2, 40000), "NCX"),
]  # fmt: skip
#: With gaps in memory along all axes.
GAPPED: Shapes = [
    ((6, 50, 7), "NXC"), ((3, 5, 140), "NXC"), ((40, 3, 5, 6), "NCX"),
    ((2, 2, 30, 90), "NCX"), ((5, 2, 30, 90), "NCX"),
]  # fmt: skip


def _large(size: int) -> Shapes:
    """Where tasks for many threads and the bytes of streams decide how sums are split."""
    return [
        ((20_000, 128), "NXC"), ((67_100, 128), "NXC"), ((17_500, 4096 // size), "NXC"),
        ((300, 2, 1100), "NCX"), ((3, 2, 200_000), "NCX"), ((3, 64, 16_900), "NCX"),
    ]  # fmt: skip


#: The data of a digest is in 2^first ... 2^(first + number), evenly over the exponents: so far
#: apart that sums must be rounded, which reveals the order of additions, while no product of
#: two overflows. The first exponent of float16 means subnormals.
EXPONENTS = {
    "float32": (-20, 40), "float64": (-40, 80), "float16": (-15, 19), "bfloat16": (-16, 32),
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
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _numbers(dtype: Dtype, count: int, start: int, exponents: tuple[int, int]) -> Array:
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


def _cancel(diff_dst: Array, layout: Layout, sign: Array) -> None:
    """Let every third channel sum to nearly zero, so that rounding errors show."""
    channels = np.moveaxis(diff_dst, -1 if layout == "NXC" else 1, 0)[1::3]
    rows = np.moveaxis(channels, 1 if channels.shape[1] > 1 else -1, 0)
    half = len(rows) // 2
    rows[half : 2 * half] = rows[:half] ^ sign


def _call(digest: Any, dtype: Dtype, problem: Problem, mode: str, num_threads: int | None) -> None:
    """Add what one call gives to a digest."""
    src, diff_dst, layout = problem
    channels = src.shape[-1 if layout == "NXC" else 1]
    number = DTYPES[dtype.number.name]
    mean, variance, gamma = (
        _numbers(number, channels, k << 50, exponents).view(dtype.number)
        for k, exponents in ((1, (-20, 24)), (2, (-4, 8)), (3, (-4, 8)))
    )
    # The sums as they are, before anything is rounded to a shorter type.
    results = [
        bn_ext.batch_norm_backward_reduce(
            src, diff_dst, mean, data_format=layout, num_threads=num_threads
        )
    ]
    if mode != "large":
        results += bn_ext.batch_norm_backward(
            src, diff_dst, mean, abs(variance), gamma, epsilon=1e-3, data_format=layout,
            is_training=mode == "training", num_threads=num_threads,
        )  # fmt: skip
    for array in results:
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())


def _problems(dtype: Dtype, storage: np.dtype[Any]) -> Iterator[Problem]:
    """Those of moderate size."""
    sign = dtype.bits.type(1 << (8 * dtype.bits.itemsize - 1))
    for gap, shapes in ((0, SHAPES), (3, GAPPED)):
        for shape, layout in shapes:
            room = [n + gap for n in shape]
            src, diff_dst = (
                _numbers(dtype, math.prod(room), start, EXPONENTS[dtype.name])
                .reshape(room)[tuple(slice(n) for n in shape)]
                for start in STARTS
            )  # fmt: skip
            _cancel(diff_dst, layout, sign)
            yield src.view(storage), diff_dst.view(storage), layout


def _large_problems(dtype: Dtype, storage: np.dtype[Any]) -> Iterator[Problem]:
    """The large ones: each row begins within the one before, so they need little memory."""
    for shape, layout in _large(storage.itemsize):
        steps = [8 * math.prod(shape[1 + i : -1]) for i in range(len(shape) - 1)] + [1]
        room = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        strides = [step * storage.itemsize for step in steps]
        src, diff_dst = (
            _numbers(dtype, room, start, EXPONENTS[dtype.name]).view(storage) for start in STARTS
        )
        yield as_strided(src, shape, strides), as_strided(diff_dst, shape, strides), layout


def digests(isa: str, num_threads: int | None = None) -> dict[str, str]:
    """{"dtype mode": digest} at one level; without bfloat16 if it is unknown.

    The modes are "training" and "frozen", and "large", which is sums alone.
    """
    found: dict[str, str] = {}
    before = bn_ext.get_isa()
    _core._use_isa(isa)
    try:
        for dtype in DTYPES.values():
            try:
                storage = dtype_of(dtype.name)
            except ImportError:
                continue
            sets = {("training", "frozen"): _problems, ("large",): _large_problems}
            for modes, problems in sets.items():
                made = {mode: hashlib.sha256() for mode in modes}
                for problem in problems(dtype, storage):
                    for mode, digest in made.items():
                        _call(digest, dtype, problem, mode, num_threads)
                found |= {f"{dtype.name} {mode}": d.hexdigest()[:16] for mode, d in made.items()}
    finally:
        _core._use_isa(before)
    return found


# ---- the command ------------------------------------------------------------


def verify(seed: int = 0, say: Callable[[str], object] = print) -> int:
    """Check every level this CPU has; return the exit status.

    Prints a line for each level; for the first wrong bit, what was expected and what came.
    """
    say(f"bn_ext {bn_ext.__version__}, levels: {', '.join(bn_ext.available_isas())}")
    start = time.perf_counter()
    try:
        for isa in bn_ext.available_isas():
            runs = check_level(isa, seed)
            found = digests(isa)
            wrong = {k: v for k, v in found.items() if DIGESTS.get(k) != v}
            if wrong:
                raise WrongBitsError(f"{isa}: digests of whole calls: {wrong}, expected {DIGESTS}")
            missing = "" if len(found) == len(DIGESTS) else " (no bfloat16 without ml_dtypes)"
            say(f"{isa:>8}: {runs} kernel runs and {len(found)} digests correct{missing}")
    except WrongBitsError as error:
        say(f"WRONG (seed {seed}): {error}\n{REPORT}")
        return 1
    say(f"every bit as promised, {time.perf_counter() - start:.1f} s")
    return 0


def print_digests() -> None:
    """Print what DIGESTS should hold, from the lowest level, after the arithmetic has changed."""
    for name, digest in digests(bn_ext.available_isas()[0]).items():
        print(f'    "{name}": "{digest}",')


def print_speeds() -> None:
    """Print GB/s of each kernel at each level, on one thread, in the first-level cache."""
    levels = bn_ext.available_isas()
    print(f"\n{'GB/s':>30}", *(f"{level:>9}" for level in levels))
    for dtype in DTYPES:
        for what, found in _kernels.speeds(dtype):
            print(f"{dtype} {what}".rjust(30), *(f"{speed:9.0f}" for speed in found.values()))
