"""Times of whole calls as programs make them: each package in a process of its own, its calls
behind other work. The median counts; the shortest shows the noise.
"""

import math
import multiprocessing
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bn_ext import _core
from bn_ext._bench.peers import Call, Peer, bn_ext_call
from bn_ext._bench.problems import OPS, Behind, Case, Problem, dtype_of

__all__ = ["Package", "Row", "Skipped", "burst", "in_turns", "packages_of", "row", "work"]

#: In seconds. The pause outlasts the spinning of idle threads, OpenBLAS's 26 ms included.
PAUSE, BURST = 0.03, 0.05
#: The least number of bursts of each call.
TURNS = 3

Row = dict[str, Any]
#: Called for a peer that cannot be timed, with its name and the reason.
Skipped = Callable[[str, str], None]

SPAWN = multiprocessing.get_context("spawn")


class RefusedError(Exception):
    """A package does not take a problem."""


def work(behind: Behind) -> Call:
    """What stands before each call."""
    some, square = np.ones(1_000_000, np.float32), np.ones((256, 256), np.float32)
    calls: dict[Behind, Call] = {
        "nothing": lambda: None,
        "pass": lambda: np.maximum(some, 0),
        "product": lambda: square @ square,
    }
    return calls[behind]


def burst(call: Call, before: Call) -> list[float]:
    """Seconds of each of some calls."""
    found: list[float] = []
    end = time.perf_counter() + BURST
    while not found or time.perf_counter() < end:
        before()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def in_turns(
    bursts: Mapping[str, Callable[[], list[float]]], seconds: float
) -> dict[str, list[float]]:
    """Seconds of each call. Bursts take turns until the time is up, the first place too."""
    found: dict[str, list[float]] = {name: [] for name in bursts}
    order, turns, end = deque(bursts), 0, time.perf_counter() + seconds
    while turns < TURNS or time.perf_counter() < end:
        for name in order:
            time.sleep(PAUSE)
            found[name] += bursts[name]()
        order.rotate(1)
        turns += 1
    return found


def serve(asked: Connection, peer: Peer) -> None:
    """The process of a package: makes the call of a case, and bursts of it when it gets None."""
    problem: Problem | None = None
    call: Call | None = None
    before: Call = work("nothing")
    with suppress(EOFError, ConnectionError):
        while True:
            case = asked.recv()
            reply: object
            try:
                if case is None:
                    assert call is not None
                    reply = burst(call, before), _core._last_call()["threads"]
                else:
                    problem = call = None  # frees the previous one
                    problem, before = Problem(case), work(case.behind)
                    call = peer(problem)
                    if call:
                        call()
                    reply = call is not None
            except (ImportError, MemoryError) as error:
                reply = error
            except Exception as error:  # a refusal is a result, not our failure
                reply = RefusedError(type(error).__name__)
            asked.send(reply)


class Package:
    """A package in a process of its own, which waits between its turns."""

    def __init__(self, peer: Peer):
        self.ours, self.theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(self.theirs, peer), daemon=True)
        #: The most threads that took part in a call to bn_ext.
        self.used = 0

    def start(self) -> None:
        """Start the process, deaf to the terminal's Ctrl-C: this process ends it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        self.theirs.close()

    def ask(self, case: Case | None) -> Any:
        if self.process.pid is None:
            self.start()
        try:
            self.ours.send(case)
            reply = self.ours.recv()
        except (EOFError, ConnectionError):
            raise ChildProcessError("the process of a package ended") from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def takes(self, case: Case) -> bool:
        """Whether it has the operation; if so, its call was made once."""
        self.used = 0
        found: bool = self.ask(case)
        return found

    def burst(self) -> list[float]:
        found: list[float]
        found, threads = self.ask(None)
        self.used = max(self.used, threads)
        return found

    def end(self) -> None:
        self.ours.close()
        if self.process.pid is not None:
            self.process.join(1)
            self.process.terminate()


def packages_of(peers: Mapping[str, Peer]) -> dict[str, Package]:
    """bn_ext and these peers; each has to be ended."""
    return {name: Package(peer) for name, peer in {"bn_ext": bn_ext_call, **peers}.items()}


def row(case: Case, packages: dict[str, Package], seconds: float, skipped: Skipped) -> Row:
    """The case with what was measured.

    bytes: of one tensor; bytes_moved: of all tensors that the operation reads and writes;
    threads_used: the most that took part in a call of bn_ext; medians, shortest: the median and
    the shortest time of each name, in seconds.

    A peer that is not installed, or whose process ended, is removed from `packages`.
    """
    bursts = {}
    for name, package in list(packages.items()):
        try:
            if package.takes(case):
                bursts[name] = package.burst
        except (ImportError, RefusedError, ChildProcessError, MemoryError) as error:
            if name == "bn_ext":
                raise
            if isinstance(error, ImportError):
                skipped(name, f"not installed ({error})")
            else:
                what = str(error) or type(error).__name__
                skipped(name, f"{case.dtype} {case.layout} {case.shape}: {what}")
            if not isinstance(error, RefusedError | MemoryError):
                packages.pop(name).end()
    times = in_turns(bursts, seconds)
    nbytes = math.prod(case.shape) * dtype_of(case.dtype).itemsize
    return {
        **asdict(case),
        "threads": case.threads or _core._default_threads(),
        "threads_used": packages["bn_ext"].used,
        "bytes": nbytes,
        "bytes_moved": sum(map(len, OPS[case.op])) * nbytes,
        "medians": {name: statistics.median(found) for name, found in times.items()},
        "shortest": {name: min(found) for name, found in times.items()},
    }
