"""Batch normalization for torch on a CPU: layers that take the place of torch's own.

The extra ``torch`` installs what this module needs. ``import bn_ext`` does not import it.
"""

import warnings
from typing import Any, TypeVar

import bn_ext._core as _core
from bn_ext._runtime import missing

try:
    import torch
    from torch import Tensor, distributed, nn
except ImportError as _error:
    url = "https://download.pytorch.org/whl/cpu"
    install = f"torch (a build for CPUs: --index-url {url})"
    raise missing(__name__, _error, install) from _error

from bn_ext.torch._operators import FLOATS, call_batch_norm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "SyncBatchNorm",
    "batch_norm",
    "convert",
]
__dir__ = __all__.copy

_Model = TypeVar("_Model", bound=nn.Module)


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

    Input and vectors may each be float32, float64, float16 or bfloat16, the input in any memory
    format. In training, running_mean and running_var are updated in place, unless they are None,
    and share memory with no other tensor. In inference, they are constants to autograd. Errors are
    those of `bn_ext.batch_norm_training` and `bn_ext.batch_norm_inference`; with a group, also
    those of `SyncBatchNorm`.

    Parameters
    ----------
    input, running_mean, running_var, weight, bias, training, momentum, eps
        As for torch's function, on a CPU.
    src_1 : Tensor, optional
        Added before the ReLU; of input's shape and dtype.
    group : str, optional
        In training, the name of a process group whose processes share the batch, or an empty string
        for this process alone. Sums are then exact. None means plain sums in this process.
    relu, whole_gradients
        As for `SyncBatchNorm`.

    Returns
    -------
    Tensor
        In input's shape, dtype and memory format.

    Examples
    --------
    >>> import torch, bn_ext.torch
    >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> y = bn_ext.torch.batch_norm(x, None, None, training=True, eps=0.0)
    >>> y.detach().flatten()
    tensor([-1.,  1.])
    """
    tensors = input, running_mean, running_var, weight, bias
    return _batch_norm(*tensors, training, momentum, eps, src_1, relu, group, whole_gradients, None)


def _wrong_kind(name: str, tensor: Tensor, input: Tensor, is_written: bool) -> Exception:
    """The error for a tensor of another dtype, device or layout, with a call that converts it."""
    hint = ""
    if tensor.dtype not in FLOATS or (name == "src_1" and tensor.dtype != input.dtype):
        expected = _core.any_of([str(dtype).removeprefix("torch.") for dtype in FLOATS])
        got, to = tensor.dtype, "double()"
        if name == "src_1":
            expected, to = f"{input.dtype}, like input", "to(input.dtype)"
        hint = "" if tensor.is_complex() else f"; pass {name}.{to}"
    elif tensor.device != input.device:
        expected, got = f"a tensor on {input.device}, like input", tensor.device
    else:
        expected, got = "a strided tensor", tensor.layout
        hint = f"; pass {name}.to_dense()" if got != torch.jagged else ""
    # What is written into a copy would be lost.
    return TypeError(f"{name}: expected {expected}, got {got}{'' if is_written else hint}")


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, training: bool, momentum: float, eps: float, src_1: Tensor | None,
    relu: bool, group: str | None, whole_gradients: bool, tracked: Tensor | None,
) -> Tensor:  # fmt: skip
    """`batch_norm`, which also adds to tracked, the number of batches."""
    running = {"running_mean": running_mean, "running_var": running_var}
    for name, tensor in running.items():
        if tensor is None and not (training and running_mean is running_var):
            raise ValueError(f"{name}: expected a tensor, got None")
    tensors = {"input": input, "src_1": src_1, "weight": weight, "bias": bias, **running}
    for name, tensor in tensors.items():
        if tensor is None and name != "input":
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        if (
            tensor.dtype not in (FLOATS if name != "src_1" else (input.dtype,))
            or tensor.device != input.device
            or tensor.layout != torch.strided
        ):
            raise _wrong_kind(name, tensor, input, name in running and training)
        if name in running and tensor.requires_grad:
            raise ValueError(f"{name}: expected a tensor that requires no gradient")
    if input.dim() < 2:
        raise ValueError(f"input: expected at least 2 dimensions, got shape {tuple(input.shape)}")
    if not torch.compiler.is_compiling():
        _core.as_epsilon(eps, "eps")
        _core.as_real(momentum, "momentum", "a finite number")
    if training and group is None and input.numel() == input.shape[1] > 0:
        raise ValueError(
            "input: expected more than one value per channel when training, got shape "
            f"{tuple(input.shape)}"
        )
    optional = weight, bias, src_1, running_mean, running_var
    gate = relu and torch.is_grad_enabled()
    options = training, momentum, eps, relu, gate, group, whole_gradients
    dst: Tensor = call_batch_norm(input, *optional, *options, tracked=tracked)[0]
    return dst


class _BatchNorm:
    """What the layers do differently from torch's."""

    #: `fused` is False if torch's functions compute what the layer fuses: after `convert` to torch.
    relu, fused = False, True

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        relu: bool = False,
    ) -> None:
        shared: Any = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*shared, bias=bias)  # type: ignore[call-arg]
        self.relu = _core.as_flag(relu, "relu")

    def forward(self: Any, input: Tensor, src_1: Tensor | None = None) -> Tensor:
        if not self.fused:
            dst: Tensor = super().forward(input)  # type: ignore[misc]
            dst = dst if src_1 is None else dst + src_1
            return dst.relu() if self.relu else dst
        self._check_input_dim(input)
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        uses_running = not self.training or self.track_running_stats
        tracked = self.num_batches_tracked if self.training and uses_running else None
        momentum = self.momentum
        if momentum is None:  # all batches weigh the same
            with _core.DefaultMode():
                momentum = 0.0 if tracked is None else 1 / (int(tracked) + 1)
        mean, variance = (self.running_mean, self.running_var) if uses_running else (None, None)
        options = from_batch, momentum, self.eps, src_1, self.relu, *self._over(), tracked
        return _batch_norm(input, mean, variance, self.weight, self.bias, *options)

    def _over(self) -> tuple[str | None, bool]:
        return None, False

    def _get_name(self) -> str:
        """What `print` calls it, unlike torch's layer of the same name."""
        kind = type(self)
        is_fused = self.fused and kind.__module__ == __name__
        return f"{__name__}.{kind.__name__}" if is_fused else kind.__name__

    def extra_repr(self: Any) -> str:
        options: str = super().extra_repr()  # type: ignore[misc]
        return f"{options}, relu=True" if self.relu else options


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d`, followed by an optional addition and ReLU.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
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
    num_features, eps, momentum, affine, track_running_stats, process_group, device, dtype, bias
        As for torch's layer.
    relu : bool, optional
        Whether negative results become zeros.
    whole_gradients : bool, optional
        If False, the gradients of weight and bias are the share of this process, as in torch;
        DistributedDataParallel averages them. If True, they are those of all samples, also after
        ``eval()``, the same on every process, with the same bits for any number of processes: do
        not average them again.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm`; ValueError also if this process is not in process_group.
    RuntimeError
        On all processes, if they differ in num_features, eps or the dtype of the input, or if one
        is in a forward and another in a backward pass. If the gradient of a training step, or with
        whole_gradients any gradient, is differentiated.

    Notes
    -----
    In training, sums are exact and added as integers, by any backend that adds int64, such as gloo:
    bits are the same for any number of processes and any distribution of the samples, also without
    a group. The layer is not a subclass of `torch.nn.SyncBatchNorm`, because
    DistributedDataParallel refuses that class on a CPU.

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
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        relu: bool = False,
        whole_gradients: bool = False,
    ) -> None:
        shared: Any = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*shared, bias=bias, relu=relu)
        self.process_group = process_group
        self.whole_gradients = _core.as_flag(whole_gradients, "whole_gradients")

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # batch_norm does

    def _over(self: Any) -> tuple[str | None, bool]:
        name = ""
        if distributed.is_available() and distributed.is_initialized():
            group = self.process_group
            processes = distributed.group.WORLD if group is None else group
            if not isinstance(processes, distributed.ProcessGroup):  # as NON_GROUP_MEMBER
                raise ValueError(
                    "process_group: expected None or a ProcessGroup that this process is in, got "
                    f"{group!r:.200}"
                )
            name = processes.group_name
        return name, self.whole_gradients

    @staticmethod
    def convert_sync_batchnorm(module: _Model, process_group: Any = None) -> _Model:
        """Turn a model's batch normalizations into layers of this class.

        It turns what `convert` does: not subclasses, nor lazy and parametrized layers, which go on
        to normalize with the samples of their own process. A warning names them. ``process_group``
        is as for this class; the result is the module itself.
        """
        layers: list[tuple[str, Any]] = [*module.named_modules()]
        alone = [(name, layer) for name, layer in layers if _own_class(layer) in _ALONE]
        _check_free(alone, "process_group", "whole_gradients")
        convert(module)
        for _, layer in alone:
            layer.__dict__.setdefault("_kind", type(layer))  # for `convert`
            layer.__class__, layer.process_group = SyncBatchNorm, process_group
        left = [
            f"{name!r} ({type(layer).__name__})"
            for name, layer in layers
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            and not isinstance(layer, SyncBatchNorm)
        ]
        if left:
            warnings.warn(
                f"convert_sync_batchnorm: left {', '.join(left)} as they are, since it turns "
                "neither subclasses nor lazy and parametrized layers; they normalize with the "
                "samples of their own process",
                stacklevel=2,
            )
        return module


#: Our classes, and torch's whose state they have. Its SyncBatchNorm does not train on a CPU.
_TORCH_CLASS: dict[type, Any] = {
    BatchNorm1d: nn.BatchNorm1d,
    BatchNorm2d: nn.BatchNorm2d,
    BatchNorm3d: nn.BatchNorm3d,
    SyncBatchNorm: nn.SyncBatchNorm,
}
_OWN_CLASS = {torch_class: own for own, torch_class in _TORCH_CLASS.items()}
#: Those that normalize with the samples of one process.
_ALONE = BatchNorm1d, BatchNorm2d, BatchNorm3d


def _own_class(layer: nn.Module) -> type | None:
    """The class of ours that a layer of exactly this class has, or would have."""
    kind = type(layer)
    return kind if kind in _TORCH_CLASS else _OWN_CLASS.get(kind)


def _check_free(layers: list[tuple[str, Any]], *names: str) -> None:
    """Refuse layers that have something else under these names, which are to be set."""
    for path, layer in layers:
        for name in names:
            kept = vars(layer), layer._modules, layer._parameters, layer._buffers
            for value in (each[name] for each in kept if name in each):
                if value is not False:  # what an earlier conversion has left
                    raise ValueError(
                        f"module: expected layers without {name}, which bn_ext's layers have, got "
                        f"{path!r} with {type(value).__name__}"
                    )


def convert(module: _Model, *, back: bool = False) -> _Model:
    """Turn a model's batch normalization layers into bn_ext's, or back into torch's.

    Parameters
    ----------
    module : torch.nn.Module
        Its layers change in place: parameters, buffers, hooks and modes stay as they are.
    back : bool, optional
        If True, turn bn_ext's layers into torch's. One with a ReLU stays, but computes with torch's
        functions; others no longer take src_1. A SyncBatchNorm becomes a layer that trains on CPUs
        and sees no other process: what it was before `convert_sync_batchnorm`, else one for any
        number of axes. ``torch.nn.SyncBatchNorm.convert_sync_batchnorm`` makes torch's of both.

    Returns
    -------
    torch.nn.Module
        The module itself.

    Raises
    ------
    ValueError
        If a layer has something of its own called relu. The model has not been changed.

    Examples
    --------
    >>> import torch, bn_ext.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    >>> type(bn_ext.torch.convert(model)[1]).__module__
    'bn_ext.torch'
    >>> type(bn_ext.torch.convert(model, back=True)[1]).__module__
    'torch.nn.modules.batchnorm'
    """
    layers: list[Any] = [*module.modules()]
    if not back:
        of_torch = [each for each in module.named_modules() if type(each[1]) in _OWN_CLASS]
        _check_free(of_torch, "relu")
    for layer in layers:
        kind = type(layer)
        if not back:
            if kind in _OWN_CLASS:
                layer.__class__, layer.relu = _OWN_CLASS[kind], False
            elif kind in _TORCH_CLASS:
                vars(layer).pop("fused", None)
        elif kind in _TORCH_CLASS and layer.fused:
            kind, _ = vars(layer).pop("_kind", kind), vars(layer).pop("process_group", None)
            if layer.relu or kind is SyncBatchNorm:
                layer.__class__, layer.fused = kind, False
            else:
                layer.__class__ = _TORCH_CLASS[kind]
    return module
