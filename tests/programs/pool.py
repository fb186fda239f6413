"""Processes whose threads are limited, or that fork. Run by test_pool.py."""

import itertools
import os
import threading

import calls
import numpy as np
from calls import allow, allow_bytes, call, callers, in_child, in_thread, libgomp, main, region

import bn_ext
from bn_ext import _core


def limited(limit, *threads):
    problem_first()
    allow(limit)
    return [call(4000, num_threads=k) for k in threads]


def problem_first():
    call(4000, num_threads=1)


def grown(before, limit, *threads):
    """As `limited`, but the pool has `before` threads by then."""
    call(4000, num_threads=before)
    return limited(limit, *threads)


def little_address_space():
    problem_first()
    allow_bytes(40 << 20)
    return [call(4000, num_threads=32) for _ in range(2)]


def started_together(limit):
    together, threads = threading.Barrier(4), []

    def work():
        together.wait()
        threads.extend(call(4000, num_threads=k) for k in (4, 2, 4, 3, 4))

    problem_first()
    with callers(work, 3):
        allow(limit)
        work()
    return threads


def failed():
    """Calls without memory for what they need besides results; then the threads of another."""
    src = np.ones((1, 2**22), np.float32)
    ones, out = src[0], (np.empty_like(src), np.empty_like(src[0]), np.empty_like(src[0]))
    errors = []
    allow_bytes(8 << 20)
    for _ in range(3):
        try:
            bn_ext.batch_norm_backward(src, src, ones, ones, epsilon=1, out=out)
        except MemoryError as error:
            errors.append(str(error))
    allow_bytes(None)

    def used():
        bn_ext.GradientSums(src.reshape(-1, 64), src.reshape(-1, 64), np.ones(64, np.float32))
        return _core.last_call()["threads"]

    return errors, in_thread(used)


def shrunk():
    """Threads of calls of which the last cannot start any, after one that needed fewer."""
    used = [call(4000, num_threads=4), call(4000, num_threads=2)]
    return used + limited(0, 4)


def around_a_region():
    """Threads of calls before, in and after a region of others, which cannot start any."""
    used = []
    libgomp().omp_set_max_active_levels(2)

    def use():
        used.append(call(4000, num_threads=4))

    use()
    allow(0)
    region(1, use)
    use()
    return used


#: Wide and narrow rows; long, short and medium runs.
SHAPES = [((700, 33), "NXC"), ((3000, 5), "NXC")]
SHAPES += [((4, 3, 5000), "NCX"), ((40, 30, 7), "NCX"), ((6, 80, 49), "NCX")]


def every_function():
    """The most threads that a call used, of each function and with every dtype."""
    import members
    from cases import DATA_DTYPES

    np.seterr(all="ignore")
    rng, used = np.random.default_rng(0), 0
    for data, (shape, layout) in itertools.product(DATA_DTYPES, SHAPES):
        p = members.problem(rng, shape, layout, data)
        for function in members.calls(p, num_threads=4):
            function()
            used = max(used, _core.last_call()["threads"])
    return used


def together():
    return call(4000, num_threads=3) == 3


def alone():
    config = bn_ext.show_config("dicts")
    because = config["default_threads"], config["threads_set_by"].partition(" (")[0]
    return because == (1, "the fork of this process") and call(4000, num_threads=3) == 1


def without_a_call(others):
    """Children of a process that has made no call, whether others had a pool or not."""

    def family():
        return in_child(together) and together() and in_thread(together) and in_child(alone)

    def fork():
        if others:
            region(2, lambda: None)
        return in_child(family)

    return fork(), in_thread(fork)


def with_a_team(start):
    """Children of a process that has made a call; then a call of the parent."""

    def fork():
        results.append(in_child(lambda: alone() and in_child(alone) and in_thread(alone)))

    results = []
    if start == "after a call":
        together()
        fork()
        in_thread(fork)
    elif start == "after a thread's call":
        in_thread(together)
        fork()
    else:
        region(1, fork)
    return results, together()


def thread_that_forks(solo):
    def work():
        together()
        if solo:  # a team of one, which leaves the pool as it is
            libgomp().omp_set_max_active_levels(0)
            assert call(4000, num_threads=4) == 1
            libgomp().omp_set_max_active_levels(1)
        child = os.fork()
        if child == 0 and not alone():
            os._exit(1)
        return child  # the child's only thread ends here

    return calls.succeeds(in_thread(work)), together()


def within_others_calls():
    call(40_000, num_threads=4)
    with callers(lambda: call(40_000, num_threads=4), 3, forever=True):
        right = [in_child(lambda: call(4000, num_threads=4) == 1) for _ in range(30)]
    return right, call(40_000, num_threads=4)


if __name__ == "__main__":
    main(globals())
