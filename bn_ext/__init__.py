"""Batch normalization and its gradient for NumPy arrays, on the CPU, with the same bits everywhere.

`batch_norm_training`, `batch_norm_inference` and `batch_norm_backward` take arrays of any strides.
`bn_ext.specs` has the operators of oneDNN Graph, nGraph and TensorFlow, with the arguments that
their specifications define. `bn_ext.testing`, `bn_ext.torch`, `bn_ext.dask` and `bn_ext.autograd`
are imported by name.
"""

from typing import TYPE_CHECKING

# _runtime comes first: before it loads _core, it sets how OpenMP's idle threads wait.
from bn_ext._runtime import available_isas, get_isa, keep_memory, show_config  # isort: skip
from bn_ext._functions import (
    batch_norm_backward,
    batch_norm_double_backward,
    batch_norm_inference,
    batch_norm_statistics_backward,
    batch_norm_training,
)
from bn_ext._layer import BatchNorm
from bn_ext._results import (
    BatchNormAddGradients,
    BatchNormDoubleBackward,
    BatchNormGradients,
    BatchNormTraining,
)
from bn_ext._sums import GradientSums, Statistics
from bn_ext._version import __version__

if TYPE_CHECKING:
    from bn_ext import specs as specs

__all__ = [
    "BatchNorm",
    "BatchNormAddGradients",
    "BatchNormDoubleBackward",
    "BatchNormGradients",
    "BatchNormTraining",
    "GradientSums",
    "Statistics",
    "__version__",
    "available_isas",
    "batch_norm_backward",
    "batch_norm_double_backward",
    "batch_norm_inference",
    "batch_norm_statistics_backward",
    "batch_norm_training",
    "get_isa",
    "keep_memory",
    "show_config",
    "specs",
]


#: Submodules that users import themselves: most programs do not use them.
_OPTIONAL = "autograd", "dask", "testing", "torch"

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every attribute

    def __getattr__(name):
        """Import specs when it is first used: most programs do not use it."""
        if name == "specs":
            import bn_ext.specs as specs  # `from bn_ext` would ask this function again

            return specs
        hint = f"; import bn_ext.{name}" if name in _OPTIONAL else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """The public names, and the optional submodules that have been imported."""
    return sorted([*__all__, *globals().keys() & _OPTIONAL])
