"""More peers, for these benchmarks only; bn_ext._bench.peers describes what a peer is."""

import os

import numpy as np

from bn_ext._bench.peers import PEERS, formulas


def usable_cpus():
    """Number of CPUs that this process may run on, by its affinity if the system has that."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def jax_call(problem, threads):
    """The formula under jit, on the CPU; JAX uses every CPU it may run on."""
    p = problem
    if p.dtype == np.float64 or threads != usable_cpus():
        return None
    import jax
    import jax.numpy as jnp

    known = formulas(p, jnp)
    if p.op not in known:
        return None
    function, given = known[p.op]
    compiled, arguments = jax.jit(function), [jnp.asarray(a) for a in given]
    return lambda: jax.block_until_ready(compiled(*arguments))


def tensorflow_call(problem, threads):
    """FusedBatchNormV3 and its gradient, eager; TensorFlow uses every CPU it may run on."""
    p, op = problem, problem.op
    if p.src.ndim not in (4, 5) or p.dtype == np.float64 or threads != usable_cpus():
        return None
    import tensorflow as tf

    axes = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC", ("NCX", 5): "NCDHW"}
    x, mean, variance, gamma, beta = (tf.constant(a) for a in (p.src, *p.vectors, p.beta))
    more = {"epsilon": p.epsilon, "data_format": axes[p.layout, p.src.ndim]}
    if op in ("training", "inference"):
        given = {"mean": mean, "variance": variance} if op == "inference" else {
            "mean": tf.zeros(0), "variance": tf.zeros(0)
        }  # fmt: skip
        return lambda: tf.raw_ops.FusedBatchNormV3(
            x=x, scale=gamma, offset=beta, **given, is_training=op == "training", **more
        )
    if op not in ("backward", "backward-frozen", "backward-frozen-src"):
        return None
    dy, empty = tf.constant(p.diff_dst), tf.zeros(0)
    return lambda: tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=dy, x=x, scale=gamma, reserve_space_1=mean, reserve_space_2=variance,
        reserve_space_3=empty, is_training=op == "backward", **more,
    )  # fmt: skip


#: The peers for which nothing is compiled here.
PEERS = {**PEERS, "jax": jax_call, "tensorflow": tensorflow_call}
