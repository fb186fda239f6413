"""TensorFlow's forward operators: ``FusedBatchNormV3`` and ``_FusedBatchNormEx``."""

from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, SupportsFloat, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._typing import Array, Data, DataFormat, Flag, Scalar
from bn_ext.specs._sheet import (
    as_array,
    as_epsilon,
    as_flag,
    as_number,
    count_of,
    in_default_mode,
    in_words,
    require_shape,
    shown,
)
from bn_ext.specs._tensorflow import (
    FORMATS,
    Format,
    check_data,
    check_vectors,
    given,
    layouts,
    one_of,
)

__all__ = ["FusedBatchNormEx", "FusedBatchNormV3", "fused_batch_norm_ex", "fused_batch_norm_v3"]

_FORMATS_4 = {name: FORMATS[name] for name in FORMATS if len(name) == 4}
_Format4: TypeAlias = Literal["NHWC", "NCHW"] | bytes | None
_Activation: TypeAlias = Literal["Identity", "Relu"] | bytes | None


class FusedBatchNormV3(NamedTuple, Generic[Scalar]):
    """Outputs of `fused_batch_norm_v3`, in the op's order."""

    y: NDArray[Scalar]
    batch_mean: NDArray[np.float32]
    batch_variance: NDArray[np.float32]
    reserve_space_1: NDArray[np.float32]
    reserve_space_2: NDArray[np.float32]
    reserve_space_3: NDArray[np.float32]


class FusedBatchNormEx(NamedTuple, Generic[Scalar]):
    """Outputs of `fused_batch_norm_ex`, in the op's order."""

    y: NDArray[Scalar]
    batch_mean: NDArray[np.float32]
    batch_variance: NDArray[np.float32]
    reserve_space_1: NDArray[np.float32]
    reserve_space_2: NDArray[np.float32]
    reserve_space_3: NDArray[np.float32]


def _check_statistics(vectors: dict[str, NDArray[Any]], channels: int, ignored: bool) -> None:
    """Ignored ones may have any length, but one dimension."""
    for name in ("mean", "variance"):
        array = vectors[name]
        if not ignored:
            require_shape(name, array, (channels,))
        elif array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")


def _run(
    x: NDArray[Any],
    vectors: dict[str, NDArray[Any]],
    data_format: DataFormat,
    training: bool,
    factor: float,
    **options: Any,
) -> tuple[NDArray[Any], ...]:
    """All six outputs."""
    axis = x.ndim - 1 if data_format == "NXC" else 1
    channels, count = x.shape[axis], count_of(x, axis)
    fresh = training and factor == 1  # the old statistics have no weight
    _check_statistics(vectors, channels, fresh)
    names = ("mean", "variance")
    running = [np.zeros(channels, np.float32) if fresh else vectors[n].copy() for n in names]
    scale, offset = vectors["scale"], vectors["offset"]
    words = {"src": "x", "src_1": "side_input", "gamma": "scale", "beta": "offset", **layouts(x)}
    layout = in_words(data_format, words)
    if training:
        y, *reserved = _core.batch_norm_training(
            x,
            scale,
            offset,
            data_format=layout,
            running_mean=running[0],
            running_variance=running[1],
            exponential_avg_factor=factor,
            correction=int(count > 1),  # the divisor is max(count - 1, 1)
            **options,
        )
    else:
        y = _core.batch_norm_inference(
            x, running[0], running[1], scale, offset, data_format=layout, **options
        )
        reserved = [a.copy() for a in running]
    if x.size == 0:
        running = [np.full(channels, np.nan, np.float32) for _ in names]
        reserved = [np.zeros(channels, np.float32) for _ in names]
    return y, *running, *reserved, np.empty(0, np.float32)


@in_default_mode
def fused_batch_norm_v3(
    x: Data[Scalar],
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat | None = 0.0001,
    exponential_avg_factor: SupportsFloat | None = 1.0,
    data_format: Format = "NHWC",
    is_training: Flag | None = True,
    name: str | None = None,
) -> FusedBatchNormV3[Scalar]:
    """Operator ``FusedBatchNormV3`` of TensorFlow (``tf.raw_ops``).

    Parameters
    ----------
    x : array, rank 4 or 5
        What is normalized: float16, bfloat16 or float32.
    scale, offset : array of float32, shape (C,)
        Scale and shift.
    mean, variance : array of float32, shape (C,)
        With `is_training`, the running statistics before this step, which
        ``exponential_avg_factor=1`` ignores: they may then have any length. Otherwise
        the statistics to normalize with.
    epsilon : float, optional
        Added to the variance: finite, at least 0. It is used as a double.
    exponential_avg_factor : float, optional
        The weight of the batch's statistics in the new running ones: any finite number,
        ``running = (1 - factor)*old + factor*batch``.
    data_format : {"NHWC", "NDHWC", "NCHW", "NCDHW"}, optional
        Whether the channels are on the last axis or on axis 1, for either rank; or the
        same as bytes.
    is_training : bool, optional
        Whether to normalize with the batch's own statistics.
    name : str, optional
        Not used.

    Returns
    -------
    FusedBatchNormV3
        y (x's dtype); batch_mean and batch_variance, which are the new running
        statistics, the variance with Bessel's correction (divided by ``max(M - 1, 1)``);
        reserve_space_1 and reserve_space_2, which are the batch's mean and its biased
        variance, for the gradient; and reserve_space_3, empty. With
        ``is_training=False`` both pairs are mean and variance. For an empty x,
        batch_mean and batch_variance are NaN, the reserve spaces zeros.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training` and `bn_ext.batch_norm_inference`, with this
        operator's names; also TypeError for float64 and for vectors that are not
        float32, ValueError for any other rank.

    See Also
    --------
    bn_ext.batch_norm_training, bn_ext.batch_norm_inference
    fused_batch_norm_grad_v3 : The gradient.

    Notes
    -----
    An attribute that is None has its default, as in TensorFlow.

    What counts as an array, and what is copied, is as for `bn_ext.batch_norm_training`;
    lists of Python numbers are float64 or integers, so their types are refused.

    TensorFlow 2.21 on a CPU differs: its Eigen kernel leaves the reserve spaces
    unwritten with ``is_training=False`` or an empty x, and returns a scalar as the last
    output; epsilon is a float32 that is not checked; its bits change with the number of
    threads. The first pair of outputs is what ``tf.nn.fused_batch_norm`` and Keras take.

    Definition: TensorFlow API, "tf.raw_ops.FusedBatchNormV3".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import tensorflow
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    >>> ones, none = np.ones(2, np.float32), np.empty(0, np.float32)
    >>> found = tensorflow.fused_batch_norm_v3(x, ones, ones, none, none)
    >>> found.batch_mean
    array([3., 4.], dtype=float32)
    >>> found.batch_variance, found.reserve_space_2
    (array([6.6666665, 6.6666665], dtype=float32), array([5., 5.], dtype=float32))
    """
    ours = one_of("data_format", data_format, FORMATS)
    training = as_flag(given(is_training, True), "is_training")
    data = as_array(x, "x")
    vectors = {
        "scale": as_array(scale, "scale"),
        "offset": as_array(offset, "offset"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    value = as_epsilon(given(epsilon, 0.0001))
    factor = as_number(given(exponential_avg_factor, 1.0), "exponential_avg_factor")
    check_data({"x": data})
    check_vectors(vectors)
    return FusedBatchNormV3(*_run(data, vectors, ours, training, factor, epsilon=value))


@in_default_mode
def fused_batch_norm_ex(
    x: Data[Scalar],
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    side_input: Sequence[Any] = (),
    *,
    epsilon: SupportsFloat | None = 0.0001,
    exponential_avg_factor: SupportsFloat | None = 1.0,
    activation_mode: _Activation = "Identity",
    data_format: _Format4 = "NHWC",
    is_training: Flag | None = True,
    name: str | None = None,
) -> FusedBatchNormEx[Scalar]:
    """Operator ``_FusedBatchNormEx`` of TensorFlow, what its graphs fuse an activation into.

    Parameters
    ----------
    x : array, rank 4
        What is normalized: float16, bfloat16 or float32.
    scale, offset, mean, variance
        As for `fused_batch_norm_v3`.
    side_input : list of at most one array, optional
        What is added before the activation, with x's shape and dtype.
    epsilon, exponential_avg_factor : float, optional
        As for `fused_batch_norm_v3`.
    activation_mode : {"Identity", "Relu"}, optional
        What the sum goes through.
    data_format : {"NHWC", "NCHW"}, optional
        Whether the channels are on the last axis or on axis 1.
    is_training : bool, optional
        Whether to normalize with the batch's own statistics.
    name : str, optional
        Not used.

    Returns
    -------
    FusedBatchNormEx
        As for `fused_batch_norm_v3`, y behind the activation.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `fused_batch_norm_v3`.

    See Also
    --------
    fused_batch_norm_v3 : Without an addition and a ReLU.

    Notes
    -----
    The attribute ``num_side_inputs`` is the length of side_input. What counts as an
    array, and what is copied, is as for `bn_ext.batch_norm_training`. A NaN passes Relu.

    TensorFlow 2.21 on a CPU differs: it has this operator only in builds with oneDNN, for
    float32 and bfloat16, with "Relu" and without a side input; reserve_space_3 then has
    one element for each of x. Its gradient needs none of it where y is known.

    Definition: TensorFlow, "tensorflow/core/ops/nn_ops.cc", "_FusedBatchNormEx".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import tensorflow
    >>> x = np.array([[0, 0], [4, 2]], np.float32).reshape(1, 1, 2, 2)
    >>> ones, none = np.ones(2, np.float32), np.empty(0, np.float32)
    >>> tensorflow.fused_batch_norm_ex(
    ...     x, ones, 0 * ones, none, none, [x], epsilon=0, activation_mode="Relu").y
    array([[[[0., 0.],
             [5., 3.]]]], dtype=float32)
    """
    ours = one_of("data_format", data_format, _FORMATS_4)
    training = as_flag(given(is_training, True), "is_training")
    relu = one_of("activation_mode", activation_mode, {"Identity": False, "Relu": True})
    if not isinstance(side_input, (list, tuple)) or len(side_input) > 1:
        raise TypeError(
            f"side_input: expected a list of at most one array, got {shown(side_input)}"
        )
    added = [as_array(a, "side_input") for a in side_input]
    data = as_array(x, "x")
    vectors = {
        "scale": as_array(scale, "scale"),
        "offset": as_array(offset, "offset"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    options = {
        "epsilon": as_epsilon(given(epsilon, 0.0001)),
        "src_1": added[0] if added else None,
        "relu": relu,
    }
    factor = as_number(given(exponential_avg_factor, 1.0), "exponential_avg_factor")
    check_data({"x": data}, ranks=(4,))
    check_vectors(vectors)
    return FusedBatchNormEx(*_run(data, vectors, ours, training, factor, **options))
