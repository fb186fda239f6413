"""torch: its operators; the gradient of the gradient is the automatic one."""

import torch
from torch.nn.functional import batch_norm

from . import demand

NAME, PACKAGES, LAYOUT, OWN = "torch", ["torch"], "NCX", ("double_backward",)


def tensors(*arrays):
    return (None if a is None else torch.from_numpy(a) for a in arrays)


def training(src, gamma, beta, epsilon):
    src, gamma, beta = tensors(src, gamma, beta)
    return batch_norm(src, None, None, gamma, beta, True, 0.1, epsilon)


def inference(src, mean, variance, gamma, beta, epsilon):
    return batch_norm(*tensors(src, mean, variance, gamma, beta), False, 0.1, epsilon)


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    src, diff_dst, mean, variance, gamma = tensors(src, diff_dst, mean, variance, gamma)
    saved = mean, (variance + epsilon).rsqrt(), True, epsilon, [True] * 3
    grads = torch.ops.aten.native_batch_norm_backward(diff_dst, src, gamma, None, None, *saved)
    return grads if gamma is not None else grads[0]


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    src, diff_dst, gamma, *second = tensors(src, diff_dst, gamma, *second)
    beta = torch.zeros_like(gamma)
    for leaf in (src, diff_dst, gamma, beta):
        leaf.requires_grad_()
    dst = batch_norm(src, None, None, gamma, beta, True, 0.1, epsilon)
    first = torch.autograd.grad(dst, (src, gamma, beta), diff_dst, create_graph=True)
    return torch.autograd.grad(first, (src, diff_dst, gamma), second)
