"""Train a convolutional network on scanned digits, with NumPy and bn_ext alone.

Three convolutions with batch normalization and ReLU, in channels-last layout (NXC), and
one dense layer, on the 1797 images of 8 x 8 pixels that scikit-learn ships. The gradient
of batch normalization comes from bn_ext or, for comparison, from the formula in NumPy:

    python examples/train_digits.py
    python examples/train_digits.py --dtype bfloat16
    python examples/train_digits.py --gradient numpy

Prints the test accuracy, the time that the gradient of batch normalization takes per step
in each dtype, with bn_ext and with the formula, and its share of a training step; draws
them in a picture. Ctrl-C ends the training early and shows the results so far.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits

import bn_ext

EPSILON = 1e-5
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Timed in each run, beside the run's own dtype.
COMPARED = ("float32", "bfloat16", "float16")
COMPARED_EVERY = 20
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
    """3 x 3, zero-padded, as one matrix product over patches (im2col)."""

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
    """Normalizes each channel over batch and pixels; with running statistics in testing."""

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
        with self.clock.gradient:
            diff_src, *self.gradients = GRADIENTS[self.gradient](*arguments)
        self.clock.compare(arguments)
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
    """Maps all activations to ten scores."""

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


class Stopwatch:
    """Adds up the milliseconds of each `with` block until read."""

    def __init__(self):
        self.total = 0.0

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *_):
        self.total += 1e3 * (time.perf_counter() - self.start)

    def read(self):
        total, self.total = self.total, 0.0
        return total


class Clock:
    """Milliseconds of steps, of the gradient in them, and of both gradients in several dtypes."""

    def __init__(self, dtype):
        self.step, self.gradient, self.comparison = Stopwatch(), Stopwatch(), Stopwatch()
        self.steps, self.gradients = [], []
        names = dict.fromkeys([*COMPARED, dtype])
        self.both = {(name, way): [] for name in names for way in GRADIENTS}
        self.now = dict.fromkeys(self.both, 0.0)

    def is_comparing(self):
        return len(self.steps) % COMPARED_EVERY == COMPARED_EVERY - 1

    def compare(self, arguments):
        """Time both ways on the same values in each dtype; not counted in the step's time."""
        if not self.is_comparing():
            return
        with self.comparison:
            for name, way in self.both:
                number = np.float64 if name == "float64" else np.float32
                types = [DTYPES[name]] * 2 + [number] * 3
                cast = [a.astype(t) for a, t in zip(arguments, types, strict=True)]
                start = time.perf_counter()
                GRADIENTS[way](*cast)
                self.now[name, way] += 1e3 * (time.perf_counter() - start)

    def end_step(self):
        if self.is_comparing():
            for kind, times in self.both.items():
                times.append(self.now[kind])
                self.now[kind] = 0.0
        self.steps.append(self.step.read() - self.comparison.read())
        self.gradients.append(self.gradient.read())

    def milliseconds(self):
        """{(dtype, way): median of a step}"""
        return {kind: float(np.median(times)) for kind, times in self.both.items()}

    def share(self, milliseconds):
        """The gradient's share of a step, if it takes so long and the rest takes what it took."""
        rest = float(np.median(np.subtract(self.steps, self.gradients)))
        return milliseconds / (rest + milliseconds)


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
            g = g.astype(p.dtype) / p.dtype.type(LOSS_SCALE)
            m += p.dtype.type(0.1) * (g - m)
            v += p.dtype.type(0.001) * (g * g - v)
            p -= p.dtype.type(rate) * m / (np.sqrt(v) + p.dtype.type(1e-8))


@dataclass
class History:
    """The results of a training, after each epoch."""

    clock: Clock
    losses: list = field(default_factory=list)
    accuracies: list = field(default_factory=list)
    images: np.ndarray | None = None
    labels: np.ndarray | None = None
    predictions: np.ndarray | None = None


def load(seed):
    """Images (n, 8, 8, 1) from 0 to 1, and labels: three quarters to train on, the rest to test."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    order = np.random.default_rng(seed).permutation(len(images))
    cut = 3 * len(images) // 4
    train, test = order[:cut], order[cut:]
    return images[train], digits.target[train], images[test], digits.target[test]


def shifted(rng, images):
    """Move each image by up to one pixel in each direction: the digit stays the same."""
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


def train(
    dtype="float32",
    gradient="bn_ext",
    epochs=40,
    batch=64,
    seed=0,
    say=lambda done, total, loss: None,
    history=None,
):
    """Train from scratch; the same arguments give the same network.

    `history` is filled during the training, so that the caller has it after an interrupt;
    `say` is called after each step with the number of steps done, the number of all steps
    and the loss of this epoch so far.
    """
    history = History(Clock(dtype)) if history is None else history
    activation = DTYPES[dtype]
    number = np.float64 if dtype == "float64" else np.float32
    rng = np.random.default_rng(seed)
    train_x, train_y, test_x, test_y = load(seed)
    history.images, history.labels = test_x[..., 0], test_y
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
    for epoch in range(epochs):
        order = rng.permutation(len(train_x))
        total = 0.0
        for step in range(steps):
            with clock.step:
                some = order[step * batch : (step + 1) * batch]
                images = shifted(rng, train_x[some]).astype(activation)
                loss, diff = softmax_loss(forward(layers, images, True), train_y[some])
                for layer in reversed(layers):
                    diff = layer.backward(diff)
                optimizer.update([g for layer in layers for g in layer.gradients])
            clock.end_step()
            total += loss
            say(epoch * steps + step + 1, epochs * steps, total / (step + 1))
        scores = forward(layers, test_x.astype(activation), False)
        history.predictions = scores.argmax(axis=1)
        history.losses.append(total / steps)
        history.accuracies.append(float((history.predictions == test_y).mean()))
    return history


# ---- what is shown ------------------------------------------------------------------

BN_EXT, FORMULA, WRONG = "C0", "C1", "C3"
DIGITS = 14


def plot(history, title, path):
    """Some digits and their predictions; loss, accuracy, and the cost of the gradient."""
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1, 2.4])
    above.suptitle(title)
    # Mistakes at the end, where there are any.
    wrong = np.flatnonzero(history.predictions != history.labels)[: DIGITS // 3]
    right = np.flatnonzero(history.predictions == history.labels)[: DIGITS - len(wrong)]
    for panel, k in zip(above.subplots(1, DIGITS), [*right, *wrong], strict=False):
        panel.imshow(history.images[k], cmap="gray_r")
        label, prediction = history.labels[k], history.predictions[k]
        if label == prediction:
            panel.set_title(f"{label}", fontsize=10)
        else:
            panel.set_title(f"{prediction} (is {label})", fontsize=10, color=WRONG)
    for panel in above.axes:
        panel.axis("off")

    loss, accuracy, cost = below.subplots(1, 3, width_ratios=[1, 1, 1.5])
    epochs = np.arange(1, len(history.losses) + 1)
    loss.plot(epochs, history.losses, ".-", color="black")
    loss.set(xlabel="epoch", title="training loss")
    loss.set_ylim(bottom=0)
    accuracy.plot(epochs, 100 * np.array(history.accuracies), ".-", color="black")
    accuracy.set(xlabel="epoch", title="test accuracy, %")
    for panel in (loss, accuracy):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.3)

    times = history.clock.milliseconds()
    names = list(dict.fromkeys(name for name, _ in times))
    for k, (way, label, color) in enumerate(
        (("bn_ext", "bn_ext", BN_EXT), ("numpy", "NumPy formula", FORMULA))
    ):
        some = [times[name, way] for name in names]
        bars = cost.barh(
            np.arange(len(names)) + 0.4 * k - 0.2, some, 0.38, label=label, color=color
        )
        cost.bar_label(bars, [f"{t:.2f}" for t in some], padding=3)
    cost.set_xscale("log")
    cost.xaxis.set_major_formatter("{x:g}")
    cost.margins(x=0.15)
    cost.set_yticks(range(len(names)), names)
    cost.invert_yaxis()
    cost.set(xlabel="ms (logarithmic)", title="gradient of batch normalization, per step")
    below.legend(*cost.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    figure.savefig(path, dpi=120)


def report(history, dtype):
    """Lines of text: accuracy, and what the gradient costs."""
    clock, times = history.clock, history.clock.milliseconds()
    lines = [
        f"test accuracy {100 * history.accuracies[-1]:.2f} %, epoch {len(history.accuracies)}",
        "gradient of batch normalization, ms per step:",
        f"  {'':8}  {'bn_ext':>6}  NumPy formula",
    ]
    for name in dict.fromkeys(name for name, _ in times):
        ours, formula = times[name, "bn_ext"], times[name, "numpy"]
        lines.append(
            f"  {name:8}  {ours:6.2f}  {formula:13.2f}, {formula / ours:.1f} times as long"
        )
    shares = [100 * clock.share(times[dtype, way]) for way in ("bn_ext", "numpy")]
    lines += [
        f"a training step in {dtype} takes {np.median(clock.steps):.1f} ms; the gradient's",
        f"share of it is {shares[0]:.1f} % with bn_ext, {shares[1]:.1f} % with the formula",
    ]
    return lines


# ---- the command line ---------------------------------------------------------------


def as_count(least):
    """A type for argparse: a whole number, `least` or more."""

    def convert(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number, {least} or more, got {text!r}"
            )
        return int(text)

    return convert


def as_picture(text):
    """A type for argparse: a path that can be written, with an ending that matplotlib knows."""
    path = Path(text)
    endings = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise argparse.ArgumentTypeError(
            f"expected a file name that ends in {', '.join(endings)}, got {text!r}"
        )
    try:
        existed = path.exists()
        path.open("ab").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    if not existed:
        path.unlink()
    return path


def main(arguments=None):
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of activations")
    parser.add_argument("--gradient", choices=GRADIENTS, default="bn_ext", help="its source")
    parser.add_argument("--epochs", type=as_count(1), default=40, metavar="N")
    parser.add_argument("--seed", type=as_count(0), default=0, metavar="N")
    parser.add_argument(
        "--plot", type=as_picture, default="train_digits.png", metavar="FILE", help="the picture"
    )
    options = parser.parse_args(arguments)

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    ]
    history = History(Clock(options.dtype))
    console = Console()
    start, interrupted = time.perf_counter(), False
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(options.dtype, total=None)

        def say(done, total, loss):
            text = f"{options.dtype}, loss {loss:.4f}"
            if history.accuracies:
                text += f", accuracy {100 * history.accuracies[-1]:.1f} %"
            progress.update(task, completed=done, total=total, description=text)

        try:
            train(
                options.dtype, options.gradient, options.epochs, seed=options.seed, say=say,
                history=history,
            )  # fmt: skip
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.perf_counter() - start
    if interrupted:
        print(
            f"interrupted after {len(history.losses)} of {options.epochs} epochs", file=sys.stderr
        )
    else:
        print(f"trained for {seconds:.1f} s")
    if history.losses:
        print(*report(history, options.dtype), sep="\n")
        title = f"{options.dtype} activations, gradient by {options.gradient}; test images"
        plot(history, title, options.plot)
        print(f"picture: {options.plot}")
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
