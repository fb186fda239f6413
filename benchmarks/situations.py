"""What a table of quiet calls does not show: other work around a call, tiny and huge ones."""

import functools
import math
import os
import signal
import statistics
import subprocess
import sys
import time

import numpy as np

import bn_ext
from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.problems import Problem
from bn_ext._bench.timing import PAUSE, shortest


def times(call, n, pause=PAUSE):
    found = []
    for _ in range(n):
        time.sleep(pause)
        before = time.perf_counter()
        call()
        found.append(time.perf_counter() - before)
    return found


def tiny(threads, seconds):
    """Microseconds of a whole call on (1, 8)."""
    found = {}
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        p = Problem((1, 8), "NXC", dtype)
        call = functools.partial(
            bn_ext.batch_norm_backward,
            p.src,
            p.diff_dst,
            *p.vectors,
            epsilon=p.epsilon,
        )
        found[f"{dtype}, new outputs"] = (shortest(call, seconds), "s")
        found[f"{dtype}, out="] = (shortest(functools.partial(call, out=p.out), seconds), "s")
    return found


def pipeline(threads, seconds):
    """A matrix product by NumPy, then a gradient: the pair over the sum of the two apart."""
    p = Problem((8, 64, 28, 28), "NXC", "float32")
    gradient = bn_ext_call(p, threads)
    w = np.ones((256, 256), np.float32)

    def product():
        return w @ w

    def both():
        product()
        gradient()

    pair, apart = math.inf, dict.fromkeys((product, gradient), math.inf)
    end = time.perf_counter() + 4 * seconds
    while time.perf_counter() < end:
        time.sleep(PAUSE)
        pair = min(pair, shortest(both, 0.02))
        for call in apart:
            time.sleep(PAUSE)
            apart[call] = min(apart[call], shortest(call, 0.02))
    return {"matrix product, then gradient: time / both alone": (pair / sum(apart.values()), "x")}


def neighbour(threads, seconds):
    """Median time of a gradient next to a process that keeps one core busy."""
    p = Problem((8, 64, 28, 28), "NXC", "float32")
    gradient = bn_ext_call(p, threads)
    n = max(50, int(seconds / (PAUSE + 1e-4)))
    quiet = statistics.median(times(gradient, n, 0.001))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        disturbed = statistics.median(times(gradient, n, 0.001))
    finally:
        busy.send_signal(signal.SIGKILL)
        busy.wait()
    return {"next to one busy process: time / time without it (medians)": (disturbed / quiet, "x")}


def fresh(threads, seconds):
    """Fresh outputs: what they add, next to what touching new pages costs NumPy."""
    p = Problem((50, 256, 56, 56), "NXC", "float32")
    given = bn_ext_call(p, threads)

    def new():
        return bn_ext.batch_norm_backward(
            p.src, p.diff_dst, *p.vectors, epsilon=p.epsilon, num_threads=threads
        )

    def touch():
        np.empty_like(p.src).reshape(-1).view(np.uint8)[::4096] = 0

    best = dict.fromkeys((given, new, touch), math.inf)
    for _ in range(max(5, int(4 * seconds))):
        for call in best:
            best[call] = min(best[call], *times(call, 2))
    return {
        "new outputs: extra time / NumPy's time to touch as many new pages": (
            (best[new] - best[given]) / best[touch],
            "x",
        )
    }


def growth(threads, seconds):
    """Nanoseconds per element from 64 MiB to 4 GiB per tensor, as far as memory goes."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found, size = {}, 64 << 20
    while size <= 4 << 30 and 3.5 * size < free:
        p = Problem((size // 1024, 256), "NXC", "float32")
        call = bn_ext_call(p, threads)
        call()
        best = min(times(call, max(3, int(2e8 * seconds * 8 / size))))
        found[f"(N, 256) float32, {size >> 20} MiB per tensor"] = (best / p.src.size, "s/element")
        del p, call
        size *= 2
    return found


ALL = {"tiny": tiny, "pipeline": pipeline, "neighbour": neighbour, "fresh": fresh, "growth": growth}


def shown(value, unit):
    if unit == "s":
        return f"{1e6 * value:.2f} us"
    if unit == "s/element":
        return f"{1e9 * value:.3f} ns per element"
    return f"{value:.2f}"
