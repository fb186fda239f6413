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
def _default_threads() -> int: ...
def _has_openmp() -> bool: ...
def _forked() -> bool: ...
def _last_call() -> tuple[int, int]: ...
