from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bn_ext import (
    BatchNormGradients as BatchNormGradients,
)
from bn_ext import (
    batch_norm_backward as batch_norm_backward,
)
from bn_ext import (
    batch_norm_backward_apply as batch_norm_backward_apply,
)
from bn_ext import (
    batch_norm_backward_reduce as batch_norm_backward_reduce,
)

__all__ = [
    "BatchNormGradients",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
]

def _available_isas() -> tuple[str, ...]: ...
def _get_isa() -> str: ...
def _use_isa(name: str) -> None: ...
def _set_cpu_quota(threads: int) -> None: ...
def _cache_sizes() -> tuple[int, int]: ...
def _set_cache_sizes(l2: int, last_level: int) -> None: ...
def _default_threads() -> int: ...
def _has_openmp() -> bool: ...
def _openmp_address() -> int: ...
def _forked() -> bool: ...
def _last_call() -> tuple[int, int]: ...
def _run_kernel(
    isa: str,
    dtype: str,
    name: str,
    block: tuple[Sequence[int], Sequence[int], Sequence[int], int, int, int, bool, bool],
    coefs: NDArray[np.uint8],
    planes: NDArray[np.float64],
    running: NDArray[np.float32] | None,
    stride: int,
    calls: int = 1,
) -> None: ...
def _run_sums_kernel(
    isa: str,
    dtype: str,
    name: str,
    planes: NDArray[np.float64],
    running: NDArray[np.float32] | None,
    n: int,
    other: NDArray[np.float64] | None,
) -> None: ...
def _run_expand(
    isa: str,
    dtype: str,
    channel: NDArray[np.uint8],
    all_: int,
    channels: int,
    each: int,
    column: NDArray[np.uint8],
) -> None: ...
