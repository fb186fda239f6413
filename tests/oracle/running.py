"""Run a single kernel on memory that the caller has laid out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle import arithmetic, compiled
from oracle.dtypes import Array, Dtype
from oracle.formulas import GATE, OPERANDS, Kernel, needs
from oracle.values import Case

_INTERFACE = compiled.interface()
#: A box as `compiled.run_sum_kernel` takes it.
Box = tuple[Any, ...]
#: The rows and the repeats of one or two boxes.
Parts = tuple[tuple[int, int], ...]
#: Names of the dtypes whose rings have even columns first.
PAIRED: tuple[str, ...] = _INTERFACE["paired"]
#: How many rows a ring may have abreast.
ABREAST: int = _INTERFACE["abreast"]
#: Bytes of the widest register.
REGISTER = 64
#: The value of bytes that a kernel must not touch.
UNTOUCHED = 0xA5


class Bits:
    """A gate as kernels see it: rows of bits; distances are in bits."""

    def __init__(self, memory: Array, start: int, pitch: int):
        self.memory, self.start, self.strides = memory, start, (pitch,)

    def fill(self, values: Array) -> None:
        """Set the elements of the rows to these zeros and ones, and all other bits to 1."""
        bits = np.ones(8 * len(self.memory), np.uint8)
        np.ndarray(values.shape, np.uint8, bits.data, self.start, (self.strides[0], 1))[:] = values
        self.memory[:] = np.packbits(bits, bitorder="little")


def address_of(view: Array | Bits) -> int:
    return int((view.memory if isinstance(view, Bits) else view).ctypes.data)


class Memory:
    """Memory for every operand, in rows of any length at any alignment, with room around them.

    Operands that a kernel does not touch are not filled, to save time.
    """

    def __init__(self, dtype: Dtype, rows: int, most: int, kernel: Kernel):
        self.dtype = dtype
        reads, writes, _ = needs(kernel)
        self.touched = {*reads, *writes}
        self.pitch = (most * dtype.bits.itemsize // REGISTER + 3) * REGISTER
        size = (rows + 2) * (self.pitch + 8 + len(OPERANDS) * REGISTER) + 2 * REGISTER
        self.bytes = {name: np.zeros(size, np.uint8) for name in OPERANDS}
        self.bytes[GATE] = np.zeros(size // (8 * dtype.bits.itemsize) + REGISTER, np.uint8)

    def views(self, case: Case, columns: int, offset: int, rows: int) -> dict[str, Any]:
        """(rows, columns) views, `offset` bytes past a register boundary, inputs filled.

        With an odd number of columns, rows differ in their alignment.
        """
        size = self.dtype.bits.itemsize
        pitch = self.pitch + columns % 2 * size
        views: dict[str, Any] = {}
        for k, (name, memory) in enumerate(self.bytes.items()):
            if name in self.touched:
                memory[:] = UNTOUCHED
            start = -memory.ctypes.data % REGISTER + REGISTER + offset
            strides = pitch + k * REGISTER, size  # each operand has a pitch of its own
            if name == GATE:
                views[name] = Bits(memory, (REGISTER + offset) // size, strides[0] // size)
                if name in self.touched:
                    views[name].fill(case.operands[name][:rows, :columns])
                continue
            view = np.ndarray((rows, columns), self.dtype.bits, memory.data, start, strides)
            if name in self.touched and name in case.operands:
                view[:] = case.operands[name][:rows, :columns]
            views[name] = view
        return views

    def is_untouched_around(self, name: str, view: Array) -> bool:
        """Whether nothing was written around the view of an operand; wipes the view itself."""
        view[:] = np.frombuffer(bytes([UNTOUCHED]) * 8, view.dtype)[0]
        return bool((self.bytes[name] == UNTOUCHED).all())


def _box(
    operands: Mapping[str, Any], row: int, distances: tuple[int, int, int], *sizes: int | bool
) -> Box:
    """From a row of 2-D views on, a box whose rows, repeats and channels are so many rows apart."""
    views = [operands[name] for name in OPERANDS]
    bit = next((a.start + row * a.strides[0] for a in views if isinstance(a, Bits)), 0)
    apart = [[n * a.strides[0] for a in views] for n in distances]
    at = [address_of(a) + (0 if isinstance(a, Bits) else row * a.strides[0]) for a in views]
    return (at, bit, *apart, *sizes)


def run_sum(isa: str, formula: str, case: Case, operands: Mapping[str, Any], rows: int) -> None:
    """Sum (repeats x rows, columns) views of memory; sums go to the case's own array."""
    coefs = np.ascontiguousarray(case.coefs)
    all_rows, columns = operands[OPERANDS[0]].shape
    boxes = [_box(operands, 0, (1, rows, 0), rows, all_rows // rows, 1, columns)]
    arrays = coefs.view(np.uint8), coefs.shape[1], case.planes, np.full_like(case.planes, np.nan)
    compiled.run_sum_kernel(isa, case.dtype.name, formula, "columns", boxes, *arrays)


def run_runs(
    isa: str,
    formula: str,
    case: Case,
    operands: Mapping[str, Any],
    parts: Parts,
    planes: Array,
    folded: bool,
) -> None:
    """Sum runs of (channels x rows, columns) views; a block begins where the one before ends."""
    channels = planes.shape[1]
    columns = operands[OPERANDS[0]].shape[1]
    step = parts[0][0]
    starts = [0, step * parts[0][1]]
    per_channel = step * sum(repeats for _, repeats in parts)
    boxes = [
        _box(operands, start, (1, step, per_channel), rows, repeats, channels, columns)
        for start, (rows, repeats) in zip(starts, parts, strict=False)
    ]
    coefs = np.ascontiguousarray(case.coefs[:, :channels]).view(np.uint8)
    form = "long runs" if folded else "short runs"
    arrays = coefs, channels, planes, None
    compiled.run_sum_kernel(isa, case.dtype.name, formula, form, boxes, *arrays)


@dataclass(frozen=True)
class Span:
    """How rows are written: what coefficients they have, and more.

    With a period, coefficients are a ring. Without, each row has those of one channel: rows belong
    to `channels` channels in turn, starting with channel `first`.
    """

    period: int | None
    first: int = 0
    nontemporal: bool = False
    abreast: bool = False
    channels: int = 1

    def coefs_of(self, coefs: Array, rows: int, columns: int) -> Array:
        """The coefficients of each element of (rows, columns)."""
        if self.period is None:
            return coefs[:, self.first + np.arange(rows) % self.channels, None]
        return coefs[:, np.arange(columns) % self.period]


def _laid_out(span: Span, dtype: Dtype, coefs: Array) -> tuple[Array, int]:
    """Planes of coefficients as kernels.h describes them, and the period."""
    if span.period is None:
        return np.ascontiguousarray(span.coefs_of(coefs, span.channels, 1)[:, :, 0]), 1
    period = span.period << (span.period & 1)
    n = period + _INTERFACE["ring_pad"]
    ring = arithmetic.expand(coefs[:, : span.period], 1, n, dtype.name in PAIRED)
    return np.ascontiguousarray(ring), period


def run_write(
    isa: str,
    formula: str,
    case: Case,
    operands: Mapping[str, Any],
    span: Span,
    placed: Callable[[Array], Array] = lambda coefs: coefs,
) -> None:
    """Write (rows, columns) views of memory. A repeat is a row of each channel of the span, or as
    many rows as are abreast. Coefficients lie where `placed` copies them.
    """
    rows, columns = operands[OPERANDS[0]].shape
    abreast = ABREAST if span.abreast else 1
    repeats = rows // abreast // span.channels
    coefs, period = _laid_out(span, case.dtype, case.coefs)
    sizes = abreast, repeats, span.channels, columns, span.nontemporal
    box = _box(operands, 0, (1, span.channels * abreast, 1), *sizes)
    arrays = placed(coefs).view(np.uint8), coefs.shape[1], period, span.period is None
    compiled.run_write_kernel(isa, case.dtype.name, formula, box, *arrays)


def run_relu_mask(isa: str, dtype: Dtype, elements: Array) -> Array:
    """Which elements, given as bits of a dtype, a ReLU passes: one bit each, in words of 64."""
    mask = np.zeros(-(-len(elements) // 64), np.uint64)
    compiled.run_relu_mask(isa, dtype.name, elements.view(np.uint8), len(elements), mask)
    return mask
