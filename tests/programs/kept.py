"""Processes that reuse the memory of results. Run by test_kept_memory.py."""

import builtins
import os
import re
import threading
from pathlib import Path

import numpy as np
from calls import callers, in_child, main

import bn_ext
from bn_ext import _core

if os.name == "posix":
    import resource

x = np.random.default_rng(0).standard_normal((80_000, 64), np.float32)


def result():
    return bn_ext.batch_norm_inference(x, x[0], x[1] ** 2, epsilon=1)


def gives_way(limit, taker):
    """How much is kept after a call for which memory was too short, but for what was kept."""
    big, row = np.ones((1 << 19, 64), np.float32), np.ones((1, 1 << 20), np.float32)
    v, vectors, own = big[0].copy(), (row + 1, row + 2), {"epsilon": 1, "num_threads": 1}
    calls = {
        "a result": lambda: bn_ext.batch_norm_inference(big, v, v, **own),
        "a small result": lambda: bn_ext.batch_norm_inference(row, row[0], row[0], **own),
        "vectors": lambda: bn_ext.batch_norm_training(row, out=(row, None, None), **own),
        "sums": lambda: bn_ext.Statistics(row, num_threads=1),
        "exact sums": lambda: bn_ext.Statistics(row[:, : 1 << 17], exact=True, num_threads=1),
        "memory of a call": lambda: bn_ext.batch_norm_training(
            row, out=(row, *(a[0] for a in vectors)), **own
        ),
        "bits of a gate": lambda: bn_ext.batch_norm_backward(
            big, big, v, v, relu=True, dst=big, out=(big, None, None), **own
        ),
    }
    bn_ext.keep_memory(1 << 40)
    results = [result() for _ in range(10)]
    del results
    kept = _core.kept_bytes()
    field = {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}[limit]
    used = 1024 * int(re.search(rf"{field}:\s*([0-9]+)", Path("/proc/self/status").read_text())[1])
    resource.setrlimit(getattr(resource, limit), (used + (1 << 20), resource.RLIM_INFINITY))
    returned = calls[taker]()
    return [kept > 0, _core.kept_bytes(), returned is None]


def child():
    """Does a child keep nothing of its parent's, and change none of its results?"""
    right = result().tobytes()
    alive = result()
    result()
    kept = _core.kept_bytes()

    def overwrite():
        kept_here = _core.kept_bytes()
        a = result()
        a[...] = -1
        alive[...] = -2
        return kept_here == 0

    return (
        kept > 0
        and in_child(overwrite)
        and _core.kept_bytes() == kept
        and alive.tobytes() == result().tobytes() == right
    )


def many_threads():
    """How many of the results that threads get are wrong, or written by others meanwhile."""
    right, wrong = result().tobytes(), []

    def work():
        k = threading.get_ident() % 1000
        for _ in range(12):
            a = result()
            if a.tobytes() != right:
                wrong.append("bits")
            a[...] = k
            if not (a == k).all():
                wrong.append("written")

    with callers(work, 8):
        pass
    return wrong


def at_exit(alive):
    """Leave the interpreter with results alive, also in a thread."""

    def work():
        while True:
            result()

    threading.Thread(target=work, daemon=True).start()
    if alive:
        builtins.alive = [result() for _ in range(3)]


if __name__ == "__main__":
    main(globals())
