"""oneDNN's primitives, channels last and first."""

import ctypes
import os
from functools import partial

import numpy as np

from benchmarks.compiled import LAYOUTS, onednn, pointers

from . import demand

NAME, PACKAGES, LAYOUT, OWN = "oneDNN", ["oneDNN"], "NXC", ()
driver = onednn()


def run(op, layout, src, tensors, vectors, epsilon):
    dims = src.shape if layout == "NCX" else (src.shape[0], src.shape[-1], *src.shape[1:-1])
    sizes, threads = (ctypes.c_int64 * len(dims))(*dims), len(os.sched_getaffinity(0))
    data = pointers([src, *tensors]), pointers(vectors), ctypes.c_float(epsilon)
    call = driver.bn_new(len(dims), sizes, LAYOUTS[layout], 0, *data, op, threads)
    if not call:
        raise ValueError("oneDNN has no such implementation")
    driver.bn_free(call)


def training_of(layout, src, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    dst, mean, variance = np.empty_like(src), np.empty_like(gamma), np.empty_like(gamma)
    run(2, layout, src, [dst], [mean, variance, gamma, beta], epsilon)
    return dst, mean, variance


def inference_of(layout, src, mean, variance, gamma, beta, epsilon):
    dst = np.empty_like(src)
    run(3, layout, src, [dst], [mean, variance, demand(gamma), demand(beta)], epsilon)
    return dst


def backward_of(layout, src, diff_dst, mean, variance, gamma, epsilon):
    out = np.empty_like(src), np.empty_like(mean), np.empty_like(mean)
    run(0, layout, src, [diff_dst, out[0]], [mean, variance, demand(gamma), *out[1:]], epsilon)
    return out


training, inference, backward = (
    partial(function, LAYOUT) for function in (training_of, inference_of, backward_of)
)
