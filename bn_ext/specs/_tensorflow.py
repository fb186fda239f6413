"""What TensorFlow's operators share: their types, ranks and layouts."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

from numpy.typing import NDArray

from bn_ext._typing import DataFormat
from bn_ext.specs._sheet import require_dtype, shown

__all__ = ["FORMATS", "Format", "check_data", "check_vectors", "given", "layouts", "one_of"]

_Meaning = TypeVar("_Meaning")
_Value = TypeVar("_Value")

_TYPES = ("float16", "bfloat16", "float32")
Format: TypeAlias = Literal["NHWC", "NDHWC", "NCHW", "NCDHW"] | bytes | None
# The rank says how many axes there are; the string, where C is.
FORMATS: Final[dict[str, DataFormat]] = {
    "NHWC": "NXC",
    "NDHWC": "NXC",
    "NCHW": "NCX",
    "NCDHW": "NCX",
}


def given(value: _Value | None, default: _Value) -> _Value:
    """An attribute: None stands for its default, as in TensorFlow."""
    return default if value is None else value


def one_of(name: str, value: object, meanings: Mapping[str, _Meaning]) -> _Meaning:
    """What a word means, if it is one of these; None stands for the first, which is the default.

    TensorFlow's graphs have words as bytes.
    """
    word = value.decode(errors="replace") if isinstance(value, bytes) else value
    word = given(word, next(iter(meanings)))
    if not isinstance(word, str) or word not in meanings:
        raise ValueError(f"{name}: expected one of {', '.join(meanings)}, got {shown(value)}")
    return meanings[word]


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
