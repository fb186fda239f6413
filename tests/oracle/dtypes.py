"""Storage types as bits, so that kernels are checked in bfloat16 even without ml_dtypes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext import _dtypes

Array = NDArray[Any]


class Dtype(_dtypes.Dtype):
    """A storage type as bits, and the type it is computed in."""

    @property
    def loses(self) -> bool:
        """Do sums need compensations? (As in src_c/base/dtypes.h.)"""
        return self.name == "float64"

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
            rounded = word + np.uint32(0x7FFF) + (kept & np.uint32(1))
            bits = (rounded >> np.uint32(16)).astype(np.uint16)
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
        return DTYPES[self.number.name]


DTYPES = {name: Dtype(*facts) for name, facts in _dtypes.DTYPES.items()}
