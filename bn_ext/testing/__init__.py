"""Checks of other implementations of batch normalization against exact results."""

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike

from bn_ext import _core, _names
from bn_ext._typing import Array, DataFormat
from bn_ext.testing._cases import OPERANDS, Case, Kind, as_set, standard_cases
from bn_ext.testing._operators import as_operator
from bn_ext.testing._report import Finding, Report, run

__all__ = ["Finding", "Report", "check_backward", "check_double_backward", "check_forward"]
__dir__ = __all__.copy


class _Options(TypedDict, total=False):
    """What all checks have in common."""

    epsilon: float | None
    is_training: bool
    data_format: DataFormat
    dtypes: str | Sequence[str]
    quick: bool
    skip: str | Sequence[str]
    narrow: bool
    limit: float


class _FusedOptions(_Options, total=False):
    relu: bool
    add: bool
    operator: str | None


_DEFAULTS: dict[str, Any] = {
    "epsilon": None, "is_training": True, "relu": False, "add": False, "data_format": "NXC",
    "dtypes": "float32", "operator": None, "quick": False, "skip": (), "narrow": False, "limit": 1,
}  # fmt: skip
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _with_options(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Show ``**options`` by name, with their defaults; `_checked` refuses others."""
    seen = signature(function)
    *own, options = seen.parameters.values()
    (names,) = get_args(options.annotation)
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=value)
        for name, value in _DEFAULTS.items()
        if name in names.__annotations__
    ]
    function.__signature__ = seen.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    return function


@_with_options
def check_forward(
    function: Callable[..., Any],
    src: Array | None = None,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    **options: Unpack[_FusedOptions],
) -> Report:
    """Assert that a function normalizes as it should.

    Parameters
    ----------
    function : callable
        Called as ``function(src, gamma, beta, epsilon=epsilon)``, it returns dst, or dst, the
        batch's mean and its biased variance. With ``is_training=False``, it is called as
        ``function(src, mean, variance, gamma, beta, epsilon=epsilon)``, and returns dst.
    src, gamma, beta : array, optional
        Data of your own. If there is no src, the standard cases: see Notes.
    mean, variance : array, optional
        With ``is_training=False``.
    add : bool, optional
        Whether the function adds an array of src's shape, the argument ``src_1``.
    epsilon, is_training, relu, data_format, dtypes, operator, quick, skip, narrow, limit
        As for `check_backward`.

    Returns
    -------
    Report
        As for `check_backward`.

    Raises
    ------
    AssertionError, TypeError, ValueError
        As for `check_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.testing import check_forward
    >>> def forward(src, gamma, beta, epsilon):
    ...     mean, variance = src.mean(axis=0), (src**2).mean(axis=0) - src.mean(axis=0) ** 2
    ...     return gamma * (src - mean) / np.sqrt(variance + epsilon) + beta, mean, variance

    The variance is a small difference of large numbers if the mean is far from 0:

    >>> src = np.random.default_rng(0).standard_normal((64, 3), np.float32) + 1000
    >>> check_forward(forward, src)
    Traceback (most recent call last):
    AssertionError: 1 of 1 cases fail
    error/limit  case  result  element  got  expected
           ...  data  mean +2  [0]  ...  ...
    """
    operation = "training" if options.get("is_training", True) else "inference"
    given = {"src": src, "mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    return _checked(check_forward, function, operation, given, **options)


@_with_options
def check_backward(
    function: Callable[..., Any],
    src: Array | None = None,
    diff_dst: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    gamma: ArrayLike | None = None,
    **options: Unpack[_FusedOptions],
) -> Report:
    """Assert that a function computes the gradient of batch normalization.

    Parameters
    ----------
    function : callable
        Called as ``function(src, diff_dst, mean, variance, gamma, epsilon=epsilon)``, with NumPy
        arrays. It returns diff_src, or a tuple of diff_src, diff_gamma and diff_beta: NumPy arrays,
        tensors of torch or JAX, or anything with DLPack.
    src, diff_dst : array, optional
        Data of your own. If there is no src, the standard cases: see Notes.
    mean, variance, gamma : array, shape (C,), optional
        If missing, the statistics of src (with ``is_training=False``, others near them), and random
        numbers of both signs.
    epsilon : float, optional
        With a src: added to the variance (default: 1e-5). The standard cases have their own.
    is_training : bool, optional
        Whether mean and variance depend on src.
    relu : bool, optional
        Whether the gradient passes a ReLU; the function then gets its result as ``dst``. In the
        standard cases diff_dst is 0 where dst is NaN: packages differ in whether it passes.
    add : bool, optional
        With relu: whether the function returns the gradient of an added array as well, after the
        others.
    data_format : {"NXC", "NCX"}, optional
        Whether the function takes the channels on the last axis or on axis 1.
    dtypes : str or sequence of str, optional
        With the standard cases, dtypes of the data: float32 (default), float64, float16, bfloat16.
        Vectors are float64 with float64 data, else float32.
    operator : str, optional
        The function is called as, and returns the same as, the function of this operator in
        `bn_ext.specs`, such as ``"FusedBatchNormGradV3"`` or ``"ngraph.BatchNormTraining"``. Not
        judged: reserve spaces 3 to 5 and, with ``is_training=False``, 1 and 2 of FusedBatchNormV3.
    quick : bool, optional
        Whether to leave out the cases with many elements.
    skip : str or sequence of str, optional
        Parts of names, such as ``"NaN"``: standard cases to leave out.
    narrow : bool, optional
        Whether results may have a narrower dtype than the data.
    limit : float, optional
        The largest error that passes, in units of the bounds of bn_ext's own results.

    Returns
    -------
    Report
        ``print(report)`` shows each case's largest error in units of its limit, the element, what
        the function returned and what is right (``+2``: two more results are wrong);
        ``report.worst`` is the largest of all, a ``Finding``; ``report.findings`` has one per case
        and result.

    Raises
    ------
    AssertionError
        If an error is larger than its limit; a NaN or Inf is not where it should be; a result has
        a wrong shape or dtype or cannot be read; the function raises an exception or writes to its
        arguments; or nothing could be judged, or data of your own comes too near to overflow. The
        message has a line per case that fails; the exception's ``report`` is the Report.
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    The standard cases have two to five axes, 1 to 100 000 rows, 1 to 1030 channels, no gamma or
    beta, zero and negative gamma, no elements, a mean far from zero, constant channels, magnitudes
    near the ends of the dtype's range, sums that cancel, NaN and Inf, epsilon 0. A case does not
    count if the function raises NotImplementedError, or does not take None for gamma or beta; the
    report says so. Your function is called in your floating-point mode; all else is done in the
    default one.

    Right results are computed in long doubles, not by bn_ext. An error's limit is bn_ext's own
    bound for this element, with half a unit in the last place of a result that was rounded once
    more.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.testing import check_backward
    >>> def gradient(src, diff_dst, mean, variance, gamma, epsilon):
    ...     axes = tuple(range(src.ndim - 1))
    ...     rstd = 1 / np.sqrt(variance + epsilon)
    ...     xhat = (src - mean) * rstd
    ...     diff_gamma, diff_beta = (diff_dst * xhat).sum(axes), diff_dst.sum(axes)
    ...     through = (diff_beta + xhat * diff_gamma) / max(1, diff_dst[..., 0].size)
    ...     return gamma * rstd * (diff_dst - through), diff_gamma, diff_beta

    NumPy adds row after row in float32, so errors grow with the number of rows:

    >>> check_backward(gradient)
    Traceback (most recent call last):
    AssertionError: ... of 48 cases fail, 1 could not be judged
    error/limit  case                     result                ...
    ...
    """
    arrays = src, diff_dst, mean, variance, gamma
    given = dict(zip(OPERANDS["backward"], arrays, strict=True))
    return _checked(check_backward, function, "backward", given, **options)


@_with_options
def check_double_backward(
    function: Callable[..., Any],
    src: Array | None = None,
    diff_dst: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    gamma: ArrayLike | None = None,
    diff_diff_src: ArrayLike | None = None,
    diff_diff_gamma: ArrayLike | None = None,
    diff_diff_beta: ArrayLike | None = None,
    **options: Unpack[_Options],
) -> Report:
    """Assert that a function computes the gradient of the gradient.

    Parameters
    ----------
    function : callable
        Called as ``function(src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma,
        diff_diff_beta, epsilon=epsilon)``. It returns diff_src, or a tuple of diff_src,
        diff_diff_dst and diff_gamma: the results of `bn_ext.batch_norm_double_backward`.
    src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma, diff_diff_beta : array
        Data of your own, optional; the standard cases have no Inf.
    epsilon, is_training, data_format, dtypes, quick, skip, narrow, limit
        As for `check_backward`.

    Returns
    -------
    Report
        As for `check_backward`.

    Raises
    ------
    AssertionError, TypeError, ValueError
        As for `check_backward`.

    Examples
    --------
    >>> import bn_ext
    >>> from bn_ext.testing import check_double_backward
    >>> from functools import partial
    >>> mine = partial(bn_ext.batch_norm_double_backward, data_format="NXC")
    >>> report = check_double_backward(mine, quick=True)
    >>> report.worst.share < 1
    True
    """
    arrays = src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma, diff_diff_beta
    given = dict(zip(OPERANDS["double_backward"], arrays, strict=True))
    return _checked(check_double_backward, function, "double_backward", given, **options)


def _checked(
    check: Callable[..., Any], function: Callable[..., Any], operation: str, given: dict[str, Any],
    **options: Any,
) -> Report:  # fmt: skip
    """Run the cases of this check; raise AssertionError if one fails."""
    if other := options.keys() - signature(check).parameters.keys():
        raise _names.unknown(check, other)
    if not callable(function):
        raise TypeError(f"function: expected a callable, got {_core.shown(function)}")
    how = SimpleNamespace(**{**_DEFAULTS, **options})
    quick, narrow = _core.as_flag(how.quick, "quick"), _core.as_flag(how.narrow, "narrow")
    limit = _core.as_real(how.limit, "limit", "a finite number >= 0", 0)
    kind = Kind(operation, how.data_format, how.is_training, how.relu, how.add)
    if how.operator is not None:
        function, kind = as_operator(function, how.operator, kind)
    mine = {name: a for name, a in given.items() if a is not None}
    if mine and "src" not in mine:
        raise TypeError(f"{next(iter(mine))}: expected only with src")
    for name in ("dtypes", "quick", "skip") if mine else ("epsilon",):
        if options.get(name, _DEFAULTS[name]) is not _DEFAULTS[name]:
            source = "the standard cases" if mine else "src"
            got = _core.shown(options[name])
            raise TypeError(f"{name}: expected only with {source}, got {got}")
    if mine:
        epsilon = _core.as_epsilon(1e-5 if how.epsilon is None else how.epsilon)
        cases: Iterable[Case] = [_own_case(kind, mine, epsilon)]
    else:
        cases = standard_cases(kind, how.dtypes, quick=quick, skip=how.skip)
    report = run(function, cases, narrow=narrow, limit=limit)
    unknown = any(each.share != each.share for each in report.findings)
    if not report.passed or (mine and unknown):
        error = AssertionError("\n".join(report.lines(failures_alone=True)))
        error.report = report  # type: ignore[attr-defined]
        raise error
    return report


def _own_case(kind: Kind, given: dict[str, Any], epsilon: float) -> Case:
    """The case of the caller's arrays; what is missing is drawn."""
    src = _core.as_array(given["src"], "src")
    arrays = {n: _core.as_array(np.asanyarray(a), n) for n, a in given.items() if n != "src"}
    how: Any = {"epsilon": epsilon, "data_format": kind.data_format, "dry": True}
    _core.training(src, **how)
    (dtype,) = kind.known(src.dtype.name, "src")
    if src.shape[kind.axis] == 0:
        raise ValueError(f"src: expected at least one channel, got shape {src.shape}")
    last = np.moveaxis(src, kind.axis, -1)
    case = kind.random("data", last.shape, dtype, as_set(src=last, epsilon=epsilon))
    for name, array in {**arrays, "src": src}.items():
        if name not in case.arrays:
            raise TypeError(f"{name}: expected None if is_training={kind.is_training}")
        case.arrays[name] = array
    getattr(_core, kind.operation)(*case.arrays.values(), **how)
    return case
