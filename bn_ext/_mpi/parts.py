"""One rank's part of a call: its sums, and its results from the sums of all ranks.

Before a rank sends its sums, it checks all arguments, by a dry run of the function that applies
the total.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core

__all__ = ["GradientPart", "LocalPart", "TrainingPart"]


class LocalPart:
    """The arguments of a call by name, and what a rank makes of them."""

    #: Names of arrays like src.
    data: tuple[str, ...] = ()
    #: Names of vectors; they must match on all ranks.
    vectors: tuple[str, ...] = ()
    #: Names of other arguments that must match, as epsilon and relu must.
    same: tuple[str, ...] = ()
    #: The function that computes results from the total.
    writes: ClassVar[Callable[..., Any]]
    #: The total's name as an argument of `writes`.
    total: str
    exact: bool

    def __init__(self, arguments: dict[str, Any]) -> None:
        over = "comm", "exact", "check", "timeout"
        #: Arguments that only the functions over ranks have.
        self.over = {name: arguments[name] for name in over if name in arguments}
        self.given = {k: v for k, v in arguments.items() if k not in over}
        #: Will every rank raise the same error after the last sum?
        self.refused = False
        self.shape: tuple[int, ...] = ()  # of sums
        #: What must be the same on all ranks, by names of agreement.NAMES.
        self.alike: dict[str, Any] = {}

    @property
    def rounds(self) -> int:
        """How many sums over all ranks are needed."""
        return 1

    def find(self, total: NDArray[Any] | None) -> NDArray[Any]:
        """The sums that this rank sends; in round 2, computed from the total of round 1."""
        for name in (*self.data, *self.vectors):
            if self.given[name] is not None:
                self.given[name] = _core._as_array(self.given[name], name)
        _core._dry_run(self.writes, **{self.total: None}, **self.given)
        sums = self.reduce()
        self.shape = sums.shape
        self.alike = self.some("epsilon", "relu", *self.vectors, *self.same)
        self.alike |= {"channels": sums.shape[-1], "dtype": self.given["src"].dtype.name}
        return sums

    def reduce(self) -> NDArray[Any]:
        """The sums of this rank's data."""
        raise NotImplementedError

    def apply(self, total: NDArray[Any]) -> Any:
        """Results of this rank, from the last total."""
        return self.writes(**{self.total: total.reshape(self.shape)}, **self.given)

    def some(self, *names: str) -> dict[str, Any]:
        return {name: self.given[name] for name in names}

    def seen(self) -> tuple[set[int], str]:
        """What the arguments suggest if `find` has failed: numbers of channels, some of which may
        be wrong, and the dtype.
        """
        channels, dtype = set(), ""
        for name in ("src", *self.vectors):
            try:
                array = _core._as_array(self.given[name], name)
                axis = 1 if name == "src" and self.given["data_format"] == "NCX" else -1
                channels.add(array.shape[axis])
                dtype = dtype or array.dtype.name
            except BaseException:  # another error already ends the call
                continue
        return channels, dtype


class GradientPart(LocalPart):
    """A rank's part of `batch_norm_backward`."""

    data = ("src", "diff_dst", "dst")
    vectors = ("mean", "variance", "gamma", "beta")
    same = ("is_training",)
    writes = staticmethod(_core.batch_norm_backward_apply)
    total = "sums"

    def reduce(self) -> NDArray[Any]:
        names = *self.data, *self.vectors, "workspace", "epsilon", "data_format", "num_threads"
        options = self.some(*names, "relu")
        found: NDArray[Any] = _core.batch_norm_backward_reduce(exact=self.exact, **options)
        return found


class TrainingPart(LocalPart):
    """A rank's part of `batch_norm_training`. With plain sums, round 1 finds the mean, and round 2
    the variance about it.
    """

    data = ("src", "src_1")
    vectors = ("gamma", "beta")
    same = ("running_mean", "running_variance", "exponential_avg_factor", "correction")
    writes = staticmethod(_core.batch_norm_training_apply)
    total = "stats"
    #: Scales sums that may overflow. Statistics hold squares that do as minus their scaled sum.
    SCALE = 2.0**-64

    @property
    def rounds(self) -> int:
        return 1 if self.exact else 2

    def find(self, total: NDArray[Any] | None) -> NDArray[Any]:
        if total is not None:
            return self._find_variance(total)
        self.local = sums = super().find(None)
        if self.exact:
            return sums
        mean, _, count, _ = sums
        return np.array([count * self.SCALE * mean, np.zeros_like(mean), count])

    def reduce(self) -> NDArray[Any]:
        options = self.some("src", "data_format", "num_threads")
        found: NDArray[Any] = _core.batch_norm_training_reduce(exact=self.exact, **options)
        return found

    def _find_variance(self, total: NDArray[Any]) -> NDArray[Any]:
        """A rank's share of the variance about the mean over all ranks."""
        scaled, _, count = total.reshape(3, -1)
        of_all = np.maximum(count, 1)
        self.mean = scaled / of_all / self.SCALE
        mean, held, own, _ = self.local
        share, off = own / of_all, mean - self.mean
        variance = np.where(held < 0, -held / of_all / self.SCALE, held / of_all)
        return np.array([share * off, variance + share * off * off, own])

    def apply(self, total: NDArray[Any]) -> Any:
        if self.exact:
            stats = _core.batch_norm_training_stats(total.reshape(self.shape))
        else:
            # Correct the mean, and the variance about it, for the mean's rounding.
            off, variance, count = total.reshape(3, -1)
            mean = np.where(np.isfinite(off), self.mean + off, self.mean)
            variance = np.maximum(variance - off * off, 0)
            squares = variance * count
            squares = np.where(np.isinf(squares), -variance * (count * self.SCALE), squares)
            stats = np.array([mean, squares, count, np.ones_like(count)])
        # One element has no unbiased variance: every rank raises the same error.
        self.refused = stats[2].max(initial=0) == self.given["correction"] == 1
        return self.writes(stats=stats, **self.given)
