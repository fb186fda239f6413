"""oneDNN Graph: training and inference forward, and the gradient under two names.

``BatchNormForwardTraining`` and ``BatchNormInference`` are in _onednn_forward.py. The gradient
is ``BatchNormTrainingBackprop-1`` in the oneDNN Graph specification, a versioned operator, and
``BatchNormTrainingBackward`` in the library's Graph API.
"""

from typing import Any, Generic, NamedTuple, SupportsFloat

from numpy.typing import NDArray

from bn_ext._core import batch_norm_backward
from bn_ext._typing import Array, Data, DataFormat, Flag, Scalar, Vector
from bn_ext.specs._onednn import as_positive, check_types
from bn_ext.specs._onednn_forward import (
    BatchNormForwardTraining,
    batch_norm_forward_training,
    batch_norm_inference,
)
from bn_ext.specs._sheet import as_array, as_flag, in_default_mode, in_words

__all__ = [
    "BatchNormForwardTraining",
    "BatchNormTrainingBackprop",
    "BatchNormTrainingBackward",
    "batch_norm_forward_training",
    "batch_norm_inference",
    "batch_norm_training_backprop",
    "batch_norm_training_backward",
]


def __dir__() -> list[str]:
    return __all__


class BatchNormTrainingBackprop(NamedTuple, Generic[Scalar, Vector]):
    """Outputs of `batch_norm_training_backprop`, in the spec's order."""

    input_delta: NDArray[Scalar]
    gamma_delta: NDArray[Vector] | Any
    beta_delta: NDArray[Vector] | Any


class BatchNormTrainingBackward(NamedTuple, Generic[Scalar, Vector]):
    """Outputs of `batch_norm_training_backward`, in the spec's order."""

    diff_src: NDArray[Scalar]
    diff_gamma: NDArray[Vector] | Any
    diff_beta: NDArray[Vector] | Any


@in_default_mode
def batch_norm_training_backprop(
    input_forward: Data[Scalar],
    output_delta: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    gamma_delta: Flag = True,
    beta_delta: Flag = True,
) -> BatchNormTrainingBackprop[Scalar, Vector]:
    """Operator ``BatchNormTrainingBackprop-1`` of the oneDNN Graph specification.

    Parameters
    ----------
    input_forward : array, shape (N, ..., C) or (N, C, ...)
        Input 1: what the forward pass normalized; float32, float16 or bfloat16 (T1).
    output_delta : array
        Input 2: the gradient with respect to the output, with the shape and dtype of
        input_forward.
    mean, variance : array, shape (C,)
        Inputs 3 and 4: the batch's mean and biased variance; float32, or bfloat16 if
        the data is bfloat16 (T2).
    gamma : array, shape (C,), optional
        Input 5: the scale (T2). None means ones.
    epsilon : float
        Added to the variance: positive and finite as a float32.
    data_format : {"NXC", "NCX"}, optional
        Whether the channels are on the last axis (channels last: NHWC, ...) or on
        axis 1 (channels first: NCHW, ...).
    gamma_delta, beta_delta : bool, optional
        Whether to compute that optional output; each independently.

    Returns
    -------
    BatchNormTrainingBackprop
        input_delta (T1), gamma_delta and beta_delta (T2, shape (C,)); None for an
        optional output that was not requested.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`, with this operator's names; also TypeError
        for float64 and for float16 vectors, ValueError for an epsilon that is not
        positive.

    See Also
    --------
    bn_ext.batch_norm_backward
    batch_norm_training_backward : The same under other names.

    Notes
    -----
    Any rank from 2 up is accepted. `epsilon` is used as a double: pass
    ``float(np.float32(1e-3))`` to mimic the float attribute. What counts as an array,
    and what is copied, is as for `bn_ext.batch_norm_backward`; lists of Python numbers
    are float64 or integers, so their types are refused.

    oneDNN 3.8 on a CPU differs: it requires gamma if all three outputs are requested;
    computes input_delta alone by the formula for frozen statistics; does not support
    bfloat16 vectors, and float16 data only on a few CPUs; accepts ranks 4 and 5 in NXC,
    2 to 5 in NCX; leaves the parameter gradients of an empty batch unwritten.

    Definition: oneDNN Graph Specification, "BatchNormTrainingBackprop-1".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> dy = np.array([[1, 1], [0, 0]], np.float32)
    >>> grads = onednn_graph.batch_norm_training_backprop(
    ...     x, dy, x.mean(axis=0), x.var(axis=0), epsilon=1e-3, gamma_delta=False)
    >>> grads.gamma_delta is None
    True
    >>> grads.beta_delta
    array([1., 1.], dtype=float32)
    """
    with_gamma, with_beta = as_flag(gamma_delta, "gamma_delta"), as_flag(beta_delta, "beta_delta")
    arrays = {
        "input_forward": as_array(input_forward, "input_forward"),
        "output_delta": as_array(output_delta, "output_delta"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    if gamma is not None:
        arrays["gamma"] = as_array(gamma, "gamma")
    value = as_positive(epsilon, "epsilon")
    check_types(arrays, data=2)
    words = {"src": "input_forward", "diff_dst": "output_delta"}
    grads = batch_norm_backward(
        *arrays.values(),
        epsilon=value,
        data_format=in_words(data_format, words),
        param_grads=with_gamma or with_beta,
    )
    return BatchNormTrainingBackprop(
        grads.diff_src,
        grads.diff_gamma if with_gamma else None,
        grads.diff_beta if with_beta else None,
    )


@in_default_mode
def batch_norm_training_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    diff_gamma: Flag = True,
    diff_beta: Flag = True,
) -> BatchNormTrainingBackward[Scalar, Vector]:
    """Operator ``BatchNormTrainingBackward`` of the oneDNN Graph API.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        Input 0: what the forward pass normalized; float32, float16 or bfloat16.
    diff_dst : array
        Input 1: the gradient with respect to the output, with src's shape and dtype.
    mean, variance : array, shape (C,)
        Inputs 2 and 3: the batch's mean and biased variance; float32, or bfloat16 if
        the data is bfloat16.
    gamma : array, shape (C,), optional
        Input 4: the scale, in mean's dtype. None means ones.
    epsilon : float
        Added to the variance: positive and finite as a float32.
    data_format : {"NXC", "NCX"}, optional
        Whether the channels are on the last axis (channels last: NHWC, ...) or on
        axis 1 (channels first: NCHW, ...).
    diff_gamma, diff_beta : bool, optional
        Whether to compute the optional outputs: both or neither.

    Returns
    -------
    BatchNormTrainingBackward
        diff_src (src's dtype), diff_gamma and diff_beta (mean's dtype, shape (C,), or
        both None).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`; also TypeError for float64 and for float16
        vectors, ValueError for an epsilon that is not positive and for one optional
        output without the other.

    See Also
    --------
    bn_ext.batch_norm_backward
    batch_norm_forward_training : What it is the gradient of.

    Notes
    -----
    Without the optional outputs gamma is ignored, as the spec says: it is not even
    checked, and diff_src follows the training formula with gamma = 1.
    (`bn_ext.batch_norm_backward` uses gamma whatever it returns.) Any rank from 2 up is
    accepted; `epsilon` is used as a double. What counts as an array, and what is
    copied, is as for `bn_ext.batch_norm_backward`; lists of Python numbers are float64
    or integers, so their types are refused.

    oneDNN 3.8 on a CPU differs: its graph computes diff_src alone by the formula for
    frozen statistics with gamma = 1 (its primitive uses the training formula);
    requires gamma if all three outputs are requested; does not support bfloat16
    vectors, and float16 data only on a few CPUs; accepts ranks 4 and 5 in NXC, 2 to 5
    in NCX; leaves the parameter gradients of an empty batch unwritten.

    Definition: oneDNN developer guide, Graph API, "BatchNormTrainingBackward".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> dy = np.array([[1, 1], [0, 0]], np.float32)
    >>> grads = onednn_graph.batch_norm_training_backward(
    ...     x, dy, x.mean(axis=0), x.var(axis=0), epsilon=1e-3)
    >>> grads.diff_beta
    array([1., 1.], dtype=float32)
    """
    param_grads = as_flag(diff_gamma, "diff_gamma")
    if as_flag(diff_beta, "diff_beta") != param_grads:
        raise ValueError(
            f"diff_gamma, diff_beta: expected both or neither, got {diff_gamma!r}, {diff_beta!r}"
        )
    arrays = {
        "src": as_array(src, "src"),
        "diff_dst": as_array(diff_dst, "diff_dst"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    if gamma is not None and param_grads:
        arrays["gamma"] = as_array(gamma, "gamma")
    value = as_positive(epsilon, "epsilon")
    check_types(arrays, data=2)
    grads = batch_norm_backward(
        *arrays.values(),
        epsilon=value,
        data_format=data_format,
        param_grads=param_grads,
    )
    return BatchNormTrainingBackward(*grads)
