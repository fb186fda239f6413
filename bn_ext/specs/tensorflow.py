"""TensorFlow: ``FusedBatchNormV3``, ``_FusedBatchNormEx`` and ``FusedBatchNormGradV3``.

The first two are in _tensorflow_forward.py.
"""

from typing import Generic, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import batch_norm_backward
from bn_ext._typing import Array, Data, Flag, Scalar
from bn_ext.specs._sheet import as_array, as_epsilon, as_flag, in_default_mode, in_words
from bn_ext.specs._tensorflow import (
    FORMATS,
    Format,
    check_data,
    check_vectors,
    given,
    layouts,
    one_of,
)
from bn_ext.specs._tensorflow_forward import (
    FusedBatchNormEx,
    FusedBatchNormV3,
    fused_batch_norm_ex,
    fused_batch_norm_v3,
)

__all__ = [
    "FusedBatchNormEx",
    "FusedBatchNormGradV3",
    "FusedBatchNormV3",
    "fused_batch_norm_ex",
    "fused_batch_norm_grad_v3",
    "fused_batch_norm_v3",
]


def __dir__() -> list[str]:
    return __all__


class FusedBatchNormGradV3(NamedTuple, Generic[Scalar]):
    """Outputs of `fused_batch_norm_grad_v3`, in the op's order."""

    x_backprop: NDArray[Scalar]
    scale_backprop: NDArray[np.float32]
    offset_backprop: NDArray[np.float32]
    reserve_space_4: NDArray[np.float32]
    reserve_space_5: NDArray[np.float32]


@in_default_mode
def fused_batch_norm_grad_v3(
    y_backprop: Array,
    x: Data[Scalar],
    scale: Array,
    reserve_space_1: Array,
    reserve_space_2: Array,
    reserve_space_3: Array | None,
    *,
    epsilon: SupportsFloat | None = 0.0001,
    data_format: Format = "NHWC",
    is_training: Flag | None = True,
    name: str | None = None,
) -> FusedBatchNormGradV3[Scalar]:
    """Operator ``FusedBatchNormGradV3`` of TensorFlow (``tf.raw_ops``).

    Parameters
    ----------
    y_backprop : array, rank 4 or 5
        The gradient with respect to y: float16, bfloat16 or float32.
    x : array
        The input of the forward pass, with the shape and dtype of y_backprop.
    scale : array of float32, shape (C,)
        The scaling factor.
    reserve_space_1, reserve_space_2 : array of float32, shape (C,)
        The mean and the biased variance: the batch's if `is_training`, otherwise the
        population's. The second is a variance, as in TensorFlow on a CPU; cuDNN gives an
        inverse standard deviation instead: pass ``1 / inverse**2 - epsilon``.
    reserve_space_3 : array of float32, or None
        Not used.
    epsilon : float, optional
        Added to the variance: finite, at least 0. It is used as a double.
    data_format : {"NHWC", "NDHWC", "NCHW", "NCDHW"}, optional
        Whether the channels are on the last axis or on axis 1, for either rank; or the
        same as bytes.
    is_training : bool, optional
        Whether the statistics depend on x.
    name : str, optional
        Not used.

    Returns
    -------
    FusedBatchNormGradV3
        x_backprop (x's dtype), scale_backprop and offset_backprop (float32, shape (C,)),
        and two empty float32 arrays, reserve_space_4 and reserve_space_5.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`, with this operator's names; also TypeError
        for float64 and for vectors that are not float32, ValueError for any other rank.

    See Also
    --------
    bn_ext.batch_norm_backward
    fused_batch_norm_v3 : What it is the gradient of.

    Notes
    -----
    An attribute that is None has its default, as in TensorFlow.

    What counts as an array, and what is copied, is as for `bn_ext.batch_norm_backward`;
    lists of Python numbers are float64 or integers, so their types are refused.

    TensorFlow 2.21 on a CPU differs: with ``is_training=False``, one of its two kernels
    refuses NCHW, and NCDHW is refused; its oneDNN kernel returns scalars for the last
    two outputs; epsilon is a float32 that is not checked; its bits change with the
    number of threads.

    Definition: TensorFlow API, "tf.raw_ops.FusedBatchNormGradV3".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import tensorflow
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    >>> ones = np.ones(2, np.float32)
    >>> grads = tensorflow.fused_batch_norm_grad_v3(
    ...     np.ones_like(x), x, ones, x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2)), None)
    >>> grads.offset_backprop
    array([4., 4.], dtype=float32)
    """
    ours = one_of("data_format", data_format, FORMATS)
    training = as_flag(given(is_training, True), "is_training")
    data = {"y_backprop": as_array(y_backprop, "y_backprop"), "x": as_array(x, "x")}
    vectors = {
        "scale": as_array(scale, "scale"),
        "reserve_space_1": as_array(reserve_space_1, "reserve_space_1"),
        "reserve_space_2": as_array(reserve_space_2, "reserve_space_2"),
    }
    value = as_epsilon(given(epsilon, 0.0001))
    unused = {}
    if reserve_space_3 is not None:
        unused["reserve_space_3"] = as_array(reserve_space_3, "reserve_space_3")
    check_data(data)
    check_vectors({**vectors, **unused})
    words = {
        "src": "x",
        "diff_dst": "y_backprop",
        "mean": "reserve_space_1",
        "variance": "reserve_space_2",
        "gamma": "scale",
        **layouts(data["x"]),
    }
    diff_src, diff_gamma, diff_beta = batch_norm_backward(
        data["x"],
        data["y_backprop"],
        vectors["reserve_space_1"],
        vectors["reserve_space_2"],
        vectors["scale"],
        epsilon=value,
        data_format=in_words(ours, words),
        is_training=training,
    )
    empty = (np.empty(0, np.float32), np.empty(0, np.float32))
    return FusedBatchNormGradV3(diff_src, diff_gamma, diff_beta, *empty)
