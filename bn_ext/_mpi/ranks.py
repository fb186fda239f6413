"""Sums over the ranks of a communicator, and what is known of it."""

import atexit
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._mpi.agreement import CollectiveError, CollectiveTimeoutError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Key", "OverRanks", "Record", "as_communicator", "as_timeout", "record_of", "sum_over"]

#: Function, channels, dtype, exact, and whether there is a timeout: which collective of which size.
Key: TypeAlias = tuple[str, int, str, bool, bool]
#: What is sent, and what is received.
Buffers: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


@dataclass
class Record:
    """What is known of a communicator."""

    #: What its ranks have agreed on, with the number of elements that they then sum.
    agreed: dict[Key, int] = field(default_factory=dict)
    unusable: str = ""
    #: Memory to send from and to receive in, by size and dtype: fresh pages take longer than the
    #: sums themselves.
    spare: dict[tuple[int, str], list[Buffers]] = field(default_factory=dict)

    def take(self, size: int, dtype: str) -> Buffers:
        """Buffers of so many elements, not cleared."""
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
            f'bn_ext.mpi needs mpi4py and an MPI: pip install "bn_ext[mpi]" ({error})'
        ) from error
    return MPI


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


#: The key of records among the attributes of communicators, once there is one.
_keyvals: list[int] = []


def _keyval() -> int:
    if not _keyvals:
        # Without a copy function, a duplicate of a communicator starts with no record.
        _keyvals.append(_mpi().Comm.Create_keyval())
    return _keyvals[0]


def record_of(comm: "MPI.Intracomm") -> Record:
    """Lives as long as the communicator, and is not that of a later one with the same handle."""
    found = comm.Get_attr(_keyval())
    if not isinstance(found, Record):
        found = Record()
        comm.Set_attr(_keyval(), found)
    if found.unusable:
        raise CollectiveError(f"comm: cannot be used any more: {found.unusable}")
    return found


class OverRanks:
    """A sum over all ranks, on its way: what it reads and writes lives until it has arrived."""

    def __init__(self, comm: "MPI.Intracomm", record: Record, buffers: Buffers) -> None:
        self._record, self._buffers = record, buffers
        self.late = self.forgotten = False
        self._request: MPI.Request | None = comm.Iallreduce(*buffers)
        for earlier in [*_on_their_way]:
            if earlier.forgotten:  # others may be asked about by another thread just now
                earlier.arrived()
        _on_their_way.add(self)

    def arrived(self) -> bool:
        """Does not wait."""
        if self._request is not None and self._request.Test():
            self._done()
        return self._request is None

    def _done(self) -> None:
        self._request = None
        _on_their_way.discard(self)

    def result(self, timeout: float | None) -> NDArray[Any]:
        """Wait for it."""
        if timeout is None and self._request is not None:
            self._request.Wait()
            self._done()
        started = time.monotonic()
        while not self.arrived():
            waited = time.monotonic() - started
            if timeout is not None and waited > timeout:
                self.late = True
                self._record.unusable = f"a call timed out after {timeout:g} s"
                raise CollectiveTimeoutError(
                    f"timeout: not all ranks made this call within {timeout:g} s; which have is "
                    "not known. This communicator cannot be used any more"
                )
            # At first as often as can be: most sums take microseconds.
            time.sleep(0 if waited < 1e-3 else 1e-3)
        return self._buffers[1]


_on_their_way: set[OverRanks] = set()
#: Seconds at exit for sums that nobody waited for; and if others have had theirs already.
_AT_EXIT, _IF_LATE = 5.0, 1.0
#: MPICH's mpiexec drops what it has not read when a rank aborts: without this, 1 of 13 messages.
_UNTIL_PRINTED = 0.3


@atexit.register
def _end() -> None:
    """MPI must not be finalized before they have arrived: see that they have, or end all ranks."""
    if not _on_their_way:
        return
    mpi = _mpi()
    if mpi.Is_finalized():
        return
    late = any(each.late for each in _on_their_way)
    end = time.monotonic() + (_IF_LATE if late else _AT_EXIT)
    while not all([each.arrived() for each in [*_on_their_way]]):
        if time.monotonic() > end:  # pragma: no cover - what is aborted leaves no report
            print(
                f"bn_ext.mpi: rank {mpi.COMM_WORLD.rank} of MPI.COMM_WORLD ends, but not all ranks "
                "have made a call that it made: MPI cannot be finalized, and is aborted",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            time.sleep(_UNTIL_PRINTED)
            mpi.COMM_WORLD.Abort(1)
        time.sleep(1e-3)


def sum_over(
    comm: "MPI.Intracomm", record: Record, buffers: Buffers, timeout: float | None
) -> NDArray[Any]:
    """At once: without a timeout by the blocking collective, which is faster."""
    if timeout is not None:
        return OverRanks(comm, record, buffers).result(timeout)
    comm.Allreduce(*buffers)
    return buffers[1]
