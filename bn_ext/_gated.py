"""A fused ReLU's workspace, and the gradient of the gradient, where diff_dst and diff_diff_dst go
through the ReLU.
"""

from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext._results import BatchNormDoubleBackward
from bn_ext._typing import NDArray


def workspace_size(elements: int, ndim: int) -> int:
    """Bytes of a workspace: a bit for each element of src, and the order of src's axes."""
    return (elements + 7) // 8 + 2 * ndim


def gated(
    diff: Any, src: Any, mean: Any, *, workspace: Any, data_format: Any, out: Any = None
) -> Any:
    """`diff` where the ReLU passed the element, as `workspace` tells, and 0 elsewhere.

    Computed as a gradient with frozen statistics and a scale of 1.
    """
    ones = np.ones_like(mean)
    return _core.backward(
        src, diff, ones, ones, epsilon=0, data_format=data_format, is_training=False,
        param_grads=False, relu=True, workspace=workspace, out=(out, None, None),
    ).diff_src  # fmt: skip


def gated_double_backward(
    src: Any, diff_dst: Any, mean: Any, *rest: Any, of_src_1: Any, workspace: Any, **options: Any
) -> BatchNormDoubleBackward[NDArray[Any]]:
    """`_core.double_backward` that also takes the gradient with respect to diff_src_1 and, given a
    workspace, goes through a ReLU.
    """
    gate = {"workspace": workspace, "data_format": options["data_format"]}
    if workspace is not None:
        diff_dst = gated(diff_dst, src, mean, **gate)
    second = _core.double_backward(src, diff_dst, mean, *rest, **options)
    both = second.diff_diff_dst
    if of_src_1 is not None:
        with _core.DefaultMode():
            both += of_src_1
    if workspace is not None:
        gated(both, src, mean, **gate, out=both)
    return second
