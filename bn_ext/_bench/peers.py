"""Peers: bn_ext, and what one could use instead.

A peer is a function that returns a call on a problem's arrays, to be measured while the problem
exists. It returns None if it does not have the operation, and raises ImportError if it is not
installed.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from bn_ext import _functions
from bn_ext._bench.problems import Array, Problem

Call = Callable[[], object]
Peer = Callable[[Problem], Call | None]


def bn_ext_call(problem: Problem, **also: Any) -> Call:
    """A call to bn_ext, which returns new results if `also` names no outputs."""
    p = problem
    how = {"epsilon": p.epsilon, "data_format": p.layout, "num_threads": p.threads, **also}
    if p.op.startswith("training"):  # the benchmarks have more of each
        return lambda: _functions.batch_norm_training(p.src, p.gamma, p.beta, **how)
    if p.op.startswith("inference"):
        return lambda: _functions.batch_norm_inference(p.src, *p.vectors, p.beta, **how)
    return lambda: _functions.batch_norm_backward(p.src, p.diff_dst, *p.vectors, **how)


def formulas(problem: Problem, numpy: Any) -> dict[str, tuple[Callable[..., object], Any]]:
    """{operation: (function, arguments)}, as users of `numpy` (NumPy's or JAX's) write them."""
    p, number, m = problem, problem.mean.dtype, problem.src.size // problem.mean.size
    axes = tuple(i for i in range(p.src.ndim) if i != p.axis % p.src.ndim)
    shape = [1 if i in axes else -1 for i in range(p.src.ndim)]
    mean, variance, gamma, beta = (v.reshape(shape) for v in (*p.vectors, p.beta))
    epsilon = number.type(p.epsilon)

    def backward(src: Any, diff_dst: Any, mean: Any, variance: Any, gamma: Any) -> object:
        x, dy = numpy.asarray(src, number), numpy.asarray(diff_dst, number)
        rstd = 1 / numpy.sqrt(variance + epsilon)
        xhat = (x - mean) * rstd
        diff_beta = dy.sum(axis=axes, keepdims=True)
        diff_gamma = (dy * xhat).sum(axis=axes, keepdims=True)
        diff_src = gamma * rstd * (dy - (diff_beta + xhat * diff_gamma) / m)
        return diff_src.astype(p.dtype), diff_gamma, diff_beta

    def inference(src: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
        factor = gamma / numpy.sqrt(variance + epsilon)
        return (factor * (numpy.asarray(src, number) - mean) + beta).astype(p.dtype)

    def training(src: Any, gamma: Any, beta: Any) -> object:
        x = numpy.asarray(src, number)
        mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
        return inference(x, mean, variance, gamma, beta), mean, variance

    return {
        "backward": (backward, (p.src, p.tensors.get("diff_dst"), mean, variance, gamma)),
        "training": (training, (p.src, gamma, beta)),
        "inference": (inference, (p.src, mean, variance, gamma, beta)),
    }


def numpy_call(problem: Problem) -> Call | None:
    """The formula in NumPy."""
    function, given = formulas(problem, np).get(problem.op, (None, ()))
    return function and partial(function, *given)


def tensor_of(array: Array) -> Any:  # pragma: no cover - held by pytest -m peers
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@cache
def torchs_threads() -> int:  # pragma: no cover - held by pytest -m peers
    """The default of torch, asked before it is changed."""
    import torch

    found: int = torch.get_num_threads()
    return found


def torch_arguments(problem: Problem) -> tuple[list[Any], list[Any]]:  # pragma: no cover - likewise
    """The tensors that are read, in the same memory format; mean, variance, gamma and beta."""
    import torch

    torch.set_num_threads(problem.threads or torchs_threads())
    p = problem
    given = [p.tensors[name] for name in dict.fromkeys(("src", *p.streams.reads))]
    # torch has channels-last formats for four and five axes. With three axes it is slow, but not
    # with the same data reshaped to two.
    if p.layout == "NXC" and p.src.ndim == 3:
        given = [a.reshape(-1, a.shape[-1]) for a in given]
    tensors = [tensor_of(a).movedim(p.axis, 1) for a in given]
    return tensors, [torch.from_numpy(v) for v in (*p.vectors, p.beta)]


def torch_call(problem: Problem) -> Call | None:  # pragma: no cover - held by pytest -m peers
    """The operator of torch."""
    (x, *others), (mean, variance, gamma, beta) = torch_arguments(problem)
    import torch

    aten, epsilon = torch.ops.aten, problem.epsilon
    if problem.op == "training":
        return partial(aten.native_batch_norm, x, gamma, beta, None, None, True, 0.1, epsilon)
    if problem.op == "inference":
        return partial(aten.native_batch_norm, x, gamma, beta, mean, variance, False, 0.1, epsilon)
    saved = mean, variance, mean, (variance + epsilon).rsqrt(), True, epsilon, [True] * 3
    return partial(aten.native_batch_norm_backward, *others, x, gamma, *saved)


PEERS: dict[str, Peer] = {"bn_ext": bn_ext_call, "numpy": numpy_call, "torch": torch_call}
