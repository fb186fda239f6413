"""Threads: how many, when, without the GIL, and after a fork."""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from cases import DTYPES, EPSILON, Problem, all_bits, mixed_bits

import bn_ext
from bn_ext import _core

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
LARGE = (5000, 4, 64)  # 1.3 M elements: worth 19 threads

needs_openmp = pytest.mark.skipif(not _core._has_openmp(), reason="built without OpenMP")
needs_cpus = pytest.mark.skipif(CPUS < 2, reason="one CPU")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc or affinity")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def threads_used(p, **options):
    p.run(bn_ext.batch_norm_backward, **options)
    return _core._last_call()[0]


def in_new_process(code, **environment):
    """What a fresh interpreter prints."""
    env = {**os.environ, **environment}
    code = "import numpy as np, bn_ext, os\nfrom bn_ext import _core\n" + code
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


CALL = """
def call(n, **options):
    x = np.ones((n, 64), np.float32)
    v = np.ones(64, np.float32)
    bn_ext.batch_norm_backward(x, x, v, v, epsilon=1e-3, **options)
    return _core._last_call()[0]
def threads():
    return len(os.listdir("/proc/self/task"))
"""


@contextlib.contextmanager
def beside(step):
    """Do step again and again in another thread, which has the GIL only when this one lets go."""
    stop = threading.Event()

    def steps():
        while not stop.is_set():
            step()
            time.sleep(1e-5)

    thread = threading.Thread(target=steps)
    interval = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(1000)  # seconds: it is never taken away
        yield
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


#: Calls of some milliseconds, in one of which at the latest the other thread gets its turn.
TRIES = 1000


@pytest.mark.parametrize("function", ["backward", "reduce", "apply"])
def test_gil_is_released(rng, function):
    """A thread that counts goes on counting during a call."""
    p = Problem(rng, (80_000, 40), "NXC")
    data, count = (p.src, p.diff_dst), [0]
    out = (np.empty_like(p.src), np.empty_like(p.mean), np.empty_like(p.mean))
    options = {"epsilon": EPSILON, "out": out, "num_threads": 1}
    sums = bn_ext.batch_norm_backward_reduce(*data, p.mean)

    def call():
        before = count[0]
        if function == "backward":
            bn_ext.batch_norm_backward(*data, *p.vectors(), **options)
        elif function == "reduce":
            bn_ext.batch_norm_backward_reduce(*data, p.mean, num_threads=1)
        else:
            bn_ext.batch_norm_backward_apply(*data, *p.vectors(), sums, len(p.src), **options)
        return count[0] > before

    def step():
        count[0] += 1

    with beside(step):
        assert any(call() for _ in range(TRIES))


@pytest.mark.parametrize("copied", ["diff_dst", "out"])
def test_gil_is_released_while_copying(copied):
    """A thread changes what is copied, or reads what is copied to, during the copy."""
    dims = (80_000, 40)
    ones, zeros = np.ones(dims[1], np.float32), np.zeros(dims[1], np.float32)
    spread = np.ones((dims[0], 2 * dims[1]), np.float32)[:, ::2]
    src = np.ones(dims, np.float32)
    diff_dst, out = (spread, np.empty_like(src)) if copied == "diff_dst" else (src, spread)
    number, half_written = [0], [False]

    def step():
        if copied == "diff_dst":  # first and last are equal, except in the midst of this
            number[0] += 1
            spread[0, 0] = spread[-1, -1] = number[0] % 1000
        else:  # 7 marks what is not written
            half_written[0] |= bool(spread[-1, -1] == 7 and spread[0, 0] != 7)

    def call():
        if copied == "out":
            spread[0, 0] = spread[-1, -1] = 7
        bn_ext.batch_norm_backward(
            src, diff_dst, zeros, ones, epsilon=0, is_training=False, param_grads=False,
            num_threads=1, out=(out, None, None),
        )  # fmt: skip
        # With such statistics diff_src is diff_dst.
        return half_written[0] if copied == "out" else out[0, 0] != out[-1, -1]

    with beside(step):
        assert any(call() for _ in range(TRIES))


#: How a process gets at the OpenMP runtime that bn_ext has loaded, and what a thread computes.
GOMP = f"""
import ctypes, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
paths = bn_ext.show_config(mode="dicts")["openmp_libraries"]
gomp = ctypes.CDLL(next((p for p in paths if "libgomp" in p), None))
if not hasattr(gomp, "GOMP_parallel"):
    print("no libgomp")
    sys.exit()
def region(threads, function):
    gomp.GOMP_parallel(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function), None, threads, 0)
"""


def with_libgomp(code, **environment):
    printed = in_new_process(GOMP + code, **environment)
    if printed == ["no", "libgomp"]:
        pytest.skip("not linked against libgomp")
    return printed


@needs_openmp
@needs_linux
def test_pool_that_another_made_in_another_mode():
    """Threads keep the floating-point mode they started in, but run our calls in the default."""
    code = """
from test_same_bits import fp_mode, fp_mode_in_effect
with fp_mode("flush"):
    region(4, lambda data: None)
dy, v = np.full((300_000, 8), 1e-40, np.float32), np.ones(8, np.float32)
for training in (True, False):
    one, four = (
        bn_ext.batch_norm_backward(
            dy, dy, v, v, epsilon=0, is_training=training, num_threads=k, out=None
        ).diff_src.tobytes()
        for k in (1, 4)
    )
    print(one == four, any(one), _core._last_call()[0])
modes = {}
def look(data):
    modes[threading.get_ident()] = fp_mode_in_effect()
region(4, look)
here = modes.pop(threading.get_ident())
print(here, len(modes), *set(modes.values()))
"""
    printed = with_libgomp(code)
    assert printed[:6] == ["True", "True", "4"] * 2
    assert printed[6:] == ["default", "3", "flush"]


#: Problems whose work is shared out in each of the three orders; more shares than threads come.
FEWER = """
problems = [((8, 64, 30), (0, 0)), ((40_000, 4, 1), (0, 0)), ((8, 64, 300), (4096, 4096))]
def most_threads():  # -1: other bits than one thread's
    rng, used = np.random.default_rng(0), []
    for shape, caches in problems:
        _core._set_cache_sizes(*caches)
        src, diff_dst = rng.standard_normal((2, *shape), np.float32)
        v, found = np.ones(shape[1], np.float32), []
        for k in (1, 4):
            for training in (True, False):
                found.append([a.tobytes() for a in bn_ext.batch_norm_backward(
                    src, diff_dst, v, v, epsilon=0.5, data_format="NCX", is_training=training,
                    num_threads=k)])
        used.append(_core._last_call()[0])
        if found[:2] != found[2:]:
            return -1
    return max(used)
"""


@needs_openmp
@pytest.mark.parametrize("variable", ["OMP_THREAD_LIMIT", "OMP_DYNAMIC"])
def test_fewer_threads_than_asked_for(variable):
    """Threads that start do the work of those that do not."""
    value = {"OMP_THREAD_LIMIT": "2", "OMP_DYNAMIC": "true"}[variable]
    (used,) = in_new_process(FEWER + "print(most_threads())", **{variable: value})
    assert int(used) in ((1, 2) if variable == "OMP_THREAD_LIMIT" else (1, 2, 3, 4))


@needs_openmp
@needs_linux
def test_inside_another_region():
    """Where OpenMP gives a caller no second level of threads, each has the work of four."""
    code = """
found = []
region(2, lambda data: found.append(most_threads()))
print(*found)
"""
    assert with_libgomp(FEWER + code) == ["1", "1"]


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


@needs_openmp
class TestHowMany:
    def test_as_told(self, rng):
        p = Problem(rng, (40000, 4), "NXC")
        for k in (1, 2, 3, 4):
            used = threads_used(p, num_threads=k)
            tasks = _core._last_call()[1]
            assert used == min(k, tasks)
            assert tasks > 2

    def test_never_more_than_tasks(self, rng):
        p = Problem(rng, (1, 8), "NXC")
        assert threads_used(p, num_threads=16) == 1
        assert _core._last_call() == (1, 1)

    @needs_cpus
    def test_by_size(self, rng):
        assert threads_used(Problem(rng, (100, 64), "NXC")) == 1
        assert threads_used(Problem(rng, LARGE, "NXC")) == min(_core._default_threads(), 19)

    def test_a_million(self):
        """More than a thousand threads are never started, whatever is asked for."""
        code = """
x, v = np.ones((2, 3000, 4), np.float32), np.ones(3000, np.float32)
bn_ext.batch_norm_backward(x, x, v, v, epsilon=1, data_format="NCX", num_threads=10**6)
print(*_core._last_call())
"""
        used, tasks = map(int, in_new_process(code, OMP_STACKSIZE="64k"))
        assert used <= 1024 < tasks

    @needs_cpus
    @needs_linux
    def test_small_problems_enter_no_region(self):
        code = CALL + "call(1000); print(threads()); call(10**5); print(threads())"
        small, large = in_new_process(code, OPENBLAS_NUM_THREADS="1")
        assert int(small) == 1
        assert int(large) > 1

    @pytest.mark.parametrize("count", [1, 2])
    def test_omp_num_threads(self, count):
        code = CALL + "print(call(10**5))"
        assert in_new_process(code, OMP_NUM_THREADS=str(count)) == [str(min(count, CPUS))]

    def test_omp_num_threads_beyond_the_cpus(self):
        code = CALL + "print(_core._default_threads())"
        assert int(in_new_process(code, OMP_NUM_THREADS="1000")[0]) <= CPUS

    @needs_cpus
    def test_threadpoolctl_at_each_call(self, rng):
        p = Problem(rng, LARGE, "NXC")
        before = threads_used(p)
        with threadpoolctl.threadpool_limits(1, user_api="openmp"):
            assert threads_used(p) == 1
            assert threads_used(p, num_threads=2) == 2
        assert threads_used(p) == before

    @needs_cpus
    @needs_linux
    def test_affinity_at_each_call(self, rng):
        p = Problem(rng, LARGE, "NXC")
        before, allowed = threads_used(p), os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(allowed)})
            assert threads_used(p) == 1
        finally:
            os.sched_setaffinity(0, allowed)
        assert threads_used(p) == before

    def test_quota_of_the_container(self, rng):
        p = Problem(rng, LARGE, "NXC")
        try:
            _core._set_cpu_quota(1)
            assert threads_used(p) == 1
        finally:
            _core._set_cpu_quota(bn_ext.show_config(mode="dicts")["cpu_quota"] or 0)

    def test_far_more_than_cpus(self, rng):
        p = Problem(rng, (3, 300, 2000), "NCX")
        want = all_bits(p.run(bn_ext.batch_norm_backward, data_format="NCX", num_threads=1))
        grads = p.run(bn_ext.batch_norm_backward, data_format="NCX", num_threads=64)
        assert _core._last_call()[0] == 64
        assert all_bits(grads) == want


def test_callers_at_once(rng):
    """Python threads, each with its own problem and number of threads."""
    problems = [
        Problem(rng, (200 + 50 * i, 3, 64), "NXC", *DTYPES[i % len(DTYPES)]) for i in range(8)
    ]
    want = [all_bits(p.run(bn_ext.batch_norm_backward)) for p in problems]

    def call(i):
        p = problems[i % 8]
        return all_bits(p.run(bn_ext.batch_norm_backward, num_threads=i % 3 + 1)) == want[i % 8]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(160)))


@needs_openmp
def test_the_last_call_is_that_of_the_thread_that_asks(rng):
    p, q = Problem(rng, (40_000, 4), "NXC"), Problem(rng, (1, 8), "NXC")
    with ThreadPoolExecutor(1) as other:
        mine = threads_used(p, num_threads=3), _core._last_call()
        assert other.submit(threads_used, q, num_threads=3).result() == 1
        assert (mine[0], _core._last_call()) == (3, mine[1])
        assert other.submit(_core._last_call).result() == (1, 1)


# ---- fork -------------------------------------------------------------------------

# Newer CPythons warn that a process with threads forks: here that is the point.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@needs_fork
@forks
@pytest.mark.parametrize("num_threads", [None, 4])
def test_forked_child_works_serially(rng, num_threads):
    p = Problem(rng, LARGE, "NXC")
    want = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=2))
    child = os.fork()
    if child == 0:
        try:
            same = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=num_threads)) == want
            os._exit(0 if same and _core._last_call()[0] == 1 and _core._forked() else 1)
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


def _work(p):
    return all_bits(p.run(bn_ext.batch_norm_backward)), _core._last_call()[0]


@needs_fork
@forks
def test_multiprocessing_fork(rng):
    p = Problem(rng, LARGE, "NXC")
    want = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=2))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map_async(_work, [p] * 4).get(timeout=120)
    assert results == [(want, 1)] * 4


@needs_fork
@needs_linux
def test_config_says_forked():
    code = (
        "pid = os.fork()\n"
        "if pid == 0: print(bn_ext.show_config(mode='dicts')['forked'], flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0); print(bn_ext.show_config(mode='dicts')['forked'])"
    )
    assert in_new_process(code) == ["True", "False"]


def test_epsilon_matters_here_too():
    """The problems above are not trivial: another epsilon gives other bits."""
    p = Problem(np.random.default_rng(0), (50, 4), "NXC")
    assert all_bits(p.run(bn_ext.batch_norm_backward)) != all_bits(
        p.run(bn_ext.batch_norm_backward, epsilon=2 * EPSILON)
    )


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
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_by_every_method(method):
    """After a region in the parent, whose threads a fork does not copy."""
    wanted = [mixed_bits(seed, 2) for seed in range(6)]
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert pool.map_async(mixed_bits, range(6), chunksize=1).get(timeout=120) == wanted


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib(backend):
    joblib = pytest.importorskip("joblib")
    wanted = [mixed_bits(seed, 1) for seed in range(6)]
    run = joblib.Parallel(n_jobs=3, backend=backend)
    assert run(joblib.delayed(mixed_bits)(seed) for seed in range(6)) == wanted


@needs_fork
@needs_openmp
def test_fork_while_another_thread_is_inside_a_call():
    printed = in_new_process(
        CALL
        + """
import threading, warnings
warnings.simplefilter("ignore")  # CPython warns of forking with threads: that is the point
stop = threading.Event()
def work():
    while not stop.is_set():
        call(40000, num_threads=4)
callers = [threading.Thread(target=work) for _ in range(2)]
for caller in callers: caller.start()
right = 0
for _ in range(30):
    child = os.fork()
    if child == 0:
        os._exit(0 if call(40000, num_threads=4) == 1 else 1)
    right += os.waitpid(child, 0)[1] == 0
stop.set()
for caller in callers: caller.join()
print(right, call(40000, num_threads=4))
"""
    )
    assert printed[0] == "30"


@needs_linux
@pytest.mark.parametrize("others", ["sklearn.linear_model", "torch"])
def test_next_to_another_pool(others):
    """After a library with OpenMP threads of its own was imported and has used them."""
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
    os._exit(call(40000, num_threads=2) != 1)
print(os.waitpid(child, 0)[1], call(40000, num_threads=2))
"""
    )
    assert printed[0] == "0"


@needs_linux
def test_one_cpu_alone():
    printed = in_new_process(
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
        + CALL
        + "\nprint(call(40000), call(40000, num_threads=8))"
    )
    assert printed[0] == "1"
