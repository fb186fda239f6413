"""Where the arguments of a call lie: some at odd elements, some where others lay before."""

import math
from typing import Any

import numpy as np

#: Larger arrays lie elsewhere in each call, since they would stay in memory.
MOST = 1 << 14
#: Bytes that addresses are multiples of, or are not, by an element.
ALIGNED = 64


class Places:
    """Memory for the arguments of all calls of a trial. Arrays of the same name, shape and dtype
    lie at the same address in all cases, so that what a function has kept by address is old there.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Any] = {}

    def copy(self, name: str, array: Any) -> Any:
        """The same array, in such a place."""
        if not array.size:
            return array.copy()
        key = name, array.shape, array.dtype
        if key not in self.kept:
            place = _place(array.shape, array.dtype)
            if array.nbytes > MOST:
                place[...] = array
                return place
            self.kept[key] = place
        self.kept[key][...] = array
        return self.kept[key]

    def hold(self, array: Any) -> bool:
        """Is an array in this memory, so that the next call may change it?"""
        return any(np.may_share_memory(array, place) for place in self.kept.values())


def _place(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array at a multiple of ALIGNED or, of every other shape, an element behind one."""
    count, item = math.prod(shape), dtype.itemsize
    memory = np.empty(count * item + 2 * ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED + item * (sum(shape) % 2)
    return memory[start : start + count * item].view(dtype).reshape(shape)
