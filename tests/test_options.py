"""Every option of what wraps the functions changes something, or is refused; in a layer, in every
mode.

A new option needs a row in OPTIONS or OTHERS; without one, a test fails.
"""

import copy
import inspect
import itertools
from importlib import import_module
from importlib.util import find_spec

import members
import numpy as np
import pytest
from cases import team_of
from sheets import SHEETS

from bn_ext import specs

pytestmark = [pytest.mark.fast, pytest.mark.filterwarnings("ignore")]


def problem():
    """The channels may be on either axis. Sums cancel, so that exact ones have other bits."""
    rng = np.random.default_rng(0)
    p = members.problem(rng, (40, 4, 4, 4), "NXC")
    for name in ("src", "diff_dst"):
        array = getattr(p, name)
        array *= np.float32(10) ** rng.integers(-3, 4, array.shape)
        array[1::2] = -array[::2] * np.float32(1 + 1e-4)
    return p


P = problem()
VECTORS = {n: (getattr(P, n), 2 * getattr(P, n)) for n in [*members.AFFINE, *members.RUNNING]}
#: What an option is, and what it is changed to; meanwhile, the others stay as they are.
OPTIONS = {**VECTORS, "src_1": (None, P.src_1), "dst": (None, P.dst), "num_threads": (None, 0)}
OPTIONS |= {"epsilon": (0.1, 0.2), "exponential_avg_factor": (0.3, 0.4), "correction": (0, 1)}
OPTIONS |= {"data_format": ("NXC", "NCX"), "dtype": ("float64", "float32")}
OPTIONS |= {"allreduce": (None, lambda sums: sums + sums)}
OPTIONS |= dict.fromkeys(["relu", "exact"], (False, True))
OPTIONS |= dict.fromkeys(["is_training", "param_grads", "affine", "track", "keep"], (True, False))
OPTIONS |= {"track_running_stats": (True, False)}
#: The same where a module has others. None: without effect in one process, or at all.
ONEDNN = dict.fromkeys(["diff_gamma", "diff_beta", "gamma_delta", "beta_delta"], (True, False))
TORCH = {"weight": VECTORS["gamma"], "bias": VECTORS["beta"], "bias of a layer": (True, False)}
TORCH |= {"training": (True, False), "momentum": (0.3, 0.4), "eps": (0.1, 0.2), "group": (None, "")}
TORCH |= {"device": ("cpu", "meta"), "dtype": ("float32", "float64"), "process_group": None}
TORCH |= {"whole_gradients": None, "whole_gradients of a layer": (False, True)}
OTHERS = {
    "bn_ext.dask": {"relu": (True, False)},  # with beta
    "bn_ext.specs.onednn_graph": ONEDNN | {"momentum": (0.3, 0.4)},
    "bn_ext.specs.tensorflow": {"data_format": ("NHWC", "NCHW"), "name": None},
    "bn_ext.torch": TORCH,
}
#: Modes of each module's layers -> options that they have no use for: outside of training, nothing
#: is updated; our own layer computes no sums if it is frozen; one process is the whole.
UPDATING = ["exponential_avg_factor", "correction", "momentum", "track"]
MODES = {
    "bn_ext": {"train": [], "eval": UPDATING, "freeze": [*UPDATING, "exact", "allreduce"]},
    "bn_ext.autograd": {"train": [], "eval": UPDATING, "freeze": UPDATING},
    "bn_ext.torch": {"train": ["whole_gradients"], "eval": UPDATING},
}


def values(module, wrapper, option):
    known = OPTIONS | OTHERS.get(module, {})
    of_layer = f"{option} of a layer"
    return known[of_layer if inspect.isclass(wrapper) and of_layer in known else option]


def options_of(wrapper):
    """Names of arguments that may be left out or must be given by name. A class that takes any
    takes those of the next class.
    """
    results, makers = {}, [wrapper]
    if inspect.isclass(wrapper):
        makers = [vars(each)["__init__"] for each in wrapper.__mro__ if "__init__" in vars(each)]
    for maker in makers:
        parameters = inspect.signature(maker).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        optional = [p for p in named if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
        results |= {p.name: None for p in optional}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return [*results]
    raise AssertionError(f"{wrapper} takes any option")


def required(function, arrays):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: arrays[p.name] for p in parameters if p.name in arrays and p.default is p.empty}


def of_autograd(function, options):
    from autograd import make_vjp

    arguments = required(function, vars(P)) | options
    names = ["src", *(name for name in members.AFFINE if name in arguments)]
    vjp, dst = make_vjp(
        lambda arrays_of_tuple: function(
            **arguments | dict(zip(names, arrays_of_tuple, strict=True))
        )
    )(tuple(arguments[name] for name in names))
    return dst, vjp(P.diff_dst)


def of_dask(function, options):
    import dask.array as da

    arguments = required(function, vars(P)) | options
    tensors = [n for n in members.TENSORS if arguments.get(n) is not None]
    return function(
        **arguments | {n: da.from_array(arguments[n], chunks=(7, 4, 4, 4)) for n in tensors}
    )


def of_torch(function, options):
    import torch

    arrays = {"input": P.src, "running_mean": P.running_mean, "running_var": P.running_variance}
    arguments = required(function, arrays) | options
    arguments |= {n: torch.tensor(a) for n, a in arguments.items() if isinstance(a, np.ndarray)}
    dst = function(**arguments | {"input": arguments["input"].requires_grad_()})
    (diff_src,) = torch.autograd.grad(dst, arguments["input"], torch.tensor(P.diff_dst))
    return dst, diff_src, arguments["running_mean"]


def of_specs(function, options):
    sheet = next(each for each in SHEETS.values() if each.operator is function)
    return function(**sheet.arguments(P) | options)


def of_layer(layer, **options):
    dst = layer.forward(P.src, **options)
    saved = layer.saved is not None
    grads = [layer.backward(P.diff_dst), *layer.gradients] if saved else []
    return [dst, *grads, *layer.state_dict().values(), layer.eval().forward(P.src)]


def of_autograd_layer(layer, **options):
    from autograd import make_vjp

    vectors = () if layer.gamma is None else (layer.gamma, layer.beta)
    vjp, dst = make_vjp(lambda operands: layer(operands[1:], operands[0], **options))(
        (P.src, *vectors)
    )
    return dst, vjp(P.diff_dst), *layer.state_dict().values(), layer.eval()([], P.src)


def of_torch_layer(layer, **options):
    import torch

    dims = {"BatchNorm1d": (40, 4, 16), "BatchNorm3d": (40, 4, 4, 2, 2)}
    dims = dims.get(type(layer).__name__, P.src.shape)
    options = {"input": P.src, "diff_dst": P.diff_dst, **options}
    options = {n: torch.tensor(a).reshape(dims) for n, a in options.items()}
    src, diff_dst = options.pop("input").requires_grad_(), options.pop("diff_dst")
    dst = layer(src, **options)
    dst.backward(diff_dst)
    grads = [vector.grad for vector in layer.parameters()]
    return [dst, src.grad, *grads, *layer.state_dict().values(), layer.eval()(src)]


SPECS = {f"bn_ext.specs.{name}": of_specs for name in specs.__all__}
FUNCTIONS = {"bn_ext.autograd": of_autograd, "bn_ext.dask": of_dask, "bn_ext.torch": of_torch}
FUNCTIONS |= SPECS
LAYERS = {"bn_ext": of_layer, "bn_ext.autograd": of_autograd_layer, "bn_ext.torch": of_torch_layer}


def wrappers():
    """(module, function or layer), for all that are public."""
    for module in LAYERS | FUNCTIONS:
        if module in SPECS or module == "bn_ext" or find_spec(module.removeprefix("bn_ext.")):
            public = import_module(module)
            for each in (getattr(public, name) for name in public.__all__):
                is_layer = inspect.isclass(each) and hasattr(each, "forward")
                is_function = inspect.isfunction(each) and module in FUNCTIONS
                if is_layer or (is_function and each.__name__ != "convert"):
                    yield module, each


def bits(results):
    if isinstance(results, (list, tuple)):
        return [bits(each) for each in results]
    results = results.detach().numpy() if hasattr(results, "detach") else results
    results = results.compute() if hasattr(results, "compute") else results
    return (results.dtype, results.tobytes()) if isinstance(results, np.ndarray) else repr(results)


def found_by(module, wrapper, mode, changed=None, later=None, **of_pass):
    """What a function finds, or a layer in a mode; an attribute may change, forward get more."""
    pairs = {name: values(module, wrapper, name) for name in options_of(wrapper)}
    options = {name: copy.copy(pair[0]) for name, pair in pairs.items() if pair} | (changed or {})
    if not inspect.isclass(wrapper):
        results = FUNCTIONS[module](wrapper, options)
        return bits([results, *(options[name] for name in members.RUNNING if name in options)])
    if module == "bn_ext.torch":
        options["dtype"] = getattr(import_module("torch"), options["dtype"])
    layer = getattr(wrapper(4, **options), mode)()
    if getattr(layer, "gamma", None) is not None:
        layer.gamma[...] = 1, 2, 3, 4
    for name, value in (later or {}).items():
        setattr(layer, name, value)
    return bits(LAYERS[module](layer, **of_pass))


def assert_counts(module, wrapper, mode, option, change):
    """Something else is found, or an error names the option, or the device."""
    before = found_by(module, wrapper, mode)
    assert found_by(module, wrapper, mode) == before
    try:
        after = found_by(module, wrapper, mode, **change)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        after = str(error) if option in str(error) or "meta" in str(error) else before
    assert after != before


def cases(of_layers):
    for module, wrapper in wrappers():
        if not inspect.isclass(wrapper):
            modes, options = {"call": []}, [] if of_layers else options_of(wrapper)
        else:
            modes = MODES[module]
            options = options_of(wrapper.forward if of_layers else wrapper)
        for mode, unused in modes.items():
            for option in options:
                if option not in ("self", *unused) and values(module, wrapper, option):
                    yield module, wrapper, mode, option


@pytest.mark.parametrize(("module", "wrapper", "mode", "option"), [*cases(of_layers=False)])
def test_every_option_counts(module, wrapper, mode, option):
    """In a call; in a layer, when it is made and if it is set later."""
    new = values(module, wrapper, option)[1]
    assert_counts(module, wrapper, mode, option, {"changed": {option: new}})
    is_torchs = module == "bn_ext.torch" and option != "relu"
    if inspect.isclass(wrapper) and not is_torchs:
        assert_counts(module, wrapper, mode, option, {"later": {option: new}})


@pytest.mark.parametrize(("module", "layer", "mode", "option"), [*cases(of_layers=True)])
def test_every_option_of_a_pass_counts(module, layer, mode, option):
    assert_counts(module, layer, mode, option, {option: values(module, layer, option)[1]})


def outcome(*call, **changes):
    try:
        return found_by(*call, **changes)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        return str(error)


#: What must change nothing, whatever the others are.
NEUTRAL = {"num_threads": (1, 3), "allreduce": (None, lambda sums: sums)}


@pytest.mark.parametrize(
    ("module", "wrapper", "mode"), list(dict.fromkeys(case[:3] for case in cases(of_layers=False)))
)
def test_threads_and_processes_change_no_pair_of_options(module, wrapper, mode):
    """Of a call, or of a layer and its forward pass."""
    is_layer = inspect.isclass(wrapper)
    of_pass = options_of(wrapper.forward) if is_layer else []
    known = {("changed", name): values(module, wrapper, name) for name in options_of(wrapper)}
    known |= {("pass", n): values(module, wrapper, n) for n in of_pass if n != "self"}
    new = {key: pair[1] for key, pair in known.items() if pair and key[1] not in NEUTRAL}
    neutral = [name for name in NEUTRAL if ("changed", name) in known]
    if module == "bn_ext.autograd":
        neutral = ["num_threads"]  # a shared layer is refused
    teams = set()
    for pair in itertools.combinations(new, 2) if neutral else ():
        changed = {name: new[where, name] for where, name in pair if where == "changed"}
        passed = {name: new[where, name] for where, name in pair if where == "pass"}
        for name in neutral:
            plain, changed_one = (
                outcome(module, wrapper, mode, copy.deepcopy(changed) | {name: value}, **passed)
                for value in NEUTRAL[name]
            )
            assert plain == changed_one, (name, pair)
            if name == "num_threads":
                teams.add(team_of(3))
    # Tasks of Dask and of torch's gradients are in threads of their own.
    assert not teams or 3 in teams or module in ("bn_ext.dask", "bn_ext.torch")
