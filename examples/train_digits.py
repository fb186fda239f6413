"""Train a convolutional network on scanned digits, with NumPy and bn_ext alone.

The network has two convolutions with batch normalization and ReLU, in channels-last layout, and
one dense layer. The data is the 1797 images of 8 x 8 pixels that scikit-learn ships. bn_ext's layer
computes the batch normalization and the ReLU; for comparison, the usual NumPy formula can:

    python examples/train_digits.py
    python examples/train_digits.py --dtype bfloat16
    python examples/train_digits.py --norm numpy

It first prints what a training step takes with each of the two, and normalization's share of it;
then the accuracy. It also draws a picture of both. Ctrl-C ends the training early and shows the
results so far.
"""

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import bn_ext

CHANNELS, CLASSES, BATCH, EPSILON = (1, 16, 32), 10, 64, 1e-5
DTYPES = ("float32", "float64", "float16", ml_dtypes.bfloat16.__name__)
LOSS_SCALE = 4096.0  # keeps gradients of a mean loss clear of float16's subnormals
TURNS = 40  # steps that are timed with each way to normalize


class Layer:
    """What bn_ext.BatchNorm has too: train, forward, backward, parameters, gradients."""

    def train(self, training):
        self.training = training
        return self


class Convolution(Layer):
    """3 x 3, zero-padded, as one matrix product over patches (im2col)."""

    def __init__(self, rng, inputs, outputs, number):
        scale = np.sqrt(2 / (9 * inputs))
        self.weight = (rng.standard_normal((9 * inputs, outputs)) * scale).astype(number)
        self.parameters = (self.weight,)

    def forward(self, x):
        self.shape = n, height, width, channels = x.shape
        padded = np.zeros((n, height + 2, width + 2, channels), x.dtype)
        padded[:, 1:-1, 1:-1] = x
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 9 * channels)
        self.patches = patches.astype(self.weight.dtype, copy=False)
        return (
            (self.patches @ self.weight).reshape(n, height, width, -1).astype(x.dtype, copy=False)
        )

    def backward(self, diff):
        n, height, width, channels = self.shape
        rows = diff.reshape(len(self.patches), -1).astype(self.weight.dtype, copy=False)
        self.gradients = (self.patches.T @ rows,)
        if channels == 1:
            return None  # nothing needs the gradient of the images
        parts = (rows @ self.weight.T).reshape(n, height, width, 3, 3, channels)
        padded = np.zeros((n, height + 2, width + 2, channels), self.weight.dtype)
        for i in range(3):
            for j in range(3):
                padded[:, i : i + height, j : j + width] += parts[:, :, :, i, j]
        return padded[:, 1:-1, 1:-1].astype(diff.dtype)


class NumpyNorm(Layer):
    """Batch normalization and ReLU by the usual formula, in the parameters' dtype."""

    def __init__(self, channels, number):
        self.gamma, self.beta = np.ones(channels, number), np.zeros(channels, number)
        self.running_mean, self.running_variance = self.beta.copy(), self.gamma.copy()
        self.parameters = self.gamma, self.beta

    def forward(self, x):
        values, axes = x.astype(self.gamma.dtype, copy=False), tuple(range(x.ndim - 1))
        mean, variance = self.running_mean, self.running_variance
        if self.training:
            mean, variance = values.mean(axis=axes), values.var(axis=axes)
            self.running_mean += (mean - self.running_mean) * 0.1
            self.running_variance += (variance - self.running_variance) * 0.1
        self.rstd = 1 / np.sqrt(variance + self.gamma.dtype.type(EPSILON))
        self.xhat = (values - mean) * self.rstd
        self.dst = np.maximum(self.gamma * self.xhat + self.beta, 0)
        return self.dst.astype(x.dtype, copy=False)

    def backward(self, diff):
        dy, axes = diff.astype(self.gamma.dtype, copy=False) * (self.dst > 0), (0, 1, 2)
        diff_gamma, diff_beta = (dy * self.xhat).sum(axis=axes), dy.sum(axis=axes)
        self.gradients = diff_gamma, diff_beta
        count = dy.size // diff_beta.size
        diff_src = self.gamma * self.rstd * (dy - (diff_beta + self.xhat * diff_gamma) / count)
        return diff_src.astype(diff.dtype, copy=False)


OPTIONS = {"data_format": "NHWC", "relu": True, "epsilon": EPSILON, "correction": 0}
NORMS = {"numpy": NumpyNorm, "bn_ext": lambda c, dt: bn_ext.BatchNorm(c, dtype=dt, **OPTIONS)}


class Dense(Layer):
    """Maps all activations to a score for each class."""

    def __init__(self, rng, inputs, outputs, number):
        self.weight = (rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(number)
        self.bias = np.zeros(outputs, number)
        self.parameters = self.weight, self.bias

    def forward(self, x):
        self.shape, self.dtype = x.shape, x.dtype
        self.x = x.reshape(len(x), -1).astype(self.weight.dtype, copy=False)
        return self.x @ self.weight + self.bias

    def backward(self, diff):
        self.gradients = self.x.T @ diff, diff.sum(axis=0)
        return (diff @ self.weight.T).reshape(self.shape).astype(self.dtype, copy=False)


class Adam:
    """Kingma and Ba 2015, with a cosine learning-rate schedule."""

    def __init__(self, parameters, rate, steps):
        self.parameters, self.rate, self.steps, self.step = parameters, rate, steps, 0
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]

    def update(self, gradients):
        self.step += 1
        rate = self.rate * 0.5 * (1 + np.cos(np.pi * self.step / self.steps))
        rate *= np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            g = g / p.dtype.type(LOSS_SCALE)
            m += p.dtype.type(0.1) * (g - m)
            v += p.dtype.type(0.001) * (g * g - v)
            p -= p.dtype.type(rate) * m / (np.sqrt(v) + p.dtype.type(1e-8))


def softmax_loss(scores, labels):
    """Mean cross-entropy, and its gradient, scaled up by LOSS_SCALE."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    diff = np.exp(logs)
    diff[rows, labels] -= 1
    return -float(logs[rows, labels].mean()), diff * scores.dtype.type(LOSS_SCALE / len(labels))


class Network:
    """Layers, optimizer; the seconds of the last step and of its normalization; a row per epoch."""

    def __init__(self, rng, dtype, norm, steps):
        self.dtype, number = np.dtype(dtype), np.float64 if dtype == "float64" else np.float32
        self.layers = []
        for inputs, outputs in pairwise(CHANNELS):
            self.layers += [Convolution(rng, inputs, outputs, number), NORMS[norm](outputs, number)]
        self.layers.append(Dense(rng, 8 * 8 * outputs, CLASSES, number))
        self.optimizer = Adam([p for layer in self.layers for p in layer.parameters], 3e-3, steps)
        self.seconds = self.normalizing = 0.0
        self.losses, self.accuracies = [], []

    def timed(self, layer, call, argument):
        start = time.perf_counter()
        result = call(argument)
        if isinstance(layer, (NumpyNorm, bn_ext.BatchNorm)):
            self.normalizing += time.perf_counter() - start
        return result

    def scores(self, images, training=False):
        x = images.astype(self.dtype, copy=False)
        for layer in self.layers:
            x = self.timed(layer, layer.train(training).forward, x)
        return x

    def step(self, images, labels):
        """Forward, backward, update; return the loss."""
        start, self.normalizing = time.perf_counter(), 0.0
        loss, diff = softmax_loss(self.scores(images, training=True), labels)
        for layer in reversed(self.layers):
            diff = self.timed(layer, layer.backward, diff)
        self.optimizer.update([g for layer in self.layers for g in layer.gradients])
        self.seconds = time.perf_counter() - start
        return loss


def load(seed):
    """Images (n, 8, 8, 1) from 0 to 1, and labels: three quarters to train on, the rest to test."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    order = np.random.default_rng(seed).permutation(len(images))
    train, test = np.split(order, [3 * len(images) // 4])
    return images[train], digits.target[train], images[test], digits.target[test]


def train(dtype="float32", norm="bn_ext", epochs=40, seed=0):
    """Train from scratch, and yield the network after each epoch."""
    rng = np.random.default_rng(seed)
    images, labels, *tests = load(seed)
    steps = len(images) // BATCH
    network = Network(rng, dtype, norm, epochs * steps)
    for _ in range(epochs):
        batches = np.split(rng.permutation(len(images))[: steps * BATCH], steps)
        network.losses.append(np.mean([network.step(images[b], labels[b]) for b in batches]))
        network.accuracies.append((network.scores(tests[0]).argmax(axis=1) == tests[1]).mean())
        yield network


def compare(dtype):
    """Seconds of a step and of its normalization, (NORMS, TURNS, 2), measured in turns."""
    images, labels, *_ = load(0)
    networks = [Network(np.random.default_rng(0), dtype, norm, TURNS) for norm in NORMS]
    times = np.empty((len(NORMS), TURNS, 2))
    for turn in range(TURNS):
        for k, network in enumerate(networks):
            network.step(images[:BATCH], labels[:BATCH])
            times[k, turn] = network.seconds, network.normalizing
    return times


def report(times):
    """What a step takes, and, on a machine whose times mean little, that it is busy."""
    (numpy_time, numpy_part), (own_time, own_part) = medians = np.median(times, axis=1)
    noise = (medians / times.min(axis=1))[:, 0].max()
    line = (
        f"a training step takes {1e3 * own_time:.1f} ms, {own_part / own_time:.0%} of it in "
        f"bn_ext; with NumPy's formula {1e3 * numpy_time:.1f} ms, {numpy_part / numpy_time:.0%} "
        f"in the formula: {numpy_time / own_time:.2f} times as long"
    )
    busy = f"BUSY: the median step takes {noise:.1f} times as long as the shortest. Measure again."
    return [line, busy] if noise > 2 else [line]


def plot(network, images, labels, times, path):
    """Some digits and their predictions; the accuracy; the time of a step."""
    figure = Figure(figsize=(4.3, 6.2), layout="constrained")  # for the width of a phone
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.9])
    shown = zip(images, labels, network.scores(images).argmax(axis=1), strict=True)
    for panel, (image, label, prediction) in zip(above.subplots(2, 7).flat, shown, strict=False):
        panel.imshow(image, cmap="gray_r")
        text = f"{label}" if label == prediction else f"{prediction} (is {label})"
        panel.set_title(text, fontsize=10)
        panel.axis("off")
    accuracy, cost = below.subplots(2, 1, height_ratios=[1.5, 1])
    accuracy.plot(1 + np.arange(len(network.losses)), 100 * np.array(network.accuracies), ".-C7")
    accuracy.set_xlabel("epoch")
    accuracy.set_title("test accuracy, %", fontsize=11)
    steps, parts = 1e3 * np.median(times, axis=1).T
    cost.barh(["NumPy's\nformula", "bn_ext"], parts, label="normalization, ReLU")
    bars = cost.barh([0, 1], steps - parts, left=parts, color="C7", label="all else")
    cost.bar_label(bars, [f"{step:.1f}" for step in steps], padding=3)
    cost.margins(x=0.12)
    cost.invert_yaxis()
    cost.set_title("a training step, ms", fontsize=11)
    below.legend(*cost.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)


def main(arguments=None):
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of activations")
    parser.add_argument("--norm", choices=NORMS, default="bn_ext", help="what normalizes")
    parser.add_argument("--epochs", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--plot", type=Path, default="train_digits.png", metavar="PICTURE")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.seed < 0:
        parser.error("expected 1 or more epochs, and a seed of 0 or more")
    endings = Figure().canvas.get_supported_filetypes()
    if options.plot.suffix[1:] not in endings or not options.plot.parent.is_dir():
        expected = f"a file in a folder that exists, with the ending {', '.join(endings)}"
        parser.error(f"argument --plot: expected {expected}; got '{options.plot}'")

    times = compare(options.dtype)
    print(*report(times), sep="\n", flush=True)
    network, status = None, 0
    try:
        for network in train(options.dtype, options.norm, options.epochs, options.seed):
            done, loss = len(network.losses), network.losses[-1]
            accuracy = f"test accuracy {100 * network.accuracies[-1]:.2f} %"
            print(f"epoch {done} of {options.epochs}: loss {loss:.4f}, {accuracy}", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    if network:
        plot(network, *load(options.seed)[2:], times, options.plot)
        print(f"picture: {options.plot}")
    return status


if __name__ == "__main__":
    sys.exit(main())
