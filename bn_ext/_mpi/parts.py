"""One rank's part of a call: its sums, and its results from those of all ranks.

All that a rank can refuse it refuses before it sends its sums. The general functions see to that,
called with no samples; what only the samples tell is checked here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core

__all__ = ["GradientPart", "LocalPart", "Part", "TrainingPart"]


@dataclass
class Part:
    """What a rank has found in its data."""

    channels: int
    dtype: str
    #: Names of agreement.NAMES, and what must be the same on all ranks.
    alike: dict[str, object]
    #: What is to be summed over all ranks.
    sums: NDArray[Any]


class LocalPart:
    """Arguments by name, arrays among them converted; `seen` of what could be."""

    data: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    #: Sums over all ranks that it takes.
    rounds = 1
    exact: bool

    def __init__(self, arguments: dict[str, Any]) -> None:
        over = "comm", "exact", "check", "timeout"
        #: Arguments of the functions over ranks alone, and the others.
        self.over = {name: arguments[name] for name in over if name in arguments}
        self.given = {k: v for k, v in arguments.items() if k not in (*over, "refused")}
        self.given |= arguments.get("refused", {})
        #: Has it raised, after the last sum, what every rank raises?
        self.refused = False
        self.shape: tuple[int, ...] = ()  # of sums

    def find(self, total: NDArray[Any] | None) -> Part:
        """What this rank sends in the first round, or in the next one, from the total of that."""
        raise NotImplementedError

    def apply(self, total: NDArray[Any]) -> Any:
        """Results of this rank, from the last total."""
        raise NotImplementedError

    def convert(self) -> None:
        for name in (*self.data, *self.vectors):
            if self.given[name] is not None:
                self.given[name] = _core._as_array(self.given[name], name)

    def some(self, *names: str) -> dict[str, Any]:
        return {name: self.given[name] for name in names}

    def seen(self) -> tuple[set[int], str]:
        """What can be said where `find` fails: numbers of channels that the arguments suggest, of
        which some may be wrong; the dtype.
        """
        channels, dtype = set(), ""
        for name in ("src", *self.vectors):
            try:
                array = _core._as_array(self.given[name], name)
                axis = 1 if name == "src" and self.given["data_format"] == "NCX" else -1
                channels.add(array.shape[axis])
                dtype = dtype or array.dtype.name
            except BaseException:  # what ends the call is known already
                continue
        return channels, dtype

    # ---- checks -----------------------------------------------------------------------

    def none_of_it(self) -> dict[str, Any]:
        """The data with no samples."""
        return {name: _no_samples(self.given[name]) for name in self.data}

    def trial_out(self) -> Any:
        """`out` for a call with no samples, which may write to it."""
        out = self.given["out"]
        if not isinstance(out, (tuple, list)):
            return out
        return tuple(_like(a) if i in (1, 2) else _no_samples(a) for i, a in enumerate(out))

    def check_written(self, names: tuple[str, ...], others: dict[str, Any]) -> None:
        """What is written: as many samples as src has, writable, in memory of its own."""
        if self.given["out"] is None and not any(a is not None for a in others.values()):
            return
        data, vectors = self.some(*self.data), self.some(*self.vectors)
        shape = data["src"].shape
        written = {}
        for i, (name, a) in enumerate(zip(names, self.given["out"] or (), strict=False)):
            if a is None:
                continue
            if i not in (1, 2) and a.shape != shape:
                raise ValueError(f"out: {name}: expected shape {shape}, got {a.shape}")
            if not a.flags.writeable:
                raise ValueError(f"out: {name}: expected a writable array, got a read-only one")
            written[f"out: {name}"] = a
        written |= {name: a for name, a in others.items() if a is not None}
        for name, a in written.items():
            for other, b in {**data, **vectors, **written}.items():
                in_place = other in data and _same_place(a, b)
                if name != other and b is not None and not in_place and _core._share_memory(a, b):
                    raise ValueError(f"{name}: shares memory with {other.removeprefix('out: ')}")


def _no_samples(array: Any) -> Any:
    return array[:0] if isinstance(array, np.ndarray) and array.ndim else array


def _like(array: Any) -> Any:
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        return array
    return np.empty(array.shape, array.dtype)


def _same_place(a: NDArray[Any], b: NDArray[Any] | None) -> bool:
    return b is not None and (a.ctypes.data, a.shape, a.strides) == (
        b.ctypes.data, b.shape, b.strides,
    )  # fmt: skip


class GradientPart(LocalPart):
    """Of `batch_norm_backward`."""

    data = ("src", "diff_dst", "dst")
    vectors = ("mean", "variance", "gamma", "beta")
    names = ("diff_src", "diff_gamma", "diff_beta", "diff_src_1")
    options = ("epsilon", "data_format", "num_threads", "relu")

    def find(self, _: NDArray[Any] | None) -> Part:
        self.convert()
        given = self.given
        gate = self.some("beta", "dst", "workspace", "variance", "gamma")
        sums: NDArray[Any] = _core.batch_norm_backward_reduce(
            given["src"], given["diff_dst"], given["mean"], exact=self.exact,
            **gate, **self.some(*self.options),
        )  # fmt: skip
        self.shape, channels = sums.shape, sums.shape[-1]
        bits = None if given["workspace"] is None else np.empty(0, np.uint8)
        nothing = {**given, **self.none_of_it(), "workspace": bits, "out": self.trial_out()}
        _core.batch_norm_backward_apply(sums=np.zeros((3, channels)), **nothing)
        self.check_written(self.names, {})
        alike = self.some("mean", "variance", "gamma", "beta") | {
            "epsilon": _core._as_epsilon(given["epsilon"]) + 0.0,  # not -0.0
            "relu": bool(given["relu"]),
            "is_training": bool(given["is_training"]),
        }
        sent = sums if self.exact else np.append(sums[2].max(initial=0), sums[:2])  # one count
        return Part(channels, given["src"].dtype.name, alike, sent)

    def apply(self, total: NDArray[Any]) -> Any:
        if not self.exact:
            total = np.append(total[1:], np.full(self.shape[1], total[0]))
        return _core.batch_norm_backward_apply(sums=total.reshape(self.shape), **self.given)


class TrainingPart(LocalPart):
    """Of `batch_norm_training`, in two rounds: first the mean, then the squares about it."""

    data = ("src", "src_1")
    vectors = ("gamma", "beta")
    names = ("dst", "mean", "variance")
    rounds = 2
    running = ("running_mean", "running_variance")

    def find(self, total: NDArray[Any] | None) -> Part:
        return self._find_mean() if total is None else self._find_squares(total)

    def _find_mean(self) -> Part:
        self.convert()
        given = self.given
        self.local = self._reduce()
        self.shape, self.channels = self.local.shape, self.local.shape[-1]
        bits = None if given["workspace"] is None else np.empty(0, np.uint8)
        nothing = {**given, **self.none_of_it(), "workspace": bits, "out": self.trial_out()}
        stats = _core.batch_norm_training_merge(np.zeros((0, 4, self.channels)))
        _core.batch_norm_training_apply(stats=stats, **nothing)
        self._check_samples()
        self.check_written(self.names, self.some("workspace", *self.running))
        alike = self.some("gamma", "beta", *self.running) | {
            "epsilon": _core._as_epsilon(given["epsilon"]) + 0.0,  # not -0.0
            "relu": bool(given["relu"]),
        }
        if given["running_mean"] is not None:
            alike["exponential_avg_factor"] = float(given["exponential_avg_factor"]) + 0.0
            alike["correction"] = int(given["correction"])
        if self.exact:
            return Part(self.channels, given["src"].dtype.name, alike, self.local)
        self.count = self.local[2].max(initial=0)
        return Part(self.channels, given["src"].dtype.name, alike, self._sent(self.local[0], 0))

    def _sent(self, mean: NDArray[Any], squares: Any) -> NDArray[Any]:
        """The count, and sums of all elements and of squares from those of this rank."""
        sums = np.zeros((2, self.channels))
        if self.count:
            sums[0], sums[1] = self.count * mean, squares
        return np.append(self.count, sums)

    def _reduce(self, **mean: Any) -> NDArray[Any]:
        options = self.some("data_format", "num_threads") | mean
        found: NDArray[Any] = _core.batch_norm_training_reduce(
            self.given["src"], exact=self.exact, **options
        )
        return found

    def _check_samples(self) -> None:
        src, src_1, bits = (self.given[name] for name in ("src", "src_1", "workspace"))
        if src_1 is not None and src_1.shape != src.shape:
            raise ValueError(f"src_1: expected shape {src.shape}, like src, got {src_1.shape}")
        if bits is None:
            return
        size = -(-src.size // 8)
        good = isinstance(bits, np.ndarray) and bits.dtype == np.uint8 and bits.shape == (size,)
        if not good or not bits.flags.writeable or not bits.flags.c_contiguous:
            raise ValueError(
                f"workspace: expected a writable, contiguous array of uint8 of shape ({size},)"
            )

    def _find_squares(self, total: NDArray[Any]) -> Part:
        """Sums of squares about the mean of all."""
        squares: NDArray[Any]
        if self.exact:
            self.mean = _core.batch_norm_training_stats(total.reshape(self.shape))[0]
            squares = self._reduce(mean=self.mean)
        else:
            self.mean = total[1:].reshape(2, -1)[0] / max(total[0], 1)
            off = self.local[0] - self.mean
            squares = self._sent(off, self.local[1] + self.count * off * off)
        return Part(self.channels, "", {}, squares)

    def apply(self, total: NDArray[Any]) -> Any:
        if self.exact:
            stats = _core.batch_norm_training_stats(total.reshape(self.shape), self.mean)
        else:
            # The mean is rounded, at the least: what it lacks counts in the squares about it.
            off, squares = total[1:].reshape(2, -1) / max(total[0], 1)
            mean = np.where(np.isfinite(off), self.mean + off, self.mean)
            squares = np.maximum(squares - off * off, 0) * total[0]
            ones = np.ones(self.channels)
            stats = np.array([mean, squares, total[0] * ones, ones])
        count = stats[2].max(initial=0)
        if self.given["running_mean"] is not None and count == self.given["correction"] == 1:
            self.refused = True
            raise ValueError(
                "correction: expected 0, since each channel has one element alone, got 1"
            )
        return _core.batch_norm_training_apply(stats=stats, **self.given)
