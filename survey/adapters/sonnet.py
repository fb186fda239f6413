"""Sonnet's layer; gradients are TensorFlow's."""

import sonnet
import tensorflow as tf

from . import demand

NAME, PACKAGES, LAYOUT = "Sonnet", ["sonnet", "tensorflow"], "NXC"
OWN = "backward", "double_backward"


def layer_of(src, epsilon):
    letters = {2: "NC", 3: "NWC", 4: "NHWC", 5: "NDHWC"}[src.ndim]
    averages = sonnet.ExponentialMovingAverage(0.0), sonnet.ExponentialMovingAverage(0.0)
    layer = sonnet.BaseBatchNorm(False, False, *averages, epsilon, data_format=letters)
    layer._initialize(src)
    return layer


def training(src, gamma, beta, epsilon):
    src = tf.constant(src)
    return layer_of(src, epsilon)(src, True, scale=gamma, offset=beta).numpy()


def inference(src, mean, variance, gamma, beta, epsilon):
    src = tf.constant(src)
    layer = layer_of(src, epsilon)
    layer.moving_mean.average.assign(tf.reshape(mean, layer.shape))
    layer.moving_variance.average.assign(tf.reshape(variance, layer.shape))
    return layer(src, False, scale=gamma, offset=beta).numpy()


def first(src, diff_dst, gamma, epsilon):
    leaves = [src] if gamma is None else [src, gamma, tf.zeros_like(gamma)]
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        scale, offset = [*leaves[1:], None, None][:2]
        dst = layer_of(src, epsilon)(src, True, scale=scale, offset=offset)
    return tape.gradient(dst, leaves, diff_dst)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    arrays = (None if a is None else tf.constant(a) for a in (src, diff_dst, gamma))
    grads = tuple(a.numpy() for a in first(*arrays, epsilon))
    return grads if gamma is not None else grads[0]


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    leaves = [*map(tf.constant, (src, diff_dst, demand(gamma)))]
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        results = first(*leaves, epsilon)
    return tuple(a.numpy() for a in tape.gradient(results, leaves, [*map(tf.constant, second)]))
