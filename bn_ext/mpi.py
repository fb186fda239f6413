"""Batch normalization over the ranks of an MPI communicator, each with samples of its own.

``pip install "bn_ext[mpi]"``; nothing here is imported by ``import bn_ext``, and MPI is not
initialized by importing this. Run programs by ``mpiexec -n 4 python -m mpi4py program.py``: an
error on one rank then ends all.
"""

from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._core import BatchNormAddGradients, BatchNormGradients, BatchNormTraining
from bn_ext._mpi.agreement import CollectiveError, CollectiveTimeoutError
from bn_ext._mpi.exchange import Exchange, flags, on_all_ranks
from bn_ext._mpi.layer import BatchNorm
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


class Pending(Generic[_T]):
    """A gradient whose sums are on their way: what `batch_norm_backward_start` returns.

    It keeps all that it needs. If nobody waits for it, nothing is computed; when the process ends,
    its sums get five seconds to arrive, and if another rank has not started its own by then, all
    ranks are aborted with a message, since MPI cannot be finalized.
    """

    def __init__(self, exchange: Exchange, apply: Callable[[NDArray[Any]], _T]) -> None:
        self._exchange = exchange
        self._apply: Callable[[NDArray[Any]], _T] | None = apply
        self._result: _T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Would `wait` go on at once? To ask also moves the exchange on, in most MPIs."""
        with _core._DefaultMode():
            return self._apply is None or self._exchange.arrived()

    def wait(self) -> _T:
        """The gradients, once all ranks have started theirs; another time, the same again.

        Raises
        ------
        CollectiveError
            On every rank but those that failed themselves, which raise their own error.
        CollectiveTimeoutError
            If there was a timeout: so many seconds after this call.
        """
        if self._apply is not None:
            with _core._DefaultMode():
                total = self._exchange.finish()
            apply, self._apply = self._apply, None  # once: it may write over what it reads
            try:
                with _core._DefaultMode():
                    self._result = apply(total)
                self._exchange.give_back()
            except BaseException as error:
                self._error = error
                self._exchange.lost(error)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


@overload
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
    diff_src_1: Literal[False] = False,
) -> _Gradients: ...
@overload
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
    diff_src_1: Literal[True],
) -> _AddGradients: ...
@on_all_ranks(GradientPart)
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

    **The parameter gradients are those of all samples, on every rank alike: do not sum or average
    them over ranks again.** (What other layers compute from a rank's own samples is to be summed.)

    Parameters
    ----------
    src, diff_dst : array
        As for `bn_ext.batch_norm_backward`: this rank's samples. A rank may have none, in arrays
        of shape (0, ..., C) or (0, C, ...).
    mean, variance, gamma, epsilon
        As for `bn_ext.batch_norm_backward`, the same on all ranks.
    comm : mpi4py.MPI.Intracomm
        The ranks that share a batch; of a part of them, what ``comm.Split`` returns. All call this
        with the same `exact`, `check` and, if any has one, a `timeout`.
    exact : bool, optional
        If True, the sums are exact and rounded once: the result has the same bits however the
        samples are dealt to ranks, and however many there are. If False, sums of float64 are
        added: less to send, and the same bits only for the same samples on the same ranks.
    check : bool, optional
        If True, ranks compare what they are about to sum before they do, at the cost of a small
        collective. Else they do so once for each number of channels and dtype; from then on a rank
        with another number of channels or dtype is not noticed (see Notes).
    timeout : float, optional
        Seconds to wait for a rank that does not call. The communicator cannot be used after that.
    data_format, is_training, param_grads, out, num_threads, relu, beta, dst, workspace, diff_src_1
        As for `bn_ext.batch_norm_backward`. relu, is_training and beta are the same on all ranks.

    Returns
    -------
    BatchNormGradients or BatchNormAddGradients
        diff_src of this rank's samples; diff_gamma and diff_beta of those of all ranks.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`, on the rank whose argument it is; and if comm, exact,
        check or timeout is none.
    CollectiveError
        On all other ranks then; and on all ranks, if what must be the same is not. It names the
        rank.
    CollectiveTimeoutError
        If not all ranks have made the call in time.

    Notes
    -----
    There is one collective, an allreduce. Words that stand before the sums tell every rank whether
    another has failed, or has another epsilon, mean, variance, gamma, beta, relu or is_training.
    They cannot be relied on where ranks send different numbers of bytes: with ``check=False``, if
    calls with 64 and with 128 channels have been made and then one rank calls with 64 while the
    others do with 128, it depends on the MPI what happens: an error, a crash or a wait without end.

    If MemoryError is raised when the sums have arrived, it is raised on that rank alone.

    Examples
    --------
    On one rank; on more, each has samples of its own:

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
    arguments = locals()
    part, how = GradientPart(arguments), flags(exact, check, timeout)
    with Exchange("batch_norm_backward", comm, part, *how) as exchange, _core._DefaultMode():
        exchange.prepare()
        found: _Gradients = part.apply(exchange.sum())
        exchange.give_back()
    return found


@overload
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
    diff_src_1: Literal[False] = False,
) -> Pending[_Gradients]: ...
@overload
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
    diff_src_1: Literal[True],
) -> Pending[_AddGradients]: ...
@on_all_ranks(GradientPart, waits=False)
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
    """`batch_norm_backward` that does not wait: it sums this rank's samples and sends them off.

    What is computed before ``wait()`` hides the exchange: the weight gradient of the convolution
    that follows in the network, which nothing else waits for.

    **The parameter gradients are those of all samples, on every rank alike: do not sum or average
    them over ranks again.**

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma, epsilon, comm, exact, check
        As for `batch_norm_backward`. Neither data nor vectors may change before ``wait()``.
    timeout : float, optional
        Seconds that ``wait()`` waits at the most.
    data_format, is_training, param_grads, out, num_threads, relu, beta, dst, workspace, diff_src_1
        As for `batch_norm_backward`; `out` is written by ``wait()``.

    Returns
    -------
    Pending
        Its ``wait()`` returns what `batch_norm_backward` does, to the bit.

    Raises
    ------
    TypeError, ValueError, MemoryError, CollectiveError, CollectiveTimeoutError
        As for `batch_norm_backward`, where ranks compare first what they are about to sum (the
        first time, or with ``check=True``). Later such errors are raised by ``wait()``, also on the
        rank whose argument it is: so start and wait in the same order on all ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import bn_ext.mpi
    >>> src, diff_dst = np.random.default_rng(0).standard_normal((2, 6, 3))
    >>> pending = bn_ext.mpi.batch_norm_backward_start(
    ...     src, diff_dst, np.zeros(3), np.ones(3), epsilon=1e-5, comm=MPI.COMM_WORLD)
    >>> product = src.T @ diff_dst                      # what need not wait
    >>> pending.wait().diff_src.shape
    (6, 3)
    """
    arguments = locals()
    part, how = GradientPart(arguments), flags(exact, check, timeout)
    with (
        Exchange("batch_norm_backward_start", comm, part, *how, waits=False) as exchange,
        _core._DefaultMode(),
    ):
        exchange.prepare()
        exchange.start()
        pending = Pending(exchange, part.apply)
    return pending


@on_all_ranks(TrainingPart, rounds=2)
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
    **refused: Any,
) -> BatchNormTraining[NDArray[Any]]:
    """Batch normalization with the statistics of the samples of all ranks.

    mean, variance and the running statistics are equal on every rank, to the bit.

    Parameters
    ----------
    src : array
        As for `bn_ext.batch_norm_training`: this rank's samples. A rank may have none.
    comm, exact, check, timeout
        As for `batch_norm_backward`.
    gamma, beta, epsilon, relu
        As for `bn_ext.batch_norm_training`, the same on all ranks.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `bn_ext.batch_norm_training`, the same on all ranks; each changes its own arrays.
    data_format, src_1, workspace, out, num_threads
        As for `bn_ext.batch_norm_training`.
    **refused
        Nothing, as for `bn_ext.batch_norm_training`.

    Returns
    -------
    BatchNormTraining
        dst of this rank's samples; mean and variance of those of all ranks.

    Raises
    ------
    TypeError, ValueError, MemoryError, CollectiveError, CollectiveTimeoutError
        As for `batch_norm_backward`. With ``correction=1`` and one element in each channel of all
        ranks together, ValueError on every rank.

    Notes
    -----
    There are two collectives, one for the mean and one for the squares about it, and with
    ``exact=True`` src is read once more than otherwise.

    With ``exact=False`` the statistics are equal on every rank because MPI demands that of an
    allreduce, and the same every time for the same samples on the same ranks if the MPI then sums
    in the same order, as it should.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import bn_ext.mpi
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> bn_ext.mpi.batch_norm_training(src, epsilon=0.0, comm=MPI.COMM_WORLD).mean
    array([ 2., 30.])
    """
    arguments = locals()
    part, how = TrainingPart(arguments), flags(exact, check, timeout)
    with (
        Exchange("batch_norm_training", comm, part, *how, rounds=2) as exchange,
        _core._DefaultMode(),
    ):
        exchange.prepare()
        total = exchange.sum()
        exchange.again(lambda: part.find_squares(total))
        found: BatchNormTraining[NDArray[Any]] = part.apply(exchange.sum())
        exchange.give_back()
    return found
