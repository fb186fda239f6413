"""check_backward passes right gradients and finds wrong ones; its message says where."""

import functools
import re

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, FORMATS, dtype

import bn_ext
from bn_ext.testing import check_backward

pytestmark = pytest.mark.quick


def formula(src, diff_dst, mean, variance, gamma, epsilon, axis=-1, **wrong):
    """As one writes it in NumPy; `wrong` spoils it."""
    axes = tuple(k for k in range(src.ndim) if k != axis % src.ndim)
    shape = [1] * src.ndim
    shape[axis] = -1
    number = wrong.get("number", mean.dtype)
    x, dy, mean, variance, gamma = (
        a.astype(number)
        for a in (src, diff_dst, *(v.reshape(shape) for v in (mean, variance, gamma)))
    )
    xhat = (x - mean) / np.sqrt(variance + number.type(epsilon))
    beta, gamma_sum = (a.sum(axes, keepdims=True) for a in (dy, dy * xhat))
    count = src.size / mean.size
    terms = [dy, -beta / count, -xhat * gamma_sum / count]
    if "without" in wrong:
        del terms[wrong["without"]]
    diff_src = gamma / np.sqrt(variance + number.type(epsilon)) * sum(terms)
    return diff_src.astype(src.dtype), gamma_sum.ravel(), beta.ravel()


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_right_gradients_pass(data, data_format):
    layout = {"data_format": data_format}
    ours = functools.partial(bn_ext.batch_norm_backward, **layout)
    for seed, shape in enumerate([(5, 3, 7), (1, 8, 1), (40, 133, 3), (9, 3, 3000)]):
        check_backward(ours, shape=shape, dtype=data, seed=seed, **layout)
    theirs = functools.partial(formula, axis=FORMATS[data_format])
    check_backward(theirs, shape=(5, 3, 7), dtype=dtype(data), epsilon=EPSILON, **layout)


def test_hostile_data_that_bn_ext_passes(rng):
    src, diff_dst = rng.standard_normal((2, 300, 5))
    xhat = (src - src.mean(0)) / src.std(0)
    wide = np.exp2(rng.integers(-30, 30, src.shape))
    with_nan = src.copy()
    with_nan[3, 2] = np.nan
    with_inf = diff_dst.copy()
    with_inf[3, 2] = np.inf
    constant = np.where(np.arange(5) == 1, 7, src)
    gamma = np.array([0, -1, np.inf, 1e-20, 1])
    for data in (np.float32, np.float64):
        for given in (
            {"src": src + 1000}, {"diff_dst": xhat}, {"src": wide}, {"diff_dst": wide},
            {"src": with_nan}, {"diff_dst": with_inf}, {"src": constant, "epsilon": 0},
            {"src": src * 1e30}, {"limit": 1e308},
            {"diff_dst": diff_dst * 1e-41}, {"src": src * 1e-40}, {"diff_dst": diff_dst * 1e-320},
            {"gamma": gamma}, {"mean": np.full(5, 1e4)}, {"src": src[:1]}, {"src": src[:0]},
        ):  # fmt: skip
            given = {
                name: a.astype(data) if isinstance(a, np.ndarray) else a
                for name, a in {"src": src, **given}.items()
            }
            with np.errstate(all="raise"):
                check_backward(bn_ext.batch_norm_backward, **given)
    large = (diff_dst * 3000).astype(np.float16)  # results overflow
    check_backward(bn_ext.batch_norm_backward, src.astype(np.float16) / 64, large)


@pytest.mark.parametrize("wrong", [{"without": 0}, {"without": 1}, {"without": 2}])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_missing_term_is_found(data, wrong):
    with pytest.raises(AssertionError, match="^diff_src: .* of 320 elements are off by more than"):
        check_backward(functools.partial(formula, **wrong), shape=(64, 5), dtype=data)


def test_sums_in_a_narrow_type_are_found():
    narrow = functools.partial(formula, number=np.dtype(np.float32))
    with pytest.raises(AssertionError, match=r"8 \* 2\*\*-53 of the scale"):
        check_backward(narrow, shape=(64, 5), dtype=np.float64)
    with pytest.raises(AssertionError, match=r"8 \* 2\*\*-24 of the scale"):
        check_backward(formula, shape=(100_000, 5))  # row after row
    check_backward(formula, shape=(100_000, 5), limit=1000)


def test_swapped_axes_are_found():
    ours = functools.partial(bn_ext.batch_norm_backward, data_format="NXC")
    with pytest.raises(AssertionError, match="^diff_src: "):
        check_backward(ours, shape=(8, 6, 6), data_format="NCX")
    with pytest.raises(AssertionError, match=r"^diff_gamma: expected shape \(5,\), got \(1, 5\)$"):
        check_backward(lambda s, *_, epsilon: (s, np.ones((1, 5)), s[0]), shape=(8, 5), limit=1e30)


def off(index, by, output=0):
    """bn_ext's gradient with one wrong element."""

    def gradient(*given, **options):
        found = bn_ext.batch_norm_backward(*given, data_format="NCX", **options)
        found[output][index] = by(found[output][index])
        return found

    return functools.partial(check_backward, gradient, shape=(4, 3, 5), data_format="NCX")


def test_the_message_shows_the_worst_element():
    with pytest.raises(AssertionError) as raised:
        off((2, 1, 4), lambda value: value + 1)()
    text = str(raised.value)
    assert text.startswith(
        "diff_src: 1 of 60 elements are off by more than 8 * 2**-24 of the scale, in 1 of 3 "
        "channels\n"
        "worst: element (2, 1, 4), channel 1\n got:      "
    )
    found = re.findall(r"^ (got|expected|error|limit): +(\S+)$", text, re.MULTILINE)
    got, expected, error, limit = (float(value) for _, value in found)
    assert abs(got - expected - error) < 1e-6
    assert error == 1
    assert 1e-7 < limit < 1e-5
    for output, name in enumerate(["diff_gamma", "diff_beta"], 1):
        with pytest.raises(AssertionError, match=rf"^{name}: 1 of 3 .*\nworst: element \(2,\), ch"):
            off(2, lambda value: 2 * value, output)()


def test_a_wrong_sum_is_named_beside_the_diff_src_that_it_spoils():
    def gradient(src, diff_dst, mean, variance, gamma, epsilon):
        xhat = (src - mean) / np.sqrt(variance + epsilon)
        diff_gamma, diff_beta = (diff_dst * xhat).sum(0), diff_dst.sum(0)
        diff_gamma[3] *= 1.01
        diff_src = diff_dst - (diff_beta + xhat * diff_gamma) / len(src)
        return gamma / np.sqrt(variance + epsilon) * diff_src, diff_gamma, diff_beta

    with pytest.raises(AssertionError) as raised:
        check_backward(gradient, shape=(64, 5))
    src, gamma = re.findall("^diff_.*\n.*", str(raised.value), re.MULTILINE)
    assert re.fullmatch("diff_src: .* in 1 of 5 channels\nworst: .* channel 3", src)
    assert re.fullmatch("diff_gamma: 1 of 5 .*, in 1 of 5 channels\nworst: .* channel 3", gamma)


@pytest.mark.parametrize("by", [np.nan, np.inf])
def test_nan_and_inf_must_be_where_they_are_expected(by):
    with pytest.raises(AssertionError, match=r"worst: element \(0, 2, 1\), channel 2\n got: +.*n"):
        off((0, 2, 1), lambda _: by)()
    src = np.ones((4, 3, 5), np.float32)
    src[:, 2] = by
    with pytest.raises(AssertionError, match=r"element \(0, 2, 1\), channel 2\n.*\n expected: nan"):
        off((0, 2, 1), lambda _: 0)(src, shape=None)


def test_16_bit_results_may_be_off_by_half_a_unit():
    """One rounding is allowed, two are not."""
    ours = bn_ext.batch_norm_backward

    def next_number(*given, **options):
        found = ours(*given, **options)
        return np.nextafter(found.diff_src, np.float16(np.inf))

    def wide(*given, **options):
        return ours(*(a.astype(np.float32) for a in given), **options)

    check_backward(wide, shape=(300, 5), dtype=np.float16)
    with pytest.raises(AssertionError, match="^diff_src: "):
        check_backward(next_number, shape=(300, 5), dtype=np.float16)


def test_sums_do_not_cancel_with_data_of_ones_own(rng):
    def gradient(*given, epsilon):
        found = bn_ext.batch_norm_backward(*given, epsilon=epsilon)
        return found._replace(diff_gamma=found.diff_gamma * np.float32(1.0001))

    with pytest.raises(AssertionError, match="^diff_gamma: 3 of 3 elements"):
        check_backward(gradient, rng.standard_normal((100_000, 3), dtype=np.float32))


X = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, TypeError, "check_backward: expected src or shape, got neither"),
        ({"src": X, "shape": (4, 3)}, TypeError, "check_backward: expected src or shape, got both"),
        ({"src": X.astype(int)}, TypeError, "src: expected .*got int64"),
        ({"shape": (4, 3), "dtype": complex}, TypeError, "src: expected .*got complex128"),
        ({"src": X, "diff_dst": X.astype(int)}, TypeError, "diff_dst: expected .*got int64"),
        ({"src": X, "diff_dst": np.ma.masked_array(X, True)}, TypeError, "diff_dst: .*mask"),
        ({"src": X, "gamma": "a"}, TypeError, "gamma: expected "),
        ({"src": X, "mean": [[1, 2], [3]]}, ValueError, "mean: "),
        ({"shape": (4, 3), "dtype": "blah"}, TypeError, "dtype: "),
        ({"shape": (4, 3), "epsilon": "1"}, TypeError, "epsilon: expected "),
        ({"src": X, "mean": np.zeros(2)}, ValueError, "mean: expected shape"),
        ({"shape": "x"}, TypeError, "shape: "),
        ({"shape": (-4, 3)}, ValueError, "shape: "),
        ({"shape": (4, 3), "seed": -1}, ValueError, "seed: "),
        ({"shape": (4, 3), "limit": None}, TypeError, "limit: "),
        ({"shape": (4, 3), "limit": np.nan}, ValueError, "limit: expected .*, got nan"),
        ({"shape": (4, 3), "function": 3}, TypeError, "function: expected a callable, got 3"),
    ],
)
def test_wrong_arguments_are_named(given, error, message):
    def never(*_, **__):
        pytest.fail("called")

    with pytest.raises(error, match=f"^{message}"):
        check_backward(**{"function": never, **given})


@pytest.mark.parametrize(
    ("made", "got"),
    [
        (lambda a: a.astype(int), "floating-point numbers, got int64"),
        (lambda a: a != 0, "floating-point numbers, got bool"),
        (lambda a: a + 5j, "floating-point numbers, got complex64"),
        (lambda a: a.astype(object), "floating-point numbers, got object"),
        (lambda a: np.ma.masked_array(a, True), "an array, got masked_array"),
        (lambda a: a.tolist(), "an array, got "),
        (lambda a: dict(enumerate(a)), "an array, got {0: "),
        (lambda _: None, "an array, got None"),
    ],
)
def test_results_that_are_no_floats_are_wrong(made, got):
    for name in ("diff_src", "diff_gamma", "diff_beta"):

        def gradient(*given, epsilon, name=name):
            found = bn_ext.batch_norm_backward(*given, epsilon=epsilon)
            return found._replace(**{name: made(getattr(found, name))})

        with pytest.raises(AssertionError, match=re.escape(f"{name}: expected {got}")):
            check_backward(gradient, shape=(4, 3))


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_another_number_of_results_is_refused(n):
    with pytest.raises(AssertionError, match=f"function: expected diff_src, .*, got {n} results"):
        check_backward(lambda *_, **__: n * (np.zeros((4, 2)),), shape=(4, 2))


def test_a_forgotten_return_is_told():
    with pytest.raises(AssertionError, match="function: expected diff_src, .*, got None$"):
        check_backward(lambda *_, **__: None, shape=(4, 2))


def test_results_may_be_a_list():
    def gradient(*arrays, epsilon):
        return [*bn_ext.batch_norm_backward(*arrays, epsilon=epsilon)]

    check_backward(gradient, shape=(4, 2))


def test_a_sum_near_overflow_cannot_be_judged():
    """Whatever the result: a limit of Inf would let any number pass."""
    src = np.tile([[1.0], [-1.0], [2.0], [-2.0]], (16, 1))
    diff_dst = np.where(np.arange(64) % 4 < 2, 1.2e307, -1.2e307)[:, None]
    with pytest.raises(AssertionError, match="channels 0 cannot be judged: .* near overflow"):
        check_backward(bn_ext.batch_norm_backward, src, diff_dst, gamma=np.ones(1))


@pytest.mark.parametrize("place", range(5))
def test_a_function_that_writes_to_its_arguments(rng, place):
    src, diff_dst = rng.standard_normal((2, 6, 3))
    before = src.copy(), diff_dst.copy()

    def careless(*given, epsilon):
        found = bn_ext.batch_norm_backward(*given, epsilon=epsilon)
        given[place][...] = 7
        return found

    name = ["src", "diff_dst", "mean", "variance", "gamma"][place]
    with pytest.raises(AssertionError, match=rf"^function: .*, it wrote to \['{name}'\]"):
        check_backward(careless, src, diff_dst)
    assert np.array_equal(before, (src, diff_dst))


class Unreadable:
    def __array__(self, *_, **__):
        raise RuntimeError("on another device")


class Exported:
    """Knows DLPack, and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def changed(make):
    def gradient(*given, epsilon):
        return [make(a) for a in bn_ext.batch_norm_backward(*given, epsilon=epsilon)]

    return gradient


def test_results_of_other_packages_are_read_or_named():
    check_backward(changed(Exported), shape=(6, 3))
    with pytest.raises(AssertionError, match="^diff_src: .* RuntimeError: on another device"):
        check_backward(changed(lambda _: Unreadable()), shape=(6, 3))
