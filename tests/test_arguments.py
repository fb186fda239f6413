"""Arguments: which are accepted, and in what forms."""

import array
import copy
import importlib.util
import inspect
import pickle

import members
import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, INPUTS, Family, Problem, all_bits, dtype
from refusals import OPERANDS, SECOND, arguments, function_of, refused

import bn_ext
from bn_ext import _core, specs

pytestmark = pytest.mark.quick


def test_accepted_kinds_of_arrays(rng, p, tmp_path):
    want = p.run(bn_ext.batch_norm_backward)

    def same(**changed):
        for got, expected in zip(p.run(bn_ext.batch_norm_backward, **changed), want, strict=True):
            assert type(got) is np.ndarray
            assert got.tobytes() == expected.tobytes()

    mapped = np.memmap(tmp_path / "src", np.float32, "w+", shape=p.src.shape)
    mapped[...] = p.src
    same(src=mapped)
    same(src=frozen_copy(p.src))
    same(mean=frozen_copy(p.mean), variance=frozen_copy(p.variance), gamma=frozen_copy(p.gamma))
    same(mean=array.array("f", p.mean))

    every_other = np.zeros(10, np.float32)
    every_other[::2] = p.mean
    same(mean=every_other[::2])
    same(mean=p.mean[::-1].copy()[::-1])
    unaligned = np.zeros(21, np.uint8)[1:].view(np.float32)
    unaligned[...] = p.mean
    same(mean=unaligned)
    metadata = np.dtype(np.float32, metadata={"unit": "m"})
    same(src=p.src.astype(metadata), mean=p.mean.astype(metadata))
    same(num_threads=np.int64(2), epsilon=np.float64(EPSILON))
    same(num_threads=2**100)
    same(epsilon=np.array(EPSILON))


@pytest.mark.parametrize("kind", ["float16", "float32", "longdouble", "int8", "bfloat16"])
def test_numbers_of_any_dtype(p, kind):
    """ml_dtypes' scalars too, which NumPy takes for bytes; arrays without axes; no other bytes."""
    number = (
        pytest.importorskip("ml_dtypes").bfloat16 if kind == "bfloat16" else np.dtype(kind).type
    )
    found = []
    for make in (float, number, lambda value: np.array(value, number)):
        running = {name: np.ones(len(p.mean)) for name in ("running_mean", "running_variance")}
        result = bn_ext.batch_norm_training(
            p.src, epsilon=make(2), exponential_avg_factor=make(3), correction=0, **running,
            data_format="NXC",
        )  # fmt: skip
        layer = bn_ext.BatchNorm(3, epsilon=make(2))
        found.append([all_bits([*result, *running.values()]), layer.epsilon])
    assert found[0] == found[1] == found[2]
    with pytest.raises((TypeError, ValueError), match="^epsilon: expected a "):
        bn_ext.batch_norm_training(p.src, epsilon=np.void(b"12"))


def all_functions():
    """Yield the classes, and the functions of each module in `needs` that can be imported here."""
    yield from (bn_ext.BatchNorm, bn_ext.Statistics, bn_ext.GradientSums)
    needs = {"": "numpy", ".autograd": "autograd", ".dask": "dask"}
    for name, package in needs.items():
        if importlib.util.find_spec(package):
            module = importlib.import_module(f"bn_ext{name}")
            yield from (getattr(module, k) for k in module.__all__ if k.startswith("batch_norm_"))


#: {an argument's name in other packages: our names}; messages name the first that a function has.
OTHER_NAMES = {
    "eps": ["epsilon"], "input": ["src"], "x": ["src"], "dout": ["diff_dst"],
    "grad_output": ["diff_dst"], "weight": ["gamma"],
    "bias": ["beta"], "save_mean": ["mean"], "running_var": ["running_variance", "variance"],
    "running_mean": ["running_mean", "mean"], "training": ["is_training"], "axis": ["data_format"],
    "ddof": ["correction"], "num_features": ["channels"],
}  # fmt: skip


@pytest.mark.parametrize("theirs", OTHER_NAMES)
def test_other_packages_names_are_translated(p, theirs):
    """The wrong name is reported, even if a required argument is therefore missing."""
    taken = 0
    for function in all_functions():
        parameters = inspect.signature(function).parameters
        ours = next((name for name in OTHER_NAMES[theirs] if name in parameters), "")
        if theirs in parameters:
            continue
        if theirs == "save_mean" and "diff_dst" not in parameters:
            ours = ""  # a result of the forward pass
        hint = f", which is called {ours} here" if ours else ""
        if ours == "data_format":
            hint += r": 'NXC' \(channels last\) or 'NCX' \(channels on axis 1\)"
        elif "is_training" in parameters and theirs.startswith("running"):
            hint += " if is_training=False"
        elif "diff_dst" in parameters and theirs.startswith("running"):
            hint = f"; {ours} is the batch's, which the forward pass returned"
        elif theirs == "training" and not ours and "diff_dst" in parameters:
            hint = "; bn_ext.batch_norm_backward has is_training"
        elif theirs == "training" and not ours and "epsilon" in parameters:
            hint = "; batch_norm_training uses .* eval\\(\\)"
        elif "channels" in parameters and theirs.startswith(("weight", "bias", "running")):
            hint = r"; set the new layer's \w+\[...\], or use load_state_dict"
        given = {name: p.src for name in required(function) if name != ours}
        with pytest.raises(
            TypeError, match=f"{function.__name__}.* unexpected keyword argument '{theirs}'{hint}$"
        ):
            function(**given, **{theirs: 1})
        taken += bool(ours)
    assert taken >= (1 if theirs == "num_features" else 2)


def test_unknown_names(p):
    """Unknown names, other functions' names and missing arguments are refused."""
    for match, options in (
        ("'nobodys'$", {"nobodys": 1}),
        ("'training'; batch_norm_training uses the batch's statistics, ", {"training": True}),
        ("'is_training'; batch_norm_training uses the batch's ", {"is_training": True}),
        ("'rstd'$", {"rstd": p.mean}),
    ):
        with pytest.raises(TypeError, match=f"got an unexpected keyword argument {match}"):
            bn_ext.batch_norm_training(p.src, **options)
    with pytest.raises(TypeError, match=r"'rstd'; pass variance=1 / rstd\*\*2 - epsilon$"):
        bn_ext.batch_norm_backward(p.src, p.diff_dst, p.mean, rstd=p.variance)
    for function, name, hint in (
        (bn_ext.batch_norm_inference, "momentum", "; batch_norm_training updates running stat"),
        (bn_ext.Statistics, "epsilon", "$"),
        (bn_ext.batch_norm_training, "variance", "; batch_norm_inference normalizes with a give"),
        (bn_ext.batch_norm_inference, "save_mean", "$"),
        (bn_ext.batch_norm_backward, "saved_mean", ", which is called mean here$"),
        (specs.onednn_graph.batch_norm_forward_training, "decay", ", which is called momentum her"),
        (bn_ext.BatchNorm, "trainable", r"; call freeze\(\)$"),
        (bn_ext.batch_norm_backward, "use_running_average", ", which is called is_training here, "),
        (bn_ext.batch_norm_training, "activation", ", which is called relu here: True or False$"),
        (bn_ext.batch_norm_training, "n_jobs", ", which is called num_threads here$"),
        (specs.ngraph.batch_norm_training, "momentum", "; batch_norm_training updates"),
        (specs.onednn_graph.batch_norm_training_backward, "running_var", "; variance is the batch"),
        (
            specs.onednn_graph.batch_norm_training_backward,
            "training",
            "; bn_ext.batch_norm_backwar",
        ),
        (specs.onednn_graph.batch_norm_forward_training, "exponential_avg_factor", "; pass mom"),
        (bn_ext.batch_norm_training, "decay", "; pass exponential_avg_factor=1 - decay$"),
        (specs.tensorflow.fused_batch_norm_v3, "running_var", ", which is called variance here$"),
        (specs.tensorflow.fused_batch_norm_v3, "rstd", r"; .*\*\*2 - epsilon, is_training=False$"),
        (specs.tensorflow.fused_batch_norm_ex, "relu", ", .* activation_mode here: 'Identity' or"),
        (specs.onednn_graph.batch_norm_inference, "running_var", ", which is called variance here"),
        (specs.onednn_graph.batch_norm_inference, "axis", ", which is called data_format here: 'N"),
        (specs.tensorflow.fused_batch_norm_grad_v3, "dim", ", .* data_format here: 'NHWC' or 'ND"),
    ):
        with pytest.raises(TypeError, match=f"keyword argument '{name}'{hint}"):
            function(**{name: 1})
    with pytest.raises(TypeError, match=r"^momentum: .*\(PyTorch\).*\(oneDNN, Flax, Keras\)"):
        bn_ext.batch_norm_training(p.src, momentum=0.1)
    of_a_subclass = type("S", (str,), {})("eps")
    with pytest.raises(TypeError, match="'eps', which is called epsilon here$"):
        bn_ext.batch_norm_training(p.src, **{of_a_subclass: EPSILON})
    called = {"eps": "epsilon", "gamma": "scale", "input": "x", "training": "is_training"}
    for name, theirs in called.items():
        with pytest.raises(TypeError, match=f"'{name}', which is called {theirs} here$"):
            specs.tensorflow.fused_batch_norm_v3(p.src, **{name: 1})
    with pytest.raises(
        TypeError, match="^epsilon: expected a finite number >= 0; it is missing and has no def"
    ):
        bn_ext.batch_norm_training(p.src)
    with pytest.raises(TypeError, match="^mean: expected an array; it is missing$"):
        bn_ext.batch_norm_inference(p.src, variance=p.variance, epsilon=EPSILON)


def required(function):
    """Names of the required arguments that may be passed by position."""
    kinds = inspect.signature(function).parameters.values()
    return [k.name for k in kinds if k.default is k.empty and k.kind is k.POSITIONAL_OR_KEYWORD]


def frozen_copy(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def test_unaligned_out_vectors(p):
    want = p.run(bn_ext.batch_norm_backward)
    unaligned = np.zeros(21, np.uint8)[1:].view(np.float32)
    grads = p.run(bn_ext.batch_norm_backward, out=(None, unaligned, None))
    assert grads.diff_gamma is unaligned
    assert unaligned.tobytes() == want.diff_gamma.tobytes()


def test_sequences_are_what_numpy_makes_of_them(rng, p):
    """Lists of Python's floats become float64."""
    for message, changed in (
        ("diff_dst: expected float64, like src, got float32", {"src": p.src.tolist()}),
        ("src: expected an array of numbers: ", {"src": [[1.0], [2.0, 3.0]]}),
        ("diff_dst: expected an array of numbers: ", {"diff_dst": ([1.0], 2.0)}),
        ("src: expected float32, .*, got int64", {"src": [[1, 2], [3, 4]]}),
        ("src: expected float32, .*, got <U1", {"src": ["a", "b"]}),
        ("gamma: expected float32, float64, float16 or bfloat16, got int", {"gamma": [1] * 5}),
        ("gamma: ", {"gamma": [[1.0], [2.0, 3.0]]}),
    ):  # fmt: skip
        refused(TypeError, f"^{message}", p, "backward", **changed)
    want = p.run(bn_ext.batch_norm_backward)
    p.mean, p.variance, p.gamma = (a.tolist() for a in p.vectors())
    found = p.run(bn_ext.batch_norm_backward)
    assert found.diff_src.tobytes() == want.diff_src.tobytes()
    assert found.diff_gamma.dtype == np.float64
    double = Problem(rng, (6, 4, 5), "NXC", "float64")
    want = all_bits(double.run(bn_ext.batch_norm_backward))
    for name in INPUTS:
        setattr(double, name, tuple(getattr(double, name).tolist()))
    assert all_bits(double.run(bn_ext.batch_norm_backward)) == want


@pytest.mark.parametrize("flag", ["is_training", "param_grads"])
def test_flags_by_other_names(p, flag):
    for value in (True, False):
        want = p.run(bn_ext.batch_norm_backward, **{flag: value})
        for same in (int(value), np.bool_(value), np.int64(value)):
            found = p.run(bn_ext.batch_norm_backward, **{flag: same})
            assert all_bits(found) == all_bits(want)


def test_messages_are_short(p):
    long = "x" * 10_000
    for changed in (
        {"epsilon": 10**400}, {"epsilon": 10**5000}, {"epsilon": long}, {"num_threads": -(10**400)},
        {"num_threads": -(10**5000)}, {"data_format": long}, {"is_training": long},
    ):  # fmt: skip
        (name,) = changed
        with pytest.raises((TypeError, ValueError), match=f"^{name}: ") as caught:
            p.run(bn_ext.batch_norm_backward, **changed)
        assert len(str(caught.value)) < 200
    refused(ValueError, "^epsilon: expected a finite number >= 0, got 1000", p, epsilon=10**400)


class Exported:
    """Another library's array, which says in which device's memory it lies."""

    def __init__(self, array, device):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


class Viewed(Exported):
    """An exported array that also has `__array__`, as torch's tensors do."""

    def __array__(self, dtype=None, copy=None):
        return self.array


# DLPack's device types: the CPU, host memory pinned by CUDA or ROCm, CUDA's managed memory.
HOST = [1, 3, 11, 13]


@pytest.mark.parametrize("kind", [Exported, Viewed])
@pytest.mark.parametrize("device", range(1, 20))
def test_devices(rng, device, kind):
    """An array that the CPU can read is viewed; others are not asked for their data."""
    p = Problem(rng, (6, 5), "NXC")
    wanted = all_bits(p.run(bn_ext.batch_norm_backward))
    for name in INPUTS:
        exported = kind(getattr(p, name), device)
        if device in HOST:
            assert all_bits(p.run(bn_ext.batch_norm_backward, **{name: exported})) == wanted
            assert np.shares_memory(_core._as_array(exported, name), getattr(p, name))
        else:
            with pytest.raises(TypeError, match=f"^{name}: .* is not in CPU memory; copy it"):
                p.run(bn_ext.batch_norm_backward, **{name: exported})


# ---- layouts ---------------------------------------------------------------------

#: {layout: {number of axes: names}}; names for any number of axes are under 0
LAYOUTS = {
    "NXC": {0: ["NXC", "channels_last"], 2: ["NC"], 3: ["NLC", "NWC"], 4: ["NHWC"], 5: ["NDHWC"]},
    "NCX": {0: ["NCX", "channels_first"], 3: ["NCL", "NCW"], 4: ["NCHW"], 5: ["NCDHW"]},
}


@pytest.mark.parametrize("ndim", range(2, 7))
@pytest.mark.parametrize("name", OPERANDS)
def test_names_of_layouts(rng, name, ndim):
    """A name must fit the number of axes. It may be left out only where it does not matter."""
    for layout, names in LAYOUTS.items():
        given = arguments(Family(rng, (2, 3, 4, 5, 3, 2)[:ndim], layout), name)
        call = function_of(name)
        wanted = pickle.dumps(call(**given))
        for axes, theirs in names.items():
            for said in theirs:
                changed = {**given, "data_format": np.str_(said)}
                if axes in (0, ndim):
                    assert pickle.dumps(call(**changed)) == wanted
                else:
                    message = f"^data_format: expected a format for {ndim} axes, .* one for {axes};"
                    with pytest.raises(ValueError, match=message):
                        call(**changed)
        del given["data_format"]
        if ndim == 2:
            assert pickle.dumps(call(**given)) == wanted
        else:
            with pytest.raises(ValueError, match="^data_format: .* is missing and has no default$"):
                call(**given)


# ---- dtypes ----------------------------------------------------------------------

AFFINE_AND_MORE = ["mean", "variance", "gamma", "beta", *SECOND[1:]]


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", members.MEMBERS)
def test_bits_depend_on_the_values_of_vectors_alone(rng, name, data):
    """Not on the dtypes that hold them."""
    member, p = members.MEMBERS[name], members.problem(rng, (6, 5, 4), "NXC", data)
    found = []
    for kind in DATA_DTYPES:
        q = copy.copy(p)
        for vector in AFFINE_AND_MORE:  # rounded to what all dtypes hold
            setattr(q, vector, (np.round(8 * getattr(p, vector)) / 8).astype(dtype(kind)))
        out = [None if like.ndim > 1 else np.empty(4) for like in member.like(q)]
        found.append(member.run(q, out=out)[1])
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", members.MEMBERS)
def test_dtypes_of_results(rng, name, data):
    """Statistics are float64, gradients of vectors have gamma's dtype or mean's. An array in `out`
    of another dtype gets the same doubles, rounded.
    """
    member, p = members.MEMBERS[name], members.problem(rng, (6, 5, 4), "NXC", data)
    for kind, other in zip(DATA_DTYPES, DATA_DTYPES[1:] + DATA_DTYPES[:1], strict=True):
        q = copy.copy(p)
        q.gamma, q.mean = p.gamma.astype(dtype(kind)), p.mean.astype(dtype(other))
        wide = [None if like.ndim > 1 else np.empty(4) for like in member.like(q)]
        wide, _ = member.run(q, out=wide)
        for found, like, double in zip(member.run(q)[0], member.like(q), wide, strict=True):
            assert found.dtype == like.dtype
            assert found.tobytes() == double.astype(like.dtype).tobytes()
        q.gamma = None
        if "vector" in member.returns:
            index = member.returns.index("vector")
            assert member.run(q)[0][index].dtype == dtype(other)


def test_doubles_to_float32():
    rng = np.random.default_rng(5)
    numbers = rng.standard_normal((1, 10000)) * 10.0 ** rng.integers(-50, 45, 10000)
    ones = np.ones(10000)
    with np.errstate(over="ignore", under="ignore"):
        want = numbers[0].astype(np.float32)
    gamma = ones.astype(np.float32)
    grads = bn_ext.batch_norm_backward(numbers, numbers, ones, ones, gamma, epsilon=0.0)
    assert grads.diff_beta.tobytes() == want.tobytes()


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_tensors_have_one_dtype(rng, data):
    for other in {*DATA_DTYPES} - {data}:
        p = Problem(rng, (6, 5), "NXC", data)
        changed = p.diff_dst.astype(dtype(other))
        refused(
            TypeError, f"^diff_dst: expected {data}, like src, got {other}", p, diff_dst=changed
        )
