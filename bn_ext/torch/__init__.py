"""Batch normalization for torch on a CPU: layers that take the place of torch's own.

The extra ``torch`` installs what this module needs. ``import bn_ext`` does not import it.
"""

import re
from typing import Any

try:
    import torch
    from torch import Tensor, distributed, nn
except ImportError as _error:
    raise ModuleNotFoundError(
        f"bn_ext.torch: expected torch, got {_error!r:.200}; python -m pip install torch "
        "(a build for CPUs: --index-url https://download.pytorch.org/whl/cpu)",
        name="torch",
    ) from _error

from bn_ext import _core
from bn_ext.torch._operators import FLOATS, call_batch_norm

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
            hint = f"; pass {name}.{FLOATS[dtypes[0]] if like else 'double'}()"
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
        dtypes = (input.dtype,) if name == "src_1" else FLOATS
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
    dst: Tensor = call_batch_norm(
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
