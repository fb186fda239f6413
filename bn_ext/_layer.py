"""A layer for NumPy: parameters, running statistics, and what forward leaves for backward.

A step is two passes:

    forward     src, src_1 -> dst                keeps src, the statistics, the ReLU's gate
    backward    diff_dst -> diff_src, diff_src_1     writes diff_gamma, diff_beta
"""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bn_ext import _core
from bn_ext._names import CALLED_HERE, FREEZES, our_name, refuses_other_names
from bn_ext._typing import Array, DataFormat, Flag

__all__ = ["BatchNorm"]


#: Attribute -> its name in a state.
_STATE = {
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
}
#: Attributes that hold an array -> the option without which they are None.
_ARRAYS = dict.fromkeys(["gamma", "beta", "diff_gamma", "diff_beta"], "affine") | dict.fromkeys(
    ["running_mean", "running_variance"], "track_running_stats"
)
#: Attributes that cannot change: arrays and saved passes depend on them.
_FIXED = ("channels", "epsilon", "data_format", "affine", "relu", "track_running_stats", "dtype")
#: Other packages' names of attributes -> what to do instead.
_NOT_READ = {
    theirs: f"pass {ours} to BatchNorm" if ours in _FIXED else f"set {ours}"
    for ours in (*_FIXED, "correction", "num_threads", *_STATE)
    for theirs in CALLED_HERE.get(ours, ())
}
_NOT_READ |= dict.fromkeys(
    ["decay", "momentum"], "set exponential_avg_factor, the weight of the new statistics"
)
_NOT_READ |= dict.fromkeys(FREEZES, "call freeze()")
_NOT_READ |= dict.fromkeys(["is_training", "use_running_average"], "call train() or eval()")


class _Saved(NamedTuple):
    """What backward needs of the last forward pass."""

    src: NDArray[Any]
    mean: NDArray[Any]
    variance: NDArray[Any]
    from_batch: bool  # were the statistics computed from src?
    added: bool  # was there a src_1?
    gate: dict[str, Any]  # arguments that tell which elements the ReLU passed


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _forgets(step: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Make a forward pass refuse unknown names, and forget what it saved if it ends early."""
    checked = refuses_other_names(step)

    @wraps(step)
    def forward(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        try:
            found = checked(*given, **options)  # an interrupt may come right after this call
        except (TypeError, ValueError, MemoryError):  # a refusal, which has changed nothing
            raise
        except BaseException:
            layer: Any = given[0]
            layer._saved = None
            raise
        return found

    return forward


class BatchNorm:
    """Batch normalization as a layer, optionally followed by an addition and a ReLU.

    Parameters
    ----------
    channels : int
        Number of channels, C.
    epsilon : float, optional
        Added to the variance.
    exponential_avg_factor : float or None, optional
        The weight of a batch's statistics in the running ones: 0.1 is what torch calls
        ``momentum=0.1`` and Keras ``momentum=0.9``. None: all batches weigh the same.
    correction : {1, 0}, optional
        Whether the running variance is unbiased (torch, TensorFlow) or biased (oneDNN,
        Flax, Keras).
    data_format : {"NXC", "NCX"}, optional
        Where the channels are: last or on axis 1.
    affine : bool, optional
        Whether there are a scale and a shift, `gamma` and `beta`.
    relu : bool, optional
        Whether negative results become zeros.
    track_running_stats : bool, optional
        Whether to keep running statistics. If False, each batch is normalized with its own
        statistics in every mode, as in torch.
    dtype : {float64, float32}, optional
        The dtype of parameters and statistics. float64 works with data of any dtype, and gradients
        stay accurate however far a mean is from 0; float32 works with all data except float64.
    num_threads : int or None, optional
        As for `bn_ext.batch_norm_training`.

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
    training, frozen : bool
        The mode, which `train`, `eval` and `freeze` set.

    Raises
    ------
    TypeError, ValueError
        If an option has the wrong type or value.

    Notes
    -----
    `backward` reads src and the parameters again, and the running statistics if `forward` used
    them. Do not change any of these between the two passes. Use a layer in one thread at a time.

    An array that you set as an attribute must be a NumPy array of shape (C,) and the layer's dtype.
    gamma and beta may be None. The channels, epsilon, data_format, affine, relu, dtype and
    track_running_stats cannot change. Nor can you set attributes of other packages, such as weight,
    momentum and trainable, except in a subclass: the layer would not read them.

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

    __module__ = "bn_ext"  # where pickles look for it

    @refuses_other_names
    def __init__(
        self,
        channels: SupportsIndex,
        *,
        epsilon: float = 1e-5,
        exponential_avg_factor: float | None = 0.1,
        correction: int = 1,
        data_format: DataFormat = "NXC",
        affine: Flag = True,
        relu: Flag = False,
        track_running_stats: Flag = True,
        dtype: DTypeLike = np.float64,
        num_threads: int | None = None,
    ) -> None:
        self.dtype = _as_number(dtype)
        self.channels = _as_channels(channels)
        self.epsilon = _core._as_epsilon(epsilon)
        self.exponential_avg_factor, self.correction = exponential_avg_factor, correction
        self.data_format: DataFormat = data_format
        self.affine = _core._as_flag(affine, "affine")
        self.relu = _core._as_flag(relu, "relu")
        self.track_running_stats = _core._as_flag(track_running_stats, "track_running_stats")
        self.num_threads = num_threads
        ones, zeros = np.ones(self.channels, self.dtype), np.zeros(self.channels, self.dtype)
        self.gamma: NDArray[Any] | None = ones.copy() if self.affine else None
        self.beta: NDArray[Any] | None = zeros.copy() if self.affine else None
        self.diff_gamma: NDArray[Any] | None = zeros.copy() if self.affine else None
        self.diff_beta: NDArray[Any] | None = zeros.copy() if self.affine else None
        self.running_mean: NDArray[Any] | None = zeros if self.track_running_stats else None
        self.running_variance: NDArray[Any] | None = ones if self.track_running_stats else None
        self.num_batches_tracked = 0
        self.training, self.frozen = True, False
        self._saved: _Saved | None = None
        self._check_options()

    def _check_options(self) -> None:
        """Raise now the errors that the first step would raise."""
        if self.correction is None:
            raise TypeError("correction: expected 0 or 1, got None")
        last = _core._as_channels_last(self.data_format)
        shape = (0, self.channels) if last else (0, self.channels, 1)
        _core._dry_run(
            _core.batch_norm_training,
            np.empty(shape, self.dtype),
            epsilon=self.epsilon,
            data_format=self.data_format,
            num_threads=self.num_threads,
            **self._tracking(),
        )

    # ---- modes ------------------------------------------------------------------------

    def train(self, mode: Flag = True) -> "BatchNorm":
        """Normalize with each batch's own statistics, unless frozen; returns the layer. With `mode`
        False, this is `eval`.
        """
        self.training = _core._as_flag(mode, "mode")
        return self

    def eval(self) -> "BatchNorm":
        """Normalize with the running statistics, if the layer has them; returns the layer."""
        return self.train(False)

    def freeze(self, mode: Flag = True) -> "BatchNorm":
        """Keep statistics and parameters as they are, in training too; returns the layer.

        `backward` then gives only the gradients with respect to data, and `parameters` is empty.
        """
        self.frozen = _core._as_flag(mode, "mode")
        return self

    @property
    def parameters(self) -> list[NDArray[Any]]:
        """The arrays that an optimizer updates in place: gamma and beta, if any, unless frozen."""
        arrays = self.gamma, self.beta
        return [array for array in arrays if array is not None and not self.frozen]

    @property
    def gradients(self) -> list[NDArray[Any]]:
        """The gradients of `parameters`, from the last `backward`."""
        pairs = (self.gamma, self.diff_gamma), (self.beta, self.diff_beta)
        return [d for a, d in pairs if a is not None and d is not None and not self.frozen]

    # ---- passes -----------------------------------------------------------------------

    @_forgets
    def forward(self, src: Array, src_1: Array | None = None) -> NDArray[Any]:
        """Normalize a batch.

        Parameters
        ----------
        src : array, shape (N, ..., C) or (N, C, ...)
            As for `bn_ext.batch_norm_training`.
        src_1 : array, optional
            Added before the ReLU; of src's shape and dtype.

        Returns
        -------
        ndarray
            dst, in src's shape, dtype and memory order.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `bn_ext.batch_norm_training` and `bn_ext.batch_norm_inference`. The layer is then
            unchanged.

        Notes
        -----
        If anything else ends `forward` early, such as a KeyboardInterrupt, the next `backward`
        raises RuntimeError. The running statistics and num_batches_tracked are then both updated,
        or neither is.
        """
        found: Any = _core._committed(*self._step(src, src_1), vars(self))
        return found if isinstance(found, np.ndarray) else found.dst

    def __call__(self, *given: Any, **options: Any) -> NDArray[Any]:
        """Call `forward`, which a subclass may override."""
        return self.forward(*given, **options)

    def _step(self, src: Array, src_1: Array | None) -> tuple[Callable[[], Any], dict[str, Any]]:
        """Prepare a forward pass: the call that computes it, and the attributes to set after it."""
        data = self._as_data(src)
        added = None if src_1 is None else _core._as_array(src_1, "src_1")
        from_batch, mean, variance = self._from_batch(), self.running_mean, self.running_variance
        if from_batch or mean is None or variance is None:
            mean, variance = np.empty((2, self.channels), self.dtype)
        # To see what the ReLU passed, backward computes dst again. It cannot do so if an array was
        # added, which is not kept; from a batch's float32 statistics, it might compute another dst.
        # These two cases need a workspace.
        kept = self.relu and (added is not None or (from_batch and mean.dtype != np.float64))
        workspace = np.empty(-(-data.size // 8), np.uint8) if kept else None
        beta = np.zeros_like(mean) if self.beta is None else self.beta
        gate: dict[str, Any] = {"workspace": workspace} if kept else {"beta": beta}
        options = {**self._options(added), "workspace": workspace}
        tracked = self.num_batches_tracked
        if from_batch:
            options |= {**self._tracking(), "out": (None, mean, variance)}
            call = partial(self._training, data, self.gamma, self.beta, **options)
            tracked += self.running_mean is not None and self._is_batch(data)
        else:
            given = data, mean, variance, self.gamma, self.beta
            call = partial(_core.batch_norm_inference, *given, **options)
        saved = _Saved(data, mean, variance, from_batch, added is not None, gate)
        return call, {"num_batches_tracked": tracked, "_saved": saved}

    def _options(self, src_1: Any) -> dict[str, Any]:
        """Options of every forward pass."""
        return {
            "epsilon": self.epsilon,
            "data_format": self.data_format,
            "src_1": src_1,
            "relu": self.relu,
            "num_threads": self.num_threads,
        }

    def _tracking(self) -> dict[str, Any]:
        """Options of a forward pass that updates the running statistics, if there are any."""
        if self.running_mean is None:
            return {}
        return {
            "running_mean": self.running_mean,
            "running_variance": self.running_variance,
            "exponential_avg_factor": self._factor(),
            "correction": self.correction,
        }

    def _from_batch(self) -> bool:
        """Does the layer normalize with the batch's own statistics?"""
        return self.running_mean is None or (self.training and not self.frozen)

    def _factor(self) -> float:
        """The weight of this batch in the running statistics."""
        if self.exponential_avg_factor is not None:
            return self.exponential_avg_factor
        with _core._DefaultMode():
            return 1 / (self.num_batches_tracked + 1)

    def _as_data(self, src: Array) -> NDArray[Any]:
        """Convert src; its channels and its dtype must fit the layer."""
        data = _core._as_array(src, "src")
        axis, other, format_ = (-1, 1, "NCX") if self.data_format == "NXC" else (1, -1, "NXC")
        if data.ndim >= 2 and data.shape[axis] != self.channels:
            fits = data.shape[other] == self.channels
            hint = f'; axis {other} has {self.channels}: pass data_format="{format_}" to BatchNorm'
            raise ValueError(
                f"src: expected {self.channels} channels on axis {axis}, got shape "
                f"{data.shape}{hint if fits else ''}"
            )
        # Other wrong dtypes are those of every function.
        if (
            self.dtype == np.float32
            and data.dtype.kind in "biufO"
            and data.dtype not in (np.float32, np.float16)
        ):
            expected = (
                "float32, float16 or bfloat16, since the layer's dtype is float32 "
                "(a layer of the default dtype takes more)"
            )
            raise _core._wrong_dtype("src", data, expected, "float32")
        return data

    @refuses_other_names
    def backward(self, diff_dst: Array) -> Any:
        """Gradients of the last `forward`.

        Parameters
        ----------
        diff_dst : array
            The gradient with respect to what `forward` returned.

        Returns
        -------
        ndarray or tuple of two
            diff_src, or (diff_src, diff_src_1) if there was a src_1. Without a ReLU, diff_src_1 is
            diff_dst itself. `diff_gamma` and `diff_beta` are written, unless frozen.

        Raises
        ------
        RuntimeError
            If no `forward` has succeeded, or the last one was interrupted.
        TypeError, ValueError, MemoryError
            As for `bn_ext.batch_norm_backward`. Nothing has then been written.

        Notes
        -----
        `backward` can be called again, even if it was interrupted.
        """
        saved = self._saved
        if saved is None:
            raise RuntimeError(
                "backward: expected a successful forward before it; call forward first"
            )
        diff = _core._as_array(diff_dst, "diff_dst")
        param_grads = self.affine and not self.frozen
        gated = saved.added and self.relu
        out: list[Any] = [None, None, None, *[None] * gated]
        if param_grads:
            out[1:3] = self.diff_gamma, self.diff_beta
        options: dict[str, Any] = {"diff_src_1": True} if gated else {}
        if self.relu:
            options |= {"relu": True, **saved.gate}
        found: Any = self._gradients(
            saved.src,
            diff,
            saved.mean,
            saved.variance,
            self.gamma,
            epsilon=self.epsilon,
            data_format=self.data_format,
            is_training=saved.from_batch,
            param_grads=param_grads,
            out=out,
            num_threads=self.num_threads,
            **options,
        )
        if not saved.added:
            return found.diff_src
        return found.diff_src, found[3] if gated else diff

    # ---- the functions of a step: a layer over several ranks has others ------------------

    _training: Callable[..., Any] = staticmethod(_core.batch_norm_training)
    _gradients: Callable[..., Any] = staticmethod(_core.batch_norm_backward)

    def _is_batch(self, data: NDArray[Any]) -> bool:
        """Does the batch count in num_batches_tracked?"""
        return data.size > 0

    def __getstate__(self) -> dict[str, Any]:
        """Everything except what `forward` saves for `backward`."""
        return {**vars(self), "_saved": None}

    def __copy__(self) -> "BatchNorm":
        """A layer with the same parameters but its own statistics, like its own count."""
        other = type(self).__new__(type(self))
        vars(other).update(self.__getstate__())
        if self.running_mean is not None and self.running_variance is not None:
            other.running_mean = self.running_mean.copy()
            other.running_variance = self.running_variance.copy()
        return other

    # ---- state ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of parameters and statistics, under torch's names.

        Returns
        -------
        dict of str to ndarray
            weight and bias if the layer is affine; running_mean, running_var and
            num_batches_tracked if it keeps running statistics.
        """
        return {name: array.copy() for name, array in self._state().items()}

    def _state(self) -> dict[str, NDArray[Any]]:
        arrays = {theirs: getattr(self, ours) for ours, theirs in _STATE.items()}
        if self.running_mean is not None:
            arrays["num_batches_tracked"] = np.array(self.num_batches_tracked, np.int64)
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
        new = _as_state(state, own)
        self.num_batches_tracked = int(new.pop("num_batches_tracked", self.num_batches_tracked))
        for name, array in new.items():
            own[name][...] = array

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what a pass cannot use; names of other packages, except in a user's subclass."""
        if name in _NOT_READ and type(self).__module__.partition(".")[0] == "bn_ext":
            raise AttributeError(f"{name}: not read by the layer; {_NOT_READ[name]}")
        if name in _FIXED and name in vars(self):
            raise AttributeError(f"{name}: fixed when the layer is made; make another BatchNorm")
        if name in _ARRAYS:
            self._check_array(name, value)
        elif name == "num_batches_tracked":
            value = _as_count(value)
        elif name in ("training", "frozen"):
            value = _core._as_flag(value, name)
        super().__setattr__(name, value)

    def _check_array(self, name: str, array: Any) -> None:
        option = _ARRAYS[name]
        if array is None and (name in ("gamma", "beta") or not getattr(self, option)):
            return
        if not getattr(self, option):
            raise ValueError(f"{name}: expected None, since the layer has {option}=False")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: expected a numpy.ndarray, got {type(array).__name__}")
        if array.shape != (self.channels,):
            raise ValueError(f"{name}: expected shape ({self.channels},), got {array.shape}")
        if array.dtype != self.dtype:
            expected = f"{self.dtype}, the layer's dtype"
            raise _core._wrong_dtype(name, array, expected, str(self.dtype))

    def __repr__(self) -> str:
        options = ("epsilon", "exponential_avg_factor", "correction", "data_format", "affine")
        shown = [f"{name}={getattr(self, name)!r}" for name in (*options, "relu")]
        shown += [] if self.track_running_stats else ["track_running_stats=False"]
        return f"BatchNorm({self.channels}, {', '.join(shown)}, dtype='{self.dtype}')"


# ---- conversion of arguments, with errors that name them ----------------------------------

_FLOATS = ("float32", "float64", "float16", "bfloat16")


def _as_number(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype of parameters and statistics."""
    try:
        number = np.dtype(dtype)
    except (TypeError, ValueError):
        number = None
    if number not in (np.float32, np.float64):
        raise TypeError(f"dtype: expected float64 or float32, got {number or _core._shown(dtype)}")
    return number


def _as_channels(channels: SupportsIndex) -> int:
    number: int = _core._as_index(channels, "channels", "an integer")
    most = np.iinfo(np.intp).max // np.dtype(np.float64).itemsize
    if not 1 <= number <= most:
        bound = "at least 1" if number < 1 else f"at most {most}"
        raise ValueError(f"channels: expected {bound}, got {number}")
    return number


def _as_count(count: SupportsIndex) -> int:
    number: int = _core._as_index(count, "num_batches_tracked", "an integer")
    if not 0 <= number < 2**63:
        raise ValueError(f"num_batches_tracked: expected 0 to {2**63 - 1}, got {number}")
    return number


def _as_state(state: Mapping[str, Any], own: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """{name: array to be copied into the layer's own array}."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state: expected a mapping, got {type(state).__name__}")
    missing = own.keys() - state.keys() - {"num_batches_tracked"}
    unexpected = state.keys() - own.keys()
    if missing or unexpected:
        wrong = {"missing": missing, "unexpected": unexpected}
        listed = [f"; {what}: {', '.join(sorted(map(str, names)))}"
                  for what, names in wrong.items() if names]  # fmt: skip
        for name in sorted(map(str, unexpected)):
            ours = our_name(name, _STATE)
            if ours and _STATE[ours] in own:
                listed.append(f"; {name} is called {_STATE[ours]} here")
            elif ours:
                listed.append(f"; the layer has no {ours}: see {_ARRAYS[ours]} of BatchNorm")
        raise ValueError(f"state: expected {', '.join(own) or 'no names'}{''.join(listed)}")
    new = {}
    for name, value in state.items():
        tracked = name == "num_batches_tracked"
        array = np.asarray(value) if tracked else _core._as_array(value, name)
        if array.shape != own[name].shape:
            raise ValueError(f"{name}: expected shape {own[name].shape}, got {array.shape}")
        if tracked and array.dtype.kind not in "iu":
            raise TypeError(f"{name}: expected an integer, got {array.dtype}")
        if not tracked and array.dtype.name not in _FLOATS:
            raise _core._wrong_dtype(name, array, " or ".join(_FLOATS), "float32")
        if tracked:
            _as_count(int(array))
        if not own[name].flags.writeable:
            raise ValueError(f"{name}: expected a writable array in the layer")
        with _core._DefaultMode():
            new[name] = array.astype(own[name].dtype)
    return new
