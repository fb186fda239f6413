"""Facts of the dtypes, for what checks and times results. (The core's are in base/dtypes.h.)"""

from typing import Any, NamedTuple

import numpy as np


class Dtype(NamedTuple):
    """A floating-point type of IEEE 754's kind."""

    name: str
    #: Unsigned integers of its size: NumPy may not know the type itself.
    bits: np.dtype[Any]
    fraction: int  # its number of bits
    #: The type that kernels compute in.
    number: np.dtype[Any]

    @property
    def unit(self) -> float:
        """Half the spacing of numbers at 1: the u of error bounds."""
        return 2.0 ** -(self.fraction + 1)

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (1 - self._bias - self.fraction)

    @property
    def largest(self) -> float:
        return (2 - 2.0**-self.fraction) * 2.0**self._bias

    @property
    def nan(self) -> int:
        """The bits of the NaN that results have."""
        return (2 * self._bias + 1 << self.fraction) + (1 << self.fraction - 1)

    @property
    def _bias(self) -> int:
        return (1 << 8 * self.bits.itemsize - self.fraction - 2) - 1


DTYPES = {
    name: Dtype(name, np.dtype(bits), fraction, np.dtype(number))
    for name, bits, fraction, number in (
        ("float32", "u4", 23, "f4"),
        ("float64", "u8", 52, "f8"),
        ("float16", "u2", 10, "f4"),
        ("bfloat16", "u2", 7, "f4"),
    )
}


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name in DTYPES; ImportError for bfloat16 without ml_dtypes."""
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  (NumPy knows the name from then on)
        except ImportError:
            message = "bfloat16 needs ml_dtypes: python -m pip install ml_dtypes"
            raise ImportError(message) from None
    return np.dtype(name)
