"""Train a convolutional network on scanned digits, with NumPy and bn_ext alone.

The network has three convolutions with batch normalization and ReLU, in channels-last layout
(NXC), and one dense layer. The data is the 1797 images of 8 x 8 pixels that scikit-learn ships.
bn_ext computes the batch normalization. For comparison, the NumPy formula can compute its gradient:

    python examples/train_digits.py
    python examples/train_digits.py --dtype bfloat16
    python examples/train_digits.py --gradient numpy

It prints the test accuracy. For the gradient of batch normalization, it prints the time per step in
each dtype, with bn_ext and with the formula, and the share of a training step. It also draws a
picture of the accuracy and the times. Ctrl-C ends the training early and shows the results so far.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
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
LOSS_SCALE = 4096.0
DIGITS = 2, 7  # rows and columns in the picture


# ---- the gradient of batch normalization, two ways ----------------------------------


def gradient_by_bn_ext(src, diff_dst, mean, variance, gamma):
    """One call on the arrays as they are."""
    return bn_ext.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon=EPSILON, data_format="NHWC"
    )


def gradient_by_numpy(src, diff_dst, mean, variance, gamma):
    """The formula, in the parameters' dtype."""
    given = src, diff_dst, mean, variance
    x, dy, mean, variance = (a.astype(gamma.dtype, copy=False) for a in given)
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
        self.stride, self.parameters = stride, [self.weight]

    def forward(self, x, training):
        n, height, width, channels = x.shape
        padded = np.zeros((n, height + 2, width + 2, channels), x.dtype)
        padded[:, 1:-1, 1:-1] = x
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        windows = windows[:, :: self.stride, :: self.stride]  # n, h, w, channels, 3, 3
        patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 9 * channels)
        self.patches = patches.astype(self.weight.dtype, copy=False)
        self.shape_in, self.shape_out = x.shape, windows.shape[:3]
        dst = self.patches @ self.weight
        return dst.reshape(*self.shape_out, self.weight.shape[1]).astype(x.dtype)

    def backward(self, diff):
        self.gradients = self.parameter_gradients(diff)
        return self.input_gradient(diff)

    def rows(self, diff):
        return diff.reshape(-1, diff.shape[-1]).astype(self.weight.dtype, copy=False)

    def parameter_gradients(self, diff):
        return [self.patches.T @ self.rows(diff)]

    def input_gradient(self, diff):
        n, height, width, channels = self.shape_in
        diff_patches = self.rows(diff) @ self.weight.T
        diff_patches = diff_patches.reshape(*self.shape_out, 3, 3, channels)
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
        self.running_mean, self.running_variance = np.zeros_like(self.beta), np.ones_like(self.beta)
        self.parameters = [self.gamma, self.beta]
        self.gradient, self.clock = gradient, clock

    def forward(self, x, training):
        running = self.running_mean, self.running_variance
        affine = self.gamma, self.beta
        if not training:
            return bn_ext.batch_norm_inference(
                x, *running, *affine, epsilon=EPSILON, data_format="NHWC"
            )
        self.src = x
        dst, self.mean, self.variance = bn_ext.batch_norm_training(
            x, *affine, epsilon=EPSILON, data_format="NHWC", running_mean=running[0],
            running_variance=running[1], exponential_avg_factor=0.1, correction=0,
        )  # fmt: skip
        return dst

    def backward(self, diff):
        self.arguments = self.src, diff, self.mean, self.variance, self.gamma
        milliseconds, (diff_src, *self.gradients) = timed(GRADIENTS[self.gradient], *self.arguments)
        self.clock.gradient += milliseconds
        return diff_src


class ReLU:
    """Keeps what is positive."""

    parameters = gradients = ()

    def forward(self, x, training):
        self.positive = x > 0
        return np.where(self.positive, x, x.dtype.type(0))

    def backward(self, diff):
        return np.where(self.positive, diff, diff.dtype.type(0))


class Dense:
    """Maps all activations to ten scores."""

    def __init__(self, rng, inputs, outputs, number):
        self.weight = (rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(number)
        self.bias = np.zeros(outputs, number)
        self.parameters = [self.weight, self.bias]

    def forward(self, x, training):
        self.shape, self.dtype = x.shape, x.dtype
        self.x = x.reshape(len(x), len(self.weight)).astype(self.weight.dtype, copy=False)
        return self.x @ self.weight + self.bias

    def backward(self, diff):
        self.gradients = self.parameter_gradients(diff)
        return self.input_gradient(diff)

    def parameter_gradients(self, diff):
        return [self.x.T @ diff, diff.sum(axis=0)]

    def input_gradient(self, diff):
        return (diff @ self.weight.T).reshape(self.shape).astype(self.dtype)


# ---- training -----------------------------------------------------------------------


def timed(function, *arguments):
    """Milliseconds that a call takes, and what it returns."""
    start = time.perf_counter()
    result = function(*arguments)
    return 1e3 * (time.perf_counter() - start), result


class Clock:
    """Milliseconds of steps, of each one's gradient, and of both GRADIENTS in every dtype."""

    def __init__(self):
        self.steps, self.gradients, self.gradient = [], [], 0.0
        self.both = {(name, way): [] for name in DTYPES for way in GRADIENTS}

    def compare(self, norms):
        """Time both gradients in each dtype, on the last arguments of these layers."""
        for (name, way), times in self.both.items():
            number = np.float64 if name == "float64" else np.float32
            types = [DTYPES[name]] * 2 + [number] * 3
            cast = [map(np.ndarray.astype, norm.arguments, types) for norm in norms]
            times.append(sum(timed(GRADIENTS[way], *arguments)[0] for arguments in cast))

    def milliseconds(self):
        """{(dtype, way): median of a step}"""
        return {kind: float(np.median(times)) for kind, times in self.both.items()}

    def share(self, milliseconds):
        """A gradient's share of a step, if it takes this long and the rest as long as before."""
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

    clock: Clock = field(default_factory=Clock)
    layers: list = field(default_factory=list)
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


def softmax_loss(scores, labels):
    """Mean cross-entropy, and its gradient, scaled up by LOSS_SCALE."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    diff = np.exp(logs)
    diff[rows, labels] -= 1
    return -float(logs[rows, labels].mean()), diff * scores.dtype.type(LOSS_SCALE / len(labels))


def forward(layers, x, training):
    for layer in layers:
        x = layer.forward(x, training)
    return x


def train_step(layers, optimizer, images, labels):
    """Forward, backward, update; return the loss."""
    loss, diff = softmax_loss(forward(layers, images, True), labels)
    for layer in reversed(layers):
        diff = layer.backward(diff)
    optimizer.update([g for layer in layers for g in layer.gradients])
    return loss


def train(
    dtype="float32", gradient="bn_ext", epochs=40, batch=64, seed=0, say=None, history=None
):  # fmt: skip
    """Train from scratch; the same arguments give the same network.

    `history` is filled during the training, so that the caller has it after an interrupt. `say` is
    called after each step and each epoch, with the number of steps done, the number of all steps,
    and the mean loss of this epoch so far.
    """
    history = History() if history is None else history
    activation = DTYPES[dtype]
    number = np.float64 if dtype == "float64" else np.float32
    rng = np.random.default_rng(seed)
    train_x, train_y, test_x, test_y = load(seed)
    history.images, history.labels = test_x[..., 0], test_y
    clock, layers = history.clock, history.layers
    for channels_in, channels_out, stride in ((1, 16, 1), (16, 32, 1), (32, 64, 2)):
        layers += [
            Convolution(rng, channels_in, channels_out, stride, number),
            BatchNorm(channels_out, number, gradient, clock),
            ReLU(),
        ]
    layers.append(Dense(rng, 4 * 4 * 64, 10, number))

    steps = len(train_x) // batch
    optimizer = Adam([p for layer in layers for p in layer.parameters], 3e-3, epochs * steps)
    for epoch in range(epochs):
        order = rng.permutation(len(train_x))
        total = 0.0
        for step in range(steps):
            some = order[step * batch : (step + 1) * batch]
            images = train_x[some].astype(activation)
            clock.gradient = 0.0
            milliseconds, loss = timed(train_step, layers, optimizer, images, train_y[some])
            clock.steps.append(milliseconds)
            clock.gradients.append(clock.gradient)
            total += loss
            if say:
                say(epoch * steps + step + 1, epochs * steps, total / (step + 1))
        clock.compare([layer for layer in layers if isinstance(layer, BatchNorm)])
        scores = forward(layers, test_x.astype(activation), False)
        history.predictions = scores.argmax(axis=1)
        history.losses.append(total / steps)
        history.accuracies.append(float((history.predictions == test_y).mean()))
        if say:
            say((epoch + 1) * steps, epochs * steps, history.losses[-1])
    return history


# ---- what is shown ------------------------------------------------------------------


def plot(history, title, path):
    """Some digits and their predictions; the accuracy, and the cost of the gradient."""
    figure = Figure(figsize=(4.3, 6.8), layout="constrained")  # for the width of a phone
    above, below = figure.subfigures(2, 1, height_ratios=[1, 2.2])
    above.suptitle(title, fontsize=11)
    shown = zip(history.images, history.labels, history.predictions, strict=True)
    panels = above.subplots(*DIGITS).flat
    for panel, (image, label, prediction) in zip(panels, shown, strict=False):
        panel.imshow(image, cmap="gray_r")
        right = label == prediction
        panel.set_title(
            f"{label}" if right else f"{prediction} (is {label})",
            fontsize=10, color="C7" if right else "C3",
        )  # fmt: skip
        panel.axis("off")

    accuracy, cost = below.subplots(2, 1, height_ratios=[1, 1.5])
    epochs = np.arange(1, len(history.losses) + 1)
    accuracy.plot(epochs, 100 * np.array(history.accuracies), ".-", color="C7")
    accuracy.set_xlabel("epoch")
    accuracy.set_title("test accuracy, %", fontsize=11)

    times = history.clock.milliseconds()
    rows = np.arange(len(DTYPES))
    for way, label, shift in (("bn_ext", "bn_ext", -0.2), ("numpy", "NumPy formula", 0.2)):
        some = [times[name, way] for name in DTYPES]
        bars = cost.barh(rows + shift, some, 0.38, label=label)
        cost.bar_label(bars, [f"{t:.2f}" for t in some], padding=3)
    cost.set_xscale("log")
    cost.xaxis.set_major_formatter("{x:g}")
    cost.margins(x=0.15)
    cost.set_yticks(rows, DTYPES)
    cost.invert_yaxis()
    cost.set_title("gradient of batch normalization, ms per step", fontsize=11)
    below.legend(*cost.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)


def report(history, dtype):
    """Lines of text: accuracy, and what the gradient costs."""
    clock, times = history.clock, history.clock.milliseconds()
    lines = [
        f"test accuracy {100 * history.accuracies[-1]:.2f} %, epoch {len(history.accuracies)}",
        "gradient of batch normalization, ms per step:",
        f"  {'':8}  {'bn_ext':>6}  NumPy formula",
    ]
    for name in DTYPES:
        ours, formula = times[name, "bn_ext"], times[name, "numpy"]
        lines.append(
            f"  {name:8}  {ours:6.2f}  {formula:13.2f}, {formula / ours:.1f} times as long"
        )
    shares = [100 * clock.share(times[dtype, way]) for way in ("bn_ext", "numpy")]
    lines += [
        f"a training step in {dtype} takes {np.median(clock.steps):.1f} ms; the gradient's",
        f"share of it is {shares[0]:.2g} % with bn_ext, {shares[1]:.2g} % with the formula",
    ]
    noise = np.median(clock.steps) / min(clock.steps)
    if noise > 2:
        lines.append(
            f"BUSY: the median step takes {noise:.1f} times as long as the shortest. Other "
            "programs are running: measure again without them."
        )
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
    """A type for argparse: a writable path, with an extension that matplotlib knows."""
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
        path.unlink(missing_ok=True)  # another process may have removed it
    return path


def main(arguments=None):
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of activations")
    parser.add_argument("--gradient", choices=GRADIENTS, default="bn_ext", help="what computes it")
    parser.add_argument("--epochs", type=as_count(1), default=40, metavar="N")
    parser.add_argument("--seed", type=as_count(0), default=0, metavar="N")
    parser.add_argument(
        "--plot", type=as_picture, default="train_digits.png", metavar="FILE", help="the picture"
    )
    options = parser.parse_args(arguments)

    history = History()
    interrupted = False
    terminal = Console().is_terminal  # there, a bar; elsewhere, a line for each epoch
    with Progress(disable=not terminal) as progress:
        task = progress.add_task(options.dtype, total=None)

        def say(done, total, loss):
            epochs, text = len(history.accuracies), f"{options.dtype}, loss {loss:.4f}"
            if epochs:
                text += f", accuracy {100 * history.accuracies[-1]:.1f} %"
            progress.update(task, completed=done, total=total, description=text)
            if not terminal and done * options.epochs == epochs * total:
                print(f"epoch {epochs} of {options.epochs}: {text}", flush=True)

        try:
            train(
                options.dtype, options.gradient, options.epochs, seed=options.seed, say=say,
                history=history,
            )  # fmt: skip
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        print(
            f"interrupted after {len(history.losses)} of {options.epochs} epochs", file=sys.stderr
        )
    if history.losses:
        print(*report(history, options.dtype), sep="\n")
        title = f"{options.dtype} activations, gradient by {options.gradient}; test images"
        plot(history, title, options.plot)
        print(f"picture: {options.plot}")
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
