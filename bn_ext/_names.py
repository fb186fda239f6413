"""What other packages call our arguments."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from bn_ext import _core

__all__ = ["refuse_unknown", "refuses_other_names"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

#: What torch, Keras, TensorFlow and hand-written NumPy code call our arguments. If rows share
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
    "is_training": ("train", "training"),
    "data_format": ("axis", "channels_last", "dim", "layout"),
    "relu": ("activation",),
    "src_1": ("residual", "side_input"),
    "num_threads": ("threads",),
    "channels": ("num_features",),
    "affine": ("center", "scale"),
}


def refuse_unknown(
    function: Callable[..., Any], name: str, names: Mapping[str, str] | None = None
) -> NoReturn:
    """Raise a TypeError for an unknown keyword argument of a function. The message says what to
    pass instead, if that is known. `names` maps our names to the function's, if they differ.
    """
    name = str.__getitem__(name, slice(None))  # a plain str, if it is of a subclass
    formats = ": 'NXC' or 'NCX'" if names is None else ""
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
        + _hint(name, names, formats)
    )


def _hint(name: str, names: Mapping[str, str], formats: str) -> str:
    """What to pass instead; `formats` lists the values of a data format."""
    if name == "save_mean" and "diff_dst" not in names:
        return ""  # torch's forward pass returns it
    for ours, theirs in CALLED_HERE.items():
        if ours in names and (name == ours or name in theirs):
            hint = f", which is called {names[ours]} here"
            if ours == "data_format":
                return hint + formats
            of_model = name.startswith(("moving", "running")) and ours in ("mean", "variance")
            return hint + ", with is_training=False" * (of_model and "is_training" in names)
    if name in ("is_training", "train", "training") and "epsilon" in names:
        return (
            "; batch_norm_training uses the batch's statistics, batch_norm_inference those "
            "that are passed; a layer has train() and eval()"
        )
    if name in ("invstd", "rstd", "save_invstd") and "variance" in names:
        return f"; pass {names['variance']}=1 / {name}**2 and epsilon=0"
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
