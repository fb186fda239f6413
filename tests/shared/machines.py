"""What surrounds the programs of docs/howto/several_machines.md: data, and a digest of results.

A program is this file, a block of the page, and a call of `digest`.
"""

import hashlib

import numpy as np

import bn_ext

OPTIONS = {"data_format": "NHWC", "exact": True}
BATCH, CHANNELS = 11, 33


def whole():
    """A batch, with a wide range of exponents; and the gradient."""
    rng = np.random.default_rng(3)
    data = rng.standard_normal((2, BATCH, 1, 5, CHANNELS), np.float32)
    return data * np.exp2(rng.integers(-30, 30, data.shape, dtype=np.int32)).astype(np.float32)


def share(rank, size):
    """A rank's samples; with more ranks than samples, some have none."""
    return whole()[:, np.array_split(np.arange(BATCH), size)[rank]]


def digest(statistics):
    return digest_of_arrays(statistics.mean, statistics.variance)


def digest_of_arrays(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def expected():
    """The digests of one call on the whole batch: of the statistics, and of the results."""
    src, diff_dst = whole()
    gamma, beta = affine()
    statistics = bn_ext.Statistics(src, **OPTIONS)
    options = {"epsilon": 1e-5, **OPTIONS}
    dst, mean, variance = bn_ext.batch_norm_training(src, gamma, beta, **options)
    grads = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, gamma, **options)
    return digest(statistics), digest_of_arrays(dst, *grads)


def affine():
    rng = np.random.default_rng(4)
    return rng.uniform(-2, 2, (2, CHANNELS))
