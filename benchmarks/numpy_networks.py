"""Whole steps of NumPy networks, with NumPy's batch normalization and with bn_ext's.

A step: forward, softmax cross-entropy, backward, gradient descent, in float32. Convolutions of 3x3
are matrix products of patches (im2col). Behind each of them and each dense layer but the last stand
batch normalization and a ReLU: NumPy's are the usual formula and np.maximum, bn_ext's one layer.
Except for these, the programs are the same. For docs/figures.md.
"""

from itertools import pairwise

import numpy as np

from .turns import medians, serve

EPSILON, RATE, CLASSES = 1e-5, np.float32(0.01), 10


class NumpyNorm:
    """The usual formula, and a ReLU."""

    def __init__(self, channels, data_format):
        shape = (channels, 1, 1) if data_format == "NCHW" else (channels,)
        self.axes = {"NC": 0, "NHWC": (0, 1, 2), "NCHW": (0, 2, 3)}[data_format]
        self.gamma, self.beta = np.ones(shape, np.float32), np.zeros(shape, np.float32)
        self.running_mean, self.running_var = self.beta.copy(), self.gamma.copy()

    def forward(self, x):
        mean = x.mean(axis=self.axes, keepdims=True)
        centered = x - mean
        var = (centered * centered).mean(axis=self.axes, keepdims=True)
        self.rstd = 1 / np.sqrt(var + np.float32(EPSILON))
        self.xhat = centered * self.rstd
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            running += np.float32(0.1) * (new.reshape(running.shape) - running)
        self.dst = np.maximum(self.gamma * self.xhat + self.beta, 0)
        return self.dst

    def backward(self, dy):
        dy = dy * (self.dst > 0)
        d_beta = dy.sum(axis=self.axes, keepdims=True)
        d_gamma = (dy * self.xhat).sum(axis=self.axes, keepdims=True)
        m = np.float32(dy.size / d_beta.size)
        dx = self.gamma * self.rstd * (dy - (d_beta + self.xhat * d_gamma) / m)
        self.gamma -= RATE * d_gamma.reshape(self.gamma.shape)
        self.beta -= RATE * d_beta.reshape(self.beta.shape)
        return dx


def bn_ext_norm(channels, data_format):
    import bn_ext

    class Norm(bn_ext.BatchNorm):
        def backward(self, dy):
            dx = super().backward(dy)
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                parameter -= RATE * gradient
            return dx

    return Norm(channels, data_format=data_format, epsilon=EPSILON, relu=True)


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
    """3x3, zeros around the image."""

    def __init__(self, rng, inputs, outputs, data_format, first=False):
        self.last, self.first = data_format == "NHWC", first
        shape = (9 * inputs, outputs) if self.last else (outputs, inputs * 9)
        self.weight = (rng.standard_normal(shape) * np.sqrt(2 / (9 * inputs))).astype("f4")

    def forward(self, x):
        self.shape = x.shape
        around = ((0, 0), (1, 1), (1, 1), (0, 0)) if self.last else ((0, 0), (0, 0), (1, 1), (1, 1))
        axes = (1, 2) if self.last else (2, 3)
        views = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), (3, 3), axis=axes)
        if self.last:  # N, H, W, C, 3, 3 -> N H W, 3 3 C
            n, h, w, c = x.shape
            self.patches = views.transpose(0, 1, 2, 4, 5, 3).reshape(n * h * w, 9 * c)
            return (self.patches @ self.weight).reshape(n, h, w, -1)
        n, c, h, w = x.shape  # N, C, H, W, 3, 3 -> N, C 3 3, H W
        self.patches = views.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * 9, h * w)
        return (self.weight @ self.patches).reshape(n, -1, h, w)

    def backward(self, dy):
        if self.last:
            n, h, w, c = self.shape
            flat = dy.reshape(n * h * w, -1)
            gradient = self.patches.T @ flat
            parts = None if self.first else (flat @ self.weight.T).reshape(n, h, w, 3, 3, c)
        else:
            n, c, h, w = self.shape
            flat = dy.reshape(n, -1, h * w)
            gradient = (flat @ self.patches.transpose(0, 2, 1)).sum(axis=0)
            parts = None if self.first else (self.weight.T @ flat).reshape(n, c, 3, 3, h, w)
        self.weight -= RATE * gradient
        if self.first:
            return None
        padded = (n, h + 2, w + 2, c) if self.last else (n, c, h + 2, w + 2)
        dx = np.zeros(padded, np.float32)
        for i in range(3):
            for j in range(3):
                if self.last:
                    dx[:, i : i + h, j : j + w] += parts[:, :, :, i, j]
                else:
                    dx[:, :, i : i + h, j : j + w] += parts[:, :, i, j]
        return dx[:, 1:-1, 1:-1] if self.last else dx[:, :, 1:-1, 1:-1]


class Pool:
    """The mean of each image."""

    def __init__(self, data_format):
        self.axes = (1, 2) if data_format == "NHWC" else (2, 3)

    def forward(self, x):
        self.shape = x.shape
        return x.mean(axis=self.axes)

    def backward(self, dy):
        dy = np.expand_dims(dy / np.float32(self.shape[1] * self.shape[2]), self.axes)
        return np.broadcast_to(dy, self.shape)


#: name: (sizes or channels, batch, size of an image)
NETWORKS = {
    "dense 64-64-64-10, batch 128": ((64, 64, 64), 128, 0),
    "dense 784-512-512-10, batch 256": ((784, 512, 512), 256, 0),
    "dense 784-1024-1024-1024-10, batch 1024": ((784, 1024, 1024, 1024), 1024, 0),
    "convolutions 3-16-32, 64 images of 16x16": ((3, 16, 32), 64, 16),
    "convolutions 8-32-32-64, 32 images of 28x28": ((8, 32, 32, 64), 32, 28),
}


def step_of(name, data_format, way):
    """A step of training; `way` names the package of its batch normalization."""
    (first, *_), batch, size = NETWORKS[name]
    rng, make = np.random.default_rng(0), NumpyNorm if way == "numpy" else bn_ext_norm
    layers = []
    for k, (inputs, outputs) in enumerate(pairwise(NETWORKS[name][0])):
        options = (data_format,) if size else ()
        layers.append((Conv if size else Dense)(rng, inputs, outputs, *options, first=k == 0))
        layers.append(make(outputs, data_format))
    layers += [Pool(data_format)] * bool(size) + [Dense(rng, outputs, CLASSES)]
    shape = {"NC": (first,), "NHWC": (size, size, first), "NCHW": (first, size, size)}[data_format]
    x = rng.standard_normal((batch, *shape), dtype=np.float32)
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


def run(*which):
    """In a process of its own."""
    serve(step_of(*which))


def report(options):
    """Every network, in both layouts, with one thread of BLAS and with all."""
    from . import pages

    lines = []
    for name, (_, _, size) in NETWORKS.items():
        for layout, threads in [
            (x, t) for x in (["NHWC", "NCHW"] if size else ["NC"]) for t in ("1", "all")
        ]:
            code = "from benchmarks.numpy_networks import run; run({!r}, {!r}, {!r})"
            ways = {way: code.format(name, layout, way) for way in ("numpy", "bn_ext")}
            limit = {"OPENBLAS_NUM_THREADS": "1"} if threads == "1" else {}
            times = medians(ways, options.seconds, **limit)
            lines.append([name, layout, threads, f"{1e3 * times['numpy']:.2f}",
                          f"{1e3 * times['bn_ext']:.2f}",
                          f"{times['numpy'] / times['bn_ext']:.2f}"])  # fmt: skip
            print(*lines[-1], flush=True)
    heading = ["network", "layout", "BLAS threads", "numpy, ms", "bn_ext, ms", "numpy / bn_ext"]
    pages.put_rows(
        "numpy_networks", "docs/figures.md", pages.run([]), heading, lines, lambda line: True
    )
