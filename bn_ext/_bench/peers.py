"""Peers: what one could use instead of bn_ext.

A peer is a function that returns a call on a problem's arrays, to be measured while the problem
exists. It returns None if it does not have the operation, and raises ImportError if it is not
installed.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

import bn_ext
from bn_ext._bench.problems import OPS, Array, Problem

__all__ = [
    "OF_VIEWS", "PEERS", "Call", "Peer", "bn_ext_call", "formulas", "numpy_call", "tensor_of",
]  # fmt: skip

Call = Callable[[], object]
Peer = Callable[[Problem], Call | None]


def bn_ext_call(problem: Problem, given: bool = False, **also: Any) -> Call:
    """A call to bn_ext that returns new results, or with `given` writes to the problem's outputs.

    `also`: arguments that not every operation has.
    """
    p, op = problem, problem.op
    more: dict[str, Any] = {
        "epsilon": p.epsilon,
        "data_format": p.layout,
        "num_threads": p.threads,
        "out": (p.out if len(p.out) > 1 else p.out[0]) if given else None,
        **also,
    }
    if op == "double-backward":
        return lambda: bn_ext.batch_norm_double_backward(
            p.src, p.diff_dst, p.mean, p.variance, p.gamma, p.diff_diff_src, **more
        )
    more["relu"] = op.endswith("relu")
    if op.startswith("training"):
        return lambda: bn_ext.batch_norm_training(p.src, p.gamma, p.beta, **more)
    if op.startswith("inference"):
        added = p.tensors.get("src_1")
        return lambda: bn_ext.batch_norm_inference(
            p.src, p.mean, p.variance, p.gamma, p.beta, src_1=added, **more
        )
    more["is_training"] = not op.startswith("backward-frozen")
    more["param_grads"] = op != "backward-frozen-src"
    if given and not more["param_grads"]:
        more["out"] = (p.out[0], None, None)
    if more["relu"]:
        more["beta"] = p.beta
    return lambda: bn_ext.batch_norm_backward(p.src, p.diff_dst, *p.vectors, **more)


def formulas(
    problem: Problem, numpy: Any
) -> dict[str, tuple[Callable[..., object], tuple[Any, ...]]]:
    """{operation: (function, arguments)}, as users of `numpy` (NumPy's or JAX's) write them."""
    p, number, m = problem, problem.mean.dtype, problem.src.size // problem.mean.size
    axes, shape = p.summed_axes, p.vector_shape

    def rstd_of(variance: Any) -> Any:
        return 1 / numpy.sqrt(variance.reshape(shape) + number.type(p.epsilon))

    def backward(src: Any, diff_dst: Any, mean: Any, variance: Any, gamma: Any) -> object:
        x, dy, rstd = numpy.asarray(src, number), numpy.asarray(diff_dst, number), rstd_of(variance)
        xhat = (x - mean.reshape(shape)) * rstd
        diff_beta = dy.sum(axis=axes, keepdims=True)
        diff_gamma = (dy * xhat).sum(axis=axes, keepdims=True)
        diff_src = gamma.reshape(shape) * rstd * (dy - (diff_beta + xhat * diff_gamma) / m)
        return diff_src.astype(p.dtype), diff_gamma, diff_beta

    def inference(src: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
        factor = gamma.reshape(shape) * rstd_of(variance)
        dst = factor * (numpy.asarray(src, number) - mean.reshape(shape)) + beta.reshape(shape)
        return dst.astype(p.dtype)

    def training(src: Any, gamma: Any, beta: Any) -> object:
        x = numpy.asarray(src, number)
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
        return inference(x, mean, variance, gamma, beta), mean, variance

    return {
        "backward": (backward, (p.src, p.tensors.get("diff_dst"), *p.vectors)),
        "training": (training, (p.src, p.gamma, p.beta)),
        "inference": (inference, (p.src, *p.vectors, p.beta)),
    }


def numpy_call(problem: Problem) -> Call | None:
    """The formula in NumPy."""
    known = formulas(problem, np)
    if problem.op not in known:
        return None
    function, given = known[problem.op]
    return partial(function, *given)


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


def torch_call(problem: Problem) -> Call | None:  # pragma: no cover - held by pytest -m peers
    """The operator of torch, in the same memory format."""
    import torch

    torch.set_num_threads(problem.threads or torchs_threads())
    p, op, aten = problem, problem.op, torch.ops.aten
    given = {name: a for name, a in p.tensors.items() if name not in OPS[op].writes}
    # torch has channels-last formats for four and five axes. With three axes it is slow, but not
    # with the same data reshaped to two.
    flat = p.layout == "NXC" and p.src.ndim == 3
    rows = (a.reshape(-1, a.shape[-1]) if flat else a for a in given.values())
    x, *others = (tensor_of(a).movedim(p.axis, 1) for a in rows)
    mean, variance, gamma, beta = (torch.from_numpy(v) for v in (*p.vectors, p.beta))
    rstd = (variance + p.epsilon).rsqrt()
    if op == "double-backward":
        inputs = [t.detach().requires_grad_() for t in (x, others[0], gamma)]
        dst = torch.nn.functional.batch_norm(
            inputs[0], None, None, inputs[2], beta, training=True, eps=p.epsilon
        )
        (first,) = torch.autograd.grad(dst, inputs[0], inputs[1], create_graph=True)
        return lambda: torch.autograd.grad(first, inputs, others[1], retain_graph=True)
    if op.startswith(("training", "inference")):
        statistics = (None, None, True) if op.startswith("training") else (mean, variance, False)

        def forward() -> object:
            found = aten.native_batch_norm(x, gamma, beta, *statistics, 0.1, p.epsilon)[0]
            if others:
                found += others[0]
            return found.relu_() if op.endswith("relu") else found

        return forward
    wanted = [True] * 3 if op != "backward-frozen-src" else [True, False, False]
    backward = aten.native_batch_norm_backward
    more = gamma, mean, variance, mean, rstd, not op.startswith("backward-frozen"), p.epsilon
    if op == "backward-relu":
        dst = aten.native_batch_norm(x, gamma, beta, mean, variance, False, 0.1, p.epsilon)[0]
        return lambda: backward(aten.threshold_backward(others[0], dst, 0), x, *more, wanted)
    return lambda: backward(others[0], x, *more, wanted)


def dense_call(problem: Problem) -> Call | None:
    """bn_ext on dense arrays instead of views."""
    if not problem.case.view:
        return None
    return bn_ext_call(Problem(replace(problem.case, view="")))


def copied_call(problem: Problem) -> Call | None:
    """bn_ext on dense arrays, to which NumPy first copies the views."""
    if not problem.case.view:
        return None
    copy = Problem(replace(problem.case, view=""))
    call = bn_ext_call(copy)

    def copied() -> object:
        for name in OPS[problem.op].reads:
            np.copyto(copy.tensors[name], problem.tensors[name])
        return call()

    return copied


PEERS: dict[str, Peer] = {"numpy": numpy_call, "torch": torch_call}
#: What calls on views are compared with, too.
OF_VIEWS: dict[str, Peer] = {"dense": dense_call, "copied": copied_call}
