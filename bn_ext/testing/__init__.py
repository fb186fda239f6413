"""Checks of other implementations of batch normalization against exact results."""

from __future__ import annotations  # help shows names, not what they stand for

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

import bn_ext._core as _core
from bn_ext._typing import Array, DataFormat
from bn_ext.testing._case import OPERANDS, TENSORS, Case, Kind
from bn_ext.testing._cases import as_set, known, random_case, standard_cases
from bn_ext.testing._report import Finding, Report, run

__all__ = ["Finding", "Report", "check_backward", "check_double_backward", "check_forward"]
__dir__ = __all__.copy


_Arithmetic: TypeAlias = Literal["double", "float32", "any", "float16", "bfloat16"]
_Own: TypeAlias = ArrayLike | None


def check_forward(
    function: Callable[..., Any], src: Array | None = None, gamma: _Own = None, beta: _Own = None,
    *, mean: _Own = None, variance: _Own = None, epsilon: float | None = None,
    is_training: bool = True, relu: bool = False, add: bool = False,
    correction: Literal[0, 1] | None = None,
    data_format: DataFormat = "NXC", dtypes: str | Sequence[str] = "float32", quick: bool = False,
    skip: str | Sequence[str] = (), arithmetic: _Arithmetic = "float32", repeats: int = 1,
) -> Report:  # fmt: skip
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
    correction : {0, 1}, optional
        If given, the function also takes ``running_mean`` and ``running_variance``, and returns the
        new ones after the other results, or after dst alone: 3/4 of these and 1/4 of the batch's,
        whose variance is then divided by M - correction.
    epsilon, is_training, relu, data_format, dtypes, quick, skip, arithmetic, repeats
        As for `check_backward`.

    Returns
    -------
    Report
        As of `check_backward`, whose exceptions this function raises, too.

    Examples
    --------
    >>> import bn_ext
    >>> from bn_ext.testing import check_forward
    >>> def mine(*arrays, epsilon):
    ...     return bn_ext.batch_norm_training(*arrays, epsilon=epsilon, data_format="NXC")
    >>> check_forward(mine, quick=True).passed
    True
    """
    __tracebackhide__ = True
    return _check("training" if is_training else "inference", **locals())


def check_backward(
    function: Callable[..., Any], src: Array | None = None, diff_dst: _Own = None,
    mean: _Own = None, variance: _Own = None, gamma: _Own = None, *, epsilon: float | None = None,
    is_training: bool = True, own_statistics: bool = False, relu: bool = False, add: bool = False,
    data_format: DataFormat = "NXC", dtypes: str | Sequence[str] = "float32", quick: bool = False,
    skip: str | Sequence[str] = (), arithmetic: _Arithmetic = "float32", repeats: int = 1,
) -> Report:  # fmt: skip
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
    own_statistics : bool, optional
        Whether the function makes mean and variance itself, as an automatic gradient does. It is
        called in the same way, but right are the results for exact statistics of src.
    relu : bool, optional
        Whether the gradient passes a ReLU; the function then gets its result as ``dst``. In the
        standard cases diff_dst is 0 where dst is NaN: packages differ in whether it passes.
    add : bool, optional
        With relu: whether the function returns an added array's gradient after the others.
    data_format : str, optional
        ``"NXC"`` (default) or ``"NCX"``: the function takes the channels on the last axis or on
        axis 1. Or another name that bn_ext's functions take, such as ``"NHWC"``: all cases then
        have that many axes.
    dtypes : str or sequence of str, optional
        With the standard cases, dtypes of the data: float32 (default), float64, float16, bfloat16.
        Vectors are float64 with float64 data, else float32.
    quick : bool, optional
        Whether to leave out the cases with many elements.
    skip : str or sequence of str, optional
        Standard cases to leave out: parts of their names, such as ``"NaN"``, or names as a report
        has them.
    arithmetic : {"double", "float32", "any", "float16", "bfloat16"}, optional
        What passes: errors of bn_ext's own results; of sums in the type of the data's arithmetic
        (float64 data: float64), in any order; also of ``src * scale + shift``, squares minus the
        squared mean, and folded coefficients; of float16 data, also of sums in float16; of bfloat16
        data, also of a dst that is rounded before src_1 is added.
    repeats : int, optional
        How often each case is called. All results are judged; ``report.differing`` names cases
        whose results had other bits in another call.

    Returns
    -------
    Report
        ``print(report)`` shows each mistake: what the function computes, as a formula beside the
        right one; the largest error in units of its limit, the element, what the function returned
        and what is right, and which elements are wrong. ``formulas`` has the lines of the formulas,
        which are read off the results of a few more calls; ``as_if`` has these or, where no formula
        is wrong, what is, such as rows that sums miss; ``summary`` counts the verdicts;
        ``script()`` is the smallest program that shows the worst mistake. ``findings`` has one per
        case and result, ``failures`` those that fail, ``worst`` the one with the largest error;
        ``verdicts`` is a dict, by case.

    Raises
    ------
    AssertionError
        If an error is larger than its limit; a NaN or Inf is not where it should be; a result has
        a wrong shape or dtype or cannot be read, or a later call overwrites it; the function raises
        an exception or writes to its arguments; or nothing could be judged, or data of your own not
        in full. The message has a line per mistake; the exception's ``report`` is the Report.
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    The standard cases have two to five axes, 1 to 140 000 rows, 1 to 4100 channels, no gamma or
    beta, no elements, a mean far from zero, numbers near the ends of the dtype's range, sums that
    cancel, NaN and Inf, epsilon 0; and whole numbers, of which no sum is rounded. What is special
    stands in few channels and in many, with planes and without. Some arrays lie at addresses that
    are multiples of their elements' size alone, and some where others lay in the call before. Right
    results are computed with twice the digits of the arithmetic or more, in the same way on every
    system. docs/numerics.md has the limits. An element about which an arithmetic says nothing, as
    where a variance may be 0, fails in none.

    A case is refused, and does not count, if the function raises NotImplementedError, or does not
    take None for gamma or beta. It is called in your floating-point mode. A function that crashes
    ends the process: ``bn-ext check file.py:function`` calls it in one of its own.

    Examples
    --------
    >>> import bn_ext
    >>> from bn_ext.testing import check_backward
    >>> def mine(*arrays, epsilon):
    ...     return bn_ext.batch_norm_backward(*arrays, epsilon=epsilon, data_format="NXC")
    >>> check_backward(mine, quick=True).summary
    '45 right'
    """
    __tracebackhide__ = True
    return _check("backward", **locals())


def check_double_backward(
    function: Callable[..., Any], src: Array | None = None, diff_dst: _Own = None,
    mean: _Own = None, variance: _Own = None, gamma: _Own = None, diff_diff_src: _Own = None,
    diff_diff_gamma: _Own = None, diff_diff_beta: _Own = None, *, epsilon: float | None = None,
    is_training: bool = True, own_statistics: bool = False,
    data_format: DataFormat = "NXC", dtypes: str | Sequence[str] = "float32", quick: bool = False,
    skip: str | Sequence[str] = (), arithmetic: _Arithmetic = "float32", repeats: int = 1,
) -> Report:  # fmt: skip
    """Assert that a function computes the gradient of the gradient.

    Parameters
    ----------
    function : callable
        Called as ``function(src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma,
        diff_diff_beta, epsilon=epsilon)``. It returns diff_src, or a tuple of diff_src,
        diff_diff_dst and diff_gamma: the results of `bn_ext.batch_norm_double_backward`.
    src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma, diff_diff_beta : array
        Data of your own, optional; the standard cases have no Inf, and no subnormal src.
    epsilon, is_training, own_statistics, data_format, dtypes, quick, skip, arithmetic, repeats
        As for `check_backward`.

    Returns
    -------
    Report
        As of `check_backward`, whose exceptions this function raises, too.

    Examples
    --------
    >>> import bn_ext
    >>> from bn_ext.testing import check_double_backward
    >>> def mine(*arrays, epsilon):
    ...     return bn_ext.batch_norm_double_backward(*arrays, epsilon=epsilon, data_format="NXC")
    >>> check_double_backward(mine, quick=True).passed
    True
    """
    __tracebackhide__ = True
    return _check("double_backward", **locals())


def _check(operation: str, function: Callable[..., Any], **options: Any) -> Report:
    """Run the cases of this check; raise AssertionError if one fails."""
    __tracebackhide__ = True  # pytest shows the table alone
    if not callable(function):
        raise TypeError(f"function: expected a callable, got {_core.shown(function)}")
    quick = _core.as_flag(options["quick"], "quick")
    kind = Kind(operation, **{f.name: options[f.name] for f in fields(Kind) if f.name in options})
    names = {name for arrays in OPERANDS.values() for name in arrays}
    own = {name: a for name, a in options.items() if name in names and a is not None}
    if own and "src" not in own:
        raise TypeError(f"{next(iter(own))}: expected only with src")
    unset = {"dtypes": "float32", "quick": False, "skip": ()} if own else {"epsilon": None}
    for name, default in unset.items():
        if options[name] is not default:
            source, got = "the standard cases" if own else "src", _core.shown(options[name])
            raise TypeError(f"{name}: expected only with {source}, got {got}")
    if own:
        cases: Iterable[Case] = [_own_case(kind, own, options["epsilon"], options["data_format"])]
    else:
        cases = standard_cases(kind, options["dtypes"], quick=quick, skip=options["skip"])
    report = run(function, cases, arithmetic=options["arithmetic"], repeats=options["repeats"])
    unknown = any(finding.verdict == "not judged" for finding in report.findings)
    if not report.passed or (own and unknown):
        error = AssertionError("\n".join(report.lines()))
        error.report = report  # type: ignore[attr-defined]
        raise error
    return report


def _own_case(kind: Kind, own: dict[str, Any], epsilon: Any, layout: str) -> Case:
    """The case of the caller's arrays; what is missing is drawn."""
    for name in ("mean", "variance"):
        if kind.own_statistics and name in own:
            raise TypeError(f"{name}: expected None if own_statistics=True")
    epsilon = _core.as_epsilon(1e-5 if epsilon is None else epsilon)
    src = _core.as_array(own["src"], "src")
    arrays = {n: _core.as_array(np.asanyarray(a), n) for n, a in own.items() if n != "src"}
    options: Any = {"epsilon": epsilon, "data_format": layout, "dry": True}
    _core.training(src, **options)
    (dtype,) = known(src.dtype.name, "src")
    if src.shape[kind.axis] == 0:
        raise ValueError(f"src: expected at least one channel, got shape {src.shape}")
    last = np.moveaxis(src, kind.axis, -1)

    def drawn(**vectors: Any) -> Case:
        change = as_set(src=last, epsilon=epsilon, spoil=lambda _: as_set(**vectors))
        return random_case(kind, "data", last.shape, dtype, change)

    kept = drawn().arrays
    for name in arrays:
        if name not in kept:
            raise TypeError(f"{name}: expected None if is_training={kind.is_training}")
    arrays["src"] = src
    getattr(_core, kind.operation)(*{**kept, **arrays}.values(), **options)
    vectors = {name: a for name, a in arrays.items() if name not in TENSORS}  # dst is theirs
    has_statistics = not vectors.keys().isdisjoint(("mean", "variance"))
    case = drawn(**vectors, has_statistics=has_statistics)
    return replace(case, arrays={**case.arrays, **arrays}, is_own=True)
