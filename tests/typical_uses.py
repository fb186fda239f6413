# pyright: reportUnnecessaryTypeIgnoreComment=error
"""Typical uses, for type checkers: mypy --strict and pyright are clean here, dtypes come through.

At the end, what they must refuse: a "type: ignore" that nothing needs is an error to both.
test_doctests.py also runs this file, and test_typing.py each of the wrong calls.
"""

import array
import ctypes
from collections.abc import Callable
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

bn_ext.batch_norm_backward(
    x32, x32, v32, v32, epsilon=1e-5, is_training=np.True_, param_grads=1, out=grads
)

# Sequences as vectors, and what only NumPy can see as an array.
assert_type(
    bn_ext.batch_norm_backward(x64, x64, [0.0] * 3, (1.0,) * 3, epsilon=0).diff_src, NDArray[Any]
)
assert_type(
    bn_ext.batch_norm_backward(
        memoryview(x64.tobytes()).cast("d", (4, 2, 3)), x64, v64, v64, epsilon=0
    ).diff_gamma,
    Any,
)
bn_ext.batch_norm_backward_reduce(x64, x64, array.array("d", [0.0] * 3))
bn_ext.batch_norm_backward_reduce(x64, x64, (ctypes.c_double * 3)())


class WithArray:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float64]:
        return v64


class WithDLPack:
    def __dlpack__(self, **options: Any) -> Any:
        return v64.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


bn_ext.batch_norm_backward_reduce(x64, x64, WithArray())
bn_ext.batch_norm_backward_reduce(x64, x64, WithDLPack())

# The two halves.
sums = bn_ext.batch_norm_backward_reduce(x32, x32, v32)
assert_type(sums, NDArray[np.float64])
half = bn_ext.batch_norm_backward_apply(x32, x32, v32, v32, None, sums, 8, epsilon=1e-5)
assert_type(half.diff_src, NDArray[np.float32])
# Of a generator, sum() may be 0 to a type checker.
added = sum(bn_ext.batch_norm_backward_reduce(x32, x32, v32) for _ in range(2))
bn_ext.batch_norm_backward_apply(x32, x32, v32, v32, None, added, 16, epsilon=1e-5)

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
assert_type(
    bn_ext.specs.ngraph.batch_norm_training_backprop(
        [[0.0, 1.0], [2.0, 4.0]], v64[:2], [0.0, 0.0], v64[:2], v64[:2], x64[:2, 0, :2], epsilon=0
    ).input_delta,
    NDArray[Any],
)
half32 = onednn_graph.batch_norm_training_backprop(x16, x16, v32, v32, epsilon=1e-5)
assert_type(half32.input_delta, NDArray[np.float16])

# What the process is.
isa: str = bn_ext.get_isa()
isas: tuple[str, ...] = bn_ext.available_isas()
version: str = bn_ext.__version__

# What the functions refuse, type checkers refuse.
general = bn_ext.batch_norm_backward
reduce = bn_ext.batch_norm_backward_reduce
backprop = ngraph.batch_norm_training_backprop
backward = onednn_graph.batch_norm_training_backward
fused = tensorflow.fused_batch_norm_grad_v3
WRONG: list[Callable[[], object]] = [
    lambda: reduce("abc", x32, v32),  # type: ignore[arg-type]
    lambda: reduce(b"abc", x32, v32),  # type: ignore[arg-type]
    lambda: reduce(1.0, x32, v32),  # type: ignore[arg-type]
    lambda: reduce(np.float32(1), x32, v32),  # type: ignore[arg-type]
    lambda: reduce(np.str_("abc"), x32, v32),  # type: ignore[arg-type]
    lambda: reduce(None, x32, v32),  # type: ignore[arg-type]
    lambda: reduce({1: 2}, x32, v32),  # type: ignore[arg-type]
    lambda: reduce(range(3), x32, v32),  # type: ignore[arg-type]
    lambda: reduce(object(), x32, v32),  # type: ignore[arg-type]
    lambda: general(x32, "abc", v32, v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, b"abc", v32, v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, 1.0, v32, v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, np.float32(1), v32, v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, None, v32, v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general("abc", x32, v32, v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, x32, "abc", v32, epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, "abc", epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, "abc", epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon="1e-5"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=None),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=1j),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, data_format="NHWC"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, is_training="False"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, is_training=None),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, is_training=2),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, param_grads="no"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, param_grads=v32),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, num_threads=1.0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, out=x32),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, out=(x32, None)),  # type: ignore[arg-type]
    lambda: general(x32, x32, v32, v32, epsilon=0, out="abc"),  # type: ignore[call-overload]
    lambda: backprop("abc", v64, v64, v64, v64, x64, epsilon=0),  # type: ignore[call-overload]
    lambda: backprop(np.float64(1), v64, v64, v64, v64, x64, epsilon=0),  # type: ignore[call-overload]
    lambda: backprop(x64, v64, "abc", v64, v64, x64, epsilon=0),  # type: ignore[call-overload]
    lambda: backprop(x64, v64, None, v64, v64, x64, epsilon=0),  # type: ignore[call-overload]
    lambda: backward("abc", x32, v32, v32, epsilon=1),  # type: ignore[call-overload]
    lambda: backward(x32, x32, v32, 1.0, epsilon=1),  # type: ignore[call-overload]
    lambda: backward(x32, x32, v32, v32, epsilon=1, diff_gamma="False"),  # type: ignore[call-overload]
    lambda: fused("abc", x4, v32, v32, v32, None),  # type: ignore[call-overload]
    lambda: fused(x4, x4, v32, v32, None, None),  # type: ignore[call-overload]
    lambda: fused(x4, x4, v32, v32, v32, None, data_format="NXC"),  # type: ignore[call-overload]
    lambda: fused(x4, x4, v32, v32, v32, None, is_training="False"),  # type: ignore[call-overload]
]
