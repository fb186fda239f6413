"""Paddle's function; gradients are the automatic ones."""

import paddle
from paddle.nn.functional import batch_norm

from . import demand

NAME, PACKAGES, LAYOUT = "Paddle", ["paddle"], "NCX"
OWN = "backward", "double_backward"


def tensors(*arrays, **options):
    return [None if a is None else paddle.to_tensor(a, **options) for a in arrays]


def normalized(src, gamma, beta, epsilon):
    mean, variance = paddle.zeros(src.shape[1:2]), paddle.ones(src.shape[1:2])
    return batch_norm(src, mean, variance, gamma, beta, True, 0.0, epsilon), mean, variance


def training(src, gamma, beta, epsilon):
    return tuple(a.numpy() for a in normalized(*tensors(src, gamma, beta), epsilon))


def inference(src, mean, variance, gamma, beta, epsilon):
    return batch_norm(*tensors(src, mean, variance, gamma, beta), False, 0.0, epsilon).numpy()


def backward(src, diff_dst, mean, variance, gamma, epsilon):
    if gamma is None:
        (src,) = tensors(src, stop_gradient=False)
        dst, _, _ = normalized(src, None, None, epsilon)
        return paddle.grad(dst, src, *tensors(diff_dst))[0].numpy()
    leaves = tensors(src, gamma, 0 * gamma, stop_gradient=False)
    dst, _, _ = normalized(*leaves, epsilon)
    return tuple(a.numpy() for a in paddle.grad(dst, leaves, *tensors(diff_dst)))


def double_backward(src, diff_dst, mean, variance, gamma, *second, epsilon):
    demand(gamma)
    leaves = tensors(src, gamma, 0 * gamma, diff_dst, stop_gradient=False)
    dst, _, _ = normalized(*leaves[:3], epsilon)
    first = paddle.grad(dst, leaves[:3], leaves[3], create_graph=True)
    wanted = leaves[0], leaves[3], leaves[1]
    return tuple(a.numpy() for a in paddle.grad(first, wanted, tensors(*second)))
