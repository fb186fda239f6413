"""The answers of others, where they are installed: torch, TensorFlow, oneDNN.

    pytest -m peers

Values within what the other's own arithmetic allows, and the same classes of NaN and
infinities; where semantics.md says that one of them differs, it is not asked.
"""

import importlib.util
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import bn_ext
from bn_ext.specs.tensorflow import fused_batch_norm_grad_v3

pytestmark = pytest.mark.peers

SHAPES = [
    (2, 3), (1, 5), (33, 7), (4, 1, 6), (2, 3, 5), (5, 33, 27, 27), (4, 20, 17, 16), (64, 23, 5, 5),
    (3, 12, 31, 33), (1, 19, 4, 6, 6), (2, 16, 7, 7), (9, 130, 3, 3), (2, 2, 700, 11),
]  # fmt: skip
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
#: Of the largest magnitude: the others sum in float32, in whatever order.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2.0**-7, "float16": 2.0**-9, "float64": 1e-12}


def problem(shape, dtype, layout, special=False):
    """src, diff_dst (in memory as `layout` has it), mean, variance, gamma."""
    rng = np.random.default_rng([*shape, len(layout)])
    data = [rng.standard_normal(shape).astype(dtype) for _ in range(2)]
    number = np.float64 if dtype == np.float64 else np.float32
    axes = (0, *range(2, len(shape)))
    mean = data[0].astype(np.float64).mean(axis=axes).astype(number)
    variance = data[0].astype(np.float64).var(axis=axes).astype(number)
    gamma = rng.uniform(0.5, 2, shape[1]).astype(number)
    if special:
        for array, value in zip(data, (np.inf, np.nan), strict=True):
            array[-1, -1] = value
        variance[0] = -1
    if layout == "NXC":
        data = [np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in data]
    return (*data, mean, variance, gamma)


def agree(found, others, dtype):
    for name, ours, theirs in zip(
        ("diff_src", "diff_gamma", "diff_beta"), found, others, strict=True
    ):
        ours, theirs = (np.asarray(a).astype(np.float64) for a in (ours, theirs))
        for kind in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(kind(ours), kind(theirs)), (name, kind)
        finite = np.isfinite(ours)
        largest = abs(theirs[finite]).max(initial=1)
        assert abs(ours[finite] - theirs[finite]).max(initial=0) <= TOLERANCE[dtype] * largest, name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_torch(dtype, layout, training):
    torch = pytest.importorskip("torch")

    def tensor(array):
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def array(of):
        return of.to(torch.float64).numpy()

    for shape in SHAPES:
        for special in (False, True):
            p = problem(shape, DTYPES.get(dtype, np.float64), layout, special)
            src, diff_dst, mean, variance, gamma = p
            found = bn_ext.batch_norm_backward(
                *p, epsilon=1e-3, data_format=layout, is_training=training
            )
            x, dy = (tensor(a).movedim(-1 if layout == "NXC" else 1, 1) for a in (src, diff_dst))
            mean, variance, gamma = (torch.from_numpy(v) for v in (mean, variance, gamma))
            rstd = (variance + 1e-3).rsqrt()
            theirs = torch.ops.aten.native_batch_norm_backward(
                dy, x, gamma, mean, variance, mean, rstd, training, 1e-3, [True] * 3
            )
            diff_src = np.moveaxis(array(theirs[0]), 1, -1 if layout == "NXC" else 1)
            agree(found, (diff_src, *map(array, theirs[1:])), dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_tensorflow(dtype, layout, training):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    if layout == "NCX" and not training:
        pytest.skip("TensorFlow refuses it on CPU")
    names = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC", ("NCX", 5): "NCDHW"}
    for shape in SHAPES:
        if len(shape) not in (4, 5):
            continue
        src, diff_dst, mean, variance, gamma = problem(shape, DTYPES[dtype], layout)
        options = {
            "epsilon": 1e-3,
            "data_format": names[layout, len(shape)],
            "is_training": training,
        }
        found = fused_batch_norm_grad_v3(diff_dst, src, gamma, mean, variance, None, **options)
        theirs = tensorflow.raw_ops.FusedBatchNormGradV3(
            y_backprop=tensorflow.constant(diff_dst), x=tensorflow.constant(src),
            scale=tensorflow.constant(gamma), reserve_space_1=tensorflow.constant(mean),
            reserve_space_2=tensorflow.constant(variance), reserve_space_3=tensorflow.zeros(0),
            **options,
        )  # fmt: skip
        agree(found[:3], [t.numpy() for t in theirs[:3]], dtype)


@pytest.mark.parametrize("mode", ["training", "frozen"])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_onednn(dtype, layout, mode):
    # By its path: the package beside it has no compiled core.
    path = Path(__file__).parent.parent / "benchmarks" / "onednn.py"
    spec = importlib.util.spec_from_file_location("onednn", path)
    onednn = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(onednn)
    try:
        onednn.load()
    except ImportError as error:
        pytest.skip(str(error))

    class Problem:
        """What the driver reads."""

    for shape in SHAPES:
        p = Problem()
        p.src, p.diff_dst, p.mean, p.variance, p.gamma = problem(shape, DTYPES[dtype], layout)
        p.dims, p.layout, p.dtype, p.epsilon = shape, layout, p.src.dtype, 1e-3
        p.diff_src = np.empty_like(p.src)
        p.out = (p.diff_src, np.empty_like(p.mean), np.empty_like(p.mean))
        call = onednn.call(p, 1, mode)
        if call is None:
            continue
        call()
        found = bn_ext.batch_norm_backward(
            p.src, p.diff_dst, p.mean, p.variance, p.gamma, epsilon=1e-3, data_format=layout,
            is_training=mode == "training",
        )  # fmt: skip
        agree(found, p.out, dtype)
