"""Dask on two worker processes, even if one is killed.

    pytest -m cluster

.ci/run dask installs what these tests need.
"""

import doctest
import os
import signal
import threading
import time

import numpy as np
import pytest
from tree import ROOT

import bn_ext

pytestmark = pytest.mark.cluster

distributed = pytest.importorskip("distributed")
import dask  # noqa: E402
import dask.array as da  # noqa: E402

import bn_ext.dask  # noqa: E402

OPTIONS = {"epsilon": 1e-5, "data_format": "NXC"}
SHAPE = (40, 6, 5, 16)
CHUNKINGS = [
    -1,
    (1, -1, -1, -1),
    (-1, 1, -1, -1),
    (-1, -1, -1, 3),
    ((1, 0, 39), (4, 2), (1, 4), (5, 11)),
]


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "120s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def problem():
    """A problem whose sums cancel: rounded partial sums show the order in which they were added."""
    rng = np.random.default_rng(3)
    src, diff_dst = rng.standard_normal((2, *SHAPE), np.float32) * 3 + 1
    diff_dst[0] *= 1e6
    diff_dst[1] = -diff_dst[0]
    return src, diff_dst, rng.standard_normal(SHAPE[-1], np.float32)


def both_passes(module, src, diff_dst, gamma, **options):
    dst, mean, variance = module.batch_norm_training(src, gamma, **options)
    grads = module.batch_norm_backward(src, diff_dst, mean, variance, gamma, **options)
    return [a.tobytes() for a in dask.compute(dst, mean, variance, *grads)]


@pytest.mark.parametrize("chunks", CHUNKINGS, ids=str)
def test_the_same_bits(client, problem, chunks):
    src, diff_dst, gamma = problem
    arguments = [da.from_array(a, chunks=chunks) for a in (src, diff_dst)]
    results = both_passes(bn_ext.dask, *arguments, gamma, **OPTIONS)
    assert results == both_passes(bn_ext, *problem, exact=True, **OPTIONS)


def noted(array, notes):
    """An array that is slow to read, and notes in a file which process reads a block."""

    class Noted:  # local, so that it is sent to the workers
        shape, dtype, ndim = array.shape, array.dtype, array.ndim

        def __getitem__(self, where):
            block = array[where]
            if block.size:
                with notes.open("a") as file:
                    file.write(f"{os.getpid()}\n")
                time.sleep(0.05)
            return block

    return Noted()


def killing(client, notes, work):
    """Do the work; kill one of the workers when half of it is done, and assert that it had done
    some, and that blocks were read twice.
    """
    notes.write_text("")
    victim = min(client.run(os.getpid).values())
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    while len(notes.read_text().split()) < SHAPE[0] // 2:
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    thread.join()
    readers = notes.read_text().split()
    assert str(victim) in readers
    assert len(readers) > SHAPE[0]
    return result[0]


def test_a_killed_worker(client, problem, tmp_path):
    """In each of the two halves of a gradient."""
    src, diff_dst, gamma = problem
    vectors = src.mean((0, 1, 2)), src.var((0, 1, 2)), gamma
    whole = bn_ext.batch_norm_backward(src, diff_dst, *vectors, exact=True, **OPTIONS)
    notes = tmp_path / "notes"
    arguments = [
        da.from_array(a, chunks=(1, -1, -1, -1), name=name)
        for name, a in [("noted", noted(src, notes)), ("diff_dst", diff_dst)]
    ]
    grads = killing(
        client, notes, lambda: bn_ext.dask.batch_norm_backward(*arguments, *vectors, **OPTIONS)
    )
    client.wait_for_workers(2)
    diff_src = killing(client, notes, grads.diff_src.compute)
    assert [a.tobytes() for a in (diff_src, *grads[1:])] == [a.tobytes() for a in whole]


def test_the_page():
    pytest.importorskip("zarr")
    page = ROOT / "docs" / "howto" / "dask.md"
    text = page.read_text().replace("```\n", "\n")
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    assert runner.run(test).failed == 0
