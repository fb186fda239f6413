"""What TensorFlow's operators share: their types, ranks and layouts."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

from numpy.typing import NDArray

from bn_ext._typing import DataFormat
from bn_ext.specs._sheet import require_dtype, shown

__all__ = ["FORMATS", "Format", "check_data", "check_vectors", "layouts", "one_of"]

_Meaning = TypeVar("_Meaning")

_TYPES = ("float16", "bfloat16", "float32")
Format: TypeAlias = Literal["NHWC", "NDHWC", "NCHW", "NCDHW"]
# The rank says how many axes there are; the string, where C is.
FORMATS: Final[dict[Format, DataFormat]] = {
    "NHWC": "NXC",
    "NDHWC": "NXC",
    "NCHW": "NCX",
    "NCDHW": "NCX",
}


def one_of(name: str, value: object, meanings: Mapping[Any, _Meaning]) -> _Meaning:
    """What a word means, if it is one of these."""
    try:
        return meanings[value]
    except (KeyError, TypeError):  # the second: not hashable
        raise ValueError(
            f"{name}: expected one of {', '.join(meanings)}, got {shown(value)}"
        ) from None


def check_data(arrays: dict[str, NDArray[Any]], ranks: tuple[int, ...] = (4, 5)) -> None:
    """Dtypes and ranks of the data."""
    for name, array in arrays.items():
        require_dtype(name, array, _TYPES)
        if array.ndim not in ranks:
            expected = " or ".join(map(str, ranks))
            raise ValueError(f"{name}: expected rank {expected}, got shape {array.shape}")


def check_vectors(arrays: dict[str, NDArray[Any]]) -> None:
    """Dtypes of all else."""
    for name, array in arrays.items():
        require_dtype(name, array, ("float32",))


def layouts(data: NDArray[Any]) -> dict[str, str]:
    """How to pass either layout, for data of this rank."""
    spatial = "HW" if data.ndim == 4 else "DHW"
    names = {"NXC": f"N{spatial}C", "NCX": f"NC{spatial}"}
    return {ours: f'pass data_format="{name}"' for ours, name in names.items()}
