"""Results agree with those of other packages, where installed: torch, TensorFlow, oneDNN, JAX.

    pytest -m peers

Values agree as far as the other package's arithmetic allows; NaN, Inf and -Inf are in the same
places. Where semantics.md says that a package differs, it is not compared.
"""

import itertools
import os
import sys
import tracemalloc

import numpy as np
import pytest
from cases import FORMATS, Family
from tree import ROOT

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow as ours

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from benchmarks.peers import PEERS, bn_ext_call
from benchmarks.problems import OPS, Case, Problem as Timed

pytestmark = pytest.mark.peers

SHAPES = [
    (2, 3), (33, 7), (4, 1, 6), (2, 3, 5), (5, 33, 27, 27), (4, 20, 17, 16), (64, 23, 5, 5),
    (3, 12, 31, 33), (1, 19, 4, 6, 6), (2, 16, 7, 7), (9, 130, 3, 3), (2, 2, 700, 11),
]  # fmt: skip
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


def agree(ours, others, kind):
    """Assert equal values, within the tolerance, and NaN, Inf and -Inf in the same places."""
    for i, (mine, theirs) in enumerate(zip(ours, others, strict=True)):
        assert mine.shape == theirs.shape, i
        mine, theirs = (np.asarray(a).astype(np.float64) for a in (mine, theirs))
        for kind_of_number in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(kind_of_number(mine), kind_of_number(theirs)), (i, kind_of_number)
        finite = np.isfinite(mine)
        largest = abs(theirs[finite]).max(initial=1)
        assert abs(mine[finite] - theirs[finite]).max(initial=0) <= TOLERANCE[kind] * largest, i


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


# ---- torch's module ---------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("data", ["float32", "float64"])
def test_our_layer_goes_on_where_torchs_module_stopped(data, affine, momentum):
    """The module also goes on where the layer stopped: each loads the other's state dict."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, data)
    module = torch.nn.BatchNorm2d(5, EPSILON, momentum, affine, dtype=kind)
    layer = bn_ext.BatchNorm(
        5, epsilon=EPSILON, exponential_avg_factor=momentum, data_format="NCX", affine=affine
    )
    rng = np.random.default_rng(0)
    for turn in range(4):
        p = problem((3, 5, 7, 6), data=data)
        p.src += p.src.dtype.type(turn)
        if turn == 1:
            for parameter in module.parameters():
                parameter.data = torch.from_numpy(rng.uniform(0.5, 2, 5).astype(data))
            layer.load_state_dict(module.state_dict())
        elif turn == 2:
            module.load_state_dict(
                {name: torch.from_numpy(a) for name, a in layer.state_dict().items()}
            )
        module.train(turn < 3)
        layer.train(turn < 3)
        x = torch.from_numpy(p.src.copy()).requires_grad_()
        module.zero_grad()
        y = module(x)
        y.backward(torch.from_numpy(p.diff_dst))
        results = [layer.forward(p.src), layer.backward(p.diff_dst), *layer.gradients]
        theirs = [y, x.grad, *([module.weight.grad, module.bias.grad] if affine else [])]
        theirs = [each.detach().numpy() for each in (*theirs, *module.state_dict().values())]
        agree([*results, *layer.state_dict().values()], theirs, data)
        assert list(layer.state_dict()) == list(module.state_dict())


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


def tensorflows(tf, op, arguments, **options):
    tensors = {name: tf.constant(a) for name, a in arguments.items()}
    return [t.numpy() for t in getattr(tf.raw_ops, op)(**tensors, **options)]


def v3(p, **changed):
    return {"x": p.src, "scale": p.gamma, "offset": p.beta, "mean": p.mean,
            "variance": p.variance, **changed}  # fmt: skip


def v3_agrees(tf, arguments, outputs, data="float32", **options):
    results = ours.fused_batch_norm_v3(**arguments, **options)
    theirs = tensorflows(tf, "FusedBatchNormV3", arguments, **options)
    if not options.get("is_training", True):  # a kernel leaves outputs 3 and 4 unwritten
        theirs[3:5] = theirs[1:3]
    agree(results[:outputs], theirs[:outputs], data)


@pytest.mark.parametrize("factor", [0, 0.3, 1, 2, -1])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("data", ["float32", "float16", "bfloat16"])
def test_tensorflow(tf, data, layout, training, factor):
    for p, options in problems_of_tensorflow(layout, data, training):
        v3_agrees(tf, v3(p), 5, data, exponential_avg_factor=factor, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("data", ["float32", "float16", "bfloat16"])
def test_tensorflows_gradient(tf, data, layout, training):
    for p, options in problems_of_tensorflow(layout, data, training):
        arguments = {"y_backprop": p.diff_dst, "x": p.src, "scale": p.gamma,
                 "reserve_space_1": p.mean, "reserve_space_2": p.variance}  # fmt: skip
        results = ours.fused_batch_norm_grad_v3(**arguments, reserve_space_3=None, **options)
        arguments["reserve_space_3"] = np.empty(0, np.float32)
        agree(results[:3], tensorflows(tf, "FusedBatchNormGradV3", arguments, **options)[:3], data)


@pytest.mark.parametrize("options", [{}, {"exponential_avg_factor": 0.5}, {"is_training": False}])
def test_tensorflows_edges(tf, options):
    p = problem((4, 5, 3, 2), "NXC")
    with_nan, constant = p.src.copy(), p.src.copy()
    with_nan[1, 2, 1, 2], constant[..., 2] = np.nan, 3
    for x in (p.src[:1, :1, :1], with_nan, constant):
        v3_agrees(tf, v3(p, x=x), 5, epsilon=EPSILON, **options)
    # Without elements, kernels differ in the other outputs.
    v3_agrees(tf, v3(p, x=p.src[:0]), 3, epsilon=EPSILON, **options)


def test_tensorflows_running_statistics(tf):
    p = problem((4, 5, 3, 2), "NXC")
    of_nan, none = np.full(5, np.nan, np.float32), np.empty(0, np.float32)
    v3_agrees(tf, v3(p, mean=none, variance=none), 5, epsilon=EPSILON)
    v3_agrees(tf, v3(p, mean=p.mean[:2], variance=of_nan), 5, epsilon=EPSILON)
    v3_agrees(tf, v3(p, mean=of_nan), 5, epsilon=EPSILON, exponential_avg_factor=0.5)


# ---- arrays of other packages -------------------------------------------------------------

EXPORTERS = {
    "torch": ("torch", lambda torch, a: torch.from_numpy(a.copy())),
    "jax": ("jax.numpy", lambda jnp, a: jnp.asarray(a)),
    "pyarrow": ("pyarrow", lambda pa, a: pa.Tensor.from_numpy(a) if a.ndim > 1 else pa.array(a)),
}


@pytest.mark.parametrize("name", EXPORTERS)
def test_arrays_of_others_come_in_without_a_copy(name):
    module, make = EXPORTERS[name]
    arrays = problem((100, 3000), "NXC").arguments().values()
    others = [make(pytest.importorskip(module), a) for a in arrays]
    wanted = bn_ext.batch_norm_backward(*arrays, epsilon=1e-3)
    out = [np.empty_like(a) for a in wanted]
    tracemalloc.start()
    results = bn_ext.batch_norm_backward(*others, epsilon=1e-3, out=out)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < out[0].nbytes / 4
    for got, right in zip(results, wanted, strict=True):
        assert type(got) is np.ndarray
        assert got.tobytes() == right.tobytes()


#: Tensors of which NumPy has no view -> (how they are made, what their error says to pass).
UNSEEN = {
    "requires grad": (lambda a: a.requires_grad_(), r"src.detach\(\), or use bn_ext.torch"),
    "bfloat16": (lambda a: a.bfloat16(), r"src.detach\(\).view\(torch.int16\).numpy\(\).view\("),
    "bfloat16 with grad": (lambda a: a.bfloat16().requires_grad_(), "src.detach.*ml_dtypes"),
    "sparse": (lambda a: a.to_sparse(), r"src.detach\(\).to_dense\(\)$"),
    "sparse with grad": (lambda a: a.to_sparse().requires_grad_(), r"src.*to_dense\(\)$"),
    "meta": (lambda a: a.to("meta"), ""),
    "bfloat16 on meta": (lambda a: a.to("meta").bfloat16(), ""),
    "opaque": (lambda a: a.to_mkldnn(), r"src.*to_dense\(\)$"),
}


@pytest.mark.parametrize(("make", "advice"), UNSEEN.values(), ids=UNSEEN)
def test_tensors_that_cannot_be_seen(make, advice):
    """A TypeError names the argument and says what to pass, wherever arrays are accepted."""
    torch = pytest.importorskip("torch")
    advice = f"; pass {advice}" if advice else "; torch's device meta holds no data$"
    tensor, src, ones = make(torch.ones(4, 3)), np.ones((4, 3)), np.ones(3)
    layer = bn_ext.BatchNorm(3)
    layer.forward(src)
    running = {"running_mean": ones, "running_variance": ones.copy(), "correction": 0,
               "exponential_avg_factor": 0.1}  # fmt: skip
    for name, call in {
        "src": lambda a: bn_ext.batch_norm_training(a, epsilon=1e-3),
        "gamma": lambda a: bn_ext.batch_norm_training(src, a, epsilon=1e-3),
        "mean": lambda a: bn_ext.GradientSums(src, src, a),
        "src_1": lambda a: layer.forward(src, a),
        "diff_dst": lambda a: layer.backward(a),
        "weight": lambda a: layer.load_state_dict({**layer.state_dict(), "weight": a}),
    }.items():
        with pytest.raises(TypeError, match=advice.replace("src", name)) as caught:
            call(tensor)
        caught.match(f"^{name}: this torch.Tensor cannot be viewed as a NumPy array: ")
        with pytest.raises(TypeError, match=f"^{name}: .*{advice.replace('src', 'it')}"):
            call([tensor])
    for name, call in {
        "dst in out": lambda a: bn_ext.batch_norm_training(src, epsilon=1, out=(a, None, None)),
        "workspace": lambda a: bn_ext.batch_norm_training(src, epsilon=1, relu=True, workspace=a),
        "running_mean": lambda a: bn_ext.batch_norm_training(
            src, epsilon=1e-3, **running | {"running_mean": a}
        ),
        "diff_gamma": lambda a: setattr(layer, "diff_gamma", a),
    }.items():
        with pytest.raises(TypeError, match=f"^{name}: expected a numpy.ndarray, got Tensor; "):
            call(tensor)
    layer.backward(src)  # the saved pass is still there


def test_operators_take_tensors():
    torch = pytest.importorskip("torch")
    arrays = problem((4, 3, 5, 6), "NXC").arguments().values()
    wanted = bn_ext.batch_norm_backward(*arrays, epsilon=1e-3, data_format="NXC")
    x, dy, m, v, g = (torch.from_numpy(a) for a in arrays)
    results = onednn_graph.batch_norm_training_backward(x, dy, m, v, g, epsilon=1e-3)
    assert results[0].tobytes() == wanted.diff_src.tobytes()
    rstd = 1 / torch.sqrt(v + 1e-3)
    ours.fused_batch_norm_grad_v3(dy, x, g, m, rstd, None, epsilon=1e-3)
    x, dy = (t.movedim(-1, 1) for t in (x, dy))
    results = ngraph.batch_norm_training_backprop(x, g, g, m, v, dy, epsilon=1e-3)
    assert np.moveaxis(results[0], 1, -1).tobytes() == wanted.diff_src.tobytes()
