"""Paddle: the gradient of a gradient of images without positions."""

import paddle
from paddle.nn.functional import batch_norm

print("paddle", paddle.__version__, flush=True)
x, diff_dst, gamma = paddle.zeros([2, 3, 0, 4]), paddle.zeros([2, 3, 0, 4]), paddle.ones([3])
leaves = x, diff_dst, gamma
for leaf in leaves:
    leaf.stop_gradient = False
dst = batch_norm(x, paddle.zeros([3]), paddle.ones([3]), gamma, 0 * gamma, training=True)
grads = paddle.grad(dst, [x, gamma], diff_dst, create_graph=True)
print("gradient:", grads[0].shape, "- of it:", flush=True)
print([grad.shape for grad in paddle.grad(grads, leaves, list(grads))])
