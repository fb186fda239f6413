"""What gradients over MPI ranks cost: those of ResNet-50's 53 layers, one after the other.

As a module it is what the ranks run: mpiexec -n 2 python -m mpi4py -m benchmarks.ranks SECONDS
prints {what: milliseconds} as JSON.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

import bn_ext
from bn_ext._bench.timing import markdown

from . import pages
from .accuracy import shown

RANKS = (1, 2, 4)
BLOCKS = [(64, 3), (128, 4), (256, 6), (512, 3)]  # channels, how many
CHANNELS = [64]
for c, blocks in BLOCKS:
    CHANNELS += blocks * [c, c, 4 * c] + [4 * c]
#: Elements of a channel: so few that nothing but the exchange takes time.
FEW = 8
EPSILON = 1e-5
#: Parts of the work beside an exchange, between which the MPI is asked how far it is.
PARTS = 4


class Layer:
    """One batch normalization, and the weight gradient of the convolution behind it."""

    def __init__(self, rng, comm, channels):
        self.comm = comm
        self.src, self.diff_dst = rng.standard_normal((2, FEW, channels), dtype=np.float32)
        self.mean, self.variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        # Sent as they are, by the MPI alone: as many numbers as a call sends, and back.
        numbers = {False: 6 + 2 * channels, True: 5 + 22 * channels}
        self.sent = {exact: np.zeros(n, np.int64) for exact, n in numbers.items()}
        self.total = {exact: np.empty_like(sent) for exact, sent in self.sent.items()}
        # As long as an exchange, about.
        self.patches, self.diff = rng.standard_normal(
            (2, 256, min(channels, 256)), dtype=np.float32
        )

    def exchange(self, exact):
        self.comm.Allreduce(self.sent[exact], self.total[exact])

    def halves(self, exact):
        sums = bn_ext.batch_norm_backward_reduce(self.src, self.diff_dst, self.mean, exact=exact)
        bn_ext.batch_norm_backward_apply(
            self.src, self.diff_dst, self.mean, self.variance, None, sums, epsilon=EPSILON
        )

    def call(self, function, exact):
        return getattr(bn_ext.mpi, f"batch_norm_backward{function}")(
            self.src, self.diff_dst, self.mean, self.variance, None,
            epsilon=EPSILON, comm=self.comm, exact=exact,
        )  # fmt: skip

    def weight_gradient(self, part=slice(None)):
        return self.patches.T[part] @ self.diff

    def one_after_the_other(self):
        self.call("", True)
        self.weight_gradient()

    def beside(self):
        pending = self.call("_start", True)
        self.weight_gradient()
        pending.wait()

    def beside_and_asked(self):
        pending = self.call("_start", True)
        step = -(-self.patches.shape[1] // PARTS)
        for i in range(0, self.patches.shape[1], step):
            self.weight_gradient(slice(i, i + step))
            pending.done()
        pending.wait()


WAYS = {
    "MPI alone, `exact=False`": partial(Layer.exchange, exact=False),
    "MPI alone, `exact=True`": partial(Layer.exchange, exact=True),
    "`batch_norm_backward`, `exact=False`": partial(Layer.call, function="", exact=False),
    "`batch_norm_backward`, `exact=True`": partial(Layer.call, function="", exact=True),
    "the general functions' two halves, which exchange nothing, plain": partial(
        Layer.halves, exact=False
    ),
    "the same, exact": partial(Layer.halves, exact=True),
    "weight gradients alone": Layer.weight_gradient,
    "`batch_norm_backward`, then the weight gradient": Layer.one_after_the_other,
    "`_start`, the weight gradient, `wait`": Layer.beside,
    f"the same, in {PARTS} parts, each followed by `done`": Layer.beside_and_asked,
}


def on_ranks(comm, seconds):
    """{what: milliseconds of all layers, of the slowest rank, the shortest of many rounds}"""
    rng = np.random.default_rng(comm.rank)
    layers = [Layer(rng, comm, channels) for channels in CHANNELS]
    best = dict.fromkeys(WAYS, float("inf"))
    end = time.monotonic() + seconds
    while comm.bcast(time.monotonic() < end):
        for name, way in WAYS.items():
            comm.Barrier()
            start = time.perf_counter()
            for layer in layers:
                way(layer)
            taken = max(comm.allgather(time.perf_counter() - start))
            best[name] = min(best[name], 1000 * taken)
    return best


def mpiexec():
    """Of this environment, or else the first on the path."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


def measure(seconds, advance):
    """{ranks: {what: milliseconds}}"""
    command = mpiexec()
    if command is None:
        raise SystemExit("ranks: needs mpi4py and mpiexec: pip install mpi4py mpich")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    found = {}
    for n in RANKS:
        program = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.ranks", str(seconds)]
        done = subprocess.run(
            [command, "-n", str(n), *program],
            check=True, text=True, stdout=subprocess.PIPE, env=environment, cwd=pages.ROOT,
        )  # fmt: skip
        found[n] = json.loads(done.stdout)
        advance()
    return found


def report(options, console):
    """Put the table between its marks in the page about several machines."""
    title = pages.machine()
    with pages.counted(console, "numbers of ranks", len(RANKS)) as advance:
        found = measure(options.seconds, advance)
    columns = [f"{n} rank{'s' if n > 1 else ''}" for n in found]
    lines = [[way, *(shown(found[n][way]) for n in found)] for way in WAYS]
    text = f"{title}, {os.cpu_count()} processors.\n\n" + markdown(
        ["ms per backward pass", *columns], lines
    )
    pages.put("ranks", "docs/howto/several_machines.md", f"{text}\n", console)


if __name__ == "__main__":
    from mpi4py import MPI

    import bn_ext.mpi

    found = on_ranks(MPI.COMM_WORLD, float(sys.argv[1]))
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(found))
