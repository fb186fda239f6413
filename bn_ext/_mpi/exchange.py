"""A call on all ranks: what each has found becomes what all have, or an error on every rank."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._mpi.agreement import (
    WORDS,
    CollectiveError,
    CollectiveTimeoutError,
    fingerprints,
    judge,
    words,
)
from bn_ext._mpi.ranks import (
    Key,
    OverRanks,
    as_communicator,
    as_timeout,
    is_from_mpi,
    record_of,
)

__all__ = ["Exchange", "Part", "calls_of", "flags", "on_all_ranks", "tell"]


@dataclass
class Part:
    """What a rank has found in its data."""

    channels: int
    dtype: str
    #: Names of agreement.NAMES, and what must be the same on all ranks.
    alike: dict[str, object]
    #: What is to be summed over all ranks.
    sums: NDArray[Any]


class OfRank(Protocol):
    """A rank's part of a call (parts.py)."""

    exact: bool
    #: Has it raised, after the last sum, what every rank raises?
    refused: bool

    def find(self) -> Part:
        """What this rank sends."""

    def seen(self) -> tuple[set[int], str]:
        """If that fails, what can still be said of channels and dtype."""


class Exchange:
    """One call's collectives, in a `with` statement: one or two sums, and before the first sum of
    its kind a round in which ranks agree on what they are about to sum (round 0).

    A rank that has failed takes part in the next round, with a word that says so: else the others
    would wait for it. So a call ends on all ranks, whatever exception ends it on one.
    """

    def __init__(
        self, function: str, comm: object, part: OfRank, exact: bool | None, check: bool,
        timeout: float | None, *, rounds: int = 1, waits: bool = True,
    ) -> None:  # fmt: skip
        self.comm = as_communicator(comm)
        self.record = record_of(self.comm)
        self.function, self.rounds, self.waits = function, rounds, waits
        self.rank, self.size = self.comm.rank, self.comm.size
        #: None: this rank was given no flag.
        self.exact, self.check, self.timeout = exact, check, timeout
        self._part = part
        self._error: BaseException | None = None
        self._prints: NDArray[np.int64] | None = None
        self._alike: dict[str, Any] = {}
        self._key: Key | None = None
        self._length = 0  # of the sums
        self._can_tell = True
        self._first: int | None = None  # round, once it is known
        self._sum: OverRanks | None = None  # of the last round

    def __del__(self) -> None:
        last: OverRanks | None = getattr(self, "_sum", None)
        if last is not None:
            last.forgotten = True

    # ---- begin and end ----------------------------------------------------------------

    def __enter__(self) -> "Exchange":
        record = self.record
        if record.open is not None:  # its end was interrupted, too
            record.open.settle()
        self._alike["call"] = record.calls + 1
        if record.untold:
            self._error = CollectiveError(record.untold)
        record.open = self  # from here on others may wait for this rank
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._end()
        else:
            self.settle(error)

    def _end(self, untold: str = "") -> None:
        self.record.untold, self.record.calls = untold, self._alike["call"]
        self.record.open = None

    def settle(self, error: BaseException | None = None) -> None:
        """See that no rank waits for this one, and that all are told. Can be interrupted and called
        again.
        """
        self._error = self._error or error or CollectiveError("interrupted")
        if is_from_mpi(self._error):
            self.record.unusable = "a sum failed in MPI"
        untold, last = "", self._sum
        try:
            if not self._can_tell or self.record.unusable:
                pass  # where the others are is not known
            elif last is None or not last.posted:
                self._tell(self._first_round() if last is None else last.round)
            elif not self.waits and last.round == self.rounds:
                untold = self._as_untold()
            elif not self._wrong(last.result(self.timeout)):
                if last.round < self.rounds:
                    self._tell(last.round + 1)
                elif not self._part.refused:
                    untold = self._as_untold()
        except CollectiveTimeoutError:
            pass  # the communicator cannot be used any more
        self._end(untold)

    def _tell(self, round_: int) -> None:
        self._new(None, round_)
        self._post()
        if self.waits:
            self._last.result(self.timeout)

    def _as_untold(self) -> str:
        return (
            f"comm: on rank {self.rank} an earlier call, of {self.function}, ended by "
            f"{type(self._error).__name__} when all had been summed: other ranks may have results "
            "that this one has not. Now all ranks are told, and calls work again"
        )

    # ---- rounds -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Find what this rank sends, and see that all may sum."""
        self._part.exact = bool(self.exact)
        found = self._found(self._part.find)
        if found is not None:
            self._alike |= {
                "function": self.function, "channels": found.channels, "dtype": found.dtype,
                "exact": self.exact, "check": self.check, "timeout": self.timeout is not None,
                **found.alike,
            }  # fmt: skip
            self._prints = fingerprints(self._alike)
            self._length = found.sums.size
            self._key = self._as_key(found.channels, found.dtype)
        if self._first_round() == 0:
            self._new(None, 0)
            self._post()
            self._judged()
        self._new(found, 1)

    def again(self, find: Callable[[], Part]) -> None:
        """Find what this rank sends in a further round, of as many elements."""
        self._new(self._found(find), self._last.round + 1)

    def _found(self, find: Callable[[], Part]) -> Part | None:
        if self._error is None:
            try:
                return find()
            except BaseException as error:  # raised when the others have been told
                self._error = error
        return None

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
            raise self._error
        return fit[0] if fit else None

    def _new(self, found: Part | None, round_: int) -> None:
        """What this rank sends in a round: zeros, if it has failed, and a word that says so."""
        if round_ == 0:
            buffers = np.empty(WORDS, np.int64), np.empty(WORDS, np.int64)
        elif round_ == 1:
            assert self._key is not None
            size = WORDS + self.record.agreed.setdefault(self._key, self._length)
            buffers = self.record.take(size, "int64" if self._key[3] else "float64")
        else:
            buffers = self._last.buffers
        prints = None
        if self._error is None and self._prints is not None:
            prints = self._prints.copy()
            prints[0] += round_  # of the call
        sent = buffers[0]
        sent[:WORDS] = words(prints, self.rank, sent.dtype)
        sent[WORDS:] = 0 if found is None else found.sums.reshape(-1)
        self._sum = OverRanks(self.record, buffers, prints, round_)

    def _post(self) -> None:
        blocks = self._last.round and self.waits and self._key is not None and not self._key[4]
        self._last.post(self.comm.Allreduce if blocks else self.comm.Iallreduce)

    @property
    def _last(self) -> OverRanks:
        assert self._sum is not None
        return self._sum

    def _judged(self) -> NDArray[Any]:
        """Of all ranks; raises on every rank, or on none."""
        total = self._last.result(self.timeout)
        wrong = self._wrong(total)
        if self._error is not None:
            raise self._error
        if wrong:
            raise CollectiveError(f"{self.function}: {wrong}")
        return total[WORDS:]

    def _wrong(self, total: NDArray[Any]) -> str:
        wrong = judge(total[:WORDS], self._last.prints, self.rank, self.size, self._alike)
        if wrong.startswith("call: "):
            self.record.unusable = (
                "its ranks have not made the same calls; go on with a duplicate (comm.Dup())"
            )
        return wrong

    def sum(self) -> NDArray[Any]:
        """Of all ranks, now: in memory that `give_back` gives to the next call."""
        self._post()
        return self._judged()

    def start(self) -> None:
        """Send it off: `finish` waits."""
        self._post()

    def arrived(self) -> bool:
        """Would `finish` return at once?"""
        return self._last.arrived()

    def finish(self) -> NDArray[Any]:
        """Of all ranks, what `start` sent off."""
        return self._judged()

    def give_back(self) -> None:
        """Nobody needs the sums any more."""
        self.record.give_back(self._last.buffers)

    def lost(self, error: BaseException) -> None:
        """Sums that all ranks have became no results on this one."""
        self._error = self._error or error
        self.record.untold = self._as_untold()


def flags(exact: object, check: object, timeout: object) -> tuple[bool, bool, float | None]:
    """As they are used; refused on all ranks if they are on one."""
    return (
        _core._as_flag(exact, "exact"),
        _core._as_flag(check, "check"),
        as_timeout(timeout),
    )


def tell(
    error: BaseException, calls: int | None, part: OfRank, function: str, comm: object,
    exact: object, timeout: object, *, rounds: int = 1, waits: bool = True,
) -> None:  # fmt: skip
    """Tell the other ranks of what ended a call before it had begun; after that, they know.

    `calls` is what `calls_of` gave before; -1 if it had not yet.
    """
    now = calls_of(comm)
    if now is None or calls not in (-1, now):
        return
    open_: Exchange | None = record_of(as_communicator(comm)).open  # type: ignore[assignment]
    if open_ is not None:  # it had begun, just
        open_.settle(error)
        return
    flag, seconds = None, None
    with suppress(TypeError, ValueError):
        seconds = as_timeout(timeout)
        flag = _core._as_flag(exact, "exact")
    with (
        suppress(type(error)),
        Exchange(
            function, comm, part, flag, False, seconds, rounds=rounds, waits=waits
        ) as exchange,
    ):
        exchange._error = error
        raise error


def calls_of(comm: object) -> int | None:
    """Calls that have ended; None where no other rank could be told."""
    try:
        record = record_of(as_communicator(comm))
    except (CollectiveError, TypeError, ValueError):
        return None
    return record.calls


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def on_all_ranks(
    part_of: Callable[[dict[str, Any]], OfRank], **rounds: Any
) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """A function over ranks that ends on all whatever ends it on one, before it has begun too."""

    def decorated(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        names = [*signature(function).parameters]

        @wraps(function)
        def call(*given: _Given.args, **options: _Given.kwargs) -> _Result:
            calls: int | None = -1
            try:
                calls = calls_of(options.get("comm"))
                return function(*given, **options)
            except BaseException as error:
                part = part_of(dict(zip(names, given, strict=False)) | options)
                over = options.get("comm"), options.get("exact", True), options.get("timeout")
                tell(error, calls, part, function.__name__, *over, **rounds)
                raise

        return call

    return decorated
