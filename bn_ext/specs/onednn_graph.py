"""oneDNN Graph: the forward pass of training and of inference; the gradient, under two names.

The gradient is the versioned operator ``BatchNormTrainingBackprop-1`` in the oneDNN Graph
specification, and ``BatchNormTrainingBackward`` in the library's Graph API.
"""

import numpy as np

from bn_ext.specs._sheet import Given, Result, backward, inference, sheet, training

__all__ = [
    "BatchNormForwardTraining",
    "BatchNormTrainingBackprop",
    "BatchNormTrainingBackward",
    "batch_norm_forward_training",
    "batch_norm_inference",
    "batch_norm_training_backprop",
    "batch_norm_training_backward",
]


def __dir__() -> list[str]:
    return __all__


@sheet("onednn_graph.batch_norm_forward_training")
def batch_norm_forward_training(a: Given) -> Result:
    if (a.gamma is None) != (a.beta is None):
        given, absent = ("beta", "gamma") if a.gamma is None else ("gamma", "beta")
        raise ValueError(f"gamma, beta: expected both or neither, got {given} without {absent}")
    old = a.running_mean, a.running_variance
    new = [array.astype(np.float32) for array in old]
    found = training(
        a,
        running_mean=new[0],
        running_variance=new[1],
        exponential_avg_factor=1 - a.momentum,
        correction=0,
        out=(None, *map(np.empty_like, old)),
    )
    running = [array.astype(a.dtype, copy=False) for array in new]
    return found.dst, *running, found.mean, found.variance


batch_norm_inference = sheet("onednn_graph.batch_norm_inference")(inference)


@sheet("onednn_graph.batch_norm_training_backprop")
def batch_norm_training_backprop(a: Given) -> Result:
    grads = backward(a, param_grads=a.gamma_delta or a.beta_delta)
    return (
        grads.diff_src,
        grads.diff_gamma if a.gamma_delta else None,
        grads.diff_beta if a.beta_delta else None,
    )


@sheet("onednn_graph.batch_norm_training_backward")
def batch_norm_training_backward(a: Given) -> Result:
    if a.diff_gamma != a.diff_beta:
        raise ValueError(
            f"diff_gamma, diff_beta: expected both or neither, got {a.diff_gamma}, {a.diff_beta}"
        )
    return backward(a, param_grads=a.diff_gamma)


BatchNormForwardTraining = batch_norm_forward_training.result
BatchNormTrainingBackprop = batch_norm_training_backprop.result
BatchNormTrainingBackward = batch_norm_training_backward.result
