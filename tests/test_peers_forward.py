"""The forward operators and torch's, beside the real ones, where they are installed.

    pytest -m peers

Where docs/semantics.md says that one of them differs, it is not asked.
"""

import os

import ml_dtypes
import numpy as np
import pytest
from cases import DATA_DTYPES, DTYPES, FORMATS, Family, dtype

import bn_ext
from bn_ext.specs import pytorch, tensorflow as ours

pytestmark = pytest.mark.peers

SHAPES = [
    (2, 3), (33, 7), (4, 1, 6), (2, 3, 5), (5, 33, 27, 27), (4, 20, 17, 16), (64, 23, 5, 5),
    (1, 19, 4, 6, 6), (2, 16, 7, 7), (9, 130, 3, 3), (2, 2, 700, 11),
]  # fmt: skip
EPSILON = 1e-3
#: Of the largest magnitude: the others sum and normalize in float32, in whatever order.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2.0**-7, "float16": 2.0**-9, "float64": 1e-12}


def problem(shape, layout="NCX", data="float32", vector=None):
    rng = np.random.default_rng([*shape, len(layout)])
    dims = shape if layout == "NCX" else (shape[0], *shape[2:], shape[1])
    return Family(rng, dims, layout, data, vector, statistics="batch")


def agree(found, others, kind, times=1):
    """The same values, within rounding, and the same classes of NaN and infinities."""
    most = times * TOLERANCE[kind]
    for i, (mine, theirs) in enumerate(zip(found, others, strict=True)):
        assert mine.shape == theirs.shape, i
        mine, theirs = (np.asarray(a).astype(np.float64) for a in (mine, theirs))
        for of in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(of(mine), of(theirs)), (i, of)
        finite = np.isfinite(mine)
        largest = abs(theirs[finite]).max(initial=1)
        assert abs(mine[finite] - theirs[finite]).max(initial=0) <= most * largest, i


def tensor(array):
    """Over the same memory."""
    import torch

    if array is None:
        return None
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array(of):
    """The same."""
    import torch

    if of is None:
        return None
    if of.dtype == torch.bfloat16:
        return of.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return of.detach().numpy()


# ---- torch --------------------------------------------------------------------------------


def both(name, arguments):
    """What ours and theirs return and what they leave in their arguments, all as arrays."""
    torch = pytest.importorskip("torch")
    results = []
    for operator, to, back in (
        (getattr(pytorch, name), lambda a: a, lambda a: a),
        (getattr(torch.ops.aten, name), tensor, array),
    ):
        given = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
        returned = operator(*(to(a) if isinstance(a, np.ndarray) else a for a in given))
        results.append([*map(back, returned), *(a for a in given if isinstance(a, np.ndarray))])
    mine, theirs = results
    assert [a is None for a in mine] == [a is None for a in theirs]
    assert [a.dtype for a in mine if a is not None] == [a.dtype for a in theirs if a is not None]
    return [[a for a in some if a is not None] for some in results]


@pytest.mark.parametrize("momentum", [0, 0.3, 1, 2])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_torch(data, vector, channels_last, training, momentum):
    for shape in SHAPES:
        p = problem(shape, "NXC" if channels_last else "NCX", data, vector)
        src = np.moveaxis(p.src, p.axis, 1)
        vectors = p.gamma, p.beta, p.mean, p.variance
        arguments = (src, *vectors, training, momentum, EPSILON)
        agree(*both("native_batch_norm", arguments), data, 1 + momentum)


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_torchs_edges(data):
    p = problem((4, 5, 3), data=data)
    nothing = None, None, None, None
    pair = p.mean, p.variance
    one = p.src[:1, :, :1]
    with_nan, constant = p.src.copy(), p.src.copy()
    with_nan[1, 2, 1], constant[:, 2] = np.nan, 3
    of_nan = (np.full_like(a, np.nan) for a in pair)
    for arguments in (
        (p.src, *nothing, True, 0.1, EPSILON),
        (p.src, p.gamma, None, None, None, True, 0.1, EPSILON),
        (p.src, None, p.beta, None, None, True, 0.1, EPSILON),
        (p.src, None, None, *pair, False, 0.1, EPSILON),
        (p.src, None, None, *of_nan, True, 1, EPSILON),
        (one, p.gamma, p.beta, *pair, True, 0.1, EPSILON),
        (with_nan, p.gamma, p.beta, *pair, True, 0.1, EPSILON),
        (with_nan, p.gamma, p.beta, *pair, False, 0.1, EPSILON),
        (constant, p.gamma, p.beta, *pair, True, 0.1, 0),
        (constant, p.gamma, p.beta, *pair, False, 0.1, 0),
        (p.src[:0], p.gamma, p.beta, *pair, False, 0.1, EPSILON),
    ):
        agree(*both("native_batch_norm", arguments), data)


@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_torchs_update_stats(data, vector):
    for shape in SHAPES:
        p = problem(shape, data=data, vector=vector)
        agree(*both("batch_norm_update_stats", (p.src, p.mean, p.variance, 0.3)), data)
        agree(*both("batch_norm_update_stats", (p.src, None, None, 0.3)), data)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_torchs_backward(data, vector, train):
    for shape in SHAPES:
        p = problem(shape, data=data, vector=vector)
        invstd = (1 / np.sqrt(p.variance.astype(float) + EPSILON)).astype(p.mean.dtype)
        some = p.diff_dst, p.src, p.gamma, p.mean, p.variance, p.mean, invstd, train, EPSILON
        for mask in ([True] * 3, [True, False, False], [False, True, True]):
            agree(*both("native_batch_norm_backward", (*some, mask)), data)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("data", ["float32", "float64"])
def test_our_layer_goes_on_where_torchs_module_stopped(data, affine, momentum):
    """And the other way round, by way of the state."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, data)
    module = torch.nn.BatchNorm2d(5, EPSILON, momentum, affine, dtype=kind)
    layer = bn_ext.BatchNorm(
        5, epsilon=EPSILON, exponential_avg_factor=momentum, data_format="NCX", affine=affine
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for turn in range(4):
        p = problem((3, 5, 7, 6), data=data)
        p.src += p.src.dtype.type(turn)
        if turn == 1:
            for parameter in module.parameters():
                parameter.data = tensor(rng.uniform(0.5, 2, 5).astype(data))
            layer.load_state_dict(module.state_dict())
        elif turn == 2:
            module.load_state_dict({name: tensor(a) for name, a in layer.state_dict().items()})
        module.train(turn < 3)
        layer.train(turn < 3)
        x = tensor(p.src.copy()).requires_grad_()
        module.zero_grad()
        y = module(x)
        y.backward(tensor(p.diff_dst))
        found = [layer.forward(p.src), layer.backward(p.diff_dst), *layer.gradients]
        theirs = [y, x.grad, *([module.weight.grad, module.bias.grad] if affine else [])]
        agree([*found, *layer.state_dict().values()],
              [*map(array, theirs), *map(array, module.state_dict().values())], data)  # fmt: skip
        assert list(layer.state_dict()) == list(module.state_dict())


# ---- TensorFlow ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow")


NAMES = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC", ("NCX", 5): "NCDHW"}


def tensorflows(tf, arguments, **options):
    found = tf.raw_ops.FusedBatchNormV3(
        **{name: tf.constant(a) for name, a in arguments.items()}, **options
    )
    return [t.numpy() for t in found]


def v3(p, **changed):
    return {"x": p.src, "scale": p.gamma, "offset": p.beta, "mean": p.mean,
            "variance": p.variance, **changed}  # fmt: skip


@pytest.mark.parametrize("factor", [0, 0.3, 1, 2, -1])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("data", ["float32", "float16", "bfloat16"])
def test_tensorflow(tf, data, layout, training, factor):
    for shape in SHAPES:
        options = {
            "epsilon": EPSILON,
            "exponential_avg_factor": factor,
            "is_training": training,
            "data_format": NAMES.get((layout, len(shape))),
        }
        if len(shape) not in (4, 5) or (layout == "NCX" and (not training or len(shape) == 5)):
            continue
        arguments = v3(problem(shape, layout, data))
        found = ours.fused_batch_norm_v3(**arguments, **options)
        theirs = tensorflows(tf, arguments, **options)
        if not training:  # one of its kernels leaves them unwritten
            theirs[3:5] = theirs[1:3]
        agree(found[:5], theirs[:5], data)


def test_tensorflows_edges(tf):
    p = problem((4, 5, 3, 2), "NXC")
    one, with_nan, constant = p.src[:1, :1, :1], p.src.copy(), p.src.copy()
    with_nan[1, 2, 1, 2], constant[..., 2] = np.nan, 3
    of_nan = np.full(5, np.nan, np.float32)
    none = np.empty(0, np.float32)
    for arguments, options in (
        (v3(p, mean=none, variance=none), {}),
        (v3(p, mean=p.mean[:2], variance=of_nan), {}),
        (v3(p, mean=of_nan), {"exponential_avg_factor": 0.5}),
        (v3(p, x=one), {}),
        (v3(p, x=one), {"exponential_avg_factor": 0.5}),
        (v3(p, x=with_nan), {}),
        (v3(p, x=with_nan), {"exponential_avg_factor": 0.5}),
        (v3(p, x=with_nan), {"is_training": False}),
        (v3(p, x=constant), {}),
        (v3(p, x=p.src[:0]), {}),
        (v3(p, x=p.src[:0]), {"exponential_avg_factor": 0.5}),
        (v3(p, x=p.src[:0]), {"is_training": False}),
    ):
        options = {"epsilon": EPSILON, **options}
        found = ours.fused_batch_norm_v3(**arguments, **options)
        theirs = tensorflows(tf, arguments, **options)
        count = 5 if arguments["x"].size else 3  # reserve spaces of nothing: one kernel's zeros
        agree(found[:count], theirs[:count], "float32")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("data", ["float32", "bfloat16"])
def test_tensorflows_fused_activation(tf, data, training):
    from tensorflow.python.eager import context, execute

    for shape in SHAPES:
        if len(shape) != 4:
            continue
        p = problem(shape, "NXC", data)
        tensors = [tf.constant(a) for a in v3(p).values()]
        attributes = {
            "T": tensors[0].dtype.as_datatype_enum, "U": tensors[1].dtype.as_datatype_enum,
            "epsilon": EPSILON, "exponential_avg_factor": 0.3, "num_side_inputs": 0,
            "activation_mode": "Relu", "data_format": "NHWC", "is_training": training,
        }  # fmt: skip
        flat = tuple(part for pair in attributes.items() for part in pair)
        try:
            theirs = execute.execute(
                b"_FusedBatchNormEx", 6, inputs=tensors, attrs=flat, ctx=context.context()
            )
        except tf.errors.NotFoundError:
            pytest.skip("TensorFlow without oneDNN")
        found = ours.fused_batch_norm_ex(
            **v3(p), epsilon=EPSILON, exponential_avg_factor=0.3, activation_mode="Relu",
            is_training=training,
        )  # fmt: skip
        assert dtype(data) == found.y.dtype
        agree(found[:3], [t.numpy() for t in theirs[:3]], data)
