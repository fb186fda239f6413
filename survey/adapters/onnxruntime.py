"""ONNX Runtime, on the CPU."""

from onnxruntime import InferenceSession

from . import demand
from .onnx import VECTORS, inference_by, model_of, training_by

NAME, PACKAGES, LAYOUT, OWN = "ONNX Runtime", ["onnxruntime"], "NCX", ()


def evaluated(training, src, *vectors, epsilon):
    model = model_of(src.shape, epsilon, training).SerializeToString()
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = dict(zip(("X", *VECTORS), (src, *map(demand, vectors)), strict=True))
    return tuple(session.run(None, inputs))


training, inference = training_by(evaluated), inference_by(evaluated)
