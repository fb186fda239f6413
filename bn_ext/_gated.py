"""A fused ReLU's workspace, and the gradient of the gradient, where diff_dst and diff_diff_dst go
through the ReLU.
"""

from typing import Any

import numpy as np

from bn_ext import _core
from bn_ext._results import BatchNormDoubleBackward
from bn_ext._typing import NDArray

__all__ = ["gated", "gated_double_backward", "workspace_size"]


def workspace_size(elements: int, ndim: int) -> int:
    """Bytes of a workspace: a bit for each element of src, and the order of src's axes."""
    return (elements + 7) // 8 + 2 * ndim


def gated(
    diff: NDArray[Any],
    src: NDArray[Any],
    mean: NDArray[Any],
    workspace: NDArray[np.uint8],
    data_format: Any,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`diff` where the ReLU passed the element, as `workspace` tells, and 0 elsewhere.

    Computed as a gradient with frozen statistics and a scale of 1.
    """
    ones = np.ones_like(mean)
    found = _core.backward(
        src, diff, ones, ones, epsilon=0, data_format=data_format, is_training=False,
        param_grads=False, relu=True, workspace=workspace, out=(out, None, None),
    )  # fmt: skip
    passed: NDArray[Any] = found.diff_src
    return passed


def gated_double_backward(
    src: NDArray[Any],
    diff_dst: NDArray[Any],
    mean: NDArray[Any],
    variance: NDArray[Any],
    gamma: NDArray[Any] | None,
    of_src: NDArray[Any] | None,
    of_gamma: NDArray[Any] | None,
    of_beta: NDArray[Any] | None,
    of_src_1: NDArray[Any] | None,
    *,
    workspace: NDArray[np.uint8] | None,
    **options: Any,
) -> BatchNormDoubleBackward[NDArray[Any]]:
    """`_core.double_backward`, given gradients with respect to what `_core.backward` returns, each
    of which may be None; through a ReLU if there is a workspace.
    """
    if workspace is not None:
        diff_dst = gated(diff_dst, src, mean, workspace, options["data_format"])
    of_src = np.zeros_like(src) if of_src is None else of_src
    found = _core.double_backward(
        src, diff_dst, mean, variance, gamma, of_src, of_gamma, of_beta, **options
    )
    both = found.diff_diff_dst
    if of_src_1 is not None:
        with _core.DefaultMode():
            both += of_src_1
    if workspace is not None:
        gated(both, src, mean, workspace, options["data_format"], out=both)
    return found
