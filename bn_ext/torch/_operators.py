"""torch's operators: what `bn_ext.torch` calls, and their gradients.

call_batch_norm    updates running statistics in place
  _update            input -> result, saved statistics, bits of the ReLU
    _shared            exact sums over the processes of a group
  _normalize         the same as the operator bn_ext::batch_norm, for what traces
  _gradients         bn_ext::batch_norm_backward: its gradient
  _second            bn_ext::batch_norm_double_backward: the gradient of the gradient
"""

import inspect
import zlib
from collections import namedtuple
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.library import custom_op

import bn_ext._core as _core
from bn_ext._derivatives import gated_double_backward, workspace_size
from bn_ext._sums import GradientSums, Statistics, as_sums

# ---- tensors as arrays, and the options of every call -------------------------------------------

_NAMES = {"src": "input", "gamma": "weight", "beta": "bias", "mean": "running_mean"}
_WORDS = _core.Words(_NAMES | dict.fromkeys(("variance", "running_variance"), "running_var"))

#: The dtypes of data and vectors.
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
#: NumPy's codes; bits of bfloat16 are seen as integers first.
_CODES = dict(zip([*FLOATS, torch.uint8], ("=f4", "=f8", "=f2", "=u2", "=u1"), strict=True))


def _array(tensor: Tensor | None, written: bool = False) -> Any:
    """An array over the tensor's memory, which it keeps alive; a lazily negated tensor is copied.

    `Tensor.numpy` would keep its storage from being resized, ever; DLPack would end a lazy copy.
    """
    if tensor is None:
        return None
    if tensor.is_neg():
        if written:
            raise ValueError("running statistics: expected plain tensors, got a negated view")
        tensor = tensor.resolve_neg()
    address = tensor.data_ptr() if written else tensor.const_data_ptr()
    if address == tensor.storage_offset() * tensor.itemsize and tensor.numel():
        raise ValueError(
            f"expected tensors with memory, got a {type(tensor).__name__} of shape "
            f"{tuple(tensor.shape)} that has none, or whose memory was freed"
        )
    size, is_dense = tensor.itemsize, tensor.is_contiguous()
    strides = None if is_dense else tuple([step * size for step in tensor.stride()])
    memory = {"data": (address, not written), "shape": tensor.shape, "strides": strides}
    interface = {"version": 3, "typestr": _CODES[tensor.dtype], **memory}
    array = np.asarray(SimpleNamespace(tensor=tensor, __array_interface__=interface))
    if tensor.dtype != torch.bfloat16:
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


_writable = partial(_array, written=True)


def _options() -> dict[str, Any]:
    """Options of every call; with no more threads than torch would use."""
    threads = torch.get_num_threads()
    limited = threads < _core.default_threads()
    return {"data_format": "NCX", "num_threads": threads if limited else None}


def _dtype(vector: Tensor | None) -> torch.dtype:
    """The dtype of its gradient. torch would convert another in the caller's mode."""
    return torch.float64 if vector is None else vector.dtype


# ---- several processes ------------------------------------------------------------------------


def _shared(function: str, group: str, src: Tensor, eps: float, sum_own: Any) -> Any:
    """What `sum_own` returns, exact sums of this process, with those of all others added.

    Integers of different lengths must not meet, so a word goes ahead: a hash of what is alike.
    """
    processes = distributed.distributed_c10d._resolve_process_group(group)
    call = f"{function} of {src.shape[1]} channels, {src.dtype}, eps={float(eps)}"
    word = zlib.crc32(call.encode())
    words = torch.tensor([word], device="cpu")  # whatever the default device is
    sent = distributed.all_reduce(words, group=processes, async_op=True)
    sums = sum_own()
    sent.wait()
    if words.item() != word * processes.size():
        raise RuntimeError(
            "batch_norm: expected the same function, channels, dtype and eps in all processes of "
            f"the group, got {call} in process {processes.rank()} and others in another"
        )
    distributed.all_reduce(torch.from_numpy(sums.array), group=processes)
    return sums


# ---- the operators ----------------------------------------------------------------------------
#
# group is the name of a process group. An empty name means exact sums in this process alone; None
# means plain sums. statistics are mean and variance. An operator must not return None or one of its
# arguments, nor change them.


def _new(src: Tensor, gate: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for dst, statistics, workspace."""
    size = workspace_size(src.numel(), src.dim()) if gate else 0
    statistics = src.new_empty(2, src.shape[1], dtype=torch.float64)
    return torch.empty_like(src), statistics, src.new_empty(size, dtype=torch.uint8)


def _update(
    src: Tensor, weight: Tensor | None, bias: Tensor | None, src_1: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float, relu: bool, gate: bool,
    group: str | None, whole: bool, *, dry: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dst, statistics, workspace. In training, running statistics are updated in place.

    With `dry`, a step of training is only checked.
    """
    outputs = _new(src, gate)
    dst, (mean, variance), workspace = map(_writable, outputs)
    x, shared = _array(src), _options()
    options: dict[str, Any] = {"epsilon": eps, "relu": relu, "words": _WORDS, **shared}
    options |= {"gamma": _array(weight), "beta": _array(bias), "src_1": _array(src_1)}
    options["workspace"] = workspace if gate else None
    if not training:
        stats = _array(running_mean), _array(running_var)
        _core.inference(x, *stats, out=dst, **options)
        with _core.DefaultMode():
            mean[:], variance[:] = stats
        return outputs
    running: dict[str, Any] = {}
    if running_mean is not None and running_var is not None:
        running = {"exponential_avg_factor": momentum, "correction": 0 if group else 1}
        running["running_mean"] = _writable(running_mean)
        running["running_variance"] = _writable(running_var)
        torch.autograd.graph.increment_version((running_mean, running_var))
    # With a group, a dry run: errors come before other processes wait.
    exact, is_dry = group is not None, dry or bool(group)
    _core.training(x, out=(dst, mean, variance), exact=exact, dry=is_dry, **options, **running)
    if group and not dry:
        total = _shared("batch_norm", group, src, eps, partial(Statistics, x, exact=True, **shared))
        mean[:], variance[:] = total.mean, total.variance
        _core.inference(x, mean, variance, out=dst, **options)
        if running:
            total.update_running(**running | {"correction": 1})
    return outputs


def _named(kernel: Any) -> Any:
    """A named tuple of a kernel's positional arguments, in their order; a name may be left out."""
    parameters = inspect.signature(kernel).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return namedtuple(kernel.__name__, names, defaults=[None] * len(names))


_Step = _named(_update)


def _after(step: Any) -> list[Tensor]:
    """Copies of the running statistics that a step updates, or empty tensors."""
    return [
        a.clone() if step.training and a is not None else step.src.new_empty(0)
        for a in (step.running_mean, step.running_var)
    ]


#: As for `_update`.
_SCHEMA = (
    "(Tensor src, Tensor? weight, Tensor? bias, Tensor? src_1, Tensor? running_mean, "
    "Tensor? running_var, bool training, float momentum, float eps, bool relu, bool gate, "
    "str? group, bool whole) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _normalize(*arguments: Any) -> tuple[Tensor, ...]:
    """What `_update` returns, and running statistics after the step."""
    step = _Step(*arguments)
    after = _after(step)
    if len(after[0]):
        _update(*step, dry=True)
        step = step._replace(running_mean=after[0], running_var=after[1])
    return *_update(*step), *after


def _outputs(*arguments: Any) -> tuple[Tensor, ...]:
    step = _Step(*arguments)
    return *_new(step.src, step.gate), *_after(step)


def _outputs_of_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    call = _Gradient(*arguments)
    src, size = call.src, call.src.shape[1] if call.vectors else 0
    pair = [src.new_empty(size, dtype=dtype) for dtype in (_dtype(call.weight), call.bias)]
    last = torch.empty_like(src) if call.relu and call.added else src.new_empty(0)
    return torch.empty_like(src), *pair, last


def _gradients(
    src: Tensor, diff_dst: Tensor, statistics: Tensor, weight: Tensor | None, workspace: Tensor,
    training: bool, eps: float, relu: bool, added: bool, vectors: bool,
    group: str | None, whole: bool, bias: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """diff_src, diff_weight, diff_bias (of this dtype), and diff_src_1 if it is not diff_dst."""
    needed = {"src": src, "weight": weight, "relu": relu, "added": added, "vectors": vectors}
    outputs = _outputs_of_gradients(*_Gradient(**needed, bias=bias))
    diff_src, *diff_vectors, diff_src_1 = map(_writable, outputs)
    x, diff, (mean, variance) = _array(src), _array(diff_dst), _array(statistics)
    options = _options()
    gate: dict[str, Any] = {"relu": relu, "workspace": _array(workspace) if relu else None}
    fixed = {"variance": variance, "gamma": _array(weight), "epsilon": eps, "words": _WORDS}
    backward = partial(_core.backward, **fixed, **options)

    def sum_own() -> GradientSums:
        own = GradientSums(x, diff, mean, exact=True, **gate, **options)
        if vectors and not whole:  # those of a call without elements
            backward(x[:0], diff[:0], mean, out=(None, *diff_vectors), sums=as_sums(own))
        return own

    total = None
    if group and (training or (whole and vectors)):
        total = _shared("batch_norm_backward", group, src, eps, sum_own)
        vectors &= whole
    is_fourth = relu and added
    out = diff_src, *(diff_vectors if vectors else (None, None)), *[diff_src_1] * is_fourth
    modes = {"is_training": training, "param_grads": vectors, "diff_src_1": is_fourth}
    exact = group is not None and (training or whole)
    backward(x, diff, mean, out=out, exact=exact, sums=as_sums(total), **modes, **gate)
    return outputs


_Gradient = _named(_gradients)


def _outputs_of_second(
    src: Tensor, _: Any, __: Any, weight: Tensor | None, *___: Any
) -> tuple[Tensor, ...]:
    vector = src.new_empty(src.shape[1], dtype=_dtype(weight))
    return torch.empty_like(src), torch.empty_like(src), vector


def _second(
    src: Tensor, diff_dst: Tensor, statistics: Tensor, weight: Tensor | None,
    workspace: Tensor, of_src: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None,
    of_src_1: Tensor | None, training: bool, eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of src, diff_dst and weight, given those of what `_gradients` returns."""
    outputs = _outputs_of_second(src, diff_dst, statistics, weight)
    of_src = torch.zeros_like(src) if of_src is None else of_src
    tensors = src, diff_dst, statistics, weight, of_src, of_weight, of_bias
    x, diff, stats, *others = map(_array, tensors)
    options = {"is_training": training, "epsilon": eps, "words": _WORDS, **_options()}
    options |= {"workspace": _array(workspace) if relu else None, "of_src_1": _array(of_src_1)}
    gated_double_backward(x, diff, *stats, *others, **options, out=tuple(map(_writable, outputs)))
    return outputs


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    step = _Step(*inputs)
    _, statistics, workspace, *_ = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(step.src, statistics, step.weight, workspace)
    options = {"training": step.training, "eps": step.eps, "relu": step.relu, "group": step.group}
    options |= {"whole": step.whole, "added": step.src_1 is not None, "bias": _dtype(step.bias)}
    ctx.options = options


def _backward(ctx: Any, diff_dst: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    no_grads: tuple[None, ...] = _Step()
    if diff_dst is None:
        return no_grads
    src, statistics, weight, workspace = ctx.saved_tensors
    needed = ctx.needs_input_grad[:4]
    options = {"vectors": any(needed[1:3]), **ctx.options}
    call = _Gradient(src, diff_dst, statistics, weight, workspace, **options)
    *three, diff_src_1 = _call_of_gradients(*call)
    grads = *three, diff_src_1 if call.relu else diff_dst
    needed_grads = (grad if need else None for grad, need in zip(grads, needed, strict=True))
    step: tuple[Tensor | None, ...] = _Step(*needed_grads)
    return step


def _keep_gradients(ctx: Any, inputs: Any, output: Any) -> None:
    call = _Gradient(*inputs)
    absent = () if call.vectors else output[1:3]
    ctx.mark_non_differentiable(*absent, *(() if call.relu and call.added else output[3:]))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(call.src, call.diff_dst, call.statistics, call.weight, call.workspace)
    ctx.options = call.training, call.eps, call.relu
    ctx.group = call.group if call.training or call.whole else None


def _backward_of_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.group is not None:
        raise RuntimeError(
            "batch_norm: the gradient of the gradient is not available with group or SyncBatchNorm"
        )
    src, diff_dst, statistics, weight, workspace = ctx.saved_tensors
    diff_src, diff_diff_dst, diff_weight = _call_of_second(
        src, diff_dst, statistics, weight, workspace, *grads, *ctx.options
    )
    call: tuple[Tensor | None, ...] = _Gradient(
        src=diff_src, diff_dst=diff_diff_dst, weight=None if weight is None else diff_weight
    )
    return call


def _operator(name: str, kernel: Any, fake: Any, schema: str | None = None) -> Any:
    operator: Any = custom_op(
        f"bn_ext::{name}", kernel, mutates_args=(), device_types="cpu", schema=schema
    )
    operator.register_fake(fake)
    return operator


def _count(run: Any, arguments: Any, tracked: Tensor | None) -> Any:
    """Run it; count the batch in tracked, and write the running statistics of an operator.

    The count comes first: Python raises a KeyboardInterrupt after the call that has updated them.
    """
    if tracked is not None:
        tracked.add_(1)
    try:
        outputs = run(*arguments)
    except Exception:  # nothing was updated
        if tracked is not None:
            tracked.sub_(1)
        raise
    if after := outputs[3:]:  # an operator's; the kernel has written them itself
        step = _Step(*arguments)
        for old, new in zip((step.running_mean, step.running_var), after, strict=True):
            if len(new):
                old.copy_(new)
    return outputs


def _differentiable(
    operator: Any, kernel: Any, tensors: int, keep: Any, backward: Any,
    through: Any = lambda run, arguments, _: run(*arguments),
) -> Any:  # fmt: skip
    """A function that calls an operator, `through` another, with its gradient by its first tensors.

    Unless the call is traced, it is an autograd function, which updates and counts before it saves
    tensors: that may raise an error, to end a checkpoint's recomputation. It has a third of the
    operator's overhead if it may call the kernel: if no mode looks at operators and the first
    tensor is a plain Tensor or Parameter on a CPU.
    """

    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        *first, (rest, run, tracked) = inputs
        arguments = *first, *rest
        if any(ctx.needs_input_grad) and any(t is not None and t.is_inference() for t in first):
            raise RuntimeError("batch_norm: autograd cannot save inference tensors; clone them")
        output: tuple[Tensor, ...] = through(run, arguments, tracked)
        keep(ctx, arguments, output)
        return output

    def gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *backward(ctx, *grads)[:tensors], None

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function: Any = type("BatchNorm", (torch.autograd.Function,), methods)
    operator.register_autograd(backward, setup_context=keep)

    def call(*arguments: Any, tracked: Tensor | None = None) -> Any:
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        is_real = type(arguments[0]) in (Tensor, nn.Parameter) and arguments[0].device.type == "cpu"
        is_plain = is_real and not is_traced and not torch._C._len_torch_dispatch_stack()
        run = kernel if is_plain else operator
        # Autograd functions refuse torch.func and forward mode, which look at calls without a
        # gradient, too.
        is_recorded = (
            torch.is_grad_enabled()
            or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
        )
        if is_traced or not is_recorded:
            return through(run, arguments, tracked)
        return function.apply(*arguments[:tensors], (arguments[tensors:], run, tracked))

    return call


call_batch_norm = _differentiable(
    _operator("batch_norm", _normalize, _outputs, _SCHEMA), _update, 4, _keep, _backward, _count
)
_GRADIENTS = _operator("batch_norm_backward", _gradients, _outputs_of_gradients)
_call_of_gradients = _differentiable(
    _GRADIENTS, _gradients, 5, _keep_gradients, _backward_of_gradients
)
_call_of_second = _operator("batch_norm_double_backward", _second, _outputs_of_second)
