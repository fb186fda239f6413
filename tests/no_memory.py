"""A call whose first, second, third, ... allocation fails: MemoryError, and nothing written.

Run by test_memory.py with fail_malloc.c preloaded:

    LD_PRELOAD=fail_malloc.so PYTHONMALLOC=malloc python tests/no_memory.py
"""

import ctypes
import functools

import ml_dtypes
import numpy as np

import bn_ext

library = ctypes.CDLL(None)
library.fail_after.argtypes = [ctypes.c_long]
SHAPES = [((6, 5), "NXC"), ((300, 40), "NXC"), ((3, 4, 50), "NCX"), ((9, 3, 900), "NCX")]
MOST = 2000


def attempt(call, n):
    """(did the n-th allocation happen and fail, the exception or None)."""
    raised = None
    try:
        library.fail_after(n)
        call()
    except MemoryError as error:
        raised = error
    while True:
        try:
            failed = bool(library.has_failed())
            library.fail_after(-1)
            return failed, raised
        except (MemoryError, ctypes.ArgumentError):
            continue  # the n-th was one of these


def check(call, out):
    """Fail each allocation in turn until the call has no more; how many there are."""
    for n in range(MOST):
        for array in out:
            array.reshape(-1).view(np.uint8)[:] = 0xA5
        failed, raised = attempt(call, n)
        if not failed:
            assert raised is None
            return n
        untouched = all((array.reshape(-1).view(np.uint8) == 0xA5).all() for array in out)
        # Python survives some failures by itself; then the call has done its work.
        assert raised is None or untouched, f"allocation {n}: outputs written, then {raised!r}"
    raise AssertionError(f"more than {MOST} allocations")


def main():
    counts = []
    for shape, layout in SHAPES:
        for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
            number = np.float64 if dtype == np.float64 else np.float32
            channels = shape[-1] if layout == "NXC" else shape[1]
            src = np.ones(shape, dtype)
            vectors = [np.ones(channels, number) for _ in range(3)]
            out = (np.empty_like(src), *(np.empty(channels, number) for _ in range(2)))
            gaps = np.ones((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]  # goes through a copy
            for diff_dst in (src, gaps):
                for given in (out, None):
                    call = functools.partial(
                        bn_ext.batch_norm_backward,
                        *(src, diff_dst, *vectors),
                        **{"epsilon": 1e-3, "data_format": layout, "out": given, "num_threads": 1},
                    )
                    call()
                    counts.append(check(call, out))
    assert min(counts) >= 2  # working space and the team's, at the least
    print(f"{sum(counts)} allocations failed in {len(counts)} calls")


if __name__ == "__main__":
    main()
