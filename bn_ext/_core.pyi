# What Python uses of the compiled part. The public functions have the documentation.
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from bn_ext._results import (
    BatchNormAddGradients,
    BatchNormDoubleBackward,
    BatchNormGradients,
    BatchNormTraining,
)

DTYPES: tuple[str, ...]
# Their defaults, which Python 3.11 lacks: else an array of no known dtype would give one of Never.
Scalar = TypeVar("Scalar", bound=np.generic, default=Any)
Vector = TypeVar("Vector", bound=np.generic, default=Any)

# ---- calls

def training(
    src: Any,
    gamma: Any = ...,
    beta: Any = ...,
    epsilon: Any = ...,
    data_format: Any = ...,
    running_mean: Any = ...,
    running_variance: Any = ...,
    exponential_avg_factor: Any = ...,
    correction: Any = ...,
    src_1: Any = ...,
    relu: Any = ...,
    workspace: Any = ...,
    out: Any = ...,
    num_threads: Any = ...,
    exact: Any = ...,
    words: Any = ...,
    dry: bool = ...,
) -> BatchNormTraining[NDArray[Any]]: ...
def inference(
    src: Any,
    mean: Any,
    variance: Any,
    gamma: Any = ...,
    beta: Any = ...,
    epsilon: Any = ...,
    data_format: Any = ...,
    src_1: Any = ...,
    relu: Any = ...,
    workspace: Any = ...,
    out: Any = ...,
    num_threads: Any = ...,
    words: Any = ...,
    dry: bool = ...,
) -> NDArray[Any]: ...
def backward(
    src: Any,
    diff_dst: Any,
    mean: Any,
    variance: Any,
    gamma: Any = ...,
    epsilon: Any = ...,
    data_format: Any = ...,
    is_training: Any = ...,
    param_grads: Any = ...,
    out: Any = ...,
    num_threads: Any = ...,
    relu: Any = ...,
    beta: Any = ...,
    dst: Any = ...,
    workspace: Any = ...,
    diff_src_1: Any = ...,
    exact: Any = ...,
    total: Any = ...,
    words: Any = ...,
    dry: bool = ...,
) -> BatchNormGradients[NDArray[Any]] | BatchNormAddGradients[NDArray[Any]]: ...
def double_backward(
    src: Any,
    diff_dst: Any,
    mean: Any,
    variance: Any,
    gamma: Any,
    diff_diff_src: Any,
    diff_diff_gamma: Any = ...,
    diff_diff_beta: Any = ...,
    epsilon: Any = ...,
    data_format: Any = ...,
    is_training: Any = ...,
    out: Any = ...,
    num_threads: Any = ...,
    words: Any = ...,
    dry: bool = ...,
) -> BatchNormDoubleBackward[NDArray[Any]]: ...

class Words:
    def __init__(self, words: dict[str, str]) -> None: ...

# ---- sums

def training_sums(
    src: Any,
    data_format: Any = ...,
    exact: Any = ...,
    num_threads: Any = ...,
    words: Any = ...,
) -> tuple[NDArray[Any], int, str]: ...
def backward_sums(
    src: Any,
    diff_dst: Any,
    mean: Any,
    data_format: Any = ...,
    exact: Any = ...,
    num_threads: Any = ...,
    relu: Any = ...,
    beta: Any = ...,
    dst: Any = ...,
    workspace: Any = ...,
    variance: Any = ...,
    gamma: Any = ...,
    epsilon: Any = ...,
    words: Any = ...,
) -> tuple[NDArray[Any], int, str, NDArray[np.float64]]: ...
def update_running(
    statistics: NDArray[np.float64],
    count: float,
    running_mean: Any,
    running_variance: Any,
    exponential_avg_factor: Any,
    correction: Any,
) -> None: ...

MORE_ROWS: int

def rows_of_sums(dtype: str, exact: bool, of_moments: bool) -> int: ...
def state_count(state: NDArray[np.int64]) -> int: ...
def state_parts(state: NDArray[np.int64]) -> int: ...
def state_sums(state: NDArray[np.int64]) -> NDArray[np.float64]: ...
def canonical_state(state: NDArray[np.int64]) -> NDArray[np.int64]: ...
def pack_state(state: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]: ...
def unpack_state(packed: NDArray[np.int64], rows: NDArray[np.bool_]) -> NDArray[np.int64]: ...
def state_statistics(state: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.float64], int]: ...

# ---- arguments and messages

class DefaultMode:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def as_array(a: Any, name: str, whole: bool = ...) -> NDArray[Any]: ...
def as_epsilon(epsilon: Any, name: str = ...) -> float: ...
def as_flag(value: Any, name: str) -> bool: ...
def as_format(data_format: Any) -> int: ...
def as_index(value: Any, name: str, expected: str) -> int: ...
def as_real(value: Any, name: str, expected: str, least: float = ...) -> float: ...
def no_ndarray(a: Any, name: str) -> TypeError: ...
def any_of(names: Iterable[str]) -> str: ...
def shown(value: object) -> str: ...
def require_dtype(name: str, a: Any, allowed: Iterable[str], like: str = ...) -> None: ...

# ---- the process

def available_isas() -> tuple[str, ...]: ...
def get_isa() -> str: ...
def use_isa(name: str) -> None: ...
def cache_sizes() -> tuple[int, int]: ...
def set_cache_sizes(l2: int, last_level: int) -> None: ...
def default_threads() -> int: ...
def fork_limits() -> bool: ...
def has_openmp() -> bool: ...
def last_call() -> dict[str, Any]: ...
def parked_bytes() -> int: ...
def parked_limit() -> int: ...
def set_parked_limit(bytes: int) -> None: ...
def set_stack_bytes(bytes: int) -> None: ...
def set_threads_limit(threads: int) -> None: ...
