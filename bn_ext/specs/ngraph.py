"""nGraph: ``BatchNormTraining``, ``BatchNormInference`` and ``BatchNormTrainingBackprop``."""

from bn_ext.specs._sheet import Given, Result, backward, inference, sheet, training

__all__ = [
    "BatchNormTraining",
    "BatchNormTrainingBackprop",
    "batch_norm_inference",
    "batch_norm_training",
    "batch_norm_training_backprop",
]


def __dir__() -> list[str]:
    return __all__


batch_norm_training = sheet("ngraph.batch_norm_training")(training)
batch_norm_inference = sheet("ngraph.batch_norm_inference")(inference)


@sheet("ngraph.batch_norm_training_backprop")
def batch_norm_training_backprop(a: Given) -> Result:
    # The general function refuses a gamma of the wrong length.
    if a.gamma.shape == (a.channels,) != a.beta.shape:
        raise ValueError(f"beta: expected shape ({a.channels},), like gamma, got {a.beta.shape}")
    return backward(a)


BatchNormTraining = batch_norm_training.result
BatchNormTrainingBackprop = batch_norm_training_backprop.result
