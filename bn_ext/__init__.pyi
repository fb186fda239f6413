from bn_ext import dask as dask, mpi as mpi, specs as specs
from bn_ext._core import (
    BatchNormAddGradients as BatchNormAddGradients,
    BatchNormDoubleBackward as BatchNormDoubleBackward,
    BatchNormGradients as BatchNormGradients,
    BatchNormTraining as BatchNormTraining,
    batch_norm_backward as batch_norm_backward,
    batch_norm_backward_apply as batch_norm_backward_apply,
    batch_norm_backward_reduce as batch_norm_backward_reduce,
    batch_norm_canonical as batch_norm_canonical,
    batch_norm_count as batch_norm_count,
    batch_norm_double_backward as batch_norm_double_backward,
    batch_norm_inference as batch_norm_inference,
    batch_norm_sums as batch_norm_sums,
    batch_norm_training as batch_norm_training,
    batch_norm_training_apply as batch_norm_training_apply,
    batch_norm_training_merge as batch_norm_training_merge,
    batch_norm_training_reduce as batch_norm_training_reduce,
    batch_norm_training_stats as batch_norm_training_stats,
)
from bn_ext._layer import BatchNorm as BatchNorm
from bn_ext._runtime import (
    available_isas as available_isas,
    get_isa as get_isa,
    show_config as show_config,
)

__all__ = [
    "BatchNorm",
    "BatchNormAddGradients",
    "BatchNormDoubleBackward",
    "BatchNormGradients",
    "BatchNormTraining",
    "__version__",
    "available_isas",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
    "batch_norm_canonical",
    "batch_norm_count",
    "batch_norm_double_backward",
    "batch_norm_inference",
    "batch_norm_sums",
    "batch_norm_training",
    "batch_norm_training_apply",
    "batch_norm_training_merge",
    "batch_norm_training_reduce",
    "batch_norm_training_stats",
    "get_isa",
    "mpi",
    "show_config",
    "specs",
]

__version__: str
