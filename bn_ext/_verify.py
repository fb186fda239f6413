"""`python -m bn_ext verify`: the promise of equal bits, proved on the CPU at hand.

First every kernel of every instruction-set level against NumPy doing the same arithmetic,
bit for bit: all numbers of rows, all lengths up to four times the widest unit, all
alignments, values of every kind. Then whole calls against digests that are the same on
every machine.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

import bn_ext
from bn_ext import _core, _kernels
from bn_ext._bench.problems import dtype_of
from bn_ext._kernels import DTYPES, KERNELS, PAD, REGISTER, ROWS, SUMS_KERNELS, Array, Case, Dtype

__all__ = ["WrongBitsError", "digests", "print_digests", "print_speeds", "verify"]

REPORT = (
    "This breaks the promise of equal bits: please report it to the project's issue tracker,\n"
    "with the lines above and what `python -c 'import bn_ext; bn_ext.show_config()'` prints."
)

#: SHA-256 of what `digests` calls give, the first 16 digits; equal on every machine.
DIGESTS: dict[str, str] = {
    "float32 training": "5c4de85dc04875a8",
    "float32 frozen": "5f9da0d4dcb3b2b2",
    "float64 training": "fe88cf5626433514",
    "float64 frozen": "220c7d832c96d4ef",
    "float16 training": "2fdedf6158e6b202",
    "float16 frozen": "cc64a7fb7f49788c",
    "bfloat16 training": "7cc113a0f46afedf",
    "bfloat16 frozen": "98fd1b0a0dc0446c",
}


class WrongBitsError(AssertionError):
    """A kernel gave other bits than its reference."""


# ---- inputs -----------------------------------------------------------------


def _boundary(dtype: Dtype) -> Array:
    """Bits at the edges of a format: zeros, subnormals, ones, the largest, Inf, NaNs."""
    size = 8 * dtype.bits.itemsize
    fraction = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}[dtype.name]
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
    """Where bits differ; of sums, which nobody sees, NaNs are equal whatever their bits."""
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


def check_block_kernel(isa: str, kernel: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """All numbers of rows, lengths and alignments; the number of runs."""
    most = max(columns for columns, _ in _lengths(dtype))
    runs = 0
    variants = [(s, u) for s in (False, True) for u in (False, True)]
    for rows in range(1, ROWS + 1):
        case = case_of(dtype, rows, most, rng)
        memory = Memory(case, most)
        for streaming, uniform in variants[:1] if kernel == "reduce" else variants:
            wanted = _kernels.expected(kernel, case, rows, uniform)
            for columns, offset in _lengths(dtype):
                operands = memory.views(case, columns, offset, rows)
                here = replace(
                    case,
                    planes=np.pad(case.planes[:, :columns], ((0, 0), (0, PAD))),
                    running=np.pad(case.running[:, :columns], ((0, 0), (0, PAD))),
                )
                _kernels.run(isa, kernel, here, operands, rows, columns, streaming, uniform)
                runs += 1
                what = (
                    f"{isa} {kernel}_{dtype.name}: {rows} rows of {columns}, {offset} bytes past "
                    f"a boundary, streaming={streaming}, uniform={uniform}"
                )
                if kernel == "reduce":
                    for name, found, all_ in zip(
                        ("sums", "running"), (here.planes, here.running), wanted, strict=True
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
        running = np.pad(case.running, ((0, 0), (0, PAD)))
        if kernel == "total":
            into = planes.copy()
            _core._run_sums_kernel(isa, dtype.name, kernel, planes, running, columns, into)
            planes = into
        else:
            more = np.pad(other, ((0, 0), (0, PAD)))
            _core._run_sums_kernel(isa, dtype.name, kernel, planes, running, columns, more)
        what = f"{isa} {kernel}_{dtype.name}: {columns} columns"
        _demand(planes[:, :columns], wanted[0], what)
        _demand(running[:, :columns], wanted[1], what)
        _demand(planes[:, columns:], np.zeros_like(planes[:, columns:]), what)
        runs += 1
    return runs


def check_expand(isa: str, kernel: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Few and many repetitions, channels and columns of each; the number of runs."""
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
    """Every kernel of one level; the number of runs."""
    checks = dict.fromkeys(KERNELS, check_block_kernel)
    checks |= dict.fromkeys(SUMS_KERNELS, check_sums_kernel) | {"expand": check_expand}
    runs = 0
    for dtype in DTYPES.values():
        for kernel, check in checks.items():
            rng = np.random.default_rng([seed, *f"{kernel}_{dtype.name}".encode()])
            runs += check(isa, kernel, dtype, rng)
    return runs


# ---- whole calls ------------------------------------------------------------

SHAPES: list[tuple[tuple[int, ...], Literal["NXC", "NCX"]]] = [
    ((3, 5), "NXC"), ((1, 8), "NXC"), ((300, 7), "NXC"), ((40, 200), "NXC"),
    ((2, 3, 5), "NCX"), ((37, 6, 7, 7), "NCX"), ((2, 3, 31, 33), "NCX"), ((9, 3, 20, 20), "NCX"),
    ((4, 2, 40000), "NCX"), ((1, 2, 70001), "NCX"), ((11, 1, 13), "NCX"), ((5000, 16), "NXC"),
]  # fmt: skip


def _numbers(shape: tuple[int, ...], start: int) -> Array:
    """Reproducible numbers in (-4, 4), from integers alone; the same on every machine."""
    index = np.arange(start, start + int(np.prod(shape)), dtype=np.uint64)
    mixed = index * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    whole = (mixed >> np.uint64(40)).astype(np.float64)
    return ((whole - 2.0**23) / 2.0**21).reshape(shape)


def digests(isa: str) -> dict[str, str]:
    """{"dtype mode": digest} at one level, over SHAPES; without bfloat16 if it is unknown."""
    found = {}
    before = bn_ext.get_isa()
    _core._use_isa(isa)
    try:
        for dtype in DTYPES.values():
            try:
                storage = dtype_of(dtype.name)
            except ImportError:
                continue
            for mode in ("training", "frozen"):
                digest = hashlib.sha256()
                for shape, layout in SHAPES:
                    channels = shape[-1] if layout == "NXC" else shape[1]
                    src, diff_dst = (_numbers(shape, k).astype(storage) for k in (1, 1 << 40))
                    vectors = [
                        _numbers((channels,), k << 50).astype(dtype.number) for k in (1, 2, 3)
                    ]
                    vectors[1] = np.abs(vectors[1])
                    result = bn_ext.batch_norm_backward(
                        src, diff_dst, *vectors, epsilon=1e-3, data_format=layout,
                        is_training=mode == "training",
                    )  # fmt: skip
                    # The sums as they are, before anything is rounded to a shorter type.
                    sums = bn_ext.batch_norm_backward_reduce(
                        src, diff_dst, vectors[0], data_format=layout
                    )
                    for array in (*result, sums):
                        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
                found[f"{dtype.name} {mode}"] = digest.hexdigest()[:16]
    finally:
        _core._use_isa(before)
    return found


# ---- the command ------------------------------------------------------------


def verify(seed: int = 0, say: Callable[[str], object] = print) -> int:
    """Check every level this CPU has; the exit status.

    Prints a line for each level; on the first wrong bit what was expected and what came.
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
            missing = "" if len(found) == len(DIGESTS) else " (no bfloat16: no ml_dtypes)"
            say(f"{isa:>8}: {runs} kernel runs and {len(found)} digests right{missing}")
    except WrongBitsError as error:
        say(f"WRONG (seed {seed}): {error}\n{REPORT}")
        return 1
    say(f"every bit as promised, {time.perf_counter() - start:.1f} s")
    return 0


def print_digests() -> None:
    """What DIGESTS should hold, from the least level, for who changes the arithmetic."""
    for name, digest in digests(bn_ext.available_isas()[0]).items():
        print(f'    "{name}": "{digest}",')


def print_speeds() -> None:
    """GB/s of each kernel at each level, one thread, in the first-level cache."""
    levels = bn_ext.available_isas()
    print(f"\n{'GB/s':>30}", *(f"{level:>9}" for level in levels))
    for dtype in DTYPES:
        for what, found in _kernels.speeds(dtype):
            print(f"{dtype} {what}".rjust(30), *(f"{speed:9.0f}" for speed in found.values()))
