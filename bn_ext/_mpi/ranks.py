"""Sums over the ranks of a communicator, and what is known of it."""

import atexit
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._mpi.agreement import CollectiveError, CollectiveTimeoutError

if TYPE_CHECKING:
    from mpi4py import MPI

    from bn_ext._mpi.exchange import Exchange

__all__ = [
    "Key",
    "OverRanks",
    "Record",
    "as_communicator",
    "as_flags",
    "as_timeout",
    "is_from_mpi",
    "record_of",
]

#: Function, channels, dtype, exact, and whether there is a timeout: which collective of which size.
Key: TypeAlias = tuple[str, int, str, bool, bool]
#: What is sent, and what is received.
Buffers: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


@dataclass(eq=False)
class Record:
    """What is known of a communicator."""

    #: What its ranks have agreed on, with the number of elements that they then sum.
    agreed: dict[Key, int] = field(default_factory=dict)
    unusable: str = ""
    #: How many calls have ended, and the one that has begun and not ended.
    calls: int = 0
    open: "Exchange | None" = None
    #: Of a call that ended on this rank alone: the next one tells the others.
    untold: str = ""
    #: Memory to send from and to receive in, by size and dtype: fresh pages take longer than the
    #: sums themselves.
    spare: dict[tuple[int, str], list[Buffers]] = field(default_factory=dict)

    def take(self, size: int, dtype: str) -> Buffers:
        """Buffers of `size` elements, not cleared."""
        try:
            return self.spare[size, dtype].pop()
        except LookupError:
            return np.empty(size, dtype), np.empty(size, dtype)

    def give_back(self, buffers: Buffers) -> None:
        """For another call; of a size some are kept."""
        kept = self.spare.setdefault((buffers[0].size, buffers[0].dtype.name), [])
        if len(kept) < 4:
            kept.append(buffers)


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(
            f"bn_ext.mpi needs mpi4py and an MPI: python -m pip install mpi4py mpich ({error})"
        ) from error
    return MPI


def is_from_mpi(error: BaseException) -> bool:
    """Has a collective itself failed?"""
    return isinstance(error, _mpi().Exception)


def as_communicator(comm: Any) -> "MPI.Intracomm":
    """Refuse what has no ranks to sum over."""
    mpi = _mpi()
    if not isinstance(comm, mpi.Comm):
        raise TypeError(f"comm: expected an mpi4py communicator, got {type(comm).__name__}")
    if comm == mpi.COMM_NULL:
        raise ValueError("comm: expected a communicator that this rank is in, got COMM_NULL")
    if not isinstance(comm, mpi.Intracomm):
        raise TypeError(f"comm: expected an intracommunicator, got {type(comm).__name__}")
    found: MPI.Intracomm = comm
    return found


def as_flags(over: dict[str, Any], wrong: bool = False) -> tuple[bool | None, bool, float | None]:
    """exact, check and timeout. If they may be `wrong` and one is, exact is None: nothing says then
    which collective the other ranks are in.
    """
    check = False
    try:
        check = _core._as_flag(over.get("check", False), "check")
        timeout = as_timeout(over.get("timeout"))
        return _core._as_flag(over.get("exact", True), "exact"), check, timeout
    except (TypeError, ValueError):
        if not wrong:
            raise
        return None, check, None


def as_timeout(timeout: object) -> float | None:
    """Seconds, or None."""
    if timeout is None:
        return None
    if isinstance(timeout, (bool, str, bytes)) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout: expected seconds or None, got {_core._shown(timeout)}")
    seconds = float(timeout)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"timeout: expected a positive number of seconds, got {timeout!r}")
    return seconds


_records: WeakSet[Record] = WeakSet()


@cache
def _keyval() -> int:
    """Of records among the attributes of communicators."""
    # Without a copy function, a duplicate of a communicator starts with no record.
    found: int = _mpi().Comm.Create_keyval()
    return found


def record_of(comm: "MPI.Intracomm") -> Record:
    """Lives as long as the communicator, and is not that of a later one with the same handle."""
    found = comm.Get_attr(_keyval())
    if not isinstance(found, Record):
        found = Record()
        comm.Set_attr(_keyval(), found)
        _records.add(found)
    if found.unusable:
        raise CollectiveError(f"comm: cannot be used any more: {found.unusable}")
    return found


class OverRanks:
    """A sum over all ranks: what it reads and writes lives until it has arrived."""

    def __init__(
        self, record: Record, buffers: Buffers, prints: NDArray[np.int64] | None, round_: int
    ) -> None:
        self.record, self.buffers, self.prints, self.round = record, buffers, prints, round_
        self.late = self.forgotten = False
        #: The request, or None for what has arrived; nothing until it is posted.
        self.posted: list[MPI.Request | None] = []

    def post(self, collective: Callable[..., "MPI.Request | None"]) -> None:
        """Send it off: by `Iallreduce`, or by `Allreduce`, which waits and is faster."""
        for earlier in [*_on_their_way]:
            if earlier.forgotten:  # others may be asked about by another thread just now
                earlier.arrived()
        _on_their_way.add(self)
        sent, received = self.buffers
        # In one step of C, at whose end signals are handled: an exception of theirs finds it posted
        # and kept, or not posted.
        self.posted.extend(map(collective, [sent], [received]))

    def arrived(self) -> bool:
        """Does not wait."""
        request = self.posted[0] if self.posted else None
        if request is not None:
            if not request.Test():
                return False
            self.posted[0] = None
        _on_their_way.discard(self)
        return True

    def result(self, timeout: float | None) -> NDArray[Any]:
        """Wait for it."""
        started = time.monotonic()
        while not self.arrived():
            if timeout is None:
                self.posted[0].Wait()  # type: ignore[union-attr]
                continue
            waited = time.monotonic() - started
            if waited > timeout:
                self.late = True
                self.record.unusable = f"a call timed out after {timeout:g} s"
                raise CollectiveTimeoutError(
                    f"timeout: not all ranks made this call within {timeout:g} s; which have is "
                    "not known. This communicator cannot be used any more"
                )
            # At first as often as can be: most sums take microseconds.
            time.sleep(0 if waited < 1e-3 else 1e-3)
        return self.buffers[1]


_on_their_way: set[OverRanks] = set()
#: Seconds at exit for sums that nobody waited for; and if others have had theirs already.
_AT_EXIT, _IF_LATE = 5.0, 1.0
#: MPICH's mpiexec drops what it has not read when a rank aborts: without this, 1 of 13 messages.
_UNTIL_PRINTED = 0.3


@atexit.register
def _end() -> None:
    """MPI must not be finalized before all sums have arrived, nor while others wait for this rank
    in a call whose end was interrupted, too: see that they have, or end all ranks.
    """
    owing = any(record.open is not None for record in _records)
    if not _on_their_way and not owing:
        return
    mpi = _mpi()
    if mpi.Is_finalized():
        return
    late = owing or any(each.late for each in _on_their_way)
    end = time.monotonic() + (_IF_LATE if late else _AT_EXIT)
    while owing or not all([each.arrived() for each in [*_on_their_way]]):
        if time.monotonic() > end:  # pragma: no cover - what is aborted leaves no report
            print(
                f"bn_ext.mpi: rank {mpi.COMM_WORLD.rank} of MPI.COMM_WORLD ends, but a call that "
                "it made has not ended on all ranks: MPI cannot be finalized, and is aborted",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            time.sleep(_UNTIL_PRINTED)
            mpi.COMM_WORLD.Abort(1)
        time.sleep(1e-3)
