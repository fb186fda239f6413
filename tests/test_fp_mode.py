"""The floating-point environment: calls compute in the default mode, then restore the caller's."""

import ctypes
import pickle
from fractions import Fraction
from importlib.util import find_spec
from types import SimpleNamespace

import adapters
import members
import numpy as np
import pytest
from cases import DATA_DTYPES, all_bits, team_of
from fp_modes import FP_MODES, LIBM, MODES, SERIOUS, X87, fp_mode, fp_mode_in_effect
from processes import run
from sheets import SHEETS

import bn_ext
from bn_ext.testing import check_backward


@pytest.mark.parametrize("name", FP_MODES)
def test_fp_modes_take_effect(name):
    """Without this, the tests below would test nothing."""
    with fp_mode(name):
        results = fp_mode_in_effect()
    assert (results, fp_mode_in_effect()) == (name, "default")


@pytest.mark.fast
@pytest.mark.results
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", FP_MODES)
def test_the_callers_fp_mode_is_back_afterwards(rng, name, threads):
    """Our operations raise no serious exception flag, either."""
    p = members.problem(rng, (8000 if threads > 1 else 300, 70), "NXC", "float32")
    # For invalid operations and divisions by zero.
    p.epsilon, p.variance[:2], p.diff_dst[5] = 0.0, [-1, 0], np.inf
    teams = set()
    for call in members.calls(p, num_threads=threads):
        with fp_mode(name), np.errstate(invalid="ignore"):
            LIBM.feclearexcept(SERIOUS)
            call()
            flags = LIBM.fetestexcept(SERIOUS)
            results = fp_mode_in_effect()
        assert (results, flags) == (name, 0), call
        if call.func is not bn_ext.batch_norm_statistics_backward:
            teams.add(team_of(threads))
    assert teams == {threads}


@pytest.mark.skipif(not X87, reason="no word of x87's in fenv_t")
@pytest.mark.parametrize("word", [0x07F, 0x27F, 0xF7F])
def test_long_doubles_of_the_judge_have_their_precision(word):
    """Whatever a function leaves in x87's control word, and the word is back afterwards."""

    def kernel(*arrays, epsilon):
        try:
            return bn_ext.batch_norm_backward(*arrays, epsilon=epsilon, data_format="NXC")
        finally:
            LIBM.fesetenv(changed)

    env, changed, after = (ctypes.create_string_buffer(64) for _ in range(3))
    LIBM.fegetenv(env)
    changed[:] = env[:]
    changed[:2] = word.to_bytes(2, "little")
    try:
        report = check_backward(kernel, dtypes="float64", quick=True)
        LIBM.fegetenv(after)
    finally:
        LIBM.fesetenv(env)
    assert report.passed
    assert int.from_bytes(after[:2], "little") == word


@pytest.mark.fast
@pytest.mark.results
def test_the_callers_methods_run_in_the_callers_mode():
    class Lazy:
        def __array__(self, dtype=None, copy=None):
            modes.append(fp_mode_in_effect())
            return np.ones((4, 3), np.float32)

    modes = []
    name = next(name for name in FP_MODES if name != "default")
    with fp_mode(name):
        bn_ext.batch_norm_inference(Lazy(), np.zeros(3), np.ones(3), epsilon=1e-5)
        with pytest.raises(ValueError, match="mean"):
            bn_ext.batch_norm_inference(Lazy(), np.zeros(4), np.ones(3), epsilon=1e-5)
        left = fp_mode_in_effect()
    assert {*modes, left} == {name}


#: Scales of channels: subnormal; with squares that underflow or overflow; huge.
SCALES = {
    "float16": [1e-7, 1e-6, 1e-3, 1e3, 6e4],
    "float32": [1e-45, 1e-40, 1e-22, 1e22, 3e38],
    "bfloat16": [1e-40, 1e-39, 1e-22, 1e22, 3e38],
    "float64": [5e-324, 1e-310, 1e-160, 1e160, 1.7e308],
}
#: The bits of a signaling NaN: any conversion raises a floating-point flag.
SIGNALING = {
    "float16": 0x7C01,
    "float32": 0x7F800001,
    "bfloat16": 0x7F81,
    "float64": 0x7FF << 52 | 1,
}


def problem(data):
    """A problem whose channels have values of a kind each; in its vectors, kinds are shifted."""
    rng = np.random.default_rng(7)

    def of_every_kind(array, shift=0):
        name = array.dtype.name
        scales = np.array([1.0, 0.3, *SCALES[name], np.inf, np.nan, np.nan])
        with np.errstate(all="ignore"):
            results = np.copysign(rng.uniform(0.1, 1, array.shape) * scales, array.astype(float))
            results = results.astype(array.dtype)
        signaling = np.array(SIGNALING[name], f"u{array.itemsize}").view(array.dtype)
        results[..., -1] = signaling
        return np.ascontiguousarray(np.roll(results, shift, axis=-1))

    p = members.problem(rng, (6, 3 + len(SCALES[data]) + 2), "NXC", data)
    p = members.laid(p, of_every_kind, lambda a: of_every_kind(a, rng.integers(a.size)))
    p.variance, p.epsilon = abs(p.variance), np.float32(1e-4)
    return p


def family(p):
    return [*(call() for call in members.calls(p)), *vars(p).values()]


def lists(p):
    listed = [[np.float32(1e-40), 1.0], [p.src[0, -1], 2.0], [np.float16(3), 5e-324]]
    return bn_ext.batch_norm_training(listed, epsilon=Fraction(1, 4))


def sums(p):
    results, cuts = [], (slice(2), slice(2, 2), slice(2, None))
    for exact in (False, True):
        batches = [bn_ext.Statistics(p.src[cut], exact=exact) for cut in cuts]
        gradients = [
            bn_ext.GradientSums(p.src[cut], p.diff_dst[cut], p.mean, exact=exact) for cut in cuts
        ]
        running = p.mean.copy(), p.variance.copy()
        sum(batches).update_running(*running, Fraction(1, 4), correction=1)
        for parts in (batches, gradients):
            total = sum(parts)
            results += [*parts, total, total == parts[0], total.mean]
        results += [*running, sum(batches).variance]
    return results


WIDE = problem("float64")
NAMES = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
STATE = {"num_batches_tracked": 2, **{name: getattr(WIDE, a) for name, a in NAMES.items()}}


def layer(p):
    made = bn_ext.BatchNorm(len(p.mean), dtype=p.mean.dtype, epsilon=p.epsilon, relu=True)
    made.load_state_dict(STATE)
    results = [made.state_dict()]
    for mode in (made.train, made.eval, made.freeze):
        mode()
        for _ in range(2):
            results += [made.forward(p.src, p.src_1), *made.backward(p.diff_dst)]
        results += [*made.parameters, *made.gradients, made.state_dict()]
    return results


def operators(p):
    results = []
    for sheet in SHEETS.values():
        if p.mean.dtype.name in sheet.types.get(p.src.dtype.name, []):
            dims = (6, 1, 1, -1) if sheet.data_format == "NXC" else (6, len(p.mean), 1, 1)
            images = {name: getattr(p, name).reshape(dims) for name in ("src", "diff_dst")}
            arguments = sheet.arguments(SimpleNamespace(**{**vars(p), **images}))
            results.append(sheet.call({**arguments, **sheet.fixed, "epsilon": p.epsilon}))
    return results


def derivatives(p):
    # By one argument at a time: autograd adds what comes to one in two ways, in the caller's mode.
    return [result for result, _ in adapters.of_autograd(p)]


def chunks(p):
    import dask

    with dask.config.set(scheduler="synchronous"):  # in this thread, and so in its mode
        return [result for result, _ in adapters.of_dask(p)]


CALLS = [family, lists, sums, layer, operators]
CALLS += [derivatives] * bool(find_spec("autograd")) + [chunks] * bool(find_spec("dask"))


def bits(results):
    if isinstance(results, dict):
        return bits([*results.values()])
    if isinstance(results, (list, tuple)):
        return [bits(result) for result in results]
    if isinstance(results, (bn_ext.Statistics, bn_ext.GradientSums)):
        return pickle.dumps(results)
    return all_bits([results]) if isinstance(results, np.ndarray) else repr(results)


@pytest.mark.fast
@pytest.mark.results
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_the_same_in_any_mode(call, data, mode, capfd):
    expected, arguments = bits(call(problem(data))), problem(data)
    enter, options, in_effect = MODES[mode]
    with enter(options):
        results = call(arguments)
        left = in_effect()
    assert (bits(results) == expected, left) == (True, options)
    assert capfd.readouterr() == ("", "")


def test_pool_that_another_made_in_another_mode():
    """Threads keep the mode in which they started, but run our calls in the default mode."""
    results, mode, pool = run("threads", "pool_in_another_mode")
    assert results == [[True, True, 4]] * 2
    assert (mode, pool) == ("default", ["flush"] * 3)
