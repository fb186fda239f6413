"""Times of whole calls, interleaved. The shortest is the result; the median shows the noise."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from bn_ext import _core
from bn_ext._bench.peers import Call, Peer, bn_ext_call
from bn_ext._bench.problems import NUMPYS, OPS, Layout, Op, Problem, Shape

__all__ = [
    "Case",
    "Row",
    "Skipped",
    "call_seconds",
    "cases_of",
    "least_seconds",
    "markdown",
    "row",
]

# In seconds. The pause outlasts the spinning of another OpenMP pool.
PAUSE, BURST = 0.01, 0.005
#: Bytes. With smaller tensors, calls are short and easily disturbed, so they get more rounds.
SHORT = 8 << 20


@dataclass(frozen=True)
class Case:
    """One problem to be timed; shape as (N, C, ...)."""

    shape: Shape
    layout: Layout
    dtype: str
    threads: int
    op: Op = "backward"
    set: str = ""


def cases_of(
    shapes: Iterable[tuple[str, Shape]],
    ops: Iterable[Op],
    threads: Iterable[int],
    dtypes: Iterable[str],
    layouts: Sequence[Layout],
) -> list[Case]:
    """Every combination; shapes as (name of the set, shape). (N, C) is the same in all layouts."""
    return [
        Case(shape, layout, dtype, count, op, name)
        for op, count, dtype, layout, (name, shape) in product(
            ops, threads, dtypes, layouts, shapes
        )
        if len(shape) > 2 or layout == layouts[0]
    ]


Row = dict[str, Any]
#: Called for a peer that cannot be timed, with its name and the reason.
Skipped = Callable[[str, str], None]


def call_seconds(
    calls: Mapping[str, Call],
    seconds: float,
    after: Callable[[str], object] = lambda name: None,
) -> dict[str, list[float]]:
    """Seconds of every single call. Bursts take turns until the time is up, at least five rounds.

    After each burst, `after` gets the name of the call.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    start, rounds = time.perf_counter(), 0
    while rounds < 5 or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            time.sleep(PAUSE)
            # A burst: its first calls wake the threads, raise the clock rate and warm the cache.
            end = time.perf_counter() + BURST
            while (before := time.perf_counter()) < end:
                call()
                found[name].append(time.perf_counter() - before)
            after(name)
        rounds += 1
    return found


def least_seconds(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Seconds of the shortest run of each call."""
    return {name: min(times) for name, times in call_seconds(calls, seconds).items()}


def row(
    case: Case,
    seconds: float,
    skipped: Skipped,
    peers: dict[str, Peer],
    more: Callable[[Problem, int], Mapping[str, Call]] = lambda problem, threads: {},
) -> Row:
    """The case with what was measured: bn_ext, `more` and peers.

    bytes: of one tensor; bytes_moved: of all tensors that the operation reads and writes;
    threads_used: the most that took part in a call of bn_ext; seconds: the shortest time of each
    name; medians: the median time of each, in seconds.

    A peer that is not installed is removed from `peers`.
    """
    problem = Problem(case.shape, case.layout, case.dtype, NUMPYS, case.op)
    calls = {"bn_ext": bn_ext_call(problem, case.threads)}
    calls.update(more(problem, case.threads))
    for name, peer in list(peers.items()):
        try:
            call = peer(problem, case.threads)
            if call:
                call()
                calls[name] = call
        except ImportError as error:
            skipped(name, f"not installed ({error})")
            del peers[name]
        except Exception as error:  # a peer's refusal is a result, not our failure
            skipped(name, f"{case.dtype} {case.layout} {case.shape}: {type(error).__name__}")
    used = 0

    def see_threads(name: str) -> None:
        nonlocal used
        if name == "bn_ext":
            used = max(used, _core._last_call()["threads"])

    nbytes = problem.src.nbytes
    times = call_seconds(calls, seconds if nbytes > SHORT else 3 * seconds, see_threads)
    return {
        **asdict(case),
        "bytes": nbytes,
        "bytes_moved": len(OPS[case.op]) * nbytes,
        "threads_used": used,
        "seconds": {name: min(found) for name, found in times.items()},
        "medians": {name: statistics.median(found) for name, found in times.items()},
    }


def markdown(heading: list[str], lines: list[list[Any]]) -> str:
    """A table in Markdown."""
    return "\n".join(
        ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
        + ["| " + " | ".join(map(str, cells)) + " |" for cells in lines]
    )
