"""Times of whole calls as programs make them: each package in a process of its own, its calls
behind other work. The median counts; the shortest shows the noise. Idle threads of the one slow
down the other, so the pair of both is timed as well.
"""

import math
import multiprocessing
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from bn_ext import _core
from bn_ext._bench.peers import Call, Peer, bn_ext_call
from bn_ext._bench.problems import OPS, Behind, Case, Problem
from bn_ext._dtypes import dtype_of

__all__ = [
    "Package", "Row", "Skipped", "Times", "burst", "in_turns", "packages_of", "row", "work",
]  # fmt: skip

#: In seconds. The pause outlasts the spinning of idle threads: OpenBLAS's 26 ms, and longer ones of
#: other packages. After a pause of 0.03, a product took 16 ms in some packages' processes.
PAUSE, BURST = 0.1, 0.05
#: The least number of bursts of each call.
TURNS = 3

Row = dict[str, Any]


class Times(NamedTuple):
    """Seconds of a call, and of it with the work before it."""

    call: float
    pair: float


#: Called for a peer that cannot be timed, with its name and the reason.
Skipped = Callable[[str, str], None]


def work(behind: Behind) -> Call:
    """What stands before each call."""
    some, square = np.ones(1_000_000, np.float32), np.ones((256, 256), np.float32)
    calls: dict[Behind, Call] = {
        "nothing": lambda: None,
        "pass": lambda: np.maximum(some, 0),
        "product": lambda: square @ square,
    }
    return calls[behind]


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


def in_turns(
    bursts: Mapping[str, Callable[[], list[Times]]], seconds: float
) -> dict[str, list[Times]]:
    """The times of each call. Bursts take turns until the time is up, the first place too."""
    found: dict[str, list[Times]] = {name: [] for name in bursts}
    order, turns, end = deque(bursts), 0, time.perf_counter() + seconds
    while turns < TURNS or time.perf_counter() < end:
        for name in order:
            time.sleep(PAUSE)
            found[name] += bursts[name]()
        order.rotate(1)
        turns += 1
    return found


#: In the process of a package: the problem, the call, and what stands before it.
HERE: list[Any] = []


def prepare(peer: Peer, case: Case) -> tuple[bool, int]:
    """In the process of a package: make its call, once. Return whether the package has the
    operation, and the threads in a call to bn_ext.
    """
    HERE.clear()  # frees the previous problem
    problem = Problem(case)
    call = peer(problem)
    if call:
        call()
    HERE[:] = problem, call, work(case.behind)
    return call is not None, _core.last_call()["threads"]


def burst_here() -> tuple[list[Times], int]:
    """In the process of a package: some calls, and the threads in a call to bn_ext."""
    _, call, before = HERE
    return burst(call, before), _core.last_call()["threads"]


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Hold back a Ctrl-C until the end. Processes that start here are deaf to it."""
    came: list[object] = []
    handler = signal.signal(signal.SIGINT, lambda *given: came.append(given))
    if sys.platform != "win32":
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class Package:
    """A package in a process of its own, which waits between its turns."""

    def __init__(self, peer: Peer):
        self.peer = peer
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        #: The most threads that took part in a call to bn_ext.
        self.used = 0

    def ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        with ctrl_c_waits():
            found = self.process.submit(function, *arguments)
        try:
            return found.result()
        except BrokenExecutor:
            raise ChildProcessError("the process of a package ended") from None

    def takes(self, case: Case) -> bool:
        """Whether it has the operation; then its call was made once."""
        found: bool
        found, self.used = self.ask(prepare, self.peer, case)
        return found

    def burst(self) -> list[Times]:
        found: list[Times]
        found, threads = self.ask(burst_here)
        self.used = max(self.used, threads)
        return found

    def end(self) -> None:
        self.process.shutdown(cancel_futures=True)


@contextmanager
def packages_of(peers: Mapping[str, Peer]) -> Iterator[dict[str, Package]]:
    """bn_ext and these peers. At the end, no process of theirs is left."""
    found = {name: Package(peer) for name, peer in {"bn_ext": bn_ext_call, **peers}.items()}
    try:
        yield found
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()  # a call may take seconds
        raise
    finally:
        for package in found.values():
            package.end()


def row(case: Case, packages: dict[str, Package], seconds: float, skipped: Skipped) -> Row:
    """The case with what was measured.

    bytes: of one tensor; bytes_moved: of all tensors that the operation reads and writes;
    threads_used: the most that took part in a call of bn_ext; medians, shortest, pairs: of each
    name, the median and the shortest time of a call, and the median of a pair, in seconds.

    A peer that is not installed, or whose process ended, is removed from `packages`.
    """
    bursts = {}
    for name, package in list(packages.items()):
        try:
            if package.takes(case):
                bursts[name] = package.burst
        except Exception as error:  # a peer's refusal is a result, not our failure
            if name == "bn_ext":
                raise
            if isinstance(error, ImportError):
                skipped(name, f"not installed ({error})")
            else:
                what = type(error).__name__
                skipped(name, f"{case.dtype} {case.layout} {case.shape}: {what}")
            if isinstance(error, ImportError | ChildProcessError):
                packages.pop(name).end()
    times = in_turns(bursts, seconds)
    nbytes = math.prod(case.shape) * dtype_of(case.dtype).itemsize
    return {
        **asdict(case),
        "threads": case.threads or _core.default_threads(),
        "threads_used": packages["bn_ext"].used,
        "bytes": nbytes,
        "bytes_moved": sum(map(len, OPS[case.op])) * nbytes,
        "medians": {n: statistics.median(t.call for t in found) for n, found in times.items()},
        "shortest": {n: min(t.call for t in found) for n, found in times.items()},
        "pairs": {n: statistics.median(t.pair for t in found) for n, found in times.items()},
    }
