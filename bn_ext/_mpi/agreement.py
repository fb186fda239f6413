"""Checks that arguments are the same on all ranks: by numbers sent with each sum, and by hashes.

Five numbers (words) in front of the sums are added up, too. So every rank learns in the same call,
without another message, whether a rank has failed or has other arguments. If arguments differ, the
words do not tell which arguments or ranks. Rows of hashes do. Each rank gathers a row from every
rank before the first sum with a given function, number of channels, dtype, `exact` and use of a
timeout; with ``check=True``, before the first sum of every call.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "WORDS", "CollectiveError", "CollectiveTimeoutError", "compare", "fingerprints", "judge",
    "row", "words",
]  # fmt: skip


class CollectiveError(RuntimeError):
    """Another rank failed, or ranks passed different arguments. No rank has results of this call.

    It is raised on every rank, except that a rank whose own argument was refused raises its own
    error instead. It is not a ValueError, because no argument of this rank is known to be wrong. In
    the first call with a new dtype or number of channels, this rank may hang if another rank's
    argument is refused; a `timeout` ends the wait. In `bn_ext.torch`, a rank is a process of the
    layer's group.
    """

    __module__ = "bn_ext.mpi"


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Not all ranks have made the call in time. The communicator cannot be used any more."""

    __module__ = "bn_ext.mpi"


#: What ranks compare. Fingerprints are hashes, except that of the call, which is its number.
NAMES = (
    "call", "function", "channels", "dtype", "exact", "check", "timeout", "epsilon", "mean",
    "variance", "gamma", "beta", "relu", "is_training", "running_mean", "running_variance",
    "exponential_avg_factor", "correction", "whole_gradients",
)  # fmt: skip
_FAILURES, _FAILED_RANKS, _CALLS, _HIGH, _LOW, WORDS = range(6)
_ANOTHER_CALL = "some rank has made a call that others have not"


def fingerprints(values: Mapping[str, Any]) -> NDArray[np.int64]:
    """A number for each of NAMES; what is missing counts as None."""
    call = values.get("call", 0)
    return np.array([call, *(_fingerprint(values.get(name)) for name in NAMES[1:])], np.int64)


def _fingerprint(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.ndim:
        return crc32(value.tobytes(), ord(value.dtype.char))
    if not isinstance(value, str | None):
        value = float(value) + 0.0  # -0.0 becomes 0.0
    return 0 if value is None else crc32(repr(value).encode())


def _signature(prints: NDArray[np.int64]) -> tuple[int, int]:
    digest = sha256(prints.tobytes()).digest()
    return int.from_bytes(digest[:3], "little"), int.from_bytes(digest[3:6], "little")


def words(prints: NDArray[np.int64] | None, rank: int) -> list[int]:
    """The words of a rank, which are summed over all ranks; prints is None if the rank has failed.

    A signature has two halves, so that their sums over half a billion ranks are exact in float64.
    """
    if prints is None:
        return [1, rank, 0, 0, 0]
    return [0, 0, int(prints[0]), *_signature(prints)]


def judge(
    total: NDArray[Any],
    prints: NDArray[np.int64] | None,
    rank: int,
    size: int,
    values: Mapping[str, object],
) -> str:
    """What is wrong, according to the sums of all ranks' words; an empty string if nothing is."""
    if total[_FAILURES]:
        return _failed(int(total[_FAILURES]), int(total[_FAILED_RANKS]), size)
    if total.tolist() == [size * word for word in words(prints, rank)]:
        return ""
    assert prints is not None
    if total[_CALLS] != size * prints[0]:
        number = f"rank {rank} is in call number {values['call']}, others are not"
        return f"call: {number}: {_ANOTHER_CALL}"
    *names, last = (name for name in NAMES[1:] if name in values)
    return (
        f"ranks differ in {', '.join(names)} or {last}; pass check=True on all ranks to learn "
        "which rank, and in what"
    )


def row(prints: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The row of a rank: whether it has failed and, if it has not, its fingerprints."""
    return np.array([1] + [0] * len(NAMES) if prints is None else [0, *prints], np.int64)


def compare(rows: NDArray[np.int64], rank: int, values: Mapping[str, object]) -> str:
    """What is wrong, according to the rows of all ranks; an empty string if nothing is."""
    size, failed = len(rows), np.flatnonzero(rows[:, 0])
    if failed.size:
        return _failed(failed.size, int(failed[0]), size)
    found = {}
    for name, column in zip(NAMES, rows[:, 1:].T, strict=True):
        others = np.flatnonzero(column != column[rank]).tolist()
        if others:
            value = values.get(name)
            shown = "" if isinstance(value, np.ndarray) else f", which has {value!r}"
            found[name] = f"{name}: {_who(others, size)} from rank {rank}{shown}"
    if "call" in found:
        return f"{found['call']}: {_ANOTHER_CALL}"
    # Show only these, if any differ: the vectors may then differ too.
    sizes = [found[name] for name in ("function", "channels", "dtype") if name in found]
    return "; ".join(sizes or found.values())


def _failed(count: int, rank: int, size: int) -> str:
    if count == 1:
        return f"rank {rank} failed, and its error says why; no rank has results"
    return f"{count} of {size} ranks failed, and their errors say why; no rank has results"


def _who(others: list[int], size: int) -> str:
    if len(others) == 1:
        return f"rank {others[0]} differs"
    if len(others) == size - 1:
        return "all other ranks differ"
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""
    return f"ranks {', '.join(map(str, others[:8]))}{more} differ"
