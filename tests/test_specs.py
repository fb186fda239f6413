"""The operators of bn_ext.specs: their own type tables, attributes and names in errors."""

import inspect
import re

import numpy as np
import pytest
from cases import EPSILON, Problem, all_bits
from refusals import RAISED
from sheets import CARRIERS, Sheet, Untouchable

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

pytestmark = pytest.mark.quick


SHEETS = {
    "onednn_backprop": Sheet(
        onednn_graph.batch_norm_training_backprop, "NXC",
        input_forward="src", output_delta="diff_dst", mean="mean", variance="variance",
        gamma="gamma",
    ),
    "onednn_backward": Sheet(
        onednn_graph.batch_norm_training_backward, "NXC",
        src="src", diff_dst="diff_dst", mean="mean", variance="variance", gamma="gamma",
    ),
    "ngraph": Sheet(
        ngraph.batch_norm_training_backprop, "NCX",
        input="src", gamma="gamma", beta="gamma", mean="mean", variance="variance",
        normalized_delta="diff_dst",
    ),
    "tensorflow": Sheet(
        tensorflow.fused_batch_norm_grad_v3, "NXC",
        y_backprop="diff_dst", x="src", scale="gamma", reserve_space_1="mean",
        reserve_space_2="variance", reserve_space_3="variance",
    ),
}  # fmt: skip
every_sheet = pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)

# ---- whatever brings the array, the tables hold ---------------------------------------


by_every_carrier = pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)


@by_every_carrier
@every_sheet
def test_accepted_by_every_carrier(rng, sheet, carry):
    p = sheet.problem(rng)
    assert all_bits(sheet(p, carry)) == all_bits(sheet(p))


#: What the general function takes and a spec does not: data, vectors, the first wrong argument.
OTHER_TYPES = [
    *[
        (name, *types)
        for name, data, vector in (
            ("onednn_backprop", "input_forward", "mean"),
            ("onednn_backward", "src", "mean"),
            ("tensorflow", "x", "scale"),
        )
        for types in (("float64", "float64", data), ("float16", "float16", vector))
    ],
    ("ngraph", "float16", "float32", "gamma"),
]


@by_every_carrier
@pytest.mark.parametrize(("name", "data", "vector", "wrong"), OTHER_TYPES)
def test_other_types_are_refused(rng, name, data, vector, wrong, carry):
    sheet = SHEETS[name]
    p = sheet.problem(rng, data, vector)
    p.run(bn_ext.batch_norm_backward, data_format=sheet.data_format)
    got = vector if wrong in ("mean", "scale", "gamma") else data
    with pytest.raises(TypeError, match=f"^{wrong}: expected float.*, got {got}$"):
        sheet(p, carry)


@every_sheet
def test_lists_are_float64(rng, sheet):
    p = sheet.problem(rng, "float64")
    if sheet is SHEETS["ngraph"]:
        assert all_bits(sheet(p, np.ndarray.tolist)) == all_bits(sheet(p))
    else:
        with pytest.raises(TypeError, match="^(src|input_forward|x): .*got float64$"):
            sheet(p, np.ndarray.tolist)


@every_sheet
def test_an_object_is_asked_for_its_array_once(rng, sheet):
    assert sheet.asked(sheet.problem(rng)) == dict.fromkeys(sheet.roles, 1)


@every_sheet
def test_what_is_no_array(rng, sheet):
    parameters = inspect.signature(sheet.operator).parameters
    sheet.check_what_is_no_array(
        sheet.problem(rng),
        lambda name: parameters[name].default is None or name == "reserve_space_3",
    )


@by_every_carrier
@pytest.mark.parametrize("dims", [(6, 5), (6, 4, 5), (2, 2, 2, 2, 2, 5)])
def test_tensorflows_ranks(rng, dims, carry):
    p = Problem(rng, dims, "NXC")
    message = re.escape(f"x: expected rank 4 or 5, got shape {dims}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        SHEETS["tensorflow"](p, carry)


# ---- attributes -----------------------------------------------------------------------


FLAGS = [
    ("onednn_backprop", "gamma_delta"),
    ("onednn_backprop", "beta_delta"),
    ("onednn_backward", "diff_gamma"),
    ("onednn_backward", "diff_beta"),
    ("tensorflow", "is_training"),
]


@pytest.mark.parametrize("value", [np.array([True, False]), "False", 2, 1.0, [], b""], ids=repr)
@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_flags_are_flags(rng, name, flag, value):
    with pytest.raises(TypeError, match=rf"^{flag}: expected True or False, got "):
        SHEETS[name](SHEETS[name].problem(rng), **{flag: value})


@pytest.mark.parametrize(("name", "flag"), [f for f in FLAGS if "tensorflow" not in f[0]])
def test_none_is_no_flag(rng, name, flag):
    """To TensorFlow it is the default."""
    with pytest.raises(TypeError, match=rf"^{flag}: expected True or False, got None"):
        SHEETS[name](SHEETS[name].problem(rng), **{flag: None})


@pytest.mark.parametrize("kind", [bool, int, np.bool_, np.int64])
@pytest.mark.parametrize("value", [True, False])
def test_flags_of_every_kind(rng, kind, value):
    for name, flags in (
        ("onednn_backprop", ["gamma_delta"]),
        ("onednn_backprop", ["beta_delta"]),
        ("onednn_backward", ["diff_gamma", "diff_beta"]),
        ("tensorflow", ["is_training"]),
    ):
        sheet = SHEETS[name]
        p = sheet.problem(rng)
        got = sheet(p, **dict.fromkeys(flags, kind(value)))
        assert all_bits(got) == all_bits(sheet(p, **dict.fromkeys(flags, value)))


@pytest.mark.parametrize("value", [["NHWC"], np.array(["NHWC"]), {}, 3, "NXC" * 1000], ids=type)
def test_tensorflows_data_format(rng, value):
    sheet = SHEETS["tensorflow"]
    with pytest.raises(ValueError, match="^data_format: expected one of NHWC, .*, got ") as error:
        sheet(sheet.problem(rng), data_format=value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("epsilon", [10**400, -(10**400), 10**5000], ids=["400", "-400", "5000"])
@every_sheet
def test_epsilon_beyond_the_doubles(rng, sheet, epsilon):
    with pytest.raises(ValueError, match="^epsilon: expected a .*number.*, got ") as error:
        sheet(sheet.problem(rng), epsilon=epsilon)
    assert len(str(error.value)) < 200


@every_sheet
def test_epsilon_is_asked_for_its_value_once(rng, sheet):
    class Epsilon:
        asked = 0

        def __float__(self):
            self.asked += 1
            return EPSILON

    epsilon = Epsilon()
    p = sheet.problem(rng)
    assert all_bits(sheet(p, epsilon=epsilon)) == all_bits(sheet(p))
    assert epsilon.asked == 1


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
    with pytest.raises((AssertionError, TypeError, ValueError), match="^looked at|^gamma: "):
        sheet(p, gamma=gamma)


# ---- words ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RAISED)
@every_sheet
def test_errors_of_the_callers_own_pass(rng, sheet, kind):
    sheet.check_errors_of_the_callers(sheet.problem(rng), kind)


@every_sheet
def test_errors_use_the_operators_words(rng, sheet):
    p = sheet.problem(rng)
    own = inspect.signature(sheet.operator).parameters.keys()
    foreign = inspect.signature(bn_ext.batch_norm_backward).parameters.keys() - own
    if sheet is SHEETS["tensorflow"]:
        foreign |= {"NXC", "NCX"}
    data = sheet.of("src", "diff_dst")
    vectors = [name for name in sheet.roles if name not in (*data, "reserve_space_3")]
    on_another_axis = np.ones(p.src.shape[1 if sheet.data_format == "NXC" else -1], np.float32)
    for changed in (
        dict.fromkeys(vectors, on_another_axis),
        *[{name: np.ones(7, np.float32)} for name in vectors],
        *[{name: np.ones((1, 5), np.float32)} for name in vectors],
        *[{name: p.src[:1]} for name in data],
        *[{name: p.src.astype(np.float16)} for name in data],
        *[{name: p.src.astype(">f4")} for name in data],
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            sheet(p, **changed)
        message = str(error.value)
        print(message)
        assert message.partition(":")[0] in own
        assert not foreign & set(re.findall(r"\w+", message))


# ---- one operator each ----------------------------------------------------------------


@pytest.mark.parametrize(
    "operator",
    [onednn_graph.batch_norm_training_backprop, onednn_graph.batch_norm_training_backward],
    ids=["backprop", "backward"],
)
class TestOneDNN:
    def test_float64_is_refused(self, rng, operator):
        with pytest.raises(TypeError, match="expected float32 or float16 or bfloat16, got float64"):
            Problem(rng, (6, 5), "NXC", "float64").run(operator)

    def test_float16_vectors_are_refused(self, rng, operator):
        with pytest.raises(TypeError, match="^mean: expected float32, got float16"):
            Problem(rng, (6, 5), "NXC", "float16", "float16").run(operator)

    @pytest.mark.parametrize("epsilon", [0, -1, np.inf, np.nan, 1e-60, 1e60])
    def test_epsilon_that_is_no_positive_float32(self, p, operator, epsilon):
        with pytest.raises(
            ValueError,
            match="^epsilon: expected a number that is positive and finite as a float32, got",
        ):
            p.run(operator, epsilon=epsilon)

    def test_epsilon_is_required(self, p, operator):
        with pytest.raises(TypeError, match="epsilon"):
            operator(p.src, p.diff_dst, *p.vectors())

    def test_epsilon_that_is_no_number(self, p, operator):
        for epsilon in ("1e-3", None, [1.0]):
            with pytest.raises(TypeError, match="^epsilon: expected a real number"):
                p.run(operator, epsilon=epsilon)

    def test_unknown_data_format(self, p, operator):
        with pytest.raises(ValueError, match="^data_format"):
            p.run(operator, data_format="NHWC")


def test_errors_use_the_operators_names(rng, p):
    with pytest.raises(ValueError, match="^output_delta: expected shape .* like input_forward"):
        onednn_graph.batch_norm_training_backprop(
            p.src, p.diff_dst[:1], *p.vectors(), epsilon=EPSILON
        )
    with pytest.raises(ValueError, match="^diff_dst: expected shape .* like src"):
        onednn_graph.batch_norm_training_backward(
            p.src, p.diff_dst[:1], *p.vectors(), epsilon=EPSILON
        )
    four = Problem(rng, (2, 3, 4, 5), "NXC")
    mean, variance, gamma = four.vectors()
    with pytest.raises(ValueError, match="^reserve_space_2: expected shape"):
        tensorflow.fused_batch_norm_grad_v3(
            four.diff_dst, four.src, gamma, mean, variance[1:], None
        )
    with pytest.raises(ValueError, match="^y_backprop: expected shape .* like x"):
        tensorflow.fused_batch_norm_grad_v3(
            four.diff_dst[:1], four.src, gamma, mean, variance, None
        )
    with pytest.raises(ValueError, match="^normalized_delta: expected shape .* like input"):
        ngraph.batch_norm_training_backprop(
            four.src, mean[:3], mean[:3], mean[:3], mean[:3], four.diff_dst[:1], epsilon=EPSILON
        )


@pytest.mark.parametrize("text", ["src", "src; pass src", "it's src", ["src; diff_dst"]], ids=str)
def test_errors_leave_the_callers_own_text(p, text):
    with pytest.raises(ValueError, match="^data_format") as error:
        onednn_graph.batch_norm_training_backprop(
            p.src, p.diff_dst, *p.vectors(), epsilon=EPSILON, data_format=text
        )
    assert str(error.value) == f"data_format: expected 'NXC' or 'NCX', got {text!r}"


def test_one_optional_output_without_the_other(p):
    for options in ({"diff_gamma": False}, {"diff_beta": False}):
        with pytest.raises(ValueError, match="both or neither"):
            p.run(onednn_graph.batch_norm_training_backward, **options)


def test_tensorflow_ranks_and_formats(rng):
    for dims in ((6, 5), (6, 4, 5), (2, 2, 2, 2, 2, 5)):
        q = Problem(rng, dims, "NXC")
        with pytest.raises(ValueError, match="^x: expected rank 4 or 5"):
            tensorflow.fused_batch_norm_grad_v3(
                q.diff_dst, q.src, q.gamma, q.mean, q.variance, None
            )
    q = Problem(rng, (2, 3, 4, 5), "NXC")
    for data_format in ("NXC", "NHW", b"NXC", 3):
        with pytest.raises(ValueError, match="^data_format: expected one of NHWC"):
            tensorflow.fused_batch_norm_grad_v3(
                q.diff_dst, q.src, q.gamma, q.mean, q.variance, None, data_format=data_format
            )
    for position in range(2, 5):
        arguments = [q.diff_dst, q.src, q.gamma, q.mean, q.variance, None]
        arguments[position] = arguments[position].astype(np.float64)
        with pytest.raises(TypeError, match="expected float32, got float64"):
            tensorflow.fused_batch_norm_grad_v3(*arguments)
        arguments[position] = None
        with pytest.raises(TypeError, match="expected an array, got None"):
            tensorflow.fused_batch_norm_grad_v3(*arguments)
    with pytest.raises(TypeError, match="^reserve_space_3: expected float32, got float64"):
        tensorflow.fused_batch_norm_grad_v3(
            q.diff_dst, q.src, q.gamma, q.mean, q.variance, np.zeros(3)
        )


def test_ngraph_beta_is_checked(rng):
    q = Problem(rng, (3, 4, 5), "NCX")

    def call(beta):
        ngraph.batch_norm_training_backprop(
            q.src, q.gamma, beta, q.mean, q.variance, q.diff_dst, epsilon=EPSILON
        )

    with pytest.raises(ValueError, match=r"^beta: expected shape \(4,\), like gamma, got \(3,\)"):
        call(q.gamma[:3])
    with pytest.raises(TypeError, match="^beta: expected float32, got float64"):
        call(q.gamma.astype(float))
    with pytest.raises(TypeError, match="^beta: expected an array, got None"):
        call(None)
    with pytest.raises(TypeError, match="^beta: expected float32, got <U1"):
        call(["a", "b", "c", "d"])
    with pytest.raises(TypeError, match="^beta: expected an array of numbers"):
        call([[1.0], [2.0, 3.0], [], []])
