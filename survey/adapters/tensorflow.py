"""TensorFlow's operators; the gradient of the gradient is the automatic one."""

import tensorflow as tf
from tensorflow import raw_ops as ops

from . import demand, of_axes

NAME, PACKAGES, LAYOUT, OWN = "TensorFlow", ["tensorflow"], "NXC", ("double_backward",)


@of_axes(4, LAYOUT)
def training(src, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    none = tf.zeros(0)
    dst, _, _, mean, variance, _ = ops.FusedBatchNormV3(
        x=src, scale=gamma, offset=beta, mean=none, variance=none, epsilon=epsilon
    )
    return dst.numpy(), mean, variance


@of_axes(4, LAYOUT)
def inference(src, mean, variance, gamma, beta, epsilon):
    demand(gamma), demand(beta)
    tensors = {"x": src, "scale": gamma, "offset": beta, "mean": mean, "variance": variance}
    return ops.FusedBatchNormV3(**tensors, epsilon=epsilon, is_training=False).y.numpy()


def grads_of(diff_dst, src, gamma, mean, variance, epsilon):
    data = {"y_backprop": diff_dst, "x": src, "scale": gamma, "epsilon": epsilon}
    saved = {"reserve_space_1": mean, "reserve_space_2": variance, "reserve_space_3": tf.zeros(0)}
    return ops.FusedBatchNormGradV3(**data, **saved)[:3]


@of_axes(4, LAYOUT)
def backward(src, diff_dst, mean, variance, gamma, epsilon):
    demand(gamma)
    diff_src, diff_gamma, diff_beta = grads_of(diff_dst, src, gamma, mean, variance, epsilon)
    return diff_src.numpy(), diff_gamma, diff_beta


@of_axes(4, LAYOUT)
def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    src, diff_dst, gamma, mean, variance = map(tf.constant, (src, diff_dst, gamma, mean, variance))
    with tf.GradientTape() as tape:
        tape.watch([src, diff_dst, gamma])
        first = grads_of(diff_dst, src, gamma, mean, variance, epsilon)
    grads = tape.gradient(first, [src, diff_dst, gamma], [*map(tf.constant, second)])
    return tuple(a.numpy() for a in grads)
