"""Batch normalization and its gradient for Dask arrays, chunked along any axes.

The functions have the names and arguments of the general ones. What needs all the data, statistics
and the sums of the gradient, is computed at once, block by block; what is as large as the data is
a Dask array, of which nothing is computed yet.

    src (chunks) --reduce--> sums of a block --tree of +--> sums of all
         |                                                      |
         '---------------apply, when it is asked for <----------'

These are two graphs: in a single one, each chunk would stay in memory until all are summed.
"""

try:
    import dask.array as _  # noqa: F401
except ImportError as _error:
    raise ModuleNotFoundError(
        f"bn_ext.dask: expected Dask, got {_error!r:.200}; python -m pip install 'dask[array]'",
        name="dask",
    ) from _error

from bn_ext.dask._functions import (
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_training,
)

__all__ = ["batch_norm_backward", "batch_norm_inference", "batch_norm_training"]


def __dir__() -> list[str]:
    return __all__
