"""What other packages call our arguments."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from bn_ext import _core

__all__ = ["FORMATS", "refuse_unknown", "refuses_other_names"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

#: What torch, Keras, TensorFlow, Flax and hand-written NumPy code call our arguments. If rows share
#: a name, the first of them whose key is an argument of the function is used.
CALLED_HERE: Final = {
    "src": ("input", "inputs", "x"),
    "diff_dst": ("dout", "dy", "grad_out", "grad_output", "y_backprop"),
    "gamma": ("scale", "weight"),
    "beta": ("bias", "offset"),
    "running_mean": ("moving_mean",),
    "running_variance": ("moving_var", "moving_variance", "running_var"),
    "mean": ("moving_mean", "running_mean", "save_mean"),
    "variance": ("moving_var", "moving_variance", "running_var", "running_variance", "var"),
    "epsilon": ("eps", "variance_epsilon"),
    "correction": ("ddof", "unbiased"),
    "is_training": ("train", "training", "use_running_average"),
    "data_format": ("axes", "axis", "channels_first", "channels_last", "dim", "layout"),
    "relu": ("activation",),
    "src_1": ("residual", "side_input"),
    "num_threads": ("n_jobs", "nthreads", "threads"),
    "channels": ("num_features",),
    "affine": ("center", "scale", "use_bias", "use_scale"),
}

FORMATS: Final = ": 'NXC' (channels last) or 'NCX' (channels on axis 1)"
#: What to add to a hint for an argument of ours, or for another package's name.
_VALUES: Final = {
    "relu": ": True or False",
    "affine": ": False for neither gamma nor beta",
    "use_running_average": ", with the opposite value",
}


def refuse_unknown(
    function: Callable[..., Any],
    name: str,
    names: Mapping[str, str] | None = None,
    formats: str = FORMATS,
) -> NoReturn:
    """Raise a TypeError for an unknown keyword argument of a function. The message says what to
    pass instead, if that is known. `names` maps our names to the function's, if they differ;
    `formats` says where the channels may be.
    """
    name = str.__getitem__(name, slice(None))  # a plain str, if it is of a subclass
    if names is None:
        names = {ours: ours for ours in signature(function).parameters}
    if name == "momentum" and "exponential_avg_factor" in names:
        raise TypeError(
            "momentum: not accepted, since it is the weight of the new statistics in some packages "
            "(PyTorch) and of the old ones in others (oneDNN, Flax, Keras); pass "
            "exponential_avg_factor, the weight of the new: momentum in PyTorch, 1 - momentum in "
            "the others"
        )
    raise TypeError(
        f"{function.__qualname__}() got an unexpected keyword argument {_core._shown(name)}"
        + (_called(name, names, formats) or _explained(name, names))
    )


def _called(name: str, names: Mapping[str, str], formats: str) -> str:
    """What an argument is called here, if the function has it."""
    backward = "diff_dst" in names
    if name == "save_mean" and not backward:
        return ""  # torch's forward pass returns it
    for ours, theirs in CALLED_HERE.items():
        if ours not in names or (name != ours and name not in theirs):
            continue
        if ours in ("mean", "variance") and name.startswith(("moving", "running")):
            if backward and "is_training" not in names:
                return f"; {names[ours]} is the batch's, which the forward pass returned"
            return f", which is called {names[ours]} here" + (
                ", with is_training=False" * ("is_training" in names)
            )
        values = formats if ours == "data_format" else _VALUES.get(names[ours], "")
        return f", which is called {names[ours]} here{_VALUES.get(name, values)}"
    return ""


def _explained(name: str, names: Mapping[str, str]) -> str:
    """What to do instead, if the function has no such argument."""
    if name == "momentum" and "epsilon" in names:
        return "; only batch_norm_training updates running statistics"
    if name in ("is_training", *CALLED_HERE["is_training"]) and {"epsilon", "src_1"} & {*names}:
        return (
            "; batch_norm_training uses the batch's statistics, batch_norm_inference those "
            "that are passed; a layer has train() and eval()"
        )
    if name in ("invstd", "rstd", "save_invstd") and "variance" in names:
        return f"; pass {names['variance']}=1 / {name}**2 and epsilon=0"
    vectors = ("gamma", "beta", "running_mean", "running_variance")
    if "channels" in names and any(name in (ours, *CALLED_HERE[ours]) for ours in vectors):
        return "; set it in the new layer, or use load_state_dict"
    return ""


def refuses_other_names(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Make a function refuse unknown keyword arguments as compiled functions do."""
    code = function.__code__
    names = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @wraps(function)
    def checked(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        # Not a comprehension: CPython 3.11 leaks its closure when memory is short.
        for name in options:
            if name not in names:
                refuse_unknown(function, name)
        return function(*given, **options)

    return checked
