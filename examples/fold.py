"""Fold a trained network's batch normalization into its convolutions: the same but for rounding.

In inference, batch normalization is a scale and a shift for each channel. The layer before
it, a convolution or a dense layer, can take them over:

    weight * scale     (bias - mean) * scale + beta     scale = gamma / sqrt(variance + epsilon)

    python examples/fold.py     trains the network of train_digits.py, and compares
"""

import copy

import numpy as np
from train_digits import EPSILON, Convolution, load, train

import bn_ext


def fold(weight, bias, norm):
    """The weight and bias of one layer in place of two; the weight's last axis is the outputs."""
    scale = norm.gamma / np.sqrt(norm.running_variance + EPSILON)
    return weight * scale, (bias - norm.running_mean) * scale + norm.beta


class Folded(Convolution):
    """A convolution that includes the batch normalization after it, and its ReLU."""

    def __init__(self, convolution, norm):
        self.weight, self.bias = fold(convolution.weight, 0, norm)

    def forward(self, x):
        return np.maximum(super().forward(x) + self.bias, 0)


def folded(network):
    """The network without batch normalization, as a copy; the trained network does not change."""
    result, layers = copy.copy(network), []
    for layer in network.layers:
        if isinstance(layer, bn_ext.BatchNorm):
            layers[-1] = Folded(layers[-1], layer)
        else:
            layers.append(layer)
    result.layers = layers
    return result


def main():
    """Train, fold, compare."""
    for dtype in ("float32", "float64"):
        *_, network = train(dtype=dtype, epochs=4)
        images = load(0)[2]
        wanted, scores = network.scores(images), folded(network).scores(images)
        off = abs(scores - wanted).max() / abs(wanted).max()
        same = (scores.argmax(axis=1) == wanted.argmax(axis=1)).mean()
        print(
            f"{dtype}: {len(network.layers)} layers, {len(folded(network).layers)} when folded; "
            f"scores differ by {off:.1e} at most, {100 * same:g} % of predictions are the same"
        )


if __name__ == "__main__":
    main()
