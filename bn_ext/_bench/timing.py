"""Times of whole calls as programs make them: behind other work, in turns with other packages'.

Idle threads of the one slow down the other, so the pair of both is timed as well, and no package
begins while threads of another still spin.
"""

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bn_ext import _core
from bn_ext._bench.peers import Call, Peer
from bn_ext._bench.problems import Case, Problem
from bn_ext._dtypes import dtype_of

#: In seconds: successive calls of one package; the longest wait for threads to sleep.
BURST, REST = 0.05, 1.0
#: The least number of bursts of each call.
TURNS = 3

SOME, SQUARE = np.ones(1_000_000, np.float32), np.ones((256, 256), np.float32)
#: What stands before each call.
WORK: dict[str, Call] = {
    "nothing": lambda: None,
    "pass": lambda: np.maximum(SOME, 0),
    "product": lambda: SQUARE @ SQUARE,
}

Row = dict[str, Any]


class Times(NamedTuple):
    """Seconds of a call, and of it with the work before it."""

    call: float
    pair: float


def burst(call: Call, before: Call) -> list[Times]:
    """The times of each of some calls."""
    found: list[Times] = []
    end = time.perf_counter() + BURST
    while not found or time.perf_counter() < end:
        first = time.perf_counter()
        before()
        start = time.perf_counter()
        call()
        done = time.perf_counter()
        found.append(Times(done - start, done - first))
    return found


def rest() -> None:
    """Wait until the process uses no CPU: before idle threads sleep, they spin for milliseconds,
    OpenBLAS's for 26, those of some OpenMP runtimes for 200.
    """
    end, spins = time.perf_counter() + REST, True
    while spins and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.02)
        spins = time.process_time() - before > 0.004


def in_turns(
    bursts: Mapping[str, Callable[[], list[Times]]], seconds: float
) -> dict[str, list[Times]]:
    """The times of each call. Bursts take turns until the time is up, the first place too."""
    found: dict[str, list[Times]] = {name: [] for name in bursts}
    order, turns, end = deque(bursts), 0, time.perf_counter() + seconds
    while turns < TURNS or time.perf_counter() < end:
        for name in order:
            rest()
            found[name] += bursts[name]()
        order.rotate(1)
        turns += 1
    return found


def row_of(case: Case, times: Mapping[str, list[Times]], used: int) -> Row:
    """The case with what was measured.

    bytes_moved: of all tensors that the operation reads and writes; threads_used: the most in a
    call of bn_ext; medians, shortest, pairs: by package, the median and the shortest time of a
    call, and the median of a pair, in seconds.
    """
    nbytes = math.prod(case.shape) * dtype_of(case.dtype).itemsize
    return {
        **asdict(case),
        "title": case.title,
        "threads": case.threads or _core.default_threads(),
        "threads_used": used,
        "bytes_moved": sum(map(len, case.ops[case.op])) * nbytes,
        "medians": {n: statistics.median(t.call for t in found) for n, found in times.items()},
        "shortest": {n: min(t.call for t in found) for n, found in times.items()},
        "pairs": {n: statistics.median(t.pair for t in found) for n, found in times.items()},
    }


def row(case: Case, peers: dict[str, Peer], seconds: float) -> Row:
    """A row with all packages in this process; one that is not installed leaves `peers`."""
    problem, bursts, used = Problem(case), {}, [0]

    def timed(call: Call) -> list[Times]:
        found = burst(call, WORK[case.behind])
        used.append(_core.last_call()["threads"])
        return found

    for name, peer in list(peers.items()):
        try:
            if call := peer(problem):
                call()
                bursts[name] = partial(timed, call)
        except ImportError:
            del peers[name]
        except RuntimeError as error:  # torch refuses it
            print(f"{name}: {error}", file=sys.stderr)
    return row_of(case, in_turns(bursts, seconds), max(used))
