"""Sonnet: the gradient of a gradient of BatchNorm."""

import numpy as np
import sonnet as snt
import tensorflow as tf


def penalty(x):
    """The squared norm of the gradient of tanh, the layer and a loss."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(weights * layer(tf.tanh(x), is_training=True))
    return tf.reduce_sum(tape.gradient(loss, x) ** 2)


rng, layer = np.random.default_rng(0), snt.BatchNorm(True, True, eps=1e-3)
draw = [rng.standard_normal((4, 3)).astype("f4") for _ in range(3)]
x, weights, direction = map(tf.constant, draw)
with tf.GradientTape() as tape:
    tape.watch(x)
    total = penalty(x)
step, slope = 1e-2 * direction, tf.reduce_sum(tape.gradient(total, x) * direction).numpy()
print(f"sonnet {snt.__version__}, tensorflow {tf.__version__}: {slope:.4f}")
print(f"finite differences: {(penalty(x + step) - penalty(x - step)).numpy() / 2e-2:.4f}")
