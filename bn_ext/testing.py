"""Checks of other implementations of batch normalization against exact results."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bn_ext import _core
from bn_ext._bench.problems import DTYPES
from bn_ext._names import refuses_other_names
from bn_ext._reference.cases import OPERANDS, RECIPES, Case, Kind, as_set, drawn, standard_cases
from bn_ext._reference.operators import adapted, operator_of
from bn_ext._reference.report import Finding, Report, run
from bn_ext._typing import Array, DataFormat

__all__ = ["Finding", "Report", "check_backward", "check_double_backward", "check_forward"]


def __dir__() -> list[str]:
    return __all__


@refuses_other_names
def check_forward(
    function: Callable[..., Any],
    src: Array | None = None,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: float | None = None,
    is_training: bool = True,
    relu: bool = False,
    add: bool = False,
    data_format: DataFormat = "NXC",
    dtypes: str | Sequence[str] | None = None,
    operator: str | None = None,
    quick: bool = False,
    skip: str | Sequence[str] = (),
    narrow: bool = False,
    limit: float = 1,
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
        With a src and ``is_training=False``; if missing, the statistics of src.
    add : bool, optional
        Whether the function adds an array of src's shape, the argument ``src_1``.
    shape, epsilon, is_training, relu, data_format, dtypes, operator, quick, skip, narrow, limit
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
    >>> src = np.random.default_rng(0).standard_normal((64, 3), np.float32)
    >>> print(check_forward(forward, src))
    0 of 1 cases fail
    error/limit  case  result  element  got  expected
    ...

    The variance is a small difference of large numbers if the mean is far from 0:

    >>> check_forward(forward, src + 1000)
    Traceback (most recent call last):
    AssertionError: 1 of 1 cases fail
    error/limit  case  result  element  got  expected
           ...  data  mean, variance, dst  [0]  ...  ...
    """
    kind = Kind("training", data_format, is_training, relu, add)
    kind = kind if is_training else replace(kind, operation="inference")
    given = {"src": src, "mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    return _checked(
        function, kind, given, shape, epsilon, dtypes, operator, quick, skip, narrow, limit
    )


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
    epsilon: float | None = None,
    is_training: bool = True,
    relu: bool = False,
    add: bool = False,
    data_format: DataFormat = "NXC",
    dtypes: str | Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    operator: str | None = None,
    quick: bool = False,
    skip: str | Sequence[str] = (),
    narrow: bool = False,
    limit: float = 1,
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
        If missing, the statistics of src, and random numbers of both signs.
    shape : tuple of int, optional
        Instead of the standard cases, random data of this shape.
    epsilon : float, optional
        With a src or a shape: added to the variance (default: 1e-5). The standard cases have their
        own.
    is_training : bool, optional
        Whether mean and variance depend on src.
    relu : bool, optional
        Whether the gradient passes a ReLU; the function then gets its result as ``dst``.
    add : bool, optional
        With relu: whether the function returns the gradient of an added array as well, after the
        others.
    data_format : {"NXC", "NCX"}, optional
        Whether the function takes the channels on the last axis or on axis 1.
    dtypes : str or sequence of str, optional
        Dtypes of the data, if you pass no src: float32 (default), float64, float16 or bfloat16.
        Vectors are float64 with float64 data, else float32.
    dtype : dtype, optional
        Instead of `dtypes`.
    operator : str, optional
        The function is called as, and returns the same as, the function of this operator in
        `bn_ext.specs`, such as ``"FusedBatchNormGradV3"``, ``"ngraph.BatchNormTraining"`` or
        ``"ngraph.batch_norm_training"``.
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
        the function returned and what is right; ``report.worst`` is the largest of all, a
        ``Finding``; ``report.findings`` has one per case and result.

    Raises
    ------
    AssertionError
        If an error is larger than its limit; a NaN or Inf is not where it should be; a result has
        a wrong shape or dtype or cannot be read; the function raises an exception or writes to its
        arguments; or nothing could be judged, or data of your own comes too near to overflow. The
        message has a line per case that fails.
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    The standard cases have two to five axes, 1 to 100 000 rows, 1 to 257 channels, no gamma or
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
    AssertionError: ... of 40 cases fail, 1 could not be judged
    error/limit  case                     result                ...
    ...
    """
    if dtype is not None and dtypes is not None:
        raise TypeError(f"dtype: expected None with dtypes, got {_core.shown(dtype)}")
    wanted = dtypes if dtype is None else (dtype,)
    kind = Kind("backward", data_format, is_training, relu, add)
    given = {
        "src": src, "diff_dst": diff_dst, "mean": mean, "variance": variance, "gamma": gamma
    }  # fmt: skip
    return _checked(
        function, kind, given, shape, epsilon, wanted, operator, quick, skip, narrow, limit
    )


@refuses_other_names
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
    *,
    shape: tuple[int, ...] | None = None,
    epsilon: float | None = None,
    is_training: bool = True,
    data_format: DataFormat = "NXC",
    dtypes: str | Sequence[str] | None = None,
    quick: bool = False,
    skip: str | Sequence[str] = (),
    narrow: bool = False,
    limit: float = 1,
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
    shape, epsilon, is_training, data_format, dtypes, quick, skip, narrow, limit
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
    kind = Kind("double_backward", data_format, is_training)
    given = {
        "src": src, "diff_dst": diff_dst, "mean": mean, "variance": variance, "gamma": gamma,
        "diff_diff_src": diff_diff_src, "diff_diff_gamma": diff_diff_gamma,
        "diff_diff_beta": diff_diff_beta,
    }  # fmt: skip
    return _checked(function, kind, given, shape, epsilon, dtypes, None, quick, skip, narrow, limit)


def _checked(
    function: Callable[..., Any],
    kind: Kind,
    given: dict[str, Any],
    shape: Any,
    epsilon: float | None,
    dtypes: Any,
    operator: str | None,
    quick: bool,
    skip: str | Sequence[str],
    narrow: bool,
    limit: float,
) -> Report:
    """Run the cases; raise AssertionError if one fails."""
    if not callable(function):
        raise TypeError(f"function: expected a callable, got {_core.shown(function)}")
    quick, narrow = _core.as_flag(quick, "quick"), _core.as_flag(narrow, "narrow")
    limit = _core.as_real(limit, "limit", "a finite number >= 0", 0)
    words = as_words(skip)
    allowed = list(DTYPES)
    if operator is not None:
        full, kind, rules = operator_of(operator, kind)
        function, allowed = adapted(function, full, kind), list(rules.vectors)
    mine = {name: array for name, array in given.items() if array is not None}
    if mine and ("src" not in mine or shape is not None):
        raise TypeError(f"{next(iter(mine))}: expected src and no shape")
    source = "src" if mine else "the standard cases" if shape is None else "shape"
    for name, value, sources in (
        ("epsilon", epsilon, ("src", "shape")),
        ("dtypes", dtypes, ("shape", "the standard cases")),
        ("quick", quick or None, ("the standard cases",)),
        ("skip", words or None, ("the standard cases",)),
    ):
        if value is not None and source not in sources:
            text = f"expected only with {' or '.join(sources)}, got {_core.shown(value)}"
            raise TypeError(f"{name}: {text}")
    epsilon = _core.as_epsilon(1e-5 if epsilon is None else epsilon)
    if mine:
        data = _core.as_array(mine["src"], "src")
        names = [data.dtype.name]
        if names[0] in DTYPES and names[0] not in allowed:
            raise ValueError(f"src: expected any of {', '.join(allowed)}, got {names[0]}")
    else:
        names = _as_dtypes("float32" if dtypes is None else dtypes, allowed)
    cases = []
    for name in names:
        demand_long_doubles(name)
        each = kind if operator is None or mine else replace(kind, vectors=rules.vectors[name])
        if mine:
            cases.append(_own_case(each, data, mine, epsilon))
        elif shape is None:
            cases += standard_cases(each, name, quick=quick, skip=words)
        else:
            last = _last(shape, kind)
            cases.append(each.random(f"{shape}, {name}", last, name, as_set(epsilon=epsilon)))
    report = run(function, cases, narrow=narrow, limit=limit)
    unknown = any(each.share != each.share for each in report.findings)
    if not report.passed or (unknown and len(cases) == 1):
        raise AssertionError("\n".join(report.lines(failures_alone=True)))
    return report


def _several(value: Any) -> list[Any]:
    """What was passed alone or in a sequence."""
    alone = isinstance(value, (str, np.dtype)) or not isinstance(value, Iterable)
    return [value] if alone else list(value)


def as_words(skip: Any) -> list[str]:
    """Words, each of which is in the name of a standard case."""
    words = _several(skip)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"skip: expected words, got {_core.shown(word)}")
        if not word or not any(word in name for name in RECIPES):
            raise ValueError(f"skip: expected a part of a standard case's name, got {word!r}")
    return words


def _as_dtypes(dtypes: Any, allowed: list[str]) -> list[str]:
    """The names of these dtypes."""
    names: dict[Any, None] = {}
    for dtype in _several(dtypes) or [()]:
        name: Any = dtype
        with suppress(TypeError, ValueError):  # np.dtype(None) is float64
            name = dtype if dtype is None or isinstance(dtype, str) else np.dtype(dtype).name
        if not isinstance(name, str) or name not in allowed:
            got = f"{', '.join(allowed)}, got {_core.shown(name)}"
            raise ValueError(f"dtypes: expected any of {got}")
        names[name] = None
    return [*names]


def _last(shape: Any, kind: Kind) -> tuple[int, ...]:
    """The shape with the channels last."""
    try:
        found = np.empty(shape, "V0").shape
    except (TypeError, ValueError) as error:
        raise type(error)(f"shape: {error}") from None
    last = (*found[:1], *found[2:], *found[1:2]) if kind.data_format == "NCX" else found
    if len(found) < 2 or not last[-1]:
        raise ValueError(f"shape: expected at least two axes and a channel, got {found}")
    return last


def demand_long_doubles(data: str) -> None:
    """Raise NotImplementedError where results for such data cannot be computed exactly."""
    if data == "float64" and np.longdouble(1) + np.longdouble(2.0**-62) == 1:
        raise NotImplementedError("float64 data: this needs long doubles wider than doubles")


def _own_case(kind: Kind, src: Any, given: dict[str, Any], epsilon: float) -> Case:
    """The case of the caller's arrays; what is missing is drawn."""
    _core.training(src, epsilon=epsilon, data_format=kind.data_format, dry=True)
    arrays = {n: _core.as_array(np.asanyarray(a), n) for n, a in given.items() if n != "src"}
    whole = np.moveaxis(src, 1, -1) if kind.data_format == "NCX" else src
    with _core.DefaultMode():
        draw = drawn("data", whole.shape, src.dtype)
        draw.src, draw.epsilon = whole, epsilon
        draw.statistics()
        case = kind.case("data", draw)
    names = OPERANDS[kind.operation]
    for name, array in {**arrays, "src": src}.items():
        if name not in names:
            raise TypeError(f"{name}: expected None if is_training={kind.is_training}")
        case.arrays[name] = array
    case.refuse_wrong_arrays()
    return case
