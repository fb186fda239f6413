"""Times of whole calls, interleaved; the least of each counts."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from bn_ext._bench.peers import Call, Mode, Peer, bn_ext_call
from bn_ext._bench.problems import Layout, Problem, Shape, dims

__all__ = ["Case", "Row", "Skipped", "cases_of", "least_seconds", "markdown", "row"]

# Longer than another OpenMP pool spins before it sleeps.
PAUSE, BURST = 0.01, 0.005
#: Bytes of a tensor below which calls are short, and easily disturbed: more rounds.
SHORT = 8 << 20


@dataclass(frozen=True)
class Case:
    """One problem to be timed; shape as (N, C, ...)."""

    shape: Shape
    layout: Layout
    dtype: str
    threads: int
    mode: Mode = "training"
    set: str = ""

    def exists(self) -> bool:
        """Has the shape this layout?"""
        return dims(self.shape, self.layout) is not None


def cases_of(
    shapes: Iterable[tuple[str, Shape]],
    modes: Iterable[Mode],
    threads: Iterable[int],
    dtypes: Iterable[str],
    layouts: Iterable[Layout],
) -> list[Case]:
    """Every combination that exists; shapes as (name of the set, shape)."""
    cases = (
        Case(shape, layout, dtype, count, mode, name)
        for mode, count, dtype, layout, (name, shape) in product(
            modes, threads, dtypes, layouts, shapes
        )
    )
    return [case for case in cases if case.exists()]


Row = dict[str, Any]
#: What to say of a peer that cannot be timed: its name, and why.
Skipped = Callable[[str, str], None]


def least_seconds(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Least seconds of each call, in turn until the time is up, five rounds at least."""
    best = dict.fromkeys(calls, math.inf)
    start, rounds = time.perf_counter(), 0
    while rounds < 5 or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            time.sleep(PAUSE)
            # A burst: its first calls wake threads and clock, and warm the cache.
            end = time.perf_counter() + BURST
            while (before := time.perf_counter()) < end:
                call()
                best[name] = min(best[name], time.perf_counter() - before)
        rounds += 1
    return best


def row(
    case: Case,
    seconds: float,
    skipped: Skipped,
    peers: dict[str, Peer],
    more: Callable[[Problem, int], Mapping[str, Call]] = lambda problem, threads: {},
) -> Row:
    """The case, the bytes of a tensor, and least seconds of bn_ext, of `more`, and of peers.

    A peer that is not installed is taken out of `peers`.
    """
    problem = Problem(case.shape, case.layout, case.dtype)
    calls = {"bn_ext": bn_ext_call(problem, case.threads, case.mode)}
    calls.update(more(problem, case.threads))
    for name, peer in list(peers.items()):
        try:
            call = peer(problem, case.threads, case.mode)
            if call:
                call()
                calls[name] = call
        except ImportError as error:
            skipped(name, f"not installed ({error})")
            del peers[name]
        except Exception as error:  # a peer's refusal is a result, not our failure
            skipped(name, f"{case.dtype} {case.layout} {case.shape}: {type(error).__name__}")
    nbytes = problem.src.nbytes
    best = least_seconds(calls, seconds if nbytes > SHORT else 3 * seconds)
    return {**asdict(case), "bytes": nbytes, "seconds": best}


def markdown(heading: list[str], lines: list[list[Any]]) -> str:
    """A table."""
    return "\n".join(
        ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
        + ["| " + " | ".join(map(str, cells)) + " |" for cells in lines]
    )
