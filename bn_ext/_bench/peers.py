"""What one could use instead of bn_ext: each peer gives a call on a problem's arrays, or None.

A peer that is not installed raises ImportError; None means that it has no such call.
"""

import os
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext._bench.problems import Problem

__all__ = [
    "MODES",
    "PEERS",
    "TENSORS",
    "Call",
    "Mode",
    "Peer",
    "bn_ext_call",
    "numpy_call",
    "usable_cpus",
]

Call = Callable[[], object]
Mode = Literal["training", "frozen", "frozen-src"]
Peer = Callable[[Problem, int, Mode], Call | None]

MODES: tuple[Mode, ...] = get_args(Mode)
#: How many of src, diff_dst and diff_src the gradient reads or writes.
TENSORS: dict[Mode, int] = {"training": 3, "frozen": 3, "frozen-src": 2}


def usable_cpus() -> int:
    """Number of CPUs that this process may run on, by its affinity if the system has that."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def bn_ext_call(problem: Problem, threads: int, mode: Mode, fresh: bool = False) -> Call:
    """One call, with the outputs given, or with fresh ones, as peers return them."""
    out = problem.out if mode != "frozen-src" else (problem.diff_src, None, None)
    # If this is the default, let the package choose: it gives a small problem one thread.
    num_threads = None if threads == _core._default_threads() else threads
    arguments = problem.arguments
    return lambda: bn_ext.batch_norm_backward(
        *arguments,
        epsilon=problem.epsilon,
        data_format=problem.layout,
        is_training=mode == "training",
        param_grads=mode != "frozen-src",
        out=None if fresh else out,
        num_threads=num_threads,
    )


def numpy_call(problem: Problem, threads: int, mode: Mode) -> Call | None:
    """The formula, as a NumPy user writes it."""
    number = problem.mean.dtype
    axes, shape = problem.summed_axes, problem.vector_shape
    mean, variance, gamma = (v.reshape(shape) for v in problem.vectors)
    m = problem.src.size // problem.mean.size

    def call() -> object:
        x, dy = problem.src.astype(number, copy=False), problem.diff_dst.astype(number, copy=False)
        rstd = 1 / np.sqrt(variance + number.type(problem.epsilon))
        xhat = (x - mean) * rstd
        diff_beta = dy.sum(axis=axes, keepdims=True)
        diff_gamma = (dy * xhat).sum(axis=axes, keepdims=True)
        diff_src = gamma * rstd * (dy - (diff_beta + xhat * diff_gamma) / m)
        return diff_src.astype(problem.dtype), diff_gamma, diff_beta

    return call if mode == "training" else None


def torch_call(  # pragma: no cover - held by pytest -m peers
    problem: Problem, threads: int, mode: Mode
) -> Call | None:
    """native_batch_norm_backward, in the same memory format."""
    import torch

    torch.set_num_threads(threads)

    def tensor(array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    x, dy = (tensor(a).movedim(problem.axis, 1) for a in (problem.src, problem.diff_dst))
    mean, variance, gamma = (torch.from_numpy(v) for v in problem.vectors)
    rstd = (variance + problem.epsilon).rsqrt()
    training = mode == "training"
    wanted = [True] * 3 if mode != "frozen-src" else [True, False, False]
    backward = torch.ops.aten.native_batch_norm_backward
    arguments = dy, x, gamma, mean, variance, mean, rstd, training, problem.epsilon, wanted
    return lambda: backward(*arguments)


def jax_call(  # pragma: no cover - held by pytest -m peers
    problem: Problem, threads: int, mode: Mode
) -> Call | None:
    """The formula under jit, on the CPU; JAX uses every CPU it may run on."""
    if mode != "training" or problem.dtype == np.float64 or threads != usable_cpus():
        return None
    import jax
    import jax.numpy as jnp

    axes, shape = problem.summed_axes, problem.vector_shape
    m = problem.src.size // problem.mean.size

    @jax.jit  # type: ignore[untyped-decorator, unused-ignore]
    def backward(x: Any, dy: Any, mean: Any, variance: Any, gamma: Any) -> Any:
        dtype, x, dy = x.dtype, x.astype(jnp.float32), dy.astype(jnp.float32)
        mean, gamma = mean.reshape(shape), gamma.reshape(shape)
        rstd = jax.lax.rsqrt(variance.reshape(shape) + problem.epsilon)
        xhat = (x - mean) * rstd
        diff_beta = dy.sum(axis=axes, keepdims=True)
        diff_gamma = (dy * xhat).sum(axis=axes, keepdims=True)
        diff_src = gamma * rstd * (dy - (diff_beta + xhat * diff_gamma) / m)
        return diff_src.astype(dtype), diff_gamma, diff_beta

    arguments = [jnp.asarray(a) for a in problem.arguments]
    return lambda: jax.block_until_ready(backward(*arguments))


def tensorflow_call(  # pragma: no cover - held by pytest -m peers
    problem: Problem, threads: int, mode: Mode
) -> Call | None:
    """FusedBatchNormGradV3, eager; TensorFlow uses every CPU it may run on."""
    if problem.src.ndim not in (4, 5) or problem.dtype == np.float64 or threads != usable_cpus():
        return None
    import tensorflow as tf

    axes = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC", ("NCX", 5): "NCDHW"}
    x, dy = (tf.constant(a) for a in (problem.src, problem.diff_dst))
    vectors = [tf.constant(v) for v in (problem.gamma, problem.mean, problem.variance)]
    empty = tf.zeros(0)

    def call() -> object:
        return tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=dy, x=x, scale=vectors[0], reserve_space_1=vectors[1],
            reserve_space_2=vectors[2], reserve_space_3=empty, epsilon=problem.epsilon,
            data_format=axes[problem.layout, problem.src.ndim], is_training=mode == "training",
        )  # fmt: skip

    return call


PEERS: dict[str, Peer] = {
    "numpy": numpy_call,
    "torch": torch_call,
    "jax": jax_call,
    "tensorflow": tensorflow_call,
}
