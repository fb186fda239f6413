"""Batch normalization for HIPS autograd: first and second derivatives, in reverse mode.

The extra ``autograd`` installs what this module needs. ``import bn_ext`` does not import it.

    _normalize    src, gamma, beta, src_1, mean, variance -> dst     its gradients: _gradients
    _gradients    diff_dst -> gradients of these six, in one pass    its gradients: _second

A step has the options of all three, and what the first saves for the others: the statistics. All
vectors are copies in float64: whoever passed an array may update it. Primitives compute in the
default floating-point mode.
"""

from __future__ import annotations  # help shows names, not what they stand for

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

import bn_ext._core as _core
import bn_ext._layer as _layer
from bn_ext._derivatives import gated_double_backward, statistics_backward, workspace_size
from bn_ext._runtime import missing
from bn_ext._typing import DataFormat, Flag

try:
    from autograd import extend
    from autograd.builtins import DictBox
    from autograd.tracer import getval
except ImportError as _error:
    raise missing(__name__, _error, "autograd") from _error

__all__ = ["BatchNorm", "batch_norm_inference", "batch_norm_training"]
__dir__ = __all__.copy

#: What `_normalize` is differentiated by, in its order.
_ARGUMENTS = ("src", "gamma", "beta", "src_1", "mean", "variance")


class _Gradients(dict[str, Any]):
    """Gradients by the names of arguments; those that are missing are 0."""


class _Space(extend.VSpace):
    """How autograd adds `_Gradients`."""

    def zeros(self):
        return _Gradients()

    def _add(self, a, b):
        with _core.DefaultMode():
            sums = {name: a[name] + b[name] for name in a.keys() & b.keys()}
        return _Gradients({**a, **b, **sums})

    _mut_add = _add


_Space.register(_Gradients)
DictBox.register(_Gradients)


def _as(diff, dtype):
    """Convert a derivative; autograd may pass it in another dtype."""
    with _core.DefaultMode():
        return None if diff is None else np.asarray(diff, dtype)


@extend.primitive
def _normalize(src, gamma, beta, src_1, mean, variance, step):
    if step.stats:
        return _core.inference(src, *step.stats, gamma, beta, src_1=src_1, **step.forward)
    dst, *step.stats = _core.training(src, gamma, beta, src_1=src_1, **step.forward)
    return dst


@extend.primitive
def _gradients(src, diff_dst, gamma, mean, variance, step):
    diff = _as(diff_dst, src.dtype)
    grads = _core.backward(src, diff, *step.stats, gamma, **step.backward)
    by_name = _Gradients(zip(_ARGUMENTS, (*grads, diff)[:4], strict=False))
    if mean is not None:
        by_name["mean"], by_name["variance"] = statistics_backward(
            grads.diff_gamma, grads.diff_beta, variance, gamma, step.backward["epsilon"]
        )
    return by_name


@extend.primitive
def _second(src, diff_dst, gamma, diffs, step):
    """The gradients of `_gradients`, with which `diffs` came back."""
    diff_src = diffs.get("src")
    return gated_double_backward(
        src, _as(diff_dst, src.dtype), *step.stats, gamma,
        np.zeros_like(src) if diff_src is None else _as(diff_src, src.dtype),
        diffs.get("gamma"), diffs.get("beta"), of_src_1=_as(diffs.get("src_1"), src.dtype),
        **step.second,
    )  # fmt: skip


@extend.primitive
def _cast(array, dtype):
    """A copy in another dtype."""
    with _core.DefaultMode():
        return np.array(array, dtype)


@extend.primitive
def _entry(grads, name):
    return grads[name]


@extend.primitive
def _alone(grad, name):
    return _Gradients({name: grad})


def _vjps_of_normalize(argnums, dst, arguments, _):
    src, gamma, _, _, *stats, step = arguments

    def vjp(diff_dst):
        grads = _gradients(src, diff_dst, gamma, *stats, step)
        return [_entry(grads, _ARGUMENTS[n]) for n in argnums]

    return vjp


def _vjps_of_gradients(argnums, grads, arguments, _):
    src, diff_dst, gamma, _, _, step = arguments

    def vjp(diffs):
        if max(argnums) > 2 or not {"mean", "variance"}.isdisjoint(diffs):
            raise NotImplementedError("mean, variance: expected one derivative, got a second one")
        second = _second(src, diff_dst, gamma, diffs, step)
        return [second[n] for n in argnums]

    return vjp


extend.defvjp_argnums(_normalize, _vjps_of_normalize)
extend.defvjp_argnums(_gradients, _vjps_of_gradients)
extend.defvjp(_cast, lambda new, array, dtype: lambda diff: _cast(diff, array.dtype))
extend.defvjp(_entry, lambda entry, grads, name: lambda diff: _alone(diff, name))
extend.defvjp(_alone, lambda grads, grad, name: lambda diff: _entry(diff, name))
_second.__name__ = "batch_norm_double_backward"  # in the error for a third derivative


def _apply(function, *, relu, exact, **options):
    """Check all arguments of a function of `_core`; then normalize, with copies of vectors."""
    arrays = {name: options.pop(name) for name in _ARGUMENTS if name in options}
    for name, array in arrays.items():
        if not (array is None or isinstance(array, extend.Box)):
            arrays[name] = _core.as_array(array, name)
    values = {name: getval(array) for name, array in arrays.items()}
    function(**values, **options, relu=relu, dry=True)
    for name, array in arrays.items():
        if array is not None and name not in ("src", "src_1"):
            arrays[name] = _cast(array, np.float64)
    # In training, there are none until `_normalize` has computed them.
    stats = [getval(arrays[name]) for name in ("mean", "variance") if name in arrays]
    relu, exact = _core.as_flag(relu, "relu"), _core.as_flag(exact, "exact")
    shared = {name: options.pop(name) for name in ("data_format", "num_threads", "epsilon")}
    shared["epsilon"] = _core.as_epsilon(shared["epsilon"])
    size = workspace_size(values["src"].size, values["src"].ndim)
    shared["workspace"] = np.empty(size, np.uint8) if relu else None
    second = {**shared, "is_training": not stats}
    added = arrays["src_1"] is not None
    backward = {**second, "relu": relu, "exact": exact, "diff_src_1": relu and added}
    forward = {**shared, "relu": relu, **options, **({} if stats else {"exact": exact})}
    step = SimpleNamespace(stats=stats, forward=forward, backward=backward, second=second)
    return _normalize(*map(arrays.get, _ARGUMENTS), step)


def batch_norm_training(
    src: Any, gamma: Any = None, beta: Any = None, *, epsilon: SupportsFloat,
    data_format: DataFormat | None = None, src_1: Any = None, relu: Flag = False,
    num_threads: SupportsIndex | None = None, exact: Flag = False, running_mean: Any = None,
    running_variance: Any = None, exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsFloat | None = None,
) -> NDArray[Any]:  # fmt: skip
    """`bn_ext.batch_norm_training` for autograd.

    Arguments and errors are as for that function; autograd differentiates with respect to src,
    gamma, beta and src_1, once or twice, in reverse mode. Forward mode and third derivatives are a
    NotImplementedError. `exact` also applies to first derivatives. Each evaluation updates the
    running statistics. Gradients that reach an argument in several ways are added by autograd, in
    the caller's floating-point mode.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Examples
    --------
    >>> import autograd, autograd.numpy as np, bn_ext.autograd
    >>> src, gamma = np.array([[1.0], [2.0], [6.0]]), np.array([2.0])
    >>> def loss(src, gamma):
    ...     return np.sum(bn_ext.autograd.batch_norm_training(src, gamma, epsilon=0.0) ** 3)
    >>> autograd.grad(loss, 1)(src, gamma).round(6)
    array([21.426122])
    """
    return _apply(_core.training, **locals())


def batch_norm_inference(
    src: Any, mean: Any, variance: Any, gamma: Any = None, beta: Any = None, *,
    epsilon: SupportsFloat, data_format: DataFormat | None = None, src_1: Any = None,
    relu: Flag = False, num_threads: SupportsIndex | None = None, exact: Flag = False,
) -> NDArray[Any]:  # fmt: skip
    """`bn_ext.batch_norm_inference` for autograd.

    Arguments and errors are as for that function and `batch_norm_training`; autograd also
    differentiates with respect to mean and variance, but only once.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Examples
    --------
    >>> import autograd, autograd.numpy as np, bn_ext.autograd
    >>> def loss(mean):
    ...     return bn_ext.autograd.batch_norm_inference([[3.0]], mean, [4.0], epsilon=0.0)[0, 0]
    >>> autograd.grad(loss)(np.array([1.0]))
    array([-0.5])
    """
    return _apply(_core.inference, **locals())


class BatchNorm(_layer.BatchNorm):
    """`bn_ext.BatchNorm` for autograd: `forward` takes the parameters as an argument.

    Options are as for `bn_ext.BatchNorm`, but `allreduce` must be None.

    At first, pass the layer's ``parameters``. If an optimizer returns new arrays, the layer's own
    do not change: copy the newest to ``gamma`` and ``beta`` before you call ``state_dict``. Each
    evaluation in training mode updates the running statistics, unless you pass ``track=False``.

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

    _HAS_GRADIENTS = False

    if not TYPE_CHECKING:
        gradients = _layer.Absent("autograd.grad returns the gradients")
        diff_gamma = _layer.Absent("autograd.grad returns the gradients")
        diff_beta = _layer.Absent("autograd.grad returns the gradients")

    def forward(  # type: ignore[override]
        self, parameters: Any, src: Any, src_1: Any = None, *, track: Flag = True
    ) -> NDArray[Any]:
        """Normalize a batch; returns dst.

        `parameters` are gamma and beta; an empty sequence means the layer's own, if any. All else
        is as for `bn_ext.BatchNorm.forward` and `batch_norm_training`.
        """
        try:
            gamma, beta = parameters if len(parameters) else (self.gamma, self.beta)
        except (TypeError, ValueError) as error:
            expected, got = "gamma and beta, or an empty sequence", _core.shown(parameters)
            raise type(error)(f"parameters: expected {expected}, got {got}") from None
        self._as_data(getval(src))  # its channels must fit the layer
        arguments = self._shared() | {"src": src, "gamma": gamma, "beta": beta, "src_1": src_1}
        arguments |= {"relu": self.relu, "exact": self.exact}
        tracking = self._tracking() if _core.as_flag(track, "track") else {}
        if self._from_batch():
            return _apply(_core.training, **arguments, **tracking)
        arguments |= {"mean": self.running_mean, "variance": self.running_variance}
        return _apply(_core.inference, **arguments)

    def backward(self, *arguments: Any, **options: Any) -> Any:
        """Raise a TypeError: autograd computes the gradients."""
        raise TypeError("backward: expected autograd to differentiate; call autograd.grad")

    def _shared(self):
        if self.allreduce is not None:
            got = _core.shown(self.allreduce)
            raise TypeError(f"allreduce: expected None, got {got}; bn_ext.BatchNorm can use it")
        return super()._shared()
