"""Processes that reuse the memory of results. Run by test_kept_memory.py."""

import builtins
import threading

import numpy as np
from calls import allow_bytes, callers, in_child, main

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


def without_memory():
    """What is kept goes before a call raises MemoryError."""
    bn_ext.keep_memory(1 << 40)
    y = np.zeros((200_000, 64), np.float32)
    wide, ones = np.ones((2, 1 << 20), np.float32), np.ones(1 << 20, np.float32)
    variance = x[1] ** 2

    def keep_much_and_leave(room):
        parts = [result() for _ in range(20)]
        del parts
        assert _core.parked_bytes() > 90 << 20
        allow_bytes(room)

    keep_much_and_leave(20 << 20)
    large = bn_ext.batch_norm_inference(y, x[0], variance, epsilon=1)
    assert large.nbytes == y.nbytes
    assert _core.parked_bytes() == 0
    allow_bytes(None)
    del large
    keep_much_and_leave(6 << 20)
    grads = bn_ext.batch_norm_backward(wide, wide, ones, ones, epsilon=1)  # smaller results
    assert (grads.diff_beta == 2).all()
    assert _core.parked_bytes() == 0
    try:
        large = np.broadcast_to(y, (50, *y.shape)).reshape(-1, 64)
        bn_ext.batch_norm_inference(large, x[0], variance, epsilon=1)
    except MemoryError:
        return "refused"


if __name__ == "__main__":
    main(globals())
