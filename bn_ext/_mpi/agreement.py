"""What all ranks must have alike, in words whose sums over all ranks say whether they do.

The words travel at the head of what is summed anyway, so a call learns of another rank's failure,
or of another epsilon there, without a message of its own, and on every rank in the same call.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["WORDS", "CollectiveError", "CollectiveTimeoutError", "fingerprints", "judge", "words"]


class CollectiveError(RuntimeError):
    """Another rank failed, or has other arguments: raised on every rank, and no rank has results.

    Not a ValueError: nothing that this rank was given is known to be wrong. The rank whose own
    argument was refused raises the error of that argument instead.
    """

    __module__ = "bn_ext.mpi"


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Not all ranks have made the call in time. The communicator cannot be used any more."""

    __module__ = "bn_ext.mpi"


NAMES = (
    "call", "function", "channels", "dtype", "exact", "check", "timeout", "epsilon", "mean",
    "variance", "gamma", "beta", "relu", "is_training", "running_mean", "running_variance",
    "exponential_avg_factor", "correction",
)  # fmt: skip
_FAILURES, _FAILED_RANKS, _HIGH, _LOW, _HEAD = range(5)
#: Of every call, so that even those of different functions can be compared.
WORDS = _HEAD + 3 * len(NAMES)


def fingerprints(values: Mapping[str, Any]) -> NDArray[np.int64]:
    """A number for each of NAMES; what is missing counts as None."""
    return np.array([_fingerprint(values.get(name)) for name in NAMES], np.int64)


def _fingerprint(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return crc32(value.tobytes(), ord(value.dtype.char))
    return 0 if value is None else crc32(repr(value).encode())


def words(prints: NDArray[np.int64] | None, rank: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Those of one rank; prints is None if it has failed.

    All are whole numbers small enough for their sums to be exact in float64 as well: 24 bits for
    each half of the signature, 16 for each fingerprint, with its square and its product with the
    rank up to half a million ranks.
    """
    found = np.zeros(WORDS, dtype)
    if prints is None:
        found[_FAILURES], found[_FAILED_RANKS] = 1, rank
        return found
    found[_HIGH], found[_LOW] = _signature(prints)
    short, rest = prints & 0xFFFF, found[_HEAD:].reshape(3, -1)
    rest[0], rest[1], rest[2] = short, short * short, short * rank
    return found


def _signature(prints: NDArray[np.int64]) -> tuple[int, int]:
    digest = sha256(prints.tobytes()).digest()
    return int.from_bytes(digest[:3], "little"), int.from_bytes(digest[3:6], "little")


def judge(
    total: NDArray[Any],
    prints: NDArray[np.int64] | None,
    rank: int,
    size: int,
    values: Mapping[str, object],
) -> str:
    """What the sums of all ranks' words say is wrong; nothing if all is well."""
    failures = int(total[_FAILURES])
    if failures == 1:
        return (
            f"rank {int(total[_FAILED_RANKS])} failed, and its error says why; no rank has results"
        )
    if failures:
        return f"{failures} of {size} ranks failed, and their errors say why; no rank has results"
    assert prints is not None
    high, low = _signature(prints)
    if total[_HIGH] == size * high and total[_LOW] == size * low:
        return ""
    short = (prints & 0xFFFF).tolist()
    sums, squares, products = (
        [int(word) for word in part] for part in np.split(total[_HEAD:WORDS], 3)
    )
    found = {}
    for name, own, first, second, third in zip(NAMES, short, sums, squares, products, strict=True):
        who = _who(own, first, second, third, rank, size)
        if who:
            value = values.get(name)
            shown = "" if isinstance(value, np.ndarray) else f", which has {value!r}"
            found[name] = f"{name}: {who} rank {rank}{shown}"
    if "call" in found:
        return f"{found['call']}: some rank has made a call that others have not"
    # What vectors must be follows from these.
    sizes = [found[name] for name in ("function", "channels", "dtype") if name in found]
    return "; ".join(sizes or found.values()) or f"arguments: not all ranks have rank {rank}'s"


def _who(own: int, first: int, second: int, third: int, rank: int, size: int) -> str:
    """Who has another fingerprint, of the sums of all, of their squares, and of rank times each."""
    # Of x, what a rank's is more than this one's: one x alone if their sum squared is the sum of
    # their squares, and the same x on all other ranks if it is that times their number.
    off = first - size * own
    squares = second - 2 * own * first + size * own * own
    if squares == 0:
        return ""
    if squares == off * off:
        other = (third - own * (size * (size - 1) // 2)) // off
        return f"rank {other} has another one than"
    if (size - 1) * squares == off * off:
        return "all other ranks have another one than"
    return "several ranks have another one than"
