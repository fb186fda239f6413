"""One kernel, run by itself on memory that the caller laid out."""

from collections.abc import Mapping

import numpy as np

from bn_ext import _core
from bn_ext._verify.dtypes import Array, Dtype
from bn_ext._verify.formulas import OPERANDS, Kernel
from bn_ext._verify.values import Case

__all__ = ["REGISTER", "Memory", "run", "run_expand", "run_sums"]

#: Bytes of a stretch: so far reach the coefficients of a uniform block.
STRETCH: int = _core._kernel_interface()["stretch"]
#: Bytes of the widest register: a unit of columns is one of it, or two.
REGISTER = 64
#: What memory holds that a kernel must leave alone.
UNTOUCHED = 0xA5


class Memory:
    """Every operand, in rows of any length at any alignment, with room around them."""

    def __init__(self, dtype: Dtype, rows: int, most: int):
        self.dtype = dtype
        self.pitch = (most * dtype.bits.itemsize // REGISTER + 3) * REGISTER
        self.bytes = {name: np.zeros((rows + 2) * (self.pitch + 8), np.uint8) for name in OPERANDS}

    def views(self, case: Case, columns: int, offset: int, rows: int) -> dict[str, Array]:
        """(rows, columns) views, `offset` bytes past a register boundary, inputs filled.

        With an odd number of columns rows differ in alignment.
        """
        size = self.dtype.bits.itemsize
        pitch = self.pitch + columns % 2 * size
        found = {}
        for name, memory in self.bytes.items():
            memory[:] = UNTOUCHED
            start = -memory.ctypes.data % REGISTER + REGISTER + offset
            view = np.ndarray((rows, columns), self.dtype.bits, memory.data, start, (pitch, size))
            if name in case.operands:
                view[:] = case.operands[name][:rows, :columns]
            found[name] = view
        return found

    def is_untouched_around(self, name: str, view: Array) -> bool:
        """Whether nothing was written around the view of an operand; wipes the view itself."""
        view[:] = np.frombuffer(bytes([UNTOUCHED]) * 8, view.dtype)[0]
        return bool((self.bytes[name] == UNTOUCHED).all())


def run(
    isa: str,
    kernel: Kernel,
    case: Case,
    operands: Mapping[str, Array],
    nontemporal: bool = False,
    uniform: bool = False,
    calls: int = 1,
) -> None:
    """Run a kernel on (rows, columns) views of memory; sums go to the case's own arrays."""
    views = [operands[name] for name in OPERANDS]
    block = (
        [a.ctypes.data for a in views],
        [a.strides[0] for a in views],
        [0 for _ in views],
        1,
        *views[0].shape,
        nontemporal,
        uniform,
    )
    coefs = case.coefs
    if uniform:
        coefs = np.repeat(coefs[:, :1], STRETCH // case.dtype.bits.itemsize, axis=1)
    coefs = np.ascontiguousarray(coefs)
    _core._run_kernel(
        isa, case.dtype.name, *kernel, block, coefs.view(np.uint8), case.planes, case.float_sums,
        coefs.shape[1], calls,
    )  # fmt: skip


def run_sums(isa: str, kernel: str, case: Case, columns: int, other: Array) -> None:
    """Run a kernel that works on sums, on the case's own arrays; sum_columns: into `other`."""
    _core._run_sums_kernel(
        isa, case.dtype.name, kernel, case.planes, case.float_sums, columns, other
    )


def run_expand(isa: str, dtype: Dtype, channel: Array, all_: int, each: int, column: Array) -> None:
    """Lay `channel`, of the arithmetic type, out in `column`; either may be bits."""
    _core._run_expand(
        isa, dtype.name, channel.view(np.uint8), all_, len(channel), each, column.view(np.uint8)
    )
