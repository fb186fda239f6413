"""What the functions accept, for type checkers. Dtypes and shapes are known at run time alone."""

import array
import ctypes
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The scalar types of src and of mean; any, where nothing tells.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Scalar = TypeVar("Scalar", bound=np.generic, default=Any)
    Vector = TypeVar("Vector", bound=np.generic, default=Any)
    _Scalar = TypeVar("_Scalar", bound=np.generic, default=Any, covariant=True)
else:  # Python 3.11 has no defaults
    from typing import TypeVar

    Scalar, Vector = TypeVar("Scalar"), TypeVar("Vector")
    _Scalar = TypeVar("_Scalar", covariant=True)


class SupportsArray(Protocol[_Scalar]):
    """An array, or what makes one of itself.

    Of at least one dimension, or NumPy's scalars, which have this method too, would pass.
    """

    def __array__(self) -> np.ndarray[tuple[int, *tuple[int, ...]], np.dtype[_Scalar]]: ...


class SupportsDLPack(Protocol):
    """What hands its memory on by DLPack."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...


# Exporters of the buffer protocol by name: bytes is one, too.
if TYPE_CHECKING:
    Buffer: TypeAlias = memoryview[Any] | array.array[Any] | ctypes.Array[Any]
else:  # Python 3.11 has no subscripts for the first two
    Buffer = memoryview | array.array | ctypes.Array
# What has __array_interface__ alone needs np.asarray: NumPy's scalars have that one, too.
Array: TypeAlias = SupportsArray[Any] | SupportsDLPack | Buffer | list[Any] | tuple[Any, ...]
# What the dtypes of results follow. Not DLPack's: to mypy a NumPy array would be both, of no dtype.
Data: TypeAlias = NDArray[Scalar] | SupportsArray[Scalar] | Buffer | list[Any] | tuple[Any, ...]
DataFormat: TypeAlias = Literal["NXC", "NCX"]
Flag: TypeAlias = bool | np.bool_ | Literal[0, 1]
_Result: TypeAlias = NDArray[Any] | None
Out: TypeAlias = (
    tuple[_Result, _Result, _Result] | tuple[_Result, _Result, _Result, _Result] | list[Any]
)
