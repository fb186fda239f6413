"""Every public function and method except bn_ext.torch's, called on values of every kind.

Calls are made in each floating-point mode and error mode (MODES) that a caller may be in. A test
fails if a public name of MODULES has no call here.
"""

import contextlib
import inspect
import pickle
import warnings
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import guarded
import numpy as np
from cases import DATA_DTYPES, dtype
from fp_modes import FP_MODES, fp_mode, fp_mode_in_effect
from sheets import SHEETS

import bn_ext
from bn_ext.specs import tensorflow

NEEDS = {"bn_ext.autograd": "autograd", "bn_ext.dask": "dask"}
MODULES = [
    "bn_ext",
    *(f"bn_ext.specs.{name}" for name in bn_ext.specs.__all__),
    *(name for name, what in NEEDS.items() if find_spec(what)),
]


def public():
    """Names of the functions, classes, methods and properties in MODULES.

    Result tuples and exceptions are left out.
    """
    for module in map(import_module, MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found) and issubclass(found, (tuple, Exception)):
                continue
            if callable(found):
                yield f"{module.__name__}.{name}"
            if inspect.isclass(found):
                for method in dir(found):
                    is_its_own = callable(getattr(found, method)) or isinstance(
                        getattr(found, method), property
                    )
                    if is_its_own and not method.startswith("_"):
                        yield f"{module.__name__}.{name}.{method}"


# ---- values of every kind -----------------------------------------------------------------

#: Scales of channels: subnormal; with squares that underflow or overflow; huge.
SCALES = {
    "float16": [1e-7, 1e-6, 1e-3, 1e3, 6e4],
    "float32": [1e-45, 1e-40, 1e-22, 1e22, 3e38],
    "bfloat16": [1e-40, 1e-39, 1e-22, 1e22, 3e38],
    "float64": [5e-324, 1e-310, 1e-160, 1e160, 1.7e308],
}
SIGNALLING = {"float16": 0x7C01, "float32": 0x7F800001, "bfloat16": 0x7F81,
              "float64": 0x7FF0000000000001}  # fmt: skip


def signaling(name):
    """A signaling NaN: any conversion raises a floating-point flag."""
    return np.array(SIGNALLING[name], f"u{dtype(name).itemsize}").view(dtype(name))


class Values:
    """Arguments by name. Each channel has its own kind of values; `turn` rotates the vectors."""

    def __init__(self, data, turn):
        rng = np.random.default_rng(turn)
        vector = "float64" if data == "float64" else "float32"

        def of(name, shape, turn=0, absolute=False):
            scales = np.array([1.0, 0.3, *SCALES[name], np.inf, np.nan, np.nan])
            with np.errstate(all="ignore"):
                found = (rng.uniform(0.1, 1, (*shape, len(scales))) * scales).astype(dtype(name))
                if not absolute:
                    found[rng.random(found.shape) < 0.3] *= -1
            found[..., -1] = signaling(name)
            return np.ascontiguousarray(np.roll(found, turn, axis=-1))

        self.src, self.diff_dst, self.src_1, self.g = (of(data, (6,)) for _ in range(4))
        self.channels, self.number = self.src.shape[1], np.dtype(vector)
        self.mean, self.gamma, self.beta = (of(vector, (), turn + i) for i in range(3))
        self.variance = of(vector, (), turn, absolute=True)
        self.epsilon = [1e-3, np.float32(1e-40), Fraction(1, 3)][turn % 3]
        self.factor = [0.1, Fraction(1, 3), np.float32(1e-40)][turn % 3]
        self.wide = {"weight": of("float64", (), turn), "bias": of("float64", (), turn + 1),
                     "running_mean": of("float64", (), turn + 2),
                     "running_var": of("float64", (), turn + 3)}  # fmt: skip

    def running(self):
        return self.mean.copy(), self.variance.copy()

    def kept(self):
        mean, variance = self.running()
        return {"running_mean": mean, "running_variance": variance,
                "exponential_avg_factor": self.factor, "correction": 1}  # fmt: skip

    def image(self, name):
        return getattr(self, name).reshape(6, 1, 1, self.channels)


def bits(found):
    """A result as values that can be compared. Floats and other objects count by type alone."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return [bits(each) for each in found]
    if isinstance(found, (bn_ext.Statistics, bn_ext.GradientSums)):
        return pickle.dumps(found)
    if isinstance(found, np.ndarray):
        return found.dtype.str, found.shape, found.tobytes()
    return found if isinstance(found, (bytes, int, str)) else repr(type(found))


# ---- calls ----------------------------------------------------------------------------------


def both(call):
    """Make a call with plain sums and with exact ones."""
    return lambda v: [bits(call(v, exact)) for exact in (False, True)]


def operands(v):
    """What guarded.py's calls take."""
    a = guarded.dense(np.random.default_rng(0), v.src.shape, "NXC", v.src.dtype.name)
    a.epsilon, a.factor = v.epsilon, v.factor
    for name in ("src", "diff_dst", "src_1", "mean", "variance", "gamma", "beta"):
        setattr(a, name, getattr(v, name).copy())
    a.diff_diff_src, a.diff_diff_gamma, a.diff_diff_beta = v.g, v.beta, v.mean
    a.running_mean, a.running_variance = v.running()
    return a


def guarded_calls(name):
    """A call that makes guarded.py's calls of a function and gives what they return and update."""

    def call(v):
        a = operands(v)
        found = [bits(each()) for each in guarded.calls(a, {}) if each.func.__name__ == name]
        assert found, f"guarded.py has no call of {name}"
        return [*found, bits([a.running_mean, a.running_variance, a.workspace])]

    return call


def sums(name):
    """{name: call} of a class of sums, of its methods and its properties."""

    def call(v, exact):
        mean = [v.mean] if name == "GradientSums" else []
        given = v.src, *[v.diff_dst] * len(mean)
        parts = [
            getattr(bn_ext, name)(*(a[rows] for a in given), *mean, exact=exact)
            for rows in (slice(2), slice(2, 2), slice(2, None))
        ]
        total, running = sum(parts), v.running()
        if name == "Statistics":
            total.update_running(*running, v.factor, correction=1)
            running = *running, total.variance
        return [
            guarded_calls(name)(v), *parts, total, total == parts[0], total.mean, total.count,
            total.channels, *running, *([total.array.copy()] if exact else []),
        ]  # fmt: skip

    members = dir(getattr(bn_ext, name))
    names = [name, *(f"{name}.{each}" for each in members if not each.startswith("_"))]
    return dict.fromkeys((f"bn_ext.{each}" for each in names), both(call))


def of_lists(v):
    listed = [[np.float32(1e-40), 1.0], [signaling("float32")[()], 2.0], [np.float16(3), 5e-324]]
    return [bits(bn_ext.batch_norm_training(listed, epsilon=v.epsilon, exact=exact))
            for exact in (False, True)]  # fmt: skip


def layer(make, v, **options):
    """The state of a layer with v's parameters, and what its steps give in every mode."""
    made = make(v.channels, dtype=v.number, epsilon=v.epsilon, **options)
    made.load_state_dict({**v.wide, "num_batches_tracked": 2})
    found = [bits(made.state_dict())]
    for mode in (made.train, made.eval, made.freeze):
        mode()
        for _ in range(2):
            found.append(bits(made.forward(v.src, v.src_1)))
            found.append(bits(made.backward(v.diff_dst)))
        found.append(bits([*made.parameters, *made.gradients, made.state_dict()]))
    return found


def steps(make):
    def call(v):
        several = ({}, {"relu": True}, {"exponential_avg_factor": None, "correction": 0})
        return [layer(make, v, **options) for options in several]

    return call


def layers(name, make):
    """{name: call} of a class of layers and of its methods, which all share one call."""
    methods = ("forward", "backward", "parameters", "gradients", "state_dict", "load_state_dict",
               "train", "eval", "freeze")  # fmt: skip
    return dict.fromkeys((name, *(f"{name}.{method}" for method in methods)), steps(make))


def by_sheets(sheets):
    """What operators return for images, updated running statistics included."""

    def call(v):
        found = []
        for sheet in sheets:
            last = sheet.data_format == "NXC"
            dims = (6, 1, 1, v.channels) if last else (6, v.channels, 1, 1)
            images = {name: getattr(v, name).reshape(dims) for name in ("src", "diff_dst")}
            given = sheet.arguments(SimpleNamespace(**{**vars(v), **images}))
            numbers = {"momentum": v.factor, "exponential_avg_factor": v.factor,
                       "epsilon": v.epsilon}  # fmt: skip
            taken = {n: numbers[n] for n in numbers.keys() & sheet.parameters.keys()}
            found.append(sheet.call({**given, **sheet.fixed, **taken}))
        return found

    return call


OPERATORS = {}
for _sheet in SHEETS.values():
    _name = f"{_sheet.operator.__module__}.{_sheet.operator.__name__}"
    OPERATORS.setdefault(_name, []).append(_sheet)
CALLS = {
    "bn_ext.available_isas": lambda v: bn_ext.available_isas(),
    "bn_ext.get_isa": lambda v: bn_ext.get_isa(),
    "bn_ext.keep_memory": lambda v: bn_ext.keep_memory(),
    "bn_ext.show_config": lambda v: bn_ext.show_config("dicts"),
    **{f"bn_ext.{name}": guarded_calls(name) for name in bn_ext.__all__ if "batch_norm_" in name},
    "bn_ext.batch_norm_training": lambda v: [
        guarded_calls("batch_norm_training")(v), of_lists(v)
    ],
    **sums("Statistics"),
    **sums("GradientSums"),
    **layers("bn_ext.BatchNorm", bn_ext.BatchNorm),
    **{name: by_sheets(sheets) for name, sheets in OPERATORS.items()},
    "bn_ext.specs.tensorflow.fused_batch_norm_ex": lambda v: tensorflow.fused_batch_norm_ex(
        v.image("src"), v.gamma, v.beta, v.mean, v.variance, [v.image("src_1")],
        epsilon=v.epsilon, exponential_avg_factor=v.factor, activation_mode="Relu"),
}  # fmt: skip
#: The data dtypes that a module's operators take with the vectors of Values.
TYPES = {
    "onednn_graph": ["float32", "float16", "bfloat16"],
    "tensorflow": ["float32", "float16", "bfloat16"],
    "ngraph": ["float32", "float64"],
}

if "bn_ext.dask" in MODULES:
    import dask
    import dask.array as da

    import bn_ext.dask

    def lazily(function):
        """Call a function on Dask arrays in blocks of samples and channels, in this thread."""

        def call(v):
            blocks = {name: da.from_array(getattr(v, name), chunks=(2, 5))
                      for name in ("src", "diff_dst", "src_1")}  # fmt: skip
            with dask.config.set(scheduler="synchronous"):
                return dask.compute(*function(v, blocks))

        return call

    def dask_training(v, blocks):
        kept = v.kept()
        found = bn_ext.dask.batch_norm_training(
            blocks["src"], v.gamma, v.beta, epsilon=v.epsilon, **kept
        )
        return *found, *kept.values()

    CALLS |= {
        "bn_ext.dask.batch_norm_training": lazily(dask_training),
        "bn_ext.dask.batch_norm_inference": lazily(lambda v, blocks: [
            bn_ext.dask.batch_norm_inference(
                blocks["src"], v.mean, v.variance, v.gamma, v.beta, epsilon=v.epsilon)]),
        "bn_ext.dask.batch_norm_backward": lazily(lambda v, blocks:
            bn_ext.dask.batch_norm_backward(
                blocks["src"], blocks["diff_dst"], v.mean, v.variance, v.gamma,
                epsilon=v.epsilon)),
    }  # fmt: skip

if "bn_ext.autograd" in MODULES:
    import autograd

    import bn_ext.autograd

    def derived(function, *given, wanted=0):
        """A result and one gradient only: autograd would add up several in the caller's mode."""
        vjp, found = autograd.make_vjp(function, wanted)(*given)
        return [bits(found), bits(vjp(given[-1]))]

    def autograd_training(v, exact):
        kept = v.kept()
        options = {"epsilon": v.epsilon, "exact": exact, "relu": True, **kept}

        def step(src, gamma, src_1):
            return bn_ext.autograd.batch_norm_training(src, gamma, v.beta, src_1=src_1, **options)

        return [derived(step, v.src, v.gamma, v.src_1, wanted=n) for n in range(3)], bits(kept)

    def inference(v, *given):
        return bn_ext.autograd.batch_norm_inference(*given, v.gamma, v.beta, epsilon=v.epsilon)

    def autograd_layer(v):
        made = bn_ext.autograd.BatchNorm(v.channels, dtype=v.number, epsilon=v.epsilon, relu=True)
        made.load_state_dict({**v.wide, "num_batches_tracked": 2})
        found = []
        for mode in (made.train, made.eval, made.freeze):
            mode()
            found.append(derived(made, made.parameters, v.src, v.src_1, wanted=1))
        return [*found, bits(made.state_dict()), bits([*made.parameters, *made.gradients])]

    CALLS |= {
        "bn_ext.autograd.batch_norm_training": both(autograd_training),
        "bn_ext.autograd.batch_norm_inference": lambda v: [
            *derived(lambda src: inference(v, src, v.mean, v.variance), v.src),
            bits(autograd.make_vjp(lambda *stats: inference(v, v.src, *stats), (0, 1))(
                v.mean, v.variance)[1])],
        **dict.fromkeys(
            (name for name in public() if name.startswith("bn_ext.autograd.BatchNorm")),
            autograd_layer,
        ),
    }  # fmt: skip


# ---- modes ----------------------------------------------------------------------------------


@contextlib.contextmanager
def errors(how):
    """np.seterr(all=how), and every warning an error."""
    with warnings.catch_warnings(), np.errstate(all=how):
        warnings.simplefilter("error")
        yield


#: Mode: (context manager, its argument, a function that returns what is in effect).
MODES = {f"fp mode: {name}": (fp_mode, name, fp_mode_in_effect) for name in FP_MODES}
MODES["np.seterr"] = errors, "raise", lambda: np.geterr()["under"]


def problems(name):
    """(dtype, turn) of each Values with which a call is tried."""
    for data in TYPES.get(name.split(".")[-2], DATA_DTYPES):
        for turn in range(3):
            yield data, turn


def changes(name):
    """Modes in which a call fails, gives other bits than by default, or changes the mode."""
    found = []
    for problem in problems(name):
        with np.errstate(all="ignore"):
            expected = bits(CALLS[name](Values(*problem)))
        for mode, (enter, how, in_effect) in MODES.items():
            given = Values(*problem)
            try:
                with enter(how):
                    here = bits(CALLS[name](given))
                    left = in_effect()
            except Exception as error:
                found.append(f"{problem}, {mode}: {error!r}")
            else:
                if here != expected:
                    found.append(f"{problem}, {mode}: other bits")
                if left != how:
                    found.append(f"{problem}, {mode}: {left} afterwards")
    return found


#: One name for each call: a layer's methods share a call, which is made once.
ONCE = list({call: name for name, call in CALLS.items()}.values())
