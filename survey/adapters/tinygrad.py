"""tinygrad's layer; gradients are the automatic ones."""

import os
import shutil

if os.environ.setdefault("DEV", "CPU") == "CPU" and not shutil.which("clang"):
    raise ImportError("tinygrad compiles with clang, which is not on PATH; DEV=PYTHON needs none")
from tinygrad import Tensor, nn

from . import demand

NAME, PACKAGES, LAYOUT = "tinygrad", ["tinygrad"], "NCX"
OWN = "backward", "double_backward"


def tensors(*arrays):
    return [None if a is None else Tensor(a).contiguous() for a in arrays]


def layer_of(channels, gamma, beta, epsilon, **options):
    layer = nn.BatchNorm(channels, epsilon, **options)
    layer.weight, layer.bias = gamma, beta
    return layer


def training(src, gamma, beta, epsilon):
    src, gamma, beta = tensors(src, gamma, beta)
    layer = layer_of(src.shape[1], gamma, beta, epsilon, track_running_stats=False)
    return tuple(a.numpy() for a in (layer(src), *layer.calc_stats(src)))


def inference(src, mean, variance, gamma, beta, epsilon):
    src, mean, variance, gamma, beta = tensors(src, mean, variance, gamma, beta)
    layer = layer_of(src.shape[1], gamma, beta, epsilon)
    layer.running_mean, layer.running_var = mean, variance
    return layer(src).numpy()


def first(src, diff_dst, gamma, epsilon):
    beta = None if gamma is None else Tensor.zeros(src.shape[1]).contiguous()
    layer = layer_of(src.shape[1], gamma, beta, epsilon, track_running_stats=False)
    leaves = [a for a in (src, gamma, beta) if a is not None]
    return layer(src).gradient(*leaves, gradient=diff_dst)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    grads = tuple(a.numpy() for a in first(*tensors(src, diff_dst, gamma), epsilon))
    return grads if gamma is not None else grads[0]


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    src, diff_dst, gamma, *second = tensors(src, diff_dst, gamma, *second)
    results = first(src, diff_dst, gamma, epsilon)
    total = sum((a * b).sum() for a, b in zip(results, second, strict=True))
    return tuple(a.numpy() for a in total.gradient(src, diff_dst, gamma))
