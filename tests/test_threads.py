"""Threads: how many a call gets; calls release the GIL and work beside other pools.

test_pool.py tests what happens if some cannot start, and forks.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import threadpoolctl
from cases import LARGE, Problem, all_bits, are_expected, in_thread, mixed_bits, threads_used
from needs import CPUS, needs_cpus, needs_libgomp, needs_openmp
from processes import run

import bn_ext
from bn_ext import _core


@contextlib.contextmanager
def counting():
    """Count in another thread, which gets the GIL only when this thread releases it."""
    stop, count = threading.Event(), [0]

    def work():
        while not stop.is_set():
            count[0] += 1
            time.sleep(1e-5)

    interval, thread = sys.getswitchinterval(), threading.Thread(target=work)
    thread.start()
    try:
        sys.setswitchinterval(1000)  # in seconds: the GIL is never taken away
        yield count
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


@pytest.mark.parametrize("case", ["plain", "sums", "with sums", "copied diff_dst", "copied out"])
def test_gil_is_released(rng, case):
    p = Problem(rng, (80_000, 40), "NXC")
    spread = np.ones((80_000, 80), np.float32)[:, ::2]  # not contiguous
    p.diff_dst = spread if case == "copied diff_dst" else p.diff_dst
    make_sums = partial(bn_ext.GradientSums, p.src, p.diff_dst, p.mean, num_threads=1)
    options = {"out": (spread if case == "copied out" else np.empty_like(p.src), None, None)}
    options |= {"sums": make_sums()} if case == "with sums" else {}

    def call():
        before = count[0]
        make_sums() if case == "sums" else p.run(
            bn_ext.batch_norm_backward, num_threads=1, **options
        )
        return count[0] > before

    with counting() as count:
        assert any(call() for _ in range(1000))


@pytest.mark.parametrize(
    ("shape", "data_format", "gradient"),
    [
        ((100, 64), "NXC", 1),
        ((1_245, 49), "NXC", 1),
        ((1_255, 49), "NXC", 1),  # and a double backward on two
        ((1_995, 49), "NXC", 1),
        ((2_005, 49), "NXC", 2),
        ((1, 10_900), "NXC", 1),  # a channel counts as eight more elements
        ((1, 11_000), "NXC", 2),
        ((1, 980, 6, 6), "NCX", 1),  # and with channels first, as 64
        ((1, 990, 6, 6), "NCX", 2),
        ((8_030, 49), "NXC", 8),
        ((24_576, 49), "NXC", 24),
    ],
)
def test_threads_that_a_call_is_worth(rng, shape, data_format, gradient):
    """By the rule of docs/howto/threads.md."""
    p = Problem(rng, shape, data_format)
    options = {"epsilon": 1, "data_format": data_format}
    exact = {"data_format": data_format, "exact": True}
    calls = [
        (5, partial(bn_ext.batch_norm_backward, *p.arguments().values(), **options)),
        (2, partial(bn_ext.batch_norm_inference, p.src, p.mean, p.variance, **options)),
        (8, partial(bn_ext.batch_norm_double_backward, *p.arguments().values(), p.diff_dst,
                    **options)),
        (5, partial(bn_ext.Statistics, p.src, **exact)),
        (5, partial(bn_ext.GradientSums, p.src, p.diff_dst, p.mean, **exact)),
    ]  # fmt: skip

    def last_call_of(call):
        call()
        return _core.last_call()

    of_channel = {"NXC": 8, "NCX": 64}[data_format]
    for passes, call in calls:
        worth = passes * p.src.size / 5 + of_channel * len(p.mean)
        threads = max(1, worth // 49152)
        assert passes != 5 or threads == gradient
        last, most = in_thread(partial(last_call_of, call)), _core.default_threads()
        assert are_expected(last["threads"], min(most, threads), last["tasks"])


@needs_openmp
@pytest.mark.parametrize("count", ["1", "2", "1000"])
def test_omp_num_threads(count):
    assert run("threads", "used", 10**5, OMP_NUM_THREADS=count) == min(int(count), CPUS)


@needs_openmp
def test_every_part_of_a_call_has_the_threads_that_it_asks_for():
    for call, (alone, three) in run("threads", "started", OMP_NUM_THREADS="4").items():
        assert alone == 0, call
        assert (three > 0) == ("statistics_backward" not in call), call  # once per channel: alone


@needs_openmp
@needs_cpus
def test_threadpoolctl_at_each_call(rng):
    p = Problem(rng, LARGE, "NXC")

    def used(**options):
        p.run(bn_ext.batch_norm_backward, **options)
        return _core.last_call()["threads"]

    def limited():  # the limit is one of the calling thread
        with threadpoolctl.threadpool_limits(1, user_api="openmp"):
            return used(), used(num_threads=2), _core.default_threads()

    assert in_thread(limited) == (1, 2, 1)
    assert threads_used(p) == min(_core.default_threads(), 26) > 1


@needs_libgomp  # LLVM's runtime asks once
@needs_cpus
def test_affinity_at_each_call(rng):
    p = Problem(rng, LARGE, "NXC")
    before, allowed = threads_used(p), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads_used(p) == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert threads_used(p) == before


@needs_openmp
def test_threadpoolctl_lists_the_pool():
    known, reported = run("threads", "pools")
    assert reported
    assert known == reported


def test_64_callers_with_mixed_shapes():
    wanted = {seed: mixed_bits(seed, 1) for seed in range(64)}
    together = threading.Barrier(64)

    def call(seed):
        together.wait()
        return [mixed_bits(seed, 1 + seed % 5) for _ in range(10)]

    with ThreadPoolExecutor(64) as pool:
        for seed, results in enumerate(pool.map(call, range(64))):
            assert all(bits == wanted[seed] for bits in results)


@needs_openmp
@needs_cpus
def test_many_callers_share_the_processors(rng):
    """By default, overlapping calls share the CPUs; with num_threads, each gets that many."""
    p = Problem(rng, (400_000, 8), "NXC")
    want = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=1))
    together = threading.Barrier(16)
    used = []

    def calls(num_threads):
        together.wait()
        for _ in range(4):
            assert all_bits(p.run(bn_ext.batch_norm_backward, num_threads=num_threads)) == want
            used.append(_core.last_call()["threads"])

    def used_by(num_threads):
        used.clear()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(calls, [num_threads] * 16))
        assert len(used) == 64
        return used

    assert min(used_by(None)) < _core.default_threads()
    assert set(used_by(2)) == {2}
    # A call that is alone again has all threads.
    assert threads_used(p) == min(_core.default_threads(), p.src.size // 49152)


@needs_cpus
def test_two_callers_have_all_the_processors(rng):
    """If a team shrank whenever another call began, it would later have to start threads anew."""
    most = _core.default_threads()
    small = Problem(rng, (16 * most * 49152, 1), "NXC")
    # 2^30 elements, in runs that overlap: this call takes far longer than the small ones.
    memory, mean = np.ones(1 << 21, np.float32), np.ones(2, np.float32)
    large = np.lib.stride_tricks.as_strided(memory, (1 << 19, 2, 1 << 10), (4, 4, 4))
    used = []
    with ThreadPoolExecutor(1) as pool:
        options = {"data_format": "NCX", "num_threads": 2}
        future = pool.submit(bn_ext.GradientSums, large, large, mean, **options)
        # Whether the other call has begun or not, or has ended, there is no third.
        while not used or not future.done():
            used.append(threads_used(small))
    assert future.result().count == 1 << 29
    assert set(used) == {most}


@pytest.mark.parametrize("others", ["sklearn.cluster", "torch"])
def test_next_to_another_pool(others):
    pytest.importorskip(others)
    assert run("threads", "beside", others)[0]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_by_every_method(method):
    """The parent has run a region, whose threads a fork does not copy."""
    wanted = [mixed_bits(seed, 2) for seed in range(6)]
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert pool.map_async(mixed_bits, range(6), chunksize=1).get(timeout=120) == wanted


@needs_openmp
def test_a_forkserver_that_has_imported_bn_ext():
    """Its children are forks of a process that has made no call."""
    used, limited = run("threads", "of_a_forkserver")
    assert limited or used == 2
