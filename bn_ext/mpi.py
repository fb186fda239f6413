"""Batch normalization over the ranks of an MPI communicator, each with samples of its own.

The extra ``mpi`` installs what this module needs. ``import bn_ext`` does not import this module.
Importing this module does not initialize MPI. Run programs with ``mpiexec -n 4 python -m mpi4py
program.py``: an uncaught error on one rank then ends all ranks.
"""

from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Required,
    SupportsFloat,
    SupportsIndex,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core, _layer
from bn_ext._core import BatchNormAddGradients, BatchNormGradients, BatchNormTraining
from bn_ext._mpi.agreement import CollectiveError, CollectiveTimeoutError
from bn_ext._mpi.exchange import (
    Exchange,
    as_communicator,
    as_flags,
    on_all_ranks,
    over_ranks,
)
from bn_ext._mpi.parts import GradientPart, TrainingPart
from bn_ext._typing import Array, DataFormat, Flag, Out

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "BatchNorm",
    "CollectiveError",
    "CollectiveTimeoutError",
    "Pending",
    "batch_norm_backward",
    "batch_norm_backward_start",
    "batch_norm_training",
]


def __dir__() -> list[str]:
    return __all__


_T = TypeVar("_T", covariant=True)
_Gradients = BatchNormGradients[NDArray[Any], Any]
_AddGradients = BatchNormAddGradients[NDArray[Any], Any]


class _Options(TypedDict, total=False):
    epsilon: Required[SupportsFloat]
    comm: Required["MPI.Intracomm"]
    exact: Flag
    check: Flag
    timeout: float | None
    data_format: DataFormat
    is_training: Flag
    param_grads: Flag
    out: Out | None
    num_threads: SupportsIndex | None
    relu: Flag
    beta: Array | None
    dst: Array | None
    workspace: Array | None


class Pending(Generic[_T]):
    """A gradient whose sums are on their way: what `batch_norm_backward_start` returns.

    It holds references to the arrays. The gradient is not computed until `wait` is called. When the
    process ends, the sums get five seconds to arrive. If another rank has not made the call by
    then, MPI cannot be finalized, and all ranks are aborted with a message.
    """

    def __init__(self, exchange: Exchange, part: GradientPart) -> None:
        self._exchange = exchange
        self._part: GradientPart | None = part
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Have the sums arrived? In most MPI libraries, asking also advances the exchange."""
        with _core._DefaultMode():
            return self._part is None or self._exchange.last.arrived()

    def wait(self) -> _T:
        """Wait for the sums of all ranks; return the gradients. A second call returns the same.

        Returns
        -------
        BatchNormGradients or BatchNormAddGradients
            As from `batch_norm_backward`.

        Raises
        ------
        CollectiveError
            If another rank failed. A failed rank raises its own error.
        CollectiveTimeoutError
            If the sums have not arrived `timeout` seconds after this call.
        """
        if self._part is not None:
            with _core._DefaultMode():
                total = self._exchange.total()
            part, self._part = self._part, None  # apply only once: it may overwrite what it reads
            try:
                with _core._DefaultMode():
                    self._result = part.apply(total)
                self._exchange.last.give_back()
            except BaseException as error:
                self._error = error
                self._exchange.lost(error)
        if self._error is not None:
            raise self._error
        found: _T = self._result
        return found


@overload
def batch_norm_backward(
    src: Array, diff_dst: Array, mean: Array, variance: Array, gamma: Array | None = None, *,
    diff_src_1: Literal[False] = False, **options: Unpack[_Options],
) -> _Gradients: ...  # fmt: skip
@overload
def batch_norm_backward(
    src: Array, diff_dst: Array, mean: Array, variance: Array, gamma: Array | None = None, *,
    diff_src_1: Literal[True], **options: Unpack[_Options],
) -> _AddGradients: ...  # fmt: skip
@on_all_ranks(GradientPart, "batch_norm_backward")
def batch_norm_backward(
    src: Array,
    diff_dst: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    comm: "MPI.Intracomm",
    exact: Flag = True,
    check: Flag = False,
    timeout: float | None = None,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Flag = False,
) -> _Gradients | _AddGradients:
    """Gradient of batch normalization over the samples of all ranks.

    **The parameter gradients are those of all samples, the same on every rank: do not sum or
    average them over ranks again.** (The gradients of other layers, which each rank computes from
    its own samples, must be summed.)

    Parameters
    ----------
    src, diff_dst : array
        As for `bn_ext.batch_norm_backward`: this rank's samples. A rank without samples passes
        arrays of shape (0, ..., C) or (0, C, ...).
    mean, variance, gamma, epsilon
        As for `bn_ext.batch_norm_backward`, the same on all ranks.
    comm : mpi4py.MPI.Intracomm
        The ranks that share a batch; to leave ranks out, pass what ``comm.Split`` returns. All
        ranks must pass the same `exact` and `check`, and a `timeout` if any of them does.
    exact : bool, optional
        If True, the sums are exact and rounded once: the bits of the result depend neither on the
        number of ranks nor on which rank has which samples. If False, sums in float64 are added.
        Ranks then send less, and the bits are the same only for the same samples on the same ranks.
    check : bool, optional
        If True, ranks compare their arguments in every call, in one more small collective, and the
        error names the rank that differs and the argument. If False, they compare only in the first
        call of a function with a given number of channels, dtype, `exact` and use of a timeout.
        After that, the error only says that ranks differ, and a rank with another number of
        channels or dtype may go unnoticed (see Notes).
    timeout : float, optional
        Seconds to wait for the other ranks. After a timeout, the communicator can no longer be
        used.
    data_format, is_training, param_grads, out, num_threads, relu, beta, dst, workspace, diff_src_1
        As for `bn_ext.batch_norm_backward`. relu, is_training and beta are the same on all ranks.

    Returns
    -------
    BatchNormGradients or BatchNormAddGradients
        diff_src of this rank's samples; diff_gamma and diff_beta of all samples.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`, on the rank whose argument is wrong; likewise for
        comm, exact, check and timeout.
    CollectiveError
        On all other ranks if one has raised such an error (but see `CollectiveError`); on all ranks
        if they differ in an argument that must be the same. The error names the rank and the
        argument if ranks compared their arguments before the sum.
    CollectiveTimeoutError
        If not all ranks have made the call in time.

    Notes
    -----
    The sums take one collective, an allreduce. A header tells every rank whether one of them has
    failed, or has another epsilon, mean, variance, gamma, beta, relu or is_training. The header
    cannot be read if ranks send different numbers of bytes. That can happen with ``check=False``:
    for example, after calls with 64 and with 128 channels, one rank calls with 64 and the others
    with 128. The outcome depends on the MPI library: an error, a crash or a deadlock.

    A rank's MemoryError after the sums have arrived is raised on that rank alone.

    Examples
    --------
    On one rank (if there are more, each passes its own samples):

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import bn_ext.mpi
    >>> src, diff_dst = np.random.default_rng(0).standard_normal((2, 6, 3))
    >>> found = bn_ext.mpi.batch_norm_training(src, epsilon=1e-5, comm=MPI.COMM_WORLD)
    >>> grads = bn_ext.mpi.batch_norm_backward(
    ...     src, diff_dst, found.mean, found.variance, epsilon=1e-5, comm=MPI.COMM_WORLD)
    >>> np.allclose(grads.diff_beta, diff_dst.sum(axis=0))
    True
    """
    found: _Gradients = over_ranks("batch_norm_backward", GradientPart(locals()))
    return found


@overload
def batch_norm_backward_start(
    src: Array, diff_dst: Array, mean: Array, variance: Array, gamma: Array | None = None, *,
    diff_src_1: Literal[False] = False, **options: Unpack[_Options],
) -> Pending[_Gradients]: ...  # fmt: skip
@overload
def batch_norm_backward_start(
    src: Array, diff_dst: Array, mean: Array, variance: Array, gamma: Array | None = None, *,
    diff_src_1: Literal[True], **options: Unpack[_Options],
) -> Pending[_AddGradients]: ...  # fmt: skip
@on_all_ranks(GradientPart, "batch_norm_backward_start", waits=False)
def batch_norm_backward_start(
    src: Array,
    diff_dst: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    comm: "MPI.Intracomm",
    exact: Flag = True,
    check: Flag = False,
    timeout: float | None = None,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Flag = False,
) -> Pending[Any]:
    """`batch_norm_backward` without waiting: it sums this rank's samples and sends the sums off.

    Work that is done before ``wait()``, such as the weight gradient of the convolution that reads
    dst, hides the time of the exchange.

    **The parameter gradients are those of all samples, the same on every rank: do not sum or
    average them over ranks again.**

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma, epsilon, comm, exact, check
        As for `batch_norm_backward`. Do not change any array before ``wait()``.
    timeout : float, optional
        How many seconds ``wait()`` waits at most.
    data_format, is_training, param_grads, out, num_threads, relu, beta, dst, workspace, diff_src_1
        As for `batch_norm_backward`; `out` is written by ``wait()``.

    Returns
    -------
    Pending
        Its ``wait()`` returns the same bits as `batch_norm_backward`.

    Raises
    ------
    TypeError, ValueError, MemoryError, CollectiveError, CollectiveTimeoutError
        As for `batch_norm_backward`, if ranks compare their arguments in this call (see `check`).
        Otherwise ``wait()`` raises most of them, even on the rank whose argument is wrong. All
        ranks must start their calls in the same order; each may wait in any order.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import bn_ext.mpi
    >>> src, diff_dst = np.random.default_rng(0).standard_normal((2, 6, 3))
    >>> pending = bn_ext.mpi.batch_norm_backward_start(
    ...     src, diff_dst, np.zeros(3), np.ones(3), epsilon=1e-5, comm=MPI.COMM_WORLD)
    >>> product = src.T @ diff_dst                      # needs no sums
    >>> pending.wait().diff_src.shape
    (6, 3)
    """
    part = GradientPart(locals())
    with (
        Exchange("batch_norm_backward_start", part, waits=False) as exchange,
        _core._DefaultMode(),
    ):
        exchange.send()
        pending: Pending[Any] = Pending(exchange, part)
    return pending


@on_all_ranks(TrainingPart, "batch_norm_training")
def batch_norm_training(
    src: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    comm: "MPI.Intracomm",
    exact: Flag = True,
    check: Flag = False,
    timeout: float | None = None,
    data_format: DataFormat = "NXC",
    running_mean: NDArray[Any] | None = None,
    running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsIndex | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormTraining[NDArray[Any]]:
    """Batch normalization with the statistics of all ranks' samples.

    mean, variance and the running statistics have the same bits on every rank.

    Parameters
    ----------
    src : array
        As for `bn_ext.batch_norm_training`: this rank's samples. A rank may have none.
    comm, exact, check, timeout
        As for `batch_norm_backward`.
    gamma, beta, epsilon, relu
        As for `bn_ext.batch_norm_training`, the same on all ranks.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `bn_ext.batch_norm_training`, the same on all ranks; each rank updates its own
        arrays.
    data_format, src_1, workspace, out, num_threads
        As for `bn_ext.batch_norm_training`.

    Returns
    -------
    BatchNormTraining
        dst of this rank's samples; mean and variance of all samples.

    Raises
    ------
    TypeError, ValueError, MemoryError, CollectiveError, CollectiveTimeoutError
        As for `batch_norm_backward`. ValueError on every rank if ``correction=1`` and a channel has
        one element on all ranks together.

    Notes
    -----
    With ``exact=False`` the statistics take two collectives: one for the mean, one for the
    squared deviations from it.

    With ``exact=False`` the statistics are equal on every rank, because the MPI standard demands
    equal results of an allreduce. For the same samples on the same ranks they are the same every
    time if the MPI library always sums in the same order, as the standard recommends.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import bn_ext.mpi
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> bn_ext.mpi.batch_norm_training(src, epsilon=0.0, comm=MPI.COMM_WORLD).mean
    array([ 2., 30.])
    """
    found: BatchNormTraining[NDArray[Any]] = over_ranks(
        "batch_norm_training", TrainingPart(locals())
    )
    return found


def _forward_part(arguments: dict[str, Any]) -> TrainingPart:
    layer = arguments["self"]
    return TrainingPart(layer._seen(arguments.get("src"), layer._from_batch()))


def _backward_part(arguments: dict[str, Any]) -> GradientPart:
    layer = arguments["self"]
    from_batch = layer._from_batch() if layer._saved is None else layer._saved.from_batch
    asks = from_batch or (layer.affine and not layer.frozen)
    return GradientPart(layer._seen(arguments.get("diff_dst"), asks))


class BatchNorm(_layer.BatchNorm):
    """`bn_ext.BatchNorm` over the samples of all ranks.

    **diff_gamma and diff_beta are those of all samples, the same on every rank: do not sum or
    average them over ranks again.**

    Parameters
    ----------
    channels
        As for `bn_ext.BatchNorm`.
    comm, exact, check, timeout
        As for `batch_norm_backward`.
    **options
        The other options of `bn_ext.BatchNorm`.

    Notes
    -----
    Ranks that do the same steps keep the same parameters and statistics, bit for bit. A rank
    without samples counts the batch in num_batches_tracked, too.

    With running statistics, ``forward`` after ``eval()`` exchanges nothing, nor does either pass of
    a frozen layer. All ranks must make all other calls. If such a call fails on one rank, it raises
    an error on all (but see `CollectiveError`).

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

    def __init__(
        self,
        channels: SupportsIndex,
        *,
        comm: "MPI.Intracomm",
        exact: Flag = True,
        check: Flag = False,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(channels, **options)
        self.comm = as_communicator(comm)
        self.exact, self.check, self.timeout = as_flags(
            {"exact": exact, "check": check, "timeout": timeout}
        )

    @on_all_ranks(_forward_part, "batch_norm_training")
    def forward(self, src: Array, src_1: Array | None = None) -> NDArray[Any]:
        """As `bn_ext.BatchNorm.forward`, with the statistics of all ranks' samples."""
        return super().forward(src, src_1)

    __call__ = forward

    @on_all_ranks(_backward_part, "batch_norm_backward")
    def backward(self, diff_dst: Array) -> Any:
        """As `bn_ext.BatchNorm.backward`; parameter gradients are those of all samples."""
        return super().backward(diff_dst)

    def _seen(self, data: Any, asks: bool) -> dict[str, Any]:
        """The arguments from which a failed rank infers what the others sum. If `asks` is false,
        the step exchanges nothing, and comm is left out.
        """
        vectors = dict.fromkeys(["mean", "gamma"], np.empty(self.channels, self.dtype))
        over = self._over() if asks else {}
        return {"src": data, "data_format": self.data_format, **vectors, **over}

    def _training(self, *arguments: Any, **options: Any) -> BatchNormTraining[NDArray[Any]]:
        step: Callable[..., BatchNormTraining[NDArray[Any]]] = batch_norm_training
        return step(*arguments, **options, **self._over())

    def _gradients(self, *arguments: Any, **options: Any) -> Any:
        if not options["is_training"] and not options["param_grads"]:
            return super()._gradients(*arguments, **options)  # there is nothing to sum
        step: Callable[..., Any] = batch_norm_backward
        return step(*arguments, **options, **self._over())

    def _over(self) -> dict[str, Any]:
        names = "comm", "exact", "check", "timeout"
        return {name: getattr(self, name) for name in names}

    def _is_batch(self, data: NDArray[Any]) -> bool:
        return True
