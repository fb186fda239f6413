"""Sums over parts of the data, as objects that add.

    Statistics      of a part of a batch     `+` merges     mean, variance, count
    GradientSums    of a part's gradient     `+` adds       for batch_norm_backward(sums=...)

A plain sum is two rows of doubles per channel; statistics of float64 data have a third, what
rounding took from the mean. An exact one is a state (src_c/exact/state.h):
integers, which any engine can add. `+` checks what belongs together; integers that an engine has
added are checked when they are used.
"""

from __future__ import annotations  # help shows names, not what they stand for

from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsFloat, SupportsIndex

import numpy as np

import bn_ext._core as _core
from bn_ext._state import attributes_of, set_state, state_of
from bn_ext._typing import Array, DataFormat, Flag, NDArray

#: Doubles count exactly below this.
_MOST = 2**53


class _Sums:
    """What both kinds of sums share."""

    #: Attributes that the parts of one whole have in common.
    _ALIKE: ClassVar[tuple[str, ...]] = ("exact", "dtype", "channels")
    _OF_MOMENTS: ClassVar[bool]

    exact: bool
    dtype: str
    _sums: NDArray[Any]
    _count: int  # of a plain sum, and of a state without channels; others have their own

    __hash__ = None  # type: ignore[assignment]

    @property
    def channels(self) -> int:
        """Number of channels, C."""
        return int(self._sums.shape[-1])

    @property
    def count(self) -> int:
        """Number of elements of each channel, over all parts."""
        count = _core.state_count(self._sums, self._format) if self.exact else self._count
        return count if self.channels else self._count

    @property
    def _format(self) -> _core.StateFormat:
        """Of exact sums of this dtype and kind."""
        return _core.STATE_FORMATS[self.dtype, self._OF_MOMENTS]

    @property
    def array(self) -> NDArray[np.int64]:
        """The integers of an exact sum, shape (k, 2, C): an engine may add other parts in place."""
        if not self.exact:
            raise AttributeError(f"array: expected {type(self).__name__}(..., exact=True)")
        return self._sums

    @array.setter
    def array(self, value: object) -> None:
        """What `statistics.array += ...` ends with."""
        if value is not self.array:
            raise AttributeError(
                f"array: expected no other array, got {_core.shown(value)}; write to array[...]"
            )

    def __add__(self, other: Self | int) -> Self:
        if type(other) is int and other == 0:  # where sum() starts
            return self._with(self._sums.copy(), self._count)
        if type(other) is not type(self):
            return NotImplemented
        self._check_whole(other)
        if self.exact:
            added = _core.added_states(self._sums, other._sums, self._format)
            return self._with(added, self._count + other._count)
        count = self._count + other._count
        if count >= _MOST:
            kind = type(self).__name__
            raise ValueError(f"{kind}: expected fewer than 2**53 elements per channel, got {count}")
        if not self._count or not other._count:
            return self if self._count else other
        with _core.DefaultMode():
            sums = self._joined(other, count)
        sums[np.isnan(sums)] = np.nan  # the canonical NaN, as in C
        return self._with(sums, count)

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        with _core.DefaultMode():
            return all(
                np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                for a, b in zip(self._values(), other._values(), strict=True)
            )

    def __repr__(self) -> str:
        exact = ", exact" if self.exact else ""
        return (
            f"<{type(self).__name__}: {self.count} elements in each of {self.channels} channels, "
            f"{self.dtype}{exact}>"
        )

    def __getstate__(self) -> Any:
        """An exact sum in its canonical form, without limbs that are 0 in all channels."""
        attributes, slots = attributes_of(self)
        if self.exact:
            packed, rows = _core.pack_state(self._sums, self._format)
            count = 0 if self.channels else self._count
            attributes = {**attributes, "_sums": packed, "_rows": rows, "_count": count}
        return state_of(attributes, slots)

    def __setstate__(self, state: Any) -> None:
        set_state(self, state)
        if self.exact:
            rows = vars(self).pop("_rows")
            self._sums = _core.unpack_state(self._sums, rows, self._format)

    def _values(self) -> tuple[NDArray[Any], ...]:
        """Arrays that are equal for equal sums."""
        shared = [np.asarray(getattr(self, name)) for name in self._ALIKE]
        sums = _core.canonical_state(self._sums, self._format) if self.exact else self._sums
        return (*shared, np.asarray(self.count), sums)

    def _with(self, sums: NDArray[Any], count: int) -> Self:
        """The same with other sums."""
        attributes, slots = attributes_of(self)
        new = object.__new__(type(self))
        set_state(new, ({**attributes, "_sums": sums, "_count": count}, slots))
        return new

    def _check_whole(self, other: Self) -> None:
        """Can both be parts of one whole?"""
        for name in self._ALIKE:
            self._require_same(name, getattr(self, name), getattr(other, name))

    def _require_same(self, name: str, a: Any, b: Any, hint: str = "") -> None:
        if a != b:
            raise ValueError(
                f"{type(self).__name__}: expected parts of one whole, got one with {name}={a} "
                f"and one with {name}={b}{hint}"
            )

    def _joined(self, other: Self, count: int) -> NDArray[np.float64]:
        """The plain sums of both, which have `count` elements per channel."""
        raise NotImplementedError


class Statistics(_Sums):
    """Mean and variance of a part of a batch. ``+`` gives those of several parts.

    Add parts with ``+``, ``functools.reduce(operator.add, parts)``, ``sum(parts)``, or an engine
    such as MPI (``comm.allreduce(Statistics(part))``). Then normalize each with
    `batch_norm_inference`, which gives the results of `batch_norm_training`.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        A part, as for `batch_norm_training`. It may be empty.
    data_format, num_threads
        As for `batch_norm_training`.
    exact : bool, optional
        If True, the sums are integers. Then the statistics of the whole do not depend on how it is
        split, in what order parts are added, or the order of their axes in memory.

    Attributes
    ----------
    mean, variance : ndarray of float64, shape (C,)
        The variance is biased: divided by `count`. Both are NaN without elements.
    unbiased_variance : ndarray of float64, shape (C,)
        Divided by ``count - 1``; NaN with fewer than two elements.
    count : int
        Number of elements of each channel, over all parts.
    channels : int
        Number of channels, C.
    array : ndarray of int64, shape (k, 2, C)
        The integers of an exact sum, of the elements and of their squares; an AttributeError if it
        is not exact. An engine may add those of other parts in place
        (``comm.Allreduce(MPI.IN_PLACE, statistics.array)``).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`. ValueError also for a channel of 2**53 elements or more
        (exact: 2**39 in a part, 2**43 in all); from ``+``, if one part is exact and the other not,
        or if they differ in dtype or channels; from the attributes, if `array` is not a sum of
        parts of one dtype.

    Notes
    -----
    Sums of one part have the bits of `batch_norm_training`. Unless exact, the same parts in the
    same order give the same bits every time, but not always those of one call, and each part's
    variance must be below 1.8e308. For float64 data the mean's low part is kept, so parts lose no
    digits where the mean is large.

    Objects with equal values are equal, and so are pickles of exact ones, but for the bits of NaNs
    in a mean.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0], [3.0], [8.0]])
    >>> statistics = bn_ext.Statistics(src[:2]) + bn_ext.Statistics(src[2:])
    >>> statistics.mean, statistics.count
    (array([4.]), 3)
    >>> dst = bn_ext.batch_norm_inference(src, statistics.mean, statistics.variance, epsilon=0.0)
    >>> np.array_equal(dst, bn_ext.batch_norm_training(src, epsilon=0.0).dst)
    True
    """

    _OF_MOMENTS = True

    def __init__(
        self,
        src: Array,
        *,
        data_format: DataFormat | None = None,
        exact: Flag = False,
        num_threads: SupportsIndex | None = None,
    ) -> None:
        self.exact = _core.as_flag(exact, "exact")
        summed = _core.training_sums(src, data_format, self.exact, num_threads)
        self._sums, self._count, self.dtype = summed

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of each channel."""
        moments, count = self._moments()
        return moments[0] if count else np.full(self.channels, np.nan)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Biased variance of each channel."""
        return self._variance(0)

    @property
    def unbiased_variance(self) -> NDArray[np.float64]:
        """Unbiased variance of each channel."""
        return self._variance(1)

    def _variance(self, correction: int) -> NDArray[np.float64]:
        moments, count = self._moments()
        divisor = (count - correction) / _core.power_above(count) if count > correction else np.nan
        with _core.DefaultMode():
            variance: NDArray[np.float64] = moments[1] / divisor
        variance[np.isnan(variance)] = np.nan
        return variance

    def update_running(
        self,
        running_mean: NDArray[Any],
        running_variance: NDArray[Any],
        exponential_avg_factor: SupportsFloat,
        correction: SupportsIndex,
    ) -> None:
        """Update running statistics in place, as `batch_norm_training` does.

        Examples
        --------
        >>> import numpy as np, bn_ext
        >>> running_mean, running_variance = np.zeros(1), np.ones(1)
        >>> statistics = bn_ext.Statistics(np.array([[1.0], [3.0]]))
        >>> statistics.update_running(running_mean, running_variance, 0.1, correction=1)
        >>> running_mean, running_variance
        (array([0.2]), array([1.1]))
        """
        moments, count = self._moments()
        _core.update_running(
            moments, count, running_mean, running_variance, exponential_avg_factor, correction
        )

    def _moments(self) -> tuple[NDArray[np.float64], int]:
        """Means, sums of squares about them over `power_above` of the number of elements of each
        channel, and this number.
        """
        if self.exact:
            moments, count = _core.state_statistics(self._sums, self._format)
            return moments, count if self.channels else self._count
        return self._sums[:2].copy(), self._count

    def _joined(self, other: Self, count: int) -> NDArray[np.float64]:
        if self._count < other._count and self.dtype == "float64":
            return other._joined(self, count)  # of both steps, the shorter one is rounded less
        share, power = other._count / count, _core.power_above(count)
        # The mean is a pair of doubles if there is a third row.
        mean, squares, low = (*self._sums, 0.0)[:3]
        other_mean, other_squares, other_low = (*other._sums, 0.0)[:3]
        distance = (other_mean - mean) + (other_low - low)
        # Grouped like this, nothing overflows unless the variance does.
        between = distance * (distance * (self._count * share / power))
        other_squares = other_squares * (_core.power_above(other._count) / power) + between
        squares = squares * (_core.power_above(self._count) / power) + other_squares
        step = distance * share + low
        half = mean / 2 + (other_mean / 2 - mean / 2) * share
        total = np.where(np.isfinite(distance), mean + step, 2 * half)
        moved = total - mean
        low = (mean - (total - moved)) + (step - moved)  # what rounding took from the total
        low[~np.isfinite(low)] = 0
        return np.stack([total, squares, low][: len(self._sums)])


class GradientSums(_Sums):
    """The sums of a gradient over a part of the data. ``+`` gives those of several parts.

    Add the sums of all parts as for `Statistics`, and pass the total to `batch_norm_backward` with
    each part, as ``sums``.

    Parameters
    ----------
    src, diff_dst, relu, beta, dst, workspace
        A part, as for `batch_norm_backward`. It may be empty.
    mean : array, shape (C,)
        The mean of the whole.
    data_format, num_threads, exact
        As for `Statistics`.
    variance, gamma, epsilon
        As for `batch_norm_backward`. They are used only with beta, which needs variance and
        epsilon.

    Attributes
    ----------
    mean : ndarray of float64, shape (C,)
        The mean about which src was summed.
    count, channels, array
        As for `Statistics`; the integers are those of dy and of ``dy * (src - mean)``.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward` and `Statistics`; from ``+`` also if parts were summed about
        different means.

    Notes
    -----
    Sums of one part have the bits of `batch_norm_backward`. Unless exact, the same parts in the
    same order give the same bits every time. A sum does not record `relu`: adding parts with and
    without a ReLU raises no error.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> rng = np.random.default_rng(0)
    >>> src, diff_dst = rng.standard_normal((2, 8, 4))
    >>> mean, variance = src.mean(axis=0), src.var(axis=0)
    >>> parts = [(src[:5], diff_dst[:5]), (src[5:], diff_dst[5:])]
    >>> first, second = (bn_ext.GradientSums(*part, mean) for part in parts)
    >>> diff_src = np.concatenate([
    ...     bn_ext.batch_norm_backward(
    ...         *part, mean, variance, epsilon=1e-5, sums=first + second).diff_src
    ...     for part in parts])
    >>> whole = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, epsilon=1e-5)
    >>> np.allclose(diff_src, whole.diff_src, rtol=1e-12)
    True
    """

    _OF_MOMENTS = False

    if TYPE_CHECKING:  # `help` would show it
        _mean: NDArray[np.float64]

    def __init__(
        self,
        src: Array,
        diff_dst: Array,
        mean: Array,
        *,
        data_format: DataFormat | None = None,
        exact: Flag = False,
        num_threads: SupportsIndex | None = None,
        relu: Flag = False,
        beta: Array | None = None,
        dst: Array | None = None,
        workspace: NDArray[np.uint8] | None = None,
        variance: Array | None = None,
        gamma: Array | None = None,
        epsilon: SupportsFloat | None = None,
    ) -> None:
        self.exact = _core.as_flag(exact, "exact")
        gate = relu, beta, dst, workspace, variance, gamma, epsilon
        summed = _core.backward_sums(
            src, diff_dst, mean, data_format, self.exact, num_threads, *gate
        )
        self._sums, self._count, self.dtype, self._mean = summed

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean about which src was summed."""
        return self._mean.copy()

    def _check_whole(self, other: Self) -> None:
        super()._check_whole(other)
        if self.exact:  # whose arrays may have been reshaped
            _core.state_count(self._sums, self._format)
            _core.state_count(other._sums, self._format)
        channel = _core.first_different(self._mean, other._mean)
        if channel >= 0:
            means = self._mean[channel].item(), other._mean[channel].item()
            need = "all processes need the same bits of the mean"
            hint = f"; {need}: allreduce must give all of them the same sum"
            self._require_same(f"mean[{channel}]", *means, hint)

    def _values(self) -> tuple[NDArray[Any], ...]:
        return (*super()._values(), self._mean)

    def _joined(self, other: Self, count: int) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = self._sums + other._sums
        return sums


def as_sums(sums: object) -> tuple[NDArray[Any], int, str, NDArray[np.float64]] | None:
    """What `_core.backward` needs of the sums of all parts, if there are any."""
    if sums is None:
        return None
    if not isinstance(sums, GradientSums):
        raise TypeError(
            f"sums: expected GradientSums, the sum of those of all parts, got {_core.shown(sums)}"
        )
    return sums._sums, sums._count, sums.dtype, sums._mean
