"""What torch's operators compute, and their edges."""

import re

import numpy as np
import pytest
import reference
from bounds import distance, dst_error, errors, running_errors
from cases import DTYPES, EPSILON, Family, all_bits, bits, dtype, half_ulp
from needs import needs_long_double

import bn_ext
from bn_ext.specs import pytorch

pytestmark = [pytest.mark.quick, needs_long_double]

WIDE = {"epsilon": EPSILON, "axis": 1, "wide": np.longdouble}
SHAPES = [(6, 5), (4, 3, 7), (3, 5, 4, 6), (2, 4, 3, 2, 5)]
every_type = pytest.mark.parametrize(("data", "vector"), DTYPES)


def inverse(variance, epsilon=EPSILON):
    return 1 / np.sqrt(np.asarray(variance).astype(np.longdouble) + epsilon)


def near(got, exact, kind, ulps=1.0):
    """Within so many units of what rounding once allows."""
    bound = 2 * ulps * half_ulp(exact, kind)
    assert (distance(got, exact) <= bound).all()


def problem(rng, dims=(3, 5, 4, 6), data="float32", vector=None, **options):
    p = Family(rng, dims, "NCX", data, vector, ratio=3.0, **options)
    p.running_mean, p.running_variance = p.mean.copy(), p.variance.copy()
    return p


def forward(p, training=True, momentum=0.25, eps=EPSILON, running=True):
    pair = (p.running_mean, p.running_variance) if running else (None, None)
    return pytorch.native_batch_norm(p.src, p.gamma, p.beta, *pair, training, momentum, eps)


# ---- native_batch_norm ------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0, 0.25, 1, 2, -1])
@every_type
def test_training(rng, data, vector, momentum):
    for dims in SHAPES:
        p = problem(rng, dims, data, vector)
        want = reference.batch_norm_training(p.src, p.gamma, p.beta, **WIDE)
        found = forward(p, momentum=momentum)
        assert [a.dtype for a in found] == [dtype(data), dtype(vector), dtype(vector)]
        assert dst_error(found.output, want, data, 1).holds()
        near(found.save_mean, want.mean, vector, 1 if data == vector else 1.1)
        near(found.save_invstd, inverse(want.variance), vector, 2)
        pair = p.running_mean, p.running_variance
        for name, error in running_errors(
            pair, (p.mean, p.variance), (want.mean, want.variance), momentum, want, data,
            vector=vector, count=p.count, correction=1,
        ).items():  # fmt: skip
            assert error.holds(), name
            assert pair[0].dtype == dtype(vector)


@every_type
def test_inference_saves_nothing(rng, data, vector):
    p = problem(rng, data=data, vector=vector)
    found = forward(p, training=False)
    assert [a.shape for a in found[1:]] == [(0,)] * 2
    assert {a.dtype for a in found[1:]} == {dtype(vector)}


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_the_dtype_of_what_is_saved(rng, data):
    """The vectors', and the data's if there are none."""
    for vector in ("float32", data):
        p = problem(rng, data=data, vector=vector)
        running = p.running_mean, p.running_variance
        for some, kind in (
            ((p.gamma, p.beta, *running), vector),
            ((None, p.beta, None, None), vector),
            ((None, None, *running), vector),
            ((None,) * 4, data),
        ):
            found = pytorch.native_batch_norm(p.src, *some, True, 0.1, EPSILON)
            assert {a.dtype for a in found[1:]} == {dtype(kind)}
        for pair, kind in ((running, vector), ((None, None), data)):
            found = pytorch.batch_norm_update_stats(p.src, *pair, 0.1)
            assert {a.dtype for a in found} == {dtype(kind)}


def test_absent_scale_and_shift_are_ones_and_zeros(rng):
    p = problem(rng)
    ones, zeros = np.ones_like(p.gamma), np.zeros_like(p.gamma)
    rest = None, None, True, 0.1, EPSILON
    for given, same in (
        ((None, None), (ones, zeros)),
        ((p.gamma, None), (p.gamma, zeros)),
        ((None, p.beta), (ones, p.beta)),
    ):
        found = pytorch.native_batch_norm(p.src, *given, *rest)
        want = pytorch.native_batch_norm(p.src, *same, *rest)
        assert all_bits(found) == all_bits(want)


def test_one_element_per_channel(rng):
    """Its unbiased variance is 0 / 0."""
    p = problem(rng, (1, 5))
    found = forward(p)
    assert (found.output[0] == p.beta).all()
    assert (found.save_mean == p.src[0]).all()
    near(found.save_invstd, inverse(np.zeros(5)), "float32")
    assert np.isnan(p.running_variance).all()
    near(p.running_mean, 0.75 * p.mean.astype(np.longdouble) + 0.25 * p.src[0], "float32")
    p = problem(rng, (1, 5))
    pytorch.batch_norm_update_stats(p.src, p.running_mean, p.running_variance, 0.25)
    assert np.isnan(p.running_variance).all()
    assert np.isfinite(p.running_mean).all()


def test_a_constant_channel_without_eps(rng):
    """save_invstd is 0 there, and output is bias."""
    p = problem(rng)
    p.src[:, 2] = 3
    found = forward(p, eps=0, running=False)
    assert found.save_invstd[2] == 0
    assert (found.output[:, 2] == p.beta[2]).all()
    assert np.isfinite(found.output).all()
    plain = pytorch.native_batch_norm(p.src, None, None, None, None, True, 0.1, 0)
    assert (plain.output[:, 2] == 0).all()
    p.running_mean[2], p.running_variance[2] = 3, 0
    assert np.isnan(forward(p, eps=0, training=False).output[:, 2]).all()
    p.src[:, 2] = 4
    inference = forward(p, eps=0, training=False).output[:, 2]
    assert (inference == np.copysign(np.inf, p.gamma[2])).all()


@pytest.mark.parametrize("dims", [(0, 5), (2, 5, 0), (2, 0, 3)])
def test_without_elements(rng, dims):
    p = problem(rng, dims)
    message = f"^input: expected at least one element, got shape {re.escape(str(dims))}$"
    with pytest.raises(ValueError, match=message):
        forward(p)
    with pytest.raises(ValueError, match=message):
        pytorch.batch_norm_update_stats(p.src, None, None, 0.1)
    assert forward(p, training=False).output.shape == dims


# ---- running statistics -------------------------------------------------------------------


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


REFUSED = {
    "alone": (lambda a: None, "^running_mean, running_var: expected both or neither$"),
    "list": (lambda a: a.tolist(), "^running_mean: .*updated in place, got a list$"),
    "tuple": (lambda a: tuple(a.tolist()), "^running_mean: .*updated in place, got a tuple$"),
    "length": (lambda a: a[1:], r"^running_mean: expected shape \(5,\), .* of input.*got \(4,\)"),
    "read-only": (read_only, "^running_mean: expected a writable array, got a read-only one$"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_running_statistics_that_cannot_be_updated(rng, change, message):
    p = problem(rng)
    before = bits(p.running_variance)
    wrong = change(p.running_mean)
    for call in (
        lambda: pytorch.native_batch_norm(
            p.src, None, None, wrong, p.running_variance, True, 0.1, EPSILON
        ),
        lambda: pytorch.batch_norm_update_stats(p.src, wrong, p.running_variance, 0.1),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
        assert bits(p.running_variance) == before


def test_running_statistics_of_one_memory(rng):
    p = problem(rng)
    with pytest.raises(ValueError, match="^running_mean: shares memory with running_var$"):
        pytorch.batch_norm_update_stats(p.src, p.running_mean, p.running_mean, 0.1)
    whole = np.ones(9, np.float32)
    with pytest.raises(ValueError, match="^running_mean: shares memory with running_var$"):
        pytorch.batch_norm_update_stats(p.src, whole[:5], whole[4:], 0.1)
    assert (whole == 1).all()


def test_running_statistics_of_any_stride(rng):
    p = problem(rng)
    apart = np.ones(5, np.float32), np.ones(5, np.float32)
    pytorch.batch_norm_update_stats(p.src, *apart, 0.25)
    for order in (1, -1):
        whole = np.ones((5, 2), np.float32)
        pytorch.batch_norm_update_stats(p.src, *whole[::order].T, 0.25)
        assert (whole[::order] == np.stack(apart, axis=1)).all()


@every_type
def test_update_stats(rng, data, vector):
    for dims in SHAPES:
        p = problem(rng, dims, data, vector)
        want = reference.batch_norm_training(p.src, **WIDE)
        found = pytorch.batch_norm_update_stats(p.src, p.running_mean, p.running_variance, 0.25)
        near(found.mean, want.mean, vector, 1.1)
        near(found.var, want.variance, vector, 2)
        whole = problem(rng, dims, data, vector)
        whole.src, whole.gamma, whole.beta = p.src, p.gamma, p.beta
        whole.running_mean, whole.running_variance = p.mean.copy(), p.variance.copy()
        forward(whole)
        near(p.running_mean, whole.running_mean.astype(np.longdouble), vector)
        near(p.running_variance, whole.running_variance.astype(np.longdouble), vector)


# ---- native_batch_norm_backward -----------------------------------------------------------


def backward(p, saved, train=True, mask=(True, True, True)):
    running = (None, None) if train else (p.mean, p.variance)
    saved = saved if train else (None, None)
    return pytorch.native_batch_norm_backward(
        p.diff_dst, p.src, p.gamma, *running, *saved, train, EPSILON, list(mask)
    )


@pytest.mark.parametrize("train", [True, False])
@every_type
def test_backward(rng, data, vector, train):
    """Within the general function's bounds, for the variance that invstd stands for."""
    for dims in SHAPES:
        p = problem(rng, dims, data, vector)
        saved = p.mean, inverse(p.variance).astype(dtype(vector))
        variance = 1 / saved[1].astype(np.longdouble) ** 2 if train else p.variance
        want = reference.batch_norm_backward(
            p.src, p.diff_dst, p.mean, variance, p.gamma, is_training=train,
            **{**WIDE, "epsilon": 0 if train else EPSILON},
        )  # fmt: skip
        found = backward(p, saved, train)
        assert [a.dtype for a in found] == [dtype(data), dtype(vector), dtype(vector)]
        grads = bn_ext.BatchNormGradients(*found)
        for name, error in errors(grads, want, data, vector, is_training=train).items():
            # ml_dtypes takes a double to bfloat16 by way of a float.
            assert (error.found <= 1.01 * error.half_ulp + error.bound).all(), name


@pytest.mark.parametrize("train", [True, False])
def test_output_mask(rng, train):
    p = problem(rng)
    saved = p.mean, inverse(p.variance).astype(np.float32)
    whole = backward(p, saved, train)
    for mask in np.ndindex(2, 2, 2):
        found = backward(p, saved, train, mask)
        for flag, a, b in zip(mask, found, whole, strict=True):
            assert (a is None) == (not flag)
            assert not flag or bits(a) == bits(b)
    for thing in ([True] * 2, "abc", None, True, [True] * 4):
        with pytest.raises(TypeError, match="^output_mask: expected three flags, got "):
            pytorch.native_batch_norm_backward(
                p.diff_dst, p.src, None, None, None, *saved, True, EPSILON, thing
            )
    with pytest.raises(TypeError, match="^output_mask: expected True or False, got 2"):
        backward(p, saved, train, (True, 2, True))


def test_statistics_that_are_lacking_and_those_not_used(rng):
    p = problem(rng)
    saved = p.mean, inverse(p.variance).astype(np.float32)
    some = p.diff_dst, p.src, p.gamma
    for train, names in ((True, "save_mean, save_invstd"), (False, "running_mean, running_var")):
        for pair in ((None, None), (p.mean, None), (None, p.mean)):
            unused = ("abc", object())
            four = (*unused, *pair) if train else (*pair, *unused)
            with pytest.raises(ValueError, match=f"^{names}: expected both with train={train}$"):
                pytorch.native_batch_norm_backward(*some, *four, train, EPSILON, [True] * 3)
    found = pytorch.native_batch_norm_backward(
        *some, "abc", object(), *saved, True, EPSILON, [True] * 3
    )
    assert all_bits(found) == all_bits(backward(p, saved))


def test_a_constant_channel_has_no_gradient(rng):
    """Invstd = 0 stands for an infinite variance."""
    p = problem(rng)
    p.src[:, 2] = 3
    saved = forward(p, eps=0, running=False)[1:]
    found = backward(p, saved)
    assert (found.grad_input[:, 2] == 0).all()
    assert found.grad_weight[2] == 0
    assert all(np.isfinite(a).all() for a in found)
