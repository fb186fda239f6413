"""Storage types as bits, so that kernels are checked in bfloat16 even without ml_dtypes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "Array", "Dtype"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Dtype:
    """A storage type as bits, and the type it is computed in."""

    name: str
    bits: np.dtype[Any]
    number: np.dtype[Any]
    fraction: int  # its number of bits
    nan: int
    #: Do sums need compensations? (As in src_c/base/dtypes.h.)
    loses: bool

    def widen(self, bits: Array) -> Array:
        """Values in the arithmetic type."""
        if self.name == "bfloat16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.name == "float16":
            return bits.view(np.float16).astype(np.float32)
        return bits.view(self.number)

    def narrow(self, values: Array) -> Array:
        """Bits, rounded to nearest even; what is too large becomes Inf, NaNs the canonical NaN."""
        if self.name == "bfloat16":
            word = values.view(np.uint32)
            kept = word >> np.uint32(16)
            bits = ((word + np.uint32(0x7FFF) + (kept & np.uint32(1))) >> np.uint32(16)).astype(
                np.uint16
            )
        elif self.name == "float16":
            with np.errstate(over="ignore"):
                bits = values.astype(np.float16).view(np.uint16)
        else:
            bits = values.view(self.bits)
        bits = bits.copy()
        bits[np.isnan(values)] = self.nan
        return bits

    @property
    def computed(self) -> "Dtype":
        """The arithmetic type, as a storage type."""
        return DTYPES[self.number.name]


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
DTYPES = {
    d.name: d
    for d in (
        Dtype("float32", np.dtype(np.uint32), _F32, 23, 0x7FC00000, False),
        Dtype("float64", np.dtype(np.uint64), _F64, 52, 0x7FF8 << 48, True),
        Dtype("float16", np.dtype(np.uint16), _F32, 10, 0x7E00, False),
        Dtype("bfloat16", np.dtype(np.uint16), _F32, 7, 0x7FC0, False),
    )
}
