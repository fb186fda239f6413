"""Arguments: which are accepted, and in what forms."""

import array
import copy
import pickle
from importlib import import_module
from tempfile import TemporaryFile

import adapters
import members
import ml_dtypes
import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, INPUTS, VECTORS, Family, Problem, all_bits, dtype
from members import SECOND, function_of
from refusals import OPERANDS, RESULTS, arguments, as_out, four, outs, read_only
from sheets import CARRIERS

import bn_ext
from bn_ext import _core

pytestmark = [pytest.mark.fast, pytest.mark.any_level]


class Exported:
    """Another library's array, which says in which device's memory it lies."""

    def __init__(self, array, device):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


def mapped(a):
    with TemporaryFile() as file:
        results = np.memmap(file, a.dtype, "w+", shape=a.shape)
    results[...] = a
    return results


def unaligned(a):
    results = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    results[...] = a
    return results


#: Forms of any array; of these DLPack devices, the CPU can read the memory.
FORMS = CARRIERS | {
    "read-only": read_only,
    "mapped": mapped,
    "unaligned": unaligned,
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "metadata": lambda a: a.astype(np.dtype(a.dtype, metadata={"unit": "m"})),
    **{f"DLPack device {n}": lambda a, n=n: Exported(a, n) for n in (1, 3, 11, 13)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("argument", INPUTS)
def test_forms_of_arrays(rng, argument, form):
    p = Problem(rng, (2, 3, 4, 5), "NXC")
    values = p.arguments() | {argument: FORMS[form](getattr(p, argument))}
    results = p.run(bn_ext.batch_norm_backward, **values)
    assert [type(a) for a in results] == [np.ndarray] * 3
    assert all_bits(results) == all_bits(p.run(bn_ext.batch_norm_backward))


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("data", ["float64", "float32"])
def test_sequences_of_floats_are_float64(rng, kind, data):
    p = Problem(rng, (6, 4, 5), "NXC", data)
    wanted = p.run(bn_ext.batch_norm_backward)
    names = INPUTS if data == "float64" else VECTORS
    listed = {name: kind(getattr(p, name).tolist()) for name in names}
    results = p.run(bn_ext.batch_norm_backward, **listed)
    assert results.diff_src.tobytes() == wanted.diff_src.tobytes()
    assert results.diff_gamma.dtype == np.float64


def test_no_data_is_copied(p):
    for make in (memoryview, lambda a: Exported(a, 1)):
        assert np.shares_memory(_core.as_array(make(p.src), "src"), p.src)
    assert bn_ext.batch_norm_backward(
        p.src, p.diff_dst, *(array.array("f", a) for a in p.vectors()), epsilon=1, data_format="NXC"
    ).diff_src.any()


NUMBERS = [np.float16, np.float32, np.longdouble, np.int8, ml_dtypes.bfloat16]
#: (function, argument, values that mean the same)
SAME = [("backward", "num_threads", values) for values in ([2, np.uint8(2)], [None, 2**100])]
for kind in NUMBERS:
    numbers = [2.0, kind(2), np.array(2, kind)]
    SAME += [("training", name, numbers) for name in ("epsilon", "exponential_avg_factor")]
for flag in "is_training", "param_grads", "exact":
    SAME += [("backward", flag, [b, int(b), np.bool_(b), np.int64(b)]) for b in (False, True)]


@pytest.mark.parametrize(("name", "argument", "values"), SAME)
def test_forms_of_options(p, name, argument, values):
    results = []
    for value in values:
        accepted = arguments(p, name) | (four(p) if name == "training" else {}) | {argument: value}
        result = function_of(name)(**accepted)
        results.append(all_bits([*result, accepted.get("running_mean")]))
    assert results[1:] == results[:1] * (len(values) - 1)


@pytest.mark.parametrize("change", [unaligned, lambda a: a.view(type("Named", (np.ndarray,), {}))])
@pytest.mark.parametrize("name", RESULTS)
def test_forms_of_outputs(p, name, change):
    into, call = [change(a) for a in outs(p, name)], function_of(name)
    wanted, results = (
        call(**arguments(p, name), out=as_out(name, out)) for out in (outs(p, name), into)
    )
    if name == "inference":
        wanted, results = [wanted], [results]
    assert all(a is b for a, b in zip(results, into, strict=True))
    assert all_bits(map(np.asarray, results)) == all_bits(wanted)


#: {layout: {number of axes: names}}; names for any number of axes are under 0
LAYOUTS = {
    "NXC": {0: ["NXC", "channels_last"], 2: ["NC"], 3: ["NLC", "NWC"], 4: ["NHWC"], 5: ["NDHWC"]},
    "NCX": {0: ["NCX", "channels_first"], 3: ["NCL", "NCW"], 4: ["NCHW"], 5: ["NCDHW"]},
}


@pytest.mark.parametrize("ndim", range(2, 7))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERANDS)
def test_names_of_layouts(rng, name, layout, ndim):
    """A name must fit the number of axes. It may be left out only where it does not matter."""
    values = arguments(Family(rng, (2, 3, 4, 5, 3, 2)[:ndim], layout), name)
    call = function_of(name)
    wanted = pickle.dumps(call(**values))
    for axes, text in ((axes, text) for axes, names in LAYOUTS[layout].items() for text in names):
        changed = {**values, "data_format": np.str_(text)}
        if axes in (0, ndim):
            assert pickle.dumps(call(**changed)) == wanted
        else:
            message = f"^data_format: expected a format for {ndim} axes, .* got one for {axes};"
            with pytest.raises(ValueError, match=message):
                call(**changed)
    del values["data_format"]
    if ndim == 2:
        assert pickle.dumps(call(**values)) == wanted
    else:
        with pytest.raises(ValueError, match="^data_format: .* is missing and has no default$"):
            call(**values)


@pytest.mark.parametrize("name", RESULTS)
def test_arguments_that_do_not_bind(p, name):
    """Errors are Python's own, so that Python can suggest a name."""
    call, values = function_of(name), arguments(p, name)
    with pytest.raises(TypeError, match=r"\(\) got an unexpected keyword argument 'eps'"):
        call(**values, eps=EPSILON)
    for absent in ("src", "epsilon"):
        others = {key: value for key, value in values.items() if key != absent}
        with pytest.raises(TypeError, match=rf"\(\) missing 1 required .* argument: '{absent}'$"):
            call(**others)


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", members.MEMBERS)
def test_bits_depend_on_the_values_of_vectors_alone(rng, name, data):
    member, p = members.MEMBERS[name], members.problem(rng, (6, 5, 4), "NXC", data)
    results = []
    for kind in DATA_DTYPES:
        q = copy.copy(p)
        # Rounded to what all dtypes hold.
        for vector in ("mean", "variance", "gamma", "beta", *SECOND[1:]):
            setattr(q, vector, (np.round(8 * getattr(p, vector)) / 8).astype(dtype(kind)))
        out = [None if like.ndim > 1 else np.empty(4) for like in member.like(q)]
        results.append(member.run(q, out=out)[1])
    assert results[1:] == results[:1] * 3


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", members.MEMBERS)
def test_dtypes_of_results(rng, name, data):
    """Statistics are float64, gradients of vectors have gamma's dtype or mean's. An array in `out`
    of another dtype gets the same doubles, rounded.
    """
    member, p = members.MEMBERS[name], members.problem(rng, (6, 5, 4), "NXC", data)
    for kind, mean_kind in zip(DATA_DTYPES, DATA_DTYPES[1:] + DATA_DTYPES[:1], strict=True):
        q = copy.copy(p)
        q.gamma, q.mean = p.gamma.astype(dtype(kind)), p.mean.astype(dtype(mean_kind))
        wide = [None if like.ndim > 1 else np.empty(4) for like in member.like(q)]
        wide, _ = member.run(q, out=wide)
        for results, like, double in zip(member.run(q)[0], member.like(q), wide, strict=True):
            assert results.dtype == like.dtype
            assert results.tobytes() == double.astype(like.dtype).tobytes()
        q.gamma = None
        if "vector" in member.returns:
            index = member.returns.index("vector")
            assert member.run(q)[0][index].dtype == dtype(mean_kind)


def statistics_backward(p):
    values = p.mean, p.beta, p.variance, p.gamma  # in the place of diff_gamma and diff_beta
    results = bn_ext.batch_norm_statistics_backward(*values, epsilon=EPSILON)
    return [(diff, p.variance) for diff in results]


def of_torch(p):
    torch = pytest.importorskip("torch")
    functions = import_module("bn_ext.torch")

    def tensor(array):
        results = torch.tensor(array.astype(float)).to(getattr(torch, array.dtype.name))
        return results.movedim(-1, 1).requires_grad_() if array.ndim > 1 else results

    src, diff_dst, mean, variance = map(tensor, (p.src, p.diff_dst, p.mean, p.variance))
    values = src, *(tensor(a).requires_grad_() for a in (p.gamma, p.beta))
    dst = functions.batch_norm(src, mean, variance, *values[1:])
    grads = torch.autograd.grad(dst, values, diff_dst)
    return [(dst, src), *zip(grads, values, strict=True)]


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize(
    "call", [statistics_backward, adapters.of_autograd, adapters.of_dask, of_torch]
)
def test_dtypes_of_what_adapters_find(rng, call, data):
    """Gradients of vectors have their dtypes, each another one, also if autograd asks for them."""
    p = members.problem(rng, (6, 5, 4), "NXC", data)
    for shift in range(4):
        kinds = np.roll(DATA_DTYPES, shift)
        for name, kind in zip(("gamma", "beta", "mean", "variance"), kinds, strict=True):
            setattr(p, name, getattr(p, name).astype(dtype(kind)))
        pairs = call(p)
        assert [results.dtype for results, _ in pairs] == [like.dtype for _, like in pairs]


def test_doubles_to_float32():
    rng = np.random.default_rng(5)
    numbers = rng.standard_normal((1, 10000)) * 10.0 ** rng.integers(-50, 45, 10000)
    ones = np.ones(10000)
    with np.errstate(over="ignore", under="ignore"):
        want = numbers[0].astype(np.float32)
    gamma = ones.astype(np.float32)
    grads = bn_ext.batch_norm_backward(numbers, numbers, ones, ones, gamma, epsilon=0.0)
    assert grads.diff_beta.tobytes() == want.tobytes()
