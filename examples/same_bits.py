"""Train a network on scanned digits, and print a digest of its weights: the same bits everywhere.

    python examples/same_bits.py --threads 4
    BN_EXT_ISA=baseline python examples/same_bits.py
    mpiexec -n 3 python -m mpi4py examples/same_bits.py

Besides bn_ext's exact sums, the same bits need three things. Matrix products are sums of columns
times rows, one after the other, because BLAS rounds differently on other CPUs and for other numbers
of rows. No exp, log or normal random numbers are used, because systems round these differently. The
terms of the gradients of weights are rounded to multiples of 2**-40, so that they can be summed as
integers, in any order and over any ranks.
"""

import argparse
import hashlib
import platform
import sys

import numpy as np

import bn_ext

EPSILON, UNIT, BATCH, RATE = 1e-5, 2.0**-40, 256, 0.1


class Ranks:
    """All ranks of the communicator if mpi4py runs this program, else this process alone."""

    def __init__(self, threads):
        self.rank, self.size, self.threads, self.allreduce = 0, 1, threads, None
        if "mpi4py" in sys.modules:
            from mpi4py import MPI

            self.comm = MPI.COMM_WORLD
            self.rank, self.size = self.comm.rank, self.comm.size
            self.allreduce = self.comm.allreduce

    def sum(self, terms):
        """The sum over all rows of all ranks. Each term is rounded, the sum is not."""
        total = np.rint(terms / UNIT).astype(np.int64).sum(axis=0)
        if self.size > 1:
            everywhere = np.empty_like(total)
            self.comm.Allreduce(total, everywhere)
            total = everywhere
        return total * UNIT


def product(a, b):
    """A @ b, each element summed in one order."""
    total = np.zeros((len(a), b.shape[1]))
    for column, row in zip(a.T, b, strict=True):
        total += column[:, None] * row
    return total


class Dense:
    def __init__(self, rng, inputs, outputs):
        self.weight = rng.uniform(-1, 1, (inputs, outputs)) * np.sqrt(3 / inputs)
        self.parameters = [self.weight]

    def forward(self, x, ranks):
        self.x = x
        return product(x, self.weight)

    def backward(self, diff, ranks):
        columns = [ranks.sum(column[:, None] * diff) for column in self.x.T]
        back = product(diff, self.weight.T)
        self.weight -= RATE * np.array(columns)
        return back


class Norm:
    """Batch normalization over the rows of all ranks, then a ReLU."""

    def __init__(self, channels, ranks):
        self.layer = bn_ext.BatchNorm(
            channels, epsilon=EPSILON, correction=0, relu=True, exact=True,
            num_threads=ranks.threads, allreduce=ranks.allreduce,
        )  # fmt: skip
        running = self.layer.running_mean, self.layer.running_variance
        self.parameters = [*self.layer.parameters, *running]

    def forward(self, x, ranks):
        return self.layer.forward(x.astype(np.float32)).astype(np.float64)

    def backward(self, diff, ranks):
        diff_src = self.layer.backward(diff.astype(np.float32))
        for parameter, gradient in zip(self.layer.parameters, self.layer.gradients, strict=True):
            parameter -= RATE * gradient
        return diff_src.astype(np.float64)

    def infer(self, x):
        return self.layer.eval().forward(x)


def load(path):
    """Images of 64 numbers from 0 to 1, and labels; from scikit-learn, or from a file of both."""
    if path:
        with np.load(path) as file:
            return file["images"], file["labels"]
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data / 16, digits.target


def train(images, labels, steps, ranks):
    """Digest of all weights, and the accuracy on the last quarter of the images."""
    rng = np.random.default_rng(0)
    cut = 3 * len(images) // 4
    layers = [
        Dense(rng, 64, 48),
        Norm(48, ranks),
        Dense(rng, 48, 32),
        Norm(32, ranks),
        Dense(rng, 32, 10),
    ]
    wanted = 2.0 * (labels[:, None] == np.arange(10)) - 1
    for _ in range(steps):
        batch = rng.integers(cut, size=BATCH)
        mine = np.array_split(batch, ranks.size)[ranks.rank]
        x = images[mine]
        for layer in layers:
            x = layer.forward(x, ranks)
        diff = (x - wanted[mine]) * (2 / BATCH)
        for layer in reversed(layers):
            diff = layer.backward(diff, ranks)
    x = images[cut:]
    for layer in layers:
        x = layer.infer(x) if isinstance(layer, Norm) else product(x, layer.weight)
    weights = b"".join(p.tobytes() for layer in layers for p in layer.parameters)
    return hashlib.sha256(weights).hexdigest()[:16], (x.argmax(axis=1) == labels[cut:]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--data", metavar="FILE", help=".npz; default: scikit-learn's")
    options = parser.parse_args()
    ranks = Ranks(options.threads)
    digest, right = train(*load(options.data), options.steps, ranks)
    if ranks.rank == 0:
        print(
            f"{platform.machine()}, {bn_ext.get_isa()}, threads {options.threads}, "
            f"ranks {ranks.size}: weights {digest}, {100 * right:.1f} % right"
        )


if __name__ == "__main__":
    main()
