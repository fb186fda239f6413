"""Processes that reuse the memory of results. Run by test_kept_memory.py."""

import builtins
import threading

import numpy as np
from calls import callers, in_child, main

import bn_ext
from bn_ext import _core

x = np.random.default_rng(0).standard_normal((80_000, 64), np.float32)


def result():
    """A result of 20 MB."""
    return bn_ext.batch_norm_inference(x, x[0], x[1] ** 2, epsilon=1)


def default():
    """The default limit, after another one was set."""
    bn_ext.keep_memory(5)
    bn_ext.keep_memory()
    return bn_ext.keep_memory()


def child():
    """Does a child keep nothing of its parent's, and change none of its results?"""
    right = result().tobytes()
    alive = result()
    result()
    kept = _core.parked_bytes()

    def overwrite():
        ours = _core.parked_bytes()
        a = result()
        a[...] = -1
        alive[...] = -2
        return ours == 0

    return (
        kept > 0
        and in_child(overwrite)
        and _core.parked_bytes() == kept
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
