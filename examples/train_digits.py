"""Train a convolutional network on scanned digits, with NumPy and bn_ext alone.

Three convolutions with batch normalization and ReLU, in channels-last (NXC) layout, and
one dense layer, on the 1797 images of 8 x 8 pixels that scikit-learn ships. The gradient
of batch normalization comes from bn_ext, or, to compare, from the formula in NumPy:

    python examples/train_digits.py
    python examples/train_digits.py --dtype bfloat16
    python examples/train_digits.py --gradient numpy

Prints the test accuracy and what the gradient of batch normalization cost per step, and
writes a picture of both.
"""

import argparse
import time
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import bn_ext

EPSILON = 1e-5
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Keeps gradients of a mean loss clear of float16's subnormals.
LOSS_SCALE = 128.0


# ---- the gradient of batch normalization, two ways ----------------------------------


def gradient_by_bn_ext(src, diff_dst, mean, variance, gamma):
    """One call on the arrays as they are."""
    return bn_ext.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=EPSILON)


def gradient_by_numpy(src, diff_dst, mean, variance, gamma):
    """The formula, in the parameters' dtype."""
    x, dy = src.astype(mean.dtype, copy=False), diff_dst.astype(mean.dtype, copy=False)
    axes = tuple(range(x.ndim - 1))
    m = x.size // x.shape[-1]
    rstd = 1 / np.sqrt(variance + mean.dtype.type(EPSILON))
    xhat = (x - mean) * rstd
    diff_beta = dy.sum(axis=axes)
    diff_gamma = (dy * xhat).sum(axis=axes)
    diff_src = gamma * rstd * (dy - (diff_beta + xhat * diff_gamma) / m)
    return diff_src.astype(src.dtype), diff_gamma, diff_beta


GRADIENTS = {"bn_ext": gradient_by_bn_ext, "numpy": gradient_by_numpy}


# ---- layers: activations in one dtype, parameters and products in another ------------


class Convolution:
    """3 x 3, padded with zeros, as one matrix product over patches (im2col)."""

    def __init__(self, rng, channels_in, channels_out, stride, number):
        scale = np.sqrt(2 / (9 * channels_in))
        self.weight = (rng.standard_normal((9 * channels_in, channels_out)) * scale).astype(number)
        self.stride = stride

    def parameters(self):
        return [self.weight]

    def forward(self, x, training):
        n, height, width, channels = x.shape
        padded = np.zeros((n, height + 2, width + 2, channels), x.dtype)
        padded[:, 1:-1, 1:-1] = x
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        windows = windows[:, :: self.stride, :: self.stride]  # n, h, w, channels, 3, 3
        patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 9 * channels)
        self.patches = patches.astype(self.weight.dtype, copy=False)
        self.shape_in, self.shape_out = x.shape, windows.shape[:3]
        return (self.patches @ self.weight).reshape(*self.shape_out, -1).astype(x.dtype)

    def backward(self, diff):
        diff_rows = diff.reshape(-1, diff.shape[-1]).astype(self.weight.dtype, copy=False)
        self.gradients = [self.patches.T @ diff_rows]
        n, height, width, channels = self.shape_in
        diff_patches = (diff_rows @ self.weight.T).reshape(*self.shape_out, 3, 3, channels)
        diff_padded = np.zeros((n, height + 2, width + 2, channels), self.weight.dtype)
        rows, columns, s = self.shape_out[1], self.shape_out[2], self.stride
        for i in range(3):
            for j in range(3):
                target = diff_padded[:, i : i + s * rows : s, j : j + s * columns : s]
                target += diff_patches[:, :, :, i, j]
        return diff_padded[:, 1:-1, 1:-1].astype(diff.dtype)


class BatchNorm:
    """Normalizes channels over batch and pixels; running statistics for testing."""

    def __init__(self, channels, number, gradient, clock):
        self.gamma, self.beta = np.ones(channels, number), np.zeros(channels, number)
        self.running_mean, self.running_variance = (
            np.zeros(channels, number),
            np.ones(channels, number),
        )
        self.gradient, self.clock = gradient, clock

    def parameters(self):
        return [self.gamma, self.beta]

    def forward(self, x, training):
        number = self.gamma.dtype.type
        wide = x.astype(number, copy=False)
        if training:
            self.src, self.mean, self.variance = (
                x,
                wide.mean(axis=(0, 1, 2)),
                wide.var(axis=(0, 1, 2)),
            )
            self.running_mean += number(0.1) * (self.mean - self.running_mean)
            self.running_variance += number(0.1) * (self.variance - self.running_variance)
            mean, variance = self.mean, self.variance
        else:
            mean, variance = self.running_mean, self.running_variance
        scale = self.gamma / np.sqrt(variance + number(EPSILON))
        return ((wide - mean) * scale + self.beta).astype(x.dtype)

    def backward(self, diff):
        arguments = self.src, diff, self.mean, self.variance, self.gamma
        diff_src, *self.gradients = GRADIENTS[self.gradient](*arguments)
        self.clock.time_both(arguments)
        return diff_src


class ReLU:
    """Keeps what is positive."""

    def parameters(self):
        return []

    def forward(self, x, training):
        self.positive = x > 0
        return np.where(self.positive, x, x.dtype.type(0))

    def backward(self, diff):
        self.gradients = []
        return np.where(self.positive, diff, diff.dtype.type(0))


class Dense:
    """All activations to ten scores."""

    def __init__(self, rng, inputs, outputs, number):
        self.weight = (rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(number)
        self.bias = np.zeros(outputs, number)

    def parameters(self):
        return [self.weight, self.bias]

    def forward(self, x, training):
        self.shape, self.dtype = x.shape, x.dtype
        self.x = x.reshape(len(x), -1).astype(self.weight.dtype, copy=False)
        return self.x @ self.weight + self.bias

    def backward(self, diff):
        self.gradients = [self.x.T @ diff, diff.sum(axis=0)]
        return (diff @ self.weight.T).reshape(self.shape).astype(self.dtype)


# ---- training -----------------------------------------------------------------------


@dataclass
class Clock:
    """Times both ways to compute the gradient, on the same arrays, at every tenth step."""

    step: int = 0
    sums: dict = field(default_factory=lambda: {name: [] for name in GRADIENTS})

    def next_step(self):
        self.step += 1
        if self.step % 10 == 0:
            for times in self.sums.values():
                times.append(0.0)

    def time_both(self, arguments):
        if self.step and self.step % 10 == 0:
            for name, gradient in GRADIENTS.items():
                start = time.perf_counter()
                gradient(*arguments)
                self.sums[name][-1] += 1e3 * (time.perf_counter() - start)

    def median(self, name):
        return float(np.median(self.sums[name])) if self.sums[name] else float("nan")


class Adam:
    """Kingma and Ba 2015, with a cosine learning rate."""

    def __init__(self, parameters, rate, steps):
        self.parameters, self.rate, self.steps, self.step = parameters, rate, steps, 0
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]

    def update(self, gradients):
        self.step += 1
        rate = self.rate * 0.5 * (1 + np.cos(np.pi * self.step / self.steps))
        rate *= np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            g = g.astype(p.dtype) / p.dtype.type(LOSS_SCALE)
            m += p.dtype.type(0.1) * (g - m)
            v += p.dtype.type(0.001) * (g * g - v)
            p -= p.dtype.type(rate) * m / (np.sqrt(v) + p.dtype.type(1e-8))


@dataclass
class History:
    """What a training leaves behind."""

    losses: list = field(default_factory=list)
    accuracies: list = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)


def load(seed):
    """Images (n, 8, 8, 1) in 0 ... 1 and labels: three quarters to train on, the rest to test."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    order = np.random.default_rng(seed).permutation(len(images))
    cut = 3 * len(images) // 4
    train, test = order[:cut], order[cut:]
    return images[train], digits.target[train], images[test], digits.target[test]


def shifted(rng, images):
    """Each image up to one pixel to the side: a digit stays what it is."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    result = np.empty_like(images)
    for k, (i, j) in enumerate(rng.integers(0, 3, (len(images), 2))):
        result[k] = padded[k, i : i + 8, j : j + 8]
    return result


def softmax_loss(scores, labels):
    """Mean cross-entropy, and its gradient, scaled up by LOSS_SCALE."""
    shifted_scores = scores - scores.max(axis=1, keepdims=True)
    logs = shifted_scores - np.log(np.exp(shifted_scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    diff = np.exp(logs)
    diff[rows, labels] -= 1
    return -float(logs[rows, labels].mean()), diff * scores.dtype.type(LOSS_SCALE / len(labels))


def forward(layers, x, training):
    for layer in layers:
        x = layer.forward(x, training)
    return x


def train(dtype="float32", gradient="bn_ext", epochs=40, batch=64, seed=0, progress=None):
    """Train from scratch; the same arguments give the same network."""
    activation = DTYPES[dtype]
    number = np.float64 if dtype == "float64" else np.float32
    rng = np.random.default_rng(seed)
    train_x, train_y, test_x, test_y = load(seed)
    history = History()
    clock = history.clock

    layers = []
    for channels_in, channels_out, stride in ((1, 16, 1), (16, 32, 1), (32, 64, 2)):
        layers += [
            Convolution(rng, channels_in, channels_out, stride, number),
            BatchNorm(channels_out, number, gradient, clock),
            ReLU(),
        ]
    layers.append(Dense(rng, 4 * 4 * 64, 10, number))

    steps = len(train_x) // batch
    optimizer = Adam([p for layer in layers for p in layer.parameters()], 3e-3, epochs * steps)
    task = progress.add_task(f"{dtype}, {gradient}", total=epochs * steps) if progress else None
    for _ in range(epochs):
        order = rng.permutation(len(train_x))
        total = 0.0
        for step in range(steps):
            some = order[step * batch : (step + 1) * batch]
            clock.next_step()
            images = shifted(rng, train_x[some]).astype(activation)
            loss, diff = softmax_loss(forward(layers, images, True), train_y[some])
            for layer in reversed(layers):
                diff = layer.backward(diff)
            optimizer.update([g for layer in layers for g in layer.gradients])
            total += loss
            if progress:
                progress.advance(task)
        scores = forward(layers, test_x.astype(activation), False)
        history.losses.append(total / steps)
        history.accuracies.append(float((scores.argmax(axis=1) == test_y).mean()))
    return history


def plot(history, title, path):
    """Loss and accuracy by epoch; the cost of the gradient by step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    epochs = np.arange(1, len(history.losses) + 1)
    left.semilogy(epochs, history.losses, color="C0")
    left.set(xlabel="epoch", ylabel="training loss", title=title)
    left.yaxis.label.set_color("C0")
    accuracy = left.twinx()
    accuracy.plot(epochs, 100 * np.array(history.accuracies), color="C1")
    accuracy.set_ylabel("test accuracy, %", color="C1")
    for name, times in history.clock.sums.items():
        steps = 10 * np.arange(1, len(times) + 1)
        label = f"{name}: median {history.clock.median(name):.2f} ms"
        right.plot(steps, times, ".", label=label)
    right.set(xlabel="step", ylabel="ms", title="gradient of batch normalization, per step")
    usual = max(np.percentile(times, 95) for times in history.clock.sums.values())
    right.set_ylim(0, 1.2 * usual)
    right.legend(loc="center right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments=None):
    """Run the command line; return the history."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the activations")
    parser.add_argument("--gradient", choices=GRADIENTS, default="bn_ext", help="who computes it")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", default="train_digits.png", metavar="FILE", help="where it goes")
    options = parser.parse_args(arguments)

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    start = time.perf_counter()
    with Progress(*columns) as progress:
        history = train(
            options.dtype, options.gradient, options.epochs, seed=options.seed, progress=progress
        )
    seconds = time.perf_counter() - start
    print(f"test accuracy {100 * history.accuracies[-1]:.2f} % after {seconds:.1f} s")
    ours, numpys = (history.clock.median(name) for name in GRADIENTS)
    print(
        f"gradient of batch normalization per step: bn_ext {ours:.2f} ms, "
        f"NumPy formula {numpys:.2f} ms ({numpys / ours:.1f} times)"
    )
    plot(history, f"{options.dtype} activations, gradient by {options.gradient}", options.plot)
    print(f"picture: {options.plot}")
    return history


if __name__ == "__main__":
    main()
