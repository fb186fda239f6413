"""Keras on TensorFlow: the gradient of a gradient of BatchNormalization."""

import keras  # the backend is TensorFlow, its default
import numpy as np
import tensorflow as tf


def penalty(x):
    """The squared norm of the gradient of tanh, the layer and a loss."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(weights * layer(tf.tanh(x), training=True))
    return tf.reduce_sum(tape.gradient(loss, x) ** 2)


rng, layer = np.random.default_rng(0), keras.layers.BatchNormalization(dtype="float64")
x, weights, direction = (tf.constant(rng.standard_normal((4, 3))) for _ in range(3))
with tf.GradientTape() as tape:
    tape.watch(x)
    total = penalty(x)
step, slope = 1e-6 * direction, tf.reduce_sum(tape.gradient(total, x) * direction).numpy()
print(f"keras {keras.__version__}, tensorflow {tf.__version__}: {slope:.5f}")
print(f"finite differences: {(penalty(x + step) - penalty(x - step)).numpy() / 2e-6:.5f}")
