"""The published operators, one row each. `bn_ext.specs._sheet.sheet` makes functions of them.

A row has the arguments in order, with types, defaults and roles; the outputs; and the text of the
docstring. A role is what the general function that computes the operator calls an argument; if that
function lacks the argument, the role is the argument's own name. What a table cannot express is
code: the function with the operator's name, in the module of its specification.

This file imports nothing from bn_ext: builds run it, without the compiled part, for the docstrings.
"""

import re
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from textwrap import TextWrapper
from typing import Any, Final

__all__ = ["REQUIRED", "ROWS", "Argument", "Row", "Spec"]

#: In place of a default: the argument has none.
REQUIRED: Final = object()


@dataclass(frozen=True)
class Argument:
    """An argument, or several of the same kind: "gamma, beta"."""

    names: str
    #: data, vector, list (of at most one array), epsilon, positive (as a float32), number, flag,
    #: word, data_format or ignored
    kind: str
    text: str
    #: Their names in the general function, if they differ.
    roles: str = ""
    default: Any = REQUIRED
    #: May it be None? For an attribute, None means the default.
    optional: bool = False
    #: For a word: {word: its meaning}.
    words: dict[str, Any] | None = None
    #: The name of a flag. If that flag is False, the array is neither used nor checked.
    used: str = ""

    @property
    def is_array(self) -> bool:
        """Is it an array, not an attribute?"""
        return self.kind in ("data", "vector", "list")

    @property
    def is_optional(self) -> bool:
        """May it be left out?"""
        return self.default is not REQUIRED


@dataclass(frozen=True)
class Spec:
    """What the operators of one specification share."""

    module: str
    #: dtype of the data -> dtypes of the vectors; in a call, all vectors have the same dtype
    types: dict[str, tuple[str, ...]]
    #: What is raised beyond the general function's errors.
    raises: str
    #: The type of a vector in docstrings.
    vector: str = "array, shape (C,)"
    #: How lists are converted, if docstrings should note it.
    lists: str = ""
    #: Where the channels are, if no argument tells.
    data_format: str = ""


@dataclass(frozen=True)
class Row:
    """An operator."""

    spec: Spec
    name: str
    title: str
    #: The general functions that compute the operator. It raises their errors too.
    general: str
    arguments: tuple[Argument, ...]
    #: "Name: output, output, ..."; for a single array, its type
    outputs: str
    returns: str
    definition: str
    example: str
    see_also: str = ""
    notes: tuple[str, ...] = ()
    #: What is raised beyond the general function's errors, if not the same as for the Spec.
    raises: str = ""
    #: Ranks that the data may have; if empty, any from 2 up.
    ranks: tuple[int, ...] = ()

    @cached_property
    def places(self) -> list[tuple[Argument, str, str]]:
        """[(argument, name, role)] in the order in which they are passed."""
        return [
            (argument, *place)
            for argument in self.arguments
            for place in zip(
                argument.names.split(", "),
                (argument.roles or argument.names).split(", "),
                strict=True,
            )
        ]

    @cached_property
    def result(self) -> Any:
        """The class of its outputs, if there are several."""
        name, colon, fields = self.outputs.partition(": ")
        if not colon:
            return None
        module = f"bn_ext.specs.{self.spec.module}"
        make: Callable[..., Any] = namedtuple
        result = make(name, fields, module=module)
        result.__doc__ = f"Outputs of `{self.name}`, in the operator's order."
        return result

    def docstring(self) -> str:
        """The docstring, in numpydoc's format."""
        names = [f"bn_ext.{name}" for name in self.general.split(", ")]
        general = " and ".join(f"`{name}`" for name in names)
        also = self.raises or self.spec.raises
        errors = f"As for {general}, with this operator's names; also {also}."
        arrays = f"Arrays are accepted and copied as by {general}"
        notes = [*self.notes, f"Definition: {self.definition}."]
        if self.spec.lists:
            notes.insert(0, f"{arrays}; {self.spec.lists}.")
        parameters = [f"{a.names} : {self._type(a)}\n{_filled(a.text, 4)}" for a in self.arguments]
        sections = {
            "Parameters": "\n".join(parameters),
            "Returns": f"{self.outputs.partition(':')[0]}\n{_filled(self.returns, 4)}",
            "Raises": f"TypeError, ValueError, MemoryError\n{_filled(errors, 4)}",
            "See Also": f"{', '.join(names)}\n{self.see_also}".rstrip(),
            "Notes": "\n\n".join(_filled(note) for note in notes),
            "Examples": f">>> import numpy as np\n>>> from bn_ext.specs import {self.spec.module}\n"
            + self.example.strip("\n"),
        }
        parts = [f"{name}\n{'-' * len(name)}\n{text}" for name, text in sections.items()]
        return "\n\n".join([self.title, *parts, ""])

    def _type(self, argument: Argument) -> str:
        """The type of an argument in the docstring."""
        types = {"vector": self.spec.vector, **_TYPES}
        found = types.get(argument.kind, "array")
        if argument.words is not None:
            found = "{" + ", ".join(f'"{word}"' for word in argument.words) + "}"
        elif argument.kind == "data" and "src" in (argument.roles, argument.names):
            shapes = {"NCX": "shape (N, C, ...)", "": "shape (N, ..., C) or (N, C, ...)"}
            ranks = f"rank {' or '.join(map(str, self.ranks))}"
            found = f"array, {ranks if self.ranks else shapes[self.spec.data_format]}"
        if argument.is_optional:
            return f"{found}, optional"
        return f"{found}, or None" if argument.optional else found


_TYPES = {
    "list": "list of at most one array",
    "epsilon": "float",
    "positive": "float",
    "number": "float",
    "flag": "bool",
    "data_format": '{"NXC", "NCX"}',
    "ignored": "str",
}


def _filled(text: str, indent: int = 0) -> str:
    """Wrap a paragraph; text in double backquotes stays on one line."""
    kept = re.sub("``.*?``", lambda literal: literal[0].replace(" ", "\0"), " ".join(text.split()))
    margin = " " * indent
    wrapper = TextWrapper(
        84, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return wrapper.fill(kept).replace("\0", " ")


# ---- what several operators have ---------------------------------------------------------

# Formatted by hand, so that each line begins with the name of its argument.
# fmt: off

_FLOATS = "float32, float64, float16 or bfloat16"
_EPSILON_TEXT = "Added to the variance: finite, at least 0. It is used as a double."
_EPSILON = Argument("epsilon", "epsilon", _EPSILON_TEXT)

# ---- nGraph ------------------------------------------------------------------------------

_NGRAPH = Spec(
    "ngraph",
    types={name: (name,) for name in ("float32", "float64", "float16", "bfloat16")},
    raises="TypeError if the arrays do not all have the same dtype",
    lists="lists of Python floats are float64. C = 0 gives empty results",
    data_format="NCX",
)
_NGRAPH_DIFFERS = (
    "nGraph differs: its reference kernel casts epsilon to float32, and C = 0 is refused."
)
_NGRAPH_INPUT = Argument("input", "data", f"What is normalized: {_FLOATS}, at least two "
                         "dimensions, channels first: on axis 1.", roles="src")
_NGRAPH_SCALE = Argument("gamma, beta", "vector", "Scale and shift, in input's dtype.")

_NGRAPH_ROWS = (
    Row(
        _NGRAPH,
        "batch_norm_training",
        "Operator ``BatchNormTraining`` of nGraph.",
        general="batch_norm_training",
        arguments=(_NGRAPH_INPUT, _NGRAPH_SCALE, _EPSILON),
        outputs="BatchNormTraining: normalized, batch_mean, batch_variance",
        returns="All in input's dtype: normalized, batch_mean and batch_variance (biased).",
        see_also="batch_norm_training_backprop : The gradient.",
        notes=("Without elements, the statistics are NaN.", _NGRAPH_DIFFERS),
        definition='nGraph core operation "BatchNormTraining"',
        example="""
>>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
>>> found = ngraph.batch_norm_training(x, np.ones(2), np.zeros(2), epsilon=0.0)
>>> found.normalized
array([[-1., -1.],
       [ 1.,  1.]])
>>> found.batch_variance
array([1., 4.])
""",
    ),
    Row(
        _NGRAPH,
        "batch_norm_inference",
        "Operator ``BatchNormInference`` of nGraph.",
        general="batch_norm_inference",
        arguments=(
            _NGRAPH_INPUT,
            _NGRAPH_SCALE,
            Argument("mean, variance", "vector", "The statistics to normalize with, in input's "
                     "dtype."),
            _EPSILON,
        ),
        outputs="ndarray",
        returns="The result, in input's shape and dtype.",
        notes=(_NGRAPH_DIFFERS,),
        definition='nGraph core operation "BatchNormInference"',
        example="""
>>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
>>> ones, zeros = np.ones(2), np.zeros(2)
>>> ngraph.batch_norm_inference(x, 2 * ones, ones, zeros, 3 * ones, epsilon=1.0)
array([[2., 3.],
       [4., 7.]])
""",
    ),
    Row(
        _NGRAPH,
        "batch_norm_training_backprop",
        "Operator ``BatchNormTrainingBackprop`` of nGraph.",
        general="batch_norm_backward",
        arguments=(
            Argument("input", "data", f"What the forward pass normalized: {_FLOATS}, at least two "
                     "dimensions, channels first: on axis 1.", roles="src"),
            Argument("gamma, beta", "vector", "Scale and shift, in input's dtype. beta is "
                     "required but has no influence."),
            Argument("mean, variance", "vector", "The batch's mean and biased variance, in "
                     "input's dtype."),
            Argument("normalized_delta", "data", "The gradient with respect to the output, with "
                     "input's shape and dtype.", roles="diff_dst"),
            _EPSILON,
        ),
        outputs="BatchNormTrainingBackprop: input_delta, gamma_delta, beta_delta",
        returns="input_delta, gamma_delta and beta_delta, all in input's dtype.",
        see_also="batch_norm_training : The forward pass.",
        notes=(_NGRAPH_DIFFERS,),
        definition='nGraph core operation "BatchNormTrainingBackprop"',
        example="""
>>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
>>> ones = np.ones(2)
>>> grads = ngraph.batch_norm_training_backprop(
...     x, ones, ones, x.mean(axis=0), x.var(axis=0), np.ones((2, 2)), epsilon=1e-3)
>>> grads.beta_delta
array([2., 2.])
""",
    ),
)

# ---- oneDNN Graph ------------------------------------------------------------------------

_ONEDNN = Spec(
    "onednn_graph",
    types={
        "float32": ("float32",),
        "float16": ("float32",),
        "bfloat16": ("float32", "bfloat16"),
    },
    raises="TypeError for any float64 and for float16 vectors, ValueError for an epsilon that is "
    "not positive",
    lists="lists of Python numbers are float64 or integers, so their types are refused. Any rank "
    "from 2 up is accepted",
)
_ONEDNN_SRC = Argument("src", "data", "Input 0: what is normalized; float32, float16 or bfloat16.")
_ONEDNN_EPSILON = Argument("epsilon", "positive", "Added to the variance: positive and finite as "
                           "a float32. It is used as a double: pass ``float(np.float32(1e-3))`` "
                           "to mimic the float attribute.")
_ONEDNN_FORMAT = Argument("data_format", "data_format", "Whether the channels are on the last "
                          "axis (channels last: NHWC, ...) or on axis 1 (channels first: NCHW, "
                          "...).", default="NXC")
_ONEDNN_PRESENT = "float32 or, only with bfloat16 data, bfloat16"
_ONEDNN_UNSUPPORTED = (
    "it does not support bfloat16 vectors, and supports float16 data only on a few CPUs; it "
    "accepts ranks 4 and 5 in NXC, 2 to 5 in NCX; it does not write the parameter gradients of an "
    "empty batch."
)

_ONEDNN_ROWS = (
    Row(
        _ONEDNN,
        "batch_norm_forward_training",
        "Operator ``BatchNormForwardTraining`` of the oneDNN Graph API.",
        general="batch_norm_training",
        arguments=(
            _ONEDNN_SRC,
            Argument("mean, variance", "vector", "Inputs 1 and 2: the running statistics before "
                     f"this step; {_ONEDNN_PRESENT}.", roles="running_mean, running_variance"),
            Argument("gamma, beta", "vector", "Inputs 3 and 4: scale and shift, in mean's dtype; "
                     "both or neither. None means ones and zeros.", default=None, optional=True),
            _ONEDNN_EPSILON,
            Argument("momentum", "positive", "The weight of the old running statistics, positive "
                     "and finite as a float32, used as a double: ``running = momentum*old + (1 - "
                     "momentum)*batch``. The specification has no default; 0.5 is what the "
                     "library uses.", default=0.5),
            _ONEDNN_FORMAT,
        ),
        outputs="BatchNormForwardTraining: dst, running_mean, running_variance, batch_mean, "
        "batch_variance",
        returns="dst (src's dtype), running_mean, running_variance, batch_mean and batch_variance "
        "(mean's dtype, shape (C,)). Both variances are biased: divided by the number of elements. "
        "All are new arrays; mean and variance stay as they are.",
        raises=f"{_ONEDNN.raises}, for a momentum that is not positive, and for gamma without beta "
        "or the reverse",
        see_also="batch_norm_training_backward : The gradient.",
        notes=(
            "If src is empty, batch_mean and batch_variance are NaN, and the running statistics do "
            "not change.",
            'In torch, "momentum" is the weight of the new statistics. In torch and TensorFlow, '
            "the running variance is unbiased.",
        ),
        definition='oneDNN developer guide, Graph API, "BatchNormForwardTraining"',
        example="""
>>> x = np.array([[1, 2], [3, 6]], np.float32)
>>> found = onednn_graph.batch_norm_forward_training(
...     x, np.zeros(2, np.float32), np.ones(2, np.float32), epsilon=1e-3, momentum=0.75)
>>> found.batch_variance
array([1., 4.], dtype=float32)
>>> found.running_variance
array([1.  , 1.75], dtype=float32)
""",
    ),
    Row(
        _ONEDNN,
        "batch_norm_inference",
        "Operator ``BatchNormInference`` of the oneDNN Graph API.",
        general="batch_norm_inference",
        arguments=(
            _ONEDNN_SRC,
            Argument("gamma, beta", "vector", "Inputs 1 and 2: scale and shift; "
                     f"{_ONEDNN_PRESENT}."),
            Argument("mean, variance", "vector", "Inputs 3 and 4: the statistics to normalize "
                     "with, in gamma's dtype."),
            _ONEDNN_EPSILON,
            _ONEDNN_FORMAT,
        ),
        outputs="ndarray",
        returns="dst, in src's shape and dtype.",
        definition='oneDNN developer guide, Graph API, "BatchNormInference"',
        example="""
>>> x = np.array([[1, 2], [3, 6]], np.float32)
>>> ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
>>> onednn_graph.batch_norm_inference(x, 2 * ones, ones, zeros, 3 * ones, epsilon=1.0)
array([[2., 3.],
       [4., 7.]], dtype=float32)
""",
    ),
    Row(
        _ONEDNN,
        "batch_norm_training_backprop",
        "Operator ``BatchNormTrainingBackprop-1`` of the oneDNN Graph specification.",
        general="batch_norm_backward",
        arguments=(
            Argument("input_forward", "data", "Input 1: what the forward pass normalized; "
                     "T1 is float32, float16 or bfloat16.", roles="src"),
            Argument("output_delta", "data", "Input 2: the gradient with respect to the output, "
                     "with the shape and dtype of input_forward.", roles="diff_dst"),
            Argument("mean, variance", "vector", "Inputs 3 and 4: the batch's mean and biased "
                     f"variance; T2 is {_ONEDNN_PRESENT}."),
            Argument("gamma", "vector", "Input 5: the scale, T2. None means ones.", default=None,
                     optional=True),
            _ONEDNN_EPSILON,
            _ONEDNN_FORMAT,
            Argument("gamma_delta, beta_delta", "flag", "Whether to compute this optional output, "
                     "independently of the other.", default=True),
        ),
        outputs="BatchNormTrainingBackprop: input_delta, gamma_delta, beta_delta",
        returns="input_delta (T1), gamma_delta and beta_delta (T2, shape (C,)). An optional output "
        "that was not requested is None.",
        see_also="batch_norm_training_backward : Ignores gamma if only diff_src is requested.",
        notes=(
            "oneDNN 3.8 on a CPU differs: it requires gamma if all three outputs are requested; if "
            "only input_delta is requested, it uses the formula for frozen statistics; "
            + _ONEDNN_UNSUPPORTED,
        ),
        definition='oneDNN Graph Specification, "BatchNormTrainingBackprop-1"',
        example="""
>>> x = np.array([[1, 2], [3, 6]], np.float32)
>>> dy = np.array([[1, 1], [0, 0]], np.float32)
>>> grads = onednn_graph.batch_norm_training_backprop(
...     x, dy, x.mean(axis=0), x.var(axis=0), epsilon=1e-3, gamma_delta=False)
>>> grads.gamma_delta is None
True
>>> grads.beta_delta
array([1., 1.], dtype=float32)
""",
    ),
    Row(
        _ONEDNN,
        "batch_norm_training_backward",
        "Operator ``BatchNormTrainingBackward`` of the oneDNN Graph API.",
        general="batch_norm_backward",
        arguments=(
            Argument("src", "data", "Input 0: what the forward pass normalized; float32, float16 "
                     "or bfloat16."),
            Argument("diff_dst", "data", "Input 1: the gradient with respect to the output, with "
                     "src's shape and dtype."),
            Argument("mean, variance", "vector", "Inputs 2 and 3: the batch's mean and biased "
                     f"variance; {_ONEDNN_PRESENT}."),
            Argument("gamma", "vector", "Input 4: the scale, in mean's dtype. None means ones.",
                     default=None, optional=True, used="diff_gamma"),
            _ONEDNN_EPSILON,
            _ONEDNN_FORMAT,
            Argument("diff_gamma, diff_beta", "flag", "Whether to compute the optional outputs: "
                     "both or neither.", default=True),
        ),
        outputs="BatchNormTrainingBackward: diff_src, diff_gamma, diff_beta",
        returns="diff_src (src's dtype), diff_gamma and diff_beta (mean's dtype, shape (C,), or "
        "both None).",
        raises=f"{_ONEDNN.raises} and for one optional output without the other",
        see_also="batch_norm_forward_training : The forward pass.",
        notes=(
            "Without the optional outputs, gamma is ignored, as the specification requires: it is "
            "not even checked, and diff_src follows the training formula with gamma = 1. "
            "(`bn_ext.batch_norm_backward` uses gamma in either case.)",
            "oneDNN 3.8 on a CPU differs: if only diff_src is requested, its graph uses the "
            "formula for frozen statistics with gamma = 1 (its primitive uses the training "
            "formula); it requires gamma if all three outputs are requested; "
            + _ONEDNN_UNSUPPORTED,
        ),
        definition='oneDNN developer guide, Graph API, "BatchNormTrainingBackward"',
        example="""
>>> x = np.array([[1, 2], [3, 6]], np.float32)
>>> dy = np.array([[1, 1], [0, 0]], np.float32)
>>> grads = onednn_graph.batch_norm_training_backward(
...     x, dy, x.mean(axis=0), x.var(axis=0), epsilon=1e-3)
>>> grads.diff_beta
array([1., 1.], dtype=float32)
""",
    ),
)

# ---- TensorFlow --------------------------------------------------------------------------

_TENSORFLOW = Spec(
    "tensorflow",
    types={name: ("float32",) for name in ("float16", "bfloat16", "float32")},
    raises="TypeError for float64 and for vectors that are not float32, ValueError for a rank "
    "that is not listed",
    vector="array of float32, shape (C,)",
    lists="lists of Python numbers are float64 or integers, so their types are refused. An "
    "attribute that is None gets its default, as in TensorFlow",
)
# The word tells only where C is, not how many axes src has.
_FORMATS = {"NHWC": "NXC", "NDHWC": "NXC", "NCHW": "NCX", "NCDHW": "NCX"}
_TF_EPSILON = Argument("epsilon", "epsilon", _EPSILON_TEXT, default=0.0001, optional=True)
_TF_FACTOR = Argument("exponential_avg_factor", "number", "The weight of the batch's statistics "
                      "in the new running ones, any finite number: ``running = (1 - factor)*old + "
                      "factor*batch``.", default=1.0, optional=True)
_TF_FORMAT = Argument("data_format", "word", "Whether the channels are on the last axis or on "
                      "axis 1, for either rank. Bytes are accepted too.", default="NHWC",
                      optional=True, words=_FORMATS)
_TF_IS_TRAINING = Argument("is_training", "flag", "Whether to normalize with the batch's own "
                           "statistics.", default=True, optional=True)
_TF_NAME = Argument("name", "ignored", "Not used.", default=None, optional=True)
_TF_X = "What is normalized: float16, bfloat16 or float32."
_TF_SCALE = Argument("scale, offset", "vector", "Scale and shift.", roles="gamma, beta")
_TF_STATISTICS = Argument("mean, variance", "vector", "With `is_training`, the running statistics "
                          "before this step; ``exponential_avg_factor=1`` ignores them, whatever "
                          "their length. Without `is_training`, the statistics to normalize with.")
_TF_OUTPUTS = "y, batch_mean, batch_variance, reserve_space_1, reserve_space_2, reserve_space_3"

_TENSORFLOW_ROWS = (
    Row(
        _TENSORFLOW,
        "fused_batch_norm_v3",
        "Operator ``FusedBatchNormV3`` of TensorFlow (``tf.raw_ops``).",
        general="batch_norm_training, batch_norm_inference",
        arguments=(
            Argument("x", "data", _TF_X, roles="src"),
            _TF_SCALE,
            _TF_STATISTICS,
            _TF_EPSILON,
            _TF_FACTOR,
            _TF_FORMAT,
            _TF_IS_TRAINING,
            _TF_NAME,
        ),
        ranks=(4, 5),
        outputs=f"FusedBatchNormV3: {_TF_OUTPUTS}",
        returns="y (x's dtype); batch_mean and batch_variance, which are the new running "
        "statistics, the variance with Bessel's correction (divided by ``max(M - 1, 1)``); "
        "reserve_space_1 and reserve_space_2, which are the batch's mean and its biased variance, "
        "for the gradient; and reserve_space_3, empty. With ``is_training=False``, the arguments "
        "mean and variance are returned both as batch_mean and batch_variance and as reserve "
        "spaces 1 and 2. For an empty x, batch_mean and batch_variance are NaN, and the reserve "
        "spaces are zeros.",
        see_also="fused_batch_norm_grad_v3 : The gradient.",
        notes=(
            "TensorFlow 2.21 on a CPU differs: its Eigen kernel leaves the reserve spaces "
            "unwritten with ``is_training=False`` or an empty x, and returns a scalar as the last "
            "output. Its epsilon is a float32 that is not checked. The bits of its results change "
            "with the number of threads. ``tf.nn.fused_batch_norm`` and "
            "Keras use only the outputs y, batch_mean and batch_variance.",
        ),
        definition='TensorFlow API, "tf.raw_ops.FusedBatchNormV3"',
        example="""
>>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
>>> ones, none = np.ones(2, np.float32), np.empty(0, np.float32)
>>> found = tensorflow.fused_batch_norm_v3(x, ones, ones, none, none)
>>> found.batch_mean
array([3., 4.], dtype=float32)
>>> found.batch_variance, found.reserve_space_2
(array([6.6666665, 6.6666665], dtype=float32), array([5., 5.], dtype=float32))
""",
    ),
    Row(
        _TENSORFLOW,
        "fused_batch_norm_ex",
        "Operator ``_FusedBatchNormEx`` of TensorFlow, with an activation fused into it.",
        general="batch_norm_training, batch_norm_inference",
        arguments=(
            Argument("x", "data", _TF_X, roles="src"),
            _TF_SCALE,
            _TF_STATISTICS,
            Argument("side_input", "list", "What is added before the activation, with x's shape "
                     "and dtype. The attribute ``num_side_inputs`` is the length of this list.",
                     roles="src_1", default=()),
            _TF_EPSILON,
            _TF_FACTOR,
            Argument("activation_mode", "word", "The activation of the sum. Bytes are accepted "
                     "too. A NaN passes Relu.", roles="relu", default="Identity", optional=True,
                     words={"Identity": False, "Relu": True}),
            Argument("data_format", "word", "Whether the channels are on the last axis or on axis "
                     "1. Bytes are accepted too.", default="NHWC", optional=True,
                     words={"NHWC": "NXC", "NCHW": "NCX"}),
            _TF_IS_TRAINING,
            _TF_NAME,
        ),
        ranks=(4,),
        outputs=f"FusedBatchNormEx: {_TF_OUTPUTS}",
        returns="As for `fused_batch_norm_v3`; y is the result of the activation.",
        see_also="fused_batch_norm_v3 : Without an addition and a ReLU.",
        notes=(
            "TensorFlow 2.21 on a CPU differs: it has this operator only in builds with oneDNN, "
            'for float32 and bfloat16, with "Relu" and without a side input; reserve_space_3 then '
            "has one element for each element of x. The gradient does not need it if y is known.",
        ),
        definition='TensorFlow, "tensorflow/core/ops/nn_ops.cc", "_FusedBatchNormEx"',
        example="""
>>> x = np.array([[0, 0], [4, 2]], np.float32).reshape(1, 1, 2, 2)
>>> ones, none = np.ones(2, np.float32), np.empty(0, np.float32)
>>> tensorflow.fused_batch_norm_ex(
...     x, ones, 0 * ones, none, none, [x], epsilon=0, activation_mode="Relu").y
array([[[[0., 0.],
         [5., 3.]]]], dtype=float32)
""",
    ),
    Row(
        _TENSORFLOW,
        "fused_batch_norm_grad_v3",
        "Operator ``FusedBatchNormGradV3`` of TensorFlow (``tf.raw_ops``).",
        general="batch_norm_backward",
        arguments=(
            Argument("y_backprop", "data", "The gradient with respect to y: float16, bfloat16 or "
                     "float32.", roles="diff_dst"),
            Argument("x", "data", "The input of the forward pass, with the shape and dtype of "
                     "y_backprop.", roles="src"),
            Argument("scale", "vector", "The scaling factor.", roles="gamma"),
            Argument("reserve_space_1, reserve_space_2", "vector",
                     "The mean and the biased variance: the batch's if `is_training`, otherwise "
                     "the population's. The second is a variance, as in TensorFlow on a CPU; "
                     "cuDNN gives an inverse standard deviation instead: pass ``1 / inverse**2 - "
                     "epsilon``.", roles="mean, variance"),
            Argument("reserve_space_3", "vector", "Only its dtype is checked.", optional=True),
            _TF_EPSILON,
            _TF_FORMAT,
            Argument("is_training", "flag", "Whether the statistics depend on x.", default=True,
                     optional=True),
            _TF_NAME,
        ),
        ranks=(4, 5),
        outputs="FusedBatchNormGradV3: x_backprop, scale_backprop, offset_backprop, "
        "reserve_space_4, reserve_space_5",
        returns="x_backprop (x's dtype), scale_backprop and offset_backprop (float32, shape (C,)), "
        "and two empty float32 arrays, reserve_space_4 and reserve_space_5.",
        see_also="fused_batch_norm_v3 : The forward pass.",
        notes=(
            "TensorFlow 2.21 on a CPU differs: with ``is_training=False``, one of its two kernels "
            "refuses NCHW, and both refuse NCDHW; its oneDNN kernel returns scalars for the last "
            "two outputs. Its epsilon is a float32 that is not checked. The bits of its results "
            "change with the number of threads.",
        ),
        definition='TensorFlow API, "tf.raw_ops.FusedBatchNormGradV3"',
        example="""
>>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
>>> ones = np.ones(2, np.float32)
>>> grads = tensorflow.fused_batch_norm_grad_v3(
...     np.ones_like(x), x, ones, x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2)), None)
>>> grads.offset_backprop
array([4., 4.], dtype=float32)
""",
    ),
)

# fmt: on

#: {"module.operator": its row}
ROWS: Final[dict[str, Row]] = {
    f"{row.spec.module}.{row.name}": row
    for row in (*_NGRAPH_ROWS, *_ONEDNN_ROWS, *_TENSORFLOW_ROWS)
}
