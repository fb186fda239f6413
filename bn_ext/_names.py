"""What an error says of a name that a function or a layer does not have, or of a package."""

from collections.abc import Callable, Collection
from inspect import signature
from typing import Any, Final, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

_CALLED = ", which is called {here} here"
_OF_FROZEN = _CALLED + " if is_training=False"
_OF_RSTD = "; pass {here}=1 / {name}**2 - epsilon"
_SET = "; set the new layer's %s[...], or use load_state_dict"
_MEAN = "moving_mean running_mean"
_VARIANCE = "moving_var moving_variance running_var running_variance"
_TRAINS = "is_training train training"

#: What users of torch, Keras and NumPy's formula type. A row has arguments, all of which a function
#: has; names that it does not have; and the hint, where {here} is the last of the arguments. The
#: first row that fits counts.
_ROWS: Final = [
    ("src", "input inputs x", _CALLED),
    ("diff_dst", "dout dy grad_out grad_output", _CALLED),
    ("gamma", "scale weight", _CALLED),
    ("beta", "bias offset shift", _CALLED),
    ("epsilon", "eps variance_epsilon", _CALLED),
    ("data_format", "axis channel_axis channels_first channels_last dim",
     _CALLED + ": 'NXC' (channels last) or 'NCX' (channels on axis 1)"),
    ("relu", "act activation fuse_relu", _CALLED + ": True or False"),
    ("src_1", "residual side_input z", _CALLED),
    ("running_mean", _MEAN, _CALLED),
    ("running_variance", _VARIANCE, _CALLED),
    ("is_training mean", _MEAN, _OF_FROZEN),
    ("is_training variance", _VARIANCE, _OF_FROZEN),
    ("mean", f"batch_mean mu save_mean saved_mean {_MEAN}", _CALLED),
    ("variance", f"save_var var {_VARIANCE}", _CALLED),
    ("variance", "inv_std invstd rstd save_invstd", _OF_RSTD),
    ("exponential_avg_factor", "momentum",
     ": not accepted, since it is the weight of the new statistics in some packages (PyTorch) and "
     "of the old ones in others (oneDNN, Flax, Keras); pass exponential_avg_factor, the weight of "
     "the new: momentum in PyTorch, 1 - momentum in the others"),
    ("correction", "ddof", _CALLED),
    ("is_training", _TRAINS, _CALLED),
    ("channels", _TRAINS, "; call train() or eval()"),
    ("diff_dst mean", _TRAINS, "; batch_norm_backward has is_training"),
    ("src", _TRAINS,
     "; batch_norm_training uses the batch's statistics, batch_norm_inference those that are "
     "passed; a layer has train() and eval()"),
    ("channels", "num_channels num_features", _CALLED),
    ("affine", "center elementwise_affine use_bias use_scale",
     _CALLED + ": False for neither gamma nor beta"),
    ("channels", "requires_grad trainable", "; call freeze()"),
    ("channels", "zero_grad", "; backward without accumulate starts anew"),
    ("src", "dout dy grad_out grad_output", "; batch_norm_backward has diff_dst"),
    ("channels", _MEAN, _SET % "running_mean"),
    ("channels", _VARIANCE, _SET % "running_variance"),
    ("channels", "gamma weight", _SET % "gamma"),
    ("channels", "beta bias", _SET % "beta"),
]  # fmt: skip


def find_hint(name: str, has: Collection[str]) -> str:
    """What is known of a name where these are the names that there are."""
    for ours, theirs, hint in _ROWS:
        needs = ours.split()
        if name in theirs.split() and all(each in has for each in needs):
            return hint.format(here=needs[-1], name=name)
    return ""


def unknown(function: Callable[..., Any], other: Collection[str]) -> TypeError:
    """The error for keyword arguments that a function does not have, with a hint or a guess."""
    name, has = next(iter(other)), signature(function).parameters
    hint = find_hint(name, has)
    if not hint:
        from difflib import get_close_matches

        hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, has, 1))
    return TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")


def missing(module: str, error: ImportError, install: str) -> ModuleNotFoundError:
    """The error for a package that the module of this name needs."""
    name = module.partition(".")[2]
    text = f"{module}: expected {name}, got {error!r:.200}; python -m pip install {install}"
    return ModuleNotFoundError(text, name=name)


def refuses_other_names(function: _Function) -> _Function:
    """Let a function that takes ``**other`` raise `unknown` itself. A wrapper would cost a tenth of
    a small call.

    Other names must be found before a missing argument is: with `eps`, epsilon is missing. So
    required arguments get the default ``...``, which `_core` refuses. `help` shows neither this nor
    types, which it would spell out.
    """
    seen = signature(function)
    shown = [
        p.replace(annotation=p.empty)
        for p in seen.parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    defaults = {p.name: ... if p.default is p.empty else p.default for p in shown}
    by_name = {p.name: defaults.pop(p.name) for p in shown if p.kind is p.KEYWORD_ONLY}
    defaults.pop("self", None)
    changed: Any = function
    changed.__signature__ = seen.replace(parameters=shown, return_annotation=seen.empty)
    changed.__defaults__, changed.__kwdefaults__ = (*defaults.values(),), by_name
    return function
