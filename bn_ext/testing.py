"""A check of other implementations of batch normalization against this one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import bn_ext
from bn_ext import _core
from bn_ext._bench.problems import dtype_of
from bn_ext._names import refuses_other_names
from bn_ext._typing import Array, DataFormat

__all__ = ["check_backward"]


def __dir__() -> list[str]:
    return __all__


@refuses_other_names
def check_backward(
    function: Callable[..., Any],
    src: Array | None = None,
    diff_dst: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    gamma: ArrayLike | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    dtype: DTypeLike = "float32",
    data_format: DataFormat | None = None,
    epsilon: float = 1e-5,
    seed: int = 0,
    limit: float = 8,
) -> None:
    """Assert that a function computes the gradient of batch normalization in training.

    The function is compared with `bn_ext.batch_norm_backward` on the same arrays as float64, with
    exact sums.

    Parameters
    ----------
    function : callable
        Called as ``function(src, diff_dst, mean, variance, gamma, epsilon=epsilon)``. It returns
        diff_src, or a tuple of diff_src, diff_gamma and diff_beta.
    src, diff_dst : array, optional
        The data, as for `bn_ext.batch_norm_backward`. If missing, random numbers whose sums hardly
        cancel.
    mean, variance, gamma : array, shape (C,), optional
        If missing, the statistics of src, and random numbers of alternating signs; in float64 for
        float64 data, else in float32.
    shape, dtype : optional
        Those of a random src; float32, float16, bfloat16 or float64.
    data_format : {"NXC", "NCX"}, optional
        As for `bn_ext.batch_norm_backward`.
    epsilon : float, optional
        Added to the variance.
    seed : int, optional
        Seed of the random numbers.
    limit : float, optional
        The largest error, in units of ``2**-24`` (float64 data: ``2**-53``) times the channel's
        scale. The scale of diff_src is the largest sum of its three terms' absolute values; those
        of diff_gamma and diff_beta are the sums of their terms' absolute values. Half a unit in the
        last place of the result's dtype is added, and what underflow may take.

    Raises
    ------
    AssertionError
        If an error is larger, or a shape is wrong, or a NaN or Inf is not where the reference has
        one; the message shows the worst element of each result. Or if the function returns neither
        one array of floating-point numbers nor three, or writes to its arguments. Or if sums come
        so near to overflow that results cannot be judged.
    TypeError, ValueError
        If an argument is wrong, or not one of src and shape is given.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.testing import check_backward
    >>> def gradient(src, diff_dst, mean, variance, gamma, epsilon):
    ...     rstd = 1 / np.sqrt(variance + epsilon)
    ...     xhat = (src - mean) * rstd
    ...     diff_gamma, diff_beta = (diff_dst * xhat).sum(axis=0), diff_dst.sum(axis=0)
    ...     diff_src = gamma * rstd * (diff_dst - (diff_beta + xhat * diff_gamma) / len(src))
    ...     return diff_src, diff_gamma, diff_beta
    >>> check_backward(gradient, shape=(64, 5))

    NumPy adds row after row in float32, so errors grow with the number of rows:

    >>> check_backward(gradient, shape=(100_000, 5))
    Traceback (most recent call last):
    AssertionError: diff_src: ... elements are off by more than 8 * 2**-24 of the scale, in ...
    worst: element (..., ...), channel ...
     got:      ...
     expected: ...
     error:    ...
     limit:    ...
    """
    if not callable(function):
        raise TypeError(f"function: expected a callable, got {_core._shown(function)}")
    if (src is None) == (shape is None):
        which = "neither" if src is None else "both"
        raise TypeError(f"check_backward: expected src or shape, got {which}")
    limit = _named("limit", float, limit)
    if not limit >= 0:
        raise ValueError(f"limit: expected a number of at least 0, got {limit}")
    rng = _named("seed", np.random.default_rng, seed)
    if src is None:
        kind = _named("dtype", dtype_of if isinstance(dtype, str) else np.dtype, dtype)
        data = (_named("shape", rng.standard_normal, shape) + 1).astype(kind)
    else:
        data = _core._as_array(src, "src")
    number = np.float64 if data.dtype == np.float64 else np.float32
    epsilon = _core._as_epsilon(epsilon)
    how: dict[str, Any] = {"epsilon": epsilon, "data_format": data_format}
    _core.training(data, **how, dry=True)
    first = data_format is not None and not _core._as_format(data_format) & 1
    channel = 1 if first else data.ndim - 1
    axes = tuple(axis for axis in range(data.ndim) if axis != channel)
    along = [-1 if axis == channel else 1 for axis in range(data.ndim)]
    with np.errstate(all="ignore"):
        batch = bn_ext.batch_norm_training(data.astype(np.float64), **how)
        if mean is None:
            mean = batch.mean.astype(number)
        if variance is None:
            variance = batch.variance.astype(number)
        if diff_dst is None:  # the sign of xhat keeps sum(diff_dst * xhat) from cancelling
            noise, more = rng.standard_normal((2, *data.shape))
            signed = np.copysign(noise, data.astype(np.float64) - batch.mean.reshape(along))
            diff_dst = (signed + 1 + more).astype(data.dtype)
        if gamma is None:
            signs = np.resize([-1, 1], batch.mean.shape)
            gamma = (signs * rng.uniform(0.5, 2, signs.shape)).astype(number)
        rest = {"diff_dst": diff_dst, "mean": mean, "variance": variance, "gamma": gamma}
        given = [data, *(_named(name, np.asanyarray, array) for name, array in rest.items())]
        partial(_core.backward, **how, dry=True)(*given)
        wide = [array.astype(np.float64) for array in given]
    wanted = bn_ext.batch_norm_backward(*wide, **how, exact=True)
    copies = [array.copy() for array in given]
    found = function(*copies, epsilon=epsilon)

    # Long doubles have a wider range, so scales do not overflow.
    x, dy, *vectors = (a.astype(np.longdouble) for a in wide)
    exponent, top = (-53, 2.0**996) if number is np.float64 else (-24, 2.0**127)
    smallest = np.exp2(np.longdouble(-1074 if number is np.float64 else -149))
    with np.errstate(all="ignore"):
        m, v, g, sum_x, sum_1 = (a.reshape(along) for a in (*vectors, *wanted[1:]))
        rstd = 1 / np.sqrt(v + epsilon)
        scale, xc, count = abs(g * rstd), abs(x - m), x.size / max(1, m.size)
        sizes = abs(dy) + abs(sum_1 / count) + abs(xc * rstd * sum_x / count)
        sum_xc, sum_dy = (abs(a).sum(axes) for a in (dy * xc, dy))
        # What underflow may take, in units of the smallest number.
        tiny = 8 * (1 + sizes + scale * (1 + xc * (1 + rstd**2))), 8 + count * rstd.ravel(), 0
        scales = (scale * sizes).max(axes, keepdims=True, initial=0), sum_xc * rstd.ravel(), sum_dy
        allowed = [
            limit * 2.0**exponent * size + smallest * lost
            for size, lost in zip(scales, tiny, strict=True)
        ]
        large = np.stack([sum_dy, sum_xc, sum_xc * rstd.ravel(), sum_xc * rstd.ravel() ** 2])
        unknown = ((large >= top) & np.isfinite(large)).any(axis=0)
    changed = [
        name
        for name, a, b in zip(["src", *rest], given, copies, strict=True)
        if a.tobytes() != b.tobytes()
    ]
    results = found if isinstance(found, (tuple, list)) else (found,)
    if found is None or (results is found and len(found) != len(wanted)):
        got = f"{len(found)} results" if results is found else None
        raise AssertionError(
            f"function: expected {', '.join(wanted._fields)}, or the first alone, got {got}"
        )
    # A wrong sum makes diff_src wrong as well, so each result is told of.
    unit = f"{limit:g} * 2**{exponent}"
    wrong = [
        _compared(*each, channel, unit)
        for each in zip(wanted._fields, results, wanted, allowed, strict=False)
    ]
    if changed:
        wrong.insert(0, f"function: expected arguments as they were, it wrote to {changed}")
    if unknown.any():
        where = ", ".join(map(str, unknown.nonzero()[0][:9]))
        wrong.append(f"channels {where} cannot be judged: their sums come near overflow")
    if any(wrong):
        raise AssertionError("\n".join(filter(None, wrong)))


def _named(name: str, function: Callable[[Any], Any], argument: object) -> Any:
    """Call the function; its errors name the argument."""
    try:
        return function(argument)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _as_array(result: Any) -> Any:
    """The result as NumPy has it; what is no array stays what it is."""
    if hasattr(result, "detach"):  # a torch tensor
        result = result.detach().cpu().to_dense().resolve_neg()
        if str(result.dtype) == "torch.bfloat16":  # unknown to torch's NumPy arrays
            return result.float().numpy().astype(dtype_of("bfloat16"))
        return result.numpy()
    if isinstance(result, np.ma.MaskedArray):
        return result
    if hasattr(result, "__array__"):
        return np.asarray(result)
    return np.from_dlpack(result) if hasattr(result, "__dlpack__") else result


def _compared(
    name: str,
    result: Any,
    right: NDArray[np.float64],
    allowed: NDArray[np.float64],
    channel: int,
    limit: str,
) -> str:
    """Return a text that shows the worst element, if any is too far off; else an empty one."""
    shown = _core._shown(result)
    try:
        result = _as_array(result)
    except Exception as error:  # a foreign object may fail in any way
        return f"{name}: expected an array, got {shown}: {type(error).__name__}: {error}"
    if not isinstance(result, np.ndarray) or isinstance(result, np.ma.MaskedArray):
        return f"{name}: expected an array, got {shown}"
    if not (np.issubdtype(result.dtype, np.floating) or result.dtype.name == "bfloat16"):
        return f"{name}: expected floating-point numbers, got {result.dtype}"
    if result.shape != right.shape:
        return f"{name}: expected shape {right.shape}, got {result.shape}"
    with np.errstate(all="ignore"):
        got, rounded = result.astype(np.float64), right.astype(result.dtype)
        error = abs(got - right)
        allowed = allowed + np.spacing(abs(rounded)).astype(np.float64) / 2
        same = (got == rounded) | (np.isnan(got) & np.isnan(right))
        wrong = ~(same | (error <= allowed))
        excess = np.where(wrong, np.nan_to_num(error / allowed, nan=np.inf), 0)
    if not wrong.any():
        return ""
    worst = np.unravel_index(excess.argmax(), right.shape)
    place = tuple(map(int, worst))
    axis = channel if len(place) > 1 else 0
    return (
        f"{name}: {wrong.sum()} of {wrong.size} elements are off by more than {limit} of the "
        f"scale, in {len({*wrong.nonzero()[axis]})} of {right.shape[axis]} channels\n"
        f"worst: element {place}, channel {place[axis]}\n got:      {got[worst]:.9g}\n"
        f" expected: {right[worst]:.9g}\n error:    {error[worst]:.3g}\n"
        f" limit:    {allowed[worst]:.3g}"
    )
