"""MNN's module for training."""

import numpy as np
from MNN import expr, nn

from . import demand

NAME, PACKAGES, LAYOUT, OWN = "MNN", ["MNN"], "NCX", ()


def layer_of(src, epsilon, *vectors):
    channels = src.shape[1]
    layer = nn.batch_norm(channels, src.ndim, 0.0, epsilon)
    shape = layer.parameters[0].shape
    layer.load_parameters([tensor(demand(a).reshape(shape)) for a in vectors])
    return layer


def tensor(array):
    return expr.const(array.ravel().tolist(), list(array.shape), expr.NCHW)


def call(layer, src):
    result = layer(tensor(src))
    return result.read().copy()  # its memory is the result's


def training(src, gamma, beta, epsilon):
    zeros = np.zeros(src.shape[1], "f4")
    layer = layer_of(src, epsilon, gamma, beta, zeros + 1, zeros)
    layer.train(True)
    return call(layer, src)


def inference(src, mean, variance, gamma, beta, epsilon):
    layer = layer_of(src, epsilon, gamma, beta, variance, mean)
    layer.train(False)
    return call(layer, src)
