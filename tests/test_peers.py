"""The answers of others, where they are installed: torch, TensorFlow, oneDNN.

    pytest -m peers

Values within what the other's own arithmetic allows, and the same classes of NaN and
infinities; where semantics.md says that one of them differs, it is not asked.
"""

import doctest
import importlib
import os
import re
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from cases import DATA_DTYPES, FORMATS, OUTPUTS, SHORT, Problem
from processes import python
from tree import ROOT

import bn_ext
from bn_ext._bench.peers import PEERS, bn_ext_call, usable_cpus
from bn_ext._bench.problems import OPS, Problem as Timed, dims
from bn_ext.specs import ngraph, onednn_graph
from bn_ext.specs.tensorflow import fused_batch_norm_grad_v3

pytestmark = pytest.mark.peers

SHAPES = [
    (2, 3), (1, 5), (33, 7), (4, 1, 6), (2, 3, 5), (5, 33, 27, 27), (4, 20, 17, 16), (64, 23, 5, 5),
    (3, 12, 31, 33), (1, 19, 4, 6, 6), (2, 16, 7, 7), (9, 130, 3, 3), (2, 2, 700, 11),
]  # fmt: skip
#: Of the largest magnitude: the others sum in float32, in whatever order.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2.0**-7, "float16": 2.0**-9, "float64": 1e-12}


def problem(shape, dtype, layout, special=False):
    """The arrays of a problem of this shape, (N, C, ...), in memory as `layout` has it."""
    rng = np.random.default_rng([*shape, len(layout)])
    dims = shape if layout == "NCX" else (shape[0], *shape[2:], shape[1])
    p = Problem(rng, dims, layout, dtype, statistics="batch")
    if special:
        for array, value in ((p.src, np.inf), (p.diff_dst, np.nan)):
            np.moveaxis(array, p.axis, 1)[-1, -1] = value
        p.variance[0] = -1
    return tuple(p.arguments().values())


def agree(found, others, dtype):
    for name, ours, theirs in zip(OUTPUTS, found, others, strict=True):
        ours, theirs = (np.asarray(a).astype(np.float64) for a in (ours, theirs))
        for kind in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(kind(ours), kind(theirs)), (name, kind)
        finite = np.isfinite(ours)
        largest = abs(theirs[finite]).max(initial=1)
        assert abs(ours[finite] - theirs[finite]).max(initial=0) <= TOLERANCE[dtype] * largest, name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DATA_DTYPES)
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
            p = problem(shape, dtype, layout, special)
            src, diff_dst, mean, variance, gamma = p
            found = bn_ext.batch_norm_backward(
                *p, epsilon=1e-3, data_format=layout, is_training=training
            )
            x, dy = (tensor(a).movedim(FORMATS[layout], 1) for a in (src, diff_dst))
            mean, variance, gamma = (torch.from_numpy(v) for v in (mean, variance, gamma))
            rstd = (variance + 1e-3).rsqrt()
            theirs = torch.ops.aten.native_batch_norm_backward(
                dy, x, gamma, mean, variance, mean, rstd, training, 1e-3, [True] * 3
            )
            diff_src = np.moveaxis(array(theirs[0]), 1, FORMATS[layout])
            agree(found, (diff_src, *map(array, theirs[1:])), dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", *SHORT])
def test_tensorflow(dtype, layout, training):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    if layout == "NCX" and not training:
        pytest.skip("TensorFlow refuses it on CPU")
    names = {("NXC", 4): "NHWC", ("NCX", 4): "NCHW", ("NXC", 5): "NDHWC", ("NCX", 5): "NCDHW"}
    for shape in SHAPES:
        if len(shape) not in (4, 5):
            continue
        src, diff_dst, mean, variance, gamma = problem(shape, dtype, layout)
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


def onednn_or_skip():
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))  # last: the package there has no compiled core
    onednn = importlib.import_module("benchmarks.onednn")
    try:
        onednn.load()
    except ImportError as error:
        pytest.skip(str(error))
    return onednn


@pytest.mark.parametrize("op", ["backward", "backward-frozen"])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_onednn(dtype, layout, op):
    onednn = onednn_or_skip()
    shapes = [shape for shape in SHAPES if dims(shape, layout)]
    compared = []
    for shape in shapes:
        p = Timed(shape, layout, dtype, op=op)
        arrays = problem(shape, dtype, layout)
        for ours, theirs in zip((p.src, p.diff_dst, *p.vectors), arrays, strict=True):
            ours[...] = theirs
        call = onednn.call(p, 1)
        if call is None:
            continue
        call()
        found = bn_ext.batch_norm_backward(
            *arrays, epsilon=p.epsilon, data_format=layout, is_training=op == "backward",
        )  # fmt: skip
        agree(found, p.out, dtype)
        compared.append(shape)
    if dtype == "bfloat16" and not compared:
        pytest.skip("oneDNN has no bfloat16 for this CPU")
    assert compared == shapes


EXPORTERS = {
    "torch": ("torch", lambda torch, a: torch.from_numpy(a.copy())),
    "jax": ("jax.numpy", lambda jnp, a: jnp.asarray(a)),
    "pyarrow": ("pyarrow", lambda pa, a: pa.Tensor.from_numpy(a) if a.ndim > 1 else pa.array(a)),
}


@pytest.mark.parametrize("name", EXPORTERS)
def test_arrays_of_others_come_in_without_a_copy(name):
    module, make = EXPORTERS[name]
    arrays = problem((100, 3000), "float32", "NXC")
    others = [make(pytest.importorskip(module), a) for a in arrays]
    wanted = bn_ext.batch_norm_backward(*arrays, epsilon=1e-3)
    out = [np.empty_like(a) for a in wanted]
    tracemalloc.start()
    found = bn_ext.batch_norm_backward(*others, epsilon=1e-3, out=out)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < arrays[0].nbytes / 4
    for ours, theirs in zip(found, wanted, strict=True):
        assert type(ours) is np.ndarray
        assert ours.tobytes() == theirs.tobytes()


def test_tensors_that_cannot_be_seen():
    torch = pytest.importorskip("torch")
    src, vector = torch.ones(4, 3), torch.ones(3)
    for tensor, why in (
        (src.requires_grad_(), r"detach\(\)"),
        (src.bfloat16(), r"view\(torch.int16\)"),
        (torch.ones(4, 3, device="meta"), "[Dd]evice"),
        (src.detach().to_sparse(), "[Ss]parse"),
    ):
        with pytest.raises((RuntimeError, TypeError, ValueError), match=why) as caught:
            bn_ext.batch_norm_backward(tensor, src, vector, vector, epsilon=1e-3)
        caught.match("(?m)^src: this torch.Tensor cannot be viewed as a NumPy array")


def test_operators_take_tensors():
    torch = pytest.importorskip("torch")
    arrays = problem((4, 3, 5, 6), "float32", "NXC")
    wanted = bn_ext.batch_norm_backward(*arrays, epsilon=1e-3)
    x, dy, m, v, g = (torch.from_numpy(a) for a in arrays)
    found = onednn_graph.batch_norm_training_backward(x, dy, m, v, g, epsilon=1e-3)
    assert found[0].tobytes() == wanted.diff_src.tobytes()
    rstd = 1 / torch.sqrt(v + 1e-3)
    fused_batch_norm_grad_v3(dy, x, g, m, rstd, None, epsilon=1e-3)
    x, dy = (t.movedim(-1, 1) for t in (x, dy))
    found = ngraph.batch_norm_training_backprop(x, g, g, m, v, dy, epsilon=1e-3)
    assert np.moveaxis(found[0], 1, -1).tobytes() == wanted.diff_src.tobytes()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", [*PEERS, "onednn"])
def test_what_bench_times_computes_the_same(name, op):
    p = Timed((4, 8, 5, 6), "NCX", "float32", op=op)
    p.src[::2] += 1
    # torch's second derivative knows no others than these.
    p.mean[:], p.variance[:] = p.src.mean(axis=(0, 2, 3)), p.src.var(axis=(0, 2, 3))
    if name == "onednn":
        peer = onednn_or_skip().call
    else:
        pytest.importorskip(name)
        peer = PEERS[name]
    call = peer(p, usable_cpus())
    if call is None:
        pytest.skip("no such call")
    p.out[0][...] = np.nan
    found = call()
    if found is None:  # in given outputs
        found = p.out[0].copy()
    elif isinstance(found, (tuple, list)):
        found = found[0]
    bn_ext_call(p, 1)()
    np.testing.assert_allclose(np.asarray(found), p.out[0], rtol=1e-4, atol=1e-4)


def test_the_page_for_torch():
    """As a reader would type it: every line, nothing imported beforehand."""
    pytest.importorskip("torch")
    page = ROOT / "docs" / "howto" / "torch.md"
    blocks = re.findall(r"^```pycon\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("".join(blocks), {}, page.name, str(page), 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


#: What each of several processes does with the samples that it is dealt.
ON_A_RANK = """
import sys
import numpy as np

dist.init_process_group("gloo", init_method="file://" + sys.argv[1],
                        rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
rng = np.random.default_rng(0)
src, diff_dst = rng.standard_normal((2, 40, 3, 3, 8), np.float32)
diff_dst[0] *= 1e6
diff_dst[1] = -diff_dst[0]
mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))
mine = slice(dist.get_rank(), None, dist.get_world_size())
grads = batch_norm_backward(src[mine], diff_dst[mine], mean, variance, mean, epsilon=1e-5)
whole = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, mean, epsilon=1e-5, exact=True)
print(np.array_equal(grads.diff_src, whole.diff_src[mine]),
      *(np.array_equal(a, b) for a, b in zip(grads[1:], whole[1:])))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_torch_page_in_several_processes(tmp_path, ranks):
    pytest.importorskip("torch")
    page = ROOT / "docs" / "howto" / "torch.md"
    (recipe,) = re.findall(r"^```python\n(import.*?)^```$", page.read_text(), re.M | re.S)
    (tmp_path / "rank.py").write_text(recipe + ON_A_RANK)
    with ThreadPoolExecutor(ranks) as pool:
        done = [*pool.map(
            lambda rank: python(tmp_path / "rank.py", tmp_path / "meeting", rank, ranks),
            range(ranks))]  # fmt: skip
    assert [(one.stdout, one.returncode) for one in done] == [("True True True\n", 0)] * ranks, done
