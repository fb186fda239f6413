# The compiled module compiled.pyx.
from typing import Any

import numpy as np
from numpy.typing import NDArray

def formulas() -> dict[str, tuple[int, int]]: ...
def interface() -> dict[str, Any]: ...
def run_sum_kernel(
    isa: str,
    dtype: str,
    name: str,
    form: str,
    boxes: list[tuple[Any, ...]],
    coefs: NDArray[np.uint8],
    stride: int,
    planes: NDArray[np.float64],
    group: NDArray[np.float64] | None,
) -> None: ...
def run_write_kernel(
    isa: str,
    dtype: str,
    name: str,
    box: tuple[Any, ...],
    coefs: NDArray[np.uint8],
    stride: int,
    period: int,
    one_per_channel: bool,
) -> None: ...
def run_relu_mask(
    isa: str, dtype: str, elements: NDArray[np.uint8], n: int, to: NDArray[np.uint64]
) -> None: ...
