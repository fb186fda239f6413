"""Batch normalization for HIPS autograd: first and second derivatives, forward and reverse mode.

The extra ``autograd`` installs what this module needs. ``import bn_ext`` does not import it.

    _normalize    src, gamma, beta, src_1 -> dst                     derivatives: _gradients
    _gradients    diff_dst -> gradients of these four, in one pass   derivatives: _second
    _second       the gradients of _gradients                        derivatives: none
"""

from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

try:
    import autograd.numpy as anp
    from autograd.extend import Box, defjvp, defvjp, defvjp_argnums, primitive, vspace
    from autograd.tracer import getval
except ImportError as _error:
    raise ModuleNotFoundError(
        f"bn_ext.autograd: expected autograd, got {_error!r:.200}; python -m pip install autograd",
        name="autograd",
    ) from _error

from bn_ext import _core, _layer
from bn_ext._gated import gated, gated_double_backward, workspace_size
from bn_ext._names import refuses_other_names
from bn_ext._typing import Array, DataFormat, Flag

__all__ = ["BatchNorm", "batch_norm_inference", "batch_norm_training"]


def __dir__() -> list[str]:
    return __all__


class _Step:
    """The options of a forward pass, and what it saves for its derivatives."""

    def __init__(
        self, shared: dict[str, Any], relu: Flag, *stats: NDArray[Any], **training: Any
    ) -> None:
        self.shared = shared  # epsilon, data_format, num_threads
        self.relu = _core._as_flag(relu, "relu")
        self.training, self.exact = training, training.get("exact", False)
        self.is_training, self.is_linear = not stats, False
        self.stats: Any = stats
        self.src: Any = None
        self.workspace: Any = None

    def linear(self) -> "_Step":
        """The same step without the ReLU: a linear map, to be applied to derivatives."""
        found = _Step(self.shared, False, *self.stats, exact=self.exact)
        found.is_training, found.is_linear = self.is_training, True
        return found

    def through(self, diff: Any) -> Any:
        """`diff` where the ReLU, if there is one, passed the element; else 0."""
        return _gated(diff, self) if self.relu else diff

    @property
    def backward(self) -> dict[str, Any]:
        gate = {"relu": self.relu, "workspace": self.workspace}
        return {**self.shared, **gate, "is_training": self.is_training}


def _as(diff: Any, like: NDArray[Any]) -> Any:
    """Convert a derivative to the dtype of `like`; autograd may pass it in another one."""
    return None if diff is None else np.asarray(diff, like.dtype)


@primitive
def _normalize(src: Any, gamma: Any, beta: Any, src_1: Any, step: _Step) -> NDArray[Any]:
    step.src = src = _core._as_array(src, "src")
    options = {**step.shared, "src_1": src_1, "relu": step.relu}
    if step.relu:
        step.workspace = np.empty(workspace_size(src.size, src.ndim), np.uint8)
        options["workspace"] = step.workspace
    dst: NDArray[Any]
    if step.stats:
        mean, variance = step.stats
        return _core.inference(src, mean, variance, gamma, beta, **options)
    dst, *step.stats = _core.training(src, gamma, beta, **options, **step.training)
    return dst


@primitive
def _gradients(src: Any, diff_dst: Any, gamma: Any, added: bool, step: _Step) -> tuple[Any, ...]:
    diff = _as(diff_dst, src)
    options = {**step.backward, "diff_src_1": added and step.relu, "exact": step.exact}
    mean, variance = step.stats
    found = _core.backward(src, diff, mean, variance, gamma, **options)
    return (*found, diff)[:4] if added else tuple(found)


@primitive
def _second(
    src: Any, diff_dst: Any, gamma: Any, diff_diffs: Sequence[Any], step: _Step
) -> tuple[Any, ...]:
    of_src, of_gamma, of_beta, of_src_1 = (*diff_diffs, None)[:4]
    options = {name: value for name, value in step.backward.items() if name != "relu"}
    diffs = _as(of_src, src), of_gamma, of_beta, _as(of_src_1, src)
    arrays = src, _as(diff_dst, src), *step.stats, gamma, *diffs
    return tuple(gated_double_backward(*arrays, **options))


@primitive
def _gated(diff: Any, step: _Step) -> NDArray[Any]:
    data_format = step.shared["data_format"]
    return gated(_as(diff, step.src), step.src, step.stats[0], step.workspace, data_format)


# ---- derivatives in reverse mode and in forward mode ------------------------------------------

_second.__name__ = "batch_norm_double_backward"  # in autograd's error


def _vjps_of_normalize(argnums: Any, dst: Any, given: Any, _: Any) -> Any:
    src, gamma, _, src_1, step = given

    def vjp(diff_dst: Any) -> list[Any]:
        grads = _gradients(src, diff_dst, gamma, src_1 is not None, step)
        return [grads[n] for n in argnums]

    return vjp


def _vjps_of_gradients(argnums: Any, grads: Any, given: Any, _: Any) -> Any:
    src, diff_dst, gamma, _, step = given

    def vjp(diff_diffs: Any) -> list[Any]:
        found = _second(src, diff_dst, gamma, diff_diffs, step)
        return [found[n] for n in argnums]

    return vjp


def _on_axis(vector: Any, dst: Any, step: _Step) -> Any:
    """Broadcast a (C,) vector to dst's shape and dtype."""
    dims = [1] * dst.ndim
    dims[-1 if _core._as_format(step.shared["data_format"]) & 1 else 1] = -1
    column = anp.reshape(vector, dims)
    if column.dtype != dst.dtype:
        column = column.astype(dst.dtype)
    return anp.broadcast_to(column, dst.shape)


def _zeros(grads: Any, *kept: Any) -> tuple[Any, ...]:
    """A tangent of all gradients: `kept` for the first ones, zeros for the others."""
    return (*kept, *(vspace(grad).zeros() for grad in list(grads)[len(kept) :]))


def _jvp_by_src(v: Any, grads: Any, src: Any, diff_dst: Any, gamma: Any, _: Any, step: Any) -> Any:
    """Second derivatives are symmetric, so `_second`, which is a vjp, also gives this jvp."""
    diff_src, _, diff_gamma = _second(src, diff_dst, gamma, _zeros(grads, v), step)
    return _zeros(grads, diff_src, diff_gamma)


defvjp_argnums(_normalize, _vjps_of_normalize)
defjvp(
    _normalize,
    lambda v, dst, src, gamma, beta, src_1, step: step.through(
        _gradients(src, v, gamma, False, step.linear())[0]  # d(dst)/d(src) is symmetric
    ),
    lambda v, dst, src, gamma, beta, src_1, step: step.through(
        _normalize(src, v, None, None, step.linear())
    ),
    lambda v, dst, src, gamma, beta, src_1, step: step.through(_on_axis(v, dst, step)),
    lambda v, dst, src, gamma, beta, src_1, step: step.through(v),
)
defvjp_argnums(_gradients, _vjps_of_gradients)
defjvp(
    _gradients,
    _jvp_by_src,
    lambda v, grads, src, diff_dst, gamma, added, step: _gradients(src, v, gamma, added, step),
    lambda v, grads, src, diff_dst, gamma, added, step: _zeros(
        grads, _gradients(src, diff_dst, v, added, step)[0]
    ),
)
defvjp(_gated, lambda passed, diff, step: lambda diff_diff: _gated(diff_diff, step))
defjvp(_gated, lambda v, passed, diff, step: _gated(v, step))


# ---- what is public ---------------------------------------------------------------------------


@refuses_other_names
def batch_norm_training(
    src: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    num_threads: SupportsIndex | None = None,
    exact: Flag = False,
    running_mean: Array | None = None,
    running_variance: Array | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsFloat | None = None,
) -> NDArray[Any]:
    """`bn_ext.batch_norm_training` for autograd; returns only dst.

    Parameters
    ----------
    src, gamma, beta, src_1
        As for `bn_ext.batch_norm_training`; autograd differentiates with respect to these.
    epsilon, data_format, relu, num_threads, exact
        As for `bn_ext.batch_norm_training`. `exact` also applies to first derivatives.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `bn_ext.batch_norm_training`. Each evaluation of the function updates the first two;
        ``check_grads`` evaluates it many times.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`.
    NotImplementedError
        If a third derivative is computed.

    Notes
    -----
    First and second derivatives are available in reverse mode, in forward mode, and mixed. One call
    of `bn_ext.batch_norm_backward` computes the gradient with respect to all arguments.

    Examples
    --------
    >>> import autograd, autograd.numpy as np, bn_ext.autograd
    >>> src, gamma = np.array([[1.0], [2.0], [6.0]]), np.array([2.0])
    >>> def loss(src, gamma):
    ...     return np.sum(bn_ext.autograd.batch_norm_training(src, gamma, epsilon=0.0) ** 3)
    >>> autograd.grad(loss, 1)(src, gamma).round(6)
    array([21.426122])
    """
    shared = {"epsilon": epsilon, "data_format": data_format, "num_threads": num_threads}
    step = _Step(
        shared, relu, exact=exact, running_mean=running_mean, running_variance=running_variance,
        exponential_avg_factor=exponential_avg_factor, correction=correction,
    )  # fmt: skip
    given = _as_arrays(src=src, gamma=gamma, beta=beta, src_1=src_1)
    found: NDArray[Any] = _normalize(*given.values(), step)
    return found


def _as_arrays(**given: Any) -> dict[str, Any]:
    return {
        name: array if array is None or isinstance(array, Box) else _core._as_array(array, name)
        for name, array in given.items()
    }


def _constant(array: Any) -> Any:
    while isinstance(array, Box):
        array = getval(array)
    return array


@primitive
def _wide(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64)


@primitive
def _narrow(array: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    return array.astype(dtype)


@primitive
def _still(array: NDArray[Any], slope: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zeros, whose derivative with respect to `array` is `slope`."""
    return np.zeros_like(slope)


defvjp(_wide, lambda wide, array: lambda diff: _narrow(diff, array.dtype))
defjvp(_wide, lambda diff, wide, array: _wide(diff))
defvjp(_narrow, lambda narrow, array, dtype: lambda diff: _wide(diff))
defjvp(_narrow, lambda diff, narrow, array, dtype: _narrow(diff, dtype))
defvjp(_still, lambda still, array, slope: lambda diff: diff * slope, None)
defjvp(_still, lambda diff, still, array, slope: diff * slope, None)


def _of_statistics(given: dict[str, Any], constants: dict[str, Any], epsilon: float) -> Any:
    """Replace gamma and beta so that they carry the derivatives with respect to the statistics.

    With these two and constant statistics, dst has the right first and second derivatives. gamma
    and beta keep the values that were given, so no bit of dst changes.
    """
    mean, variance, gamma, beta = given.values()
    square = 1 / (constants["variance"].astype(np.float64) + epsilon)
    moved = _still(variance, square)
    # rstd[1] is rstd's value, a constant. rstd[0] is 1; its first two derivatives are rstd's,
    # divided by that constant.
    rstd = (1 - 0.5 * moved + 0.375 * moved * moved, np.sqrt(square))
    scale = (1.0 if gamma is None else gamma) * rstd[0]
    shift = scale * _still(mean, rstd[1])
    return scale, (0.0 if beta is None else beta) - shift


@refuses_other_names
def batch_norm_inference(
    src: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    num_threads: SupportsIndex | None = None,
) -> NDArray[Any]:
    """`bn_ext.batch_norm_inference` for autograd.

    Parameters
    ----------
    src, mean, variance, gamma, beta, src_1
        As for `bn_ext.batch_norm_inference`; autograd differentiates with respect to these.
    epsilon, data_format, relu, num_threads
        As for `bn_ext.batch_norm_inference`.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_inference`.
    NotImplementedError
        If a third derivative is computed.

    Examples
    --------
    >>> import autograd, autograd.numpy as np, bn_ext.autograd
    >>> mean, variance = np.zeros(1), np.array([4.0])
    >>> def loss(src):
    ...     return np.sum(bn_ext.autograd.batch_norm_inference(src, mean, variance, epsilon=0.0))
    >>> autograd.grad(loss)(np.array([[1.0], [2.0]]))
    array([[0.5],
           [0.5]])
    """
    shared = {"epsilon": epsilon, "data_format": data_format, "num_threads": num_threads}
    given = _as_arrays(src=src, mean=mean, variance=variance, gamma=gamma, beta=beta, src_1=src_1)
    constants = {name: _constant(array) for name, array in given.items()}
    src, src_1 = given.pop("src"), given.pop("src_1")
    stats = constants["mean"], constants["variance"]
    if isinstance(given["mean"], Box) or isinstance(given["variance"], Box):
        _core.inference(**constants, relu=relu, **shared, dry=True)
        with _core._DefaultMode():
            given = {k: None if a is None else _wide(a) for k, a in given.items()}
            gamma, beta = _of_statistics(given, constants, float(epsilon))
            stats = stats[0].astype(np.float64), stats[1].astype(np.float64)
    else:
        gamma, beta = given["gamma"], given["beta"]
    found: NDArray[Any] = _normalize(src, gamma, beta, src_1, _Step(shared, relu, *stats))
    return found


class BatchNorm(_layer.BatchNorm):
    """`bn_ext.BatchNorm` for autograd: `forward` takes the parameters as an argument.

    Parameters
    ----------
    channels, **options
        As for `bn_ext.BatchNorm`.

    Notes
    -----
    autograd differentiates with respect to arguments, so `forward` takes gamma and beta: at first,
    pass the layer's ``parameters``. If an optimizer returns new arrays, the layer's own do not
    change: copy the newest to ``gamma`` and ``beta`` before you call ``state_dict``. Each
    evaluation in training mode updates the running statistics.

    Examples
    --------
    >>> import autograd, autograd.numpy as np, bn_ext.autograd
    >>> layer = bn_ext.autograd.BatchNorm(2)
    >>> src = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> def loss(parameters):
    ...     return np.sum(layer(parameters, src) ** 2 + layer(parameters, src))
    >>> diff_gamma, diff_beta = autograd.grad(loss)(layer.parameters)
    >>> diff_beta
    array([2., 2.])
    """

    __module__ = "bn_ext.autograd"

    @refuses_other_names
    def forward(self, parameters: Any, src: Any, src_1: Any = None) -> NDArray[Any]:  # type: ignore[override]
        """Normalize a batch.

        Parameters
        ----------
        parameters : sequence of two arrays
            gamma and beta; empty means the layer's own, if any.
        src, src_1
            As for `bn_ext.BatchNorm.forward`.

        Returns
        -------
        ndarray
            dst, a new array.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `batch_norm_training` and `batch_norm_inference`.
        """
        try:
            gamma, beta = parameters if len(parameters) else (self.gamma, self.beta)
        except (TypeError, ValueError) as error:
            raise type(error)(
                "parameters: expected gamma and beta, or an empty sequence, got "
                + _core._shown(parameters)
            ) from None
        options = self._options(src_1)
        if not self._from_batch():
            stats: tuple[Any, Any] = self.running_mean, self.running_variance
            return batch_norm_inference(src, *stats, gamma, beta, **options)
        dst = batch_norm_training(src, gamma, beta, **self._tracking(), **options)
        self.num_batches_tracked += self.running_mean is not None and dst.size > 0
        return dst

    def backward(self, *given: Any, **options: Any) -> Any:
        """Raise a TypeError: autograd computes the gradients."""
        raise TypeError("backward: expected autograd to differentiate; call autograd.grad")
