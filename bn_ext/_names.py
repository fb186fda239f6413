"""Hints: what to do instead, if a function does not have an argument of some name."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Signature, signature
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

__all__ = [
    "HINTS",
    "explains_other_names",
    "find_hint",
    "refuse_unknown",
    "refuses_other_names",
]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_CALLED = ", which is called {here} here"
_OF_FROZEN = _CALLED + " if is_training=False"
_OF_BATCH = "; {here} is the batch's, which the forward pass returned"
_OF_RSTD = "; pass {here}=1 / {name}**2 - epsilon"
_SET = "; set the new layer's %s[...], or use load_state_dict"
_MEAN = "moving_mean running_mean"
_VARIANCE = "moving_var moving_variance running_var running_variance"
_RSTD = "inv_std invstd rstd save_invstd"
_TRAINS = "is_training train training use_running_average"
_AXES = "axes axis channel_axis channels_first channels_last dim layout"

#: What torch, Keras, TensorFlow, Flax and hand-written NumPy code call our arguments. A row has
#: arguments of ours, all of which a function has; names that it does not have; and the hint. The
#: first row that fits counts. {here} is what the function calls the last of the arguments.
_ROWS: Final = [
    ("src", "input inputs x", _CALLED),
    ("diff_dst", "dout dy grad_out grad_output grad_outputs out_grad y_backprop", _CALLED),
    ("gamma", "scale weight", _CALLED),
    ("beta", "bias offset shift", _CALLED),
    ("diff_gamma", "dgamma", _CALLED),
    ("diff_beta", "dbeta", _CALLED),
    ("epsilon", "eps variance_epsilon", _CALLED),
    ("dtypes", "dtype", _CALLED),
    ("correction", "ddof unbiased", _CALLED),
    ("name data_format", _AXES, _CALLED + ": 'NHWC' or 'NDHWC' or 'NCHW' or 'NCDHW'"),
    ("data_format", _AXES, _CALLED + ": 'NXC' (channels last) or 'NCX' (channels on axis 1)"),
    ("relu", "act activation fuse_relu", _CALLED + ": True or False"),
    ("src_1", "residual side_input z", _CALLED),
    ("num_threads", "n_jobs n_threads nthreads threads", _CALLED),
    # Statistics.
    ("running_mean", _MEAN, _CALLED),
    ("running_variance", _VARIANCE, _CALLED),
    ("diff_dst is_training mean", _MEAN, _OF_FROZEN),
    ("diff_dst is_training variance", _VARIANCE, _OF_FROZEN),
    ("diff_dst mean", _MEAN, _OF_BATCH),
    ("diff_dst variance", _VARIANCE, _OF_BATCH),
    ("diff_dst mean", "save_mean saved_mean", _CALLED),
    ("diff_dst variance", "save_var", _CALLED),
    ("mean", f"batch_mean mu {_MEAN}", _CALLED),
    ("variance", f"var {_VARIANCE}", _CALLED),
    ("diff_dst variance", _RSTD, _OF_RSTD),
    ("is_training variance", _RSTD, _OF_RSTD + ", is_training=False"),
    ("variance", _RSTD, _OF_RSTD),
    ("src exponential_avg_factor", "mean variance",
     "; batch_norm_inference normalizes with a given mean and variance"),
    ("exponential_avg_factor", "momentum",
     ": not accepted, since it is the weight of the new statistics in some packages (PyTorch) and "
     "of the old ones in others (oneDNN, Flax, Keras); pass exponential_avg_factor, the weight of "
     "the new: momentum in PyTorch, 1 - momentum in the others"),
    ("exponential_avg_factor", "decay decay_rate", "; pass {here}=1 - {name}"),
    ("momentum", "decay", _CALLED),
    ("momentum", "exponential_avg_factor", "; pass {here}=1 - {name}"),
    ("epsilon", "momentum", "; batch_norm_training updates running statistics"),
    # Modes.
    ("is_training", "use_running_average", _CALLED + ", with the opposite value"),
    ("is_training", _TRAINS, _CALLED),
    ("diff_dst mean", _TRAINS, "; bn_ext.batch_norm_backward has is_training"),
    ("channels", _TRAINS, "; call train() or eval()"),
    ("src", _TRAINS,
     "; batch_norm_training uses the batch's statistics, batch_norm_inference those that are "
     "passed; a layer has train() and eval()"),
    # How a layer is made.
    ("channels", "num_channels num_features", _CALLED),
    ("affine", "center elementwise_affine scale use_bias use_scale",
     _CALLED + ": False for neither gamma nor beta"),
    ("channels", "requires_grad trainable", "; call freeze()"),
    ("channels", "unfreeze", "; call freeze(False)"),
    ("channels", "zero_grad", "; backward without accumulate starts anew"),
    ("channels", "reset_running_stats",
     "; set running_mean[...] = 0, running_variance[...] = 1, num_batches_tracked = 0"),
    ("channels", "gamma weight", _SET % "gamma"),
    ("channels", "beta bias offset shift", _SET % "beta"),
    ("channels", _MEAN, _SET % "running_mean"),
    ("channels", _VARIANCE, _SET % "running_variance"),
]  # fmt: skip

#: Name -> what may be said about it: (our arguments, hint).
HINTS: Final[dict[str, list[tuple[list[str], str]]]] = {}
for _ours, _names, _hint in _ROWS:
    _needs = _ours.split()
    for _name in {*_names.split(), *(_needs[-1:] if _hint is _CALLED else [])}:
        HINTS.setdefault(_name, []).append((_needs, _hint))


def find_hint(name: str, names: Mapping[str, str]) -> str:
    """What is known of a name in a function that has the arguments `names`, which maps our names
    to the function's.
    """
    for needs, hint in HINTS.get(name, ()):
        if all(ours in names for ours in needs):
            return hint.format(here=names[needs[-1]], name=name)
    return ""


def refuse_unknown(
    function: Callable[..., Any], name: str, names: Mapping[str, str] | None = None
) -> NoReturn:
    """Raise the TypeError for an unknown keyword argument of a function, with a hint; `names` as
    for `find_hint`.
    """
    hint = find_hint(name, names or {ours: ours for ours in signature(function).parameters})
    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")


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
    function: Callable[_Given, _Result], names: Mapping[str, str] | None = None
) -> Callable[_Given, _Result]:
    """Add a hint to the TypeError for an unknown keyword argument, or for one too many without a
    keyword; `names` as for `find_hint`.
    """
    parameters = signature(function).parameters
    known = frozenset(parameters)
    named = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    most = len(known) - len(named)

    @wraps(function)
    def checked(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        for name in options:
            if name not in known:
                refuse_unknown(function, name, names)
        if len(given) > most and named:
            raise TypeError(
                f"{function.__qualname__}() takes {most} positional arguments but {len(given)} "
                f"were given; pass others by name, such as {named[0]}="
            )
        return function(*given, **options)

    checked.__signature__ = _bare(function)  # type: ignore[attr-defined]
    return checked
