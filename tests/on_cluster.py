"""Dask on a cluster of two worker processes; prints what it finds as JSON.

    python tests/on_cluster.py digests    of one call, and over chunkings
    python tests/on_cluster.py added      digests of statistics: one call's, and of added parts
    python tests/on_cluster.py killed     a gradient: a worker is killed in each of its two halves
    python tests/on_cluster.py memory     the most that a worker holds, in chunks, from zarr to zarr

Run by test_dask_cluster.py.
"""

import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import bn_ext.dask

HOW = {"epsilon": 1e-5, "data_format": "NXC"}
SHAPE = (40, 6, 5, 16)
CHUNKINGS = [
    -1, (10, -1, -1, -1), (1, -1, -1, -1), (-1, 1, -1, -1), (-1, -1, 1, -1), (-1, -1, -1, 3),
    ((1, 0, 39), (4, 2), (1, 4), (5, 11)),
]  # fmt: skip


def problem():
    """A problem whose sums cancel: rounded partial sums show the order in which they were added."""
    rng = np.random.default_rng(3)
    src, diff_dst = rng.standard_normal((2, *SHAPE), np.float32) * 3 + 1
    diff_dst[0] *= 1e6
    diff_dst[1] = -diff_dst[0]
    return src, diff_dst, rng.standard_normal(SHAPE[-1], np.float32)


def digest(arrays):
    whole = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
    return hashlib.sha256(whole).hexdigest()[:12]


def both_passes(module, src, diff_dst, gamma, **how):
    dst, mean, variance = module.batch_norm_training(src, gamma, **how)
    grads = module.batch_norm_backward(src, diff_dst, mean, variance, gamma, **how)
    return digest(dask.compute(dst, mean, variance, *grads))


def digests(client):
    src, diff_dst, gamma = problem()
    found = [both_passes(bn_ext, src, diff_dst, gamma, exact=True, **HOW)]
    for chunks in CHUNKINGS:
        given = [da.from_array(a, chunks=chunks) for a in (src, diff_dst)]
        found.append(both_passes(bn_ext.dask, *given, gamma, **HOW))
    return found


def added(client):
    """Statistics of one call, and of blocks, which plain Dask adds."""
    src, *_ = problem()
    blocks = da.from_array(src, chunks=(7, 4, -1, -1)).to_delayed().ravel()
    statistics = dask.delayed(bn_ext.Statistics)
    parts = [statistics(block, exact=True, data_format="NXC") for block in blocks]
    total = dask.delayed(sum)(parts).compute()
    whole = bn_ext.batch_norm_training(src, exact=True, **HOW)
    return [digest(whole[1:]), digest([total.mean, total.variance])]


# ---- a worker is killed -----------------------------------------------------------------


class Noted:
    """An array that is slow to read, and notes in a file which process reads a block."""

    def __init__(self, array, notes):
        self.array, self.notes = array, notes
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, where):
        block = self.array[where]
        if block.size:
            with Path(self.notes).open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(0.05)
        return block


def killing(client, notes, work):
    """Do the work; kill one of the workers when half of it is done."""
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
    return result[0], {"read": len(readers), "by the victim": readers.count(str(victim))}


def killed(client):
    src, diff_dst, gamma = problem()
    vectors = src.mean((0, 1, 2)), src.var((0, 1, 2)), gamma
    whole = bn_ext.batch_norm_backward(src, diff_dst, *vectors, exact=True, **HOW)
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        given = [da.from_array(a, chunks=(1, -1, -1, -1), name=name)
                 for name, a in [("noted", Noted(src, notes)), ("diff_dst", diff_dst)]]  # fmt: skip
        grads, of_sums = killing(
            client, notes, lambda: bn_ext.dask.batch_norm_backward(*given, *vectors, **HOW)
        )
        client.wait_for_workers(2)
        diff_src, of_result = killing(client, notes, grads.diff_src.compute)
    found = digest([diff_src, *grads[1:]])
    return {"expected": digest(whole), "found": found, "sums": of_sums, "diff_src": of_result}


# ---- memory ---------------------------------------------------------------------------

BLOCK = (80, 256, 512)  # 40 MiB: so large that free returns it to the system at once
BLOCKS = 44


def status(name):
    """A number of this process's status, in bytes."""
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def begin():
    """Reset the peak; return the memory that is in use."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def steps(src, diff_dst, sink):
    """Take the steps in turn; yield their names."""
    ones = np.ones(BLOCK[-1], np.float32)
    grads = bn_ext.dask.batch_norm_backward(src, diff_dst, ones, ones, **HOW)
    yield "sums of the gradient"
    da.store(grads.diff_src, sink, lock=False)
    yield "diff_src"
    result = bn_ext.dask.batch_norm_training(src, **HOW)
    yield "statistics"
    da.store(result.dst, sink, lock=False)
    yield "dst"


def memory(client):
    """The most of each step that a worker held beyond what it had before, in chunks."""
    import zarr

    with tempfile.TemporaryDirectory() as folder:
        shape = (BLOCKS * BLOCK[0], *BLOCK[1:])
        files = [zarr.create_array(f"{folder}/{i}", shape=shape, chunks=BLOCK, dtype="f4")
                 for i in range(3)]  # fmt: skip
        for value, file in enumerate(files[:2], 1):
            da.store(da.full(shape, value, dtype="f4", chunks=BLOCK), file, lock=False)
        src, diff_dst = (da.from_zarr(file) for file in files[:2])
        two = slice(2 * BLOCK[0])
        for _ in steps(src[two], diff_dst[two], files[2]):
            pass  # the first time, workers import and allocate
        found, before = {}, client.run(begin)
        for step in steps(src, diff_dst, files[2]):
            peaks = client.run(status, "VmHWM")
            most = max(peaks[worker] - before[worker] for worker in before)
            found[step] = round(most / (4 * np.prod(BLOCK)), 2)
            before = client.run(begin)
        return found


if __name__ == "__main__":
    job = {f.__name__: f for f in (digests, added, killed, memory)}[sys.argv[1]]
    dask.config.set({"distributed.comm.timeouts.connect": "30s"})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = [*client.run(os.getpid).values()]
        found = job(client)
        pids += client.run(os.getpid).values()
    print(json.dumps({"pids": pids, "found": found}, indent=1))
