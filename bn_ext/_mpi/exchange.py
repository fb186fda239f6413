"""A call on all ranks: what each has found becomes what all have, or an error on every rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._mpi.agreement import WORDS, CollectiveError, fingerprints, judge, words
from bn_ext._mpi.ranks import Key, OverRanks, as_communicator, as_timeout, record_of, sum_over

__all__ = ["Exchange", "Part"]


@dataclass
class Part:
    """What a rank has found in its data."""

    channels: int
    dtype: str
    #: Names of agreement.NAMES, and what must be the same on all ranks.
    alike: dict[str, object]
    #: What is to be summed over all ranks.
    sums: NDArray[Any]


class Exchange:
    """One call's collectives.

    A rank that has failed takes part as well, with a word that says so: else the others would wait
    for it.
    """

    def __init__(
        self, function: str, comm: object, exact: object, check: object, timeout: object
    ) -> None:
        self.function = function
        self.comm = as_communicator(comm)
        self.exact = _core._as_flag(exact, "exact")
        self.check = _core._as_flag(check, "check")
        self.timeout = as_timeout(timeout)
        self.record = record_of(self.comm)
        self._error: Exception | None = None
        self._prints: NDArray[np.int64] | None = None
        self._alike: dict[str, object] = {}
        self._way: OverRanks | None = None

    def __del__(self) -> None:
        way: OverRanks | None = getattr(self, "_way", None)
        if way is not None:
            way.forgotten = True

    def prepare(self, find: Callable[[], Part], seen: Callable[[], tuple[set[int], str]]) -> None:
        """Find what this rank sends, and see that all may sum.

        Parameters
        ----------
        find
            Finds this rank's part.
        seen
            If that fails, what can still be said of channels and dtype.
        """
        part = self._found(find)
        if part is not None:
            self._alike = {
                "function": self.function, "channels": part.channels, "dtype": part.dtype,
                "exact": self.exact, "check": self.check, "timeout": self.timeout is not None,
                **part.alike,
            }  # fmt: skip
            self._prints = fingerprints(self._alike)
            key: Key | None = self._key(part.channels, part.dtype)
        else:
            key = self._likely_key(*seen())
        if self.check or key is None or key not in self.record.agreed:
            mine = words(self._prints, self.comm.rank)
            both = mine, np.empty_like(mine)
            self._judge(OverRanks(self.comm, self.record, both).result(self.timeout))
            assert key is not None
            assert part is not None
            self.record.agreed[key] = part.sums.size
        self._take(WORDS + self.record.agreed[key])
        self._write(part)

    def again(self, find: Callable[[], Part]) -> None:
        """Find what this rank sends in a further round, of as many elements."""
        self._write(self._found(find))

    def _found(self, find: Callable[[], Part]) -> Part | None:
        try:
            return find()
        except Exception as error:
            self._error, self._prints = error, None
            return None

    def _take(self, size: int) -> None:
        self._buffers = self.record.take(size, "int64" if self.exact else "float64")

    def _write(self, part: Part | None) -> None:
        sent = self._buffers[0]
        sent[:WORDS] = words(self._prints, self.comm.rank, sent.dtype)
        sent[WORDS:] = 0 if part is None else part.sums.reshape(-1)

    def _key(self, channels: int, dtype: str) -> Key:
        return self.function, channels, dtype, self.exact, self.timeout is not None

    def _likely_key(self, channels: set[int], dtype: str) -> Key | None:
        """The sum that the others are at, if this rank has failed; None if they are to agree."""
        like = self._key(0, dtype)
        known = [k for k in self.record.agreed if (k[0], *k[3:]) == (like[0], *like[3:])]
        fit = [k for k in known if k[1] in channels]
        fit = [k for k in fit if k[2] == dtype] or fit
        if not channels:
            fit = known
        if len(fit) > 1:
            # Any choice but theirs would mix up two collectives.
            assert self._error is not None
            self._error.add_note(
                "bn_ext.mpi: the other ranks could not be told, since nothing here says how many "
                "channels they sum"
            )
            raise self._error
        return fit[0] if fit else None

    def _judge(self, total: NDArray[Any]) -> None:
        """Raise on every rank, or on none."""
        size, rank = self.comm.size, self.comm.rank
        wrong = judge(total, self._prints, rank, size, self._alike)
        if self._error is not None:
            raise self._error
        if wrong:
            raise CollectiveError(f"{self.function}: {wrong}")

    def sum(self) -> NDArray[Any]:
        """Of all ranks, now: in memory that `end` gives to the next call."""
        return self._checked(sum_over(self.comm, self.record, self._buffers, self.timeout))

    def start(self) -> None:
        """Send it off: `finish` waits."""
        self._way = OverRanks(self.comm, self.record, self._buffers)

    def arrived(self) -> bool:
        """Would `finish` return at once?"""
        assert self._way is not None
        return self._way.arrived()

    def finish(self) -> NDArray[Any]:
        """Of all ranks, what `start` sent off."""
        assert self._way is not None
        return self._checked(self._way.result(self.timeout))

    def end(self) -> None:
        """Nobody needs the sums any more."""
        self.record.give_back(self._buffers)

    def _checked(self, total: NDArray[Any]) -> NDArray[Any]:
        self._judge(total[:WORDS])
        return total[WORDS:]
