"""The layer, over the ranks of a communicator."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsIndex

from numpy.typing import NDArray

from bn_ext import _core, _layer
from bn_ext._mpi.exchange import calls_of, tell
from bn_ext._mpi.parts import GradientPart, TrainingPart
from bn_ext._mpi.ranks import as_communicator, as_timeout
from bn_ext._typing import Array, Flag

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["BatchNorm"]


class BatchNorm(_layer.BatchNorm):
    """`bn_ext.BatchNorm` over the samples of all ranks.

    **diff_gamma and diff_beta are those of all samples, on every rank alike: do not sum or average
    them over ranks again.**

    Parameters
    ----------
    channels
        As for `bn_ext.BatchNorm`.
    comm, exact, timeout
        As for `batch_norm_backward`.
    **options
        As for `bn_ext.BatchNorm`: all else but channels.

    Notes
    -----
    Ranks that do the same steps keep the same parameters and statistics, to the bit. A batch counts
    in num_batches_tracked on a rank without samples as well.

    After ``eval()``, ``forward`` uses the running statistics, and no other rank is asked; nor does
    ``backward`` ask one in a frozen layer. All other calls are made by all ranks, and what ends one
    on one rank is an error on all.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import bn_ext.mpi
    >>> layer = bn_ext.mpi.BatchNorm(2, comm=MPI.COMM_WORLD, relu=True)
    >>> src = np.array([[1, 2], [3, 6]], np.float32)
    >>> layer.forward(src).round(3)
    array([[0., 0.],
           [1., 1.]], dtype=float32)
    >>> layer.backward(np.ones_like(src)).shape
    (2, 2)
    """

    __module__ = "bn_ext.mpi"

    def __init__(
        self,
        channels: SupportsIndex,
        *,
        comm: "MPI.Intracomm",
        exact: Flag = True,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(channels, **options)
        self.comm = as_communicator(comm)
        self.exact = _core._as_flag(exact, "exact")
        self.timeout = as_timeout(timeout)

    def forward(self, src: Array, src_1: Array | None = None) -> NDArray[Any]:
        """As `bn_ext.BatchNorm.forward`, with the statistics of the samples of all ranks."""
        calls: int | None = -1
        try:
            calls = calls_of(self.comm)
            return super().forward(src, src_1)
        except BaseException as error:
            if self.training and not self.frozen:
                part = TrainingPart(self._seen(src))
                tell(error, calls, part, "batch_norm_training", **self._over(), rounds=2)
            raise

    def backward(self, diff_dst: Array) -> Any:
        """As `bn_ext.BatchNorm.backward`; parameter gradients are those of all samples."""
        calls: int | None = -1
        saved = self._saved
        try:
            calls = calls_of(self.comm)
            return super().backward(diff_dst)
        except BaseException as error:
            from_batch = self.training if saved is None else saved.from_batch
            if not self.frozen and (from_batch or self.affine):
                part = GradientPart(self._seen(diff_dst))
                tell(error, calls, part, "batch_norm_backward", **self._over())
            raise

    def _seen(self, data: Array) -> dict[str, Any]:
        """What tells which sum the others are at."""
        vectors = {"mean": self.running_mean, "gamma": self.running_mean}
        return {"src": data, "data_format": self.data_format, **vectors}

    def _training(self, *arguments: Any, **options: Any) -> _core.BatchNormTraining[NDArray[Any]]:
        from bn_ext import mpi  # which imports this

        step: Callable[..., _core.BatchNormTraining[NDArray[Any]]] = mpi.batch_norm_training
        return step(*arguments, **options, **self._over())

    def _gradients(self, *arguments: Any, **options: Any) -> Any:
        from bn_ext import mpi

        if not options["is_training"] and not options["param_grads"]:
            return super()._gradients(*arguments, **options)  # there is nothing to sum
        step: Callable[..., Any] = mpi.batch_norm_backward
        return step(*arguments, **options, **self._over())

    def _over(self) -> dict[str, Any]:
        return {"comm": self.comm, "exact": self.exact, "timeout": self.timeout}

    def _is_batch(self, data: NDArray[Any]) -> bool:
        return True
