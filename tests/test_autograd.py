"""bn_ext.autograd: derivatives agree with finite differences, gradients with bn_ext's own."""

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, SHORT, all_bits, dtype

import bn_ext

autograd = pytest.importorskip("autograd")
import autograd.numpy as anp  # noqa: E402
from autograd.test_util import check_grads  # noqa: E402

import bn_ext.autograd  # noqa: E402
from bn_ext._derivatives import workspace_size  # noqa: E402
from bn_ext.autograd import batch_norm_inference, batch_norm_training  # noqa: E402

DIMS = [(5, 3), (3, 2, 3), (2, 2, 1, 3)]
formats = pytest.mark.parametrize("data_format", ["NXC", "NCX"])


def arrays(rng, dims, data_format, name="float64", vectors="float64"):
    """Return (src, gamma, beta, src_1), (mean, variance)."""
    data = rng.standard_normal((2, *dims)).astype(dtype(name))
    if data_format == "NCX":
        data = np.moveaxis(data, -1, 2)
    gamma, beta, mean = rng.standard_normal((3, dims[-1])).astype(dtype(vectors))
    variance = rng.uniform(0.5, 2, dims[-1]).astype(dtype(vectors))
    return (data[0], gamma, beta, data[1]), (mean, variance)


def norm_of(stats, **options):
    options = {"epsilon": EPSILON, **options}

    def function(src, gamma=None, beta=None, src_1=None):
        if stats:
            return batch_norm_inference(src, *stats, gamma, beta, src_1=src_1, **options)
        return batch_norm_training(src, gamma, beta, src_1=src_1, **options)

    return function


@formats
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_derivatives(rng, training, relu, dims, data_format):
    arguments, stats = arrays(rng, dims, data_format)
    function = norm_of(() if training else stats, relu=relu, data_format=data_format)
    for wanted in ((0,), (1,), (2,), (3,), (0, 1, 2, 3)):
        for call in (function, lambda *g: anp.sum(anp.tanh(function(*g)))):
            check_grads(call, wanted, modes=["rev"], order=2)(*arguments)
    check_grads(function, (0,), modes=["rev"], order=2)(arguments[0])


@formats
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_derivatives_by_given_statistics(rng, affine, relu, data_format):
    (src, *vectors, _), stats = arrays(rng, (3, 2, 3), data_format)
    vectors = vectors if affine else []
    options = {"epsilon": EPSILON, "relu": relu, "data_format": data_format}

    def function(mean, variance, src, *vectors):
        return batch_norm_inference(src, mean, variance, *vectors, **options)

    for wanted in ((0,), (1,), tuple(range(3 + len(vectors)))):
        check_grads(function, wanted, modes=["rev"], order=1)(*stats, src, *vectors)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_second_derivatives_by_given_statistics_are_refused(rng, first, second):
    (src, *_), stats = arrays(rng, (6, 3), "NXC")
    at = (src, *stats)

    def loss(*at):
        return anp.sum(anp.tanh(batch_norm_inference(*at, epsilon=1.0)))

    def penalty(*at):
        return anp.sum(autograd.grad(loss, first)(*at) ** 2)

    if first == second == 0:
        check_grads(penalty, 0, modes=["rev"], order=1)(*at)
        return
    with pytest.raises(NotImplementedError, match="^mean, variance: expected one derivative, got"):
        autograd.grad(penalty, second)(*at)


SPECIAL = [0.0, -0.0, 2.0, -2.0, np.inf, -np.inf, np.nan, 1e308, 5e-324]
BY_ALL = ["src", "mean", "variance", "gamma", "beta"]


@np.errstate(invalid="ignore")  # variances are negative, too
@pytest.mark.parametrize("wanted", [*([name] for name in BY_ALL), BY_ALL])
def test_no_bit_depends_on_what_is_differentiated(wanted):
    """Neither of dst nor of a gradient, which is bn_ext's own; but for the sign of a zero gradient,
    if there are several.
    """
    vectors = np.array(np.meshgrid(*[SPECIAL] * 4)).reshape(4, -1)
    arguments = dict(zip(BY_ALL[1:], vectors, strict=True))
    arguments["src"] = diff_dst = np.resize([-1.0, 0.0, 3.0], (3, vectors.shape[1])).copy()
    right = bn_ext.batch_norm_inference(**arguments, epsilon=0)
    grads = bn_ext.batch_norm_backward(
        arguments["src"], diff_dst, *vectors[:3], epsilon=0, is_training=False
    )
    by_statistics = bn_ext.batch_norm_statistics_backward(*grads[1:], *vectors[1:3], epsilon=0)
    expected = dict(
        zip(("src", "gamma", "beta", "mean", "variance"), (*grads, *by_statistics), strict=True)
    )

    def function(*values):
        return batch_norm_inference(**arguments | dict(zip(wanted, values, strict=True)), epsilon=0)

    at = [arguments[name] for name in wanted]
    if len(wanted) == 1:
        vjp, dst = autograd.make_vjp(function)(*at)
        results = [vjp(diff_dst)]
    else:
        vjp, dst = autograd.make_vjp(function, tuple(range(len(at))))(*at)
        results, expected = vjp(diff_dst), {name: a + 0.0 for name, a in expected.items()}
    assert all_bits([dst]) == all_bits([right])
    assert all_bits(results) == all_bits(expected[name] for name in wanted)


def test_the_warning_of_a_negative_variance_names_the_callers_line():
    def loss(src):
        return anp.sum(batch_norm_inference(src, np.zeros(2), -np.ones(2), epsilon=0) ** 2)

    with pytest.warns(RuntimeWarning, match="^invalid value encountered in sqrt$") as told:
        autograd.grad(loss)(np.ones((3, 2)))
    assert {warning.filename for warning in told} == {__file__}


def test_forward_mode_and_third_derivatives_are_refused(rng):
    (src, *_), _ = arrays(rng, (5, 1), "NXC")

    def loss(scale):
        return anp.sum(anp.tanh(batch_norm_training(src * scale, epsilon=1.0)))

    second = autograd.grad(autograd.grad(loss))
    assert np.isfinite(second(1.0))
    with pytest.raises(NotImplementedError, match="VJP of batch_norm_double_backward .*not "):
        autograd.grad(second)(1.0)
    with pytest.raises(NotImplementedError, match="^JVP of _normalize "):
        autograd.make_jvp(loss)(1.0)(1.0)


@formats
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", DATA_DTYPES)
def test_gradients_are_those_of_bn_ext(rng, name, training, relu, exact, data_format):
    """They agree to the bit and have their arguments' dtypes, even if the cotangent is float64.

    Only a zero's sign may differ: autograd adds the gradients of a tuple's entries to zeros.
    test_options.py has data of which exact sums have other bits.
    """
    vectors = "float32" if name in SHORT else name
    arguments, stats = arrays(rng, (6, 4, 5), data_format, name, vectors)
    src, gamma, beta, src_1 = arguments
    diff_dst = rng.standard_normal(src.shape)
    function = norm_of(() if training else stats, relu=relu, exact=exact, data_format=data_format)
    results = autograd.make_vjp(lambda all_: function(*all_))(arguments)[0](diff_dst)
    shared = {"epsilon": EPSILON, "data_format": data_format}
    gate = {}
    if relu:
        gate = {"workspace": np.empty(workspace_size(src.size, src.ndim), np.uint8), "relu": True}
    if training:
        dst, *stats = bn_ext.batch_norm_training(
            src, gamma, beta, src_1=src_1, exact=exact, **shared, **gate
        )
    else:
        dst = bn_ext.batch_norm_inference(src, *stats, gamma, beta, src_1=src_1, **shared, **gate)
    if relu:
        gate["diff_src_1"] = True
    diff_dst = diff_dst.astype(src.dtype)
    right = bn_ext.batch_norm_backward(
        src, diff_dst, *stats, gamma, is_training=training, exact=exact, **shared, **gate
    )
    assert all_bits(results) == all_bits(a + np.zeros_like(a) for a in [*right, diff_dst][:4])
    assert all_bits([function(*arguments)]) == all_bits([dst])


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_second_derivatives_of_other_dtypes(rng, name):
    """They are right although autograd's own arithmetic turns gradients into float64."""
    arguments, _ = arrays(rng, (12, 3), "NXC", name, "float32")
    weights = rng.standard_normal((12, 3))
    results = []
    for data, vectors in ((name, "float32"), ("float64", "float64")):
        src, src_1 = (arguments[i].astype(data) for i in (0, 3))
        gamma, beta = (arguments[i].astype(vectors) for i in (1, 2))

        def loss(src, gamma, beta, src_1=src_1):
            return anp.sum(weights * anp.tanh(norm_of((), relu=True)(src, gamma, beta, src_1)))

        def penalty(*vectors, src=src, loss=loss):
            grads = autograd.grad(loss, (0, 1, 2))(src, *vectors)
            return sum(anp.sum(weights[0] * grad**2) for grad in grads)

        results.append(autograd.grad(penalty, (0, 1))(gamma, beta))
    for result, right in zip(*results, strict=True):
        np.testing.assert_allclose(result, right, rtol=0.05)


def test_running_statistics_take_one_step_for_an_evaluation(rng):
    (src, *_), _ = arrays(rng, (6, 2), "NXC")
    kept = [np.zeros(2), np.ones(2)]
    options = {"exponential_avg_factor": 0.5, "correction": 1}
    running = dict(zip(("running_mean", "running_variance"), kept, strict=True), **options)
    loss = lambda x: anp.sum(anp.tanh(batch_norm_training(x, epsilon=1.0, **running)))  # noqa: E731
    autograd.grad(lambda x: anp.sum(autograd.grad(loss)(x) ** 2))(src)
    np.testing.assert_allclose(kept[0], src.mean(axis=0) / 2)
    np.testing.assert_allclose(kept[1], (1 + src.var(axis=0, ddof=1)) / 2)


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("training", [True, False])
def test_vectors_may_change_before_the_gradient(rng, training, count):
    """A later pass may update statistics, and a state may be loaded into parameters; whether
    autograd differentiates by them or not.
    """
    (src, *affine, src_1), stats = arrays(rng, (6, 3), "NXC")
    arguments = [src, src_1, *affine, *(() if training else stats)]
    results = []
    for changed in (False, True):
        copies = [array.copy() for array in arguments]
        wanted = copies[:count]

        def function(*wanted, kept=tuple(copies[count:])):
            src, src_1, gamma, beta, *stats = (*wanted, *kept)
            return norm_of(stats, relu=True)(src, gamma, beta, src_1)

        vjp, _ = autograd.make_vjp(function, tuple(range(len(wanted))))(*wanted)
        for vector in copies[2:]:
            vector[:] += changed
        results.append(all_bits(vjp(src_1)))
    assert results[0] == results[1]


def test_layer(rng):
    data = [rng.standard_normal((6, 3)) for _ in range(3)]
    for options in ({}, {"relu": True, "exponential_avg_factor": None}, {"affine": False}):
        traced, plain = bn_ext.autograd.BatchNorm(3, **options), bn_ext.BatchNorm(3, **options)
        for mode in ("train", "eval", "freeze"):
            for layer in (traced, plain):
                getattr(layer, mode)()
            for src in data:
                right = plain.forward(src).copy()
                if not plain.parameters:
                    assert all_bits([traced([], src)]) == all_bits([right])
                    continue
                vjp, dst = autograd.make_vjp(traced)(traced.parameters, src)
                plain.backward(data[0])
                assert all_bits([dst, *vjp(data[0])]) == all_bits([right, *plain.gradients])
            states = traced.state_dict(), plain.state_dict()
            assert states[0].keys() == states[1].keys()
            assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_what_a_layer_does_not_count(rng):
    layer = bn_ext.autograd.BatchNorm(3)
    before = all_bits(layer.state_dict().values())
    layer(layer.parameters, rng.standard_normal((6, 3)), track=False)
    layer(layer.parameters, np.empty((0, 3)))
    assert all_bits(layer.state_dict().values()) == before


def test_what_is_refused(rng):
    (src, gamma, *_), _ = arrays(rng, (6, 3), "NXC")
    layer = bn_ext.autograd.BatchNorm(3)
    for name in ("gradients", "diff_gamma", "diff_beta"):
        message = f"no attribute '{name}'; autograd.grad returns the gradients$"
        for call in (getattr, lambda layer, name: setattr(layer, name, gamma)):
            with pytest.raises(AttributeError, match=message):
                call(layer, name)
    for parameters, error in (([gamma], ValueError), ([gamma] * 3, ValueError), (None, TypeError)):
        with pytest.raises(error, match="^parameters: expected gamma and beta, or an empty"):
            layer(parameters, src)
    diff_mean = autograd.grad(lambda m: anp.sum(batch_norm_inference(src, m, [1.0] * 3, epsilon=1)))
    assert diff_mean(np.zeros(3)).shape == (3,)
    with pytest.raises(ValueError, match=r"^gamma: expected shape \(3,\)"):
        autograd.grad(lambda m: batch_norm_inference(src, m, m, gamma[:1], epsilon=1))(np.ones(3))
    with pytest.raises(TypeError, match=r"^backward: expected autograd to differentiate"):
        layer.backward(src)
    with pytest.raises(TypeError, match=r"^relu: expected"):
        batch_norm_training(src, epsilon=1, relu="yes")
