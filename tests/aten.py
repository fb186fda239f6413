"""torch's batch normalization on a CPU, computed by other kernels: bn_ext's, or exact ones."""

import contextlib
import functools

import ml_dtypes
import numpy as np
import reference
import torch

import bn_ext
from bn_ext.specs import pytorch

EPSILON = 0.037
WIDE = {"axis": 1, "wide": np.longdouble}


def array(tensor):
    """The tensor's own memory, as NumPy sees it."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def tensor(array):
    """And back."""
    if array is None:
        return None
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def exact(src, weight, bias, running_mean, running_var, training, momentum, eps, sizes=False):
    """`native_batch_norm` in long doubles, rounded once to float64; or the sizes of its terms."""
    if training:
        found = reference.batch_norm_training(src, weight, bias, epsilon=eps, **WIDE)
    else:
        stats = running_mean, running_var
        found = reference.batch_norm_inference(src, *stats, weight, bias, epsilon=eps, **WIDE)
    dst = found.product_terms + found.shift_terms if sizes else found.dst
    if not training:
        return dst.astype(float), np.empty(0), np.empty(0)
    mean = abs(found.mean) + found.deviation if sizes else found.mean
    if running_mean is not None:
        keeps, factor = (abs(f) if sizes else f for f in (1 - momentum, momentum))
        count = src.size // src.shape[1]
        unbiased = found.variance * np.longdouble(count) / (count - 1)
        for kept, new in ((running_mean, mean), (running_var, unbiased)):
            old = abs(kept) if sizes else kept
            kept[...] = np.longdouble(keeps) * old + np.longdouble(factor) * new
    rstd = 1 / np.sqrt(found.variance + np.longdouble(eps))
    return tuple(a.astype(float) for a in (dst, mean, rstd))


def exact_backward(
    grad_out, src, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask,
    sizes=False,
):  # fmt: skip
    """`native_batch_norm_backward`, likewise; of training, about the statistics of src itself."""
    mean, variance = running_mean, running_var
    if train:
        _, mean, variance, *_ = reference.batch_norm_training(src, epsilon=eps, **WIDE)
    found = reference.batch_norm_backward(
        src, grad_out, mean, variance, weight, epsilon=eps, is_training=train, **WIDE
    )
    grads = found[:3]
    if sizes:
        terms = found.gamma_terms, found.beta_terms
        grads = found.diff_src_terms + found.diff_src_sums, *(abs(a).sum(axis=1) for a in terms)
    return tuple(a.astype(float) if flag else None for a, flag in zip(grads, mask, strict=True))


#: Kernels, forward and backward.
OURS = pytorch.native_batch_norm, pytorch.native_batch_norm_backward
EXACT = exact, exact_backward
SIZES = tuple(functools.partial(kernel, sizes=True) for kernel in EXACT)


@contextlib.contextmanager
def registered(forward, backward):
    """These two are aten's kernels for CPUs meanwhile; yields the list of their calls."""
    calls = []

    def called(kernel, *arguments):
        calls.append(kernel)
        return tuple(
            tensor(a)
            for a in kernel(*(array(a) if isinstance(a, torch.Tensor) else a for a in arguments))
        )

    def whole(*arguments):
        return called(forward, *arguments)

    def without_running(src, weight, bias, training, momentum, eps):
        return called(forward, src, weight, bias, None, None, training, momentum, eps)

    def with_update(src, weight, bias, running_mean, running_var, momentum, eps):
        running = running_mean, running_var
        found = called(forward, src, weight, bias, *running, True, momentum, eps)
        return *found, torch.empty(0, dtype=torch.uint8)

    def gradient(*arguments):
        return called(backward, *arguments)

    def gradient_with_reserve(
        grad_out, src, weight, running_mean, running_var, save_mean, save_var, *rest
    ):
        vectors = weight, running_mean, running_var, save_mean, save_var
        return called(backward, grad_out, src, *vectors, *rest[:-1])

    library = torch.library.Library("aten", "IMPL", "CPU")
    try:
        for name, kernel in {
            "native_batch_norm": whole,
            "_native_batch_norm_legit": whole,
            "_native_batch_norm_legit.no_stats": without_running,
            "_batch_norm_with_update": with_update,
            "native_batch_norm_backward": gradient,
            "batch_norm_backward": gradient_with_reserve,
        }.items():
            library.impl(name, kernel)
        yield calls
    finally:
        library._destroy()


class Normalize(torch.autograd.Function):
    """bn_ext's forward pass, whose gradient is bn_ext's, whose gradient is bn_ext's."""

    @staticmethod
    def forward(ctx, src, gamma, beta, mean, variance, data_format):
        ctx.options = {"epsilon": EPSILON, "data_format": data_format}
        ctx.is_training = mean is None
        scaled = array(gamma), array(beta)
        if ctx.is_training:
            dst, *stats = bn_ext.batch_norm_training(array(src), *scaled, **ctx.options)
            mean, variance = map(tensor, stats)
        else:
            dst = bn_ext.batch_norm_inference(
                array(src), array(mean), array(variance), *scaled, **ctx.options
            )
        ctx.save_for_backward(src, mean, variance, gamma)
        return tensor(dst)

    @staticmethod
    def backward(ctx, diff_dst):
        src, *vectors = ctx.saved_tensors
        options = {**ctx.options, "is_training": ctx.is_training}
        diff_src, diff_gamma, diff_beta = Gradient.apply(src, diff_dst, *vectors, options)
        some = (
            grad if needed else None
            for grad, needed in zip((diff_gamma, diff_beta), ctx.needs_input_grad[1:], strict=False)
        )
        return diff_src, *some, None, None, None


class Gradient(torch.autograd.Function):
    """The gradient of `Normalize`."""

    @staticmethod
    def forward(ctx, src, diff_dst, mean, variance, gamma, options):
        ctx.options = options
        ctx.save_for_backward(src, diff_dst, mean, variance, gamma)
        arguments = map(array, (src, diff_dst, mean, variance, gamma))
        return tuple(map(tensor, bn_ext.batch_norm_backward(*arguments, **options)))

    @staticmethod
    def backward(ctx, *grads):
        arguments = map(array, (*ctx.saved_tensors, *grads))
        found = bn_ext.batch_norm_double_backward(*arguments, **ctx.options)
        diff_src, diff_diff_dst, diff_gamma = map(tensor, found)
        needed = ctx.needs_input_grad[4]
        return diff_src, diff_diff_dst, None, None, diff_gamma if needed else None, None
