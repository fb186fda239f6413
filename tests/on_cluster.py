"""bn_ext.dask on a cluster of two worker processes; prints what it finds as JSON.

    python tests/on_cluster.py digests    over chunkings
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

EPSILON = 1e-5
SHAPE = (40, 6, 5, 16)
CHUNKINGS = {
    "one chunk": -1,
    "10 of 40 samples": (10, -1, -1, -1),
    "1 sample": (1, -1, -1, -1),
    "1 row of an image": (-1, 1, -1, -1),
    "1 column of an image": (-1, -1, 1, -1),
    "3 of 16 channels": (-1, -1, -1, 3),
    "along all axes, unevenly": ((1, 0, 39), (4, 2), (1, 4), (5, 11)),
}


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


def both_passes(src, diff_dst, gamma, exact):
    dst, mean, variance = bn_ext.dask.batch_norm_training(src, gamma, epsilon=EPSILON, exact=exact)
    grads = bn_ext.dask.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon=EPSILON, exact=exact)  # fmt: skip
    return digest(dask.compute(dst, mean, variance, *grads))


def digests(client):
    src, diff_dst, gamma = problem()
    found = []
    for how, chunks in CHUNKINGS.items():
        given = [da.from_array(a, chunks=chunks) for a in (src, diff_dst)]
        found += [[how, exact, both_passes(*given, gamma, exact)] for exact in (True, False)]
    return found


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
    pids = {*client.run(os.getpid).values()}
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    while len(notes.read_text().split()) < SHAPE[0] // 2:
        time.sleep(0.01)
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    thread.join()
    readers = notes.read_text().split()
    return result[0], {"read": len(readers), "by the victim": readers.count(str(victim))}


def killed(client):
    src, diff_dst, gamma = problem()
    mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))
    chunks = (1, -1, -1, -1)
    whole = bn_ext.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon=EPSILON, exact=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        noted = da.from_array(Noted(src, notes), chunks=chunks, name="noted")
        given = da.from_array(diff_dst, chunks=chunks)
        grads, of_sums = killing(client, notes, lambda: bn_ext.dask.batch_norm_backward(
            noted, given, mean, variance, gamma, epsilon=EPSILON))  # fmt: skip
        client.wait_for_workers(2)
        diff_src, of_result = killing(client, notes, grads.diff_src.compute)
    return {
        "expected": digest(whole),
        "found": digest([diff_src, *grads[1:]]),
        "sums": of_sums,
        "diff_src": of_result,
    }


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


def most_chunks(before, peaks):
    """The most that any worker held beyond what it had before, in chunks."""
    return max(peaks[worker] - before[worker] for worker in before) / (4 * np.prod(BLOCK))


class Sink:
    def __setitem__(self, where, block):
        pass


def steps(src, diff_dst, sink, exact):
    """Take the steps in turn; yield their names."""
    ones = np.ones(BLOCK[-1], np.float32)
    how = {"epsilon": EPSILON, "exact": exact}
    grads = bn_ext.dask.batch_norm_backward(src, diff_dst, ones, ones, **how)
    yield "sums of the gradient"
    da.store(grads.diff_src, sink, lock=False)
    yield "diff_src"
    result = bn_ext.dask.batch_norm_training(src, **how)
    yield "statistics"
    da.store(result.dst, sink, lock=False)
    yield "dst"


def measured(client, src, diff_dst, sink):
    """The peak of each step the second time: the first time, it imports and allocates."""
    two = slice(2 * BLOCK[0])
    found = {}
    for exact in (False, True):
        for _ in steps(src[two], diff_dst[two], Sink(), exact):
            pass
        before = client.run(begin)
        for step in steps(src, diff_dst, sink, exact):
            most = most_chunks(before, client.run(status, "VmHWM"))
            found[f"{step}, {'exact' if exact else 'plain'}"] = round(most, 2)
            before = client.run(begin)
    return found


def memory(client):
    import zarr

    with tempfile.TemporaryDirectory() as folder:
        names, shape = ("src", "diff_dst", "diff_src"), (BLOCKS * BLOCK[0], *BLOCK[1:])
        files = [
            zarr.create_array(f"{folder}/{name}", shape=shape, chunks=BLOCK, dtype="f4")
            for name in names
        ]
        src, diff_dst = (da.from_zarr(file) for file in files[:2])
        for value, file in enumerate(files[:2], 1):
            da.store(da.full(file.shape, value, dtype="f4", chunks=BLOCK), file, lock=False)
        return measured(client, src, diff_dst, files[2])


if __name__ == "__main__":
    job = {"digests": digests, "killed": killed, "memory": memory}[sys.argv[1]]
    dask.config.set({"distributed.comm.timeouts.connect": "30s"})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = [*client.run(os.getpid).values()]
        found = job(client)
        pids += client.run(os.getpid).values()
    print(json.dumps({"pids": pids, "found": found}, indent=1))
