"""The forward operators of bn_ext.specs and all of torch's: types, attributes, names in errors.

What each computes: test_specs_onednn.py, test_specs_tensorflow.py, test_specs_pytorch.py.
"""

import inspect
import re

import numpy as np
import pytest
from cases import EPSILON, Family, all_bits, bits
from refusals import RAISED
from sheets import CARRIERS, Sheet, WithArray

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, pytorch, tensorflow

pytestmark = pytest.mark.quick

SCALED = {"weight": "gamma", "bias": "beta"}
RUNNING = {"running_mean": "mean", "running_var": "variance"}
SHEETS = {
    "onednn_training": Sheet(
        onednn_graph.batch_norm_forward_training, "NXC",
        src="src", mean="mean", variance="variance", gamma="gamma", beta="beta",
    ),
    "onednn_inference": Sheet(
        onednn_graph.batch_norm_inference, "NXC",
        src="src", gamma="gamma", beta="beta", mean="mean", variance="variance",
    ),
    "ngraph_training": Sheet(
        ngraph.batch_norm_training, "NCX", input="src", gamma="gamma", beta="beta",
    ),
    "ngraph_inference": Sheet(
        ngraph.batch_norm_inference, "NCX",
        input="src", gamma="gamma", beta="beta", mean="mean", variance="variance",
    ),
    **{
        f"tensorflow_{name}": Sheet(
            operator, "NXC", options, x="src", scale="gamma", offset="beta", mean="mean",
            variance="variance",
        )
        for name, operator, options in (
            ("training", tensorflow.fused_batch_norm_v3, {"exponential_avg_factor": 0.3}),
            ("inference", tensorflow.fused_batch_norm_v3, {"is_training": False}),
            ("ex", tensorflow.fused_batch_norm_ex, {"exponential_avg_factor": 0.3}),
        )
    },
    "native_training": Sheet(
        pytorch.native_batch_norm, "NCX", {"training": True, "momentum": 0.3}, "eps",
        updated=RUNNING, input="src", **SCALED, **RUNNING,
    ),
    "native_inference": Sheet(
        pytorch.native_batch_norm, "NCX", {"training": False, "momentum": 0.3}, "eps",
        input="src", **SCALED, **RUNNING,
    ),
    "native_backward": Sheet(
        pytorch.native_batch_norm_backward, "NCX",
        {"running_mean": None, "running_var": None, "train": True, "output_mask": [True] * 3},
        "eps", grad_out="diff_dst", input="src", weight="gamma", save_mean="mean",
        save_invstd="variance",
    ),
    "native_frozen": Sheet(
        pytorch.native_batch_norm_backward, "NCX",
        {"save_mean": None, "save_invstd": None, "train": False, "output_mask": [True] * 3},
        "eps", grad_out="diff_dst", input="src", weight="gamma", **RUNNING,
    ),
    "update_stats": Sheet(
        pytorch.batch_norm_update_stats, "NCX", {"momentum": 0.3}, None, updated=RUNNING,
        input="src", **RUNNING,
    ),
}  # fmt: skip
every_sheet = pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)
by_every_carrier = pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
#: Of torch's, what is updated in place.
UPDATED = [sheet for sheet in SHEETS.values() if sheet.updated]


def found_by(sheet, *args, **changed):
    """A tuple of what comes back."""
    found = sheet(*args, **changed)
    return found if isinstance(found, tuple) else (found,)


def belongs(sheet, module):
    return getattr(module, sheet.operator.__name__, None) is sheet.operator


def is_optional(sheet, name):
    """May this argument be None?"""
    return "None" in str(inspect.signature(sheet.operator).parameters[name].annotation)


@by_every_carrier
@every_sheet
def test_accepted_by_every_carrier(rng, sheet, carry):
    p = sheet.problem(rng)
    assert all_bits(found_by(sheet, p, carry)) == all_bits(found_by(sheet, p))


@every_sheet
def test_an_object_is_asked_for_its_array_once(rng, sheet):
    roles = [name for name in sheet.roles if name not in sheet.updated]
    assert sheet.asked(sheet.problem(rng)) == dict.fromkeys(roles, 1)


@pytest.mark.parametrize("sheet", UPDATED, ids=lambda sheet: sheet.operator.__name__)
@pytest.mark.parametrize("name", RUNNING)
def test_a_copy_would_not_be_updated(rng, sheet, name):
    p = sheet.problem(rng)
    thing = WithArray(np.zeros(5, np.float32))
    with pytest.raises(TypeError, match=f"^{name}: .* updated in place, got a WithArray$"):
        sheet(p, **{name: thing})


@pytest.mark.parametrize("sheet", UPDATED, ids=lambda sheet: sheet.operator.__name__)
@pytest.mark.parametrize("name", RUNNING)
def test_an_update_changes_nothing_else(rng, sheet, name):
    p = sheet.problem(rng)
    given = sheet.arguments(p)
    for other, array in given.items():
        if other not in RUNNING:
            before = all_bits(given.values())
            same = array[0, :, 0, 0] if array.ndim > 1 else array
            with pytest.raises(ValueError, match=f"^{name}: shares memory with {other}$"):
                sheet.operator(**{**given, **sheet.fixed, name: same})
            assert all_bits(given.values()) == before
    one = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (5,), (0,))
    with pytest.raises(
        ValueError, match=f"^{name}: (overlaps itself in memory|expected a writable)"
    ):
        sheet.operator(**{**given, **sheet.fixed, name: one})


@every_sheet
def test_what_is_no_array(rng, sheet):
    sheet.check_what_is_no_array(sheet.problem(rng), lambda name: is_optional(sheet, name))


@every_sheet
def test_lists_are_float64_or_refused(rng, sheet):
    p = sheet.problem(rng, "float64")
    if sheet in UPDATED:
        with pytest.raises(TypeError, match="^running_mean: .* updated in place, got a list$"):
            sheet(p, np.ndarray.tolist)
    elif belongs(sheet, ngraph) or belongs(sheet, pytorch):
        assert all_bits(found_by(sheet, p, np.ndarray.tolist)) == all_bits(found_by(sheet, p))
    else:
        with pytest.raises(TypeError, match="^(src|x): .*got float64$"):
            sheet(p, np.ndarray.tolist)


#: What the general function takes and a spec does not: data, vectors, the first wrong argument.
OTHER_TYPES = [
    ("onednn_training", "float64", "float64", "src"),
    ("onednn_training", "float16", "float16", "mean"),
    ("onednn_inference", "float64", "float64", "src"),
    ("onednn_inference", "float16", "float16", "gamma"),
    ("ngraph_training", "float16", "float32", "gamma"),
    ("ngraph_inference", "float16", "float32", "gamma"),
    *[
        (f"tensorflow_{name}", *types)
        for name in ("training", "inference", "ex")
        for types in (("float64", "float64", "x"), ("float16", "float16", "scale"))
    ],
]


@by_every_carrier
@pytest.mark.parametrize(("name", "data", "vector", "wrong"), OTHER_TYPES)
def test_other_types_are_refused(rng, name, data, vector, wrong, carry):
    p = SHEETS[name].problem(rng, data, vector)
    got = data if wrong in ("src", "x") else vector
    with pytest.raises(TypeError, match=f"^{wrong}: expected .*float.*, got {got}$"):
        SHEETS[name](p, carry)


@every_sheet
def test_vectors_of_two_types_are_refused(rng, sheet):
    """Each vector in turn in the data's 16 bits, all others float32."""
    p = sheet.problem(rng, "bfloat16", "float32")
    names = [n for n, role in sheet.roles.items() if role not in ("src", "diff_dst")]
    for name in names:
        short = getattr(p, sheet.roles[name]).astype(p.src.dtype)
        with pytest.raises(TypeError, match=r"^\w+: expected .*, got (float32|bfloat16)$"):
            sheet(p, **{name: short})


# ---- numbers and flags ----------------------------------------------------------------


NUMBERS = [
    ("onednn_training", "momentum"),
    ("tensorflow_training", "exponential_avg_factor"),
    ("tensorflow_inference", "exponential_avg_factor"),
    ("tensorflow_ex", "exponential_avg_factor"),
    ("native_training", "momentum"),
    ("native_inference", "momentum"),
    ("update_stats", "momentum"),
]


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_numbers_are_numbers(rng, name, number):
    sheet = SHEETS[name]
    p = sheet.problem(rng)
    for thing in ("0.5", object(), [0.5], 1j, np.ones(2), np.array([0.5]), b"1"):
        with pytest.raises(TypeError, match=f"^{number}: expected a real number, got "):
            sheet(p, **{number: thing})
    for thing in (np.nan, np.inf, -np.inf, 10**400, 10**5000):
        with pytest.raises(ValueError, match=f"^{number}: expected a .*number.*, got ") as error:
            sheet(p, **{number: thing})
        assert len(str(error.value)) < 200


def epsilon_of(sheet):
    return next((name for name in ("epsilon", "eps") if name in sheet.fixed), None)


@every_sheet
def test_epsilon(rng, sheet):
    name, p = epsilon_of(sheet), sheet.problem(rng)
    if name is None:
        return
    for thing in ("1e-3", [1.0], *[None] * (not belongs(sheet, tensorflow))):
        with pytest.raises(TypeError, match=f"^{name}: expected a real number, got "):
            sheet(p, **{name: thing})
    for thing in (-1e-3, np.nan, np.inf, 10**400, -(10**400), 10**5000):
        with pytest.raises(ValueError, match=f"^{name}: expected a .*number.*, got ") as error:
            sheet(p, **{name: thing})
        assert len(str(error.value)) < 200


@every_sheet
def test_epsilon_is_asked_for_its_value_once(rng, sheet):
    class Epsilon:
        asked = 0

        def __float__(self):
            self.asked += 1
            return EPSILON

    name, p = epsilon_of(sheet), sheet.problem(rng)
    if name is not None:
        epsilon = Epsilon()
        found = found_by(sheet, p, **{name: epsilon})
        assert all_bits(found) == all_bits(found_by(sheet, p))
        assert epsilon.asked == 1


@pytest.mark.parametrize("epsilon", [0, 1e-60, 1e60])
def test_onednns_positive_numbers(rng, epsilon):
    message = "expected a number that is positive and finite as a float32, got"
    for name in ("onednn_training", "onednn_inference"):
        with pytest.raises(ValueError, match=f"^epsilon: {message}"):
            SHEETS[name](SHEETS[name].problem(rng), epsilon=epsilon)
    with pytest.raises(ValueError, match=f"^momentum: {message}"):
        SHEETS["onednn_training"](SHEETS["onednn_training"].problem(rng), momentum=epsilon)


FLAGS = [
    ("tensorflow_training", "is_training"),
    ("tensorflow_ex", "is_training"),
    ("native_training", "training"),
    ("native_backward", "train"),
]


@pytest.mark.parametrize("value", [np.array([True, False]), "False", 2, 1.0, []], ids=repr)
@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_flags_are_flags(rng, name, flag, value):
    with pytest.raises(TypeError, match=rf"^{flag}: expected True or False, got "):
        SHEETS[name](SHEETS[name].problem(rng), **{flag: value})


@pytest.mark.parametrize(("name", "flag"), [f for f in FLAGS if "tensorflow" not in f[0]])
def test_none_is_no_flag(rng, name, flag):
    """To TensorFlow it is the default."""
    with pytest.raises(TypeError, match=rf"^{flag}: expected True or False, got None"):
        SHEETS[name](SHEETS[name].problem(rng), **{flag: None})


@pytest.mark.parametrize("value", [["NHWC"], np.array(["NHWC"]), {}, 3, "NXC" * 1000], ids=type)
@pytest.mark.parametrize("name", ["tensorflow_training", "tensorflow_ex"])
def test_tensorflows_words(rng, name, value):
    sheet = SHEETS[name]
    words = {"data_format": "NHWC, .*"}
    if name == "tensorflow_ex":
        words = {"data_format": "NHWC, NCHW", "activation_mode": "Identity, Relu"}
    for word, expected in words.items():
        with pytest.raises(ValueError, match=f"^{word}: expected one of {expected}, got ") as error:
            sheet(sheet.problem(rng), **{word: value})
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("name", ["onednn_training", "onednn_inference"])
def test_onednns_data_format(rng, name):
    with pytest.raises(ValueError, match="^data_format: expected 'NXC' or 'NCX', got 'NHWC'"):
        SHEETS[name](SHEETS[name].problem(rng), data_format="NHWC")


# ---- words ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RAISED)
@every_sheet
def test_errors_of_the_callers_own_pass(rng, sheet, kind):
    sheet.check_errors_of_the_callers(sheet.problem(rng), kind)


@every_sheet
def test_errors_use_the_operators_words(rng, sheet):
    p = sheet.problem(rng)
    own = inspect.signature(sheet.operator).parameters.keys()
    foreign = {"src", "diff_dst", "gamma", "beta", "running_variance", "variance", "epsilon"} - own
    if belongs(sheet, tensorflow):
        foreign |= {"NXC", "NCX"}
    if sheet.data_format == "NCX":
        foreign |= {"data_format"}
    data = sheet.of("src", "diff_dst")
    vectors = [name for name in sheet.roles if name not in data]
    on_another_axis = np.ones(p.src.shape[1 if sheet.data_format == "NXC" else -1], np.float32)
    for changed in (
        *[dict.fromkeys(vectors, on_another_axis)] * bool(vectors),
        *[{name: np.ones(7, np.float32)} for name in vectors],
        *[{name: np.ones((1, 5), np.float32)} for name in vectors],
        *[{name: np.ones(5, ">f4")} for name in vectors],
        *[{name: p.src[0, 0, 0]} for name in data],
        *[{name: p.src.astype(">f4")} for name in data],
        *[{name: p.src[:1]} for name in data * (len(data) > 1)],
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            sheet(p, **changed)
        message = str(error.value)
        print(message)
        assert message.partition(":")[0] in own
        if len(changed) == 1 and not changed.keys() & {*data}:
            assert message.partition(":")[0] in changed
        assert not foreign & set(re.findall(r"\w+", message))


@every_sheet
def test_nothing_is_written_on_an_error(rng, sheet):
    """Each array in turn has a shape that is refused."""
    p = sheet.problem(rng)
    for name in sheet.roles:
        wrong = np.ones(7, np.float32)
        arguments = {**sheet.arguments(p), name: wrong}
        before = {n: bits(a) for n, a in arguments.items()}
        with pytest.raises((TypeError, ValueError)):
            sheet.operator(**arguments, **sheet.fixed)
        assert {n: bits(a) for n, a in arguments.items()} == before


@every_sheet
def test_results_are_new_arrays(rng, sheet):
    p = sheet.problem(rng)
    arguments = sheet.arguments(p)
    before = {n: bits(a) for n, a in arguments.items()}
    found = sheet.operator(**arguments, **sheet.fixed)
    found = found if isinstance(found, tuple) else (found,)
    whole = [a for a in (*found, *arguments.values()) if a.size]
    for i, a in enumerate(found):
        assert type(a) is np.ndarray
        assert a.flags.writeable
        assert not any(np.shares_memory(a, b) for b in whole if b is not a), i
    updated = {"running_mean", "running_var"} if sheet in UPDATED else set()
    assert {n for n, a in arguments.items() if bits(a) != before[n]} == updated


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
@every_sheet
def test_results_follow_the_datas_memory_order(rng, sheet, order):
    p = Family(rng, (2, 4, 6, 8), sheet.data_format)
    (name,) = sheet.of("src")
    src = np.ascontiguousarray(p.src.transpose(order)).transpose(np.argsort(order))
    found = sheet.operator(**{**sheet.arguments(p), **sheet.fixed, name: src})
    found = found if isinstance(found, tuple) else (found,)
    for a in found:
        if a.shape == src.shape:
            assert a.strides == src.strides


@pytest.mark.parametrize("sheet", [s for s in SHEETS.values() if s.data_format == "NCX"])
def test_two_axes_transposed(rng, sheet):
    """Those of torch are contiguous there."""
    p = Family(rng, (6, 5), "NCX")
    (name,) = sheet.of("src")
    src = np.asfortranarray(p.src)
    for a in found_by(sheet, p, **{name: src}):
        if a.shape == src.shape:
            assert a.strides == src.strides != p.src.strides


@pytest.mark.parametrize("name", ["ngraph_training", "ngraph_inference"])
def test_ngraph_without_channels(rng, name):
    """Which nGraph refuses."""
    p = Family(rng, (2, 0, 3, 4), "NCX")
    found = found_by(SHEETS[name], p)
    assert [a.shape for a in found] == [(2, 0, 3, 4), (0,), (0,)][: len(found)]


def test_what_the_operators_are_for(rng):
    """All that normalize training data give the same bits, by whatever name."""
    p = Family(rng, (2, 5, 3, 4), "NCX")
    want = bn_ext.batch_norm_training(p.src, p.gamma, p.beta, epsilon=EPSILON, data_format="NCX")
    for name in ("ngraph_training", "native_training"):
        assert bits(SHEETS[name](p)[0]) == bits(want.dst)
    for name in ("onednn_training", "tensorflow_training", "tensorflow_ex"):
        data_format = "NCX" if "onednn" in name else "NCHW"
        assert bits(SHEETS[name](p, data_format=data_format)[0]) == bits(want.dst)
