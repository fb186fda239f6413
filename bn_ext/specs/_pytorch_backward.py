"""torch's backward halves for data in parts, which its SyncBatchNorm calls.

backward_reduce of each part -> sums added -> backward_elemt of each part
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._typing import Array, Data, Flag, Scalar
from bn_ext.specs._pytorch import (
    NCX,
    as_counts,
    as_data,
    as_numbers,
    as_vectors,
    doubles,
    number_of,
    variance_of,
)
from bn_ext.specs._sheet import as_array, as_flag, in_default_mode, require_shape, rounded

__all__ = ["BatchNormBackwardReduce", "batch_norm_backward_elemt", "batch_norm_backward_reduce"]


class BatchNormBackwardReduce(NamedTuple):
    """Outputs of `batch_norm_backward_reduce`: None where they are not wanted."""

    sum_dy: NDArray[Any] | Any
    sum_dy_xmu: NDArray[Any] | Any
    grad_weight: NDArray[Any] | Any
    grad_bias: NDArray[Any] | Any


def _weight_of(
    data: NDArray[Any], weight: Array | None
) -> tuple[np.dtype[Any], NDArray[np.float64] | None]:
    """The dtype of its gradient, and the weight."""
    if weight is None:
        return number_of(data), None
    dtype, vectors = as_vectors(data, weight=weight)
    given = doubles(vectors["weight"])
    if given is not None:
        require_shape("weight", given, data.shape[1:2])
    return dtype, given


@in_default_mode
def batch_norm_backward_reduce(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    input_g: Flag,
    weight_g: Flag,
    bias_g: Flag,
) -> BatchNormBackwardReduce:
    """Operator ``aten::batch_norm_backward_reduce`` of torch: the sums over one part.

    Parameters
    ----------
    grad_out : array
        The gradient with respect to the output, with input's shape and dtype.
    input : array, shape (N, C, ...)
        One part: float32, float64, float16 or bfloat16.
    mean, invstd : array, shape (C,)
        The statistics of all parts, in the type that input is computed in: float32, or
        float64 with float64 data.
    weight : array, shape (C,), or None
        Its dtype is that of grad_weight and grad_bias: input's or, with 16-bit data,
        float32. None means mean's dtype.
    input_g, weight_g, bias_g : bool
        Which results are wanted: both sums, grad_weight, grad_bias.

    Returns
    -------
    BatchNormBackwardReduce
        sum_dy = ``sum(grad_out)`` and sum_dy_xmu = ``sum(grad_out * (input - mean))`` in
        mean's dtype; grad_weight = ``sum_dy_xmu * invstd`` and grad_bias = ``sum_dy``, of
        this part, in weight's. None for what is not wanted.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward_reduce`, with this operator's names.

    See Also
    --------
    batch_norm_backward_elemt : The gradient of a part, from the sums of all.
    bn_ext.batch_norm_backward_reduce

    Notes
    -----
    `bn_ext.batch_norm_backward_reduce` gives doubles, which lose nothing on the way.

    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x, two = np.array([[1.0], [3.0]]), np.array([2.0])
    >>> pytorch.batch_norm_backward_reduce(x, x, two, two, None, True, True, False)
    BatchNormBackwardReduce(sum_dy=array([4.]), sum_dy_xmu=array([2.]),
                            grad_weight=array([4.]), grad_bias=None)
    """
    flags = (("input_g", input_g), ("weight_g", weight_g), ("bias_g", bias_g))
    of_input, of_weight, of_bias = (as_flag(value, name) for name, value in flags)
    data = as_data(input)
    number = number_of(data)
    center, inverse = as_numbers(data, data.shape[1:2], mean=mean, invstd=invstd)
    dtype, _ = _weight_of(data, weight)
    sums = _core.batch_norm_backward_reduce(
        data, as_array(grad_out, "grad_out"), center, data_format=NCX
    )[:2]
    of_scale = sums[1] * inverse
    return BatchNormBackwardReduce(
        rounded(sums[0], number) if of_input else None,
        rounded(sums[1], number) if of_input else None,
        rounded(of_scale, dtype) if of_weight else None,
        rounded(sums[0], dtype) if of_bias else None,
    )


@in_default_mode
def batch_norm_backward_elemt(
    grad_out: Array,
    input: Data[Scalar],
    mean: Array,
    invstd: Array,
    weight: Array | None,
    sum_dy: Array,
    sum_dy_xmu: Array,
    count: Array,
) -> NDArray[Scalar]:
    """Operator ``aten::batch_norm_backward_elemt`` of torch: the gradient of one part.

    Parameters
    ----------
    grad_out, input, mean, invstd
        As for `batch_norm_backward_reduce`.
    weight : array, shape (C,), or None
        The scale: in input's dtype or, with 16-bit data, float32.
    sum_dy, sum_dy_xmu : array, shape (C,)
        What `batch_norm_backward_reduce` returned, added over all parts.
    count : array, shape (parts,) or (parts, 1)
        Elements per channel of each part: whole numbers, in any real dtype.

    Returns
    -------
    ndarray
        grad_input of this part, in input's shape and dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward_apply`, with this operator's names.

    See Also
    --------
    batch_norm_backward_reduce : The sums of a part.
    bn_ext.batch_norm_backward_apply

    Notes
    -----
    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x, one = np.array([[1.0], [3.0]]), np.array([1.0])
    >>> sums = np.array([4.0]), np.array([0.0])
    >>> pytorch.batch_norm_backward_elemt(x, x, 2 * one, one, None, *sums, np.array([2]))
    array([[-1.],
           [ 1.]])
    """
    data = as_data(input)
    center, inverse, of_dy, of_dy_xmu = as_numbers(
        data, data.shape[1:2], mean=mean, invstd=invstd, sum_dy=sum_dy, sum_dy_xmu=sum_dy_xmu
    )
    given = _weight_of(data, weight)[1]
    total = sum(as_counts(count, "count"))
    if total >= 2**53:
        raise ValueError("count: expected fewer than 2**53 elements")
    grad_input: NDArray[Any] = _core.batch_norm_backward_apply(
        data,
        as_array(grad_out, "grad_out"),
        center,
        variance_of(inverse),
        given,
        np.stack([of_dy, of_dy_xmu, np.full_like(of_dy, total)]),
        epsilon=0.0,
        data_format=NCX,
        param_grads=False,
    ).diff_src
    return grad_input
