"""Kernels against the arithmetic: all numbers of rows, lengths, alignments, every kind of value."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from bn_ext._verify import arithmetic, running
from bn_ext._verify.arithmetic import ROWS, SUMS_KERNELS
from bn_ext._verify.dtypes import DTYPES, Array, Dtype
from bn_ext._verify.formulas import KERNELS, Kernel, needs
from bn_ext._verify.running import REGISTER, Memory
from bn_ext._verify.values import PAD, Case, case_of, padded, some_sums, values

__all__ = ["WrongBitsError", "check_level"]


class WrongBitsError(AssertionError):
    """The bits of a kernel or a call differ from what they must be."""


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


def _demand_sums(case: Case, wanted: dict[str, Array], columns: int, what: str) -> None:
    """The sums, and zeros where the kernel may only have added zeros."""
    for name, found in (("sums", case.planes), ("float_sums", case.float_sums)):
        _demand(found[:, :columns], wanted[name][:, :columns], f"{what}: {name}")
        _demand(found[:, columns:], np.zeros_like(found[:, columns:]), what)


@dataclass(frozen=True)
class Block:
    """Where a block lies, and what it asks of a kernel."""

    rows: int
    columns: int
    offset: int
    nontemporal: bool
    uniform: bool

    def __str__(self) -> str:
        return (
            f"{self.rows} rows of {self.columns}, {self.offset} bytes past a boundary, "
            f"nontemporal={self.nontemporal}, uniform={self.uniform}"
        )


def _lengths(dtype: Dtype) -> Iterator[tuple[int, int]]:
    """(columns, bytes past a register boundary): every length, then every alignment."""
    size = dtype.bits.itemsize
    # A unit is a register of numbers, or of shorter elements.
    unit = REGISTER // size
    for columns in range(4 * unit + 1):
        yield columns, columns * size * 5 % REGISTER
    for offset in range(0, REGISTER, size):
        yield 3 * unit - 1, offset


def _check_block(
    isa: str, kernel: Kernel, here: Case, memory: Memory, at: Block, wanted: dict[str, Array]
) -> None:
    """Run a kernel on one block; it must give what is wanted, and write nothing else."""
    pass_, formula = kernel
    operands = memory.views(here, at.columns, at.offset, at.rows)
    running.run(isa, kernel, here, operands, at.nontemporal, at.uniform)
    what = f"{isa} {pass_} {formula} {here.dtype.name}: {at}"
    if pass_ == "sum":
        _demand_sums(here, wanted, at.columns, what)
    _, written, _ = needs(kernel)
    for name in written:
        _demand(operands[name], wanted[name][:, : at.columns], what)
        if not memory.is_untouched_around(name, operands[name]):
            raise WrongBitsError(f"{what}: wrote outside its rows")


def check_block_kernel(isa: str, kernel: Kernel, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check all numbers of rows, lengths and alignments; return the number of runs."""
    most = max(columns for columns, _ in _lengths(dtype))
    # What of stores and of coefficients there are two ways to do, in a pass that has both.
    ways = [(False, False)] if kernel[0] == "sum" else list(product((False, True), repeat=2))
    runs = 0
    for rows in range(1, ROWS + 1):
        case = case_of(dtype, rows, most, rng)
        memory = Memory(dtype, ROWS, most)
        for nontemporal, uniform in ways:
            wanted = arithmetic.expected(kernel, case, rows, uniform)
            for columns, offset in _lengths(dtype):
                here = case.with_columns(columns)
                at = Block(rows, columns, offset, nontemporal, uniform)
                _check_block(isa, kernel, here, memory, at, wanted)
                runs += 1
    return runs


def check_sums_kernel(isa: str, kernel: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check all lengths; return the number of runs."""
    lengths = range(1, 4 * REGISTER // 8 + 1)
    for columns in lengths:
        case = case_of(dtype, 1, columns, rng)
        other = some_sums(columns, rng)
        wanted = arithmetic.sums_expected(kernel, case, other)
        # Room behind, as scratch has it; it must stay as it was.
        here = case.with_columns(columns)
        into = here.planes.copy() if kernel == "sum_columns" else padded(other)
        running.run_sums(isa, kernel, here, columns, into)
        if kernel == "sum_columns":
            here = replace(here, planes=into)
        _demand_sums(here, wanted, columns, f"{isa} {kernel}_{dtype.name}: {columns} columns")
    return len(lengths)


def check_expand(isa: str, kernel: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check few and many repetitions, channels and columns; return the number of runs."""
    sizes = list(product((1, 2, 3, 7, 16, 33), repeat=3))
    for all_, channels, each in sizes:
        channel = values(dtype.computed, 1, channels, rng)[0]
        wanted = np.zeros(all_ * channels * each + PAD, channel.dtype)
        wanted[:-PAD] = arithmetic.expand(channel, all_, each)
        found = np.zeros_like(wanted)
        running.run_expand(isa, dtype, channel, all_, each, found)
        _demand(found, wanted, f"{isa} {kernel}_{dtype.name}: {all_} x {channels} x {each}")
    return len(sizes)


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
