"""Fold a trained network's batch normalization into its convolutions: the same but for rounding.

In inference, batch normalization is a scale and a shift for each channel. The layer before
it, a convolution or a dense layer, can take them over:

    weight * scale     (bias - mean) * scale + beta     scale = gamma / sqrt(variance + epsilon)

    python examples/fold.py     trains the network of train_digits.py, and compares
"""

import copy

import numpy as np
from train_digits import EPSILON, BatchNorm, forward, train


def fold(weight, bias, norm):
    """The weight and bias of one layer in place of two; the weight's last axis is the outputs."""
    scale = norm.gamma / np.sqrt(norm.running_variance + EPSILON)
    return weight * scale, (bias - norm.running_mean) * scale + norm.beta


class Folded:
    """A convolution that includes the batch normalization after it."""

    def __init__(self, convolution, norm):
        self.convolution = copy.copy(convolution)
        self.convolution.weight, self.bias = fold(convolution.weight, 0, norm)

    def forward(self, x, training):
        return self.convolution.forward(x, training) + self.bias


def folded(layers):
    """The network without batch normalization, as a copy; the trained network does not change."""
    result = []
    for layer in layers:
        if isinstance(layer, BatchNorm):
            result[-1] = Folded(result[-1], layer)
        else:
            result.append(layer)
    return result


def main():
    """Train, fold, compare."""
    for dtype in ("float32", "float64"):
        history = train(dtype=dtype, epochs=4)
        layers = folded(history.layers)
        images = history.images[..., None].astype(dtype)
        wanted = forward(history.layers, images, False)
        scores = forward(layers, images, False)
        off = abs(scores - wanted).max() / abs(wanted).max()
        same = (scores.argmax(axis=1) == wanted.argmax(axis=1)).mean()
        print(
            f"{dtype}: {len(history.layers)} layers, {len(layers)} when folded; "
            f"scores differ by {off:.1e} at most, {100 * same:g} % of predictions are the same"
        )


if __name__ == "__main__":
    main()
