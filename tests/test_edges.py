"""Edge cases: empty arrays, one element per channel, NaN, Inf, zeros, and the operators' gradients.

Other cases of docs/semantics.md have their tests in the files that the page names.
"""

import itertools

import members
import numpy as np
import pytest
from cases import DTYPES, EPSILON, FORMATS, INPUTS, Family, all_bits, dtype, placed, shape
from members import MEMBERS
from processes import printed_by
from sheets import SHEETS

import bn_ext
from bn_ext.specs import onednn_graph, tensorflow
from bn_ext.testing import _formulas as reference

pytestmark = [pytest.mark.fast, pytest.mark.results]


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(
    "dims", [(0, 3), (5, 0), (0, 0), (0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 2, 3, 4), (3, 0, 0, 2)]
)
@pytest.mark.parametrize("name", MEMBERS)
def test_empty_problems_give_empty_and_zeros(rng, name, dims, data_format):
    """Statistics of no elements are NaN; running statistics do not change. Outputs may be given."""
    member, nothing = MEMBERS[name], np.nan if name.startswith("training") else 0
    modes = itertools.product(DTYPES, (True, False), (True, False))
    for types, is_training, summed in modes:
        p = members.problem(rng, dims, data_format, *types)
        p.variance[:1] = -1  # its rstd is NaN, and so would 0 * rstd be
        before = all_bits([p.running_mean, p.running_variance])
        sevens = [np.full_like(like, 7) for like in member.like(p)]
        for out in (None, sevens):
            options = {"is_training": is_training, "summed": summed, "out": out}
            results, bits = member.run(p, **options)
            for like, array in zip(sevens, results, strict=True):
                assert (array.shape, array.dtype) == (like.shape, like.dtype)
                np.testing.assert_array_equal(array.astype(float), np.full(like.shape, nothing))
            assert out is None or all(a is b for a, b in zip(results, out, strict=True))
            if name.startswith("training, fused"):
                assert bits[3:5] == before


MANY_CHANNELS = """
import itertools, numpy as np, bn_ext
for n, exact in itertools.product((2**40, 2**60), (False, True)):
    src, vector = np.empty((0, n), np.float32), np.broadcast_to(np.float32(1), (n,))
    arrays = dict(src=src, diff_dst=src, mean=vector, variance=vector, gamma=vector, epsilon=1.0)
    forward = dict(src=src, gamma=vector, beta=vector, epsilon=1.0)
    calls = [lambda: bn_ext.batch_norm_training(**forward, exact=exact),
             lambda: bn_ext.Statistics(src, exact=exact),
             lambda: bn_ext.GradientSums(src, src, vector, exact=exact),
             lambda: bn_ext.batch_norm_double_backward(**arrays, diff_diff_src=src),
             lambda: bn_ext.batch_norm_statistics_backward(src, src, vector, vector, epsilon=1.0)]
    gates = dict(relu=True, beta=vector), dict(relu=True, dst=src), {}
    for gate, training, wanted in itertools.product(gates, (False, True), (False, True)):
        options = dict(is_training=training, param_grads=wanted, **arrays, **gate)
        calls.append(lambda options=options: bn_ext.batch_norm_backward(**options, exact=exact))
        if not wanted:
            assert bn_ext.batch_norm_backward(**options).diff_src.shape == src.shape
    for call in calls:
        try:
            call()
        except (MemoryError, ValueError):
            pass
    assert bn_ext.batch_norm_inference(**forward, mean=vector, variance=vector).shape == src.shape
print("ends")
"""


def test_channels_without_elements_are_not_visited():
    """Vectors that are wanted have no memory; those that are not take no time."""
    assert printed_by(MANY_CHANNELS, timeout=60) == "ends\n"


@pytest.mark.parametrize("name", MEMBERS)
def test_strides_of_no_elements_may_be_any(rng, name):
    """The results are those of a dense array; the sanitizers see that nothing overflows."""
    least, most = -(2**63), 2**63 - 1
    for dims, data_format in itertools.product([(0, 3, 4), (2, 3, 0)], FORMATS):
        p = members.problem(rng, dims, data_format)
        _, expected = MEMBERS[name].run(p)
        for strides in itertools.product((least, most, 4), repeat=3):
            for operand in ("src", "diff_dst", "src_1", "diff_diff_src", "dst"):
                array = np.lib.stride_tricks.as_strided(getattr(p, operand), dims, strides)
                setattr(p, operand, array)
            _, bits = MEMBERS[name].run(p)
            assert bits == expected


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("x", [1, 5, 1100])
@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_not_finite_stays_in_its_channel(rng, name, x, data_format):
    member, others = MEMBERS[name], [0, 1, 3]
    for types, is_training in itertools.product(DTYPES, (True, False)):
        p = members.problem(rng, shape(9, 4, x, data_format), data_format, *types)
        before, _ = member.run(p, is_training=is_training)
        for read, value in itertools.product(member.reads, (np.nan, np.inf, -np.inf)):
            changed = getattr(p, read).copy(order="K")
            np.moveaxis(changed, p.axis, 0)[2].flat[-1] = value
            results, _ = member.run(p, {read: changed}, is_training=is_training)
            for old, new in zip(before, results, strict=True):
                axis = p.axis if new.ndim > 1 else 0
                kept = [np.moveaxis(a, axis, 0)[others].tobytes() for a in (old, new)]
                assert kept[0] == kept[1], (types, read, value)


#: (data, vector): vectors have more digits than the arithmetic, so that a mean has a low part.
FINER = [("float32", "float64"), ("bfloat16", "float64")]
#: {member: its operands that are not tensors}
VECTORS = {
    "training": ["gamma", "beta"],
    "inference": ["mean", "variance", "gamma", "beta"],
    "backward": ["mean", "variance", "gamma"],
    "double backward": ["mean", "variance", "gamma", "diff_diff_gamma", "diff_diff_beta"],
}


def rows(array, axis):
    array = array.astype(np.float64)
    return reference.by_channel(array, axis) if array.ndim > 1 else array[:, None]


def formula(p, name, is_training, epsilon):
    if name in ("inference", "double backward"):
        arguments = MEMBERS[name].arguments(p, epsilon=epsilon, is_training=is_training)
        del arguments["data_format"]
        function = getattr(reference, f"batch_norm_{MEMBERS[name].function}")
        return [rows(a, p.axis) for a in function(**arguments, axis=p.axis)[:3]]
    x, dy, mean, variance, gamma, beta = (rows(getattr(p, n), p.axis) for n in (*INPUTS, "beta"))

    def mean_of(a):
        return a.mean(axis=1, keepdims=True)

    if name == "training":
        mean, variance = mean_of(x), x.var(axis=1, keepdims=True)
    xc, rstd = x - mean, 1 / np.sqrt(variance + epsilon)
    if name == "training":
        return [gamma * rstd * xc + beta, mean, variance]
    through = mean_of(dy) + xc * rstd * (mean_of(dy * xc) * rstd) if is_training else 0
    diff_gamma, diff_beta = (a.sum(axis=1, keepdims=True) for a in (dy * xc, dy))
    return [gamma * rstd * (dy - through), diff_gamma * rstd, diff_beta]


def kinds(a):
    return np.isnan(a), np.isposinf(a), np.isneginf(a)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("types", [*DTYPES, *FINER])
def test_nan_and_inf_go_where_the_formula_puts_them(rng, types, name, is_training, data_format):
    """One operand has a NaN or an Inf, or a variance is negative or 0. All NaNs have the same bits,
    although x86 and Arm make NaNs of different sign.
    """
    member = MEMBERS[name]
    for x, operand in itertools.product((1, 5, 1100), [*member.reads, *VECTORS[name]]):
        values = [np.nan, np.inf if x == 5 else -np.inf] + [np.inf, -1, 0] * (operand == "variance")
        for value in values:
            if name == "double backward" and is_training and not (np.isnan(value) or value == -1):
                continue  # nothing is promised for Inf, or a variance of 0
            p = members.problem(rng, shape(9, 4, x, data_format), data_format, *types)
            if types in DTYPES or operand in VECTORS[name]:
                p.mean[2] = np.moveaxis(p.src, p.axis, 0)[2].flat[0]  # makes one xhat 0
            axis = 0 if operand in VECTORS[name] else p.axis
            channels = np.moveaxis(getattr(p, operand), axis, 0)
            channels[(2, *[-1] * (channels.ndim - 1))] = value
            epsilon = 0 if value == 0 else EPSILON
            with np.errstate(all="ignore"):
                want = formula(p, name, is_training, epsilon)
                results, _ = member.run(p, is_training=is_training, epsilon=epsilon)
            for array, right in zip(results, want, strict=False):
                assert np.array_equal(kinds(rows(array, p.axis)), kinds(right)), (x, operand, value)
                nans = array[np.isnan(array.astype(float))]
                assert nans.tobytes() == np.full_like(nans, np.nan).tobytes()


#: What vectors that may be absent count as.
INSTEAD = {"gamma": 1, "beta": 0, "diff_diff_gamma": 0, "diff_diff_beta": 0}


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data", dict(DTYPES))
@pytest.mark.parametrize("name", MEMBERS)
def test_absent_vectors_are_ones_and_zeros(rng, name, data, is_training):
    member, options = MEMBERS[name], {"is_training": is_training}
    operands = members.FUNCTIONS[member.function].operands
    names = [operand for operand in operands if operand in INSTEAD]
    for absent in (names, *[[operand] for operand in names]):
        p = members.problem(rng, (6, 5, 7), "NXC", data)
        vectors = {operand: np.full_like(p.gamma, INSTEAD[operand]) for operand in absent}
        results, _ = member.call(p, dict.fromkeys(absent), **options)
        want, _ = member.call(p, vectors, **options)
        for a, b in zip(results, want, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [name for name in VECTORS if "variance" in VECTORS[name]])
def test_a_negative_variance_is_told_as_numpy_tells_it(rng, name):
    """Of any of many channels, in any dtype, unless epsilon is as much; errors write nothing."""
    member = MEMBERS[name]
    places = itertools.product((0, 63, 64, 129), (-0.25, -np.inf), ("f2", "f4", "f8"))
    for channel, value, kind in places:
        p = members.problem(rng, (4, 130), "NXC")
        p.variance[channel] = value
        p.variance = placed(p.variance.astype(kind), rng.choice(["contiguous", "spread"]))
        with np.errstate(invalid="warn"), pytest.warns(RuntimeWarning, match="^invalid value enco"):
            member.run(p, epsilon=EPSILON)
        out = [np.full_like(like, 7) for like in member.like(p)]
        with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
            member.run(p, epsilon=EPSILON, out=out)
        assert all((array == 7).all() for array in out)
        with np.errstate(invalid="ignore"):
            member.run(p, epsilon=EPSILON)
        if np.isfinite(value):
            member.run(p, epsilon=0.25)


def calls_with_a_negative_variance():
    src, mean, variance, options = np.ones((4, 2)), np.zeros(2), -np.ones(2), {"epsilon": 0.0}
    layer = bn_ext.BatchNorm(2).eval()
    layer.running_variance = variance
    x, v = np.ones((1, 2, 2, 2), np.float32), np.float32([-1, -1])
    with np.errstate(invalid="ignore"):
        layer.forward(src)
    saved, gate = layer.saved, {"relu": True, "beta": mean, "variance": variance}
    yield lambda: bn_ext.batch_norm_inference(src, mean, variance, **options)
    yield lambda: bn_ext.batch_norm_backward(src, src, mean, variance, **options)
    yield lambda: bn_ext.batch_norm_double_backward(src, src, mean, variance, None, src, **options)
    yield lambda: bn_ext.batch_norm_statistics_backward(mean, mean, variance, **options)
    yield lambda: bn_ext.batch_norm_statistics_backward(mean, mean, v, epsilon=0.5)
    yield lambda: bn_ext.GradientSums(src, src, mean, **gate, **options)
    yield lambda: layer.forward(src)
    yield lambda: layer(src)
    yield lambda: layer.backward(src, saved)
    yield lambda: layer.backward(src, saved, accumulate=True)
    yield lambda: onednn_graph.batch_norm_inference(x, v, v, v, v, epsilon=1e-5)
    yield lambda: tensorflow.fused_batch_norm_v3(x, v, v, v, v, is_training=False)


def test_the_warning_of_a_negative_variance_names_the_callers_line():
    for call in calls_with_a_negative_variance():
        place = __file__, call.__code__.co_firstlineno
        with np.errstate(invalid="warn"), pytest.warns(RuntimeWarning, match="^invalid va") as told:
            call()
        assert [(warning.filename, warning.lineno) for warning in told] == [place]
        with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
            call()
        seen = []
        with np.errstate(invalid="call", call=lambda *error, seen=seen: seen.append(error)):
            call()
        assert len(seen) == 1
        with np.errstate(invalid="ignore"):
            call()


#: {sheet: its names for the layouts}
LAYOUTS = {
    "onednn_backprop": FORMATS,
    "onednn_backward": FORMATS,
    "ngraph_backprop": [None],
    "tensorflow_grad": ["NHWC", "NCHW", "NDHWC", "NCDHW"],
}


@pytest.mark.parametrize(("name", "layout"), [(n, name) for n in LAYOUTS for name in LAYOUTS[n]])
def test_gradients_are_the_general_functions(rng, name, layout):
    """In every dtype and rank, with and without gamma; epsilon stays a double. Except in oneDNN's
    operators, it may be 0.
    """
    sheet = SHEETS[name]
    data_format = "NXC" if (layout or "").endswith("C") else "NCX"
    ranks = [len(layout)] if sheet.is_of(tensorflow) else range(2, 8)
    modes = [{"is_training": m} for m in (True, False)] if sheet.is_of(tensorflow) else [{}]
    layout_option = {"data_format": layout} if layout else {}
    epsilons = 1e-3, *[0] * (not sheet.is_of(onednn_graph))
    problems = itertools.product(sheet.types.items(), ranks, modes, epsilons)
    for (data, vectors), rank, mode, epsilon in problems:
        p = Family(rng, (2, 3, 4, 2, 3, 2, 2)[:rank], data_format, data, vectors[-1])
        p.variance[0] = 0  # shows if epsilon is rounded: float32 has no 1e-3
        optional = "gamma" in sheet.roles and sheet.may_be_none("gamma")
        for absent in ({}, {"gamma": None})[: 1 + optional]:
            p.gamma = absent.get("gamma", p.gamma)
            options = {"data_format": data_format, "epsilon": epsilon, **mode}
            want = p.run(bn_ext.batch_norm_backward, **options)
            results = sheet(p, epsilon=epsilon, **absent, **layout_option, **mode)
            assert all_bits(results[:3]) == all_bits(want)
            assert all_bits(results[3:]) == all_bits([np.empty(0, np.float32)] * (len(results) - 3))


def test_onednn_backward_alone_uses_the_training_formula_with_gamma_one(p):
    lone = p.run(onednn_graph.batch_norm_training_backward, diff_gamma=False, diff_beta=False)
    ones = p.run(bn_ext.batch_norm_backward, gamma=None)
    assert (lone.diff_src == ones.diff_src).all()
    assert lone[1:] == (None, None)


@pytest.mark.parametrize("types", DTYPES)
@pytest.mark.parametrize(
    "problem", [("NXC", 3, 2), ("NCX", 3, 2, 5), ("NCX", 2, 2, 700), ("NCX", 5, 2, 700)]
)
@pytest.mark.parametrize("is_training", [True, False])
def test_zeros_have_the_sign_that_the_formula_gives(isa, types, problem, is_training):
    """Gamma is -0, src - mean is -0 - (-0), and diff_dst's sums cancel or not."""
    (data_format, *dims), (data, vector) = problem, map(dtype, types)
    src, diff_dst = np.full(dims, -0.0).astype(data), np.ones(dims).astype(data)
    diff_dst[0] = -1
    arguments = src, diff_dst, *(np.full(2, x).astype(vector) for x in (-0.0, 1, -0.0))
    options = {"epsilon": 0.0, "data_format": data_format, "is_training": is_training}
    results = bn_ext.batch_norm_backward(*arguments, **options)
    mean_of_sum = diff_dst.astype(float).mean() if is_training else 0.0
    want = -0.0 * (diff_dst.astype(float) - mean_of_sum)
    assert (np.signbit(results.diff_src) == np.signbit(want)).all()
    assert (results.diff_src == 0).all()
