"""ONNX's own evaluator, which is what the operator means; and models for engines that read ONNX."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from . import demand

NAME, PACKAGES, LAYOUT, OWN = "ONNX's reference", ["onnx"], "NCX", ()
VECTORS = "scale", "B", "input_mean", "input_var"


def model_of(shape, epsilon, training, **constants):
    """A model of the operator, for a src of this shape; other inputs are given or constants."""
    results = ("Y", "running_mean", "running_var")[: 3 if training else 1]
    options = {"epsilon": epsilon, "momentum": 0.0, "training_mode": int(training)}
    node = helper.make_node("BatchNormalization", ["X", *VECTORS], results, **options)

    def described(name):
        dims = shape if name in "XY" else shape[1:2]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    inputs = [described(name) for name in ("X", *VECTORS) if name not in constants]
    outputs = [described(name) for name in results]
    arrays = [numpy_helper.from_array(a, name) for name, a in constants.items()]
    graph = helper.make_graph([node], "model", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def evaluated(training, src, *vectors, epsilon):
    model = model_of(src.shape, epsilon, training)
    inputs = dict(zip(("X", *VECTORS), (src, *map(demand, vectors)), strict=True))
    return tuple(ReferenceEvaluator(model).run(None, inputs))


def training_by(evaluated):
    def training(src, gamma, beta, epsilon):
        zeros = np.zeros(src.shape[1], "f4")
        return evaluated(True, src, gamma, beta, zeros, zeros + 1, epsilon=epsilon)

    return training


def inference_by(evaluated):
    def inference(src, mean, variance, gamma, beta, epsilon):
        return evaluated(False, src, gamma, beta, mean, variance, epsilon=epsilon)[0]

    return inference


training, inference = training_by(evaluated), inference_by(evaluated)
