"""More peers, for these benchmarks only; bn_ext._bench.peers describes what a peer is."""

from functools import partial

import numpy as np

from bn_ext._bench.peers import PEERS, bn_ext_call, formulas

from .compiled import floor_call, onednn_call, two_passes_call, usable_cpus


def uses_all_cpus(problem):
    return problem.threads in (None, usable_cpus())


def jax_call(problem):
    """The formula under jit, on the CPU; JAX uses every CPU it may run on, and its own copies."""
    p = problem
    if p.dtype == np.float64 or p.case.view or not uses_all_cpus(p):
        return None
    import jax
    import jax.numpy as jnp

    known = formulas(p, jnp)
    if p.op not in known:
        return None
    function, given = known[p.op]
    compiled, arguments = jax.jit(function), [jnp.asarray(a) for a in given]
    return lambda: jax.block_until_ready(compiled(*arguments))


def tensorflow_call(problem):
    """FusedBatchNormV3 and its gradient, eager, on copies; TensorFlow uses every CPU."""
    p, op = problem, problem.op
    if p.src.ndim not in (4, 5) or p.dtype == np.float64 or p.case.view or not uses_all_cpus(p):
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


#: Not peers: a loop that moves the bytes that the operation must; one that reads them twice, as an
#: operation must that sums before it writes, if no cache helps; our own call with `out=`.
FLOOR, TWO_PASSES, GIVEN = "floor", "two passes", "bn_ext, out="
#: A peer in its own layout: shown, but not compared with calls on ordinary arrays.
OTHER_LAYOUT = "oneDNN blocked"
#: Peers that write to given outputs.
GIVEN_OUTPUTS = {"oneDNN"}
PEERS = {
    FLOOR: floor_call,
    TWO_PASSES: two_passes_call,
    GIVEN: partial(bn_ext_call, given=True),
    **PEERS,
    "jax": jax_call,
    "tensorflow": tensorflow_call,
    "oneDNN": onednn_call,
    OTHER_LAYOUT: partial(onednn_call, layout="blocked"),
}
