"""Processes with bn_ext's own threads. Run by test_workers.py."""

import os

import numpy as np
from calls import allow, call, callers, in_child, main, most, tasks

import bn_ext
from bn_ext import _core


def shared():
    """The process's threads after a call, and the most while six more callers make calls."""
    seen = []

    def work():
        for _ in range(30):
            call(40_000, num_threads=4)
            seen.append(len(tasks()))

    call(40_000, num_threads=4)
    before = len(tasks())
    with callers(work, 6):
        pass
    return before, max(seen)


def forked():
    """The most threads of calls before a fork and after it; does the child get as many?"""
    before = most(2)
    return before, in_child(lambda: most(2) == 2), most(2)


def forked_within_calls():
    """Does a child get all CPUs by default, whose parent was in calls of other threads?"""
    x, v = np.ones((10_000, 64), np.float32), np.ones(64, np.float32)

    def use(num_threads=None):
        bn_ext.batch_norm_backward(x, x, v, v, epsilon=1, num_threads=num_threads)
        return _core._last_call()["threads"]

    with callers(lambda: use(2), 4, forever=True):
        return in_child(lambda: max(use() for _ in range(50)) == 2)


def limited(limit):
    call(4000, num_threads=1)
    allow(limit)
    return [call(4000, num_threads=k) for k in (8, 8, 2)]


def blocked():
    """The signals that each worker blocks, as bits."""
    call(40_000, num_threads=3)
    found = []
    for task in tasks() - {os.getpid()}:
        with open(f"/proc/self/task/{task}/status") as lines:
            found += [int(line.split()[1], 16) for line in lines if line.startswith("SigBlk")]
    return found


def by_default():
    return _core._default_threads()


if __name__ == "__main__":
    main(globals())
