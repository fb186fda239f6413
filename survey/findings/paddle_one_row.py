"""Paddle: the statistics and the gradient of a batch of one row."""

import paddle
from paddle.nn.functional import batch_norm

x = paddle.to_tensor([[0.5, -3.0]], stop_gradient=False)
gamma = paddle.to_tensor([2.0, 2.0], stop_gradient=False)
beta = paddle.to_tensor([1.0, 1.0], stop_gradient=False)
mean, variance = paddle.zeros([2]), paddle.ones([2])
dst = batch_norm(x, mean, variance, gamma, beta, training=True, momentum=0.0)
dst.sum().backward()
print("paddle", paddle.__version__)
print("dst", dst.tolist(), "- by the formula, beta:", beta.tolist())
print("mean", mean.tolist(), "- by the formula, x:", x.tolist()[0])
print("gradient by x", x.grad.tolist(), "- by the formula, 0")
print("gradient by beta", beta.grad.tolist(), "- by the formula, 1")
