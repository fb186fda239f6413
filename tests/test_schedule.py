"""The schedule: the tasks of a call, and who does the work of missing threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import Problem, threads_used
from needs import needs_openmp
from processes import run

import bn_ext
from bn_ext import _core


@needs_openmp
@pytest.mark.parametrize(
    ("variable", "value", "most"), [("OMP_THREAD_LIMIT", "2", 2), ("OMP_DYNAMIC", "true", 4)]
)
def test_fewer_threads_than_asked_for(variable, value, most):
    assert 1 <= run("threads", "fewer", **{variable: value}) <= most


@needs_openmp
def test_inside_another_region():
    """If OpenMP gives callers inside a region no more threads, each does the work of four."""
    assert run("threads", "fewer_within_a_region") == [1, 1]


@needs_openmp
def test_a_million():
    used, tasks = run("threads", "a_million", OMP_STACKSIZE="64k")
    assert used <= 1024 < tasks


@needs_openmp
def test_the_last_call_is_that_of_the_thread_that_asks(rng):
    p, q = Problem(rng, (40_000, 4), "NXC"), Problem(rng, (1, 8), "NXC")
    with ThreadPoolExecutor(1) as pool:
        mine = threads_used(p, num_threads=3), _core.last_call()
        assert pool.submit(threads_used, q, num_threads=3).result() == 1
        assert (mine[0], _core.last_call()) == (3, mine[1])
        assert pool.submit(_core.last_call).result() == {"threads": 1, "tasks": 1, "joint": True}


#: Bytes of a server's second-level and last-level caches.
SERVER = (1 << 20, 32 << 20)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("dims", "threads", "caches", "jointly"),
    [
        ((40, 256, 14, 14), 1, SERVER, True),  # short runs
        ((20, 64, 40, 40), 1, SERVER, True),  # long ones
        ((16, 64, 40, 40), 4, SERVER, True),
        # too few positions for four tasks a thread
        pytest.param((15, 64, 40, 40), 4, SERVER, False, marks=needs_openmp),
        ((40, 256, 14, 14), 1, (1 << 20, 24 << 20), False),  # stores bypass the cache
        ((40, 256, 14, 14), 1, (32 << 20, 128 << 20), False),  # all in the second-level cache
        ((40, 256, 7, 7), 1, SERVER, False),  # coefficients laid out by columns
    ],
)
def test_when_results_of_runs_are_cut_by_positions(dims, threads, caches, jointly):
    """Otherwise, results are cut by tiles of channels, which are still in cache after the sums."""
    _core.set_cache_sizes(*caches)
    for far in (False, True):  # a far last-level cache is read as rarely as memory
        _core.set_last_level_far(far)
        check_joint(dims, threads, jointly and not far)


def check_joint(dims, threads, jointly):
    src, v = np.ones(dims, np.float32), np.ones(dims[1], np.float32)
    options = {"epsilon": 1, "data_format": "NCX", "num_threads": threads}
    bn_ext.batch_norm_backward(src, src, v, v, **options)
    assert _core.last_call()["joint"] == jointly


@pytest.mark.parametrize("rows", [2, 30])
def test_tiles_of_many_channels_are_at_most_4096_wide(rows):
    src, v = np.ones((rows, 40_000), np.float32), np.ones(40_000, np.float32)
    for is_training in (True, False):
        bn_ext.batch_norm_backward(
            src, src, v, v, epsilon=1, is_training=is_training, num_threads=1
        )
        assert _core.last_call()["tasks"] >= 40_000 / 4096
    bn_ext.GradientSums(src, src, v, num_threads=1)
    assert _core.last_call()["tasks"] >= 40_000 / 4096


def test_tiles_do_not_grow_with_a_large_cache():
    src, v, tasks = np.ones((40, 256, 14, 14), np.float32), np.ones(256, np.float32), []
    for l2 in (1 << 20, 4 << 20):
        _core.set_cache_sizes(l2, 16 << 20)
        bn_ext.batch_norm_backward(src, src, v, v, epsilon=1, data_format="NCX", num_threads=1)
        tasks.append(_core.last_call()["tasks"])
    assert tasks[0] == tasks[1]
