"""numpy-ml's layers."""

import collections
import collections.abc

import numpy as np

collections.Hashable = collections.abc.Hashable  # numpy-ml asks Python for a name that went
from numpy_ml.neural_nets.layers import BatchNorm1D, BatchNorm2D  # noqa: E402

from . import demand  # noqa: E402

NAME, PACKAGES, LAYOUT = "numpy-ml", ["numpy_ml"], "NXC"
OWN = "backward", "double_backward"


def layer_of(src, epsilon, **parameters):
    if src.ndim not in (2, 4):
        raise NotImplementedError("the package takes two axes or four")
    layer = (BatchNorm1D if src.ndim == 2 else BatchNorm2D)(0.0, epsilon)
    layer.n_in = layer.n_out = layer.in_ch = layer.out_ch = src.shape[-1]
    layer._init_params()
    demand(parameters["scaler"]), demand(parameters["intercept"])
    layer.parameters.update(parameters)
    return layer


def training(src, gamma, beta, epsilon):
    layer = layer_of(src, epsilon, scaler=gamma, intercept=beta)
    dst = layer.forward(src)
    return dst, layer.parameters["running_mean"], layer.parameters["running_var"]


def inference(src, mean, variance, gamma, beta, epsilon):
    statistics = {"running_mean": mean, "running_var": variance}
    layer = layer_of(src, epsilon, scaler=gamma, intercept=beta, **statistics)
    return layer.forward(src, retain_derived=False)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    layer = layer_of(src, epsilon, scaler=gamma, intercept=np.zeros(src.shape[-1], "f4"))
    layer.forward(src)
    diff_src = layer.backward(diff_dst)
    return diff_src, layer.gradients["scaler"], layer.gradients["intercept"]
