"""The operators of bn_ext.specs: their own type tables, attributes and names in errors.

test_specs_tensorflow.py tests that specification's forward results.
"""

import inspect
import re
from types import FunctionType

import numpy as np
import pytest
from cases import EPSILON, FORMATS, Family, all_bits, bits
from refusals import check_refused
from sheets import CARRIERS, SHEETS, Untouchable, WithArray, forward_of

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

pytestmark = [pytest.mark.fast, pytest.mark.results, pytest.mark.any_level]

every_sheet = pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)
by_every_carrier = pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)


def only(has):
    """A mark that gives a test the sheets for which `some` is true."""
    sheets = {name: sheet for name, sheet in SHEETS.items() if has(sheet)}
    return pytest.mark.parametrize("sheet", sheets.values(), ids=sheets)


#: Sheets that normalize with given statistics.
INFERENCE = {name: sheet for name, sheet in SHEETS.items() if name.endswith("_inference")}
SWAPPED = np.dtype(np.float32).newbyteorder()
MASKED = WithArray(np.ma.masked_equal([1.0, 2.0], 2))


@by_every_carrier
@every_sheet
def test_accepted_by_every_carrier(rng, sheet, carry):
    p = sheet.problem(rng)
    assert all_bits(sheet(p, carry)) == all_bits(sheet(p))


@every_sheet
def test_an_object_is_asked_for_its_array_once(rng, sheet):
    arguments = sheet.arguments(sheet.problem(rng), WithArray)
    sheet.operator(**arguments, **sheet.fixed)
    asked = {n: a.asked for n, a in arguments.items()}
    assert asked == dict.fromkeys(asked, 1)


#: Data and vector dtypes that the general function takes and a spec does not.
OTHER_TYPES = {
    onednn_graph: [("float64", "float64"), ("float16", "float16")],
    tensorflow: [("float64", "float64"), ("float16", "float16")],
    ngraph: [("float16", "float32")],
}


@by_every_carrier
@every_sheet
def test_other_types_are_refused(rng, sheet, carry):
    (others,) = [types for module, types in OTHER_TYPES.items() if sheet.is_of(module)]
    for data, vector in [("float32", "float64"), *others]:
        wrong, got = (sheet.src, data) if data == "float64" else (sheet.vectors[0], vector)
        with pytest.raises(
            TypeError, match=f"^{wrong}: expected .*float.*, got {got}; pass np.asarray"
        ):
            sheet(sheet.problem(rng, data, vector), carry)


NUMBERS = "epsilon momentum exponential_avg_factor"
FLAGS = "gamma_delta beta_delta diff_gamma diff_beta is_training"
WORDS = [["NHWC"], np.array(["NHWC"]), {}, 3, "NXC", b"NXC", "NHW", "NXC" * 1000]
#: (arguments, error, what it expects, values that are refused); TensorFlow takes None as default
OPTIONS = [
    (
        NUMBERS,
        TypeError,
        "a real number",
        ["0.5", object(), [0.5], 1j, np.ones(2), np.array([0.5]), b"1", None],
    ),
    (NUMBERS, ValueError, "a .*number.*", [np.nan, np.inf, -np.inf, 10**400, -(10**400), 10**5000]),
    ("epsilon", ValueError, "a .*number.*", [-1e-3]),
    (FLAGS, TypeError, "True or False", [np.array([True, False]), "False", 2, 1.0, [], b"", None]),
]
POSITIVE = "a number that is positive and finite as a float32"
OPTIONS_OF = {
    onednn_graph: [
        ("epsilon momentum", ValueError, POSITIVE, [0, -1, 1e-60, 1e60]),
        ("data_format", ValueError, "one of NXC, NCX", ["NHWC", "src", "it's src", ["src"]]),
    ],
    tensorflow: [("data_format", ValueError, "one of NHWC, .*", WORDS)],
    ngraph: [],
}


def rows_of(sheet):
    for name in sheet.roles:
        for thing in ("abc", 1.0, object(), range(3), *[None] * (not sheet.may_be_none(name))):
            yield TypeError, f"^{name}: expected an array, got ", {name: thing}
        yield TypeError, f"^{name}: expected an array of numbers", {name: [[1.0], [2.0, 3.0]]}
        yield TypeError, f"^{name}: expected .*float32.*, got <U1$", {name: np.array(["a"] * 5)}
        yield TypeError, f"^{name}: masked arrays are not accepted", {name: MASKED}
    for name in sheet.vectors:
        yield ValueError, f"^{name}: expected shape", {name: np.ones(7, np.float32)}
        yield ValueError, f"^{name}: expected shape", {name: np.ones((1, 5), np.float32)}
        yield TypeError, f"^{name}: expected native byte order", {name: np.ones(5, SWAPPED)}
    for name in sheet.data:
        yield ValueError, r"^\w+: expected", {name: lambda p: p.src[0, 0, 0]}
        yield TypeError, f"^{name}: expected native", {name: lambda p: p.src.astype(SWAPPED)}
        if len(sheet.data) > 1:
            yield ValueError, r"^\w+: expected shape", {name: lambda p: p.src[:1]}
            yield TypeError, r"^\w+: expected .*16", {name: lambda p: p.src.astype(np.float16)}
    axis = 1 if sheet.data_format == "NXC" else -1
    along = dict.fromkeys(sheet.vectors, lambda p: np.ones(p.src.shape[axis], np.float32))
    yield ValueError, ".*, one value for each channel on .* of ", along
    (own,) = (options for module, options in OPTIONS_OF.items() if sheet.is_of(module))
    for names, kind, expected, values in OPTIONS + own:
        for name in (each for each in names.split() if each in sheet.parameters):
            for value in values:
                if value is not None or not sheet.is_of(tensorflow):
                    yield kind, f"^{name}: expected {expected}.*, got ", {name: value}


BOTH = "both or neither.*"
#: What single operators refuse: (sheet, error, message, what is changed).
SINGLE = [
    ("onednn_training", ValueError, "gamma, beta: .* both .*, got gamma without beta",
     {"beta": None}),
    ("onednn_training", ValueError, "gamma, beta: .* both .*, got beta without gamma",
     {"gamma": None}),
    *(("onednn_backward", ValueError, f"diff_gamma, diff_beta: .* {BOTH}", {name: False})
      for name in ("diff_gamma", "diff_beta")),
    ("ngraph_backprop", ValueError, r"beta: expected shape \(5,\), like gamma, got \(3,\)",
     {"beta": np.ones(3, np.float32)}),
    ("ngraph_backprop", TypeError,
     r"beta: expected float32, got float64; pass np.asarray\(beta, np.float32\)",
     {"beta": np.ones(5)}),
    ("tensorflow_grad", TypeError,
     r"reserve_space_3: expected float32, got float64; pass np.asarray.*",
     {"reserve_space_3": np.zeros(3)}),
]  # fmt: skip
REFUSED = [
    *((name, *row) for name, sheet in SHEETS.items() for row in rows_of(sheet)),
    *((name, kind, f"^{message}$", changed) for name, kind, message, changed in SINGLE),
]
GENERAL = [bn_ext.batch_norm_backward, bn_ext.batch_norm_training]
FOREIGN = {name for each in GENERAL for name in inspect.signature(each).parameters}


@pytest.mark.parametrize(
    ("name", "kind", "message", "changed"),
    REFUSED,
    ids=[f"{name}-{'-'.join(changed)}-{m[:30]}" for name, _, m, changed in REFUSED],
)
def test_refused(rng, name, kind, message, changed):
    sheet = SHEETS[name]
    p = sheet.problem(rng)
    changed = {n: a(p) if type(a) is FunctionType else a for n, a in changed.items()}
    text = check_refused(
        kind, message, sheet.operator, {**sheet.arguments(p), **sheet.fixed, **changed}
    )
    foreign = FOREIGN - sheet.parameters.keys()
    if sheet.roles.keys() & changed.keys():
        assert not foreign & set(re.findall(r"\w+", text))


@every_sheet
def test_vectors_of_two_types_are_refused(rng, sheet):
    """Each vector in turn has the data's 16-bit dtype; all others are float32."""
    p = sheet.problem(rng, "bfloat16", "float32")
    for name in sheet.roles.keys() - sheet.data:
        short = getattr(p, sheet.roles[name]).astype(p.src.dtype)
        with pytest.raises(TypeError, match=r"^\w+: expected .*, got (float32|bfloat16)$"):
            sheet(p, **{name: short})


@every_sheet
def test_lists_are_float64_or_refused(rng, sheet):
    p = sheet.problem(rng, "float64")
    if sheet.is_of(ngraph):
        assert all_bits(sheet(p, np.ndarray.tolist)) == all_bits(sheet(p))
    else:
        with pytest.raises(TypeError, match=f"^{sheet.src}: .*got float64; pass np.asarray"):
            sheet(p, np.ndarray.tolist)


@pytest.mark.parametrize("dims", [(6, 5), (6, 4, 5), (2, 2, 2, 2, 2, 5)])
@only(lambda sheet: sheet.is_of(tensorflow))
def test_tensorflows_ranks(rng, sheet, dims):
    message = re.escape(f"x: expected rank 4 or 5, got shape {dims}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        sheet(Family(rng, dims, "NXC"))


def test_ngraphs_beta_is_refused_before_anything_is_computed():
    """No machine has memory for these results. What else is wrong is said first."""
    huge, v = np.broadcast_to(np.zeros(3, np.float32), (2**45, 3)), np.ones(3, np.float32)
    beta = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"^beta: expected shape \(3,\), like gamma, got \(2,\)$"):
        ngraph.batch_norm_training_backprop(huge, v, beta, v, v, huge, epsilon=1)
    with pytest.raises(ValueError, match=r"^gamma: expected shape \(3,\)"):
        ngraph.batch_norm_training_backprop(huge, beta, v, v, v, huge, epsilon=1)


@every_sheet
def test_epsilon_is_asked_for_its_value_once(rng, sheet):
    class Epsilon:
        asked = 0

        def __float__(self):
            self.asked += 1
            return EPSILON

    p, epsilon = sheet.problem(rng), Epsilon()
    assert all_bits(sheet(p, epsilon=epsilon)) == all_bits(sheet(p))
    assert epsilon.asked == 1


@every_sheet
def test_arguments_that_do_not_bind(rng, sheet):
    """Errors are as in Python: they name the operator and the argument."""
    name, p = sheet.operator.__name__, sheet.problem(rng)
    bound = {**sheet.arguments(p), **sheet.fixed}
    for lacking in (n for n, a in sheet.parameters.items() if a.default is a.empty):
        arguments = {n: a for n, a in bound.items() if n != lacking}
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing .* argument: '{lacking}'$"):
            sheet.call(arguments)
    first, *_ = bound
    with pytest.raises(TypeError, match=rf"^{name}\(\) got multiple .* for argument '{first}'$"):
        sheet.operator(bound[first], **bound)
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes .* positional arguments but 20 "):
        sheet.operator(*[bound[first]] * 20)


@pytest.mark.parametrize("kind", [int, np.bool_, np.int64])
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("onednn_backprop", ["gamma_delta"]),
        ("onednn_backprop", ["beta_delta"]),
        ("onednn_backward", ["diff_gamma", "diff_beta"]),
        ("tensorflow_training", ["is_training"]),
        ("tensorflow_grad", ["is_training"]),
    ],
)
def test_flags_of_every_kind(rng, name, flags, kind, value):
    sheet = SHEETS[name]
    p = sheet.problem(rng)
    got = sheet(p, **dict.fromkeys(flags, kind(value)))
    assert all_bits(got) == all_bits(sheet(p, **dict.fromkeys(flags, value)))


@pytest.mark.parametrize("sheet", INFERENCE.values(), ids=INFERENCE)
def test_inference_is_the_general_functions(rng, sheet):
    for data, vectors in sheet.types.items():
        for vector in vectors:
            p = sheet.problem(rng, data, vector)
            dst, *others = sheet(p)
            assert all_bits([dst]) == all_bits(forward_of(p, is_training=False))
            assert {a.dtype for a in others if a.size} <= {p.mean.dtype}


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1, 1.75])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("dims", [(6, 5), (4, 3, 7), (1, 5), (2, 2, 3, 2, 4, 3)])
def test_onednns_training_is_the_general_functions(rng, dims, data_format, momentum):
    """Its momentum, by default 0.5, is the weight of the old statistics; variances are biased."""
    sheet = SHEETS["onednn_training"]
    for data, vectors in sheet.types.items():
        for vector in vectors:
            p = Family(rng, dims, data_format, data, vector)
            want = all_bits(forward_of(p, factor=1 - momentum))
            options = {"data_format": data_format, "momentum": momentum}
            assert all_bits(sheet(p, **options)) == want
            if momentum == 0.5:
                assert all_bits(sheet(p, data_format=data_format)) == want
            absent = all_bits(sheet(p, gamma=None, beta=None, **options))
            p.gamma, p.beta = np.ones_like(p.gamma), np.zeros_like(p.beta)
            assert absent == all_bits(sheet(p, **options))


@every_sheet
def test_results_are_new_arrays(rng, sheet):
    arguments = sheet.arguments(sheet.problem(rng))
    before = {n: bits(a) for n, a in arguments.items()}
    results = sheet.call({**arguments, **sheet.fixed})
    for i, a in enumerate(results):
        assert type(a) is np.ndarray
        assert a.flags.writeable
        others = *results[:i], *results[i + 1 :], *arguments.values()
        assert not any(np.shares_memory(a, b) for b in others), i
    assert {n for n, a in arguments.items() if bits(a) != before[n]} == set()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0)])
@every_sheet
def test_results_follow_the_datas_memory_order(rng, sheet, order):
    if sheet.is_of(tensorflow) and len(order) != 4:
        return
    p = Family(rng, (2, 4, 6, 8)[: len(order)], sheet.data_format)
    src = np.ascontiguousarray(p.src.transpose(order)).transpose(np.argsort(order))
    for a in sheet(p, **{sheet.src: src}):
        if a.shape == src.shape:
            assert a.strides == src.strides


def test_ngraphs_training_is_the_general_functions(rng):
    p = Family(rng, (2, 5, 3, 4), "NCX")
    dst, _, _, *statistics = forward_of(p)
    assert all_bits(SHEETS["ngraph_training"](p)) == all_bits([dst, *statistics])


IGNORED = {
    "untouchable": Untouchable,
    "string": lambda: "abc",
    "float64": lambda: np.ones(5),
    "shape": lambda: np.ones((2, 2), np.float32),
    "masked": lambda: np.ma.ones(5),
}


@pytest.mark.parametrize("make", IGNORED.values(), ids=IGNORED)
def test_onednns_ignored_gamma_is_not_looked_at(rng, make):
    sheet = SHEETS["onednn_backward"]
    p = sheet.problem(rng)
    gamma, unwanted = make(), {"diff_gamma": False, "diff_beta": False}
    assert all_bits(sheet(p, gamma=gamma, **unwanted)) == all_bits(sheet(p, gamma=None, **unwanted))
    with pytest.raises((AssertionError, TypeError, ValueError), match="^gamma was read|^gamma: "):
        sheet(p, gamma=gamma)


@only(lambda sheet: sheet.is_of(ngraph))
def test_ngraph_without_channels(rng, sheet):
    """A problem without channels, which nGraph itself refuses, is accepted."""
    results = sheet(Family(rng, (2, 0, 3, 4), "NCX"))
    assert [a.shape for a in results] == [(2, 0, 3, 4), (0,), (0,)][: len(results)]


#: {sheet: its results without elements, behind dst: a number, or the argument that stays}
NO_ELEMENTS = {
    "ngraph_training": [np.nan, np.nan],
    "onednn_training": ["mean", "variance", np.nan, np.nan],
    "tensorflow_training": [np.nan, np.nan, 0, 0],
    "tensorflow_inference": [np.nan, np.nan, 0, 0],
}


@pytest.mark.parametrize("name", NO_ELEMENTS)
@pytest.mark.parametrize("sizes", [(0, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_operators_without_elements(rng, name, sizes):
    sheet = SHEETS[name]
    dims = (*sizes, 5) if sheet.data_format == "NXC" else (sizes[0], 5, *sizes[1:])
    p = Family(rng, dims, sheet.data_format)
    dst, *statistics = sheet(p)
    assert dst.shape == dims
    for array, want in zip(statistics, NO_ELEMENTS[name], strict=False):
        want = getattr(p, want) if isinstance(want, str) else np.full(5, want, np.float32)
        assert array.dtype == want.dtype
        np.testing.assert_array_equal(array, want)


def test_tensorflows_third_reserve_space_has_a_type_alone(rng):
    sheet = SHEETS["tensorflow_grad"]
    p = sheet.problem(rng)
    for thing in (None, np.zeros(3, np.float32), np.zeros((2, 2), np.float32)):
        assert all_bits(sheet(p, reserve_space_3=thing)) == all_bits(sheet(p))
