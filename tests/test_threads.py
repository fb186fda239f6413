"""Threads: calls release the GIL, obey the environment, and work with other pools and forks.

test_schedule.py tests how many start, test_pool.py what happens if some cannot start.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from cases import EPSILON, LARGE, Problem, all_bits, mixed_bits, threads_used
from needs import CPUS, forks, needs_cpus, needs_fork, needs_linux, needs_openmp
from processes import CALL, IMPORTS, in_new_process, printed_by

import bn_ext
from bn_ext import _core


@contextlib.contextmanager
def beside(step):
    """Repeat `step` in another thread, which gets the GIL only when this thread releases it."""
    stop = threading.Event()

    def steps():
        while not stop.is_set():
            step()
            time.sleep(1e-5)

    thread = threading.Thread(target=steps)
    interval = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(1000)  # in seconds: the GIL is never taken away
        yield
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


#: At most this many calls, each of a few milliseconds; in one, the other thread must get a turn.
TRIES = 1000


@pytest.mark.parametrize("function", ["backward", "sums", "backward with sums"])
def test_gil_is_released(rng, function):
    """Another thread goes on counting during a call."""
    p = Problem(rng, (80_000, 40), "NXC")
    data, count = (p.src, p.diff_dst), [0]
    out = (np.empty_like(p.src), np.empty_like(p.mean), np.empty_like(p.mean))
    options = {"epsilon": EPSILON, "out": out, "num_threads": 1}
    if function == "backward with sums":
        options["sums"] = bn_ext.GradientSums(*data, p.mean)

    def call():
        before = count[0]
        if function == "sums":
            bn_ext.GradientSums(*data, p.mean, num_threads=1)
        else:
            bn_ext.batch_norm_backward(*data, *p.vectors(), **options)
        return count[0] > before

    def step():
        count[0] += 1

    with beside(step):
        assert any(call() for _ in range(TRIES))


@pytest.mark.parametrize("copied", ["diff_dst", "out"])
def test_gil_is_released_while_copying(copied):
    """During a copy, another thread changes the source or reads the destination."""
    dims = (80_000, 40)
    ones, zeros = np.ones(dims[1], np.float32), np.zeros(dims[1], np.float32)
    spread = np.ones((dims[0], 2 * dims[1]), np.float32)[:, ::2]
    src = np.ones(dims, np.float32)
    diff_dst, out = (spread, np.empty_like(src)) if copied == "diff_dst" else (src, spread)
    number, half_written = [0], [False]

    def step():
        if copied == "diff_dst":  # first and last are equal, except between these stores
            number[0] += 1
            spread[0, 0] = spread[-1, -1] = number[0] % 1000
        else:  # 7 marks what is not yet written
            half_written[0] |= bool(spread[-1, -1] == 7 and spread[0, 0] != 7)

    def call():
        if copied == "out":
            spread[0, 0] = spread[-1, -1] = 7
        bn_ext.batch_norm_backward(
            src, diff_dst, zeros, ones, epsilon=0, is_training=False, param_grads=False,
            num_threads=1, out=(out, None, None),
        )  # fmt: skip
        # With frozen statistics, variance 1 and epsilon 0, diff_src is diff_dst.
        return half_written[0] if copied == "out" else out[0, 0] != out[-1, -1]

    with beside(step):
        assert any(call() for _ in range(TRIES))


# ---- limits that others set ---------------------------------------------------------


@needs_openmp
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_omp_num_threads(count):
    code = CALL + "print(call(10**5))"
    assert in_new_process(code, OMP_NUM_THREADS=str(count)) == [str(min(count, CPUS))]


@needs_openmp
@needs_cpus
def test_threadpoolctl_at_each_call(rng):
    p = Problem(rng, LARGE, "NXC")
    before = threads_used(p)
    with threadpoolctl.threadpool_limits(1, user_api="openmp"):
        assert threads_used(p) == 1
        assert threads_used(p, num_threads=2) == 2
    assert threads_used(p) == before


@needs_openmp
@needs_cpus
@needs_linux
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
@needs_cpus
@needs_linux
def test_a_thread_on_the_callers_cpu_moves():
    """It moves to another CPU of its affinity, though all are busy; its affinity stays the same."""
    code = """
import ctypes, os, subprocess, sys, time
before = {*os.listdir("/proc/self/task")}
call(5000, num_threads=2)
allowed = os.sched_getaffinity(0)
worker, = map(int, {*os.listdir("/proc/self/task")} - before)
# While a CPU is idle, the system itself may move the thread.
spin = "import os\\nos.sched_setaffinity(0, {%d})\\nwhile True: pass"
busy = [subprocess.Popen([sys.executable, "-c", spin % cpu]) for cpu in allowed]
apart = tries = 0
try:
    while apart < 5 and tries < 20:
        cpu = ctypes.CDLL(None).sched_getcpu()
        os.sched_setaffinity(worker, {cpu})  # it will sleep there
        call(5000, num_threads=2)
        assert os.sched_getaffinity(worker) == {cpu}
        os.sched_setaffinity(worker, allowed)
        time.sleep(1.1)  # for 1 s after a long sched_yield, bn_ext moves no thread
        cpu = ctypes.CDLL(None).sched_getcpu()
        call(5000, num_threads=2)
        assert os.sched_getaffinity(worker) == os.sched_getaffinity(0) == allowed
        with open(f"/proc/self/task/{worker}/stat") as stat:
            apart += int(stat.read().rpartition(")")[2].split()[36]) != cpu
        tries += 1
finally:
    for process in busy:
        process.kill()
print(apart)
"""
    assert in_new_process(CALL + code) == ["5"]


@needs_openmp
def test_threadpoolctl_lists_the_pool():
    code = (
        "import json, threadpoolctl\n"
        "pools = threadpoolctl.threadpool_info()\n"
        "pools = [p['filepath'] for p in pools if p['user_api'] == 'openmp']\n"
        "print(json.dumps([pools, bn_ext.show_config(mode='dicts')['openmp_libraries']]))"
    )
    pools, ours = json.loads(" ".join(in_new_process(code)))
    assert ours
    assert {os.path.realpath(p) for p in pools} == {os.path.realpath(p) for p in ours}


# ---- many callers, other pools ------------------------------------------------------


def test_64_callers_with_mixed_shapes():
    wanted = {seed: mixed_bits(seed, 1) for seed in range(64)}
    together = threading.Barrier(64)

    def call(seed):
        together.wait()
        return [mixed_bits(seed, 1 + seed % 5) for _ in range(10)]

    with ThreadPoolExecutor(64) as pool:
        for seed, found in enumerate(pool.map(call, range(64))):
            assert all(bits == wanted[seed] for bits in found)


@needs_linux
@pytest.mark.parametrize("others", ["sklearn.linear_model", "torch"])
def test_next_to_another_pool(others):
    """Calls and forks work after another library has used OpenMP threads of its own."""
    pytest.importorskip(others)
    printed = in_new_process(
        CALL
        + f"""
import {others}
if "{others}" == "torch":
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
else:
    from sklearn.cluster import KMeans
    KMeans(3, n_init=1).fit(np.random.default_rng(0).random((2000, 8)))
for _ in range(20):
    call(40000, num_threads=2)
child = os.fork()
if child == 0:
    os._exit(call(40000, num_threads=2) > (1 if _core._has_openmp() else 2))
print(os.waitpid(child, 0)[1], call(40000, num_threads=2))
"""
    )
    assert printed[0] == "0"


# ---- fork -------------------------------------------------------------------------


def is_a_childs(threads):
    """May a forked child's call use this many? OpenMP's threads are lost, bn_ext's start anew."""
    return threads == 1 or not _core._has_openmp()


@needs_fork
@forks
@pytest.mark.parametrize("num_threads", [None, 4])
def test_forked_child_works(rng, num_threads):
    p = Problem(rng, LARGE, "NXC")
    want = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=2))
    child = os.fork()
    if child == 0:
        try:
            same = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=num_threads)) == want
            used = _core._last_call()["threads"]
            os._exit(0 if same and is_a_childs(used) and _core._forked() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the forked child hangs")
    assert not _core._forked()
    assert all_bits(p.run(bn_ext.batch_norm_backward, num_threads=2)) == want


@needs_linux
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_by_every_method(method):
    """The parent has run a region, whose threads a fork does not copy."""
    wanted = [mixed_bits(seed, 2) for seed in range(6)]
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert pool.map_async(mixed_bits, range(6), chunksize=1).get(timeout=120) == wanted


@needs_linux
def test_a_forkserver_that_has_imported_bn_ext():
    """Its children are forks of a process that has made no call."""
    child = """
assert _core._forked()
assert _core._fork_limits() or max(call(40_000, num_threads=2) for _ in range(50)) == 2
"""
    code = f"""
import multiprocessing
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["bn_ext"])
with context.Pool(1) as pool:
    pool.apply(exec, ({IMPORTS + CALL + child!r}, {{}}))
"""
    printed_by(code)
