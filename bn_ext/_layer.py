"""A layer for NumPy: parameters, running statistics, and what forward leaves for backward.

A step is two passes:

    forward     src, src_1 -> dst                    leaves `saved`: src, statistics, gate
    backward    diff_dst -> diff_src, diff_src_1     writes diff_gamma, diff_beta

With `allreduce`, each pass first sums over all processes:

    forward     Statistics -> allreduce -> batch_norm_inference
    backward    GradientSums -> allreduce -> batch_norm_backward(sums=...)
"""

from __future__ import annotations  # help shows names, not what they stand for

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, SupportsIndex

import numpy as np

import bn_ext._core as _core
from bn_ext._derivatives import workspace_size
from bn_ext._state import attributes_of, remade, set_state, state_of
from bn_ext._sums import GradientSums, Statistics, as_sums
from bn_ext._typing import Array, DataFormat, DTypeLike, Flag, NDArray

#: Vectors of more would have more bytes than can be counted.
_MOST_CHANNELS = np.iinfo(np.intp).max // np.dtype(np.float64).itemsize
#: Attribute -> its name in a state.
_STATE = {
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
}
_COUNT = "num_batches_tracked", "an integer", 0
#: What a state can hold, in an int64.
_MOST_BATCHES = 2**63 - 1


class _Options(NamedTuple):
    """What is fixed when a layer is made, since arrays and saved passes depend on it."""

    channels: int
    epsilon: float
    data_format: DataFormat | None
    affine: bool
    relu: bool
    track_running_stats: bool
    dtype: np.dtype[Any]
    exact: bool


def _fixed(name: str) -> Any:
    """An attribute of a layer for one of its options."""

    def refuse(layer: BatchNorm, value: object) -> None:
        raise AttributeError(f"{name}: fixed when the layer is made; make another BatchNorm")

    return property(attrgetter(f"_options.{name}"), refuse, doc="Fixed when the layer is made.")


class Absent:
    """An attribute that a class of layers lacks: to read or to set it is an AttributeError with a
    hint. `for_users`: a class that is not bn_ext's may have it.
    """

    def __init__(self, hint: str, for_users: bool = False) -> None:
        self.hint, self.for_users = hint, for_users
        self.__doc__ = f"Missing: {hint}."

    def __set_name__(self, kind: type, name: str) -> None:
        self.name = name

    def __get__(self, layer: Any, kind: type) -> Any:
        if layer is None:
            return self
        if self.name not in vars(layer):
            raise self._error(kind)
        return vars(layer)[self.name]

    def __set__(self, layer: Any, value: object) -> None:
        if not self.for_users or type(layer).__module__.partition(".")[0] == "bn_ext":
            raise self._error(type(layer))
        vars(layer)[self.name] = value

    def _error(self, kind: type) -> AttributeError:
        text = f"{kind.__name__!r} object has no attribute {self.name!r}"
        return AttributeError(f"{text}; {self.hint}")


def _called(name: str) -> Absent:
    """An attribute of PyTorch's layers. It would change nothing here if it could be set."""
    return Absent(f"it is called {name} here", for_users=True)


class Saved(NamedTuple):
    """What `BatchNorm.backward` needs of a forward pass."""

    src: NDArray[Any]
    mean: NDArray[Any]
    variance: NDArray[Any]
    from_batch: bool  # were the statistics computed from src?
    added: bool  # was there a src_1?
    gate: dict[str, Any]  # arguments that tell which elements the ReLU passed
    options: _Options  # of the layer
    elements: int  # of each channel, over all processes if the statistics are theirs

    def __repr__(self) -> str:
        return f"<Saved: a forward pass of {self.src.dtype} data of shape {self.src.shape}>"


class BatchNorm:
    """Batch normalization as a layer, optionally followed by an addition and a ReLU.

    Parameters
    ----------
    channels : int
        Number of channels, C.
    epsilon : float, optional
        Added to the variance.
    exponential_avg_factor : float or None, optional
        The weight of a batch's statistics in the running ones, from 0 to 1: 0.1 is what torch calls
        ``momentum=0.1`` and Keras ``momentum=0.9``. None: all batches weigh the same.
    correction : {1, 0}, optional
        Whether the running variance is unbiased (torch, TensorFlow) or biased (oneDNN,
        Flax, Keras).
    affine : bool, optional
        Whether there are a scale and a shift, `gamma` and `beta`.
    relu : bool, optional
        Whether negative results become zeros.
    track_running_stats : bool, optional
        Whether to keep running statistics. If False, each batch is normalized with its own.
    dtype : {float64, float32}, optional
        The dtype of parameters and running statistics.
    data_format, num_threads, exact
        As for `bn_ext.batch_norm_training`. Without data_format, data must have two axes.
    allreduce : callable, optional
        Makes the layer normalize a batch that is spread over several processes: it gets the sums of
        this process, a `Statistics` or `GradientSums`, and returns those of all, such as
        ``comm.allreduce`` of mpi4py. All processes must make the same calls, and get the same bits:
        unless exact, all must add in the same order.

    Attributes
    ----------
    gamma, beta : ndarray or None
        Scale and shift, shape (C,): ones and zeros at first.
    diff_gamma, diff_beta : ndarray or None
        Their gradients, written by `backward`.
    running_mean, running_variance : ndarray or None
        The statistics used after `eval` or `freeze`, shape (C,): zeros and ones at first.
    num_batches_tracked : int
        How many batches the running statistics have seen.
    saved : Saved or None
        What the last `forward` left for `backward`.
    training, frozen : bool
        The mode, which `train`, `eval` and `freeze` set.

    Notes
    -----
    `backward` reads src and the parameters again. Do not change them between the two passes. Use a
    layer in one thread at a time. A copy or pickle of a layer has no saved pass. Copies, even deep
    ones, share what is behind `allreduce`; a pickle needs an `allreduce` that can be pickled.

    An array that you set as an attribute must be a NumPy array of shape (C,): the next pass checks
    it. gamma and beta may be None. What arrays depend on cannot change, such as the channels. Nor
    can you set what PyTorch calls otherwise, such as momentum, except in a subclass.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> layer = bn_ext.BatchNorm(2, relu=True)
    >>> src = np.array([[1, 2], [3, 6]], np.float32)
    >>> layer.forward(src).round(3)
    array([[0., 0.],
           [1., 1.]], dtype=float32)
    >>> layer.backward(np.ones_like(src)).shape
    (2, 2)
    >>> layer.diff_beta
    array([1., 1.])
    >>> layer.running_mean
    array([0.2, 0.4])
    >>> layer.eval().forward(src).shape
    (2, 2)
    """

    _HAS_GRADIENTS: ClassVar[bool] = True

    channels: int = _fixed("channels")
    epsilon: float = _fixed("epsilon")
    data_format: DataFormat | None = _fixed("data_format")
    affine: bool = _fixed("affine")
    relu: bool = _fixed("relu")
    track_running_stats: bool = _fixed("track_running_stats")
    dtype: np.dtype[Any] = _fixed("dtype")
    exact: bool = _fixed("exact")

    if not TYPE_CHECKING:  # which would take them for attributes
        weight, bias, running_var = _called("gamma"), _called("beta"), _called("running_variance")
        eps, momentum = _called("epsilon"), _called("exponential_avg_factor")

    def __init__(
        self,
        channels: SupportsIndex,
        *,
        epsilon: float = 1e-5,
        exponential_avg_factor: float | None = 0.1,
        correction: int = 1,
        data_format: DataFormat | None = None,
        affine: Flag = True,
        relu: Flag = False,
        track_running_stats: Flag = True,
        dtype: DTypeLike = np.float64,
        num_threads: int | None = None,
        exact: Flag = False,
        allreduce: Callable[[Any], Any] | None = None,
    ) -> None:
        self._options = _Options(
            channels=_core.as_index(channels, "channels", "an integer", 1, _MOST_CHANNELS),
            epsilon=_core.as_epsilon(epsilon),
            data_format=data_format,
            affine=_core.as_flag(affine, "affine"),
            relu=_core.as_flag(relu, "relu"),
            track_running_stats=_core.as_flag(track_running_stats, "track_running_stats"),
            dtype=_as_number(dtype),
            exact=_core.as_flag(exact, "exact"),
        )
        self.exponential_avg_factor, self.correction = exponential_avg_factor, correction
        self.num_threads, self.allreduce = num_threads, allreduce
        ones, zeros = np.ones(self.channels, self.dtype), np.zeros(self.channels, self.dtype)
        self.gamma: NDArray[Any] | Any = ones.copy() if self.affine else None
        self.beta: NDArray[Any] | Any = zeros.copy() if self.affine else None
        if self._HAS_GRADIENTS:
            self.diff_gamma: NDArray[Any] | Any = zeros.copy() if self.affine else None
            self.diff_beta: NDArray[Any] | Any = zeros.copy() if self.affine else None
        self.running_mean: NDArray[Any] | Any = zeros if self.track_running_stats else None
        self.running_variance: NDArray[Any] | Any = ones if self.track_running_stats else None
        self.num_batches_tracked = 0
        self.training, self.frozen = True, False
        self.saved: Saved | None = None
        self._used: Any = None  # the mean of the last pass that `backward` has used up
        self._check_options()

    def _check_options(self) -> None:
        """Raise now the errors that the first step would raise."""
        allreduce: Any = self.allreduce
        if allreduce is not None and not callable(allreduce):
            got = _core.shown(allreduce)
            raise TypeError(f"allreduce: expected a callable or None, got {got}")
        shape = [0] * (_core.rank_of(self.data_format) or 2)
        shape[self._channel_axis] = self.channels
        _core.training(np.empty(shape, self.dtype), **self._shared(), **self._tracking(), dry=True)

    # ---- modes ------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Normalize with each batch's own statistics, unless frozen; returns the layer."""
        self.training = _core.as_flag(mode, "mode")
        return self

    def eval(self) -> Self:
        """Normalize with the running statistics, if the layer has them; returns the layer."""
        return self.train(False)

    def freeze(self, mode: bool = True) -> Self:
        """Keep statistics and parameters as they are, in training too; returns the layer.
        ``freeze(False)`` undoes it.

        `backward` then gives only the gradients with respect to data, and `parameters` is empty.
        """
        self.frozen = _core.as_flag(mode, "mode")
        return self

    @property
    def parameters(self) -> tuple[NDArray[Any], ...]:
        """The arrays that an optimizer updates in place: gamma and beta, if any, unless frozen."""
        arrays = () if self.frozen else (self.gamma, self.beta)
        return tuple([a for a in arrays if a is not None])

    @property
    def gradients(self) -> tuple[NDArray[Any], ...]:
        """The gradients of `parameters`, from the last `backward`."""
        pairs = (self.gamma, self.diff_gamma), (self.beta, self.diff_beta)
        return () if self.frozen else tuple([diff for a, diff in pairs if a is not None])

    # ---- passes -----------------------------------------------------------------------

    def forward(
        self,
        src: Array,
        src_1: Array | None = None,
        *,
        keep: Flag = True,
        track: Flag = True,
    ) -> NDArray[Any]:
        """Normalize a batch.

        Parameters
        ----------
        src : array, shape (N, ..., C) or (N, C, ...)
            As for `bn_ext.batch_norm_training`.
        src_1 : array, optional
            Added before the ReLU; of src's shape and dtype.
        keep : bool, optional
            If False, nothing is saved for `backward`, so that src can be freed.
        track : bool, optional
            If False, the running statistics and num_batches_tracked stay as they are: for a pass
            that is computed again, or a gradient check.

        Returns
        -------
        ndarray
            dst, in src's shape, dtype and memory order.

        Raises
        ------
        TypeError, ValueError
            As for `bn_ext.batch_norm_training` and `bn_ext.batch_norm_inference`. The layer is then
            unchanged.
        MemoryError
            As for these. Running statistics are then unchanged, and `saved` is None.
        """
        keep, track = _core.as_flag(keep, "keep"), _core.as_flag(track, "track")
        data = self._as_data(src)
        src_1 = None if src_1 is None else _core.as_array(src_1, "src_1")
        before, self.saved = self.saved, None
        try:
            return self._forward(data, src_1, keep, track)
        except (TypeError, ValueError):  # a refusal, which has changed nothing
            self.saved = before
            raise

    def __call__(self, *arguments: Any, **options: Any) -> NDArray[Any]:
        """Call `forward`, which a subclass may override."""
        return self.forward(*arguments, **options)

    __call__.__wrapped__ = forward  # type: ignore[attr-defined]  # for inspect.signature

    def _forward(
        self, data: NDArray[Any], src_1: NDArray[Any] | None, keep: bool, track: bool
    ) -> NDArray[Any]:
        """Compute a forward pass; then update the layer."""
        fixed = self._options
        # To see what the ReLU passed, backward computes dst again. It cannot do so if an array was
        # added, which is not kept.
        workspace = None
        if fixed.relu and src_1 is not None and keep:
            workspace = np.empty(workspace_size(data.size, data.ndim), np.uint8)
        options = {
            **self._shared(), "src": data, "gamma": self.gamma, "beta": self.beta, "src_1": src_1,
            "relu": fixed.relu, "workspace": workspace,
        }  # fmt: skip
        from_batch, elements = self._from_batch(), data.size // fixed.channels
        tracking = self._tracking() if from_batch and track else {}
        if not from_batch:
            mean, variance = self.running_mean, self.running_variance
            if keep:  # a later pass may update them
                mean, variance = np.array(mean), np.array(variance)
            dst = _core.inference(mean=mean, variance=variance, **options)
        elif self.allreduce:
            total = self._total(Statistics, data)
            mean, variance, elements = total.mean, total.variance, total.count
            dst = _core.inference(mean=mean, variance=variance, **options)
            if tracking:
                _core.update_running(*total._moments(), **tracking)
        else:
            mean, variance = np.empty((2, fixed.channels))
            out = None, mean, variance
            dst = _core.training(out=out, exact=fixed.exact, **options, **tracking).dst
        if keep:
            beta = np.zeros(fixed.channels) if self.beta is None else self.beta
            gate = {"beta": beta} if workspace is None else {"workspace": workspace}
            added = src_1 is not None
            self.saved = Saved(data, mean, variance, from_batch, added, gate, fixed, elements)
        return dst

    def _total(self, kind: Any, *arrays: Any, **options: Any) -> Any:
        """The sums of all processes."""
        shared = {"data_format": self.data_format, "num_threads": self.num_threads}
        own = kind(*arrays, exact=self.exact, **shared, **options)
        total: Any = self.allreduce(own)  # type: ignore[misc]
        fits = type(total) is kind and all(
            getattr(total, name) == getattr(own, name) for name in kind._ALIKE
        )
        if not fits or total.count < own.count:
            raise TypeError(f"allreduce: expected a sum with {own!r}, got {_core.shown(total)}")
        own._check_whole(total)
        return total

    def _shared(self) -> dict[str, Any]:
        """Options of every pass."""
        return {
            "epsilon": self._options.epsilon,
            "data_format": self._options.data_format,
            "num_threads": self.num_threads,
        }

    def _tracking(self) -> dict[str, Any]:
        """Options of a forward pass that updates and counts the running statistics, if any."""
        if self.running_mean is None and self.running_variance is None:
            return {}
        factor, number = self.exponential_avg_factor, "a number from 0 to 1"
        if factor is None:  # all batches weigh the same
            with _core.DefaultMode():
                factor = 1 / (_core.as_index(self.num_batches_tracked, *_COUNT) + 1)
        return {
            "running_mean": self.running_mean,
            "running_variance": self.running_variance,
            "exponential_avg_factor": _core.as_real(factor, "exponential_avg_factor", number, 0, 1),
            "correction": self.correction,
            "tracked": self,
        }

    def _from_batch(self) -> bool:
        """Does the layer normalize with the batch's own statistics?"""
        frozen = _core.as_flag(self.frozen, "frozen")
        training = _core.as_flag(self.training, "training") and not frozen
        return training or self.running_mean is None

    @property
    def _channel_axis(self) -> int:
        return _core.channel_axis_of(self._options.data_format)

    def _as_data(self, src: Array) -> NDArray[Any]:
        """Convert src; its channels must fit the layer."""
        data = _core.as_array(src, "src")
        axis = self._channel_axis
        if data.ndim > 2 and self.data_format is None:
            raise ValueError(
                "data_format: expected 'NXC' (channels last) or 'NCX' (channels on axis 1) in the "
                f"call of BatchNorm, because src has shape {data.shape}; it is missing there"
            )
        channels = self._options.channels
        if data.ndim < 2 or data.shape[axis] == channels:  # the functions refuse the former
            return data
        other_axis, other_format = (1, "NCX") if axis == -1 else (-1, "NXC")
        fits = data.shape[other_axis] == channels
        hint = f'; axis {other_axis} has {channels}: pass data_format="{other_format}" to BatchNorm'
        raise ValueError(
            f"src: expected {channels} channels on axis {axis}, got shape "
            f"{data.shape}{hint if fits else ''}"
        )

    def backward(
        self,
        diff_dst: Array,
        saved: Saved | None = None,
        *,
        accumulate: Flag = False,
    ) -> NDArray[Any] | Any:
        """Gradients of a `forward`.

        Parameters
        ----------
        diff_dst : array
            The gradient with respect to what `forward` returned.
        saved : Saved, optional
            The layer's attribute `saved` after that pass; None means the last one, which is then
            used up. It is needed if the layer is applied several times before any gradient is known
            (to two branches, or at each time step), and for several gradients of one pass.
        accumulate : bool, optional
            If True, the gradients of the parameters are added to `diff_gamma` and `diff_beta`, as
            for micro-batches.

        Returns
        -------
        ndarray or tuple of two
            diff_src, or (diff_src, diff_src_1) if there was a src_1. Without a ReLU, diff_src_1 is
            diff_dst itself. `diff_gamma` and `diff_beta` are written, unless frozen.

        Raises
        ------
        RuntimeError
            If there is no saved pass: no `forward` has succeeded, or the last one did not, or it
            had ``keep=False``. Without `saved`, also if a `backward` has used the last pass.
        TypeError, ValueError, MemoryError
            As for `bn_ext.batch_norm_backward`; ValueError also if `saved` is of a layer with other
            options, or `allreduce` has not added the same parts in both passes. Nothing has then
            been written.
        """
        saved = self._pass_of(saved)
        diff = _core.as_array(diff_dst, "diff_dst")
        accumulate = _core.as_flag(accumulate, "accumulate")
        fixed = self._options
        param_grads = fixed.affine and not self.frozen
        gated = saved.added and fixed.relu
        gate: dict[str, Any] = {"relu": True, **saved.gate} if fixed.relu else {}
        arrays = saved.src, diff, saved.mean, saved.variance, self.gamma
        options = {
            **self._shared(),
            "is_training": saved.from_batch,
            "param_grads": param_grads,
            "exact": fixed.exact,
            "sums": self._total_gradient(saved, arrays, gate, param_grads),
            "diff_src_1": gated,
            **gate,
        }
        out = [None, *(self._written() if param_grads else (None, None)), *[None] * gated]
        grads: Any = _core.backward(*arrays, **options, out=out, dry=accumulate)
        if accumulate:  # that was only to refuse arrays which must not be written
            grads = _core.backward(*arrays, **options)
        if param_grads and accumulate:
            with _core.DefaultMode():
                self.diff_gamma += grads.diff_gamma
                self.diff_beta += grads.diff_beta
        if saved is self.saved:
            self._used = saved.mean
        diff_src_1 = grads[3] if gated else diff
        return (grads.diff_src, diff_src_1) if saved.added else grads.diff_src

    def _pass_of(self, saved: Saved | None) -> Saved:
        """The pass whose gradient is wanted: the one that is given, or the last."""
        if saved is None:
            saved = self.saved
            if saved is None:
                raise RuntimeError(
                    "backward: expected a successful forward, with keep=True, before it; call it "
                    "first"
                )
            if self._used is saved.mean:
                raise RuntimeError(
                    "backward: the last forward has had its backward; if diff_dst belongs to "
                    "another forward, or is one more for the last, pass saved=, what the layer's "
                    "`saved` was after that forward"
                )
        if not isinstance(saved, Saved):
            raise TypeError(
                f"saved: expected the layer's `saved` after a forward, got {_core.shown(saved)}"
            )
        if saved.options is not self._options:
            for name in _Options._fields:
                own, theirs = (getattr(options, name) for options in (self._options, saved.options))
                if own != theirs:
                    raise ValueError(
                        f"saved: expected a pass of a layer with {name}={own!r}, like this one, "
                        f"got one with {name}={theirs!r}"
                    )
        return saved

    def _total_gradient(
        self, saved: Saved, arrays: tuple[Any, ...], gate: dict[str, Any], param_grads: bool
    ) -> Any:
        """The sums of all processes that `_core.backward` takes, if there are any."""
        total, elements = None, saved.src.size // self.channels
        if self.allreduce and (saved.from_batch or param_grads):
            for_beta = {"variance": saved.variance, "gamma": self.gamma, "epsilon": self.epsilon}
            total = self._total(GradientSums, *arrays[:3], **gate, **for_beta)
            elements = total.count
        if saved.from_batch and saved.elements != elements:
            raise ValueError(
                "allreduce: expected the same parts in both passes, with forward's "
                f"{saved.elements} elements per channel, got {elements} in backward"
            )
        return as_sums(total)

    def _written(self) -> tuple[Any, Any]:
        """diff_gamma and diff_beta, which are written in place, as an optimizer writes gamma and
        beta.
        """
        for name in ("gamma", "beta", "diff_gamma", "diff_beta"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) and (array is not None or "diff" in name):
                raise _core.no_ndarray(array, name)
        return self.diff_gamma, self.diff_beta

    def __getstate__(self) -> Any:
        """Everything except what `forward` saves for `backward`."""
        attributes, slots = attributes_of(self)
        return state_of({**attributes, "saved": None, "_used": None}, slots)

    def __setstate__(self, state: Any) -> None:
        set_state(self, state)

    def __copy__(self) -> Self:
        """A layer with the same parameters, but running statistics of its own, like their count."""
        import copy

        other: Self = remade(self)
        other.running_mean = copy.copy(other.running_mean)
        other.running_variance = copy.copy(other.running_variance)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A layer that shares nothing but what is behind `allreduce`: the other processes."""
        import copy

        memo[id(self.allreduce)] = self.allreduce
        other: Self = remade(self, partial(copy.deepcopy, memo=memo), memo)
        return other

    # ---- state ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of parameters and statistics, under torch's names.

        The names are weight, bias, running_mean, running_var and num_batches_tracked, as far as
        the layer has them.
        """
        state = {name: array.copy() for name, array in self._state().items()}
        if self.running_mean is not None:
            count = _core.as_index(self.num_batches_tracked, *_COUNT, _MOST_BATCHES)
            state["num_batches_tracked"] = np.array(count, np.int64)
        return state

    def _state(self) -> dict[str, NDArray[Any]]:
        """The arrays themselves, under torch's names."""
        arrays = {key: getattr(self, name) for name, key in _STATE.items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy parameters and statistics from a state, which may be torch's.

        Parameters
        ----------
        state : mapping of str to array
            Exactly the names that `state_dict` returns, but num_batches_tracked may be missing.
            Arrays of float32, float64, float16 and bfloat16 are converted to the layer's dtype.

        Raises
        ------
        TypeError, ValueError
            If a name, a shape or a dtype does not fit. Nothing has then been written.
        """
        own = self._state()
        new = _as_state(state, own, self.running_mean is not None)
        self.num_batches_tracked = new.pop("num_batches_tracked", self.num_batches_tracked)
        for name, array in new.items():
            own[name][...] = array

    def __repr__(self) -> str:
        options = ("epsilon", "exponential_avg_factor", "correction", "data_format", "affine")
        texts = [f"{name}={getattr(self, name)!r}" for name in (*options, "relu")]
        usual = {"track_running_stats": True, "exact": False, "allreduce": None}
        usual |= {"training": True, "frozen": False}
        texts += [f"{a}={getattr(self, a)!r}" for a in usual if getattr(self, a) != usual[a]]
        return f"BatchNorm({self.channels}, {', '.join(texts)}, dtype='{self.dtype}')"


# ---- conversion of arguments, with errors that name them ----------------------------------


def _as_number(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype of parameters and statistics."""
    try:
        number = np.dtype(dtype)
    except (TypeError, ValueError):
        number = None
    if number not in (np.float32, np.float64):
        raise TypeError(f"dtype: expected float64 or float32, got {number or _core.shown(dtype)}")
    return number


def _as_state(
    state: Mapping[str, Any], own: Mapping[str, NDArray[Any]], counted: bool
) -> dict[str, Any]:
    """{name: what is to be copied into the layer: arrays like its own and, if counted, a count}."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state: expected a mapping, got {type(state).__name__}")
    names = [*own, *["num_batches_tracked"] * counted]
    missing, unexpected = own.keys() - state.keys(), state.keys() - {*names}
    if missing or unexpected:
        wrong = {"missing": missing, "unexpected": unexpected}
        texts = {
            fault: _core.escaped(", ".join(sorted(map(str, keys)))) for fault, keys in wrong.items()
        }
        listed = [f"; {fault}: {text}" for fault, text in texts.items() if text]
        raise ValueError(f"state: expected {', '.join(names) or 'no names'}{''.join(listed)}")
    new: dict[str, Any] = {}
    for name, value in state.items():
        if name == "num_batches_tracked":
            new[name] = _core.as_index(value, *_COUNT, _MOST_BATCHES)
            continue
        array = _core.as_array(value, name)
        if array.shape != own[name].shape:
            raise ValueError(f"{name}: expected shape {own[name].shape}, got {array.shape}")
        _core.require_dtype(name, array, _core.DTYPES)
        if not own[name].flags.writeable:
            raise ValueError(f"{name}: expected a writable array in the layer")
        with _core.DefaultMode():
            new[name] = array.astype(own[name].dtype)
    return new
