"""Results agree with those of other packages, where installed: torch, TensorFlow, oneDNN, JAX.

    pytest -m peers

Values agree as far as the other package's arithmetic allows; NaN, Inf and -Inf are in the same
places. Where semantics.md says that a package differs, it is not compared.
"""

import itertools
import os
import sys

import numpy as np
import pytest
from cases import FORMATS, Family, shapes
from tree import ROOT

import bn_ext
from bn_ext.specs import tensorflow as spec

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from benchmarks.peers import PEERS, bn_ext_call
from benchmarks.problems import OPS, Case, Problem as Timed

pytestmark = pytest.mark.peers

SHAPES = shapes("2x3 33x7 4x1x6 2x3x5 5x33x27x27 4x20x17x16 64x23x5x5")
SHAPES += shapes("3x12x31x33 1x19x4x6x6 2x16x7x7 9x130x3x3 2x2x700x11")
EPSILON = 1e-3
#: Relative to the largest magnitude or to 1, whichever is more. Peers compute in float32 or
#: float64, in any order.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2.0**-7, "float16": 2.0**-9, "float64": 1e-12}


def problem(shape, layout="NCX", data="float32", vector=None, special=False):
    """A problem of shape (N, C, ...), with axes in the order of `layout`."""
    rng = np.random.default_rng([*shape, len(layout)])
    dims = shape if layout == "NCX" else (shape[0], *shape[2:], shape[1])
    p = Family(rng, dims, layout, data, vector, statistics="batch")
    if special:
        for array, value in ((p.src, np.inf), (p.diff_dst, np.nan)):
            np.moveaxis(array, p.axis, 1)[-1, -1] = value
        p.variance[0] = -1
    return p


def agree(results, expected, kind):
    """Assert equal values, within the tolerance, and NaN, Inf and -Inf in the same places."""
    for i, (result, right) in enumerate(zip(results, expected, strict=True)):
        assert result.shape == right.shape, i
        result, right = (np.asarray(a).astype(np.float64) for a in (result, right))
        for kind_of_number in (np.isnan, np.isposinf, np.isneginf):
            same = np.array_equal(kind_of_number(result), kind_of_number(right))
            assert same, (i, kind_of_number)
        finite = np.isfinite(result)
        largest = abs(right[finite]).max(initial=1)
        assert abs(result[finite] - right[finite]).max(initial=0) <= TOLERANCE[kind] * largest, i


# ---- what bench and benchmarks time: torch, JAX, TensorFlow, oneDNN ----------------------


def of_torch(tensor, axis):
    """A tensor as an array, with its channels moved to an axis."""
    from bn_ext.torch._operators import _array

    return np.moveaxis(_array(tensor), 1, axis) if tensor.ndim > 2 else _array(tensor)


def calls(name, data, layout, op):
    """(problem, call) for each shape that a package takes, with NaN and Inf too for torch."""
    specials = {False, name == "torch" and op.startswith("backward") and op != "backward-relu"}
    for shape, special in itertools.product(SHAPES, specials):
        p, arguments = (
            Timed(Case(shape, layout, data, op)),
            problem(shape, layout, data, None, special),
        )
        for array in {"src", "diff_dst", "mean", "variance", "gamma"} & vars(p).keys():
            getattr(p, array)[...] = getattr(arguments, array)
        if call := PEERS[name](p):
            yield p, call


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("data", TOLERANCE)
@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow", "oneDNN"])
@np.errstate(invalid="ignore")  # variances are negative, too
def test_what_is_timed_computes_the_same(name, data, layout, op):
    if name == "torch" and data in ("bfloat16", "float16") and op == "double-backward":
        pytest.skip("torch rounds what it computes on the way")
    if name == "tensorflow" and layout == "NCX" and op.startswith("backward-frozen"):
        pytest.skip("TensorFlow refuses it on CPUs")
    try:
        timed = list(calls(name, data, layout, op))
    except ImportError as error:
        pytest.skip(str(error))
    if not timed:
        pytest.skip("this peer has no such call")
    for p, call in timed:
        results, wanted = (
            p.out if result is None else result if isinstance(result, (tuple, list)) else [result]
            for result in (call(), bn_ext_call(p)())
        )
        if name == "torch":
            results = [None if t is None else of_torch(t, p.axis) for t in results]
        # Of the forward pass, peers return different statistics.
        pairs = list(zip(wanted, results, strict=False))[: 3 if "backward" in op else 1]
        pairs = [(a, np.asarray(b).reshape(a.shape)) for a, b in pairs if a is not None]
        agree(*zip(*pairs, strict=True), data)


# ---- TensorFlow ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # on by default only on some CPUs
    return pytest.importorskip("tensorflow")


#: On CPUs, TensorFlow refuses channels first with frozen statistics or five axes.
FORMATS_OF_TENSORFLOW = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC"}


def problems_of_tensorflow(layout, data, training):
    """(problem, the options of an operator)"""
    for shape in SHAPES:
        name = FORMATS_OF_TENSORFLOW.get((layout, len(shape)))
        if name and (training or layout == "NXC"):
            options = {"epsilon": EPSILON, "is_training": training, "data_format": name}
            yield problem(shape, layout, data), options


def v3_agrees(tf, p, outputs=5, data="float32", **options):
    arguments = {"x": p.src, "scale": p.gamma, "offset": p.beta}
    arguments |= {"mean": p.mean, "variance": p.variance}
    results = spec.fused_batch_norm_v3(**arguments, **options)
    expected = [a.numpy() for a in tf.raw_ops.FusedBatchNormV3(**arguments, **options)]
    if not options.get("is_training", True):  # a kernel leaves outputs 3 and 4 unwritten
        expected[3:5] = expected[1:3]
    agree(results[:outputs], expected[:outputs], data)


@pytest.mark.parametrize("factor", [0, 0.3, 1, 2, -1])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("data", ["float32", "float16", "bfloat16"])
def test_tensorflow(tf, data, layout, training, factor):
    for p, options in problems_of_tensorflow(layout, data, training):
        v3_agrees(tf, p, 5, data, exponential_avg_factor=factor, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("data", ["float32", "float16", "bfloat16"])
def test_tensorflows_gradient(tf, data, layout, training):
    for p, options in problems_of_tensorflow(layout, data, training):
        arrays = p.diff_dst, p.src, p.gamma, p.mean, p.variance, np.empty(0, np.float32)
        results = spec.fused_batch_norm_grad_v3(*arrays, **options)
        names = ("y_backprop", "x", "scale", *(f"reserve_space_{k}" for k in (1, 2, 3)))
        options |= dict(zip(names, arrays, strict=True))
        expected = tf.raw_ops.FusedBatchNormGradV3(**options)
        agree(results[:3], [a.numpy() for a in expected[:3]], data)


def with_nan(src):
    src[1, 2, 1, 2] = np.nan


def constant(src):
    src[..., 2] = 3


#: (what of a problem changes, the number of outputs that agree, options)
EDGES = [
    ({"mean": lambda a: a[:0], "variance": lambda a: a[:0]}, 5, {}),
    ({"mean": lambda a: a[:2], "variance": lambda a: a * np.nan}, 5, {}),
    ({"mean": lambda a: a * np.nan}, 5, {"exponential_avg_factor": 0.5}),
]
for options in ({}, {"exponential_avg_factor": 0.5}, {"is_training": False}):
    changes = (lambda a: a[:1, :1, :1]), with_nan, constant
    EDGES += [({"src": change}, 5, options) for change in changes]
    # Without elements, kernels differ in the other outputs.
    EDGES += [({"src": lambda a: a[:0]}, 3, options)]


@pytest.mark.parametrize(("changes", "outputs", "options"), EDGES)
def test_tensorflows_edges(tf, changes, outputs, options):
    p = problem((4, 5, 3, 2), "NXC")
    for name, change in changes.items():
        result = change(array := getattr(p, name))
        setattr(p, name, array if result is None else result)
    v3_agrees(tf, p, outputs, epsilon=EPSILON, **options)


# ---- tensors that no array can view ------------------------------------------------------

#: Tensors of which NumPy has no view -> (how they are made, what their error says to pass).
UNSEEN = {
    "requires grad": (lambda a: a.requires_grad_(), r"; pass src.detach\(\), or use bn_ext.torch"),
    "bfloat16": (lambda a: a.bfloat16(), r"; pass src.detach\(\).view\(torch.int16\).numpy"),
    "bfloat16 with grad": (lambda a: a.bfloat16().requires_grad_(), "; pass src.detach.*ml_dtypes"),
    "sparse": (lambda a: a.to_sparse(), r"Use Tensor.to_dense\(\) first$"),
    "sparse with grad": (lambda a: a.to_sparse().requires_grad_(), r"Use Tensor.to_dense\(\)"),
    "meta": (lambda a: a.to("meta"), "[Mm]eta"),
    "opaque": (lambda a: a.to_mkldnn(), "Opaque"),
}


@pytest.mark.parametrize(("make", "advice"), UNSEEN.values(), ids=UNSEEN)
def test_tensors_that_cannot_be_seen(make, advice):
    """A TypeError says what to pass."""
    torch = pytest.importorskip("torch")
    tensor, message = make(torch.ones(4, 3)), "cannot be viewed as a NumPy array: "
    with pytest.raises(TypeError, match=advice) as caught:
        bn_ext.batch_norm_training(tensor, epsilon=1e-3)
    caught.match(f"^src: this torch.Tensor {message}")
    with pytest.raises(TypeError, match="^dst in out: expected a numpy.ndarray, got Tensor; "):
        bn_ext.batch_norm_training(np.ones((4, 3)), epsilon=1, out=(tensor, None, None))
