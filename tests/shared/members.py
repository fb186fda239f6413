"""The functions of the family, and each way to call them: the one table for tests of all of them.

Same bits, layouts, gates, shared memory, pages that must not be touched, allocations that fail,
floating-point modes and refusals read it. A new argument goes into FUNCTIONS, or into a row of
MEMBERS if it may be absent; a new array gets its values in cases.Family.
"""

import copy
import functools
import inspect
import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cases import EPSILON, INPUTS, Family, all_bits, packed

import bn_ext

AFFINE = ["gamma", "beta"]
SECOND = ["diff_diff_src", "diff_diff_gamma", "diff_diff_beta"]
#: Arrays of src's shape that functions read, and arrays that a forward pass changes.
TENSORS = ["src", "diff_dst", "src_1", "dst", "diff_diff_src"]
RUNNING = ["running_mean", "running_variance"]
CHANGED = [*RUNNING, "workspace"]


class Function(NamedTuple):
    """Its operands, and for each result "tensor" (like src), "vector" (like gamma) or "statistics"
    (float64).
    """

    operands: list[str]
    results: dict[str, str]


GRADIENTS = {"diff_src": "tensor", "diff_gamma": "vector", "diff_beta": "vector"}
NORMALIZED = {"dst": "tensor", "mean": "statistics", "variance": "statistics"}
TWICE = {"diff_src": "tensor", "diff_diff_dst": "tensor", "diff_gamma": "vector"}
FUNCTIONS = {
    "backward": Function(INPUTS, GRADIENTS),
    "GradientSums": Function(INPUTS[:3], {}),
    "training": Function(["src", *AFFINE], NORMALIZED),
    "Statistics": Function(["src"], {}),
    "inference": Function(["src", "mean", "variance", *AFFINE], {"dst": "tensor"}),
    "double_backward": Function([*INPUTS, *SECOND], TWICE),
}


def function_of(name):
    """The function, or the class, whose call makes sums."""
    return getattr(bn_ext, name if name[0].isupper() else f"batch_norm_{name}")


def taken_by(name, arguments):
    """The arguments among these that the function of this name has."""
    parameters = inspect.signature(function_of(name)).parameters
    return {argument: value for argument, value in arguments.items() if argument in parameters}


@dataclass(frozen=True)
class Member:
    """A function with some of the arguments that may be absent: arrays and flags."""

    function: str
    arrays: list[str] = field(default_factory=list)
    flags: dict = field(default_factory=dict)

    @property
    def reads(self):
        names = {*FUNCTIONS[self.function].operands, *self.arrays}
        return [name for name in TENSORS if name in names]

    @property
    def returns(self):
        last = ["tensor"] if "diff_src_1" in self.flags else []
        return [*FUNCTIONS[self.function].results.values(), *last]

    def like(self, p):
        kinds = {"tensor": p.src, "vector": p.gamma, "statistics": np.empty(len(p.gamma))}
        return [kinds[kind] for kind in self.returns]

    def arguments(self, p, **options):
        """Its arguments, by name: those of p, its flags, and of the options those that it has."""
        names = [*FUNCTIONS[self.function].operands, *self.arrays]
        options = {"epsilon": EPSILON, "data_format": p.data_format, **self.flags, **options}
        if self.function == "inference" and options.get("out") is not None:
            (options["out"],) = options["out"]
        return {name: getattr(p, name) for name in names} | taken_by(self.function, options)

    def call(self, p, tensors=None, *, summed=False, **options):
        """The results for a problem, and the other arrays that the call changed; `summed`: from
        sums of its own.
        """
        arguments = self.arguments(p, **options) | (tensors or {})
        if "workspace" in arguments:
            arguments["workspace"] = packed(p.passes, arguments["src"], p.data_format)
        changed = []
        if self.function in ("training", "inference"):
            changed = [name for name in CHANGED if name in arguments]
            arguments |= {name: arguments[name].copy() for name in changed}
        changed = [arguments[name] for name in changed]
        in_two = {"backward": backward_from_sums, "training": training_from_sums}
        if summed and self.function in in_two:
            return in_two[self.function](arguments), changed
        result = function_of(self.function)(**arguments)
        return (result if isinstance(result, tuple) else (result,)), changed

    def run(self, p, tensors=None, **options):
        """The results, and the bits of all that the call returned or changed."""
        results, changed = self.call(p, tensors, **options)
        return results, all_bits([*results, *changed])


def backward_from_sums(arguments):
    sums = bn_ext.GradientSums(**taken_by("GradientSums", arguments))
    return bn_ext.batch_norm_backward(**arguments, sums=sums)


def training_from_sums(arguments):
    sums = bn_ext.Statistics(**taken_by("Statistics", arguments))
    if "running_mean" in arguments:
        sums.update_running(*(arguments[name] for name in (*RUNNING, *UPDATE)))
    kept, out = [sums.mean, sums.variance], arguments.pop("out", None) or [None] * 3
    statistics = {"mean": kept[0], "variance": kept[1], "out": out[0]}
    dst = bn_ext.batch_norm_inference(**taken_by("inference", arguments), **statistics)
    for k, array in enumerate(out[1:]):
        if array is not None:
            array[...] = kept[k]
            kept[k] = array
    return bn_ext.BatchNormTraining(dst, *kept)


RELU, EXACT, ADD = {"relu": True}, {"exact": True}, {"relu": True, "diff_src_1": True}
UPDATE = {"exponential_avg_factor": 0.3, "correction": 0}
FUSED = ["src_1", "workspace"]
MEMBERS = {
    "backward": Member("backward"),
    "backward, beta": Member("backward", ["beta"], RELU),
    "backward, dst": Member("backward", ["dst"], RELU),
    "backward, workspace": Member("backward", ["workspace"], RELU),
    "backward, dst, add": Member("backward", ["dst"], ADD),
    "backward, workspace, add": Member("backward", ["workspace"], ADD),
    "training": Member("training"),
    "training, fused": Member("training", [*FUSED, *RUNNING], {**RELU, **UPDATE}),
    "inference": Member("inference"),
    "inference, fused": Member("inference", FUSED, RELU),
    "double backward": Member("double_backward"),
    "backward, exact": Member("backward", [], EXACT),
    "backward, beta, exact": Member("backward", ["beta"], {**RELU, **EXACT}),
    "backward, dst, add, exact": Member("backward", ["dst"], {**ADD, **EXACT}),
    "training, fused, exact": Member("training", [*FUSED, *RUNNING], {**RELU, **UPDATE, **EXACT}),
}


def problem(rng, shape, data_format, *types):
    """A problem with two different gates, `dst` and `passes`, not from a forward pass; and with
    arrays for all results.
    """
    p = Family(rng, shape, data_format, *types)
    p.passes = rng.random(p.src.shape, np.float32) < 0.5
    p.dst, p.workspace = p.src_1 * p.passes, packed(p.passes, p.src, p.data_format)
    p.result, p.another = np.empty_like(p.src), np.empty_like(p.src)
    p.vector, p.another_vector = np.empty_like(p.mean), np.empty_like(p.mean)
    p.sums = np.ones((2, len(p.mean)))
    return p


def laid(p, tensor, vector=lambda array: array):
    """The problem with its tensors and its vectors as these functions give them."""
    problem = copy.copy(p)
    for name, array in vars(p).items():
        if isinstance(array, np.ndarray) and name not in ("passes", "workspace", "sums"):
            setattr(problem, name, tensor(array) if array.shape == p.src.shape else vector(array))
    return problem


#: Arrays of a problem for results, by their kind.
OUTS = {"tensor": ["result", "another"], "vector": ["vector", "another_vector"]}
OUTS["statistics"] = OUTS["vector"]


def calls(p, **options):
    """Each member's calls, ready to be made with a problem's own arrays: its sums; the function
    with arrays for all results, and in place; with frozen statistics; and from sums.
    """
    options = {"epsilon": getattr(p, "epsilon", EPSILON), **options}
    frozen = {"is_training": False}
    for member in MEMBERS.values():
        function = function_of(member.function)
        arguments = member.arguments(p, **options)
        modes = [{}, frozen] if taken_by(member.function, frozen) else [{}]
        for mode, out in itertools.product(modes, outs(p, member)):
            yield functools.partial(function, **member.arguments(p, out=out, **options, **mode))
        if member.function == "training":
            yield functools.partial(bn_ext.Statistics, **taken_by("Statistics", arguments))
        if member.function == "backward":
            yield functools.partial(bn_ext.GradientSums, **taken_by("GradientSums", arguments))
            shared = {"data_format": p.data_format, "exact": "exact" in arguments}
            shared["num_threads"] = options.get("num_threads")
            sums = bn_ext.GradientSums(p.src, p.diff_dst, p.mean, **shared)
            if not sums.exact:
                sums._sums = p.sums
            yield functools.partial(function, **arguments, sums=sums, out=next(outs(p, member)))
    vectors = p.beta, p.mean, p.variance, p.gamma
    epsilon = options["epsilon"]
    yield functools.partial(bn_ext.batch_norm_statistics_backward, *vectors, epsilon=epsilon)


def outs(p, member):
    """`out` with arrays of its own, and with tensors in place of the last operands."""
    for names in (OUTS["tensor"], member.reads[-member.returns.count("tensor") :]):
        kinds = {kind: iter(OUTS[kind]) for kind in OUTS} | {"tensor": iter(names)}
        yield tuple(getattr(p, next(kinds[kind])) for kind in member.returns)
