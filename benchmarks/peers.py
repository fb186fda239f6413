"""More peers, and more operations of bn_ext and torch; bn_ext._bench says what a peer is."""

from functools import partial

import numpy as np

import bn_ext
from bn_ext import _bench
from bn_ext._bench import formulas, numpy_call, torch_arguments

from .compiled import floor_call, onednn_call, two_passes_call, usable_cpus


def bn_ext_call(problem, with_out=False, **also):
    """A call to bn_ext that returns new results, or with `with_out` writes to the problem's."""
    p, op = problem, problem.op
    if with_out:
        written = (p.out[0], None, None) if op == "backward-frozen-src" else p.out
        also["out"] = written if len(written) > 1 else written[0]
    if op == "double-backward":
        shared = {"epsilon": p.epsilon, "data_format": p.layout, "num_threads": p.threads, **also}
        return lambda: bn_ext.batch_norm_double_backward(
            p.src, p.diff_dst, p.mean, p.variance, p.gamma, p.diff_diff_src, **shared
        )
    options = {
        "backward-frozen": {"is_training": False},
        "backward-frozen-src": {"is_training": False, "param_grads": False},
        "backward-relu": {"relu": True, "beta": p.beta},
        "training-relu": {"relu": True},
        "inference-add-relu": {"relu": True, "src_1": p.tensors.get("src_1")},
    }
    return _bench.bn_ext_call(problem, **options.get(op, {}), **also)


def torch_call(problem):
    """The operators of torch, in the same memory format."""
    import torch

    op, epsilon, aten = problem.op, problem.epsilon, torch.ops.aten
    if op in _bench.OPS:
        return _bench.torch_call(problem)
    (x, *others), (mean, variance, gamma, beta) = torch_arguments(problem)
    if op == "double-backward":
        inputs = [t.detach().requires_grad_() for t in (x, others[0], gamma)]
        dst = torch.nn.functional.batch_norm(
            inputs[0], None, None, inputs[2], beta, training=True, eps=epsilon
        )
        (first,) = torch.autograd.grad(dst, inputs[0], inputs[1], create_graph=True)
        return lambda: torch.autograd.grad(first, inputs, others[1], retain_graph=True)
    if op in ("training-relu", "inference-add-relu"):
        statistics = (mean, variance, False) if others else (None, None, True)

        def forward():
            dst = aten.native_batch_norm(x, gamma, beta, *statistics, 0.1, epsilon)[0]
            if others:
                dst += others[0]
            return dst.relu_()

        return forward
    rstd = (variance + epsilon).rsqrt()
    saved = gamma, mean, variance, mean, rstd, op == "backward-relu", epsilon
    wanted = [True] * 3 if op != "backward-frozen-src" else [True, False, False]
    if op == "backward-relu":
        dst = aten.native_batch_norm(x, gamma, beta, mean, variance, False, 0.1, epsilon)[0]
        return lambda: aten.native_batch_norm_backward(
            aten.threshold_backward(others[0], dst, 0), x, *saved, wanted
        )
    return partial(aten.native_batch_norm_backward, others[0], x, *saved, wanted)


def uses_all_cpus(problem):
    return problem.threads in (None, usable_cpus())


def jax_call(problem):
    """The formula under jit, on the CPU; JAX uses every CPU it may run on, and its own copies."""
    p = problem
    if p.dtype == np.float64 or not uses_all_cpus(p):
        return None
    import jax
    import jax.numpy as jnp

    known = formulas(p, jnp)
    if p.op not in known:
        return None
    function, arrays = known[p.op]
    compiled, arguments = jax.jit(function), [jnp.asarray(a) for a in arrays]
    return lambda: jax.block_until_ready(compiled(*arguments))


def tensorflow_call(problem):
    """FusedBatchNormV3 and its gradient, eager, on copies; TensorFlow uses every CPU."""
    p, op = problem, problem.op
    if p.src.ndim not in (4, 5) or p.dtype == np.float64 or not uses_all_cpus(p):
        return None
    import tensorflow as tf

    axes = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC", ("NCX", 5): "NCDHW"}
    x, mean, variance, gamma, beta = (tf.constant(a) for a in (p.src, *p.vectors, p.beta))
    options = {"epsilon": p.epsilon, "data_format": axes[p.layout, p.src.ndim]}
    if op in ("training", "inference"):
        stats = (mean, variance) if op == "inference" else (tf.zeros(0), tf.zeros(0))
        stats = dict(zip(("mean", "variance"), stats, strict=True))
        return lambda: tf.raw_ops.FusedBatchNormV3(
            x=x, scale=gamma, offset=beta, **stats, is_training=op == "training", **options
        )
    if op not in ("backward", "backward-frozen", "backward-frozen-src"):
        return None
    dy, empty = tf.constant(p.diff_dst), tf.zeros(0)
    options |= {"y_backprop": dy, "x": x, "scale": gamma, "is_training": op == "backward"}
    options |= {"reserve_space_1": mean, "reserve_space_2": variance, "reserve_space_3": empty}
    return lambda: tf.raw_ops.FusedBatchNormGradV3(**options)


#: Not peers: a loop that moves the bytes that the operation must; one that reads them twice, as an
#: operation must that sums before it writes, if no cache helps; our own call with `out=`.
FLOOR, TWO_PASSES, WITH_OUT = "floor", "two passes", "bn_ext, out="
#: A peer in its own layout: shown, but not compared with calls on ordinary arrays.
OTHER_LAYOUT = "oneDNN blocked"
#: Peers that write to given outputs.
WRITE_TO_OUT = {"oneDNN"}
PEERS = {
    FLOOR: floor_call,
    TWO_PASSES: two_passes_call,
    WITH_OUT: partial(bn_ext_call, with_out=True),
    "numpy": numpy_call,
    "torch": torch_call,
    "jax": jax_call,
    "tensorflow": tensorflow_call,
    "oneDNN": onednn_call,
    OTHER_LAYOUT: partial(onednn_call, layout="blocked"),
}
