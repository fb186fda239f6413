"""A call on all ranks: what each has found becomes what all have, or an error on every rank."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._mpi import agreement
from bn_ext._mpi.agreement import WORDS, CollectiveError, CollectiveTimeoutError
from bn_ext._mpi.parts import LocalPart
from bn_ext._mpi.ranks import (
    Key,
    OverRanks,
    Record,
    as_communicator,
    as_flags,
    is_from_mpi,
    record_of,
)

__all__ = ["Exchange", "on_all_ranks", "over_ranks"]


class Exchange:
    """One call's collectives, in a `with` statement: one or two sums, and before the first sum of
    its kind a round in which ranks compare what they are about to sum (round 0).

    A rank that has failed takes part in the next round, with a word that says so: else the others
    would wait for it. So a call ends on all ranks, whatever exception ends it on one.
    """

    def __init__(
        self, function: str, part: LocalPart, error: BaseException | None = None, *,
        waits: bool = True,
    ) -> None:  # fmt: skip
        self.comm = as_communicator(part.over.get("comm"))
        self.record = record_of(self.comm)
        self.function, self.waits = function, waits
        self.rank, self.size = self.comm.rank, self.comm.size
        #: What has ended the call on this rank, if that is known before it begins.
        self._error = error
        #: exact is None if one of these was refused.
        self.exact, self.check, self.timeout = as_flags(part.over, error is not None)
        self._part = part
        self._part.exact = bool(self.exact)
        self._alike: dict[str, Any] = {}
        self._prints: NDArray[np.int64] | None = None  # of that
        self._key: Key | None = None
        self._length = 0  # of the sums
        self._call = 0
        self._can_tell = True
        self._first: int | None = None  # round, once it is known
        self._sum: OverRanks | None = None

    def __del__(self) -> None:
        last: OverRanks | None = getattr(self, "_sum", None)
        if last is not None:
            last.forgotten = True

    # ---- begin and end ----------------------------------------------------------------

    def begin(self) -> None:
        """From here on others may wait for this rank."""
        record = self.record
        if record.open is not None:  # its end was interrupted, too
            record.open.settle()
        self._call = record.calls + 1
        if record.untold:
            self._error = CollectiveError(record.untold)
        record.open = self

    def __enter__(self) -> "Exchange":
        self.begin()
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
        """See that no rank waits for this one, and that all are told. Can be interrupted and called
        again.
        """
        self._error = self._error or error or CollectiveError("interrupted")
        if is_from_mpi(self._error):
            self.record.unusable = "a sum failed in MPI"
        untold, last, rounds = "", self._sum, self._part.rounds
        try:
            if self.record.unusable:
                pass  # where the others are is not known
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

    def _tell(self, round_: int) -> None:
        if self._can_tell:
            self._new(None, round_)
            self.post()
            if self.waits:
                self.last.result(self.timeout)

    def _as_untold(self) -> str:
        return (
            f"comm: on rank {self.rank} an earlier call, of {self.function}, ended by "
            f"{type(self._error).__name__} when all had been summed: other ranks may have results "
            "that this one has not. Now all ranks are told, and calls work again"
        )

    def lost(self, error: BaseException) -> None:
        """Sums that all ranks have became no results on this one."""
        self._error = self._error or error
        self.record.untold = self._as_untold()

    # ---- rounds -----------------------------------------------------------------------

    def prepare(self, total: NDArray[Any] | None = None) -> None:
        """Find what this rank sends: after the first sum of two, from the total of that."""
        part = self._part
        sums: NDArray[Any] | None = None
        if self._error is None:
            try:
                sums = part.find(total)
            except BaseException as error:  # raised when the others have been told
                self._error = error
        if total is not None:
            self._new(sums, self.last.round + 1)
            return
        if sums is not None:
            self._alike = {
                "call": self._call, "function": self.function, "exact": self.exact,
                "check": self.check, "timeout": self.timeout is not None, **part.alike,
            }  # fmt: skip
            self._prints = agreement.fingerprints(self._alike)
            self._length = sums.size
            self._key = self._as_key(part.alike["channels"], part.alike["dtype"])
        first = self._first_round()
        if not self._can_tell:
            assert self._error is not None
            raise self._error
        if first == 0:
            self._new(None, 0)
            self.post()
            self.total()
        self._new(sums, 1)

    def _first_round(self) -> int:
        if self._first is None:
            if self._key is None:
                self._key = self._likely_key(*self._part.seen())
            agreed = self._key is not None and self._key in self.record.agreed
            self._first = int(agreed and not self.check)
        return self._first

    def _as_key(self, channels: int, dtype: str) -> Key:
        return self.function, channels, dtype, bool(self.exact), self.timeout is not None

    def _likely_key(self, channels: set[int], dtype: str) -> Key | None:
        """The sum that the others are at, if this rank has failed; None if they are to agree."""
        known = [k for k in self.record.agreed if k[0] == self.function]
        if self.exact is not None:
            known = [k for k in known if k[3:] == self._as_key(0, "")[3:]]
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
            self._can_tell = False
        return fit[0] if len(fit) == 1 else None

    def _new(self, sums: NDArray[Any] | None, round_: int) -> None:
        """What this rank sends in a round: zeros, if it has failed, and a word that says so."""
        prints = self._prints if self._error is None else None
        if round_ == 0:
            sent = agreement.row(prints)
            buffers = sent, np.empty((self.size, sent.size), sent.dtype)
        else:
            if round_ == 1:
                assert self._key is not None
                size = WORDS + self.record.agreed.setdefault(self._key, self._length)
                buffers = self.record.take(size, "int64" if self._key[3] else "float64")
            else:
                buffers = self.last.buffers
            buffers[0][:WORDS] = agreement.words(prints, self.rank)
            buffers[0][WORDS:] = 0 if sums is None else sums.reshape(-1)
        self._sum = OverRanks(self.record, buffers, prints, round_)

    def post(self) -> None:
        """Send it off."""
        collective: Callable[..., Any]
        if self.last.round == 0:
            collective = self.comm.Iallgather
        elif self.waits and self._key is not None and not self._key[4]:
            collective = self.comm.Allreduce  # faster
        else:
            collective = self.comm.Iallreduce
        self.last.post(collective)

    @property
    def last(self) -> OverRanks:
        """Of the last round."""
        assert self._sum is not None
        return self._sum

    def total(self) -> NDArray[Any]:
        """Of all ranks, in memory that `give_back` gives to the next call; raises on every rank, or
        on none.
        """
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

    def give_back(self) -> None:
        """Nobody needs the sums any more."""
        self.record.give_back(self.last.buffers)


def over_ranks(function: str, part: LocalPart) -> Any:
    """Results of this rank, in a call that waits for all."""
    with Exchange(function, part) as exchange, _core._DefaultMode():
        total: Any = None
        for _ in range(part.rounds):
            exchange.prepare(total)
            exchange.post()
            total = exchange.total()
        found = part.apply(total)
        exchange.give_back()
    return found


# ---- before a call has begun ----------------------------------------------------------------

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def on_all_ranks(
    part_of: Callable[[dict[str, Any]], LocalPart], function: str, *, waits: bool = True
) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """What ends a call of `function` before it has begun is told to the other ranks, too."""

    def decorated(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        names = [*signature(call).parameters]

        def part(given: tuple[Any, ...], options: dict[str, Any]) -> LocalPart:
            return part_of(dict(zip(names, given, strict=False)) | options)

        @wraps(call)
        def ends_on_all(*given: _Given.args, **options: _Given.kwargs) -> _Result:
            calls = -1  # that have ended; not known yet
            try:
                record = _told_by(part(given, options))
                calls = 0 if record is None else record.calls
                return call(*given, **options)
            except BaseException as error:
                _tell(error, calls, function, part(given, options), waits)
                raise

        return ends_on_all

    return decorated


def _told_by(part: LocalPart) -> Record | None:
    """None where no other rank can be told."""
    with suppress(CollectiveError, TypeError, ValueError):
        return record_of(as_communicator(part.over.get("comm")))
    return None


def _tell(error: BaseException, calls: int, function: str, part: LocalPart, waits: bool) -> None:
    record = _told_by(part)
    if record is None or calls not in (-1, record.calls):
        return  # it has begun and ended: they know
    if record.open is None:
        Exchange(function, part, error, waits=waits).begin()
    assert record.open is not None
    record.open.settle(error)
