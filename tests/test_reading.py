"""What a wrong function computes is read off its results, and said as a formula; of where, not what
is wrong, nothing is said so.
"""

import math
import re
import time
from functools import partial

import numpy as np
import pytest
from cases import DATA_DTYPES
from command_line import run as command
from remembered import _remembered  # noqa: F401
from styles import STYLES, style
from text_kernels import kernel_of

import bn_ext
from bn_ext._dtypes import dtype_of
from bn_ext.testing import check_backward, check_double_backward, check_forward
from bn_ext.testing._case import Kind
from bn_ext.testing._formula import WIDTH
from bn_ext.testing._reading import SHAPES, probes, read

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

CHECKS = {
    "forward": check_forward,
    "inference": partial(check_forward, is_training=False),
    "backward": check_backward,
    "own": partial(check_backward, own_statistics=True),
    "frozen": partial(check_backward, is_training=False),
    "double": check_double_backward,
}
RSTD = "1 / np.sqrt(variance.astype(wide) + wide(epsilon))"
OWN_RSTD = "1 / np.sqrt(variance + wide(epsilon))"
WIDE = "variance.astype(wide)"
SCALE, TERMS = "gamma * rstd * ", "diff_dst - sum(diff_dst) / n - xhat * sum(diff_dst * xhat) / n"
SWAPPED = (
    "diff_gamma.astype(vector), diff_beta.astype(vector)",
    "diff_beta.astype(vector), diff_gamma.astype(vector)",
)
THREE = "2 * gamma * rstd**2 * xhat * sum(diff_dst * xhat) * sum(diff_diff_src * xhat) / n**2"
PROJECTED = " + ggg * r * (dy - of_dy - xhat * of_dy_x)"
OF_H = "diff_diff_gamma * rstd * (diff_dst - xhat * sum(diff_dst * xhat) / n - sum(diff_dst) / n)"
OF_SRC = "mean, variance = x.sum(axes) / M, x.var(axes) if x.size else one"
#: A kernel, what replaces what in its text, and lines that say what it computes.
FORMULAS = [
    # gradients: terms
    ("backward", ("diff_beta + xhat", "diff_beta - xhat"),
     f"diff_src = {SCALE}(diff_dst - sum(diff_dst) / n + xhat * sum(diff_dst * xhat) / n)"),
    ("backward", (" + xhat * diff_gamma", ""), f"diff_src = {SCALE}(diff_dst - sum(diff_dst) / n)"),
    ("backward", ("diff_beta + xhat", "xhat"),
     f"diff_src = {SCALE}(diff_dst - xhat * sum(diff_dst * xhat) / n)"),
    ("backward", ("(dy - through)", "dy"), f"diff_src = {SCALE}diff_dst"),
    ("backward", ("xhat * diff_gamma", "xhat**2 * diff_gamma"),
     f"diff_src = {SCALE}(diff_dst - sum(diff_dst) / n - xhat * xhat * sum(diff_dst * xhat) / n)"),
    ("backward", ("weight * rstd * (dy - through)", "rstd * (weight * dy - through)"),
     f"diff_src = rstd * (gamma * {TERMS})"),
    ("backward", ("diff_beta + xhat", "dy + xhat"),
     f"diff_src = {SCALE}(diff_dst * (n - 1) / n - xhat * sum(diff_dst * xhat) / n)"),
    ("backward", ("xhat * diff_gamma)", "x * rstd * diff_gamma)"),
     f"diff_src = {SCALE}(diff_dst - sum(diff_dst) / n - rstd * src * sum(diff_dst * xhat) / n)"),
    ("backward", ("(x - mean) * rstd", "(x + mean) * rstd"),
     "diff_gamma = rstd * sum(diff_dst * (src + mean))"),
    ("backward", ("diff_beta + xhat", "diff_beta + diff_gamma + xhat"),
     f"diff_src = {SCALE}({TERMS.replace(' - xhat', ' - sum(diff_dst * xhat) / n - xhat')})"),
    ("backward", ("return", "diff_src = diff_src + 0.01; return"), "diff_src has, too, 1/100"),
    # ... factors
    ("backward", ("weight * rstd *", "weight * rstd**2 *"),
     f"diff_src = gamma * rstd**2 * ({TERMS})"),
    ("backward", ("weight * rstd *", "weight *"), f"diff_src = gamma * ({TERMS})"),
    ("backward", ("weight * rstd *", "rstd *"), f"diff_src = rstd * ({TERMS})"),
    ("backward", ("weight * rstd *", "abs(weight) * rstd *"),
     f"diff_src = abs(gamma) * rstd * ({TERMS})"),
    ("backward", ("weight * rstd *", "np.tanh(weight) * rstd *"),
     f"diff_src = tanh(gamma) * rstd * ({TERMS})"),
    ("backward", ("weight * rstd *", "1.27 * weight * rstd *"),
     f"diff_src = 1.27 * {SCALE}({TERMS})"),
    ("backward", ("(dy - through)", "(through - dy)"), f"diff_src = -{SCALE}({TERMS})"),
    ("backward", ("xhat * diff_gamma)", "xhat * diff_gamma / 2)"),
     f"diff_src = {SCALE}({TERMS.replace('- xhat', '- 1/2 * xhat')})"),
    # ... divisors
    ("backward", ("gamma) / M", "gamma)"), f"diff_src = {SCALE}({TERMS.replace(' / n', '')})"),
    ("backward", ("gamma) / M", "gamma) / max(1, M - 1)"),
     f"diff_src = {SCALE}({TERMS.replace('/ n', '/ (n - 1)')})"),
    ("backward", ("gamma) / M", "gamma) / max(1, len(src))"),
     f"diff_src = {SCALE}({TERMS.replace('/ n', '/ len(src)')})"),
    # ... sums
    ("backward", ("(dy * xhat).sum", "(dy * x).sum"), "diff_gamma = sum(diff_dst * src)"),
    ("backward", ("(dy * xhat).sum(axes)", "(dy * (x - mean)).sum(axes)"),
     "diff_gamma = sum(diff_dst * (src - mean))"),
    ("backward", SWAPPED, "diff_gamma = sum(diff_dst)"),
    ("backward", SWAPPED, "diff_beta = sum(diff_dst * xhat)"),
    ("backward", ("diff_gamma.astype(v", "(diff_gamma / M).astype(v"),
     "diff_gamma = sum(diff_dst * xhat) / n"),
    ("backward", ("diff_beta.astype(v", "(weight * diff_beta).astype(v"),
     "diff_beta = gamma * sum(diff_dst)"),
    ("backward", ("diff_beta = dy.sum(axes)", "diff_beta = dy.sum() / x.shape[-1] * one"),
     "diff_beta = sum over all axes(diff_dst) / channels"),
    # what stands for rstd
    ("backward", (RSTD, f"1 / (np.sqrt({WIDE}) + wide(epsilon))"),
     "diff_src, diff_gamma: rstd = 1 / (sqrt(variance) + epsilon)"),
    ("backward", (RSTD, f"1 / np.sqrt({WIDE})"), "diff_src, diff_gamma: rstd = 1 / sqrt(variance)"),
    ("backward", ("wide(epsilon)", "wide(1e-5)"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance + 1e-05)"),
    ("backward", ("wide(epsilon)", "2 * wide(epsilon)"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance + 2 * epsilon)"),
    ("backward", (RSTD, f"1 / np.sqrt({WIDE} * M / max(1, M - 1) + wide(epsilon))"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance * n / (n - 1) + epsilon)"),
    ("backward", (RSTD, f"1 / np.sqrt(np.maximum({WIDE}, wide(epsilon)))"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(max(variance, epsilon))"),
    ("backward", (RSTD, WIDE), "diff_gamma = variance * sum(diff_dst * (src - mean))"),
    # given statistics
    ("frozen", ("weight * rstd * dy", "weight * rstd * (dy - dy.sum(axes) / M)"),
     f"diff_src = {SCALE}(diff_dst - sum(diff_dst) / n)"),
    ("frozen", ("rstd =", f"{OF_SRC}; rstd ="),
     "diff_src, diff_gamma: rstd = 1 / sqrt(var(src) + epsilon)"),
    ("frozen", ("(x - mean) * rstd).sum", "(x - mean)).sum"),
     "diff_gamma = sum(diff_dst * (src - mean))"),
    # forward passes
    ("forward", (OWN_RSTD, "1 / (np.sqrt(variance) + wide(epsilon))"),
     "dst: rstd = 1 / (sqrt(variance) + epsilon)"),
    ("forward", ("wide(epsilon)", "wide(epsilon) ** 2"),
     "dst: rstd = 1 / sqrt(variance + epsilon**2)"),
    ("forward", (OWN_RSTD, "1 / (np.abs(x - mean).sum(axes) / M + wide(epsilon))"),
     "dst: rstd = 1 / (mean(abs(src - mean)) + epsilon)"),
    ("forward", ("** 2).sum(axes) / M", "** 2).sum(axes) / max(1, M - 1)"),
     "variance = var(src) * n / (n - 1)"),
    ("forward", ("((x - mean) ** 2)", "(x**2)"), "variance = mean(src**2)"),
    ("forward", ("- mean) + off", "- mean) - off"), f"dst = {SCALE}(src - mean) - beta"),
    ("forward", ("+ offset", "+ weight * offset"), f"dst = {SCALE}(src - mean) + gamma * beta"),
    ("forward", ("(x - mean) + off", "x + off"), f"dst = {SCALE}src + beta"),
    ("forward", ("- mean) + off", "+ mean) + off"), f"dst = {SCALE}(src + mean) + beta"),
    ("forward", ("weight * rstd *", "(1 + weight) * rstd *"),
     "dst = (1 + gamma) * rstd * (src - mean) + beta"),
    ("forward", ("weight * rstd * (x - mean) + offset", "offset * rstd * (x - mean) + weight"),
     "dst = beta * rstd * (src - mean) + gamma"),
    ("forward", ("variance.astype(v", "np.sqrt(variance).astype(v"), "variance = sqrt(var(src))"),
    ("forward", ("variance.astype(v", "rstd.astype(v"), "variance = 1 / sqrt(var(src) + epsilon)"),
    ("inference", ("rstd =", "mean = x.sum(axes) / M; rstd ="),
     f"dst = {SCALE}(src - mean(src)) + beta"),
    ("inference", ("weight * rstd * (x - mean)", "weight * (rstd * x - mean)"),
     f"dst = {SCALE}(src - mean / rstd) + beta"),
    ("inference", (RSTD, f"1 / np.sqrt({WIDE}**2 + wide(epsilon))"),
     "dst: rstd = 1 / sqrt(variance**2 + epsilon)"),
    # gradients of the gradient
    ("double", ("3 * of", "2 * of"), f"diff_src has {THREE}"),
    ("double", ("(of_g - g)", "(0 - g)"),
     "diff_src lacks gamma * rstd**2 * sum(diff_dst * xhat) * sum(diff_diff_src) / n**2"),
    ("double", (" - cross + ", " + cross + "),
     "diff_src has gamma * rstd**2 * xhat * sum(diff_dst * diff_diff_src) / n"),
    ("double", (PROJECTED, ""), f"diff_src lacks {OF_H}"),
    ("double", ("weight * r**2", "weight * r"),
     "diff_src has -gamma * rstd * diff_dst * sum(diff_diff_src * xhat) / n ... (7 such terms)"),
    ("double", ("ggg * xhat + ggb", "ggg * xhat + weight * ggb"),
     "diff_diff_dst has gamma * diff_diff_beta"),
    ("double", ("M * r * (cross", "r * (cross"),
     "diff_gamma has rstd * sum(diff_dst * diff_diff_src) / n ... (3 such terms)"),
    ("double", (RSTD, f"1 / np.sqrt({WIDE})"),
     "diff_src, diff_diff_dst, diff_gamma: rstd = 1 / sqrt(variance)"),
]  # fmt: skip


def report_of(check, function, **options):
    """That of a check that fails."""
    with pytest.raises(AssertionError) as raised:
        check(function, **{"quick": True, **options})
    return raised.value.report


def said(report):
    """Its lines, with single blanks."""
    return [" ".join(line.split()) for line in report.formulas]


#: Quick runs have some.
SOME = [
    pytest.param(*row, marks=[pytest.mark.whole] * (place % 3 > 0))
    for place, row in enumerate(FORMULAS)
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "change", "line"), SOME)
def test_what_a_wrong_kernel_computes_is_said(name, change, line):
    report = report_of(CHECKS[name], kernel_of(name, change))
    assert line in said(report), str(report)
    assert str(report).index(line.split(" = ")[0]) < str(report).index("error/limit")
    assert "as if" not in str(report)
    assert all(len(row) <= WIDTH + 2 for row in report.formulas)


def test_what_is_right_stands_below_and_what_differs_is_marked():
    report = report_of(check_backward, kernel_of("backward", ("diff_beta + xhat", "xhat")))
    right = f"right:     {SCALE}({TERMS})"
    xhat = "xhat = (src - mean) * rstd; n: the elements of a channel"
    assert report.formulas == [
        "diff_src = gamma * rstd * (diff_dst - xhat * sum(diff_dst * xhat) / n)",
        right,
        "                                    ^^^^^^^^^^^^^^^^^^^",
        f"rstd = 1 / sqrt(variance + epsilon); {xhat}",
    ]
    changes = ("weight * rstd *", "rstd *"), (RSTD, f"1 / np.sqrt({WIDE})")
    assert report_of(check_backward, kernel_of("backward", *changes)).formulas == [
        "diff_src, diff_gamma: rstd = 1 / sqrt(variance)",
        "               right: rstd = 1 / sqrt(variance + epsilon)",
        "diff_src = rstd * (diff_dst - sum(diff_dst) / n - xhat * sum(diff_dst * xhat) / n)",
        "           ^^^^",
        right,
        "           ^^^^^^^^^^^^",
        xhat,
    ]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize(("name", "change", "line"), FORMULAS[::5])
def test_every_dtype_says_the_same(data, name, change, line):
    report = report_of(CHECKS[name], kernel_of(name, change), dtypes=data)
    assert line in said(report), str(report)


def turned(kernel, axis_of_result=1):
    """Channels first."""

    def function(*arrays, **options):
        moved = [a if a is None or a.ndim == 1 else np.moveaxis(a, 1, -1) for a in arrays]
        results = kernel(*moved, **options)
        return [a if a.ndim == 1 else np.moveaxis(a, -1, axis_of_result) for a in results]

    return function


@pytest.mark.parametrize("data_format", ["NCX", "NCHW"])
def test_channels_first_say_the_same(data_format):
    kernel = turned(kernel_of("backward", ("diff_beta + xhat", "xhat")))
    report = report_of(check_backward, kernel, data_format=data_format)
    assert said(report)[0] == f"diff_src = {SCALE}(diff_dst - xhat * sum(diff_dst * xhat) / n)"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("data_format", "word"), [("NXC", "NCX"), ("NHWC", "NCHW"), ("NWC", "NCW")]
)
def test_channels_on_the_other_axis_are_named(data_format, word):
    """What users of NCHW see who forget data_format."""
    report = report_of(check_backward, turned(kernel_of("backward")), data_format=data_format)
    assert report.formulas == [f'it takes the channels on axis 1: pass data_format="{word}"']
    check_backward(turned(kernel_of("backward")), data_format=word, quick=True)
    other = report_of(check_backward, kernel_of("backward"), data_format=word)
    assert other.formulas == [
        f'it takes the channels on the last axis: pass data_format="{data_format}"'
    ]


def normalized(axes, size=0):
    def function(src, gamma, beta, epsilon):
        x = src.astype(np.float64)
        shape = x.shape
        if size and shape[-1] % size == 0:
            x = x.reshape(*shape[:-1], -1, size)
        over = axes(x)
        dst = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + epsilon)
        dst = dst.reshape(shape) * (1 if gamma is None else gamma) + (0 if beta is None else beta)
        return dst.astype(src.dtype)

    return function


#: Axes of statistics, and how they are called.
GROUPED = [
    (normalized(lambda x: tuple(range(1, x.ndim - 1)) or (0,)),
     "each sample and channel, as in instance normalization"),
    (normalized(lambda x: 0), "each position and channel"),
    (normalized(lambda x: -1),
     "each position of each sample, as in layer normalization over the channels"),
    (normalized(lambda x: tuple(range(1, x.ndim))), "each sample, as in layer normalization"),
    (normalized(lambda x: tuple(range(x.ndim))), "all elements"),
    (normalized(lambda x: (0, *range(2, x.ndim - 1))), "each row of the images and channel"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("function", "name"), GROUPED)
def test_statistics_of_other_elements_are_named(function, name):
    report = report_of(check_forward, function, skip=["empty", "no pos"])
    assert said(report) == [f"dst: mean and variance of {name}; right: of each channel"]


def test_group_normalization_is_named(rng):
    function = normalized(lambda x: tuple(k for k in range(1, x.ndim) if k != x.ndim - 2), size=4)
    report = report_of(check_forward, function, src=rng.standard_normal((3, 4, 5, 8)), quick=False)
    name = "each sample and 4 neighboring channels, as in group normalization"
    assert said(report) == [f"dst: mean and variance of {name}; right: of each channel"]


def grouped(size_of):
    """With groups of so many channels, of C; 0: with those of each channel over all samples."""

    def function(src, gamma, beta, epsilon):
        size = size_of(src.shape[-1])

        def axes(x):
            return (*range(1, x.ndim - 2), x.ndim - 1) if size else (*range(x.ndim - 1),)

        return normalized(axes, size)(src, gamma, beta, epsilon)

    return function


def even(channels):
    if channels % 2:
        raise NotImplementedError("an odd number of channels")
    return 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("size_of", "name"), [
    (lambda channels: channels // math.gcd(channels, 4), "of 4 groups of channels"),
    (lambda channels: channels // math.gcd(channels, 2), "of 2 groups of channels"),
    (even, "2 neighboring channels"),
    (lambda channels: 0 if channels % 2 else 2, ""),  # no formula fits all
])  # fmt: skip
def test_groups_that_not_all_numbers_of_channels_have(size_of, name):
    report = report_of(check_forward, grouped(size_of), skip=["empty", "no pos"])
    line = f"dst: mean and variance of each sample and {name}, as in group normalization"
    assert said(report) == [f"{line}; right: of each channel"] * bool(name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", [1, -1])
def test_the_gradient_of_layer_normalization_has_gamma_in_its_sums(first):
    size = f"np.prod(x.shape[{first}:])"

    def sum_of(text):
        return f"({text}).sum(axis=tuple(range(x.ndim))[{first}:], keepdims=True)"

    changes = [
        ("rstd =", f"m = max(1, {size}); mean = {sum_of('x')} / m; "
         f"variance = {sum_of('(x - mean) ** 2')} / m; rstd ="),
        ("weight * rstd * (dy - through)", f"rstd * (weight * dy - {sum_of('weight * dy')} / m - "
         f"xhat * {sum_of('weight * dy * xhat')} / m)"),
    ]  # fmt: skip
    report = report_of(CHECKS["own"], kernel_of("backward", *changes))
    name = "each sample" if first == 1 else "each position of each sample"
    lines = said(report)
    assert lines[0].startswith(f"diff_src: sums of {name}, as in layer normalization")
    assert lines[1] == (
        "diff_src = rstd * (gamma * diff_dst - sum(gamma * diff_dst) / n "
        "- xhat * sum(gamma * diff_dst * xhat) / n)"
    )
    assert lines[-1].endswith("; n: the elements of a sum")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_sums_of_other_elements_are_named(own, axis):
    size = f"x.shape[{axis}]"
    changes = [("diff_beta + xhat * diff_gamma) / M",
                f"dy.sum({axis}, keepdims=True) + xhat * (dy * xhat).sum({axis}, keepdims=True))"
                f" / max(1, {size})")]  # fmt: skip
    if own:
        changes += [("rstd =", "if x.size: mean, variance = x.mean(axes), x.var(axes)\n    rstd =")]
    kernel = kernel_of("backward", *changes)
    report = report_of(CHECKS["own" if own else "backward"], kernel)
    (line,) = said(report)
    name = "each position and channel" if axis == 0 else "each position of each sample, as in layer"
    assert line.startswith(f"diff_src: sums of {name}")


def running(old="3 * running_mean / 4", new="3 * running_variance / 4", share=4, **changes):
    text = {
        "mean": "mean",
        "variance": "variance",
        "kept": "variance * n / max(1, n - 1)",
        **changes,
    }

    def function(src, gamma, beta, epsilon, running_mean, running_variance):
        x, axes, n = src.astype(np.float64), tuple(range(src.ndim - 1)), max(1, src[..., 0].size)
        with np.errstate(all="ignore"):
            mean, variance = x.sum(axes) / n, x.var(axes) if x.size else x.sum(axes)
        known = {"np": np, **locals()}
        known |= {"new_mean": eval(old, known) + eval("mean", known) / share}
        known |= {"new_variance": eval(new, known) + eval(text["kept"], known) / share}
        center, spread = (eval(text[name], known) for name in ("mean", "variance"))
        dst = (x - center) / np.sqrt(spread + epsilon) * (1 if gamma is None else gamma)
        dst = dst + (0 if beta is None else beta)
        return dst.astype(src.dtype), mean, variance, known["new_mean"], known["new_variance"]

    return function


OF_RUNNING = "3/4 * running_variance + 1/4 * "
#: Mistakes of running statistics that people report.
TRACKED = [
    ({"kept": "variance"}, f"new running_variance = {OF_RUNNING}var(src)"),
    ({"kept": "np.sqrt(variance * n / max(1, n - 1))"},
     f"new running_variance = {OF_RUNNING}sqrt(var(src) * n / (n - 1))"),
    ({"mean": "new_mean"}, f"dst = {SCALE}(src - new running_mean) + beta"),
    ({"mean": "running_mean", "variance": "running_variance"},
     f"dst = {SCALE}(src - running_mean) + beta"),
    ({"mean": "running_mean", "variance": "running_variance"},
     "dst: rstd = 1 / sqrt(running_variance + epsilon)"),
    ({"variance": "new_variance"}, "dst: rstd = 1 / sqrt(new running_variance + epsilon)"),
    ({"variance": "variance * n / max(1, n - 1)"},
     "dst: rstd = 1 / sqrt(variance * n / (n - 1) + epsilon)"),
    ({"old": "running_mean / 4", "new": "running_variance / 4", "share": 4 / 3},
     "new running_mean = 1/4 * running_mean + 3/4 * mean(src)"),
    ({"old": "running_mean"}, "new running_mean = running_mean + 1/4 * mean(src)"),
    ({"old": "3 * running_variance / 4"},
     "new running_mean = 3/4 * running_variance + 1/4 * mean(src)"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), TRACKED)
def test_running_statistics_are_read(changes, line):
    check_forward(running(), correction=1, quick=True)
    report = report_of(check_forward, running(**changes), correction=1)
    assert line in said(report), str(report)


def relu(body):
    names = {"np": np}
    exec(f"def outer(z, src_1, beta):\n    return {body}", names)

    def function(src, gamma, beta, epsilon, src_1=0):
        results = bn_ext.batch_norm_training(
            src.astype(np.float64), gamma, beta, epsilon=epsilon, data_format="NXC"
        )
        dst = names["outer"](results.dst, src_1, 0 if beta is None else beta)
        return dst.astype(src.dtype), *results[1:]

    return function


OF_ADDED = f"dst = {SCALE}(src - mean) + beta"
#: What a forward pass with a ReLU does, whether src_1 is added, and what is said.
RELUS = [
    ("z", False, "dst: no ReLU; right: max(0, ...)"),
    ("np.where(z < 0, z / 10, z)", False, "dst: a ReLU with slope 0.1 below 0; right: max(0, ...)"),
    ("np.clip(z, 0, 6)", False, "dst: min(max(0, ...), 6); right: max(0, ...)"),
    ("np.maximum(0, z - beta) + beta", False,
     "dst: max(0, ...) before beta is added; right: max(0, ...)"),
    ("np.maximum(0, z) + src_1", True, "dst: src_1 is added behind the ReLU; right: before it"),
    ("np.maximum(0, z)", True, OF_ADDED),
    ("np.maximum(0, z + 2 * src_1)", True, f"{OF_ADDED} + 2 * src_1"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "add", "line"), RELUS)
def test_what_stands_in_a_relus_place_is_read(body, add, line):
    assert line in said(report_of(check_forward, relu(body), relu=True, add=add))


@pytest.mark.parametrize(("gate", "where"), [
    ("dy", "everywhere"), ("np.where(by_name['dst'] <= 0, dy, 0)", "where dst <= 0"),
    ("np.where(x > 0, dy, 0)", "where src > 0"),
])  # fmt: skip
def test_where_a_gradient_passes_a_relu_is_read(gate, where):
    gated = ('np.where(by_name["dst"] <= 0, 0, dy)', gate)
    report = report_of(check_backward, kernel_of("backward", gated), relu=True)
    names = "diff_src, diff_gamma, diff_beta"
    assert said(report) == [f"{names}: diff_dst passes the ReLU {where}; right: where dst > 0"]


#: What is done to a gradient through a ReLU, of dy = diff_dst, and what is said of diff_src_1, if
#: that is what becomes another, or of diff_src.
GATED = [
    ("diff_src_1", "dy", "diff_dst", "diff_dst * (dst > 0)"),
    ("diff_src_1", "dy / 2", "1/2 * diff_dst", "diff_dst * (dst > 0)"),
    ("diff_src_1", "2 * dy * gate", "2 * diff_dst * (dst > 0)", "diff_dst * (dst > 0)"),
    ("diff_src_1", "dy * ~gate", "diff_dst * (dst <= 0)", "diff_dst * (dst > 0)"),
    ("diff_src_1", "dy * gate + dy * ~gate / 2",
     "diff_dst * (dst > 0) + 1/2 * diff_dst * (dst <= 0)", "diff_dst * (dst > 0)"),
    ("diff_src", "2 * diff_src", f"2 * {SCALE}({TERMS.replace('diff_dst', 'gated')})",
     f"{SCALE}({TERMS.replace('diff_dst', 'gated')})"),
    ("diff_src", "diff_src + scale * dy * ~gate",
     f"{SCALE}(diff_dst{TERMS.replace('diff_dst', 'gated').removeprefix('gated')})",
     f"{SCALE}({TERMS.replace('diff_dst', 'gated')})"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "body", "ours", "right"), GATED)
def test_diff_dst_in_a_formula_is_the_argument(result, body, ours, right):
    """What of it passes the ReLU is written out, or has a name."""

    def function(src, diff_dst, mean, variance, gamma, epsilon, dst):
        arrays = src, diff_dst, mean, variance, gamma
        options = {"epsilon": epsilon, "dst": dst, "relu": True, "data_format": "NXC"}
        results = bn_ext.batch_norm_backward(*arrays, diff_src_1=True, **options)
        names = "diff_src", "diff_gamma", "diff_beta", "diff_src_1"
        known = dict(zip(names, results, strict=True))
        rstd = 1 / np.sqrt(np.float64(variance) + epsilon)
        others = {"dy": np.float64(diff_dst), "gate": ~(np.float64(dst) <= 0)}
        others["scale"] = rstd if gamma is None else gamma * rstd
        with np.errstate(all="ignore"):
            known[result] = eval(body, {**known, **others}).astype(src.dtype)
        return tuple(known.values())

    report = report_of(check_backward, function, relu=True, add=True)
    lines = [line for line in said(report) if line.strip("^ ")]
    assert lines[:2] == [f"{result} = {ours}", f"right: {right}"]
    assert ("gated = diff_dst * (dst > 0)" in "; ".join(lines)) == ("gated" in ours)
    assert all(len(row) <= WIDTH + 2 for row in report.formulas)


def test_what_passes_everywhere_and_a_part_once_more_is_not_the_argument():
    def function(*arrays, epsilon, dst):
        options = {"epsilon": epsilon, "data_format": "NXC"}
        diff_src = bn_ext.batch_norm_backward(*arrays, **options).diff_src
        _, *sums = bn_ext.batch_norm_backward(*arrays, dst=dst, relu=True, **options)
        src, diff_dst, _, variance, gamma = arrays
        scale = (1 if gamma is None else gamma) / np.sqrt(np.float64(variance) + epsilon)
        with np.errstate(all="ignore"):
            more = scale * np.float64(diff_dst) * (np.float64(dst) <= 0)
            return (diff_src + more).astype(src.dtype), *sums

    terms = TERMS.replace("diff_dst", "gated")
    lines = said(report_of(check_backward, function, relu=True))
    assert lines[0] == "diff_src: diff_dst passes the ReLU everywhere; right: where dst > 0"
    assert lines[1] == f"diff_src = {SCALE}({terms} + diff_dst * (dst <= 0))"
    assert lines[-1] == "gated: what of diff_dst passes the ReLU"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["backward", "double"])
def test_given_statistics_that_are_ignored_are_named(name):
    """They are those of src, but for a rounding; results tell where they have NaN, or are large."""
    start = "rstd =" if name == "backward" else "r = 1"
    own = f"if x.size: mean = x.mean(axes); variance = ((x - mean) ** 2).mean(axes)\n    {start}"
    report = report_of(CHECKS[name], kernel_of(name, (start, own)))
    line = "the given mean and variance are ignored; own_statistics=True judges by those of src"
    assert report.formulas == [line]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("change", "line"), [
    (("gamma) / M", "gamma)"), f"diff_src = {SCALE}({TERMS.replace(' / n', '')})"),
    ((RSTD, f"1 / np.sqrt({WIDE})"), "diff_src, diff_gamma: rstd = 1 / sqrt(variance)"),
])  # fmt: skip
def test_ignored_statistics_are_named_beside_another_mistake(change, line):
    """One result is right, or none."""
    own = "if x.size: mean = x.mean(axes); variance = ((x - mean) ** 2).mean(axes)\n    rstd ="
    report = report_of(check_backward, kernel_of("backward", change, ("rstd =", own)))
    assert said(report)[0].startswith("the given mean and variance are ignored")
    assert line in said(report)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", ["0 * src", "src", "np.nan * src", "np.inf + src", "diff_dst"])
@pytest.mark.parametrize("check", [check_backward, check_double_backward])
def test_of_what_has_no_statistics_none_are_said_to_be_ignored(check, body):
    def function(src, diff_dst, *arrays, epsilon):
        return eval(body, {"np": np, "src": src, "diff_dst": diff_dst}).astype(src.dtype)

    assert "are ignored" not in str(report_of(check, function))


def test_data_of_ones_own_is_enough(rng):
    """The function is called with other numbers in the same shape, whatever other shapes do."""
    shape = 4, 3, 8, 5

    def strict(src, *rest, **options):
        assert src.shape == shape
        return kernel_of("backward", ("diff_beta + xhat", "xhat"))(src, *rest, **options)

    report = report_of(check_backward, strict, src=rng.standard_normal(shape), quick=False)
    assert said(report)[0] == f"diff_src = {SCALE}(diff_dst - xhat * sum(diff_dst * xhat) / n)"


def test_a_function_of_two_axes_is_read():
    def two_axes(src, *rest, **options):
        if src.ndim != 2:
            raise NotImplementedError("two axes")
        return kernel_of("backward", ("(dy - through)", "dy"))(src, *rest, **options)

    assert said(report_of(check_backward, two_axes))[0] == f"diff_src = {SCALE}diff_dst"


#: Kernels of which no formula is said: they are wrong somewhere, or as no formula is.
WHERE = [
    ("backward", "return", "diff_src[..., src.shape[-1] // 8 * 8 :] = 0; return"),
    ("backward", "return", "diff_src[..., -1] *= 2; return"),
    ("backward", "dy.sum(axes)", "dy.reshape(-1, src.shape[-1])[: M // 8 * 8].sum(0)"),
    ("backward", "return", "diff_src[:1] = 0; return"),
    ("backward", "return", "diff_src = np.sin(diff_src); return"),
    ("forward", "return", "dst[..., 2:] = 0; return"),
    ("forward", "return", "dst = np.round(dst, 2); return"),
    ("inference", "(x - mean)", "np.clip(x - mean, -1, 1)"),
    ("double", "return", "diff_src[1:2] = 0; return"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "old", "new"), WHERE)
def test_of_what_is_no_formula_none_is_said(name, old, new):
    report = report_of(CHECKS[name], kernel_of(name, (old, new)))
    assert report.formulas == []
    words = "the smallest program that shows it: report.script(), bn-ext check --script"
    assert (words in str(report)) == (not 0 < len(report.as_if) <= 3)


def test_a_formula_that_one_ordinary_case_contradicts_is_not_said():
    """It is wrong with four axes alone: as its formula there, but elsewhere it is right."""

    def function(src, *rest, **options):
        wrong = kernel_of("backward", ("(dy - through)", "dy"))
        return (wrong if src.ndim == 4 else kernel_of("backward"))(src, *rest, **options)

    assert report_of(check_backward, function).formulas == []


@pytest.mark.parametrize("name", CHECKS)
def test_right_formulas_are_read_off_right_kernels(name):
    """So what is said of wrong ones is no matter of rounding."""
    kind = {
        "forward": Kind("training"), "inference": Kind("inference", is_training=False),
        "backward": Kind("backward"), "frozen": Kind("backward", is_training=False),
        "own": Kind("backward", own_statistics=True), "double": Kind("double_backward"),
    }[name]  # fmt: skip
    functions = {
        "forward": bn_ext.batch_norm_training, "inference": bn_ext.batch_norm_inference,
        "backward": bn_ext.batch_norm_backward, "own": bn_ext.batch_norm_backward,
        "frozen": partial(bn_ext.batch_norm_backward, is_training=False),
        "double": bn_ext.batch_norm_double_backward,
    }  # fmt: skip

    def call(case):
        arrays, options = case.arrays.values(), {"epsilon": case.epsilon, "data_format": "NXC"}
        results = functions[name](*arrays, **options)
        results = results if isinstance(results, tuple) else (results,)
        pairs = zip(case.results, results, strict=True)
        return {result: np.asarray(a, np.float64) for result, a in pairs}

    for data in DATA_DTYPES:
        (case, *_) = probes(kind, dtype_of(data), SHAPES[2])
        formulas = read(call, kind, dtype_of(data), case.results)
        assert {formula.result for formula in formulas} == {*case.results}
        assert all(formula.is_right for formula in formulas)


def test_reading_takes_a_moment():
    """Only where something fails, and about a second on a machine that has nothing else to do."""
    kernel = kernel_of("double", ("return", "diff_src = np.sin(diff_src); return"))
    start = time.process_time()
    report = report_of(check_double_backward, kernel, skip=["a", "e", "o"])
    assert report.formulas == []
    assert time.process_time() - start < 6


def test_the_command_says_it(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("""
import bn_ext
def wrong(*given, epsilon):
    return bn_ext.batch_norm_backward(*given, epsilon=2 * epsilon, data_format="NXC")
""")
    place = f"{tmp_path / 'mine.py'}:wrong"
    status, out, _ = command(capsys, "check", place, "--quick")
    assert status == 1
    assert re.search(r"cases fail\ndiff_src, diff_gamma: rstd = 1 / sqrt\(variance \+ 2 \*", out)


#: Mistakes that were planted without a look at what the judge knows, and what it says; KERNELS'
#: texts, and RUNNING's.
PLANTED = [
    ("backward", ("gamma) / M", "gamma) / (M * rstd)"),
     f"diff_src = gamma * (rstd * {TERMS})"),
    ("backward", ("xhat * diff_gamma)", "xhat * rstd * diff_gamma)"),
     f"diff_src = {SCALE}({TERMS.replace('- xhat', '- rstd * xhat')})"),
    ("backward", ("diff_beta + xhat", "diff_beta.mean() + xhat"),
     f"diff_src = {SCALE}(diff_dst - sum over all axes(diff_dst) / (n * channels) "
     "- xhat * sum(diff_dst * xhat) / n)"),
    ("backward", ("diff_gamma.astype(v", "(diff_gamma / np.sqrt(M)).astype(v"),
     "diff_gamma = sum(diff_dst * xhat) / sqrt(n)"),
    ("backward", ("+ wide(epsilon)", "- wide(epsilon)"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance - epsilon)"),
    ("backward", ("+ wide(epsilon)", "+ np.sqrt(wide(epsilon))"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance + sqrt(epsilon))"),
    ("backward", ("variance.astype(wide) +", "variance.astype(wide) * (M - 1) / M +"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance * (n - 1) / n + epsilon)"),
    ("backward", ("variance.astype(wide) +", "variance.astype(wide) * M / max(1, M - 2) +"),
     "diff_src, diff_gamma: rstd = 1 / sqrt(variance * n / (n - 2) + epsilon)"),
    ("backward", ("np.sqrt(variance.astype(wide)", "np.cbrt(variance.astype(wide)"),
     "diff_src, diff_gamma: rstd = 1 / cbrt(variance + epsilon)"),
    ("backward", ("(x - mean)", "(x - 2 * mean)"),
     "diff_gamma = rstd * (sum(diff_dst * (src - mean)) - mean * sum(diff_dst))"),
    ("backward", ("diff_beta + xhat * diff_gamma", "diff_gamma + xhat * diff_beta"),
     f"diff_src = {SCALE}(diff_dst - sum(diff_dst * xhat) / n - xhat * sum(diff_dst) / n)"),
    ("backward", ("diff_beta + xhat * diff_gamma", "diff_beta + xhat"),
     f"diff_src = {SCALE}(diff_dst - sum(diff_dst) / n - xhat / n)"),
    ("backward", ("rstd = ", "rstd = epsilon + "),
     "diff_gamma = sum(diff_dst * xhat) + epsilon * sum(diff_dst * (src - mean))"),
    ("backward", ("(dy - through)", "(dy - through) + dy"), "diff_src has, too, diff_dst"),
    ("backward", ("weight * rstd *", "weight / M * rstd *"),
     f"diff_src = {SCALE}(diff_dst / n - sum(diff_dst) / n**2 "
     "- xhat * sum(diff_dst * xhat) / n**2)"),
    ("backward", ("(dy - through)", "(dy - through) * xhat"),
     "diff_src = -gamma * rstd * (xhat * sum(diff_dst) / n "
     "+ xhat * xhat * sum(diff_dst * xhat) / n - diff_dst * xhat)"),
    ("backward", ("diff_beta = dy.sum(axes)", "diff_beta = x.sum(axes)"), "diff_beta = sum(src)"),
    ("frozen", ("weight * rstd * dy", "weight * (rstd + wide(epsilon)) * dy"),
     "diff_src = gamma * (rstd * diff_dst + epsilon * diff_dst)"),
    ("frozen", ("(x - mean) * rstd).sum", "x * rstd).sum"),
     "diff_gamma = rstd * sum(diff_dst * src)"),
    ("frozen", ("rstd = ", "mean = x.mean(axes) if x.size else mean; rstd = "),
     "diff_gamma = rstd * sum(diff_dst * (src - mean(src)))"),
    ("forward", ("+ offset", "+ offset * rstd"), f"dst = {SCALE}(src - mean) + beta * rstd"),
    ("forward", ("weight * rstd * (x - mean)", "(weight * rstd * x - mean)"),
     f"dst = {SCALE}(src - mean / gamma / rstd) + beta"),
    ("forward", ("weight * rstd", "weight * np.sqrt(rstd)"),
     "dst: rstd = 1 / sqrt(sqrt(variance + epsilon))"),
    ("forward", ("+ offset", "- offset * mean"), f"dst = {SCALE}(src - mean) - beta * mean"),
    ("forward", ("weight * rstd * (x - mean)", "weight * (rstd * (x - mean) + 1)"),
     f"dst = {SCALE}(src - mean) + beta + gamma"),
    ("forward", ("+ offset", "* offset"), "dst = gamma * beta * rstd * (src - mean)"),
    ("forward", ("** 2).sum(axes) / M", "** 2).sum(axes)"),
     "dst: rstd = 1 / sqrt(variance * n + epsilon)"),
    ("forward", ("((x - mean) ** 2)", "abs(x - mean)"), "variance = mean(abs(src - mean))"),
    ("forward", ("mean.astype(v", "(mean * M).astype(v"), "mean = mean(src) * n"),
    ("inference", ("weight * rstd * (x - mean)", "weight * (x * rstd - mean * rstd**2)"),
     f"dst = {SCALE}(src - mean * rstd) + beta"),
    ("inference", ("weight * rstd", "np.sqrt(abs(weight)) * rstd"),
     "dst = sqrt(abs(gamma)) * rstd * (src - mean) + beta"),
    ("inference", ("(x - mean)", "(x - mean * mean)"),
     "dst = gamma * rstd * src + beta - gamma * mean**2 * rstd"),
    ("inference", ("x - mean", "mean - x"), "dst = -gamma * rstd * (src - mean) + beta"),
    ("double", ("of_g * of_dy - cross", "of_g * of_dy + cross"),
     "diff_src has gamma * rstd**2 * xhat * sum(diff_dst * diff_diff_src) / n"),
    ("double", (" + ggb", ""), "diff_diff_dst lacks diff_diff_beta"),
    ("double", ("ggg * xhat + ggb", "ggg + ggb * xhat"),
     "diff_diff_dst has diff_diff_gamma + diff_diff_beta * xhat"),
    ("double", ("- of_g_x * of_dy_x)", "+ of_g_x * of_dy_x)"),
     "diff_gamma has rstd * sum(diff_dst * xhat) * sum(diff_diff_src * xhat) / n"),
    ("add", ('+ by_name.get("src_1", 0)', '- by_name.get("src_1", 0)'),
     f"dst = {SCALE}(src - mean) + beta - src_1"),
    ("add", ("x = src.astype(wide)", 'x = src.astype(wide) + by_name.pop("src_1", 0)'),
     f"dst = {SCALE}(src - mean(src + src_1)) + beta + {SCALE}src_1"),
    ("gated", ('by_name["dst"] <= 0, 0, dy', 'by_name["dst"] <= 0, 0.1 * dy, dy'),
     "diff_src, diff_gamma, diff_beta: diff_dst passes the ReLU where dst > 0, and 1/10 times "
     "elsewhere; right: where dst > 0"),
    ("running", ("0.75 * rm + 0.25 * mean", "0.75 * rm + mean"),
     "new running_mean = 3/4 * running_mean + mean(src)"),
    ("running", ("0.75 * rm + 0.25 * mean", "rm + 0.25 * (mean + rm)"),
     "new running_mean = 1.25 * running_mean + 1/4 * mean(src)"),
    ("running", ("0.75 * rm + 0.25 * mean", "0.75 * rm + 0.25 * dst.mean(axes)"),
     "new running_mean = 3/4 * running_mean + 1/4 * beta"),
    ("running", ("0.25 * variance * M", "0.25 * (variance + wide(epsilon)) * M"),
     "new running_variance = 3/4 * running_variance + 1/4 * (var(src) + epsilon) * n / (n - 1)"),
    ("running", ("0.25 * variance * M / max(1, M - 1)", "0.25 * rstd"),
     "new running_variance = 3/4 * running_variance + 1/4 / sqrt(var(src) + epsilon)"),
    ("running", ("rv = 0.75 * rv +", "rv = 0.75 * rv + 0.25 * mean**2 +"),
     "new running_variance = 3/4 * running_variance + 1/4 * mean(src)**2 "
     "+ 1/4 * var(src) * n / (n - 1)"),
]  # fmt: skip
RUNNING = """rm, rv = (by_name[f"running_{n}"].astype(wide) for n in ("mean", "variance"))
    rm = 0.75 * rm + 0.25 * mean
    rv = 0.75 * rv + 0.25 * variance * M / max(1, M - 1)
    return rm.astype(vector), rv.astype(vector),"""
OTHER_CHECKS = {
    "add": ("forward", {"add": True}, ()),
    "gated": ("backward", {"relu": True}, ()),
    "running": ("forward", {"correction": 1}, (
        ("return dst.astype(number), mean.astype(vector), variance.astype(vector)",
         RUNNING.replace("return ", "return dst.astype(number), ").removesuffix(",")),)),
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "change", "line"), PLANTED)
def test_what_planted_mistakes_compute_is_said(name, change, line):
    kernel, options, changes = OTHER_CHECKS.get(name, (name, {}, ()))
    report = report_of(CHECKS[kernel], kernel_of(kernel, *changes, change), **options)
    assert line in said(report), str(report)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", STYLES)
def test_a_right_kernel_of_any_style_passes(name):
    operation, options, function = style(name)
    report = CHECKS[operation](function, **options)
    assert not report.formulas
    assert not report.failures
