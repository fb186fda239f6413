"""TVM's operator in Relax, compiled by LLVM."""

from functools import cache

import numpy as np
import tvm
from tvm import relax

from . import demand

NAME, PACKAGES, LAYOUT, OWN = "TVM", ["tvm"], "NCX", ()


@cache
def compiled(shape, epsilon, training):
    builder = relax.BlockBuilder()
    vector = relax.TensorType(shape[1:2], "float32")
    src = relax.Var("src", relax.TensorType(shape, "float32"))
    vectors = [relax.Var(name, vector) for name in ("gamma", "beta", "mean", "variance")]
    with builder.function("main", [src, *vectors]):
        normalized = relax.op.nn.batch_norm(
            src, *vectors, axis=1, epsilon=epsilon, momentum=1.0, training=training
        )
        builder.emit_func_output(builder.emit(normalized))
    passes = relax.transform
    decompose = passes.DecomposeOpsForTraining if training else passes.DecomposeOpsForInference
    module = decompose()(builder.get())
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())


def normalized(training, src, *vectors, epsilon):
    machine = compiled(src.shape, epsilon, training)
    results = machine["main"](*(tvm.runtime.tensor(demand(a)) for a in (src, *vectors)))
    return tuple(a.numpy() for a in results)


def training(src, gamma, beta, epsilon):
    zeros = np.zeros(src.shape[1], "f4")
    return normalized(True, src, gamma, beta, zeros, zeros + 1, epsilon=epsilon)


def inference(src, mean, variance, gamma, beta, epsilon):
    return normalized(False, src, gamma, beta, mean, variance, epsilon=epsilon)[0]
