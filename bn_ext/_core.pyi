from collections.abc import Callable, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Never,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    overload,
)

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from bn_ext._typing import Array, Data, DataFormat, Flag, Out, Scalar, Vector

__all__ = [
    "BatchNormAddGradients",
    "BatchNormDoubleBackward",
    "BatchNormGradients",
    "BatchNormTraining",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
    "batch_norm_canonical",
    "batch_norm_count",
    "batch_norm_double_backward",
    "batch_norm_inference",
    "batch_norm_sums",
    "batch_norm_training",
    "batch_norm_training_apply",
    "batch_norm_training_merge",
    "batch_norm_training_reduce",
    "batch_norm_training_stats",
]

_Data = TypeVar("_Data", covariant=True)
_Vector = TypeVar("_Vector", covariant=True)

class BatchNormDoubleBackward(NamedTuple, Generic[_Data, _Vector]):
    diff_src: _Data
    diff_diff_dst: _Data
    diff_gamma: _Vector

class BatchNormGradients(NamedTuple, Generic[_Data, _Vector]):
    diff_src: _Data
    diff_gamma: _Vector
    diff_beta: _Vector

class BatchNormAddGradients(NamedTuple, Generic[_Data, _Vector]):
    diff_src: _Data
    diff_gamma: _Vector
    diff_beta: _Vector
    diff_src_1: _Data

@overload
def batch_norm_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[True] = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
    exact: Flag = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector]]: ...
@overload
def batch_norm_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[True],
    exact: Flag = False,
) -> BatchNormAddGradients[NDArray[Scalar], NDArray[Vector] | Any]: ...
@overload
def batch_norm_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
    exact: Flag = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector] | Any]: ...
@overload
def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    variance: Array | None = None,
    gamma: Array | None = None,
    epsilon: SupportsFloat | None = None,
    exact: Literal[False] = False,
) -> NDArray[float64]: ...
@overload
def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    variance: Array | None = None,
    gamma: Array | None = None,
    epsilon: SupportsFloat | None = None,
    exact: Literal[True],
) -> NDArray[int64]: ...
@overload
def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    variance: Array | None = None,
    gamma: Array | None = None,
    epsilon: SupportsFloat | None = None,
    exact: Flag,
) -> NDArray[Any]: ...
@overload
def batch_norm_backward_apply(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    sums: Array | Literal[0],
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[True] = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector]]: ...
@overload
def batch_norm_backward_apply(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    sums: Array | Literal[0],
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[True],
) -> BatchNormAddGradients[NDArray[Scalar], NDArray[Vector] | Any]: ...
@overload
def batch_norm_backward_apply(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    sums: Array | Literal[0],
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector] | Any]: ...
def batch_norm_double_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    diff_diff_src: Array,
    diff_diff_gamma: Array | None = None,
    diff_diff_beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormDoubleBackward[NDArray[Scalar], NDArray[Vector]]: ...
def _available_isas() -> tuple[str, ...]: ...
def _get_isa() -> str: ...
def _use_isa(name: str) -> None: ...
def _set_cpu_quota(threads: int) -> None: ...
def _cache_sizes() -> tuple[int, int]: ...
def _set_cache_sizes(l2: int, last_level: int) -> None: ...
def _default_threads() -> int: ...
def _set_threads_limit(threads: int) -> None: ...
def _has_openmp() -> bool: ...
def _openmp_address() -> int: ...
def _forked() -> bool: ...
def _last_call() -> tuple[int, int]: ...
def batch_norm_sums(state: Array) -> NDArray[float64]: ...
def batch_norm_count(state: Array) -> int: ...
def batch_norm_canonical(state: Array) -> NDArray[int64]: ...
def batch_norm_training_stats(state: Array, mean: Array | None = None) -> NDArray[float64]: ...
def _outline(
    dtype: str, dims: tuple[int, ...], channel_axis: int, threads: int
) -> dict[str, Any]: ...

class _DefaultMode:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def _committed(
    call: Callable[[], Any], state: dict[str, Any], after: dict[str, Any], undo: list[Any]
) -> Any: ...
def _as_array(a: object, name: str) -> NDArray[Any]: ...
def _as_epsilon(epsilon: object, name: str = "epsilon") -> float: ...
def _as_real(value: object, name: str, expected: str, least: float = ...) -> float: ...
def _as_flag(value: object, name: str) -> bool: ...
def _dry_run(
    function: Callable[..., object],
    *arguments: object,
    data_format: object = "NXC",
    **options: object,
) -> None: ...

class _Words:
    def __init__(self, data_format: str, words: dict[str, str]) -> None: ...

def _refuse_unknown(function: str, refused: dict[str, object]) -> None: ...
def _share_memory(a: NDArray[Any], b: NDArray[Any]) -> bool: ...
def _shown(value: object) -> str: ...
def _formulas() -> tuple[str, ...]: ...
def _kernel_interface() -> dict[str, Any]: ...
def _run_sum_kernel(
    isa: str,
    dtype: str,
    formula: str,
    folds: bool,
    block: tuple[Sequence[int], Sequence[int], Sequence[int], int, int, int],
    coefs: NDArray[np.uint8],
    stride: int,
    planes: NDArray[np.float64],
    group: NDArray[np.float64],
    calls: int = 1,
) -> None: ...
def _run_runs_kernel(
    isa: str,
    dtype: str,
    formula: str,
    folded: bool,
    parts: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], int, int, int]],
    apart: Sequence[int],
    coefs: NDArray[np.uint8],
    planes: NDArray[np.float64],
) -> None: ...
def _run_write_kernel(
    isa: str,
    dtype: str,
    formula: str,
    span: tuple[
        Sequence[int],
        Sequence[int],
        Sequence[int],
        Sequence[int],
        int,
        int,
        int,
        int,
        bool,
        bool,
    ],
    coefs: NDArray[np.uint8],
    stride: int,
    period: int,
    layout: int,
    calls: int = 1,
) -> None: ...
def _run_sums_kernel(
    isa: str,
    dtype: str,
    name: str,
    planes: NDArray[np.float64],
    n: int,
    other: NDArray[np.float64],
) -> None: ...
def _run_passed(
    isa: str, dtype: str, elements: NDArray[Any], n: int, to: NDArray[np.uint64]
) -> None: ...
def _run_expand(
    isa: str,
    dtype: str,
    ring: bool,
    channel: NDArray[np.uint8],
    channels: int,
    each: int,
    n: int,
    column: NDArray[np.uint8],
) -> None: ...

class BatchNormTraining(NamedTuple, Generic[_Data]):
    dst: _Data
    mean: NDArray[Any]
    variance: NDArray[Any]

def batch_norm_training(
    src: Data[Scalar],
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    running_mean: NDArray[Any] | None = None,
    running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsIndex | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    exact: Flag = False,
    **refused: Never,
) -> BatchNormTraining[NDArray[Scalar]]: ...
def batch_norm_training_merge(stats: Array) -> NDArray[float64]: ...
def batch_norm_training_apply(
    src: Data[Scalar],
    stats: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    running_mean: NDArray[Any] | None = None,
    running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsIndex | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    **refused: Never,
) -> BatchNormTraining[NDArray[Scalar]]: ...
@overload
def batch_norm_training_reduce(
    src: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    exact: Literal[False] = False,
    mean: None = None,
) -> NDArray[float64]: ...
@overload
def batch_norm_training_reduce(
    src: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    exact: Literal[True],
    mean: Array | None = None,
) -> NDArray[int64]: ...
@overload
def batch_norm_training_reduce(
    src: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    exact: Flag,
    mean: Array | None = None,
) -> NDArray[Any]: ...
def batch_norm_inference(
    src: Data[Scalar],
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: NDArray[Any] | None = None,
    num_threads: SupportsIndex | None = None,
) -> NDArray[Scalar]: ...
