"""A call whose first, second, third, ... allocation fails: MemoryError, and nothing written.

Where no error is raised the bits are the right ones, and no call keeps a block.
Run by test_memory.py with fail_malloc.c preloaded:

    LD_PRELOAD=fail_malloc.so PYTHONMALLOC=malloc python tests/no_memory.py
"""

import ctypes
import functools

import numpy as np
from cases import DATA_DTYPES, Problem

import bn_ext

library = ctypes.CDLL(None)
library.fail_after.argtypes = [ctypes.c_long]
library.blocks_held.restype = ctypes.c_long
SHAPES = [((6, 5), "NXC"), ((300, 40), "NXC"), ((3, 4, 50), "NCX"), ((9, 3, 900), "NCX"),
          ((0, 5), "NXC"), ((2, 5, 0), "NCX")]  # fmt: skip
MOST = 2000
#: A leak keeps a block in each of so many calls, in each of so many rounds of them; the
#: interpreter's own caches keep some too, until they are full.
CALLS, ROUNDS = 10, 10


def attempt(call, n):
    """(did the n-th allocation happen and fail, the result or None, the exception or None)."""
    result = raised = None
    try:
        library.fail_after(n)
        result = call()
    except MemoryError as error:
        raised = error.with_traceback(None)  # which holds this frame, and so itself
    while True:
        try:
            failed = bool(library.has_failed())
            library.fail_after(-1)
            return failed, result, raised
        except (MemoryError, ctypes.ArgumentError):
            continue  # the n-th was one of these


def bits(result):
    """Of all arrays of a result, which may be one array."""
    arrays = (result,) if isinstance(result, np.ndarray) else result
    return [a.tobytes() for a in arrays]


def check(call, out):
    """Fail each allocation in turn until the call has no more; how many there are."""
    wanted = bits(call())
    for n in range(MOST):
        for array in out:
            array.view(np.uint8)[:] = 0xA5
        failed, result, raised = attempt(call, n)
        if raised is None:
            # Python survives some failures by itself; then the call has done its work.
            assert bits(result) == wanted, f"allocation {n}: other bits and no error"
        else:
            assert failed, f"nothing failed, and yet {raised!r}"
            untouched = all((array.view(np.uint8) == 0xA5).all() for array in out)
            assert untouched, f"allocation {n}: outputs written, then {raised!r}"
        if not failed:
            return n
    raise AssertionError(f"more than {MOST} allocations")


def check_freed(call, allocations):
    """Whether the n-th allocation fails or none does: afterwards as many blocks as before."""
    for n in (*range(allocations), -1):
        for _ in range(ROUNDS):
            before = library.blocks_held()
            for _ in range(CALLS):
                attempt(call, n)
            kept = library.blocks_held() - before
            if kept < CALLS:
                break
        else:
            raise AssertionError(f"allocation {n} fails: {kept} blocks kept by {CALLS} calls")


def calls(shape, layout, data):
    """(a call, the memory it may write to): each function, with copies and without."""
    p = Problem(np.random.default_rng([*shape]), shape, layout, data)
    src, diff_dst, vectors = p.src, p.diff_dst, p.vectors()
    channels = len(p.mean)
    # Every other element: these go through copies.
    wide = np.empty((*shape[:-1], 2 * shape[-1]), src.dtype)
    spread = np.zeros_like(wide)[..., ::2]
    spread[...] = diff_dst
    memory = tuple(p.outs())
    wide_memory = (wide, *memory[1:])
    options = {"data_format": layout, "num_threads": 1}
    sums = np.ones((2, channels))
    apply = (bn_ext.batch_norm_backward_apply, (*vectors, sums, max(src.size // channels, 1)))
    backward = (bn_ext.batch_norm_backward, vectors)
    turned = [np.asfortranarray(a) for a in (src, diff_dst)]
    for x, dy in ((src, diff_dst), (src, spread), turned):
        yield functools.partial(bn_ext.batch_norm_backward_reduce, x, dy, vectors[0], **options), ()
        for function, more in (backward, apply):
            yield (
                functools.partial(
                    function, x, dy, *more, epsilon=1e-3, relu=True, dst=dy, out=memory, **options
                ),
                [a.reshape(-1) for a in memory],
            )
            for is_training in (True, False):
                for out, touched in (
                    (None, ()),
                    (memory, memory),
                    ((wide[..., ::2], *memory[1:]), wide_memory),
                ):
                    yield functools.partial(
                        function, x, dy, *more,
                        epsilon=1e-3, is_training=is_training, out=out, **options,
                    ), [a.reshape(-1) for a in touched]  # fmt: skip


def main():
    counts = []
    for shape, layout in SHAPES:
        for data in DATA_DTYPES:
            for call, touched in calls(shape, layout, data):
                counts.append(check(call, touched))
                if data == "float32":
                    check_freed(call, counts[-1])
    assert min(counts) >= 2  # working space and the team's, at the least
    print(f"{sum(counts)} allocations failed in {len(counts)} calls")


if __name__ == "__main__":
    main()
