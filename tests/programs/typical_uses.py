# pyright: reportUnnecessaryTypeIgnoreComment=error
"""Typical uses: mypy --strict and pyright find no error, and infer the dtypes of results.

At the end come uses that both must refuse, marked "type: ignore": an unneeded mark is an error.
test_typing.py also runs this file, and each of the wrong calls.
"""

import array
import copy
import ctypes
import functools
import operator
from collections.abc import Callable
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow
from bn_ext.testing import check_backward

x32, v32 = np.ones((8, 3), np.float32), np.ones(3, np.float32)
x64, v64 = np.ones((8, 3)), np.ones(3)
x16 = np.ones((8, 3), np.float16)

# The dtype of the data is inferred. Vectors may have others.
grads = bn_ext.batch_norm_backward(x32, x32, v32, v32, v32, epsilon=1e-5)
assert_type(grads.diff_src, NDArray[np.float32])
mixed = bn_ext.batch_norm_backward(x16, x16, v32, v64, epsilon=1e-5, data_format="NXC")
assert_type(mixed.diff_src, NDArray[np.float16])

# As a tuple.
diff_src, diff_gamma, diff_beta = bn_ext.batch_norm_backward(x64, x64, v64, v64, epsilon=0)
assert_type(diff_src, NDArray[np.float64])
total: np.float64 = diff_gamma.sum() + diff_beta.sum()


# Forward, then backward.
def chain(x: NDArray[np.float32], g: NDArray[np.float32]) -> NDArray[np.float32]:
    r = bn_ext.batch_norm_training(x, g, g, epsilon=1e-5)
    back = bn_ext.batch_norm_backward(x, r.dst, r.mean, r.variance, g, epsilon=1e-5)
    assert_type(back.diff_src, NDArray[np.float32])
    twice = bn_ext.batch_norm_double_backward(x, x, r.mean, r.variance, g, x, epsilon=1)
    assert_type(twice.diff_src, NDArray[np.float32])
    return bn_ext.batch_norm_inference(x, r.mean, r.variance, g, g, epsilon=1e-5)


def of_any_dtype(x: NDArray[Any]) -> None:
    r = bn_ext.batch_norm_training(x, epsilon=1e-5)
    assert_type(r.dst, NDArray[Any])
    back = bn_ext.batch_norm_backward(x, x, r.mean, r.variance, epsilon=1e-5)
    assert_type(back, bn_ext.BatchNormGradients[NDArray[Any]])


chain(x32, v32)
of_any_dtype(x64)

# In place, and options.
out = (np.empty_like(x32), None, None)
bn_ext.batch_norm_backward(x32, x32, v32, v32, epsilon=np.float32(1e-5), out=out, num_threads=2)
bn_ext.batch_norm_backward(
    x32, x32, v32, v32, epsilon=1e-5, is_training=np.True_, param_grads=1, out=grads
)

# Sequences as vectors, and objects that only NumPy can read as arrays.
assert_type(
    bn_ext.batch_norm_backward(x64, x64, [0.0] * 3, (1.0,) * 3, epsilon=0).diff_src,
    NDArray[np.float64],
)
assert_type(
    bn_ext.batch_norm_backward(
        memoryview(x64.tobytes()).cast("d", (8, 3)), x64, v64, v64, epsilon=0
    ).diff_src,
    NDArray[Any],
)
bn_ext.GradientSums(x64, x64, array.array("d", [0.0] * 3))
bn_ext.GradientSums(x64, x64, (ctypes.c_double * 3)())


class WithArray:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float64]:
        return v64


class WithDLPack:
    def __dlpack__(self, **options: Any) -> Any:
        return v64.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


bn_ext.GradientSums(x64, x64, WithArray())
bn_ext.GradientSums(x64, x64, WithDLPack())

# Data in parts. To a type checker, sum() without a start may be 0.
parts = [bn_ext.Statistics(part, data_format="NXC") for part in (x32, x32)]
statistics = functools.reduce(operator.add, parts)
assert_type(sum(parts[1:], parts[0]), bn_ext.Statistics)
assert_type(statistics, bn_ext.Statistics)
assert_type(statistics + parts[0], bn_ext.Statistics)
statistics += parts[0]
assert_type(statistics.variance, NDArray[np.float64])
assert_type(statistics.unbiased_variance, NDArray[np.float64])
assert_type(statistics.count, int)
statistics.update_running(v32.copy(), v64.copy(), 0.1, correction=1)
sums = bn_ext.GradientSums(x32, x32, v32)
half = bn_ext.batch_norm_backward(x32, x32, v32, v32, epsilon=1e-5, sums=sums + sums)
assert_type(half.diff_src, NDArray[np.float32])
assert_type(bn_ext.Statistics(x32, exact=True).array, NDArray[np.int64])

# Forward.
normalized = bn_ext.batch_norm_training(x16, v32, v32, epsilon=1e-5)
assert_type(normalized.dst, NDArray[np.float16])
assert_type(normalized.mean, NDArray[Any])
assert_type(bn_ext.batch_norm_training([[0.0, 1.0]], epsilon=0).dst, NDArray[Any])
bits = np.empty(-(-x32.size // 8) + x32.ndim + 8, np.uint8)
bn_ext.batch_norm_training(
    x32, v32, v32, epsilon=1e-5, running_mean=v32.copy(), running_variance=v64.copy(),
    exponential_avg_factor=0.1, correction=1, src_1=x32, relu=True, workspace=bits,
    out=(np.empty_like(x32), None, None), num_threads=1,
)  # fmt: skip
assert_type(bn_ext.batch_norm_inference(x16, v32, v32, epsilon=1e-5), NDArray[np.float16])
assert_type(
    bn_ext.batch_norm_inference(x32.tolist(), [0.0] * 3, [1.0] * 3, epsilon=0), NDArray[Any]
)

# With a fused ReLU: three results, or four.
gated = bn_ext.batch_norm_backward(x32, x32, v32, v32, v32, epsilon=1e-5, relu=True, beta=v32)
assert_type(gated, bn_ext.BatchNormGradients[NDArray[np.float32]])
four = bn_ext.batch_norm_backward(
    x32, x32, v32, v32, epsilon=1e-5, relu=True, workspace=bits, diff_src_1=True, exact=True
)
assert_type(four.diff_src_1, NDArray[np.float32])
bn_ext.GradientSums(x32, x32, v32, relu=True, dst=x32)

# Double backward.
second = bn_ext.batch_norm_double_backward(x16, x16, v32, v32, None, x16, v32, v32, epsilon=1e-5)
assert_type(second.diff_src, NDArray[np.float16])
assert_type(second.diff_diff_dst, NDArray[np.float16])

# The layer.
layer = bn_ext.BatchNorm(3, exponential_avg_factor=None, correction=0, relu=True, dtype=np.float32)
assert_type(layer.forward(x32), NDArray[Any])
layer.gamma[...] = 2
assert_type(layer.parameters, tuple[NDArray[Any], ...])
layer.backward(x32)
for parameter, gradient in zip(layer.parameters, layer.gradients, strict=True):
    parameter -= 0.1 * gradient
assert_type(layer.eval().freeze().train(False), bn_ext.BatchNorm)


class WithName(bn_ext.BatchNorm):
    name = "first"


assert_type(WithName(3).eval().freeze().train(False).name, str)
assert_type(copy.copy(WithName(3)), WithName)
assert_type(layer.forward(x32, src_1=x32), NDArray[Any])
layer.load_state_dict(layer.state_dict())


# Of one operand, and of two.
norm = bn_ext.BatchNorm(np.int64(3), data_format="NCX", affine=False)
norm.load_state_dict({"running_mean": v64, "running_var": v32})
dst: NDArray[np.float32] = norm.forward(norm.forward(x32), x32)
of_src, of_src_1 = norm.backward(x32)
norm.forward(x32)
of_one: NDArray[np.float32] = norm.backward(x32)

# The operators.
assert_type(
    onednn_graph.batch_norm_training_backward(x32, x32, v32, v32, v32, epsilon=1e-5).diff_src,
    NDArray[np.float32],
)
x4 = np.ones((4, 2, 2, 3), np.float16)
tf = tensorflow.fused_batch_norm_grad_v3(x4, x4, v32, v32, v32, None)
assert_type(tf.x_backprop, NDArray[np.float16])
assert_type(tf.scale_backprop, NDArray[np.float32])
v3 = tensorflow.fused_batch_norm_v3(x4, v32, v32, v32, v32, is_training=False)
assert_type(v3.y, NDArray[np.float16])
assert_type(v3.reserve_space_2, NDArray[np.float32])
forward = onednn_graph.batch_norm_forward_training(x32, v32, v32, epsilon=1e-5, momentum=0.9)
assert_type(forward.dst, NDArray[np.float32])
assert_type(forward.running_mean, NDArray[np.float32])
x3 = np.ones((2, 3, 4), np.float32)
assert_type(ngraph.batch_norm_training(x3, v32, v32, epsilon=1e-5).batch_mean, NDArray[np.float32])
assert_type(ngraph.batch_norm_inference(x3, v32, v32, v32, v32, epsilon=1e-5), NDArray[np.float32])

# Functions about the process.
isa: str = bn_ext.get_isa()
isas: tuple[str, ...] = bn_ext.available_isas()
check_backward(bn_ext.batch_norm_backward, x32, mean=v32, arithmetic="any")
mine = functools.partial(bn_ext.batch_norm_backward, data_format="NXC")
report = check_backward(mine, dtypes=["float64"], quick=True)
print(report, report.worst.share, report.failures, report.summary)
version: str = bn_ext.__version__


# Type checkers alone know that a name is misspelled when it is set.
def misspelled(layer: bn_ext.BatchNorm) -> None:
    layer.gama = v64  # type: ignore[attr-defined]
    print(layer.diff_gama)  # type: ignore[attr-defined]


# What the functions refuse, type checkers must refuse too.
general = bn_ext.batch_norm_backward
reduce = bn_ext.GradientSums
backprop = ngraph.batch_norm_training_backprop
backward = onednn_graph.batch_norm_training_backward
fused = tensorflow.fused_batch_norm_grad_v3
training = bn_ext.batch_norm_training
inference = bn_ext.batch_norm_inference
double = bn_ext.batch_norm_double_backward
made = bn_ext.BatchNorm
WRONG: list[Callable[[], object]] = [
    lambda: reduce(x32, x32, v32, exact="yes"),  # type: ignore[arg-type]
    lambda: bn_ext.Statistics(x32, epsilon=0),  # type: ignore[call-arg]
    lambda: bn_ext.Statistics("abc"),  # type: ignore[arg-type]
    lambda: parts[0] + sums,  # type: ignore[operator]
    lambda: general(x32, x32, v32, v32, epsilon=0, sums=sums.mean),  # type: ignore[call-overload]
    lambda: reduce(b"abc", x32, v32),  # type: ignore[arg-type]
    lambda: reduce(1.0, x32, v32),  # type: ignore[arg-type]
    lambda: general(x32, x32, v32, v32, "abc", epsilon=0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon="1e-5"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, data_format="nhwc"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, is_training="False"),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, num_threads=1.0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, out=x32),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, out=(x32, None)),  # type: ignore[arg-type]
    lambda: backprop(x64, v64, "abc", v64, v64, x64, epsilon=0),  # type: ignore[arg-type]
    lambda: backward(x32, x32, v32, v32, epsilon=1, diff_gamma="False"),  # type: ignore[arg-type]
    lambda: fused(x4, x4, v32, v32, None, None),  # type: ignore[arg-type]
    lambda: fused(x4, x4, v32, v32, v32, None, data_format="NXC"),  # type: ignore[arg-type]
    lambda: general(x32, x32, v32, v32, epsilon=0, relu=True, beta=1.0),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, relu=True, workspace=8),  # type: ignore[call-overload]
    lambda: general(x32, x32, v32, v32, epsilon=0, relu=True, dst=x32, diff_src_1=2),  # type: ignore[call-overload]
    lambda: training(x32),  # type: ignore[call-arg]
    lambda: training(x32, v32, v32, 1e-5),  # type: ignore[call-arg]
    lambda: training(x32, epsilon=0, src_1=1.0),  # type: ignore[arg-type]
    lambda: training(x32, epsilon=0, running_mean=[0.0] * 3),  # type: ignore[arg-type]
    lambda: inference(x32, v32, epsilon=0),  # type: ignore[call-arg]
    lambda: inference(x32, v32, v32, epsilon=0, out=(x32,)),  # type: ignore[arg-type]
    lambda: double(x32, x32, v32, v32, v32, None, epsilon=0),  # type: ignore[arg-type]
    lambda: made(3.0),  # type: ignore[arg-type]
    lambda: made(3, momentum=0.1),  # type: ignore[call-arg]
    lambda: made(3).forward(1.0),  # type: ignore[arg-type]
    lambda: made(3).load_state_dict([v32]),  # type: ignore[arg-type]
    lambda: check_backward(print, dtype="float64"),  # type: ignore[call-arg]
    lambda: check_backward(print, quick="no"),  # type: ignore[arg-type]
]
