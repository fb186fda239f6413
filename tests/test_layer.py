"""The layer does what the general functions do, and keeps what they need between calls."""

import copy
import functools
import inspect
import io
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import COPIES, DATA_DTYPES, EPSILON, FORMATS, SHORT, TEXTS, Family, all_bits, bits, dtype

import bn_ext

pytestmark = [pytest.mark.fast, pytest.mark.results]

SHAPES = {"NXC": (4, 3, 6, 5), "NCX": (4, 5, 3, 6)}
TRACKED = {"exponential_avg_factor": 0.1, "correction": 1}
#: (with a ReLU, with src_1)
BEHIND = {"plain": (False, False), "relu": (True, False)}
BEHIND |= {"add": (False, True), "add and relu": (True, True)}
#: (dtype of data, dtype of parameters and statistics)
NUMBERS = [(data, number) for data in DATA_DTYPES for number in ("float64", "float32")]
whatever_is_behind = pytest.mark.parametrize(("relu", "added"), BEHIND.values(), ids=BEHIND)


def problem(rng, data="float32", data_format="NXC"):
    return Family(rng, SHAPES[data_format], data_format, data, ratio=2.0)


def layer_of(p, **options):
    """A layer with p's gamma and beta; its running statistics are p's mean and variance."""
    layer = bn_ext.BatchNorm(5, epsilon=EPSILON, data_format=p.data_format, **options)
    if layer.gamma is not None:
        layer.gamma[...], layer.beta[...] = p.gamma, p.beta
    if layer.running_mean is not None:
        layer.running_mean[...], layer.running_variance[...] = p.mean, p.variance
    return layer


def passes(layer, p, added=False, part=slice(None)):
    """The results of both passes, for these samples: dst, diff_src and, if added, diff_src_1."""
    dst = layer.forward(p.src[part], p.src_1[part] if added else None)
    diff = layer.backward(p.diff_dst[part])
    return [dst, *(diff if added else [diff])]


def kept(layer):
    arrays = *layer.gradients, layer.running_mean, layer.running_variance
    return [*all_bits(arrays), layer.num_batches_tracked]


def step(layer, p, added=False):
    return [*map(bits, passes(layer, p, added)), *kept(layer)]


@whatever_is_behind
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("mode", ["training", "eval", "frozen"])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "number"), NUMBERS)
def test_a_step_is_the_general_functions(rng, data, number, data_format, mode, affine, relu, added):
    p = problem(rng, data, data_format)
    layer = layer_of(p, affine=affine, relu=relu, dtype=number)
    getattr(layer, {"training": "train", "eval": "eval", "frozen": "freeze"}[mode])()
    results = step(layer, p, added)

    options = {"epsilon": EPSILON, "data_format": data_format}
    forward = {**options, "src_1": p.src_1 if added else None, "relu": relu}
    gamma, beta, mean, variance = (
        getattr(p, name).astype(number) for name in ("gamma", "beta", "mean", "variance")
    )
    scale_and_shift = (gamma, beta) if affine else (None, None)
    running = mean.copy(), variance.copy()
    if mode == "training":
        forward |= {"running_mean": running[0], "running_variance": running[1], **TRACKED}
        dst, mean, variance = bn_ext.batch_norm_training(p.src, *scale_and_shift, **forward)
    else:
        dst = bn_ext.batch_norm_inference(p.src, mean, variance, *scale_and_shift, **forward)
    diff = np.where(dst <= 0, dtype(data).type(0), p.diff_dst) if relu else p.diff_dst
    param_grads = affine and mode != "frozen"
    options |= {"is_training": mode == "training", "param_grads": param_grads}
    grads = bn_ext.batch_norm_backward(p.src, diff, mean, variance, scale_and_shift[0], **options)
    want = [dst, grads.diff_src, *[diff] * added]
    left = [*grads[1:] * param_grads, *running]
    assert results == [*map(bits, want), *all_bits(left), mode == "training"]


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("factor", [0.1, 0.75, None])
def test_running_statistics(rng, factor, correction):
    layer = bn_ext.BatchNorm(5, exponential_avg_factor=factor, correction=correction)
    mean, variance = np.zeros(5), np.ones(5)
    for i in range(4):
        src = rng.standard_normal((7, 5)) + i
        layer.forward(src.astype(np.float32))
        weight = 1 / (i + 1) if factor is None else factor
        mean += weight * (src.mean(axis=0) - mean)
        variance += weight * (src.var(axis=0, ddof=correction) - variance)
        np.testing.assert_allclose(layer.running_mean, mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(layer.running_variance, variance, rtol=1e-5)
        assert layer.num_batches_tracked == i + 1
    before = all_bits([layer.running_mean, layer.running_variance])
    for change in (layer.eval, layer.freeze):
        change().forward(src.astype(np.float32))
        assert all_bits([layer.running_mean, layer.running_variance]) == before
        assert layer.num_batches_tracked == 4
        layer.train()


def test_modes_return_the_layer_and_combine():
    layer = bn_ext.BatchNorm(3)
    changes = [(lambda: layer, True, False), (layer.eval, False, False)]
    changes += [(layer.train, True, False), (layer.freeze, True, True), (layer.eval, False, True)]
    for change, training, frozen in [*changes, (lambda: layer.freeze(False), False, False)]:
        assert change() is layer
        assert (layer.training, layer.frozen) == (training, frozen)


def test_a_frozen_layer_has_nothing_to_update(rng):
    p = problem(rng)
    layer = layer_of(p)
    assert [a is b for a, b in zip(layer.parameters, (layer.gamma, layer.beta), strict=True)]
    step(layer, p)
    grads = all_bits(layer.gradients)
    layer.freeze()
    assert layer.parameters == layer.gradients == ()
    step(layer, p)
    assert all_bits(layer.freeze(False).gradients) == grads
    assert bn_ext.BatchNorm(5, affine=False).parameters == ()


@pytest.mark.parametrize("absent", ["gamma", "beta"])
def test_a_layer_with_one_parameter(rng, absent):
    """It trains and saves the other one; its passes take ones for gamma, zeros for beta."""
    p = problem(rng)
    layer, whole = layer_of(p), layer_of(p)
    getattr(whole, absent)[...] = absent == "gamma"
    setattr(layer, absent, None)
    assert bits(layer.forward(p.src)) == bits(whole.forward(p.src))
    assert bits(layer.backward(p.diff_dst)) == bits(whole.backward(p.diff_dst))
    (parameter,), (gradient,) = layer.parameters, layer.gradients
    trained = "beta" if absent == "gamma" else "gamma"
    assert parameter is getattr(layer, trained)
    assert gradient is getattr(layer, f"diff_{trained}")
    assert bits(gradient) == bits(getattr(whole, f"diff_{trained}"))
    names = {"gamma": "weight", "beta": "bias"}
    assert layer.state_dict().keys() == whole.state_dict().keys() - {names[absent]}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_call_is_given_stays_as_it_is(rng, frozen, relu):
    """Calls change no argument, even if the layer itself returned it before."""
    p = problem(rng)
    layer = layer_of(p, relu=relu).freeze(frozen)
    for own in (layer.forward(p.src, p.src_1), *passes(layer, p, True)):
        before = bits(own)
        results = [layer.forward(p.src, own), layer.forward(own, p.src_1)]
        assert bits(own) == before
        layer.forward(p.src, p.src_1)
        own[...] = p.diff_dst
        results += layer.backward(own)
        assert bits(own) == bits(p.diff_dst)
        assert not any(np.shares_memory(a, own) for a in results if a is not own)


@pytest.mark.parametrize("error", [OSError, RuntimeError, KeyError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["src", "src_1"])
def test_an_argument_that_cannot_be_read_changes_nothing(rng, name, error):
    class Odd:
        def __array__(self, *_, **__):
            raise error

    p = problem(rng)
    layer, want = layer_of(p), step(layer_of(p), p)
    layer.forward(p.src)
    before = kept(layer)
    with pytest.raises(error):
        layer(**{"src": p.src, name: Odd()})
    assert kept(layer) == before
    assert bits(layer.backward(p.diff_dst)) == want[1]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("mode", ["train", "eval", "allreduce"])
def test_a_pass_that_does_not_succeed_leaves_nothing_for_backward(rng, monkeypatch, mode, error):
    def fail(*_, **__):
        assert layer.saved is None
        raise error

    p = problem(rng)
    layer = layer_of(p).train(mode != "eval")
    layer.forward(p.src)
    with monkeypatch.context() as patch:
        if mode == "allreduce":
            layer.allreduce = fail
        patch.setattr(bn_ext._core, "training" if mode == "train" else "inference", fail)
        with pytest.raises(error):
            layer.forward(p.src)
    with pytest.raises(RuntimeError, match="^backward: expected a successful forward"):
        layer.backward(p.diff_dst)
    layer.allreduce = None
    layer.forward(p.src)
    layer.backward(p.diff_dst)


def test_an_empty_batch_is_not_tracked():
    layer = bn_ext.BatchNorm(3)
    before = all_bits(layer.state_dict().values())
    assert layer.forward(np.ones((0, 3), np.float32)).shape == (0, 3)
    assert layer.backward(np.ones((0, 3), np.float32)).shape == (0, 3)
    assert all_bits(layer.state_dict().values()) == before


def test_state_makes_the_round_trip(rng, tmp_path):
    p = problem(rng)
    layer, restored = layer_of(p), bn_ext.BatchNorm(5, epsilon=EPSILON, data_format=p.data_format)
    step(layer, p)
    state = layer.state_dict()
    assert list(state) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert [*bn_ext.BatchNorm(3, affine=False).state_dict()] == [*state][2:]
    own = layer.gamma, layer.beta, layer.running_mean, layer.running_variance
    assert not any(np.shares_memory(a, b) for a, b in zip(state.values(), own, strict=False))
    np.savez(tmp_path / "state.npz", **state)
    into = restored.gamma, restored.beta, restored.running_mean, restored.running_variance
    with np.load(tmp_path / "state.npz") as loaded:
        restored.load_state_dict(loaded)
    assert all_bits(into) == all_bits(own)
    assert restored.num_batches_tracked == 1
    assert step(restored, p) == step(layer, p)


@pytest.mark.parametrize("data", [*SHORT, "float32"])
def test_state_of_another_dtype_is_converted(rng, data):
    layer = bn_ext.BatchNorm(5)
    state = {name: a.astype(dtype(data)) for name, a in layer.state_dict().items()}
    state["bias"] += 3
    del state["num_batches_tracked"]
    layer.num_batches_tracked = 7
    layer.load_state_dict(state)
    assert layer.beta.dtype == np.float64
    assert (layer.beta == 3).all()
    assert layer.num_batches_tracked == 7


def test_a_state_of_the_layers_own_arrays(rng):
    layer = layer_of(problem(rng))
    gamma, beta = bits(layer.gamma), bits(layer.beta)
    layer.load_state_dict({**layer.state_dict(), "weight": layer.beta, "bias": layer.gamma})
    assert [bits(layer.beta), bits(layer.gamma)] == [gamma, beta]


TOO_MANY = 2**63, np.uint64(2**63), 2**64, 10**400


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"weight": None}, TypeError, "weight: expected an array, got None"),
        ({"bias": np.ones(4)}, ValueError, r"bias: expected shape \(5,\), got \(4,\)"),
        ({"running_var": np.ones(5, int)}, TypeError, "running_var: expected float32, .*int64"),
        ({"weight": np.full(5, "1", TEXTS)}, TypeError, rf"weight: .* {re.escape(str(TEXTS))}$"),
        ({"num_batches_tracked": 1.5}, TypeError, "num_batches_tracked: expected an integer"),
        ({"num_batches_tracked": -1}, ValueError, "num_batches_tracked: expected at least 0"),
        ({"num_batches_tracked": [1]}, TypeError, "num_batches_tracked: expected an integer"),
        *[({"num_batches_tracked": n}, ValueError, f".* at most {2**63 - 1}") for n in TOO_MANY],
        ({"gamma": np.ones(5)}, ValueError, "state: expected .*_tracked; unexpected: gamma$"),
        ({"bias": ..., "offset": 1}, ValueError, "state: .*; missing: bias; unexpected: offset$"),
        ({"bias": ...}, ValueError, "state: expected .*_tracked; missing: bias$"),
        ({"fc.weight": 1}, ValueError, "state: expected .*_tracked; unexpected: fc.weight$"),
    ],
)
def test_state_that_does_not_fit(change, kind, message):
    layer = bn_ext.BatchNorm(5)
    state = {name: a + 1 for name, a in layer.state_dict().items()} | change
    state = {name: value for name, value in state.items() if value is not ...}
    before = all_bits(layer.state_dict().values())
    with pytest.raises(kind, match=f"^{message}"):
        layer.load_state_dict(state)
    assert all_bits(layer.state_dict().values()) == before


def test_a_layer_that_cannot_take_a_state_over_keeps_its_own():
    layer = bn_ext.BatchNorm(5)
    layer.running_mean.flags.writeable = False
    state = {name: a + 1 for name, a in layer.state_dict().items()}
    before = all_bits(layer.state_dict().values())
    with pytest.raises(ValueError, match="^running_mean: expected a writable array in the layer$"):
        layer.load_state_dict(state)
    assert all_bits(layer.state_dict().values()) == before


@pytest.mark.parametrize("mode", ["train", "eval", "freeze"])
def test_without_running_statistics(rng, mode):
    """In every mode, a batch is normalized with its own statistics; the state has none."""
    p = problem(rng)
    with_them = layer_of(p)
    without = layer_of(p, track_running_stats=False)
    getattr(without, mode)()
    assert bits(without.forward(p.src)) == bits(with_them.forward(p.src))
    assert bits(without.backward(p.diff_dst)) == bits(with_them.backward(p.diff_dst))
    assert without.running_mean is without.running_variance is None
    assert without.num_batches_tracked == 0
    assert list(without.state_dict()) == ["weight", "bias"]
    without.load_state_dict({"weight": p.beta, "bias": p.gamma})
    assert bits(without.gamma) == bits(p.beta.astype(np.float64))
    assert "track_running_stats=False" in repr(without)


@pytest.mark.parametrize("kind", DATA_DTYPES)
def test_arrays_that_are_set_may_have_other_dtypes(rng, kind):
    """The passes are the general functions' with these arrays; gradients keep their dtypes."""
    p = problem(rng)
    layer, vectors = layer_of(p), {}
    for name in ("gamma", "beta", "running_mean", "running_variance"):
        vectors[name] = getattr(layer, name).astype(dtype(kind))
        setattr(layer, name, vectors[name].copy())
    options = {"epsilon": EPSILON, "data_format": "NXC"}
    step = bn_ext.batch_norm_training(p.src, **options, **vectors, **TRACKED)
    grads = bn_ext.batch_norm_backward(p.src, p.diff_dst, *step[1:], vectors["gamma"], **options)
    assert all_bits(passes(layer, p)) == all_bits([step.dst, grads.diff_src])
    for name, array in vectors.items():
        assert bits(getattr(layer, name)) == bits(array)
    assert layer.diff_gamma.dtype == np.float64
    np.testing.assert_allclose(layer.diff_gamma, grads.diff_gamma.astype(float), rtol=0.01)


@pytest.mark.parametrize("count", [2**63, 2**64, 10**400, -1, 1.5])
def test_a_count_that_no_state_has(count):
    layer = bn_ext.BatchNorm(2)
    good = layer.state_dict() | {"num_batches_tracked": np.array(2**63 - 1)}
    layer.num_batches_tracked = count
    with pytest.raises((TypeError, ValueError), match="^num_batches_tracked: expected a"):
        layer.state_dict()
    layer.load_state_dict(good)
    assert layer.state_dict()["num_batches_tracked"] == 2**63 - 1


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("gamma", [1.0] * 5, TypeError, "expected a numpy.ndarray, got list"),
        ("beta", np.zeros(4), ValueError, r"expected shape \(5,\), .*, got \(4,\)"),
        ("running_mean", [0.5] * 5, TypeError, "expected a numpy.ndarray, got list"),
        ("running_mean", 0.5, TypeError, "expected (a numpy.ndarray|an array), got float"),
        ("running_variance", None, ValueError, ".* expected all four or none, got no running_vari"),
        ("running_variance", np.ones(4), ValueError, r".*expected shape \(5,\), .*got \(4,\)"),
        ("diff_gamma", None, TypeError, "expected a numpy.ndarray, got NoneType"),
        ("diff_beta", np.full(5, "1", TEXTS), ValueError, "expected dtype float32, float64"),
        ("num_batches_tracked", None, TypeError, "expected an integer, got None"),
        ("num_batches_tracked", 1.5, TypeError, "expected an integer, got 1.5"),
        ("num_batches_tracked", -2, ValueError, "expected at least 0, got -2"),
        ("num_batches_tracked", 2**63 - 1, ValueError, f"expected at most {2**63 - 2}, got"),
        ("exponential_avg_factor", 10, ValueError, "expected a number from 0 to 1, got 10"),
        ("exponential_avg_factor", "a", TypeError, "expected a real number, got 'a'"),
        ("correction", None, ValueError, ".* expected all four or none, got no correction"),
        ("training", "eval", TypeError, "expected True or False, got 'eval'"),
        ("frozen", None, TypeError, "expected True or False, got None"),
        ("num_threads", 0, ValueError, "expected at least 1, got 0"),
        ("allreduce", 3, TypeError, "'int' object is not callable"),
    ],
)
def test_what_is_set_is_checked_by_the_next_step(rng, name, value, kind, message):
    p = problem(rng)
    layer = layer_of(p)
    right = getattr(layer, name)
    setattr(layer, name, value)
    with pytest.raises(kind, match=f"^({name}( in out)?: )?{message}"):
        passes(layer, p)
    setattr(layer, name, right)
    assert not any(gradient.any() for gradient in layer.gradients)
    passes(layer, p)


FIXED = {"affine": False, "channels": 4, "data_format": "NCX", "dtype": np.float32}
FIXED |= {"epsilon": 0.1, "track_running_stats": False, "relu": True, "exact": True}


@pytest.mark.parametrize(("name", "value"), FIXED.items())
def test_options_that_a_pass_depends_on_are_fixed(name, value):
    layer = bn_ext.BatchNorm(5)
    before = getattr(layer, name)
    message = f"^{name}: fixed when the layer is made; make another BatchNorm$"
    with pytest.raises(AttributeError, match=message):
        setattr(layer, name, value)
    assert getattr(layer, name) is before


def test_a_running_variance_that_is_nan_is_used(rng):
    """As of an empty batch, or of NaN."""
    p = problem(rng)
    layer = layer_of(p).eval()
    layer.running_variance[2] = np.nan
    assert np.isnan(layer.forward(p.src)[..., 2]).all()


def test_a_count_is_pythons_integer():
    layer = bn_ext.BatchNorm(5, exponential_avg_factor=None)
    layer.num_batches_tracked = np.int8(127)
    layer.forward(np.ones((2, 5)))
    assert layer.num_batches_tracked == 128


@pytest.mark.parametrize("name", ["momentum", "eps", "weight", "bias", "running_var"])
def test_attributes_of_torchs_layers(name):
    """To set one would change nothing, without a word."""
    layer = bn_ext.BatchNorm(5)
    for use in (lambda: setattr(layer, name, 1), lambda: getattr(layer, name)):
        with pytest.raises(
            AttributeError, match=f"has no attribute '{name}'; it is called .* here"
        ):
            use()
    own = type("OfAUser", (bn_ext.BatchNorm,), {"__module__": __name__})(5)
    setattr(own, name, own.gamma)
    assert getattr(own, name) is own.gamma


@whatever_is_behind
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_copies(rng, make, relu, added):
    """Copies go on as the original does, but need a forward call before backward."""
    p = problem(rng)
    layer = layer_of(p, relu=relu, exponential_avg_factor=0.3)
    passes(layer, p, added)
    copied = make(layer)
    assert vars(copied).keys() == vars(layer).keys()
    assert repr(copied) == repr(layer)
    for name in ("gamma", "diff_beta", "running_mean", "running_variance"):
        shared = make is copy.copy and not name.startswith("running")
        assert np.shares_memory(getattr(copied, name), getattr(layer, name)) == shared
    mine = layer.forward(p.src, p.src_1 if added else None)
    before = bits(mine)
    assert copied.num_batches_tracked == layer.num_batches_tracked - 1
    assert bits(copied.forward(p.src, p.src_1 if added else None)) == before
    assert bits(mine) == before
    assert copied._state().keys() == layer._state().keys()
    for name, array in copied._state().items():
        assert np.array_equal(array, layer._state()[name])
    with pytest.raises(RuntimeError):
        make(layer).backward(p.diff_dst)
    with pytest.raises(AttributeError, match="^'BatchNorm' object has no attribute 'name'$"):
        copied.name  # noqa: B018


@pytest.mark.parametrize("kind", [bn_ext.BatchNorm, type("Mine", (bn_ext.BatchNorm,), {})])
def test_copies_talk_to_the_same_processes(rng, kind):
    """Attributes of a subclass are copied in depth, and a layer is copied once."""
    cannot_be_copied = threading.Lock()
    layer = kind(3, allreduce=functools.partial(lambda lock, sums: sums, cannot_be_copied))
    layer.notes = [layer, []]
    first, second = copy.deepcopy([layer, layer])
    assert first is second
    assert type(first) is kind
    for copied in (first, copy.copy(layer)):
        assert copied.allreduce is layer.allreduce
        assert bits(copied.forward(np.eye(3))) == bits(layer.forward(np.eye(3)))
    assert first.notes[0] is first
    assert first.notes[1] is not layer.notes[1]


class WithLock(bn_ext.BatchNorm):
    """With a slot, and a lock: it cannot be copied, so __setstate__ makes another one."""

    __slots__ = ("notes",)

    def __init__(self, channels):
        super().__init__(channels)
        self.lock, self.notes = threading.Lock(), ["kept"]

    def __getstate__(self):
        attributes, slots = super().__getstate__()
        return {name: a for name, a in attributes.items() if name != "lock"}, slots

    def __setstate__(self, state):
        super().__setstate__(state)
        self.lock = threading.Lock()


class WithOwnProtocol(bn_ext.BatchNorm):
    def __getstate__(self):
        return dict(super().__getstate__())

    def __setstate__(self, state):
        vars(self).update(state, notes=["kept"])


class Remade(bn_ext.BatchNorm):
    notes = ("kept",)

    def __reduce__(self):
        return type(self), (self.channels,)


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kind", [WithLock, WithOwnProtocol, Remade])
def test_copies_of_a_subclass_follow_pythons_protocol(kind, make):
    layer = kind(3)
    layer.forward(np.eye(3))
    copied = make(layer)
    assert type(copied) is kind
    assert [*copied.notes] == ["kept"]
    assert hasattr(copied, "lock") == (kind is WithLock)
    if kind is WithLock:
        assert copied.lock is not layer.lock
        assert (copied.notes is layer.notes) == (make is copy.copy)
    if kind is not Remade:
        assert all_bits(copied.state_dict().values()) == all_bits(layer.state_dict().values())
    copied.forward(np.eye(3))
    assert layer.num_batches_tracked == 1
    assert not np.shares_memory(copied.running_mean, layer.running_mean)


def test_deep_copies_share_what_originals_share():
    one, another = bn_ext.BatchNorm(3), bn_ext.BatchNorm(3)
    another.running_mean, another.gamma = one.running_mean, one.gamma
    first, second, mean = copy.deepcopy([one, another, one.running_mean])
    assert first.running_mean is second.running_mean is mean
    assert first.gamma is second.gamma


class Clipped(bn_ext.BatchNorm):
    def forward(self, src, limit, *, src_1=None):
        return super().forward(np.clip(src, -limit, limit), src_1)


def test_a_call_is_forward(rng):
    p = problem(rng)
    layer, right = layer_of(p), layer_of(p)
    assert bits(layer(p.src, src_1=p.src_1)) == bits(right.forward(p.src, p.src_1))
    assert inspect.signature(layer) == inspect.signature(layer.forward)
    src, src_1 = p.src[0, 0], p.src_1[0, 0]
    assert bits(Clipped(5)(src, 0.5, src_1=src_1)) == bits(
        bn_ext.BatchNorm(5).forward(np.clip(src, -0.5, 0.5), src_1)
    )
    layer.forward = lambda src: src
    assert layer(p.src) is p.src


ONES = np.ones((2, 5), np.float32)
UNSCALED = bn_ext.BatchNorm(5, affine=False)
UNTRACKED = bn_ext.BatchNorm(5, track_running_stats=False)
#: (a call of a layer; the error, and how its message begins)
REFUSED = [
    (lambda a: a.train("yes"), TypeError, "mode: expected True or False"),
    (lambda a: a.freeze("yes"), TypeError, "mode: expected True or False"),
    (lambda a: bn_ext.BatchNorm(5).backward(ONES), RuntimeError, "backward: .* successful forward"),
    *((lambda a, wrong=wrong: a.backward(ONES, wrong), TypeError, "saved: .* `saved` after a forw")
      for wrong in ((), UNSCALED, 1)),
    (lambda a: a.backward(ONES, accumulate=2), TypeError, "accumulate: expected True or False"),
    (lambda a: a.backward(ONES[1:]), ValueError, "diff_dst: expected shape"),
    (lambda a: a.forward(ONES, keep=None), TypeError, "keep: expected True or False, got None"),
    (lambda a: a.forward(ONES, track=None), TypeError, "track: expected True or False, got None"),
    (lambda a: a.forward(ONES, ONES[1:]), ValueError, "src_1: expected shape"),
    (lambda a: a.forward(ONES[:, 1:]), ValueError, r"src: .* 5 .* axis 1, got shape \(2, 4\)"),
    (lambda a: a.forward(ONES > 0), TypeError, "src: expected float32, .*, got bool; "),
    (lambda a: a.forward(ONES.astype(object)), TypeError, "src: expected .*object"),
    (lambda a: a.load_state_dict(None), TypeError, "state: expected a mapping, got NoneType"),
    (lambda a: a.load_state_dict({}), ValueError, "state: expected .*; missing: bias, running_m"),
    (lambda a: UNSCALED.load_state_dict(a.state_dict()), ValueError, "state: .*: bias, weight$"),
    (lambda a: UNTRACKED.load_state_dict(a.state_dict()), ValueError,
     "state: .*; unexpected: num_batches_tracked, running_mean, running_var$"),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_refused(call, kind, message, mode):
    layer = getattr(bn_ext.BatchNorm(5, dtype=np.float32), mode)()
    layer.forward(ONES)
    before, saved = kept(layer), layer.saved
    with pytest.raises(kind, match=f"^{message}"):
        call(layer)
    assert kept(layer) == before
    assert layer.saved is saved
    layer.backward(ONES)


BEYOND = np.nan, 10, -0.1, 1 + 2**-52


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((0,), {}, ValueError, "channels: expected at least 1, got 0"),
        ((10**30,), {}, ValueError, "channels: expected at most .*, got 1000"),
        ((2.5,), {}, TypeError, "channels: expected an integer, got 2.5"),
        ((3,), {"epsilon": -1}, ValueError, "epsilon: expected a finite number >= 0, got -1"),
        ((3,), {"affine": None}, TypeError, "affine: expected True or False, got None"),
        ((3,), {"relu": 2}, TypeError, "relu: expected True or False, got 2"),
        ((3,), {"dtype": np.float16}, TypeError, "dtype: expected float64 or float32, got float16"),
        ((3,), {"dtype": "foo"}, TypeError, "dtype: expected float64 or float32, got 'foo'"),
        ((3,), {"dtype": (1,)}, TypeError, r"dtype: expected float64 or float32, got \(1,\)"),
        ((3,), {"momentum": 0.1}, TypeError, ".* got an unexpected keyword argument 'momentum'"),
        ((3,), {"data_format": "foo"}, ValueError, "data_format: expected .*NXC.*, got 'foo'"),
        ((3,), {"data_format": np.array(["NXC", "NCX"])}, ValueError, "data_format: expected"),
        ((3,), {"data_format": "NHW"}, ValueError, "data_format: expected"),
        ((3,), {"allreduce": 3}, TypeError, "allreduce: expected a callable or None, got 3"),
        ((3,), {"correction": 2}, ValueError, "correction: expected 0 or 1, got 2"),
        ((3,), {"correction": None}, ValueError, ".* expected all four or none, got no correction"),
        ((3,), {"exponential_avg_factor": "x"}, TypeError, "exponential_avg_factor: expected"),
        *[((3,), {"exponential_avg_factor": n}, ValueError, ".* from 0 to 1, got") for n in BEYOND],
        ((3,), {"num_threads": 0}, ValueError, "num_threads: expected at least 1, got 0"),
    ],
    ids=str,
)
def test_arguments_are_checked(arguments, options, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        bn_ext.BatchNorm(*arguments, **options)


def test_repr():
    layer = bn_ext.BatchNorm(3, relu=True)
    before = (
        "BatchNorm(3, epsilon=1e-05, exponential_avg_factor=0.1, correction=1, data_format=None, "
        "affine=True, relu=True"
    )
    assert repr(layer) == f"{before}, dtype='float64')"
    assert repr(layer.eval()) == f"{before}, training=False, dtype='float64')"
    assert repr(layer.train().freeze()) == f"{before}, frozen=True, dtype='float64')"
    layer = bn_ext.BatchNorm(3, relu=True, exact=True, track_running_stats=False, allreduce=id)
    settings = f"track_running_stats=False, exact=True, allreduce={id!r}"
    assert repr(layer) == f"{before}, {settings}, dtype='float64')"


def test_a_layer_guesses_no_layout():
    """Even if only one axis has its channels. The error says where the layout goes."""
    layer = bn_ext.BatchNorm(5)
    for shape in ((2, 5), (0, 5)):
        assert layer.forward(np.ones(shape)).shape == shape
    for shape in ((2, 5, 5), (2, 5, 3), (2, 5, 3, 4), (2, 3, 5), (2, 3, 4)):
        with pytest.raises(ValueError, match="^data_format: .*'NXC' .* in the call of BatchNorm,"):
            layer.forward(np.ones(shape))


@whatever_is_behind
@pytest.mark.parametrize("number", ["float64", "float32"])
def test_several_saved_passes(rng, number, relu, added):
    p, diffs, right = problem(rng), [], []
    layer = layer_of(p, relu=relu, dtype=number)
    parts, saved = [slice(3), slice(3, 4), slice(4)], []
    for part in parts:
        own = layer_of(p, relu=relu, dtype=number)
        diffs.append(all_bits(passes(own, p, added, part)[1:]))
        right.append(own.gradients)
        layer.forward(p.src[part], p.src_1[part] if added else None)
        saved.append(layer.saved)

    def gradient(k, *saved_pass, **options):
        diff_src = layer.backward(p.diff_dst[parts[k]], *saved_pass, **options)
        assert all_bits(diff_src if added else [diff_src]) == diffs[k]

    arrays = layer.gradients
    gradient(1, saved[1])
    assert all_bits(arrays) == all_bits(right[1])
    gradient(0, saved[0], accumulate=True)
    gradient(2, accumulate=True)  # the last pass
    want = [b + a + c for a, b, c in zip(*right, strict=True)]
    assert all_bits(layer.gradients) == all_bits(want)
    assert all(a is b for a, b in zip(arrays, layer.gradients, strict=True))
    layer.freeze()
    gradient(0, saved[0], accumulate=True)
    assert all_bits(arrays) == all_bits(want)
    layer.freeze(False).backward(p.diff_dst, saved[2])
    assert all_bits(arrays) == all_bits(right[2])


#: How an array of gradients is spoiled -> the error.
SPOILED = {
    "read-only": (lambda layer: np.frombuffer(bytes(40)), "expected a writable array"),
    "the other": (lambda layer: layer.diff_beta, "shares memory with diff_beta in out"),
    "gamma": (lambda layer: layer.gamma, "shares memory with gamma"),
    "the saved mean": (lambda layer: layer.saved.mean, "shares memory with mean"),
    "one number": (lambda layer: np.broadcast_to(layer.diff_gamma[:1], 5), "expected a"),
}


@pytest.mark.parametrize(("spoiled", "message"), SPOILED.values(), ids=SPOILED)
def test_gradients_that_cannot_be_added_to(rng, spoiled, message):
    p = problem(rng)
    layer = layer_of(p)
    layer.forward(p.src)
    layer.diff_gamma = spoiled(layer)
    before = all_bits([*layer.gradients, *layer.parameters, layer.saved.mean])
    for accumulate in (False, True):
        with pytest.raises(ValueError, match=f"^diff_gamma in out: {message}"):
            layer.backward(p.diff_dst, accumulate=accumulate)
    assert all_bits([*layer.gradients, *layer.parameters, layer.saved.mean]) == before
    layer.diff_gamma = np.zeros(5)
    layer.backward(p.diff_dst)  # the pass is not used up


def test_a_second_gradient_needs_the_pass(rng):
    """Without it, the gradient of an earlier pass would be computed from the last one."""
    p = problem(rng)
    layer = layer_of(p)
    first, second = slice(2), slice(2, 4)
    want = step(layer_of(p), p)[1]
    layer.forward(p.src[first])
    layer.forward(p.src[second])
    with pytest.raises(ValueError, match="^diff_dst"):
        layer.backward(p.diff_dst)  # a refused one uses nothing up
    layer.backward(p.diff_dst[second])
    before = all_bits(layer.gradients)
    for accumulate in (False, True):
        with pytest.raises(RuntimeError, match=r"^backward: .*; .* pass saved=, what the layer's"):
            layer.backward(p.diff_dst[first], accumulate=accumulate)
    assert all_bits(layer.gradients) == before
    layer.backward(p.diff_dst[second], layer.saved)
    assert all_bits(layer.gradients) == before
    saved = layer.saved
    layer.forward(p.src)
    layer.backward(p.diff_dst[second], saved)  # another pass
    assert bits(layer.backward(p.diff_dst)) == want
    layer.saved = saved  # as after that forward
    layer.backward(p.diff_dst[second])
    assert all_bits(layer.gradients) == before
    layer.forward(p.src)
    layer.backward(p.diff_dst, layer.saved)
    with pytest.raises(RuntimeError, match="pass saved="):
        layer.backward(p.diff_dst)


OPTIONS = {"channels": 4, "epsilon": 0.5, "data_format": "NCX", "affine": False, "relu": True}
OPTIONS |= {"track_running_stats": False, "dtype": np.float32, "exact": True}


@pytest.mark.parametrize(("option", "value"), OPTIONS.items())
@pytest.mark.parametrize("added", [False, True])
def test_a_saved_pass_of_a_layer_with_other_options(rng, option, value, added):
    """Of square data, say, it would give a wrong gradient."""
    options = {"channels": 5, "epsilon": EPSILON, "data_format": "NXC"}
    one, another = (bn_ext.BatchNorm(**each) for each in (options, {**options, option: value}))
    for layer, other in ((one, another), (another, one)):
        c = layer.channels
        src, diff_dst = rng.standard_normal((2, 6, c, c))
        layer.forward(src, src if added else None)
        other.forward(np.ones((6, other.channels, other.channels)))
        before = kept(other)
        theirs, mine = (re.escape(repr(getattr(each, option))) for each in (other, layer))
        message = f"saved: .* with {option}={theirs}, like this one, .* with {option}={mine}"
        with pytest.raises(ValueError, match=f"^{message}$"):
            other.backward(diff_dst, layer.saved)
        assert kept(other) == before


def test_a_saved_pass_has_its_mode(rng):
    """Its gradient is that of the mode in which it was saved, whatever the layer's is now."""
    src, diff_dst = rng.standard_normal((2, 6, 3))
    layer = bn_ext.BatchNorm(3)
    gradients = []
    for set_mode in (layer.train, layer.eval):
        set_mode()
        layer.forward(src, track=False)
        gradients.append((layer.saved, bits(layer.backward(diff_dst))))
    assert gradients[0][1] != gradients[1][1]
    for saved, gradient in gradients:
        assert bits(layer.backward(diff_dst, saved)) == gradient


def twice(own):
    return own + own


def only(kind):
    return lambda own: twice(own) if isinstance(own, kind) else own


#: What allreduce is in both passes -> the number of elements in these.
OF_OTHER_PARTS = {
    "forward": (twice, None, 12, 6),
    "backward": (None, twice, 6, 12),
    "statistics": (only(bn_ext.Statistics), only(bn_ext.Statistics), 12, 6),
    "gradients": (only(bn_ext.GradientSums), only(bn_ext.GradientSums), 6, 12),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("passes", OF_OTHER_PARTS.values(), ids=OF_OTHER_PARTS)
def test_both_passes_have_the_same_parts(rng, passes, exact):
    """A part that is in one of them alone, as earlier statistics are, would give wrong gradients.
    With constants, it may be.
    """
    first, second, forward, backward = passes
    layer = bn_ext.BatchNorm(3, exact=exact, allreduce=first)
    src, diff_dst = rng.standard_normal((2, 6, 3))
    layer.forward(src)
    layer.allreduce = second
    before = kept(layer)
    message = f"^allreduce: .* with forward's {forward} elements .*, got {backward} in backward$"
    with pytest.raises(ValueError, match=message):
        layer.backward(diff_dst)
    assert kept(layer) == before
    layer.eval().forward(src)
    layer.backward(diff_dst)


@pytest.mark.parametrize("allreduce", [None, twice])
def test_an_interrupted_pass_is_counted_if_it_updates(rng, monkeypatch, allreduce):
    name = "update_running" if allreduce else "training"
    call, src = getattr(bn_ext._core, name), rng.standard_normal((6, 3))

    def interrupted(*arrays, **options):
        call(*arrays, **options)
        raise KeyboardInterrupt

    layer = bn_ext.BatchNorm(3, exponential_avg_factor=None, allreduce=allreduce)
    with monkeypatch.context() as patch:
        patch.setattr(bn_ext._core, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            layer.forward(src)
    assert layer.num_batches_tracked == 1
    layer.forward(-src)
    np.testing.assert_allclose(layer.running_mean, 0, atol=1e-15)


@whatever_is_behind
@pytest.mark.parametrize("made", [*COPIES, "equal"])
def test_a_saved_pass_of_a_copy(rng, made, relu, added):
    """Layers with the same options take it, even from a pickle."""
    p = problem(rng)
    layer = layer_of(p, relu=relu)
    want = step(layer, p, added)[1:-3]
    taker = COPIES[made](layer) if made in COPIES else layer_of(p, relu=relu)
    for saved in (layer.saved, pickle.loads(pickle.dumps(layer.saved)), copy.copy(layer.saved)):
        diff_src = taker.backward(p.diff_dst, saved)
        assert [*map(bits, diff_src if added else [diff_src]), *all_bits(taker.gradients)] == want


def through_a_file(saved):
    file = io.BytesIO()
    np.savez(file, src=saved.src, **saved.gate)
    file.seek(0)
    with np.load(file) as arrays:
        return saved._replace(src=arrays["src"], gate={"workspace": arrays["workspace"]})


#: Ways to keep a saved pass: all keep values, few keep the order of axes in memory.
KEPT = {
    **COPIES,
    "data": lambda saved: saved._replace(src=saved.src.copy()),
    "file": through_a_file,
}


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"allreduce": lambda sums: sums}])
@pytest.mark.parametrize("way", KEPT.values(), ids=KEPT)
def test_a_saved_pass_whose_axes_move_in_memory(rng, way, options):
    src, src_1, diff_dst = np.moveaxis(rng.standard_normal((3, 4, 6, 7, 5)), -1, 2)
    layer = bn_ext.BatchNorm(5, data_format="NCX", relu=True, **options)
    layer.forward(src, src_1)
    right = all_bits([*layer.backward(diff_dst), *layer.gradients])
    again = way(layer.saved)
    assert all_bits([*layer.backward(diff_dst, again), *layer.gradients]) == right


@whatever_is_behind
def test_a_pass_that_keeps_nothing(rng, relu, added):
    p = problem(rng)
    layer, right = layer_of(p, relu=relu), layer_of(p, relu=relu)
    src_1 = p.src_1 if added else None
    references = sys.getrefcount(p.src)
    for each in layer, right:
        each.forward(p.src, src_1)
    results = layer.forward(p.src, src_1, keep=False)
    kept_by_one = sys.getrefcount(p.src)
    assert kept_by_one == references + 1
    assert bits(results) == bits(right.forward(p.src, src_1))
    assert kept(layer) == kept(right)
    with pytest.raises(RuntimeError, match="^backward: expected a successful forward"):
        layer.backward(p.diff_dst)


@whatever_is_behind
@pytest.mark.parametrize("factor", [0.1, None])
@pytest.mark.parametrize("total", [{}, {"exact": True}, {"allreduce": lambda own: own}])
def test_a_pass_that_is_not_tracked(rng, factor, total, relu, added):
    p = problem(rng)
    options = {"relu": relu, "exponential_avg_factor": factor, **total}
    layer, right = layer_of(p, **options), layer_of(p, **options)
    src_1 = p.src_1 if added else None
    before = kept(layer)
    assert bits(layer.forward(p.src, src_1, track=False)) == bits(right.forward(p.src, src_1))
    assert kept(layer) == before
    again = [layer.backward(p.diff_dst), right.backward(p.diff_dst)]
    untracked, tracked = (all_bits(results if added else [results]) for results in again)
    assert untracked == tracked
    assert all_bits(layer.gradients) == all_bits(right.gradients)


def allreduces(n):
    """For each of n threads, a function that adds up what all of them pass."""
    barrier, parts = threading.Barrier(n), [None] * n

    def of_rank(rank):
        def allreduce(own):
            parts[rank] = own
            barrier.wait(60)
            total = sum(parts)
            barrier.wait(60)
            return total

        return allreduce

    return map(of_rank, range(n))


PARTS = [slice(2), slice(2, 2), slice(2, 3), slice(3, None)]


def in_parts(p, added, mode="train", **options):
    """A step of a layer per part: (results of all parts, [what each layer is left with])."""
    layers = [layer_of(p, allreduce=each, **options) for each in allreduces(len(PARTS))]
    with ThreadPoolExecutor(len(PARTS)) as pool:
        results = [
            *pool.map(
                lambda layer, part: passes(getattr(layer, mode)(), p, added, part), layers, PARTS
            )
        ]
    return [np.concatenate(parts) for parts in zip(*results, strict=True)], [*map(kept, layers)]


@whatever_is_behind
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "freeze"])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_batch_over_several_processes(rng, data, data_format, mode, affine, relu, added):
    """An exact layer gives the bits of one process, which every process is left with."""
    p = problem(rng, data, data_format)
    options = {"relu": relu, "affine": affine, "exact": True, "exponential_avg_factor": None}
    options |= {"correction": 0, "dtype": "float32" if data == "float16" else "float64"}
    results, left = in_parts(p, added, mode, **options)
    layer = getattr(layer_of(p, **options), mode)()
    assert [*map(bits, results)] == [*map(bits, passes(layer, p, added))]
    assert left == [kept(layer)] * len(PARTS)


def test_a_plain_batch_over_several_processes(rng):
    p = problem(rng, "float64")
    results, left = in_parts(p, True, relu=True)
    assert left == [left[0]] * len(PARTS)
    for mine, right in zip(results, passes(layer_of(p, relu=True), p, True), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-9, atol=1e-9)


def test_what_is_exchanged(rng):
    p, exchanged = problem(rng), []
    layer = layer_of(p, allreduce=lambda own: exchanged.append(type(own)) or own)
    step(layer, p)
    assert exchanged == [bn_ext.Statistics, bn_ext.GradientSums]
    step(layer.eval(), p)  # statistics are known; those of the parameters' gradients are not
    assert exchanged[2:] == [bn_ext.GradientSums]
    step(layer.freeze(), p)
    assert exchanged[3:] == []


def test_a_pass_saved_in_eval_mode_survives_a_training_pass(rng):
    layer = bn_ext.BatchNorm(3)
    src, diff_dst = rng.standard_normal((2, 5, 3))
    layer.eval().forward(src)
    saved, expected = layer.saved, layer.backward(diff_dst)
    layer.train().forward(src + 7)
    assert np.array_equal(layer.backward(diff_dst, saved), expected)
    assert len(repr(saved)) < 80


@pytest.mark.parametrize(
    "wrong", ["plain", "fewer elements", "other channels", "other dtype", "an integer"]
)
def test_what_allreduce_may_return(rng, wrong):
    src = rng.standard_normal((5, 3))
    returned = {
        "plain": bn_ext.Statistics(src),
        "an integer": 3,
        "fewer elements": bn_ext.Statistics(src[:2], exact=True),
        "other dtype": bn_ext.Statistics(src.astype(np.float32), exact=True),
        "other channels": bn_ext.Statistics(src[:, :2], exact=True),
    }[wrong]
    layer = bn_ext.BatchNorm(3, exact=True, allreduce=lambda own: own)
    layer.forward(src)
    before = kept(layer)
    layer.allreduce = lambda own: returned
    expected = "^allreduce: expected a sum with <{}: 5 elements"
    with pytest.raises(TypeError, match=expected.format("GradientSums")):
        layer.backward(src)
    with pytest.raises(TypeError, match=expected.format("Statistics")):
        layer.forward(src)
    assert kept(layer) == before


@pytest.mark.parametrize("where", ["returned", "added by allreduce"])
def test_processes_need_the_same_mean(rng, where):
    """As an allreduce that adds in another order in each process does not give it."""
    src = rng.standard_normal((6, 3))
    layer = bn_ext.BatchNorm(3, allreduce=lambda own: own)
    layer.forward(src)
    before = kept(layer)
    nearby = bn_ext.GradientSums(src, src, np.nextafter(src.mean(axis=0), 9))
    layer.allreduce = lambda own: nearby if where == "returned" else own + nearby
    message = r"^GradientSums: .* mean.*; all processes need the same bits of the mean: allred"
    with pytest.raises(ValueError, match=message):
        layer.backward(src)
    assert kept(layer) == before
