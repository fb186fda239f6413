"""The schedule: how many threads a call uses, and who does the work of missing threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import LARGE, Problem, threads_used
from needs import needs_cpus, needs_linux, needs_openmp
from processes import CALL, in_new_process, with_libgomp

import bn_ext
from bn_ext import _core

#: Problems for each order of work in schedule.c: LIST, PHASES and SOLO. Each is computed on one
#: thread, and on up to four: some may not start.
FEWER = """
problems = [((8, 64, 30), (0, 0)), ((40_000, 4, 1), (0, 0)), ((8, 64, 300), (4096, 4096)),
            ((8, 64, 300), (4096, 1 << 25))]
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
        used.append(_core._last_call()["threads"])
        if found[:2] != found[2:]:
            return -1
    return max(used)
"""


@needs_openmp
@pytest.mark.parametrize("variable", ["OMP_THREAD_LIMIT", "OMP_DYNAMIC"])
def test_fewer_threads_than_asked_for(variable):
    """Threads that start do the work of threads that do not."""
    value = {"OMP_THREAD_LIMIT": "2", "OMP_DYNAMIC": "true"}[variable]
    (used,) = in_new_process(FEWER + "print(most_threads())", **{variable: value})
    assert int(used) in ((1, 2) if variable == "OMP_THREAD_LIMIT" else (1, 2, 3, 4))


@needs_openmp
@needs_linux
def test_inside_another_region():
    """If OpenMP gives callers inside a region no more threads, each does the work of four."""
    code = """
found = []
region(2, lambda data: found.append(most_threads()))
print(*found)
"""
    assert with_libgomp(FEWER + code) == ["1", "1"]


def test_never_more_than_tasks(rng):
    assert threads_used(Problem(rng, (1, 8), "NXC"), num_threads=16) == 1
    assert [*_core._last_call().values()][:2] == [1, 1]


@needs_openmp
class TestHowMany:
    def test_as_told(self, rng):
        p = Problem(rng, (40000, 4), "NXC")
        for k in (1, 2, 3, 4):
            used = threads_used(p, num_threads=k)
            tasks = _core._last_call()["tasks"]
            assert used == min(k, tasks)
            assert tasks > 2

    @needs_cpus
    def test_by_size(self, rng):
        assert threads_used(Problem(rng, (100, 64), "NXC")) == 1
        assert threads_used(Problem(rng, LARGE, "NXC")) == min(_core._default_threads(), 26)

    def test_a_million(self):
        """At most 1024 threads are started, whatever num_threads says."""
        code = """
x, v = np.ones((2, 3000, 4), np.float32), np.ones(3000, np.float32)
bn_ext.batch_norm_backward(x, x, v, v, epsilon=1, data_format="NCX", num_threads=10**6)
print(*[*_core._last_call().values()][:2])
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


@needs_openmp
def test_the_last_call_is_that_of_the_thread_that_asks(rng):
    p, q = Problem(rng, (40_000, 4), "NXC"), Problem(rng, (1, 8), "NXC")
    with ThreadPoolExecutor(1) as other:
        mine = threads_used(p, num_threads=3), _core._last_call()
        assert other.submit(threads_used, q, num_threads=3).result() == 1
        assert (mine[0], _core._last_call()) == (3, mine[1])
        assert other.submit(_core._last_call).result() == {"threads": 1, "tasks": 1, "joint": True}


#: Bytes of a server's second-level and last-level caches.
SERVER = (1 << 20, 32 << 20)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dims", "threads", "caches", "jointly"),
    [
        ((40, 256, 14, 14), 1, SERVER, True),  # short runs
        ((20, 64, 40, 40), 1, SERVER, True),  # long ones
        ((16, 64, 40, 40), 4, SERVER, True),
        ((15, 64, 40, 40), 4, SERVER, False),  # too few positions for four tasks a thread
        ((40, 256, 14, 14), 1, (1 << 20, 24 << 20), False),  # stores bypass the cache
        ((40, 256, 14, 14), 1, (32 << 20, 128 << 20), False),  # all in the second-level cache
        ((40, 256, 7, 7), 1, SERVER, False),  # coefficients laid out by columns
    ],
)
def test_when_results_of_runs_are_cut_by_positions(dims, threads, caches, jointly):
    """Otherwise, results are cut by tiles of channels, which are still in cache after the sums."""
    _core._set_cache_sizes(*caches)
    src, v = np.ones(dims, np.float32), np.ones(dims[1], np.float32)
    options = {"epsilon": 1, "data_format": "NCX", "num_threads": threads}
    bn_ext.batch_norm_backward(src, src, v, v, **options)
    assert _core._last_call()["joint"] == jointly


def test_tiles_do_not_grow_with_a_large_cache():
    src, v, tasks = np.ones((40, 256, 14, 14), np.float32), np.ones(256, np.float32), []
    for l2 in (1 << 20, 4 << 20):
        _core._set_cache_sizes(l2, 16 << 20)
        bn_ext.batch_norm_backward(src, src, v, v, epsilon=1, data_format="NCX", num_threads=1)
        tasks.append(_core._last_call()["tasks"])
    assert tasks[0] == tasks[1]
