"""TensorFlow: the gradient of a gradient through tf.nn.moments."""

import numpy as np
import tensorflow as tf


def penalty(x):
    """The squared norm of the gradient of tanh, a normalization and a loss."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x)
        mean, variance = tf.nn.moments(y, [0])
        loss = tf.reduce_sum(weights * (y - mean) * tf.math.rsqrt(variance + 1e-3))
    return tf.reduce_sum(tape.gradient(loss, x) ** 2)


rng = np.random.default_rng(0)
x, weights, direction = (tf.constant(rng.standard_normal((4, 3))) for _ in range(3))
with tf.GradientTape() as tape:
    tape.watch(x)
    total = penalty(x)
slope = tf.reduce_sum(tape.gradient(total, x) * direction).numpy()
step = 1e-6 * direction
print(f"tensorflow {tf.__version__}: {slope:.5f}")
print(f"finite differences: {(penalty(x + step) - penalty(x - step)).numpy() / 2e-6:.5f}")
