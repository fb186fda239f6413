"""Typical uses, for type checkers: mypy --strict and pyright are clean here, dtypes come through.

test_doctests.py also runs it.
"""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

x32, v32 = np.ones((4, 2, 3), np.float32), np.ones(3, np.float32)
x64, v64 = np.ones((4, 2, 3)), np.ones(3)
x16, v16 = np.ones((4, 2, 3), np.float16), np.ones(3, np.float16)

# dtypes come through; a mixed pair too.
grads = bn_ext.batch_norm_backward(x32, x32, v32, v32, v32, epsilon=1e-5)
assert_type(grads.diff_src, NDArray[np.float32])
assert_type(grads.diff_gamma, NDArray[np.float32])
assert_type(
    bn_ext.batch_norm_backward(x64, x64, v64, v64, epsilon=0).diff_beta, NDArray[np.float64]
)
mixed = bn_ext.batch_norm_backward(x16, x16, v32, v32, epsilon=1e-5, data_format="NXC")
assert_type(mixed.diff_src, NDArray[np.float16])
assert_type(mixed.diff_gamma, NDArray[np.float32])

# As a tuple.
diff_src, diff_gamma, diff_beta = bn_ext.batch_norm_backward(x64, x64, v64, v64, epsilon=0)
assert_type(diff_src, NDArray[np.float64])
total: np.float64 = diff_gamma.sum() + diff_beta.sum()

# Without parameter gradients there are none.
alone = bn_ext.batch_norm_backward(x32, x32, v32, v32, epsilon=1e-5, param_grads=False)
assert_type(alone.diff_gamma, None)


def either(wanted: bool) -> NDArray[np.float32] | None:
    found = bn_ext.batch_norm_backward(x32, x32, v32, v32, epsilon=1e-5, param_grads=wanted)
    assert_type(found.diff_gamma, NDArray[np.float32] | None)
    return found.diff_gamma


# In place, and options.
out = (np.empty_like(x32), None, None)
bn_ext.batch_norm_backward(x32, x32, v32, v32, epsilon=np.float32(1e-5), out=out, num_threads=2)
bn_ext.batch_norm_backward(
    x32, x32, v32, v32, epsilon=1e-5, is_training=False, out=[x32, None, None]
)

# Sequences as vectors, and what only NumPy can see as an array.
assert_type(
    bn_ext.batch_norm_backward(x64, x64, [0.0] * 3, [1.0] * 3, epsilon=0).diff_src, NDArray[Any]
)
assert_type(
    bn_ext.batch_norm_backward(
        memoryview(x64.tobytes()).cast("d", (4, 2, 3)), x64, v64, v64, epsilon=0
    ).diff_gamma,
    Any,
)

# The two halves.
sums = bn_ext.batch_norm_backward_reduce(x32, x32, v32)
assert_type(sums, NDArray[np.float64])
half = bn_ext.batch_norm_backward_apply(x32, x32, v32, v32, None, sums, 8, epsilon=1e-5)
assert_type(half.diff_src, NDArray[np.float32])

# The operators.
assert_type(
    onednn_graph.batch_norm_training_backward(x32, x32, v32, v32, v32, epsilon=1e-5).diff_src,
    NDArray[np.float32],
)
assert_type(
    ngraph.batch_norm_training_backprop(
        np.moveaxis(x64, -1, 1).copy(), v64, v64, v64, v64, np.ones((4, 3, 2)), epsilon=1e-5
    ).gamma_delta,
    NDArray[np.float64],
)
x4 = np.ones((4, 2, 2, 3), np.float16)
tf = tensorflow.fused_batch_norm_grad_v3(x4, x4, v32, v32, v32, None)
assert_type(tf.x_backprop, NDArray[np.float16])
assert_type(tf.scale_backprop, NDArray[np.float32])

# What the process is.
isa: str = bn_ext.get_isa()
isas: tuple[str, ...] = bn_ext.available_isas()
version: str = bn_ext.__version__
