from bn_ext import specs as specs
from bn_ext._core import (
    BatchNormGradients as BatchNormGradients,
)
from bn_ext._core import (
    batch_norm_backward as batch_norm_backward,
)
from bn_ext._core import (
    batch_norm_backward_apply as batch_norm_backward_apply,
)
from bn_ext._core import (
    batch_norm_backward_reduce as batch_norm_backward_reduce,
)
from bn_ext._runtime import available_isas as available_isas
from bn_ext._runtime import get_isa as get_isa
from bn_ext._runtime import show_config as show_config

__all__ = [
    "BatchNormGradients",
    "__version__",
    "available_isas",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
    "get_isa",
    "show_config",
    "specs",
]

__version__: str
