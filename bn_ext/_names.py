"""What other packages call our arguments."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Signature, signature
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from bn_ext import _core

__all__ = [
    "CALLED_HERE",
    "FREEZES",
    "VALUES",
    "explains_other_names",
    "our_name",
    "refuse_unknown",
    "refuses_other_names",
]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

#: What torch, Keras, TensorFlow, Flax and hand-written NumPy code call our arguments. If rows share
#: a name, the first of them whose key is an argument of the function is used.
CALLED_HERE: Final = {
    ours: tuple(theirs.split())
    for ours, theirs in {
        "src": "input inputs x",
        "diff_dst": "dout dy grad_out grad_output grad_outputs out_grad y_backprop",
        "gamma": "scale weight",
        "beta": "bias offset shift",
        "running_mean": "moving_mean",
        "running_variance": "moving_var moving_variance running_var",
        "mean": "batch_mean moving_mean mu running_mean save_mean saved_mean",
        "variance": "moving_var moving_variance running_var running_variance save_var var",
        "epsilon": "eps variance_epsilon",
        "correction": "ddof unbiased",
        "is_training": "train training use_running_average",
        "data_format": "axes axis channel_axis channels_first channels_last dim layout",
        "relu": "act activation fuse_relu",
        "src_1": "residual side_input z",
        "num_threads": "n_jobs n_threads nthreads threads",
        "channels": "num_channels num_features",
        "momentum": "decay",
        "affine": "center elementwise_affine scale use_bias use_scale",
    }.items()
}

#: What Keras and torch call an attribute whose value False freezes a layer.
FREEZES: Final = ("requires_grad", "trainable")

#: Our argument -> its values, to be added to a hint.
VALUES: Final = {
    "data_format": ": 'NXC' (channels last) or 'NCX' (channels on axis 1)",
    "relu": ": True or False",
    "affine": ": False for neither gamma nor beta",
}


def refuse_unknown(
    function: Callable[..., Any],
    name: str,
    names: Mapping[str, str] | None = None,
    values: Mapping[str, str] = VALUES,
) -> NoReturn:
    """Raise a TypeError for an unknown keyword argument of a function. The message says what to
    pass instead, if that is known. `names` maps our names to the function's, if they differ.
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
        + (_called(name, names, values) or _explained(name, names))
    )


def our_name(name: str, names: Iterable[str]) -> str | None:
    """Which of our names another package's (or our own) name stands for, if any."""
    return next(
        (o for o, theirs in CALLED_HERE.items() if o in names and (name == o or name in theirs)),
        None,
    )


def _called(name: str, names: Mapping[str, str], values: Mapping[str, str]) -> str:
    """What an argument is called here, if the function has it."""
    ours = our_name(name, names)
    # torch's forward pass returns save_mean.
    if ours is None or (name.startswith("save") and "diff_dst" not in names):
        return ""
    hint = f", which is called {names[ours]} here"
    running = name.startswith(("moving", "running")) and ours in ("mean", "variance")
    if not running or "diff_dst" not in names:
        opposite = name == "use_running_average"
        return hint + (", with the opposite value" if opposite else values.get(ours, ""))
    if "is_training" in names:
        return hint + " if is_training=False"
    return f"; {names[ours]} is the batch's, which the forward pass returned"


def _explained(name: str, names: Mapping[str, str]) -> str:
    """What to do instead, if the function has no such argument."""
    backward = "diff_dst" in names
    if name in ("decay", "decay_rate") and "exponential_avg_factor" in names:
        return f"; pass exponential_avg_factor=1 - {name}"
    if name == "exponential_avg_factor" and "momentum" in names:
        return "; pass momentum=1 - exponential_avg_factor"
    if name == "momentum" and "epsilon" in names:
        return "; batch_norm_training updates running statistics"
    if our_name(name, ["is_training"]) and backward and "mean" in names:
        return "; bn_ext.batch_norm_backward has is_training"
    if our_name(name, ["is_training"]) and {"epsilon", "src_1"} & {*names}:
        return (
            "; batch_norm_training uses the batch's statistics, batch_norm_inference those "
            "that are passed; a layer has train() and eval()"
        )
    if name in ("inv_std", "invstd", "rstd", "save_invstd") and "variance" in names:
        training = ", is_training=False" if "is_training" in names and not backward else ""
        return f"; pass {names['variance']}=1 / {name}**2 - epsilon{training}"
    if name in ("mean", "variance") and "exponential_avg_factor" in names and "src" in names:
        return "; batch_norm_inference normalizes with a given mean and variance"
    if name in FREEZES and "channels" in names:
        return "; call freeze()"
    ours = our_name(name, ["gamma", "beta", "running_mean", "running_variance"])
    if "channels" in names and ours:
        return f"; set the new layer's {ours}[...], or use load_state_dict"
    return ""


def _bare(function: Callable[..., Any]) -> Signature:
    """The signature without types, which `help` would spell out, and without ``**other``."""
    seen = signature(function)
    shown = [
        p.replace(annotation=p.empty)
        for p in seen.parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    return seen.replace(parameters=shown, return_annotation=seen.empty)


def explains_other_names(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Let a function that takes ``**other`` refuse unknown names itself, without a wrapper.

    An unknown name must be found before a missing argument is: with `eps`, epsilon is missing. So
    required arguments get the default ``...``, which `_core` refuses.
    """
    function.__signature__ = shown = _bare(function)  # type: ignore[attr-defined]
    kinds: dict[Any, dict[str, Any]] = {}
    for p in shown.parameters.values():
        kinds.setdefault(p.kind, {})[p.name] = ... if p.default is p.empty else p.default
    first, *rest = kinds.values()
    function.__defaults__ = tuple(first.values())
    function.__kwdefaults__ = rest[0]
    return function


def refuses_other_names(
    function: Callable[_Given, _Result],
    called: Mapping[str, str] | None = None,
    values: Mapping[str, str] = VALUES,
) -> Callable[_Given, _Result]:
    """Make a function refuse unknown keyword arguments as compiled functions do; `called` and
    `values` as for `refuse_unknown`.
    """
    code = function.__code__
    names = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @wraps(function)
    def checked(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        # Not a comprehension: CPython 3.11 leaks its closure when memory is short.
        for name in options:
            if name not in names:
                refuse_unknown(function, name, called, values)
        return function(*given, **options)

    checked.__signature__ = _bare(function)  # type: ignore[attr-defined]
    return checked
