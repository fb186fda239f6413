"""Whole steps of NumPy networks, with NumPy's batch normalization and with bn_ext's.

A step: forward, softmax cross-entropy, backward, gradient descent, in float32, channels last.
Convolutions of 3x3 are matrix products of patches (im2col). Behind each of them and each dense
layer but the last stand batch normalization and a ReLU: NumPy's are the usual formula and
np.maximum, bn_ext's one layer. Except for these, the programs are the same. For docs/figures.md.
"""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise, product
from statistics import median

import numpy as np

import bn_ext
from bn_ext._bench import WORK, burst, in_turns

from . import pages
from .views import busy

EPSILON, RATE, CLASSES = 1e-5, np.float32(0.01), 10


class NumpyNorm:
    """The usual formula, and a ReLU."""

    def __init__(self, channels):
        self.gamma, self.beta = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        self.running_mean, self.running_var = self.beta.copy(), self.gamma.copy()

    def forward(self, x):
        self.axes = tuple(range(x.ndim - 1))
        mean = x.mean(axis=self.axes)
        centered = x - mean
        var = (centered * centered).mean(axis=self.axes)
        self.rstd = 1 / np.sqrt(var + np.float32(EPSILON))
        self.xhat = centered * self.rstd
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            running += np.float32(0.1) * (new - running)
        self.dst = np.maximum(self.gamma * self.xhat + self.beta, 0)
        return self.dst

    def backward(self, dy):
        dy = dy * (self.dst > 0)
        d_beta, d_gamma = dy.sum(axis=self.axes), (dy * self.xhat).sum(axis=self.axes)
        m = np.float32(dy.size / d_beta.size)
        dx = self.gamma * self.rstd * (dy - (d_beta + self.xhat * d_gamma) / m)
        self.gamma -= RATE * d_gamma
        self.beta -= RATE * d_beta
        return dx


class Norm(bn_ext.BatchNorm):
    """bn_ext's layer, and a ReLU."""

    def __init__(self, channels):
        super().__init__(channels, data_format="NXC", epsilon=EPSILON, relu=True)

    def backward(self, dy):
        dx = super().backward(dy)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter -= RATE * gradient
        return dx


class Dense:
    def __init__(self, rng, inputs, outputs, first=False):
        self.weight = (rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype("f4")
        self.first = first

    def forward(self, x):
        self.x = x
        return x @ self.weight

    def backward(self, dy):
        gradient = self.x.T @ dy
        dx = None if self.first else dy @ self.weight.T
        self.weight -= RATE * gradient
        return dx


class Conv:
    """3x3, zeros around the image; a dense layer of patches."""

    def __init__(self, rng, inputs, outputs, first=False):
        self.dense = Dense(rng, 9 * inputs, outputs, first)

    def forward(self, x):
        self.shape = n, h, w, c = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        patches = views.transpose(0, 1, 2, 4, 5, 3).reshape(n * h * w, 9 * c)
        return self.dense.forward(patches).reshape(n, h, w, -1)

    def backward(self, dy):
        n, h, w, c = self.shape
        parts = self.dense.backward(dy.reshape(n * h * w, -1))
        if parts is None:
            return None
        parts = parts.reshape(n, h, w, 3, 3, c)
        dx = np.zeros((n, h + 2, w + 2, c), np.float32)
        for i, j in product(range(3), repeat=2):
            dx[:, i : i + h, j : j + w] += parts[:, :, :, i, j]
        return dx[:, 1:-1, 1:-1]


class Pool:
    """The mean of each image."""

    def forward(self, x):
        self.shape = x.shape
        return x.mean(axis=(1, 2))

    def backward(self, dy):
        n, h, w, c = self.shape
        return np.broadcast_to((dy / np.float32(h * w)).reshape(n, 1, 1, c), self.shape)


#: name: (sizes or channels, batch, size of an image)
NETWORKS = {
    "dense 64-64-64-10, batch 128": ((64, 64, 64), 128, 0),
    "dense 784-512-512-10, batch 256": ((784, 512, 512), 256, 0),
    "dense 784-1024-1024-1024-10, batch 1024": ((784, 1024, 1024, 1024), 1024, 0),
    "convolutions 3-16-32, 64 images of 16x16": ((3, 16, 32), 64, 16),
    "convolutions 8-32-32-64, 32 images of 28x28": ((8, 32, 32, 64), 32, 28),
}
NORMS = {"numpy": NumpyNorm, "bn_ext": Norm}


def step_of(name, norm):
    """A step of training with this batch normalization."""
    sizes, batch, size = NETWORKS[name]
    rng, layers = np.random.default_rng(0), []
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [(Conv if size else Dense)(rng, inputs, outputs, first=k == 0), norm(outputs)]
    layers += [Pool()] * bool(size) + [Dense(rng, outputs, CLASSES)]
    shape = (batch, size, size, sizes[0]) if size else (batch, sizes[0])
    x = rng.standard_normal(shape, dtype=np.float32)
    labels, rows = rng.integers(CLASSES, size=batch), np.arange(batch)

    def step():
        y = x
        for layer in layers:
            y = layer.forward(y)
        p = np.exp(y - y.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[rows, labels]).mean()
        p[rows, labels] -= 1
        dy = p / np.float32(batch)
        for layer in reversed(layers):
            dy = layer.backward(dy)
        return loss

    return step


def times_of(name, seconds):
    """{package: the times of a step}"""
    bursts = {}
    for package, norm in NORMS.items():
        step = step_of(name, norm)
        step()
        bursts[package] = partial(burst, step, WORK["nothing"])
    times = in_turns(bursts, seconds)
    return {package: [time.call for time in times[package]] for package in NORMS}


def report(options):
    """Every network, with one thread of BLAS and with all, each in a process of its own."""
    lines, spread = [], []
    for name, threads in product(NETWORKS, ("1", "all")):
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
        if threads == "1":
            os.environ["OPENBLAS_NUM_THREADS"] = threads
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            times = process.submit(times_of, name, options.seconds).result()
        medians = [median(times[package]) for package in NORMS]
        spread.append(max(median(seconds) / min(seconds) for seconds in times.values()))
        texts = [f"{1e3 * seconds:.2f}" for seconds in medians]
        lines.append([name, threads, *texts, f"{medians[0] / medians[1]:.2f}"])
        print(*lines[-1], flush=True)
    print(end=busy(spread), file=sys.stderr)
    heading = ["network", "BLAS threads", "numpy, ms", "bn_ext, ms", "numpy / bn_ext"]
    pages.put_rows("numpy_networks", "docs/figures.md", heading, lines)
