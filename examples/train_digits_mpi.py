"""Train the digits network on several ranks, with batch normalization over the batch of all.

The same batches are dealt to 1, 2, 4 ... ranks, and the weights come out equal to the bit:

    mpiexec -n 4 python -m mpi4py examples/train_digits_mpi.py

What that takes, besides bn_ext's exact sums: products of matrices are made of 16 images at a time,
on one thread, since BLAS rounds otherwise for other numbers of rows or threads; and the weight
gradients of 16 images are rounded to multiples of 2**-32, which are summed as integers, in any
order. The parameter gradients of batch normalization are those of all ranks: they are not summed.

Prints a digest of the weights, the loss and the time of a step for each number of ranks, and draws
loss and time in a picture. The exit status is 1 if the digests differ.
"""

import argparse
import copy
import hashlib
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import train_digits as digits
from matplotlib.figure import Figure
from mpi4py import MPI
from rich.console import Console
from rich.progress import Progress
from threadpoolctl import threadpool_limits

import bn_ext.mpi

BATCH, BLOCK = 64, 16  # images
UNIT = 2.0**-32  # of the gradients of weights


# ---- layers -------------------------------------------------------------------------


class InBlocks:
    """A layer with weights, for 16 images at a time."""

    def __init__(self, layer):
        self.layer, self.parameters = layer, layer.parameters

    def forward(self, x, training):
        cuts = range(BLOCK, len(x), BLOCK)
        parts = np.split(x, cuts)
        self.layers = [copy.copy(self.layer) for _ in parts]
        return np.concatenate(
            [layer.forward(part, training) for layer, part in zip(self.layers, parts, strict=True)]
        )

    def backward(self, diff):
        """Of the input alone: `sum_gradients` can wait until there is nothing else to do."""
        self.diffs = np.split(diff, range(BLOCK, len(diff), BLOCK))
        pairs = zip(self.layers, self.diffs, strict=True)
        return np.concatenate([layer.input_gradient(part) for layer, part in pairs])

    def sum_gradients(self):
        """Those of this rank's images, in units that any order sums alike."""
        self.sums = [np.zeros(p.shape, np.int64) for p in self.parameters]
        for layer, diff in zip(self.layers, self.diffs, strict=True):
            for to, gradient in zip(self.sums, layer.parameter_gradients(diff), strict=True):
                to += as_units(gradient)


class BatchNorm(digits.BatchNorm):
    """Normalizes over the images of all ranks."""

    def __init__(self, channels, number, comm):
        super().__init__(channels, number, "bn_ext", None)
        self.comm = comm

    def forward(self, x, training):
        if not training:
            return super().forward(x, False)
        self.src = x
        dst, self.mean, self.variance = bn_ext.mpi.batch_norm_training(
            x, self.gamma, self.beta, epsilon=digits.EPSILON, comm=self.comm, num_threads=1,
            running_mean=self.running_mean, running_variance=self.running_variance,
            exponential_avg_factor=0.1, correction=0,
        )  # fmt: skip
        return dst

    def start(self, diff):
        """Send this rank's sums off."""
        self.pending = bn_ext.mpi.batch_norm_backward_start(
            self.src, diff, self.mean, self.variance, self.gamma, epsilon=digits.EPSILON,
            comm=self.comm, num_threads=1,
        )  # fmt: skip

    def finish(self):
        diff_src, *self.gradients = self.pending.wait()
        return diff_src


def as_units(values):
    return np.rint(np.asarray(values, np.float64) / UNIT).astype(np.int64)


# ---- training -----------------------------------------------------------------------


@dataclass
class Training:
    """What came of it."""

    ranks: int
    losses: list = field(default_factory=list)
    milliseconds: list = field(default_factory=list)
    digest: str = ""
    accuracy: float = 0.0


def network(comm, rng, number=np.float32):
    layers = []
    for channels_in, channels_out, stride in ((1, 16, 1), (16, 32, 1), (32, 64, 2)):
        layers += [
            InBlocks(digits.Convolution(rng, channels_in, channels_out, stride, number)),
            BatchNorm(channels_out, number, comm),
            digits.ReLU(),
        ]
    return [*layers, InBlocks(digits.Dense(rng, 4 * 4 * 64, 10, number))]


def loss_and_diff(scores, labels):
    """The sum of this rank's losses in units, and the gradient of the batch's mean loss."""
    loss, diffs = 0, [np.zeros_like(scores)[:0]]
    for i in range(0, len(labels), BLOCK):
        some, diff = digits.softmax_loss(scores[i : i + BLOCK], labels[i : i + BLOCK])
        loss += as_units(some)
        diffs.append(diff * diff.dtype.type(BLOCK / BATCH))
    return loss, np.concatenate(diffs)


def backward(layers, diff):
    """While a batch normalization's sums are on their way, find what nothing else waits for: the
    weight gradients of the layer behind it.
    """
    waiting = None
    for layer in reversed(layers):
        if isinstance(layer, BatchNorm):
            layer.start(diff)
            waiting.sum_gradients()
            diff = layer.finish()
        else:
            diff = layer.backward(diff)
            waiting = layer if isinstance(layer, InBlocks) else waiting
    waiting.sum_gradients()


def step(comm, layers, optimizer, images, labels):
    """Forward, backward, update; the batch's mean loss."""
    loss, diff = loss_and_diff(digits.forward(layers, images, True), labels)
    backward(layers, diff)
    in_blocks = [layer for layer in layers if isinstance(layer, InBlocks)]
    own = [np.array([loss]), *(sums.ravel() for layer in in_blocks for sums in layer.sums)]
    total = np.empty(sum(map(len, own)), np.int64)
    comm.Allreduce(np.concatenate(own), total)  # one for all weights
    pieces = iter(np.split(total * UNIT, np.cumsum([len(each) for each in own])[:-1]))
    (loss,) = next(pieces) * (BLOCK / BATCH)
    for layer in in_blocks:
        layer.gradients = [next(pieces).reshape(p.shape) for p in layer.parameters]
    optimizer.update([g for layer in layers for g in layer.gradients])
    return float(loss)


def train(comm, steps, seed, say):
    """The same batches on any number of ranks."""
    rng = np.random.default_rng(seed)
    train_x, train_y, test_x, test_y = digits.load(seed)
    layers, found = network(comm, rng), Training(comm.size)
    optimizer = digits.Adam([p for layer in layers for p in layer.parameters], 3e-3, steps)
    for number in range(steps):
        blocks = rng.choice(len(train_x), (BATCH // BLOCK, BLOCK), replace=False)
        mine = np.array_split(blocks, comm.size)[comm.rank].ravel()
        milliseconds, loss = digits.timed(
            step, comm, layers, optimizer, train_x[mine], train_y[mine]
        )
        found.losses.append(loss)
        found.milliseconds.append(milliseconds)
        say(number + 1, loss)
    weights = hashlib.sha256(b"".join(p.tobytes() for p in optimizer.parameters))
    found.digest = weights.hexdigest()[:12]
    scores = digits.forward(layers, test_x, False)
    found.accuracy = float((scores.argmax(axis=1) == test_y).mean())
    return found


def wait_idle(comm):
    """For all ranks, leaving the processor to those at work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


# ---- what is shown ------------------------------------------------------------------


def report(found):
    """Lines of text, one for each number of ranks."""
    lines = ["ranks  weights       loss    accuracy  ms per step"]
    for each in found:
        loss = np.mean(each.losses[-10:])
        time_of_step = np.median(each.milliseconds)
        lines.append(
            f"{each.ranks:5}  {each.digest}  {loss:.4f}  {100 * each.accuracy:6.2f} %"
            f"  {time_of_step:11.1f}"
        )
    return lines


def plot(found, path):
    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, times = figure.subplots(1, 2, width_ratios=[1.6, 1])
    for each, style in zip(found, ("-", "--", ":", "-."), strict=False):
        losses.plot(each.losses, style, label=f"ranks: {each.ranks}", linewidth=2)
    losses.set(xlabel="step", title="loss (the curves lie on each other)", yscale="log")
    losses.legend()
    times.bar([str(each.ranks) for each in found], [np.median(e.milliseconds) for e in found])
    times.set(xlabel="ranks", title="ms per step")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    """Run on every rank; return the exit status."""
    comm = MPI.COMM_WORLD
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=digits.as_count(1), default=200, metavar="N")
    parser.add_argument("--seed", type=digits.as_count(0), default=0, metavar="N")
    parser.add_argument(
        "--plot", type=digits.as_picture, default="train_digits_mpi.png", metavar="FILE"
    )
    options = parser.parse_args(arguments)

    sizes = [2**k for k in range(comm.size.bit_length())]
    found = []
    quiet = comm.rank != 0 or not Console().is_terminal
    with Progress(disable=quiet) as progress, threadpool_limits(1):
        for size in sizes:
            group = comm.Split(0 if comm.rank < size else MPI.UNDEFINED)
            task = progress.add_task(f"ranks: {size}", total=options.steps)
            if group != MPI.COMM_NULL:

                def say(done, loss, task=task, size=size):
                    text = f"ranks: {size}, loss {loss:.4f}"
                    progress.update(task, completed=done, description=text)

                found.append(train(group, options.steps, options.seed, say))
                group.Free()
            wait_idle(comm)
    same = len({each.digest for each in found}) == 1
    if comm.rank == 0:
        print(*report(found), sep="\n")
        print("the same weights to the bit" if same else "the weights DIFFER")
        plot(found, options.plot)
        print(f"picture: {options.plot}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
