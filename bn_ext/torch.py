"""Batch normalization for torch on a CPU: layers that take the place of torch's own.

The extra ``torch`` installs what this module needs. ``import bn_ext`` does not import it.

    batch_norm         what the layers call; updates running statistics in place
      _update            input -> result, saved statistics, bits of the ReLU
        _shared            exact sums over the processes of a group
      _normalize         the same as the operator bn_ext::batch_norm, for what traces
      _gradients         bn_ext::batch_norm_backward: its gradient
      _second            bn_ext::batch_norm_double_backward: the gradient of the gradient
"""

import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

try:
    import torch
    from torch import Tensor, distributed, nn
    from torch.library import custom_op
except ImportError as _error:
    raise ModuleNotFoundError(
        f"bn_ext.torch: expected torch, got {_error!r:.200}; python -m pip install torch "
        "(a build for CPUs: --index-url https://download.pytorch.org/whl/cpu)",
        name="torch",
    ) from _error

from bn_ext import _core
from bn_ext._gated import gated_double_backward, workspace_size
from bn_ext._sums import GradientSums, Statistics, total_of

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "SyncBatchNorm",
    "batch_norm",
    "convert",
]


def __dir__() -> list[str]:
    return __all__


# ---- tensors as arrays, and the options of every call -------------------------------------------

_WORDS = _core.Words(
    {"src": "input", "gamma": "weight", "beta": "bias", "running_variance": "running_var"}
)


#: The dtypes of data and vectors, with the methods that convert to them.
_FLOATS = {torch.float32: "float", torch.float64: "double", torch.float16: "half",
           torch.bfloat16: "bfloat16"}  # fmt: skip
#: NumPy's codes; bits of bfloat16 are seen as integers first.
_CODES = {torch.float32: "=f4", torch.float64: "=f8", torch.float16: "=f2", torch.bfloat16: "=u2",
          torch.uint8: "=u1"}  # fmt: skip


class _Memory:
    """A tensor's memory as NumPy takes it. The array keeps it alive.

    `Tensor.numpy` would keep its storage from being resized, ever; DLPack would end a lazy copy.
    """

    def __init__(self, tensor: Tensor, address: int, written: bool) -> None:
        size = tensor.itemsize
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": _CODES[tensor.dtype],
            "data": (address, not written),
            "shape": tensor.shape,
            "strides": None
            if tensor.is_contiguous()
            else tuple([step * size for step in tensor.stride()]),
        }


def _array(tensor: Tensor | None, written: bool = False) -> Any:
    """An array over the tensor's memory; a lazily negated tensor is copied."""
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
    array = np.asarray(_Memory(tensor, address, written))
    if tensor.dtype != torch.bfloat16:
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


def _writable(tensor: Tensor) -> Any:
    return _array(tensor, True)


def _options() -> dict[str, Any]:
    """Options of every call; with no more threads than torch would use."""
    threads = torch.get_num_threads()
    limited = threads < _core.default_threads()
    return {"data_format": "NCX", "num_threads": threads if limited else None}


def _vector(src: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return src.new_empty(shape or src.shape[1], dtype=dtype)


def _dtype(vector: Tensor | None) -> torch.dtype:
    """The dtype of its gradient. torch would convert another in the caller's mode."""
    return torch.float64 if vector is None else vector.dtype


# ---- several processes ------------------------------------------------------------------------


_SumsT = TypeVar("_SumsT", Statistics, GradientSums)


def _shared(
    function: str, group: str, src: Tensor, eps: float, find: Callable[[], _SumsT]
) -> _SumsT:
    """What `find` returns, exact sums of this process, with those of all others added.

    Integers of different lengths must not meet, so a word goes ahead: a hash of what is alike.
    """
    processes = distributed.distributed_c10d._resolve_process_group(group)
    call = f"{function} of {src.shape[1]} channels, {src.dtype}, eps={float(eps)}"
    word = zlib.crc32(call.encode())
    words = torch.tensor([word], device="cpu")  # whatever the default device is
    sent = distributed.all_reduce(words, group=processes, async_op=True)
    sums = find()
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


def _bits(src: Tensor, gate: bool) -> Tensor:
    size = workspace_size(src.numel(), src.dim()) if gate else 0
    return _vector(src, size, dtype=torch.uint8)


def _update(
    src: Tensor, weight: Tensor | None, bias: Tensor | None, src_1: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float, relu: bool, gate: bool,
    group: str | None, whole: bool, *, dry: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dst, statistics, workspace. In training, running statistics are updated in place.

    With `dry`, a step of training is only checked.
    """
    outputs = torch.empty_like(src), _vector(src, 2, src.shape[1]), _bits(src, gate)
    dst, (mean, variance), workspace = map(_writable, outputs)
    x, how = _array(src), _options()
    given: dict[str, Any] = {
        "gamma": _array(weight), "beta": _array(bias), "src_1": _array(src_1), "epsilon": eps,
        "relu": relu, "workspace": workspace if gate else None, "words": _WORDS, **how,
    }  # fmt: skip
    running: dict[str, Any] = {}
    if not training:
        with _core.DefaultMode():
            mean[:], variance[:] = _array(running_mean), _array(running_var)
    elif running_mean is not None and running_var is not None:
        running = {
            "running_mean": _writable(running_mean), "running_variance": _writable(running_var),
            "exponential_avg_factor": momentum, "correction": 0 if group else 1,
        }  # fmt: skip
        torch.autograd.graph.increment_version((running_mean, running_var))
    if training:  # with a group, errors come before others wait
        out = dst, mean, variance
        first = dry or bool(group)
        _core.training(x, out=out, exact=group is not None, dry=first, **given, **running)
        if not group or dry:
            return outputs
        total = _shared("batch_norm", group, src, eps, partial(Statistics, x, exact=True, **how))
        mean[:], variance[:] = total.mean, total.variance
    _core.inference(x, mean, variance, out=dst, **given)
    if running:
        total.update_running(**running | {"correction": 1})
    return outputs


def _after(given: tuple[Any, ...]) -> list[Tensor]:
    """Copies of the running statistics that a step updates, or empty tensors."""
    src, _, _, _, *running, training, _, _, _, _, _, _ = given
    return [each.clone() if training and each is not None else _vector(src, 0) for each in running]


#: As for `_update`.
_SCHEMA = (
    "(Tensor src, Tensor? weight, Tensor? bias, Tensor? src_1, Tensor? running_mean, "
    "Tensor? running_var, bool training, float momentum, float eps, bool relu, bool gate, "
    "str? group, bool whole) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _normalize(*given: Any) -> tuple[Tensor, ...]:
    """What `_update` returns, and running statistics after the step."""
    after = _after(given)
    if len(after[0]):
        _update(*given, dry=True)
        given = *given[:4], *after, *given[6:]
    return *_update(*given), *after


def _outputs(src: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *_, gate, _, _ = rest
    new = torch.empty_like(src), _vector(src, 2, src.shape[1]), _bits(src, gate)
    return *new, *_after((src, *rest))


def _outputs_of_gradients(
    src: Tensor, _: Any, __: Any, weight: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *_, relu, added, vectors, _, _, bias = rest
    size = () if vectors else (0,)
    pair = [_vector(src, *size, dtype=dtype) for dtype in (_dtype(weight), bias)]
    last = torch.empty_like(src) if relu and added else _vector(src, 0)
    return torch.empty_like(src), *pair, last


def _gradients(
    src: Tensor, diff_dst: Tensor, statistics: Tensor, weight: Tensor | None, workspace: Tensor,
    training: bool, eps: float, relu: bool, added: bool, vectors: bool,
    group: str | None, whole: bool, bias: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """diff_src, diff_weight, diff_bias (of this dtype), and diff_src_1 if it is not diff_dst."""
    outputs = _outputs_of_gradients(
        src, diff_dst, statistics, weight, relu, added, vectors, group, whole, bias
    )
    diff_src, *diff_vectors, diff_src_1 = map(_writable, outputs)
    x, diff, (mean, variance), how = _array(src), _array(diff_dst), _array(statistics), _options()
    gate: dict[str, Any] = {"relu": True, "workspace": _array(workspace)} if relu else {}
    rest: dict[str, Any] = {"variance": variance, "gamma": _array(weight), "epsilon": eps,
                            "words": _WORDS, **how}  # fmt: skip

    def find() -> GradientSums:
        own = GradientSums(x, diff, mean, exact=True, **gate, **how)
        if vectors and not whole:  # apply them to no elements
            out = None, *diff_vectors
            _core.backward(x[:0], diff[:0], mean, out=out, total=total_of(own), **rest)
        return own

    total = None
    if group and training:
        total = _shared("batch_norm_backward", group, src, eps, find)
        vectors &= whole
    out = [diff_src, *(diff_vectors if vectors else (None, None)), diff_src_1]
    _core.backward(
        x, diff, mean, is_training=training, param_grads=vectors, diff_src_1=relu and added,
        out=out if relu and added else out[:3], exact=training and group is not None,
        total=total_of(total), **gate, **rest,
    )  # fmt: skip
    return outputs


def _outputs_of_second(
    src: Tensor, _: Any, __: Any, weight: Tensor | None, *___: Any
) -> tuple[Tensor, ...]:
    return torch.empty_like(src), torch.empty_like(src), _vector(src, dtype=_dtype(weight))


def _second(
    src: Tensor, diff_dst: Tensor, statistics: Tensor, weight: Tensor | None,
    workspace: Tensor, of_src: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None,
    of_src_1: Tensor | None, training: bool, eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of src, diff_dst and weight, given those of what `_gradients` returns."""
    outputs = _outputs_of_second(src, diff_dst, statistics, weight)
    of_src = torch.zeros_like(src) if of_src is None else of_src
    mean, variance = _array(statistics)
    gated_double_backward(
        _array(src), _array(diff_dst), mean, variance, _array(weight), _array(of_src),
        _array(of_weight), _array(of_bias), _array(of_src_1),
        workspace=_array(workspace) if relu else None, is_training=training,
        out=tuple(map(_writable, outputs)), epsilon=eps, words=_WORDS, **_options(),
    )  # fmt: skip
    return outputs


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    src, weight, bias, src_1, _, _, training, _, eps, relu, _, *over = inputs
    _, statistics, workspace, *_ = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(src, statistics, weight, workspace)
    ctx.options, ctx.over = (training, eps, relu, src_1 is not None), (*over, _dtype(bias))


def _backward(ctx: Any, diff_dst: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    needed, rest = ctx.needs_input_grad[:4], (None,) * 9
    if diff_dst is None:
        return (None,) * 4 + rest
    src, *saved = ctx.saved_tensors
    vectors = any(needed[1:3])
    *three, diff_src_1 = _call_of_gradients(src, diff_dst, *saved, *ctx.options, vectors, *ctx.over)
    relu = ctx.options[2]
    grads = (*three, diff_src_1 if relu else diff_dst)
    return (*(grad if need else None for grad, need in zip(grads, needed, strict=True)), *rest)


def _keep_gradients(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, training, eps, relu, added, vectors, group, _, _ = inputs
    absent = () if vectors else output[1:3]
    ctx.mark_non_differentiable(*absent, *(() if relu and added else output[3:]))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)
    ctx.options, ctx.group = (training, eps, relu), group if training else None


def _backward_of_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.group is not None:
        raise RuntimeError(
            "batch_norm: the gradient of the gradient is not available with group or SyncBatchNorm"
        )
    tensors = ctx.saved_tensors
    diff_src, diff_diff_dst, diff_weight = _call_of_second(*tensors, *grads, *ctx.options)
    weight = None if tensors[3] is None else diff_weight
    return diff_src, diff_diff_dst, None, weight, *(None,) * 9


def _operator(name: str, kernel: Any, fake: Any, schema: str | None = None) -> Any:
    made: Any = custom_op(
        f"bn_ext::{name}", kernel, mutates_args=(), device_types="cpu", schema=schema
    )
    made.register_fake(fake)
    return made


def _is_transformed() -> bool:
    """Whether torch.func or forward mode, which autograd functions refuse, look at the call."""
    transforms: bool = torch._C._are_functorch_transforms_active()
    return transforms or torch.autograd.forward_ad._current_level >= 0


def _count(given: Any, outputs: Any, tracked: Tensor | None) -> None:
    """Count the batch in tracked, and write the running statistics that the operator returns."""
    if tracked is not None:
        tracked.add_(1)
    for old, new in zip(given[4:6], outputs[3:], strict=False):
        if len(new):
            old.copy_(new)


def _differentiable(
    operator: Any, kernel: Any, tensors: int, keep: Any, backward: Any,
    then: Any = lambda *_: None,
) -> Any:  # fmt: skip
    """A function that calls an operator with its gradient by its first tensors, and `then`.

    Unless the call is traced, it is an autograd function, which calls `then` before it saves
    tensors: that may raise an error, to end a checkpoint's recomputation. It has a third of the
    operator's overhead if it may call the kernel: if no mode looks at operators and the first
    tensor is a plain Tensor or Parameter on a CPU.
    """

    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        *first, (rest, run, tracked) = inputs
        given = *first, *rest
        if any(ctx.needs_input_grad) and any(t is not None and t.is_inference() for t in first):
            raise RuntimeError("batch_norm: autograd cannot save inference tensors; clone them")
        output: tuple[Tensor, ...] = run(*given)
        then(given, output, tracked)
        keep(ctx, given, output)
        return output

    def gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *backward(ctx, *grads)[:tensors], None

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function: Any = type("BatchNorm", (torch.autograd.Function,), methods)
    operator.register_autograd(backward, setup_context=keep)

    def call(*given: Any, tracked: Tensor | None = None) -> Any:
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        is_real = type(given[0]) in (Tensor, nn.Parameter) and given[0].device.type == "cpu"
        is_plain = is_real and not is_traced and not torch._C._len_torch_dispatch_stack()
        run = kernel if is_plain else operator
        if is_traced or not (torch.is_grad_enabled() or _is_transformed()):
            output = run(*given)
            then(given, output, tracked)
            return output
        return function.apply(*given[:tensors], (given[tensors:], run, tracked))

    return call


_call = _differentiable(
    _operator("batch_norm", _normalize, _outputs, _SCHEMA), _update, 4, _keep, _backward, _count
)
_call_of_gradients = _differentiable(
    _operator("batch_norm_backward", _gradients, _outputs_of_gradients),
    _gradients, 5, _keep_gradients, _backward_of_gradients,
)  # fmt: skip
_call_of_second = _operator("batch_norm_double_backward", _second, _outputs_of_second)


# ---- what is public ---------------------------------------------------------------------------


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    src_1: Tensor | None = None,
    relu: bool = False,
    group: str | None = None,
    whole_gradients: bool = False,
) -> Tensor:
    """`torch.nn.functional.batch_norm`, followed by an optional addition and ReLU.

    Parameters
    ----------
    input : Tensor, shape (N, C, ...)
        float32, float64, float16 or bfloat16, on a CPU, in any memory format.
    running_mean, running_var, weight, bias : Tensor or None, shape (C,)
        Each may have any of these dtypes. In training, running_mean and running_var are updated in
        place, unless they are None, and share memory with no other tensor. In inference, the input
        is normalized with them; to autograd, they are constants.
    training, momentum, eps
        As for torch's function.
    src_1 : Tensor, optional
        Added before the ReLU; of input's shape and dtype.
    relu : bool, optional
        Whether negative results become zeros.
    group : str, optional
        In training, the name of a process group whose processes share the batch, or an empty string
        for this process alone. Sums are then exact. None means plain sums in this process.
    whole_gradients : bool, optional
        As for `SyncBatchNorm`.

    Returns
    -------
    Tensor
        In input's shape, dtype and memory format.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training` and `bn_ext.batch_norm_inference`.
    RuntimeError
        As for `SyncBatchNorm`, if there is a group.

    Examples
    --------
    >>> import torch, bn_ext.torch
    >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> y = bn_ext.torch.batch_norm(x, None, None, training=True, eps=0.0)
    >>> y.detach().flatten()
    tensor([-1.,  1.])
    """
    return _batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps, src_1, relu, group,
        whole_gradients, None,
    )  # fmt: skip


def _wrong_kind(
    name: str, tensor: Tensor, input: Tensor, dtypes: list[Any], is_written: bool
) -> Exception:
    """The error for a tensor of another dtype, device or layout, with a call that converts it."""
    hint = ""
    if tensor.dtype not in dtypes:
        like = ", like input" if name == "src_1" else ""
        expected = _core.any_of([str(each).removeprefix("torch.") for each in dtypes]) + like
        got = tensor.dtype
        if re.fullmatch(r"torch\.(bool|u?int(8|16|32|64)|b?float(8_\w+|16|32|64))", str(got)):
            hint = f"; pass {name}.{_FLOATS[dtypes[0]] if like else 'double'}()"
    elif tensor.device != input.device:
        expected, got = f"a tensor on {input.device}, like input", tensor.device
    else:
        expected, got = "a strided tensor", tensor.layout
        hint = f"; pass {name}.to_dense()" if got != torch.jagged else ""
    # What is written into a copy would be lost.
    return TypeError(f"{name}: expected {expected}, got {got}{'' if is_written else hint}")


def _wrong_shape(name: str, vectors: dict[str, Tensor | None], input: Tensor) -> Exception:
    """The error for a vector whose length is not C; if all are alike, the input is wrong."""
    got, shape = tuple(vectors[name].shape), tuple(input.shape)  # type: ignore[union-attr]
    if len(got) == 1 and all(each is None or each.shape == got for each in vectors.values()):
        what = f"{got[0]} channels on axis 1, like {name}"
        return ValueError(f"input: expected {what}, got shape {shape}")
    return ValueError(f"{name}: expected shape {shape[1:2]}, got {got}")


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, training: bool, momentum: float, eps: float, src_1: Tensor | None,
    relu: bool, group: str | None, whole_gradients: bool, tracked: Tensor | None,
) -> Tensor:  # fmt: skip
    """`batch_norm`, which also adds to tracked, the number of batches."""
    running = {"running_mean": running_mean, "running_var": running_var}
    vectors = {"weight": weight, "bias": bias, **running}
    for name, tensor in running.items():
        if tensor is None and not (training and running_mean is running_var):
            raise ValueError(f"{name}: expected a tensor, got None")
    for name, tensor in {"input": input, "src_1": src_1, **vectors}.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "input"):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        dtypes = (input.dtype,) if name == "src_1" else _FLOATS
        if tensor is not None and not (
            tensor.dtype in dtypes and tensor.device == input.device
            and tensor.layout == torch.strided
        ):  # fmt: skip
            raise _wrong_kind(name, tensor, input, [*dtypes], name in running and training)
    if input.dim() < 2:
        raise ValueError(f"input: expected at least 2 dimensions, got shape {tuple(input.shape)}")
    for name, tensor in vectors.items():
        if tensor is None:
            continue
        if name in running and tensor.requires_grad:
            raise ValueError(f"{name}: expected a tensor that requires no gradient")
        if tensor.shape != input.shape[1:2]:
            raise _wrong_shape(name, vectors, input)
    if not torch.compiler.is_compiling():
        _core.as_epsilon(eps, "eps")
        _core.as_real(momentum, "momentum", "a finite number")
    if training and group is None and input.numel() == input.shape[1] > 0:
        raise ValueError(
            "input: expected more than one value per channel when training, got shape "
            f"{tuple(input.shape)}"
        )
    dst: Tensor = _call(
        input, weight, bias, src_1, running_mean, running_var, training, momentum, eps, relu,
        relu and torch.is_grad_enabled(), group, whole_gradients, tracked=tracked,
    )[0]  # fmt: skip
    return dst


class _BatchNorm:
    """What the layers do differently from torch's."""

    relu = False

    def __init__(self, *arguments: Any, relu: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.relu = _core.as_flag(relu, "relu")

    def forward(self: Any, input: Tensor, src_1: Tensor | None = None) -> Tensor:
        self._check_input_dim(input)
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        kept = not self.training or self.track_running_stats
        tracked = self.num_batches_tracked if self.training and kept else None
        momentum = self.momentum
        if momentum is None:  # all batches weigh the same
            with _core.DefaultMode():
                momentum = 0.0 if tracked is None else 1 / (int(tracked) + 1)
        mean, variance = (self.running_mean, self.running_var) if kept else (None, None)
        group, whole = self._over()
        return _batch_norm(
            input, mean, variance, self.weight, self.bias, from_batch, momentum, self.eps, src_1,
            self.relu, group, whole, tracked,
        )  # fmt: skip

    def _over(self) -> tuple[str | None, bool]:
        return None, False

    def _get_name(self) -> str:
        """What `print` calls it, unlike torch's layer of the same name."""
        kind = type(self)
        return f"{__name__}.{kind.__name__}" if kind.__module__ == __name__ else kind.__name__

    def extra_repr(self: Any) -> str:
        shown: str = super().extra_repr()  # type: ignore[misc]
        return f"{shown}, relu=True" if self.relu else shown


class _Unfused(_BatchNorm):
    """What `convert` makes of our layers where torch has no class of the same state and call.

    A module with a ReLU inside would have other names of state, and take no src_1.
    """

    def forward(self: Any, input: Tensor, src_1: Tensor | None = None) -> Tensor:
        dst: Tensor = super(_BatchNorm, self).forward(input)  # type: ignore[misc]
        dst = dst if src_1 is None else dst + src_1
        return dst.relu() if self.relu else dst


class _Unfused1d(_Unfused, nn.BatchNorm1d):
    pass


class _Unfused2d(_Unfused, nn.BatchNorm2d):
    pass


class _Unfused3d(_Unfused, nn.BatchNorm3d):
    pass


class _UnfusedNd(_Unfused, nn.modules.batchnorm._BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:
        pass  # it takes what SyncBatchNorm takes


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d`, followed by an optional addition and ReLU.

    Parameters
    ----------
    *arguments, **options
        As for torch's layer.
    relu : bool, optional
        Whether negative results become zeros.

    Notes
    -----
    It is a subclass of torch's layer and has the same state. ``layer(input, src_1)`` adds src_1
    before the ReLU. Parameters and running statistics may have another dtype than the input. The
    gradient can be differentiated once more.

    Examples
    --------
    >>> import torch, bn_ext.torch
    >>> layer = bn_ext.torch.BatchNorm1d(2, relu=True)
    >>> layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]])).round().tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d`, with an optional addition and ReLU: see `BatchNorm1d`."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d`, with an optional addition and ReLU: see `BatchNorm1d`."""


class SyncBatchNorm(_BatchNorm, nn.modules.batchnorm._BatchNorm):
    """`torch.nn.SyncBatchNorm`, for processes that run on CPUs.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats, *arguments, **options
        As for torch's layer.
    process_group : ProcessGroup, optional
        The processes; None means all.
    relu : bool, optional
        Whether negative results become zeros.
    whole_gradients : bool, optional
        If False, the gradients of weight and bias are the share of this process, as in torch;
        DistributedDataParallel averages them. If True, they are those of all samples, the same on
        every process, with the same bits for any number of processes: do not average them again.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm`; ValueError also if this process is not in process_group.
    RuntimeError
        On all processes, if they differ in num_features, eps or the dtype of the input, or if one
        is in a forward and another in a backward pass. If the gradient of a training step is
        differentiated.

    Notes
    -----
    In training, sums are exact and added as integers, by any backend that adds int64, such as gloo.
    So the result, the statistics and the gradient of the input have the same bits for any number of
    processes (also for one, without a group) and any distribution of the samples. A process may
    have no samples. If a process fails or makes no call, the others wait for it, as in torch.
    The layer is not a subclass of `torch.nn.SyncBatchNorm`, because DistributedDataParallel refuses
    that class on a CPU.

    Examples
    --------
    >>> import torch, bn_ext.torch
    >>> layer = bn_ext.torch.SyncBatchNorm(2)
    >>> layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]])).round().tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    process_group, whole_gradients = None, False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        *arguments: Any,
        whole_gradients: bool = False,
        **options: Any,
    ) -> None:
        shared = num_features, eps, momentum, affine, track_running_stats
        super().__init__(*shared, *arguments, **options)
        self.process_group = process_group
        self.whole_gradients = _core.as_flag(whole_gradients, "whole_gradients")

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # batch_norm does

    def _over(self: Any) -> tuple[str | None, bool]:
        group = ""
        if distributed.is_available() and distributed.is_initialized():
            given = self.process_group
            processes = distributed.group.WORLD if given is None else given
            if not isinstance(processes, distributed.ProcessGroup):  # as NON_GROUP_MEMBER
                raise ValueError(
                    "process_group: expected None or a ProcessGroup that this process is in, got "
                    f"{given!r:.200}"
                )
            group = processes.group_name
        return group, self.whole_gradients

    @staticmethod
    def convert_sync_batchnorm(module: nn.Module, process_group: Any = None) -> nn.Module:
        """Replace all batch normalizations of a model, in place, by layers of this class.

        Parameters
        ----------
        module : torch.nn.Module
            Its layers change as with `convert`.
        process_group : ProcessGroup, optional
            The processes; None means all.

        Returns
        -------
        torch.nn.Module
            The module itself.
        """
        for layer in convert(module).modules():
            if isinstance(layer, (BatchNorm1d, BatchNorm2d, BatchNorm3d)):
                was = next(kind for kind in type(layer).__mro__ if kind in _ROW_OF)
                layer.__dict__.setdefault("_was", was)  # for `convert`
                layer.__class__, layer.process_group = SyncBatchNorm, process_group
        return module


#: Classes of torch's, ours, and what the latter become again if they have a ReLU.
_ROWS: list[tuple[Any, Any, Any]] = [
    (nn.BatchNorm1d, BatchNorm1d, _Unfused1d),
    (nn.BatchNorm2d, BatchNorm2d, _Unfused2d),
    (nn.BatchNorm3d, BatchNorm3d, _Unfused3d),
    (_UnfusedNd, SyncBatchNorm, _UnfusedNd),  # torch's own does not train on CPUs
]
#: The rows of all classes.
_ROW_OF: dict[type, tuple[Any, Any, Any]] = {each: row for row in _ROWS for each in row}
_ROW_OF[nn.SyncBatchNorm] = _ROWS[-1]


def convert(module: nn.Module, *, back: bool = False) -> nn.Module:
    """Turn a model's batch normalization layers into bn_ext's, or back into torch's.

    Parameters
    ----------
    module : torch.nn.Module
        Its layers change in place: parameters, buffers, hooks and modes stay as they are.
    back : bool, optional
        If True, turn bn_ext's layers into torch's. One with a ReLU becomes a subclass that takes
        the same arguments and computes with torch's functions; others no longer take src_1. A
        SyncBatchNorm becomes a layer that trains on CPUs and sees no other process: what it was
        before `convert_sync_batchnorm`, else one for any number of axes.
        ``torch.nn.SyncBatchNorm.convert_sync_batchnorm`` makes torch's of both.

    Returns
    -------
    torch.nn.Module
        The module itself.

    Examples
    --------
    >>> import torch, bn_ext.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    >>> type(bn_ext.torch.convert(model)[1]).__module__
    'bn_ext.torch'
    >>> type(bn_ext.torch.convert(model, back=True)[1]).__module__
    'torch.nn.modules.batchnorm'
    """
    layers: list[Any] = [layer for layer in module.modules() if type(layer) in _ROW_OF]
    for layer in layers:
        ours = _ROW_OF[type(layer)][1]
        if back and type(layer) is ours:
            theirs, _, unfused = _ROW_OF[vars(layer).pop("_was", ours)]
            vars(layer).pop("process_group", None)
            layer.__class__ = unfused if layer.relu else theirs
        elif not back and type(layer) is not ours:
            layer.relu = isinstance(layer, _Unfused) and layer.relu
            layer.__class__ = ours
    return module
