"""A call whose first, second, third, ... allocation fails: MemoryError, and nothing written.

If no error is raised, the bits are right. No call keeps a block. A call that is refused anyway, of
each row of test_refused.py, raises MemoryError or its own error. What Python computes leaves the
caller's floating-point mode and np.seterr as they were.
Run by test_memory.py with fail_malloc.c preloaded:

    LD_PRELOAD=fail_malloc.so PYTHONMALLOC=malloc python tests/programs/no_memory.py
"""

import ctypes
import functools
import sys
import traceback
from pathlib import Path

import numpy as np

import bn_ext

sys.path += [str(Path(__file__).parent.parent / "shared"), str(Path(__file__).parent.parent)]
import fp_modes
import members
import refusals
import test_refused
from cases import DATA_DTYPES, placed, shapes

library = ctypes.CDLL(None)
library.fail_after.argtypes = [ctypes.c_long]
library.blocks_held.restype = ctypes.c_long
SHAPES = [*shapes("6x5 300x40 0x5", "NXC"), *shapes("3x4x50 9x3x900 2x5x0", "NCX")]
MOST = 2000
#: A leak keeps a block in each of CALLS calls, in each of ROUNDS rounds. The interpreter's own
#: caches keep some too, but only until they are full.
CALLS, ROUNDS = 10, 10


def attempt(call, n, errors=MemoryError):
    """(did the n-th allocation happen and fail, the result or None, the exception or None)."""
    result = raised = None
    try:
        library.fail_after(n)
        result = call()
    except errors as error:
        raised = error.with_traceback(None)  # a traceback holds this frame, and so the error
    while True:
        try:
            failed = bool(library.has_failed())
            library.fail_after(-1)
            return failed, result, raised
        except (MemoryError, ctypes.ArgumentError):
            continue  # the n-th allocation was in one of these calls


def bits(result):
    """The bits of all arrays and numbers of a result, which may be just one."""
    several = result if isinstance(result, (list, tuple)) else (getattr(result, "_sums", result),)
    return [np.asarray(a).tobytes() for a in several]


def check(call, out):
    """Fail each allocation in turn until the call has no more; return how many there are."""

    def fill():
        for array in out:
            array[:] = 0xA5

    fill()
    wanted = bits(call()) + bits(out)
    for n in range(MOST):
        fill()
        failed, result, raised = attempt(call, n)
        if raised is None:
            # Python recovers from some failures by itself; then the call has done its work.
            results = bits(result) + bits(out)
            assert results == wanted, f"allocation {n}: other bits and no error"
        else:
            assert failed, f"no allocation failed, but {raised!r}"
            untouched = all((array == 0xA5).all() for array in out)
            assert untouched, f"allocation {n}: outputs written, then {raised!r}"
        if not failed:
            return n
    raise AssertionError(f"more than {MOST} allocations")


def check_freed(call, allocations):
    """A call leaves as many blocks as before, whether the n-th allocation fails or none does."""
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


def operands(shape, layout, data):
    """Problems in three ways: dense; not contiguous, so that operands are read and written through
    copies; and with axes in another order.
    """
    for copied in (np.copy, lambda a: placed(a, "spread"), np.asfortranarray):
        a = members.problem(np.random.default_rng([*shape]), shape, layout, data)
        for name in ("diff_dst", "src_1", "diff_diff_src", "result"):
            setattr(a, name, copied(getattr(a, name)))
        if copied is np.asfortranarray:
            a.src = copied(a.src)
        yield a


def written_by(call):
    """The memory of all that a call may write to."""
    options = {}
    while isinstance(call, functools.partial):
        options, call = {**call.keywords, **options}, call.func
    out = options.get("out")
    arrays = [*(out if isinstance(out, tuple) else [out])]
    arrays += [options.get(name) for name in ("running_mean", "running_variance")]
    if call in (bn_ext.batch_norm_training, bn_ext.batch_norm_inference):  # others read it
        arrays.append(options.get("workspace"))
    owners = [a if a.base is None else a.base for a in arrays if a is not None]
    return [owner.ravel(order="K").view(np.uint8) for owner in owners]


def calls(a, layout):
    """Each call, with `out` and without, but those whose arithmetic is NumPy's: its frexp leaks."""
    for call in members.calls(a, data_format=layout, num_threads=1):
        if call.func is bn_ext.batch_norm_statistics_backward:
            continue
        yield call
        if "out" in call.keywords:
            yield functools.partial(call, out=None)


def refused_calls():
    """A call of each row, in one of the functions that refuse it."""
    p = members.problem(np.random.default_rng(0), (6, 4, 5), "NXC")
    rows = {id(call.values[1]): call.values for call in test_refused.CALLS}
    for name, row in rows.values():
        texts = [a for a in row.change.values() if type(a) in (np.ndarray, np.timedelta64)]
        if any(a.dtype.kind in "Um" for a in texts):  # whose repr in NumPy ends the process
            continue
        operands = refusals.operands_of(p, name, **row.change)
        yield functools.partial(members.function_of(name), **operands), row


def is_callers(call):
    """Does a method of an argument raise the error? CPython 3.11 to 3.13 may then lose it."""
    try:
        call()
    except Exception as error:
        frame, _ = [*traceback.walk_tb(error.__traceback__)][-1]
    return frame.f_code.co_filename == test_refused.__file__


def check_refused(call, row):
    kinds = row.kind if isinstance(row.kind, tuple) else (row.kind,)
    arrays = list(refusals.arrays_in(call.keywords.values()))
    before = bits(arrays)
    errors = (*kinds, TypeError, ValueError, MemoryError)
    if is_callers(call):  # which makes, too, what NumPy makes once
        errors += (SystemError,)
    for n in range(MOST):
        failed, _, raised = attempt(call, n, errors)
        assert raised is not None, f"allocation {n}: not refused"
        assert bits(arrays) == before, f"allocation {n}: written, then {raised!r}"
        if not failed:
            assert isinstance(raised, kinds), f"no allocation failed, but {raised!r}"
            return n
    raise AssertionError(f"more than {MOST} allocations")


def computed_in_python():
    """Calls whose arithmetic, or a part of it, is in Python."""
    src = np.float32([[1, 2], [3, 5]])
    part, layer = bn_ext.Statistics(src), bn_ext.BatchNorm(2, exponential_avg_factor=None)
    layer.forward(src)
    ones = np.ones(2)
    yield lambda: part + part
    yield lambda: part.variance
    yield lambda: bn_ext.batch_norm_inference(src, [0.0, 1], [1.0, 1], epsilon=0)
    yield lambda: bn_ext.batch_norm_inference(src, [0.0, "a"], [1.0, 1], epsilon=0)
    yield lambda: bn_ext.batch_norm_statistics_backward(ones, ones, ones, epsilon=0)
    yield lambda: layer.forward(src)
    yield lambda: layer.backward(src, layer.saved, accumulate=True)


def check_modes(call):
    """The caller's modes are in effect after each attempt."""
    before = np.geterr()
    for n in range(MOST):
        with fp_modes.fp_mode("up"):
            failed, *_ = attempt(call, n, Exception)
            mode = fp_modes.fp_mode_in_effect()
        assert (mode, np.geterr()) == ("up", before), f"allocation {n}: the mode is changed"
        if not failed:
            return n
    raise AssertionError(f"more than {MOST} allocations")


def main():
    refusals_made = [check_refused(call, row) for call, row in refused_calls()]
    assert len(refusals_made) > 300
    in_python = [check_modes(call) for call in computed_in_python()]
    counts = []
    for shape, layout in SHAPES:
        for data in DATA_DTYPES:
            for a in operands(shape, layout, data):
                for call in calls(a, layout):
                    counts.append(check(call, written_by(call)))
                    if data == "float32":
                        check_freed(call, counts[-1])
    assert min(counts) >= 2  # any call makes two; fewer would mean that failures go unseen
    for allocations in (refusals_made, in_python, counts):
        print(f"{sum(allocations)} allocations failed in {len(allocations)} calls")


if __name__ == "__main__":
    main()
