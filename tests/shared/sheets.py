"""The operators of bn_ext.specs as tests call them, and every kind of object that may hold an
array.
"""

import inspect

import numpy as np
from cases import EPSILON, Family

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

SINGLE = "float32", "float16", "bfloat16"
#: {module: {dtype of the data: dtypes of the vectors, which must be all alike}}
TYPES = {
    onednn_graph: {n: ["float32"] for n in SINGLE} | {"bfloat16": ["float32", "bfloat16"]},
    ngraph: {n: [n] for n in ("float64", *SINGLE)},
    tensorflow: {n: ["float32"] for n in SINGLE},
}


#: Of specifications' names, those of the general function; other names are the same.
ROLES = dict.fromkeys(["input", "x", "input_forward"], "src")
ROLES |= dict.fromkeys(["output_delta", "normalized_delta", "y_backprop"], "diff_dst")
ROLES |= {"scale": "gamma", "offset": "beta", "reserve_space_1": "mean"}
ROLES |= dict.fromkeys(["reserve_space_2", "reserve_space_3"], "variance")


class Sheet:
    """An operator, and the names of its arguments in the general function.

    `fixed` has its other arguments. Arrays are copies, since an operator may change its arguments.
    """

    def __init__(self, operator, data_format, fixed=None, **roles):
        self.operator, self.data_format = operator, data_format
        self.fixed = {**(fixed or {}), "epsilon": EPSILON}
        self.parameters = inspect.signature(operator).parameters
        arrays = [n for n, a in self.parameters.items() if a.kind is not a.KEYWORD_ONLY]
        self.roles = roles = {name: ROLES.get(name, name) for name in arrays} | roles
        (self.types,) = [types for module, types in TYPES.items() if self.is_of(module)]
        self.data = [name for name, role in roles.items() if role in ("src", "diff_dst")]
        #: Not TensorFlow's third reserve space, which may have any shape.
        self.vectors = [n for n in roles if n not in self.data and n != "reserve_space_3"]
        (self.src,) = [name for name, role in roles.items() if role == "src"]

    def problem(self, rng, data="float32", vector=None):
        dims = (2, 3, 4, 5) if self.data_format == "NXC" else (2, 5, 3, 4)
        return Family(rng, dims, self.data_format, data, vector)

    def arguments(self, p, carry=lambda array: array):
        return {name: carry(np.array(getattr(p, role))) for name, role in self.roles.items()}

    def call(self, arguments):
        """The results, as a tuple."""
        results = self.operator(**arguments)
        return results if isinstance(results, tuple) else (results,)

    def __call__(self, p, carry=lambda array: array, **changed):
        return self.call({**self.arguments(p, carry), **self.fixed, **changed})

    def is_of(self, module):
        """Is it an operator of this module?"""
        return self.operator.__module__ == module.__name__

    def may_be_none(self, name):
        return name == "reserve_space_3" or self.parameters[name].default is None


V3 = tensorflow.fused_batch_norm_v3
SHEETS = {
    "onednn_training": Sheet(onednn_graph.batch_norm_forward_training, "NXC"),
    "onednn_inference": Sheet(onednn_graph.batch_norm_inference, "NXC"),
    "onednn_backprop": Sheet(onednn_graph.batch_norm_training_backprop, "NXC"),
    "onednn_backward": Sheet(onednn_graph.batch_norm_training_backward, "NXC"),
    "ngraph_training": Sheet(ngraph.batch_norm_training, "NCX"),
    "ngraph_inference": Sheet(ngraph.batch_norm_inference, "NCX"),
    "ngraph_backprop": Sheet(ngraph.batch_norm_training_backprop, "NCX", beta="gamma"),
    "tensorflow_training": Sheet(V3, "NXC", {"exponential_avg_factor": 0.3}),
    "tensorflow_inference": Sheet(V3, "NXC", {"is_training": False}),
    "tensorflow_grad": Sheet(tensorflow.fused_batch_norm_grad_v3, "NXC"),
}


def forward_of(p, *, is_training=True, factor=1, correction=0, **options):
    """The general functions' dst; in training, also running statistics, kept in float32, and the
    batch's own, all in the dtype of the vectors.
    """
    options = {"epsilon": EPSILON, "data_format": p.data_format, **options}
    if not is_training:
        arrays = p.src, p.mean, p.variance, p.gamma, p.beta
        return [bn_ext.batch_norm_inference(*arrays, **options)]
    running = [a.astype(np.float32) for a in (p.mean, p.variance)]
    options |= {"running_mean": running[0], "running_variance": running[1]}
    options |= {"exponential_avg_factor": factor, "correction": correction}
    out = None, np.empty_like(p.mean), np.empty_like(p.mean)
    dst, *batch = bn_ext.batch_norm_training(p.src, p.gamma, p.beta, out=out, **options)
    return [dst, *(a.astype(p.mean.dtype) for a in running), *batch]


# ---- what may carry the array -----------------------------------------------------------


class WithArray:
    def __init__(self, array):
        self.array, self.asked = array, 0

    def __array__(self, *_, **__):
        self.asked += 1
        return self.array


class WithInterface:
    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


class WithDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Subclass(np.ndarray):
    """Claims a dtype and shape that fit, whatever its own."""

    dtype = property(lambda self: np.dtype(np.float32))
    shape = property(lambda self: (2, 3, 4, 5))
    ndim = 4


CARRIERS = {
    "array": lambda array: array,
    "memoryview": memoryview,
    "__array__": WithArray,
    "__array_interface__": WithInterface,
    "DLPack": WithDLPack,
    "subclass": lambda array: array.view(Subclass),
}


class Untouchable:
    def __getattribute__(self, name):
        raise AssertionError("gamma was read")
