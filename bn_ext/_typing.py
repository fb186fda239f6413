"""What the functions accept, for type checkers. Dtypes and shapes are checked only at run time."""

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

_Scalar = TypeVar("_Scalar", bound=np.generic, covariant=True)
if TYPE_CHECKING:
    import array
    import ctypes

    from numpy.typing import DTypeLike as DTypeLike, NDArray as NDArray

    from bn_ext._core import Scalar as Scalar, Vector as Vector

    # Exporters of the buffer protocol, listed by name to exclude bytes.
    Buffer: TypeAlias = memoryview[Any] | array.array[Any] | ctypes.Array[Any]
else:  # without the time of imports
    Scalar, Vector = TypeVar("Scalar", bound=np.generic), TypeVar("Vector", bound=np.generic)
    NDArray, DTypeLike, Buffer = np.ndarray[Any, np.dtype[Scalar]], Any, Any


class SupportsArray(Protocol[_Scalar]):
    """An array, or an object that converts itself to one.

    The array has at least one dimension, so NumPy's scalars, which also have ``__array__``, do not
    fit.
    """

    def __array__(self) -> np.ndarray[tuple[int, *tuple[int, ...]], np.dtype[_Scalar]]: ...


class SupportsDLPack(Protocol):
    """An object that shares its memory through DLPack."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...


# No type for __array_interface__: NumPy's scalars would fit too. Other objects that have it need
# np.asarray.
Array: TypeAlias = SupportsArray[Any] | SupportsDLPack | Buffer | list[Any] | tuple[Any, ...]
# What determines the dtypes of results. SupportsDLPack is left out: mypy would match NumPy arrays
# with it too, and lose their dtype.
Data: TypeAlias = NDArray[Scalar] | SupportsArray[Scalar] | Buffer | list[Any] | tuple[Any, ...]
_ForAnyRank: TypeAlias = Literal["NXC", "NCX", "channels_last", "channels_first"]
_ForOneRank: TypeAlias = Literal["NC", "NLC", "NWC", "NHWC", "NDHWC", "NCL", "NCW", "NCHW", "NCDHW"]
DataFormat: TypeAlias = Literal[_ForAnyRank, _ForOneRank]
Flag: TypeAlias = bool | np.bool_ | Literal[0, 1]
_Result: TypeAlias = NDArray[Any] | None
Out: TypeAlias = (
    tuple[_Result, _Result, _Result] | tuple[_Result, _Result, _Result, _Result] | list[Any]
)
