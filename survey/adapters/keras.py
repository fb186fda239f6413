"""Keras's layer; what stands below it are modules of their own."""

import os

import numpy as np

from . import demand


def functions(backend):
    os.environ["KERAS_BACKEND"] = backend
    import keras

    gradients = globals()[f"gradients_by_{backend}"]

    def layer_of(shape, gamma, beta, epsilon, *statistics):
        layer = keras.layers.BatchNormalization(
            momentum=0.0, epsilon=epsilon, center=beta is not None, scale=gamma is not None
        )
        layer.build((None, *shape[1:]))
        zeros = np.zeros(shape[-1], "f4")
        affine = [a for a in (gamma, beta) if a is not None]
        layer.set_weights([*affine, *(statistics or (zeros, zeros + 1))])
        return layer

    def training(src, gamma, beta, epsilon):
        layer = layer_of(src.shape, gamma, beta, epsilon)
        dst = keras.ops.convert_to_numpy(layer(src, training=True))
        return dst, *layer.get_weights()[-2:]

    def inference(src, mean, variance, gamma, beta, epsilon):
        layer = layer_of(src.shape, gamma, beta, epsilon, mean, variance)
        return keras.ops.convert_to_numpy(layer(src, training=False))

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        beta = None if gamma is None else 0 * gamma
        grads = gradients(layer_of(src.shape, gamma, beta, epsilon), src, diff_dst)
        return tuple(grads) if gamma is not None else grads[0]

    def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
        layer = layer_of(src.shape, demand(gamma), 0 * gamma, epsilon)
        return tuple(gradients(layer, src, diff_dst, second))

    functions = training, inference, backward, double_backward
    return {function.__name__: function for function in functions}


# ---- {backend}: the gradient; with `second`, the gradient of that, by src, diff_dst, gamma ------


def gradients_by_tensorflow(layer, src, diff_dst, second=None):
    import tensorflow as tf

    src, diff_dst = tf.constant(src), tf.constant(diff_dst)
    leaves = [src, *(v.value for v in layer.trainable_variables)]
    with tf.GradientTape() as outer:
        outer.watch([src, diff_dst])
        with tf.GradientTape() as tape:
            tape.watch(src)
            dst = layer(src, training=True)
        first = tape.gradient(dst, leaves, diff_dst)
    if second is None:
        return first
    return outer.gradient(first, [src, diff_dst, leaves[1]], [*map(tf.constant, second)])


def gradients_by_torch(layer, src, diff_dst, second=None):
    import torch

    src, diff_dst = (torch.from_numpy(a).requires_grad_() for a in (src, diff_dst))
    leaves = [src, *(v.value for v in layer.trainable_variables)]
    dst = layer(src, training=True)
    first = torch.autograd.grad(dst, leaves, diff_dst, create_graph=second is not None)
    if second is None:
        return first
    return torch.autograd.grad(first, [src, diff_dst, leaves[1]], [*map(torch.from_numpy, second)])


def gradients_by_jax(layer, src, diff_dst, second=None):
    import jax

    rest = [v.value for v in layer.non_trainable_variables]
    vectors = [v.value for v in layer.trainable_variables]

    def forward(src, *vectors):
        return layer.stateless_call([*vectors], rest, src, training=True)[0]

    def first(src, diff_dst, *gamma):
        return jax.vjp(forward, src, *gamma, *vectors[1:])[1](diff_dst)

    if second is None:
        return first(src, diff_dst, *vectors[:1])
    return jax.vjp(first, src, diff_dst, vectors[0])[1](second)
