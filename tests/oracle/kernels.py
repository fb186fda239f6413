"""Compare kernels with arithmetic.py: rows, spans, lengths, alignments, every kind of value."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from oracle import arithmetic, running
from oracle.arithmetic import GROUP, ROWS
from oracle.dtypes import Array, Dtype
from oracle.formulas import KERNELS, SUMS, Kernel, needs
from oracle.running import ABREAST, REGISTER, Memory, Span
from oracle.values import Case, case_of


class WrongBitsError(AssertionError):
    """The bits of a kernel differ from what they must be."""


def _wrong(results: Array, wanted: Array) -> Array:
    """Where bits differ. In sums, which users do not see, all NaNs count as equal."""
    if results.dtype.kind != "f":
        return np.asarray(results != wanted)
    bits = f"u{results.itemsize}"
    both_nan = np.isnan(results) & np.isnan(wanted)
    return np.asarray((results.view(bits) != wanted.view(bits)) & ~both_nan)


def demand(results: Array, wanted: Array, place: str) -> None:
    wrong = _wrong(results, wanted)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise WrongBitsError(f"{place}: at {at} got {results[at]!r}, expected {wanted[at]!r}")


def _demand_sums(case: Case, wanted: dict[str, Array], columns: int, place: str) -> None:
    """Check the sums, and that columns after them are 0: kernels may only add zeros there."""
    planes = case.planes
    demand(planes[:, :columns], wanted["sums"][:, :columns], f"{place}: sums")
    demand(planes[:, columns:], np.zeros_like(planes[:, columns:]), place)


def _lengths(dtype: Dtype, units: int) -> Iterator[tuple[int, int]]:
    """(columns, bytes past a register boundary): many lengths, then many alignments.

    Lengths: all up to four registers, then those near a whole number of registers, up to `units`.
    """
    size = dtype.bits.itemsize
    # A unit is a register full of elements as they are stored.
    unit = REGISTER // size
    for columns in range(units * unit + 2):
        if columns <= 4 * unit or columns % unit in (0, 1, unit - 1):
            yield columns, columns * size * 5 % REGISTER
    for offset in (*range(0, REGISTER, size), 1):
        yield 3 * unit - 1, offset


def _share(kernel: Kernel, lengths: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """All lengths for the first formula of a pass, a third of them for any other.

    Formulas share their loops, and three successive ones together cover all lengths.
    """
    turn = KERNELS.index(kernel)
    first = turn == 0 or KERNELS[turn - 1][0] != kernel[0]
    return list(lengths) if first else list(lengths)[turn % 3 :: 3]


def check_sum_kernel(isa: str, formula: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check rows, repeats, lengths and alignments; return how often the kernel ran."""
    lengths = _share(("sum", formula), _lengths(dtype, 4))
    most = max(columns for columns, _ in lengths)
    shapes = list(product(range(1, ROWS + 1), (1, 2, GROUP, 2 * GROUP + 1)))
    memory = Memory(dtype, ROWS * (2 * GROUP + 1), most, ("sum", formula))
    for rows, repeats in shapes:
        case = case_of(dtype, rows * repeats, most, rng, SUMS[formula])
        wanted = arithmetic.expected(("sum", formula), case, rows)
        for columns, offset in lengths:
            cut = case.with_columns(columns)
            operands = memory.views(cut, columns, offset, rows * repeats)
            running.run_sum(isa, formula, cut, operands, rows)
            place = f"{isa} sum {formula} {dtype.name}: {repeats} x {rows} rows of {columns}"
            _demand_sums(cut, wanted, columns, f"{place}, {offset} bytes past a boundary")
    return len(shapes) * len(lengths)


def _run_lengths(dtype: Dtype) -> Iterator[tuple[int, int]]:
    """Like _lengths, for long runs: also near the ends of stretches and of groups of stretches."""
    yield from _lengths(dtype, 4)
    unit, stretch = REGISTER // dtype.bits.itemsize, arithmetic.stretch_of(dtype)
    for stretches in (GROUP, GROUP + 1, 2 * GROUP):
        for beyond in (-unit, -1, 0, 1, unit, unit + 1):
            yield stretches * stretch + beyond, 8


def _parts_of(
    case: Case, parts: running.Parts, columns: int, channel: int
) -> Iterator[tuple[Case, int]]:
    """(case, rows of a block) for each of a channel's boxes: blocks start a step apart."""
    step = parts[0][0]
    block = channel * sum(repeats for _, repeats in parts)
    for rows, repeats in parts:
        own = (step * np.arange(block, block + repeats)[:, None] + np.arange(rows)).ravel()
        cut = {name: bits[own, :columns] for name, bits in case.operands.items()}
        yield replace(case, operands=cut, coefs=case.coefs[:, channel, None]), rows
        block += repeats


def check_runs_kernel(isa: str, formula: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check channels of one box and of two, of one group and of several.

    Only long runs, which are folded, have several groups. Return how often the kernel ran.
    """
    stretch, channels, ran = arithmetic.stretch_of(dtype), 3, 0
    short = [at for at in list(_lengths(dtype, 4))[::5] if at[0]]
    long = [*_share(("sum", formula), _run_lengths(dtype)), (stretch, 0)]
    each_shape: list[running.Parts] = [((ROWS, GROUP),), ((ROWS, 2), (3, 1)), ((2, 1), (1, 1))]
    sizes = (1, 1), (1, GROUP), (3, GROUP + 1), (ROWS, 2 * GROUP + 1)
    all_shapes = [*each_shape, *((size,) for size in sizes)]
    for folded, shapes, lengths in ((True, all_shapes, long), (False, each_shape, short)):
        most = max(columns for columns, _ in lengths)
        for parts in shapes:
            rows_of_channel = parts[0][0] * sum(repeats for _, repeats in parts)
            case = case_of(dtype, channels * rows_of_channel, most, rng, SUMS[formula])
            memory = Memory(dtype, channels * rows_of_channel, most, ("sum", formula))
            for columns, offset in lengths:
                operands = memory.views(case, columns, offset, channels * rows_of_channel)
                sums = np.full((len(case.planes), channels), np.nan)
                running.run_runs(isa, formula, case, operands, parts, sums, folded)
                ran += 1
                kept = len(sums) if dtype.loses else len(sums) // 2
                for c in range(channels):
                    boxes = list(_parts_of(case, parts, columns, c))
                    wanted = arithmetic.sums_of_runs(formula, boxes, folded)
                    place = f"{isa} runs {formula} {dtype.name}: {parts} of {columns}, {offset=}"
                    demand(sums[:kept, c], wanted[:kept], f"{place}, {folded=}, channel {c}")
    return ran


def _spans(most: int, turn: int) -> Iterator[Span]:
    """All kinds of spans. The period of rings changes with `turn`."""
    periods = (1, 2, 3, 7, 15, 33, 64, 100, most)
    period = min(periods[turn % len(periods)], most)
    channels = 1 + turn // 2 % 2
    for nontemporal, abreast in product((False, True), repeat=2):
        if not abreast:
            yield Span(None, turn % (most - 1), nontemporal, channels=channels)
        yield Span(period, 0, nontemporal, abreast)


def check_write_kernel(isa: str, formula: str, dtype: Dtype, rng: np.random.Generator) -> int:
    """Check lengths, alignments and all kinds of spans; return how often the kernel ran."""
    kernel = "write", formula
    _, written, _ = needs(kernel)
    lengths = _share(kernel, _lengths(dtype, 6))
    most = max(columns for columns, _ in lengths)
    rows = 2 * ABREAST
    case = case_of(dtype, rows, most, rng)
    memory = Memory(dtype, rows, most, kernel)
    runs = 0
    for turn, (columns, offset) in enumerate(lengths):
        for span in _spans(most, turn):
            operands = memory.views(case, columns, offset, rows)
            running.run_write(isa, formula, case, operands, span)
            cut = {name: bits[:, :columns] for name, bits in case.operands.items()}
            part = replace(case, operands=cut, coefs=span.coefs_of(case.coefs, rows, columns))
            wanted = arithmetic.expected(kernel, part, rows)
            place = (
                f"{isa} write {formula} {dtype.name}: {columns} columns, {offset} bytes past a "
                f"boundary, {span}"
            )
            for name in written:
                demand(operands[name], wanted[name], place)
                if not memory.is_untouched_around(name, operands[name]):
                    raise WrongBitsError(f"{place}: wrote outside its rows")
            runs += 1
    return runs


def check_kernels(isa: str, dtype: Dtype, seed: int) -> int:
    """Check the kernels of every formula at one level and dtype; return how often kernels ran."""
    of_pass: dict[str, tuple[Any, ...]] = {
        "sum": (check_sum_kernel, check_runs_kernel),
        "write": (check_write_kernel,),
    }
    checks = [(formula, check) for pass_, formula in KERNELS for check in of_pass[pass_]]
    runs = 0
    for name, check in checks:
        rng = np.random.default_rng([seed, *f"{check.__name__} {name} {dtype.name}".encode()])
        runs += check(isa, name, dtype, rng)
    return runs
