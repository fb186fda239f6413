"""The operators of bn_ext.specs: their own type tables, attributes and names in errors.

test_specs_onednn.py and test_specs_tensorflow.py test forward results.
"""

import inspect
import re

import numpy as np
import pytest
import reference
from bounds import dst_error
from cases import EPSILON, Family, all_bits, bits
from needs import needs_long_double
from refusals import RAISED, check_passes, raising
from sheets import CARRIERS, SHEETS, Untouchable, WithArray

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

pytestmark = pytest.mark.quick

every_sheet = pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)
by_every_carrier = pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)


def only(some):
    """A mark that gives a test the sheets for which `some` is true."""
    found = {name: sheet for name, sheet in SHEETS.items() if some(sheet)}
    return pytest.mark.parametrize("sheet", found.values(), ids=found)


#: Sheets that normalize with given statistics.
INFERENCE = {name: sheet for name, sheet in SHEETS.items() if name.endswith("_inference")}
of_onednn, of_ngraph, of_tensorflow = (
    only(lambda sheet, module=module: sheet.of(module))
    for module in (onednn_graph, ngraph, tensorflow)
)

# ---- type tables, for every carrier of arrays -----------------------------------------


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
    (others,) = [types for module, types in OTHER_TYPES.items() if sheet.of(module)]
    for data, vector in [("float32", "float64"), *others]:
        wrong, got = (sheet.src, data) if data == "float64" else (sheet.vectors[0], vector)
        with pytest.raises(
            TypeError, match=f"^{wrong}: expected .*float.*, got {got}; pass np.asarray"
        ):
            sheet(sheet.problem(rng, data, vector), carry)


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
    refused = f"^{sheet.src}: .*got float64; pass np.asarray"
    if sheet.of(ngraph):
        assert all_bits(sheet(p, np.ndarray.tolist)) == all_bits(sheet(p))
    else:
        with pytest.raises(TypeError, match=refused):
            sheet(p, np.ndarray.tolist)


@every_sheet
def test_what_is_no_array(rng, sheet):
    """The error begins with the argument's name."""
    p = sheet.problem(rng)
    masked = WithArray(np.ma.masked_greater(p.src, 0))
    for name in sheet.roles:
        refused = [
            *[(thing, "expected an array, got ") for thing in ("abc", 1.0, object(), range(3))],
            ([[1.0], [2.0, 3.0]], "expected an array of numbers"),
            (np.array(["a", "b", "c", "d", "e"]), "expected .*float32.*, got <U1$"),
            (masked, "masked arrays are not accepted"),
            *([] if sheet.may_be_none(name) else [(None, "expected an array, got None")]),
        ]
        for thing, message in refused:
            with pytest.raises(TypeError, match=f"^{name}: ({message})"):
                sheet(p, **{name: thing})


@by_every_carrier
@pytest.mark.parametrize("dims", [(6, 5), (6, 4, 5), (2, 2, 2, 2, 2, 5)])
@only(lambda sheet: sheet.of(tensorflow) and sheet.operator.__name__ != "fused_batch_norm_ex")
def test_tensorflows_ranks(rng, sheet, dims, carry):
    p = Family(rng, dims, "NXC")
    message = re.escape(f"x: expected rank 4 or 5, got shape {dims}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        sheet(p, carry)


# ---- numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["epsilon", "momentum", "exponential_avg_factor"])
@every_sheet
def test_numbers_are_numbers(rng, sheet, number):
    if number not in sheet.parameters:
        return
    p = sheet.problem(rng)
    things = ["0.5", object(), [0.5], 1j, np.ones(2), np.array([0.5]), b"1"]
    for thing in things if sheet.of(tensorflow) else [*things, None]:
        with pytest.raises(TypeError, match=f"^{number}: expected a real number, got "):
            sheet(p, **{number: thing})
    things = [np.nan, np.inf, -np.inf, 10**400, -(10**400), 10**5000]
    for thing in [*things, -1e-3] if number == "epsilon" else things:
        with pytest.raises(ValueError, match=f"^{number}: expected a .*number.*, got ") as error:
            sheet(p, **{number: thing})
        assert len(str(error.value)) < 200


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


@pytest.mark.parametrize("number", [0, -1, 1e-60, 1e60])
@of_onednn
def test_onednns_positive_numbers(rng, sheet, number):
    message = "expected a number that is positive and finite as a float32, got"
    for name in {"epsilon", "momentum"} & sheet.parameters.keys():
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            sheet(sheet.problem(rng), **{name: number})


@every_sheet
def test_arguments_that_do_not_bind(rng, sheet):
    """Errors are as in Python: they name the operator and the argument."""
    name, p = sheet.operator.__name__, sheet.problem(rng)
    given = {**sheet.arguments(p), **sheet.fixed}
    for lacking in (n for n, a in sheet.parameters.items() if a.default is a.empty):
        arguments = {n: a for n, a in given.items() if n != lacking}
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing .* argument: '{lacking}'$"):
            sheet.call(arguments)
    hint = ", which is called data_format here: '.*" if "data_format" in sheet.parameters else ""
    with pytest.raises(
        TypeError, match=rf"^{name}\(\) got an unexpected .* argument 'axis'{hint}$"
    ):
        sheet(p, axis=1)
    first, *_ = given
    with pytest.raises(TypeError, match=rf"^{name}\(\) got multiple .* for argument '{first}'$"):
        sheet.operator(given[first], **given)
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes .* positional arguments but 20 "):
        sheet.operator(*[given[first]] * 20)


# ---- flags and words ------------------------------------------------------------------

#: Sheet, flags that are given together.
FLAGS = [
    ("onednn_backprop", ["gamma_delta"]),
    ("onednn_backprop", ["beta_delta"]),
    ("onednn_backward", ["diff_gamma", "diff_beta"]),
    ("tensorflow_training", ["is_training"]),
    ("tensorflow_ex", ["is_training"]),
    ("tensorflow_grad", ["is_training"]),
]


@pytest.mark.parametrize("value", [np.array([True, False]), "False", 2, 1.0, [], b""], ids=repr)
@pytest.mark.parametrize(("name", "flags"), FLAGS)
def test_flags_are_flags(rng, name, flags, value):
    sheet = SHEETS[name]
    for flag in flags:
        with pytest.raises(TypeError, match=rf"^{flag}: expected True or False, got "):
            sheet(sheet.problem(rng), **{flag: value})
        if not sheet.of(tensorflow):  # TensorFlow takes None as the default
            with pytest.raises(TypeError, match=rf"^{flag}: expected True or False, got None"):
                sheet(sheet.problem(rng), **{flag: None})


@pytest.mark.parametrize("kind", [bool, int, np.bool_, np.int64])
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(("name", "flags"), FLAGS)
def test_flags_of_every_kind(rng, name, flags, kind, value):
    sheet = SHEETS[name]
    p = sheet.problem(rng)
    got = sheet(p, **dict.fromkeys(flags, kind(value)))
    assert all_bits(got) == all_bits(sheet(p, **dict.fromkeys(flags, value)))


@pytest.mark.parametrize(
    "value", [["NHWC"], np.array(["NHWC"]), {}, 3, "NXC", b"NXC", "NHW", "NXC" * 1000], ids=repr
)
@of_tensorflow
def test_tensorflows_words(rng, sheet, value):
    words = {"data_format": "NHWC, .*", "activation_mode": "Identity, Relu"}
    for word in words.keys() & sheet.parameters.keys():
        with pytest.raises(ValueError, match=f"^{word}: expected one of {words[word]}, got ") as e:
            sheet(sheet.problem(rng), **{word: value})
        assert len(str(e.value)) < 200


@pytest.mark.parametrize(
    "value", ["NHWC", "src", "src; pass src", "it's src", ["src; diff_dst"]], ids=str
)
@of_onednn
def test_onednns_data_format(rng, sheet, value):
    """The error repeats the caller's text unchanged."""
    with pytest.raises(ValueError, match="^data_format") as error:
        sheet(sheet.problem(rng), data_format=value)
    assert str(error.value) == f"data_format: expected one of NXC, NCX, got {value!r}"


# ---- the operator's words in errors ---------------------------------------------------


@pytest.mark.parametrize("kind", RAISED)
@every_sheet
def test_errors_of_the_callers_own_pass(rng, sheet, kind):
    """An error that an argument's own code raises passes unchanged, whatever its words."""
    p, error = sheet.problem(rng), kind("my src has no epsilon, its gamma is not 'mean'")
    things = {name: raising(error, "__array__") for name in sheet.roles}
    numbers = [name for name, value in sheet.fixed.items() if isinstance(value, float)]
    things |= {name: raising(error, "__float__") for name in numbers}
    for name, thing in things.items():
        check_passes(error, lambda: sheet(p, **{name: thing}))  # noqa: B023


@every_sheet
def test_errors_use_the_operators_words(rng, sheet):
    p, own = sheet.problem(rng), sheet.parameters.keys()
    general = bn_ext.batch_norm_backward, bn_ext.batch_norm_training
    foreign = {name for each in general for name in inspect.signature(each).parameters} - own
    if sheet.of(tensorflow):
        foreign |= {"NXC", "NCX"}
    on_another_axis = np.ones(p.src.shape[1 if sheet.data_format == "NXC" else -1], np.float32)
    for changed in (
        dict.fromkeys(sheet.vectors, on_another_axis),
        *[{name: np.ones(7, np.float32)} for name in sheet.vectors],
        *[{name: np.ones((1, 5), np.float32)} for name in sheet.vectors],
        *[{name: np.ones(5, ">f4")} for name in sheet.vectors],
        *[{name: p.src[0, 0, 0]} for name in sheet.data],
        *[{name: p.src.astype(">f4")} for name in sheet.data],
        *[{name: p.src[:1]} for name in sheet.data * (len(sheet.data) > 1)],
        *[{name: p.src.astype(np.float16)} for name in sheet.data * (len(sheet.data) > 1)],
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            sheet(p, **changed)
        message = str(error.value)
        print(message)
        assert message.partition(":")[0] in own
        if len(changed) == 1 and not changed.keys() & {*sheet.data}:
            assert message.partition(":")[0] in changed
        assert not foreign & set(re.findall(r"\w+", message))


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("onednn_backprop", (2, 5, 3), r'on axis 1, pass data_format="NCX"$'),
        ("tensorflow_grad", (2, 5, 3, 4), 'on axis 1, pass data_format="NCHW"$'),
        ("tensorflow_grad", (2, 5, 3, 4, 2), 'on axis 1, pass data_format="NCDHW"$'),
        (
            "ngraph_inference",
            (2, 3, 5),
            r"np.moveaxis\(np.asarray\(input\), -1, 1\), which copies noth",
        ),
        ("ngraph_backprop", (2, 3, 5), r"\(input\), -1, 1\), and normalized_delta likewise, "),
    ],
)
def test_errors_say_where_the_channels_may_be(rng, name, dims, message):
    """Errors use the operator's own words, for the rank of the data."""
    sheet = SHEETS[name]
    p = Family(rng, dims, "NCX" if sheet.data_format == "NXC" else "NXC")
    with pytest.raises(ValueError, match=message):
        sheet(p)


@every_sheet
def test_nothing_is_written_on_an_error(rng, sheet):
    """Each array in turn has a shape that is refused."""
    for name in (*sheet.data, *sheet.vectors):
        arguments = {**sheet.arguments(sheet.problem(rng)), name: np.ones(7, np.float32)}
        before = {n: bits(a) for n, a in arguments.items()}
        with pytest.raises((TypeError, ValueError)):
            sheet.operator(**arguments, **sheet.fixed)
        assert {n: bits(a) for n, a in arguments.items()} == before


# ---- results --------------------------------------------------------------------------


@needs_long_double
@pytest.mark.parametrize("sheet", INFERENCE.values(), ids=INFERENCE)
def test_inference(rng, sheet):
    """Results in every dtype of the specification are within the general function's bounds."""
    for data, vectors in sheet.types.items():
        for vector in vectors:
            p = sheet.problem(rng, data, vector)
            statistics = p.mean, p.variance
            want = reference.batch_norm_inference(
                p.src, *statistics, p.gamma, p.beta,
                epsilon=EPSILON, axis=p.axis, wide=np.longdouble,
            )  # fmt: skip
            dst, *others = sheet(p)
            assert dst.dtype == p.src.dtype
            assert dst_error(dst, want, data, p.axis, from_batch=False).holds()
            assert {a.dtype for a in others if a.size} <= {p.mean.dtype}


@every_sheet
def test_results_are_new_arrays(rng, sheet):
    arguments = sheet.arguments(sheet.problem(rng))
    before = {n: bits(a) for n, a in arguments.items()}
    found = sheet.call({**arguments, **sheet.fixed})
    for i, a in enumerate(found):
        assert type(a) is np.ndarray
        assert a.flags.writeable
        others = *found[:i], *found[i + 1 :], *arguments.values()
        assert not any(np.shares_memory(a, b) for b in others), i
    assert {n for n, a in arguments.items() if bits(a) != before[n]} == set()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0)])
@every_sheet
def test_results_follow_the_datas_memory_order(rng, sheet, order):
    if sheet.of(tensorflow) and len(order) != 4:
        return
    p = Family(rng, (2, 4, 6, 8)[: len(order)], sheet.data_format)
    src = np.ascontiguousarray(p.src.transpose(order)).transpose(np.argsort(order))
    for a in sheet(p, **{sheet.src: src}):
        if a.shape == src.shape:
            assert a.strides == src.strides


#: Sheets whose results all depend on the batch's own statistics.
OF_THE_BATCH = ["onednn_training", "ngraph_training", "tensorflow_training", "tensorflow_ex"]


@pytest.mark.parametrize("name", SHEETS)
def test_a_nan_stays_in_its_channel(rng, name):
    sheet = SHEETS[name]
    p = sheet.problem(rng)
    clean, arguments = sheet.arguments(p), sheet.arguments(p)
    first = (1, 1, 1, 2) if sheet.data_format == "NXC" else (1, 2, 1, 1)
    arguments[sheet.src][first] = np.nan
    want, found = (sheet.call({**given, **sheet.fixed}) for given in (clean, arguments))
    assert any(np.isnan(a).any() for a in found)
    for a, b in zip(found, want, strict=True):
        axis = p.axis if a.ndim > 1 else 0
        if a.size:
            assert name not in OF_THE_BATCH or np.isnan(np.take(a, 2, axis)).all()
            assert bits(np.delete(a, 2, axis)) == bits(np.delete(b, 2, axis))


def test_what_the_operators_are_for(rng):
    """All operators that normalize training data give the same bits, whatever their names."""
    p = Family(rng, (2, 5, 3, 4), "NCX")
    found = bn_ext.batch_norm_training(p.src, p.gamma, p.beta, epsilon=EPSILON, data_format="NCX")
    want = found._replace(mean=np.float32(found.mean), variance=np.float32(found.variance))
    assert all_bits(SHEETS["ngraph_training"](p)) == all_bits(want)
    dst, _, _, *statistics = SHEETS["onednn_training"](p, data_format="NCX")
    assert all_bits([dst, *statistics]) == all_bits(want)
    for name in ("tensorflow_training", "tensorflow_ex"):
        assert bits(SHEETS[name](p, data_format="NCHW")[0]) == bits(want.dst)


# ---- one specification each -----------------------------------------------------------


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


@of_ngraph
def test_ngraph_without_channels(rng, sheet):
    """A problem without channels, which nGraph itself refuses, is accepted."""
    found = sheet(Family(rng, (2, 0, 3, 4), "NCX"))
    assert [a.shape for a in found] == [(2, 0, 3, 4), (0,), (0,)][: len(found)]


def test_ngraph_without_elements(rng):
    dst, *statistics = SHEETS["ngraph_training"](Family(rng, (0, 5, 3), "NCX"))
    assert dst.shape == (0, 5, 3)
    assert np.isnan(statistics).all()


def test_tensorflows_third_reserve_space_has_a_type_alone(rng):
    sheet = SHEETS["tensorflow_grad"]
    p = sheet.problem(rng)
    with pytest.raises(
        TypeError, match="^reserve_space_3: expected float32, got float64; pass np.asarray"
    ):
        sheet(p, reserve_space_3=np.zeros(3))
    for thing in (None, np.zeros(3, np.float32), np.zeros((2, 2), np.float32)):
        assert all_bits(sheet(p, reserve_space_3=thing)) == all_bits(sheet(p))


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("onednn_training", {"beta": None}, "gamma, beta: .* both .*, got gamma without beta"),
        ("onednn_training", {"gamma": None}, "gamma, beta: .* both .*, got beta without gamma"),
        ("onednn_backward", {"diff_gamma": False}, "diff_gamma, diff_beta: .* both or neither.*"),
        ("onednn_backward", {"diff_beta": False}, "diff_gamma, diff_beta: .* both or neither.*"),
        ("ngraph_backprop", {"beta": np.ones(3, np.float32)},
         r"beta: expected shape \(5,\), like gamma, got \(3,\)"),
        ("ngraph_backprop", {"beta": np.ones(5)},
         r"beta: expected float32, got float64; pass np.asarray\(beta, np.float32\)"),
    ],
)  # fmt: skip
def test_refused(rng, name, changed, message):
    sheet = SHEETS[name]
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        sheet(sheet.problem(rng), **changed)
