"""Rows as in `bn-ext bench`, but with each package in a process of its own."""

import multiprocessing
import signal
import sys
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace

from bn_ext import _core
from bn_ext._bench import WORK, burst, in_turns, row_of, wait_until_idle
from bn_ext._cli.bench import cases_of
from bn_ext._cli.usage import UsageError

from .peers import PEERS, bn_ext_call
from .problems import SETS, Case, Problem

#: In the process of a package: the problem, the call, and what stands before it.
HERE = []


def prepare(peer, case):
    """In the process of a package: make its call, once. Return whether the package has the
    operation.
    """
    HERE.clear()  # frees the previous problem
    problem = Problem(case)
    call = peer(problem)
    if call:
        call()
    HERE[:] = problem, call, WORK[case.behind]
    return call is not None


def burst_here():
    """In the process of a package: some calls, and the threads in a call to bn_ext."""
    _, call, before = HERE
    times = burst(call, before)
    wait_until_idle()
    return times, _core.last_call()["threads"]


class Package:
    """A package in a process of its own, which waits between its turns."""

    def __init__(self, peer):
        self.peer = peer
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what starts now is deaf to Ctrl-C
        self.process.submit(int)
        signal.signal(signal.SIGINT, handler)
        #: The most threads that took part in a call to bn_ext.
        self.used = 0

    def ask(self, function, *arguments):
        try:
            return self.process.submit(function, *arguments).result()
        except BrokenExecutor:
            raise ChildProcessError("the process of a package ended") from None

    def takes(self, case):
        """Whether it has the operation; then its call was made once."""
        self.used = 0
        return self.ask(prepare, self.peer, case)

    def burst(self):
        times, threads = self.ask(burst_here)
        self.used = max(self.used, threads)
        return times

    def end(self):
        self.process.shutdown(cancel_futures=True)


@contextmanager
def packages_of(peers):
    """bn_ext and these peers. At the end, no process of theirs is left."""
    packages = {name: Package(peer) for name, peer in {"bn_ext": bn_ext_call, **peers}.items()}
    try:
        yield packages
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()  # a call may take seconds
        raise
    finally:
        for package in packages.values():
            package.end()


def row(case, packages, seconds, skipped):
    """The case with what was measured. A peer that is not installed, or whose process ended, is
    removed from `packages`; `skipped(name, why)` is told of each that cannot be timed.
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
                kind = type(error).__name__
                skipped(name, f"{case.dtype} {case.layout} {case.shape}: {kind}")
            if isinstance(error, ImportError | ChildProcessError):
                packages.pop(name).end()
    return row_of(case, in_turns(bursts, seconds), packages["bn_ext"].used)


def chosen_cases(options):
    """The cases of the shapes and sets that are asked for, by kind."""
    named = {name: SETS[name] for name in options.sets or []}
    if options.shapes:
        named[""] = options.shapes
    kinds = {}
    for name, shapes in (named or {"resnet": SETS["resnet"]}).items():
        for case in cases_of(options, shapes):
            kinds.setdefault(replace(case, shape=()), []).append(Case(**asdict(case), set=name))
    return [case for cases in kinds.values() for case in cases]


def chosen_peers(options):
    return {name: PEERS[name] for name in (PEERS if options.peers is None else options.peers)}


def measured(options, cases, packages):
    """The rows, one by one. A peer that is not installed is an error only if it was asked for."""
    told = set()

    def skipped(name, why):
        if why.startswith("not installed"):
            if options.peers is not None:
                raise UsageError(f"--peers: {name} is {why}")
        elif (name, why) not in told:
            told.add((name, why))
            print(f"{name}: {why}", file=sys.stderr)

    for number, case in enumerate(cases, 1):
        print(f"{number} of {len(cases)}: {case}", file=sys.stderr)
        yield row(case, packages, options.seconds, skipped)
