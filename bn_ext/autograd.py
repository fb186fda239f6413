"""Batch normalization for HIPS autograd: first and second derivatives, forward and reverse mode.

The extra ``autograd`` installs what this module needs. ``import bn_ext`` does not import it.

    _normalize    src, gamma, beta, src_1, mean, variance -> dst     derivatives: _gradients
    _gradients    diff_dst -> gradients of these six, in one pass    derivatives: _second
    _second       the gradients of _gradients                        derivatives: none

mean and variance are None unless autograd differentiates with respect to them; the numbers are in
the step. All vectors are copies in float64: whoever passed an array may update it. Primitives
compute in the default floating-point mode.
"""

from dataclasses import dataclass, replace
from typing import Any, Never, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

import bn_ext._core as _core
import bn_ext._layer as _layer
import bn_ext._vectors as _vectors
from bn_ext._gated import gated, gated_double_backward, workspace_size
from bn_ext._names import missing, refuses_other_names, unknown
from bn_ext._typing import DataFormat, Flag

try:
    from autograd import extend
    from autograd.builtins import DictBox
    from autograd.extend import Box, primitive
    from autograd.tracer import getval
except ImportError as _error:
    raise missing(__name__, _error, "autograd") from _error

__all__ = ["BatchNorm", "batch_norm_inference", "batch_norm_training"]
__dir__ = __all__.copy

#: What `_normalize` is differentiated by, in its order.
_ARGUMENTS = ("src", "gamma", "beta", "src_1", "mean", "variance")


@dataclass
class _Step:
    """The options of a forward pass, and what it saves for its derivatives."""

    shared: dict[str, Any]  # epsilon, data_format, num_threads
    relu: bool
    exact: bool
    stats: Any
    is_training: bool
    training: dict[str, Any]  # options of a pass that computes them
    src: Any = None
    added: bool = False
    workspace: Any = None


def _as(diff: Any, dtype: Any) -> Any:
    """Convert a derivative; autograd may pass it in another dtype."""
    with _core.DefaultMode():
        return None if diff is None else np.asarray(diff, dtype)


class _Gradients(dict[str, Any]):
    """Gradients by the names of arguments; those that are missing are 0."""


class _Space(extend.VSpace):
    """How autograd adds `_Gradients`."""

    def zeros(self) -> _Gradients:
        return _Gradients()

    def _add(self, ours: _Gradients, theirs: _Gradients) -> _Gradients:
        with _core.DefaultMode():
            both = {name: ours[name] + theirs[name] for name in ours.keys() & theirs.keys()}
        return _Gradients({**ours, **theirs, **both})

    _mut_add = _add


_Space.register(_Gradients)
DictBox.register(_Gradients)


@primitive
def _normalize(
    src: Any, gamma: Any, beta: Any, src_1: Any, mean: Any, variance: Any, step: _Step
) -> NDArray[Any]:
    step.src, step.added = src, src_1 is not None
    if step.relu:
        step.workspace = np.empty(workspace_size(src.size, src.ndim), np.uint8)
    options = {"src_1": src_1, "relu": step.relu, "workspace": step.workspace, **step.shared}
    if step.stats:
        return _core.inference(src, *step.stats, gamma, beta, **options)
    found = _core.training(src, gamma, beta, exact=step.exact, **options, **step.training)
    dst, *step.stats = found
    return dst


@primitive
def _gradients(
    src: Any, diff_dst: Any, gamma: Any, mean: Any, variance: Any, step: _Step
) -> _Gradients:
    diff = _as(diff_dst, src.dtype)
    found = _core.backward(
        src, diff, *step.stats, gamma, relu=step.relu, workspace=step.workspace, exact=step.exact,
        diff_src_1=step.added and step.relu, is_training=step.is_training, **step.shared,
    )  # fmt: skip
    grads = dict(zip(_ARGUMENTS, (*found, diff)[: 3 + step.added], strict=False))
    if mean is not None:
        grads["mean"], grads["variance"] = _vectors.statistics_backward(
            found[1], found[2], step.stats[1], gamma, step.shared["epsilon"]
        )
    return _Gradients(grads)


@primitive
def _second(
    src: Any, diff_dst: Any, gamma: Any, grads: _Gradients, diff_diffs: _Gradients, step: _Step
) -> tuple[Any, ...]:
    """The gradients by src, diff_dst and gamma; by mean and variance, if `grads` has theirs."""
    of = {name: diff_diffs.get(name) for name in _ARGUMENTS}
    of_src = np.zeros_like(src) if of["src"] is None else _as(of["src"], src.dtype)
    mean, variance = step.stats
    scale, rstd = 1.0 if gamma is None else gamma, None
    if "mean" in grads:
        rstd = _vectors.rstd(variance, step.shared["epsilon"])
    # diff_mean is diff_beta, and diff_variance diff_gamma, times what these two are.
    by_gamma = _sum((of["gamma"],), (-0.5, scale, rstd, rstd, of["variance"]))
    by_beta = _sum((of["beta"],), (-1.0, scale, rstd, of["mean"]))
    found = gated_double_backward(
        src, _as(diff_dst, src.dtype), mean, variance, gamma, of_src, by_gamma, by_beta,
        of_src_1=_as(of["src_1"], src.dtype), workspace=step.workspace,
        is_training=step.is_training, **step.shared,
    )  # fmt: skip
    if rstd is None:
        return tuple(found)
    diff_gamma, diff_beta, half = grads["gamma"], grads["beta"], (-0.5, rstd, rstd)
    return (
        *found[:2],
        _sum(
            (found.diff_gamma,),
            (-1.0, rstd, of["mean"], diff_beta),
            (*half, of["variance"], diff_gamma),
        ),
        _sum((-1.0, rstd, by_gamma, diff_beta), like=rstd),
        _sum(
            (*half, scale, None if of["src"] is None else found.diff_gamma),  # else 0, times Inf
            (*half, of["gamma"], diff_gamma),
            (*half, -1.0, rstd, scale, of["mean"], diff_beta),
            (*half, -1.5, rstd, rstd, scale, of["variance"], diff_gamma),
            like=rstd,
        ),
    )


def _sum(*terms: tuple[Any, ...], like: Any = None) -> Any:
    """The sum of products, without those that have a factor None; None, or zeros, if all have."""
    products = [_vectors.product(*term) for term in terms if all(f is not None for f in term)]
    if not products:
        return None if like is None else np.zeros_like(like)
    with _core.DefaultMode():
        return sum(products[1:], products[0])


@primitive
def _gated(diff: Any, step: _Step) -> NDArray[Any]:
    gate = {"workspace": step.workspace, "data_format": step.shared["data_format"]}
    found: NDArray[Any] = gated(_as(diff, step.src.dtype), step.src, step.stats[0], **gate)
    return found


# ---- linear functions, and products, in the default mode ---------------------------------------


@primitive
def _cast(array: Any, dtype: Any) -> NDArray[Any]:
    """A copy in another dtype."""
    with _core.DefaultMode():
        return np.array(array, dtype)


@primitive
def _entry(grads: _Gradients, name: str) -> Any:
    return grads[name]


@primitive
def _alone(grad: Any, name: str) -> _Gradients:
    return _Gradients({name: grad})


@primitive
def _times(*factors: Any) -> Any:
    return _vectors.product(*factors)


@primitive
def _rstd(variance: Any, epsilon: float) -> Any:
    return _vectors.rstd(variance, epsilon)


def _symmetric(function: Any, slope: Any) -> None:
    """Both derivatives of a function whose Jacobians are symmetric."""
    extend.defvjp_argnum(function, lambda n, *given: lambda diff: slope(n, diff, *given[:2]))
    extend.defjvp_argnum(function, lambda n, v, *given: slope(n, v, *given[:2]))


extend.defvjp(_cast, lambda new, array, dtype: lambda diff: _cast(diff, array.dtype))
extend.defjvp(_cast, "same")
extend.defvjp(_entry, lambda entry, grads, name: lambda diff: _alone(diff, name))
extend.defjvp(
    _entry,
    lambda v, entry, grads, name: _entry(v, name) if name in v else extend.vspace(entry).zeros(),
)
extend.defvjp(_alone, lambda grads, grad, name: lambda diff: _entry(diff, name))
extend.defjvp(_alone, "same")
_symmetric(_times, lambda n, diff, found, factors: _times(diff, *factors[:n], *factors[n + 1 :]))
_symmetric(_rstd, lambda n, diff, rstd, _: _times(-0.5, diff, rstd, rstd, rstd))
_symmetric(_gated, lambda n, diff, passed, given: _gated(diff, given[1]))


# ---- derivatives in reverse mode and in forward mode ------------------------------------------

_second.__name__ = "batch_norm_double_backward"  # in autograd's error


def _vjps_of_normalize(argnums: Any, dst: Any, given: Any, _: Any) -> Any:
    src, gamma, _, _, mean, variance, step = given

    def vjp(diff_dst: Any) -> list[Any]:
        grads = _gradients(src, diff_dst, gamma, mean, variance, step)
        return [_entry(grads, _ARGUMENTS[n]) for n in argnums]

    return vjp


def _vjps_of_gradients(argnums: Any, grads: Any, given: Any, _: Any) -> Any:
    src, diff_dst, gamma, _, _, step = given

    def vjp(diff_diffs: Any) -> list[Any]:
        found = _second(src, diff_dst, gamma, grads, diff_diffs, step)
        return [found[n] for n in argnums]

    return vjp


def _jvps_of_normalize(n: int, v: Any, dst: Any, given: Any, _: Any) -> Any:
    src, gamma, _, _, mean, variance, step = given
    name, linear = _ARGUMENTS[n], replace(step, relu=False, workspace=None, added=False)
    if name in ("mean", "variance"):
        scale, rstd = 1.0 if gamma is None else gamma, _rstd(variance, step.shared["epsilon"])
        if name == "mean":
            name, v = "beta", _times(-1.0, scale, rstd, v)
        else:
            name, v = "gamma", _times(-0.5, scale, rstd, rstd, v)
    if name == "src":  # d(dst)/d(src) is symmetric
        v = _entry(_gradients(src, v, gamma, mean, variance, linear), name)
    elif name == "gamma":
        v = _normalize(src, v, None, None, mean, variance, linear)
    elif name == "beta":  # v for all elements: that of zeros, whose mean is 0
        zeros = np.zeros_like(step.stats[0])
        linear = replace(linear, stats=(zeros, zeros + 1), is_training=False)
        v = _normalize(np.zeros_like(step.src), None, v, None, None, None, linear)
    return _gated(v, step) if step.relu else v


def _jvps_of_gradients(n: int, v: Any, grads: Any, given: Any, _: Any) -> Any:
    src, diff_dst, gamma, mean, variance, step = given
    names = ("src", "diff_dst", "gamma", "mean", "variance")
    name = names[n]
    if name == "diff_dst":
        return _gradients(src, v, gamma, mean, variance, step)
    if name == "gamma":
        found = _gradients(src, diff_dst, v, mean, variance, step)
        return _Gradients({k: _entry(found, k) for k in ("src", "mean", "variance") if k in found})
    # Second derivatives are symmetric, so `_second`, which is a vjp, also gives this jvp.
    found = _second(src, diff_dst, gamma, grads, _alone(v, name), step)
    return _Gradients({k: found[i] for i, k in enumerate(names) if k in grads})


extend.defvjp_argnums(_normalize, _vjps_of_normalize)
extend.defjvp_argnum(_normalize, _jvps_of_normalize)
extend.defvjp_argnums(_gradients, _vjps_of_gradients)
extend.defjvp_argnum(_gradients, _jvps_of_gradients)


# ---- what is public ---------------------------------------------------------------------------


@refuses_other_names
def batch_norm_training(
    src: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
    src_1: Any = None,
    relu: Flag = False,
    num_threads: SupportsIndex | None = None,
    exact: Flag = False,
    running_mean: Any = None,
    running_variance: Any = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsFloat | None = None,
    **other: Never,
) -> NDArray[Any]:
    """`bn_ext.batch_norm_training` for autograd.

    Arguments and errors are as for that function; autograd differentiates with respect to src,
    gamma, beta and src_1. `exact` also applies to first derivatives. Each evaluation of the
    function updates the running statistics; ``check_grads`` evaluates it many times.

    First and second derivatives are available in reverse mode, in forward mode, and mixed; a third
    one is a NotImplementedError. One call of `bn_ext.batch_norm_backward` computes the gradient
    with respect to all arguments. Gradients that reach an argument in several ways are added by
    autograd, in the caller's floating-point mode.

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
    if other:
        raise unknown(batch_norm_training, other)
    given = {"src": src, "gamma": gamma, "beta": beta, "src_1": src_1}
    shared = {"epsilon": epsilon, "data_format": data_format, "num_threads": num_threads}
    return _apply(
        _core.training, given, shared, relu, exact, running_mean=running_mean,
        running_variance=running_variance, exponential_avg_factor=exponential_avg_factor,
        correction=correction,
    )  # fmt: skip


def _apply(
    function: Any, given: dict[str, Any], shared: dict[str, Any], relu: Flag, exact: Flag,
    **more: Any,
) -> NDArray[Any]:  # fmt: skip
    """Check all that a function of `_core` is given; then normalize, with copies of vectors."""
    arrays = {
        name: array if array is None or isinstance(array, Box) else _core.as_array(array, name)
        for name, array in given.items()
    }
    constants = {name: getval(array) for name, array in arrays.items()}
    function(**constants, **shared, relu=relu, **more, dry=True)
    for name, array in arrays.items():
        if array is not None and name not in ("src", "src_1"):
            arrays[name] = _cast(array, np.float64)
    *four, mean, variance = map(arrays.get, _ARGUMENTS)
    stats = () if mean is None else (getval(mean), getval(variance))
    if not (isinstance(mean, Box) or isinstance(variance, Box)):
        mean = variance = None
    shared = {**shared, "epsilon": _core.as_epsilon(shared["epsilon"])}
    flags = _core.as_flag(relu, "relu"), _core.as_flag(exact, "exact")
    step = _Step(shared, *flags, stats, is_training=not stats, training=more)
    found: NDArray[Any] = _normalize(*four, mean, variance, step)
    return found


@refuses_other_names
def batch_norm_inference(
    src: Any,
    mean: Any,
    variance: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
    src_1: Any = None,
    relu: Flag = False,
    num_threads: SupportsIndex | None = None,
    exact: Flag = False,
    **other: Never,
) -> NDArray[Any]:
    """`bn_ext.batch_norm_inference` for autograd.

    Arguments and errors are as for that function and `batch_norm_training`; autograd also
    differentiates with respect to mean and variance.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

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
    if other:
        raise unknown(batch_norm_inference, other)
    given = {"src": src, "gamma": gamma, "beta": beta, "src_1": src_1}
    stats = {"mean": mean, "variance": variance}
    shared = {"epsilon": epsilon, "data_format": data_format, "num_threads": num_threads}
    return _apply(_core.inference, given | stats, shared, relu, exact)


class BatchNorm(_layer.BatchNorm):
    """`bn_ext.BatchNorm` for autograd: `forward` takes the parameters as an argument.

    Options are as for `bn_ext.BatchNorm`, but `allreduce` must be None.

    autograd differentiates with respect to arguments, so `forward` takes gamma and beta: at first,
    pass the layer's ``parameters``. If an optimizer returns new arrays, the layer's own do not
    change: copy the newest to ``gamma`` and ``beta`` before you call ``state_dict``. Each
    evaluation in training mode updates the running statistics, unless you pass ``track=False``.
    There are no attributes ``gradients``, ``diff_gamma`` and ``diff_beta``.

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
    _LACKS = dict.fromkeys(
        ("gradients", "diff_gamma", "diff_beta"), "; autograd.grad returns the gradients"
    )

    @refuses_other_names
    def forward(  # type: ignore[override]
        self, parameters: Any, src: Any, src_1: Any = None, *, track: Flag = True, **other: Never
    ) -> NDArray[Any]:
        """Normalize a batch; returns dst.

        `parameters` are gamma and beta; an empty sequence means the layer's own, if any. All else
        is as for `bn_ext.BatchNorm.forward` and `batch_norm_training`.
        """
        if other:
            raise unknown(BatchNorm.forward, other)
        try:
            gamma, beta = parameters if len(parameters) else (self.gamma, self.beta)
        except (TypeError, ValueError) as error:
            raise type(error)(
                "parameters: expected gamma and beta, or an empty sequence, got "
                + _core.shown(parameters)
            ) from None
        self._as_data(getval(src))  # its channels must fit the layer
        given = {"src": src, "gamma": gamma, "beta": beta, "src_1": src_1}
        shared = self._shared(), self.relu, self.exact
        tracking = self._tracking() if _core.as_flag(track, "track") else {}
        if self._from_batch():
            return _apply(_core.training, given, *shared, **tracking)
        given |= {"mean": self.running_mean, "variance": self.running_variance}
        return _apply(_core.inference, given, *shared, running=True)

    def backward(self, *given: Any, **options: Any) -> Any:
        """Raise a TypeError: autograd computes the gradients."""
        raise TypeError("backward: expected autograd to differentiate; call autograd.grad")

    def _shared(self) -> dict[str, Any]:
        if self.allreduce is not None:
            got = _core.shown(self.allreduce)
            raise TypeError(f"allreduce: expected None, got {got}; bn_ext.BatchNorm can use it")
        return super()._shared()
