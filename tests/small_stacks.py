"""Call each function in a thread with the smallest stack that Python allows. In a thread with a
larger stack, measure how deep each call writes.

Run by test_stacks.py in a process of its own, one per instruction-set level. If the stack is too
small, the process ends; the last name that it printed is the call's.
"""

import ctypes
import functools
import os
import threading
import traceback
import warnings

import members
import numpy as np
from cases import DATA_DTYPES

import bn_ext
from bn_ext import _core

SMALLEST, AMPLE = 32 << 10, 1 << 20
#: A new thread's own frames lie within this many bytes of its stack's highest address.
BEGUN = 10 << 10
#: Wide and narrow rows; long, short and medium runs.
SHAPES = [((700, 33), "NXC"), ((3000, 5), "NXC"), ((4, 3, 5000), "NCX"), ((40, 30, 7), "NCX"),
          ((6, 80, 49), "NCX")]  # fmt: skip
#: Exponents that spread so far that sums in doubles must be rounded.
SPREAD = {"float32": 40, "float64": 300, "float16": 4, "bfloat16": 40}

libc = ctypes.CDLL(None)
libc.pthread_getattr_np.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
libc.pthread_attr_getstack.argtypes = [ctypes.c_void_p] * 3


def stack_of(thread):
    """A thread's stack: its lowest address, and its size."""
    attributes = ctypes.create_string_buffer(256)
    lowest, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc.pthread_getattr_np(thread.ident, attributes)
    libc.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(size))
    libc.pthread_attr_destroy(attributes)
    return lowest.value, size.value


def started(size, steps):
    """Start a thread that takes these steps on a stack of this size."""
    threading.stack_size(size)
    thread = threading.Thread(target=lambda: [step() for step in steps])
    thread.start()
    return thread


def depth_of(call):
    """How far down its thread's stack a call writes, in bytes."""
    at_work, cleared, done, seen = (threading.Event() for _ in range(4))
    thread = started(AMPLE, [at_work.set, cleared.wait, call, done.set, seen.wait])
    at_work.wait()
    lowest, size = stack_of(thread)
    ctypes.memset(lowest, 0, size - BEGUN)  # the stack may have been used by OpenMP's threads
    cleared.set()
    done.wait()
    depth = len(ctypes.string_at(lowest, size).lstrip(b"\0"))
    seen.set()
    thread.join()
    return depth


def operands(rng, shape, layout, data):
    """A problem with values whose sums must be rounded."""

    def spread(array):
        exponents = rng.integers(-SPREAD[data], SPREAD[data], shape)
        return np.ldexp(rng.standard_normal(shape), exponents).astype(array.dtype)

    return members.laid(members.problem(rng, shape, layout, data), spread)


def more_calls(a, options):
    """Calls that copy operands, calls of a layer, and one that is refused."""
    given = {"epsilon": 1e-3, **options}
    turned = np.asfortranarray(a.diff_dst)
    statistics = a.mean, a.variance
    yield functools.partial(bn_ext.batch_norm_backward, a.src, turned, *statistics, **given)
    yield functools.partial(bn_ext.batch_norm_backward, turned, turned, *statistics, **given)
    layer = bn_ext.BatchNorm(len(a.mean), data_format=options["data_format"], dtype=a.mean.dtype)
    yield functools.partial(layer.forward, a.src)
    yield functools.partial(layer.backward, a.diff_dst)

    def refused():
        try:
            bn_ext.batch_norm_backward(a.src, a.sums, *statistics, **given)
        except (TypeError, ValueError):
            return
        raise AssertionError("the call was not refused")

    yield refused


def words_of(call):
    """The name of a call's function, and of its options."""
    given = {}
    while isinstance(call, functools.partial):
        given |= call.keywords
        call = call.func
    return f"{call.__name__}({', '.join(given)})"


def fail(args):
    """Print what a thread raises, and end the process."""
    traceback.print_exception(args.exc_value)
    os._exit(1)


def calls(num_threads):
    """Calls of each function, with every dtype, shape and option."""
    rng = np.random.default_rng(0)
    for data in DATA_DTYPES:
        for shape, layout in SHAPES:
            a = operands(rng, shape, layout, data)
            options = {"data_format": layout, "num_threads": num_threads}
            for call in (*members.calls(a, **options), *more_calls(a, options)):
                yield f"{data} {shape} {words_of(call)}", call


def main():
    threading.excepthook = fail
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    empty = depth_of(_core._has_openmp)
    assert empty < BEGUN
    deepest = 0, "nothing"
    for name, call in calls(1):
        print(name, flush=True)
        call()  # the first call imports what it needs
        started(SMALLEST, [call]).join()
        deepest = max(deepest, (depth_of(call) - empty, name))
    print("below the caller:", *deepest)


if __name__ == "__main__":
    main()
