"""A call on all ranks: it sums what each rank has computed, or raises an error on every rank."""

import atexit
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._mpi import agreement
from bn_ext._mpi.agreement import WORDS, CollectiveError, CollectiveTimeoutError
from bn_ext._mpi.parts import LocalPart
from bn_ext._names import refuses_other_names

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Exchange", "as_communicator", "as_flags", "on_all_ranks", "over_ranks"]

# ---- arguments ------------------------------------------------------------------------------


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(
            f"bn_ext.mpi needs mpi4py and an MPI: python -m pip install mpi4py mpich ({error})"
        ) from error
    return MPI


def as_communicator(comm: Any) -> "MPI.Intracomm":
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
    """Convert exact, check and timeout. If `wrong` is true and one of the three is refused, return
    None for exact instead of raising an error: which collective the others are in is then unknown.
    """
    check = False
    try:
        check = _core._as_flag(over.get("check", False), "check")
        timeout = _as_timeout(over.get("timeout"))
        return _core._as_flag(over.get("exact", True), "exact"), check, timeout
    except (TypeError, ValueError):
        if not wrong:
            raise
        return None, check, None


def _as_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, (bool, str, bytes)) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout: expected seconds or None, got {_core._shown(timeout)}")
    seconds = float(timeout)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"timeout: expected a positive number of seconds, got {timeout!r}")
    return seconds


# ---- a communicator -------------------------------------------------------------------------


#: Function, channels, dtype, exact, and whether there is a timeout. They determine a collective.
Key: TypeAlias = tuple[str, int, str, bool, bool]


@dataclass(eq=False)
class Record:
    """What is known about a communicator."""

    #: The collectives that its ranks have agreed on, and how many elements each adds up.
    agreed: dict[Key, int] = field(default_factory=dict)
    unusable: str = ""
    #: How many calls have ended.
    calls: int = 0
    #: The call that has begun and not ended.
    open: "Exchange | None" = None
    #: Why a call failed on this rank alone: the next call tells the others.
    untold: str = ""
    #: Memory to reuse for sums, by size and dtype: touching fresh pages takes longer than a sum.
    spare: dict[tuple[int, str], list[NDArray[Any]]] = field(default_factory=dict)


_records: WeakSet[Record] = WeakSet()


@cache
def _keyval() -> int:
    """The key of a communicator's attribute that holds its Record."""
    # Without a copy function, a duplicate of a communicator starts with no record.
    found: int = _mpi().Comm.Create_keyval()
    return found


def _record_of(comm: "MPI.Intracomm") -> Record:
    """The record of a communicator. A later communicator with the same handle has another."""
    found = comm.Get_attr(_keyval())
    if not isinstance(found, Record):
        found = Record()
        comm.Set_attr(_keyval(), found)
        _records.add(found)
    if found.unusable:
        raise CollectiveError(f"comm: cannot be used any more: {found.unusable}")
    return found


# ---- a sum ----------------------------------------------------------------------------------


class OverRanks:
    """A sum over all ranks, in place; its memory lives until it has arrived."""

    def __init__(
        self, call: "Exchange", sums: NDArray[Any], prints: NDArray[np.int64] | None, round_: int
    ) -> None:
        self.call, self.record = ref(call), call.record
        self.sums, self.prints, self.round = sums, prints, round_
        #: Empty until the sum is posted; then the request, or None once the sum has arrived.
        self.posted: list[MPI.Request | None] = []

    def post(self, collective: Callable[..., "MPI.Request | None"]) -> None:
        """Start the collective. Only `Allreduce`, which is faster, waits until it is done."""
        for earlier in [*_on_their_way]:
            if earlier.call() is None:  # no thread waits for it
                earlier.arrived()
        _on_their_way.add(self)
        # One step of C: signals are handled before or after it. If a handler raises an exception,
        # the request has not been posted, or has been posted and stored.
        self.posted.extend(map(collective, [_mpi().IN_PLACE], [self.sums]))

    def arrived(self) -> bool:
        """Has the sum arrived? This does not wait."""
        request = self.posted[0] if self.posted else None
        if request is not None:
            if not request.Test():
                return False
            self.posted[0] = None
        _on_their_way.discard(self)
        return True

    def result(self, timeout: float | None) -> NDArray[Any]:
        started = time.monotonic()
        while not self.arrived():
            if timeout is None:
                self.posted[0].Wait()  # type: ignore[union-attr]
                continue
            waited = time.monotonic() - started
            if waited > timeout:
                self.record.unusable = f"a call timed out after {timeout:g} s"
                raise CollectiveTimeoutError(
                    f"timeout: not all ranks made this call within {timeout:g} s; it is not "
                    "known which did. This communicator cannot be used any more"
                )
            # Without a pause at first: most sums take microseconds.
            time.sleep(0 if waited < 1e-3 else 1e-3)
        return self.sums

    def give_back(self) -> None:
        """Keep this sum's memory for the next one: nothing reads it any more."""
        if self.round > 0:
            self.record.spare[self.sums.size, self.sums.dtype.name].append(self.sums)


_on_their_way: set[OverRanks] = set()
#: Seconds to wait at exit for sums that have not arrived.
_AT_EXIT = 5.0
#: Seconds to wait before an abort: without a wait, MPICH's mpiexec lost 1 of 13 messages.
_UNTIL_PRINTED = 0.3


@atexit.register
def _end() -> None:
    """Wait until MPI can be finalized, or abort all ranks. MPI must not be finalized while a sum
    has not arrived, or while others wait for this rank in a call whose end was interrupted.
    """
    owing = any(record.open is not None for record in _records)
    if not _on_their_way and not owing:
        return
    mpi = _mpi()
    if mpi.Is_finalized():
        return
    end = time.monotonic() + _AT_EXIT
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


# ---- a call ---------------------------------------------------------------------------------


class Exchange:
    """One call's collectives, in a `with` statement: one or two sums. If the `Key` is new or
    `check` is true, the sums follow round 0, in which ranks compare their arguments.

    A rank that has failed takes part in the next round, with an error flag, because the others
    would wait for it otherwise. So a call ends on all ranks, whatever exception ends it on one.
    """

    def __init__(
        self, function: str, part: LocalPart, error: BaseException | None = None, *,
        waits: bool = True,
    ) -> None:  # fmt: skip
        self.comm = as_communicator(part.over.get("comm"))
        self.record = _record_of(self.comm)
        self.function, self.waits = function, waits
        self.rank, self.size = self.comm.rank, self.comm.size
        #: The error that ends the call on this rank, perhaps before it begins.
        self._error = error
        #: exact is None if any of these was refused.
        self.exact, self.check, self.timeout = as_flags(part.over, error is not None)
        self._part = part
        self._part.exact = bool(self.exact)
        self._alike: dict[str, Any] = {}
        self._prints: NDArray[np.int64] | None = None  # of _alike
        self._how = bool(self.exact), self.timeout is not None
        self._key: Key | None = None
        self._length = 0  # number of elements in the sums
        self._call = 0
        self._sum: OverRanks | None = None

    # ---- begin and end ----------------------------------------------------------------

    def __enter__(self) -> "Exchange":
        """From here on others may wait for this rank."""
        record = self.record
        if record.open is not None:  # the end of that call was interrupted
            record.open.settle()
        self._call = record.calls + 1
        if record.untold:
            self._error = CollectiveError(record.untold)
        record.open = self
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._end()
        else:
            self.settle(error)

    def _end(self, untold: str = "") -> None:
        self.record.untold, self.record.calls = untold, self._call
        self.record.open = None

    def settle(self, error: BaseException | None = None) -> None:
        """Tell all ranks, so that none waits for this one. After an interruption, call it again."""
        self._error = self._error or error or CollectiveError("interrupted")
        if isinstance(self._error, _mpi().Exception):
            self.record.unusable = "a sum failed in MPI"
        untold, last, rounds = "", self._sum, self._part.rounds
        try:
            if self.record.unusable:
                pass  # the others' round is unknown
            elif last is None or not last.posted:
                self._tell(self._first_round() if last is None else last.round)
            elif not self.waits and last.round == rounds:
                untold = self._as_untold()
            elif not self._wrong(last.result(self.timeout)):
                if last.round < rounds:
                    self._tell(last.round + 1)
                elif not self._part.refused:
                    untold = self._as_untold()
        except CollectiveTimeoutError:
            pass  # the communicator cannot be used any more
        self._end(untold)

    def _tell(self, round_: int | None) -> None:
        if round_ is None:
            assert self._error is not None
            self._error.add_note(
                "bn_ext.mpi: the other ranks could not be told of this, because their number of "
                "channels is not known here"
            )
            return
        self._post(None, round_)
        if self.waits:
            self.last.result(self.timeout)

    def _as_untold(self) -> str:
        return (
            f"comm: on rank {self.rank} an earlier call, of {self.function}, ended with "
            f"{type(self._error).__name__} after all sums had arrived: other ranks may have "
            "results that this rank lacks. Now all ranks have been told, and calls work again"
        )

    def lost(self, error: BaseException) -> None:
        """All ranks have the sums, but an error ended the call on this one: tell them next time."""
        self._error = self._error or error
        self.record.untold = self._as_untold()

    # ---- rounds -----------------------------------------------------------------------

    def send(self, total: NDArray[Any] | None = None) -> None:
        """Send this rank's sums; in the second round, compute them from the total of the first."""
        part = self._part
        sums: NDArray[Any] | None = None
        if self._error is None:
            try:
                sums = part.find(total)
            except BaseException as error:  # raised when the others have been told
                self._error = error
        if total is not None:
            self._post(sums, self.last.round + 1)
            return
        if sums is not None:
            self._alike = {
                "call": self._call, "function": self.function, "exact": self.exact,
                "check": self.check, "timeout": self.timeout is not None, **part.alike,
            }  # fmt: skip
            self._prints = agreement.fingerprints(self._alike)
            self._length = sums.size
            self._key = self.function, part.alike["channels"], part.alike["dtype"], *self._how
        first = self._first_round()
        if first is None:
            assert self._error is not None
            raise self._error
        if first == 0:
            self._post(None, 0)
            self.total()
        self._post(sums, 1)

    def _first_round(self) -> int | None:
        """The number of the first round; None if a failed rank does not know that number."""
        if self._key is None:
            likely = self._likely_keys(*self._part.seen())
            if len(likely) > 1:
                return None  # a wrong choice would mix up two collectives
            self._key = likely[0] if likely else None
        return int(self._key in self.record.agreed and not self.check)

    def _likely_keys(self, channels: set[int], dtype: str) -> list[Key]:
        """For a failed rank: the keys that others may use; if empty, others begin with round 0."""
        known = [k for k in self.record.agreed if k[0] == self.function]
        if self.exact is not None:
            known = [k for k in known if k[3:] == self._how]
        fit = [k for k in known if k[1] in channels] if channels else known
        return [k for k in fit if k[2] == dtype] or fit

    def _post(self, sums: NDArray[Any] | None, round_: int) -> None:
        """Start a round; if this rank has failed, with zeros and an error flag."""
        prints = self._prints if self._error is None else None
        if round_ == 0:
            row = agreement.row(prints)
            sent = np.empty((self.size, row.size), row.dtype)
            sent[self.rank] = row
        else:
            assert self._key is not None
            size = WORDS + self.record.agreed.setdefault(self._key, self._length)
            kind = size, "int64" if self._key[3] else "float64"
            spare = self.record.spare.setdefault(kind, [])
            sent = spare.pop() if spare else np.empty(*kind)
            sent[:WORDS] = agreement.words(prints, self.rank)
            sent[WORDS:] = 0 if sums is None else sums.reshape(-1)
        before, self._sum = self._sum, OverRanks(self, sent, prints, round_)
        if before is not None:
            before.give_back()
        collective: Callable[..., Any]
        if round_ == 0:
            collective = self.comm.Iallgather
        elif self.waits and self._key is not None and not self._key[4]:
            collective = self.comm.Allreduce  # faster
        else:
            collective = self.comm.Iallreduce
        self.last.post(collective)

    @property
    def last(self) -> OverRanks:
        """The collective of the last round."""
        assert self._sum is not None
        return self._sum

    def total(self) -> NDArray[Any]:
        """The sums of all ranks. Except for a timeout, all ranks raise an error, or none does."""
        total = self.last.result(self.timeout)
        wrong = self._wrong(total)
        if self._error is not None:
            raise self._error
        if wrong:
            raise CollectiveError(f"{self.function}: {wrong}")
        return total[WORDS:]

    def _wrong(self, total: NDArray[Any]) -> str:
        last, alike = self.last, self._alike
        if last.round == 0:
            wrong = agreement.compare(total, self.rank, alike)
        else:
            wrong = agreement.judge(total[:WORDS], last.prints, self.rank, self.size, alike)
        if wrong.startswith("call: "):
            self.record.unusable = (
                "its ranks have not made the same calls; go on with a duplicate (comm.Dup())"
            )
        return wrong


def over_ranks(function: str, part: LocalPart) -> Any:
    """The results of this rank, in a call that waits for all ranks."""
    with Exchange(function, part) as exchange, _core._DefaultMode():
        total: Any = None
        for _ in range(part.rounds):
            exchange.send(total)
            total = exchange.total()
        found = part.apply(total)
        exchange.last.give_back()
    return found


# ---- before a call has begun ----------------------------------------------------------------

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def on_all_ranks(
    part_of: Callable[[dict[str, Any]], LocalPart], function: str, *, waits: bool = True
) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """Decorates a function: other ranks learn of errors that come before its exchange."""

    def decorated(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        names = [*signature(call).parameters]
        checked = refuses_other_names(call)

        def part(given: tuple[Any, ...], options: dict[str, Any]) -> LocalPart:
            return part_of(dict(zip(names, given, strict=False)) | options)

        @wraps(call)
        def ends_on_all(*given: _Given.args, **options: _Given.kwargs) -> _Result:
            calls = -1  # ended calls; -1: not known yet
            try:
                record = _told_by(part(given, options))
                calls = 0 if record is None else record.calls
                return checked(*given, **options)
            except BaseException as error:
                _tell(error, calls, function, part(given, options), waits)
                raise

        return ends_on_all

    return decorated


def _told_by(part: LocalPart) -> Record | None:
    """The record of the communicator; None if no other rank can be told."""
    with suppress(CollectiveError, TypeError, ValueError):
        return _record_of(as_communicator(part.over.get("comm")))
    return None


def _tell(error: BaseException, calls: int, function: str, part: LocalPart, waits: bool) -> None:
    record = _told_by(part)
    if record is None or calls not in (-1, record.calls):
        return  # the call has begun and ended: the others know
    if record.open is not None:
        record.open.settle(error)
        return
    with Exchange(function, part, error, waits=waits):
        raise error
