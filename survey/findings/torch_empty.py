"""torch: the gradient of an empty batch, by its function and by its operator."""

import torch
from torch.nn.functional import batch_norm

print("torch", torch.__version__, flush=True)
src, vector = torch.zeros(0, 3, requires_grad=True), torch.ones(3)
batch_norm(src, None, None, vector, vector, training=True).sum().backward()
print("batch_norm, gradient:", src.grad, flush=True)
print("torch.ops.aten.native_batch_norm_backward:", flush=True)
src = src.detach()
grads = torch.ops.aten.native_batch_norm_backward(
    src, src, vector, None, None, vector, vector, True, 1e-5, [True] * 3
)
print(grads)
