"""Normalize a batch in parts, forward and backward, and print one digest, whoever has the parts.

python examples/several_machines.py                           one process
python examples/several_machines.py --processes 3             a pool of processes
mpiexec -n 3 python -m mpi4py examples/several_machines.py    MPI ranks
"""

import argparse
import hashlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import numpy as np

import bn_ext

SAMPLES, CHANNELS = 20, 64
EXACT = {"data_format": "NXC", "exact": True}
OPTIONS = {"epsilon": 1e-5, "data_format": "NXC"}
GAMMA, BETA = np.linspace(0.5, 2, CHANNELS), np.linspace(-1, 1, CHANNELS)


def part(number, count):
    """One of `count` parts, src and diff_dst; yours come from files."""
    mine = np.array_split(np.arange(SAMPLES), count)[number]
    tensors = np.empty((2, len(mine), 14, 14, CHANNELS), np.float32)
    for at, sample in enumerate(mine):
        rng = np.random.default_rng(sample)
        tensors[:, at] = rng.integers(-999, 999, tensors[:, at].shape) / 256
    return tensors


def statistics_of(number, count):
    return bn_ext.Statistics(part(number, count)[0], **EXACT)


def sums_of(number, count, mean):
    return bn_ext.GradientSums(*part(number, count), mean, **EXACT)


def results_of(number, count, mean, variance, sums):
    """A part's dst and diff_src; diff_gamma and diff_beta of the whole batch."""
    src, diff_dst = part(number, count)
    vectors = mean, variance, GAMMA
    dst = bn_ext.batch_norm_inference(src, *vectors, BETA, **OPTIONS)
    return dst, *bn_ext.batch_norm_backward(src, diff_dst, *vectors, sums=sums, **OPTIONS)


def digest_of(gathered, added):
    """The digest of all results. `gathered` calls a function for every part, `added` adds up."""
    statistics = added(statistics_of)
    vectors = statistics.mean, statistics.variance
    sums = added(sums_of, statistics.mean)
    results = gathered(results_of, *vectors, sums)
    if results is None:  # another rank has them
        return None
    dst, diff_src, (diff_gamma, *_), (diff_beta, *_) = zip(*results, strict=True)
    arrays = *vectors, *dst, *diff_src, diff_gamma, diff_beta
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    count = parser.parse_args().processes

    if "mpi4py" in sys.modules:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD

        def gathered(function, *arguments):
            return comm.gather(function(comm.rank, comm.size, *arguments))

        def added(function, *arguments):
            return comm.allreduce(function(comm.rank, comm.size, *arguments))

        digest = digest_of(gathered, added)
        engine = f"{comm.size} ranks"
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, context) as pool:

            def gathered(function, *arguments):
                map_ = map if count == 1 else pool.map
                return list(map_(function, range(count), *map(repeat, (count, *arguments))))

            def added(function, *arguments):
                return sum(gathered(function, *arguments))

            digest = digest_of(gathered, added)
        engine = "1 process" if count == 1 else f"{count} processes"
    if digest:
        print(f"{engine}: {digest}")


if __name__ == "__main__":
    main()
