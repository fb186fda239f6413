"""bn_ext.testing passes right kernels and finds wrong ones; the report says where and why."""

import ast
import itertools
import os
import pydoc
import re
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import DATA_DTYPES, FORMATS, SHORT
from command_line import run as command
from needs import needs_posix
from processes import python
from remembered import CASES, _remembered, case_of, is_wrong  # noqa: F401
from sheets import WithDLPack
from text_kernels import KERNELS, kernel_from, kernel_of
from tree import ROOT

import bn_ext
from bn_ext._cli import child
from bn_ext._cli.reference import imported
from bn_ext._cli.usage import UsageError
from bn_ext.testing import Report, check_backward, check_double_backward, check_forward
from bn_ext.testing._case import Kind
from bn_ext.testing._cases import RECIPES, standard_cases
from bn_ext.testing._exact import ARITHMETICS
from bn_ext.testing._report import run

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

#: Without the cases that take longest, which say nothing here.
QUICKER = {"skip": ("channels, planes", "70 002 rows", "300 x 300")}
CHECKS = {
    "forward": partial(check_forward, **QUICKER),
    "inference": partial(check_forward, is_training=False, **QUICKER),
    "backward": partial(check_backward, **QUICKER),
    "frozen": partial(check_backward, is_training=False, **QUICKER),
    "double": partial(check_double_backward, **QUICKER),
}


def all_but(*names):
    """What `skip` leaves only the cases whose names start so, and those named in these."""
    kept = [name for name in RECIPES if f"{name},".startswith(names)]
    return [name for name in RECIPES if not any(name in case for case in kept)]


#: What leaves the command few cases: it solves them anew in each process.
FEW = (
    "--skip",
    *all_but("two axes", "three axes", "five axes", "one row", "127", "without gamma", "epsilon 2"),
)


@pytest.mark.whole
@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_straightforward_kernel_in_long_doubles_passes(name, data):
    quick = (name, data) != ("forward", "float32")
    report = CHECKS[name](kernel_of(name), dtypes=[data], quick=quick)
    assert not report.failures
    assert report.worst.share < 1
    assert len(report.lines(verbose=True)) >= 25
    assert len(report.lines()) <= 12


def failing(check, function, case="", result="", **options):
    """Assert that a check fails in this case; return the findings, of a result if it is given."""
    with pytest.raises(AssertionError) as raised:
        check(function, **options)
    findings = [
        finding
        for finding in raised.value.report.failures
        if finding.case.startswith(case) and finding.result.startswith(result)
    ]
    assert findings, str(raised.value)
    return findings


RSTD = "1 / np.sqrt(variance.astype(wide) + wide(epsilon))"
NAIVE = "np.add.reduce({}.astype(number), axes)"
SQUARES = [("((x - mean) ** 2).sum(axes) / M", "(x.astype(number) ** 2).sum(axes) / M - mean**2")]
FOLDED = """((weight * rstd).astype(number) * diff_dst
        - (weight * rstd**2 * diff_gamma / M).astype(number) * src
        + (weight * rstd * (mean * rstd * diff_gamma - diff_beta) / M).astype(number))"""
NEITHER = "gamma is None or beta is None"
#: kernel, what replaces what, a case that must fail, and what its line must say; more: MISTAKES.
SPOILED = [
    ("backward", [("return", "if src.ndim > 2 and len(src) > 9: diff_src[...] = 0\n    return")],
     "three axes", "diff_src "),
    ("inference", [("weight * rstd * (x - mean)",
                    "np.where(weight == 0, 0, weight * rstd * (x - mean))")], "NaN in planes",
     "dst "),
    ("forward", [("weight * rstd", f"(one if {NEITHER} else weight) * rstd")], "gamma without",
     "dst "),
    ("forward", [("+ offset", f"+ (0 if {NEITHER} else offset)")], "beta without gamma", "dst "),
    ("backward", [("wide(epsilon)", "np.float16(epsilon)")], "variance near", "diff_gamma"),
    ("backward", [(RSTD, RSTD + ".astype('f2')")], "two axes", "diff_gamma +1"),
    ("backward", [("(x - mean) * rstd", "(x - mean) * rstd * weight / weight")], "zero and neg",
     " nan "),
    ("backward", [("return", "diff_src[..., variance == 0] = 0; return")], "constant channels",
     "diff_src "),
    ("backward", [(RSTD, RSTD + " * (variance > 1e-10)")], "large and small src", "diff_gamma"),
    ("backward", [("one if gamma", "0 * one if gamma")], "without gamma", "diff_src "),
    ("backward", [("dy = diff", "diff_dst *= 2; dy = diff")], "two axes", "wrote to diff_dst"),
    ("backward", [("mean) * rstd", "mean) * rstd; src[...] = 0")], "two axes", "wrote to src"),
    ("backward", [("return", "diff_src[-1:, ..., -1:] += 1; return")], "two axes", "[63, 4]"),
    ("backward", [("diff_gamma.astype(v", "diff_gamma[None].astype(v")], "two axes",
     "expected shape (5,), got (1, 5)"),
    ("backward", [("diff_gamma.astype(vector)", "diff_gamma.astype('f2')")], "two axes",
     "diff_gamma  expected at least float32, like the data, got float16"),
    ("backward", [("return", "return None; return")], "two axes", "got None"),
    ("forward", [("x.sum(axes)", "np.nansum(x, axes)")], "NaN in src,", "mean "),
]  # fmt: skip

#: The same of right kernels in weaker arithmetic, and what it is: the first that lets it pass.
WEAKER = [
    ("backward", [("dy.sum(axes)", NAIVE.format("dy"))], "20 000", "diff_beta", "float32"),
    ("backward", [("(dy * xhat).sum(axes)", NAIVE.format("(dy * xhat)"))], "140 000", "diff_gamma",
     "float32"),
    ("backward", [("weight * rstd * (dy - through)", FOLDED)], "means of 1000", "diff_src",
     "any"),
    ("forward", SQUARES, "means of 1000", "variance", "any"),
    ("forward", SQUARES, "large or small src in planes", "variance", "any"),
    ("forward", [("x.sum(axes) / M", "(src.sum(axes) / src.dtype.type(M))")], "140 000", "mean",
     "float32"),
    ("forward", [("((x - mean) ** 2).sum(axes) / M", "(src.astype(float) ** 2).sum(axes) / M"
                  " - (src.astype(float).sum(axes) / M) ** 2")], "mean far from zero", "variance",
     "float32"),
    ("inference", [("(x - mean) + offset", "x + (offset - weight * rstd * mean).astype(number)")],
     "means of 1000", "dst", "any"),
    # Where a variance is 0, folded arithmetic may have anything.
    ("forward", [("return", "dst[..., variance == 0] = 0; return")], "constant with", "dst", "any"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "case", "result", "weakest"), WEAKER)
def test_weaker_arithmetic_is_no_mistake(name, changes, case, result, weakest):
    check = partial(CHECKS[name], kernel_of(name, *changes), skip=all_but(case, "two axes"))
    kinds = [*ARITHMETICS][:3]
    for place, kind in enumerate(kinds):
        if place >= kinds.index(weakest):
            assert check(arithmetic=kind).passed
            continue
        with pytest.raises(AssertionError) as raised:
            check(arithmetic=kind)
        report = raised.value.report
        (finding,) = (e for e in report.failures if e.case.startswith(case) and e.result == result)
        assert (finding.verdict, finding.arithmetic) == ("weaker", weakest)
        assert re.search(f"weaker .*{re.escape(ARITHMETICS[weakest])}", report.summary)


@pytest.mark.parametrize(("data", "least"), [("float16", 2.0**-14), ("bfloat16", 2.0**-126)])
@pytest.mark.parametrize("name", ["backward", "frozen"])
def test_kernels_that_flush_16_bit_results_are_found(name, data, least):
    if data == "bfloat16":
        pytest.importorskip("ml_dtypes")
    flush = f"diff_src[abs(diff_src.astype(float)) < {least}] = 0; return "
    flush_frozen = f"diff_src = weight * rstd * dy; {flush}diff_src"
    frozen = "return (weight * rstd * dy)", flush_frozen
    kernel = kernel_of(name, ("return ", flush) if name == "backward" else frozen)
    for kind in [*ARITHMETICS][:3] if data == "float16" else ["double"]:
        options = {"dtypes": data, "quick": True, "arithmetic": kind}
        failing(CHECKS[name], kernel, "large and small diff_dst", "diff_src", **options)


def test_cases_are_made_and_judged_in_the_default_mode():
    torch = pytest.importorskip("torch")
    frozen = kernel_of("frozen")

    def flushes(*arguments, **options):
        results = frozen(*arguments, **options)
        torch.set_flush_denormal(True)
        return np.where(abs(results[0]) < 2.0**-126, 0, results[0])

    try:
        for mode in (True, False):
            CASES.clear()
            torch.set_flush_denormal(mode)
            options = {"is_training": False, "quick": True, "arithmetic": "double"}
            failing(check_backward, flushes, "small diff_dst", "diff_src", **options)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.whole
@pytest.mark.parametrize("data", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_subnormal_numbers_that_count_as_0_are_weak_arithmetic(name, data):
    """As in XLA and on GPUs; the summary tells it."""

    def flushed(array):
        if array is None:
            return None
        return np.where(abs(array) < np.finfo(data).tiny, 0, array).astype(array.dtype)

    def flushes(*arguments, **options):
        results = kernel_of(name)(*map(flushed, arguments), **options)
        return tuple(map(flushed, results)) if isinstance(results, tuple) else flushed(results)

    report = CHECKS[name](flushes, dtypes=data, quick=True)
    assert report.verdicts == dict.fromkeys(report.verdicts, "right")
    if name != "double":
        assert re.search(r" right; subnormal numbers are 0 in \d+ cases?$", report.summary)
        findings = failing(CHECKS[name], flushes, arithmetic="double", dtypes=data, quick=True)
        assert {finding.verdict for finding in findings} == {"weaker"}


STAGED = """
    root = np.sqrt(variance + number.type(epsilon))
    centered, weight = src - mean, number.type(1) if gamma is None else gamma
    diff_beta = diff_dst.sum(axes)
    diff_gamma = (diff_dst * centered * (1 / root)).sum(axes)
    d_xhat = diff_dst * weight
    d_variance = -(d_xhat * centered).sum(axes) / (root * root) / (2 * root)
    d_centered = d_xhat * (1 / root) + 2 * centered * (d_variance / number.type(M))
    return d_centered - d_centered.sum(axes) / number.type(M), diff_gamma, diff_beta
"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", ["float32", "float64"])
def test_a_gradient_derived_node_by_node_is_right(data):
    """It sums src - mean, which the rounding of the given mean leaves."""
    assert check_backward(kernel_from(STAGED), dtypes=data, quick=True).passed


def test_exact_statistics_of_ones_own():
    """Those of an automatic gradient, where float32 rounds the mean that it is given."""
    own = "if x.size: mean = x.mean(axes); variance = ((x - mean) ** 2).mean(axes)\n    rstd ="
    automatic = kernel_of("backward", ("rstd =", own))
    options = {"arithmetic": "double", "skip": ["with eps", "whole", "channels, p", "000 rows"]}
    assert check_backward(automatic, own_statistics=True, **options).worst.share < 1
    failing(check_backward, automatic, "mean far from zero", **options)


@pytest.mark.parametrize("term", ["diff_beta + ", " + xhat * diff_gamma", "weight * "])
def test_a_forgotten_term_is_never_weaker(term):
    skip = *QUICKER["skip"], "140 000", "planes of", "4100", "257 channels"
    report = run(kernel_of("backward", (term, "")), standard_cases(Kind("backward"), skip=skip))
    assert "weaker" not in report.verdicts.values()


@pytest.mark.parametrize("name", ["NC", "NLC", "NHWC", "NDHWC", "NCW", "NCHW", "channels_first"])
def test_all_names_of_data_formats(name):
    def strict(*arguments, epsilon):
        shapes.add(len(arguments[0].shape))
        return bn_ext.batch_norm_backward(*arguments, epsilon=epsilon, data_format=name)

    shapes = set()
    report = check_backward(strict, data_format=name, quick=True)
    assert report.verdicts == dict.fromkeys(report.verdicts, "right")
    assert shapes == ({len(name)} if name.startswith("N") else {2, 3, 4, 5})
    if name.startswith("N"):
        check_backward(strict, np.ones((3, 2, 4, 2, 5)[: len(name)]), data_format=name)


@pytest.mark.parametrize(("name", "changes", "case", "text"), SPOILED)
def test_spoiled_kernels_are_found_with_the_reason(name, changes, case, text):
    with pytest.raises(AssertionError) as raised:
        CHECKS[name](kernel_of(name, *changes), skip=all_but(case, "two axes"))
    lines = str(raised.value).splitlines()
    assert re.match(r"\d+ of \d+ cases fail", lines[0])
    assert max(map(len, lines)) < 140
    findings = raised.value.report.findings
    lines = Report([finding for finding in findings if finding.case.startswith(case)]).lines()
    assert lines[2] in ("wrong:", "raised:")
    assert text in lines[3]


def test_a_kernel_that_is_wrong_for_one_dtype():
    rounds = kernel_of("backward", ("x = src", "x = src.astype('f4')"))
    check_backward(rounds, quick=True)
    both = {"dtypes": ("float32", "float64"), "quick": True}
    failing(check_backward, rounds, "two axes, float64", "diff_gamma", **both)
    narrow = kernel_of("backward", ("np.float64 if", "np.float32 if"))
    with pytest.raises(AssertionError, match="diff_gamma .* expected at least float64"):
        check_backward(narrow, dtypes="float64", quick=True)


@pytest.mark.whole
def test_a_relu_and_an_addition():
    relu = {"relu": True, "quick": True}
    forward = kernel_of("forward", ("return", "dst = np.where(dst <= 0, 0, dst); return"))
    check_forward(forward, **relu)
    check_forward(forward, add=True, **relu)
    failing(check_forward, kernel_of("forward"), "two axes, float32", "dst", **relu)
    dropped = kernel_of("forward", ("return", "dst = np.fmax(dst, 0); return"))
    skip = "Inf", "NaN in planes", "with eps", "vectors"
    (finding,) = failing(check_forward, dropped, skip=skip, **relu)
    assert (finding.case, finding.share) == ("NaN in src, float32", np.inf)
    check_backward(kernel_of("backward"), **relu)
    for name in ("backward", "frozen"):  # what passes where dst is NaN: conventions differ
        gate = ("dy = diff_dst", "dy = np.where(by_name.pop('dst') > 0, diff_dst, 0)")
        CHECKS[name](kernel_of(name, gate), **relu)
    with pytest.raises(AssertionError, match="two axes"):
        check_backward(kernel_of("backward", ("<= 0", "< 0")), **relu)
    adds = kernel_of("backward", ("beta.astype(vector)\n", "beta.astype(vector), dy\n"))
    check_backward(adds, add=True, **relu)
    adds = kernel_of("backward", ("beta.astype(vector)\n", "beta.astype(vector), diff_dst\n"))
    failing(check_backward, adds, "two axes, float32", "diff_src_1", add=True, **relu)


OPERATIONS = {
    "forward": bn_ext.batch_norm_training,
    "inference": bn_ext.batch_norm_inference,
    "backward": bn_ext.batch_norm_backward,
    "frozen": partial(bn_ext.batch_norm_backward, is_training=False),
    "double": bn_ext.batch_norm_double_backward,
}


FORMAT_OF = {"float32": "NXC", "float64": "NCX", "float16": "NXC", "bfloat16": "NXC"}


@pytest.mark.parametrize(("data", "data_format"), [*FORMAT_OF.items(), ("float32", "NCX")])
def test_bn_ext_passes(data, data_format):
    """Its bits, and so the verdicts, are the same at every level and for all numbers of threads."""
    for name, check in CHECKS.items():
        large = (name, data, data_format) == ("backward", "float32", "NXC")
        options = {"dtypes": [data], "quick": not large, "arithmetic": "double"}
        function = partial(OPERATIONS[name], data_format=data_format)
        report = check(function, data_format=data_format, **options)
        assert not any(np.isnan(finding.share) for finding in report.findings)


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", ["forward", "inference", "backward", "frozen"])
def test_bn_ext_passes_with_a_relu_and_an_addition(name, data):
    options = {"relu": True, "data_format": [*FORMATS][data in SHORT]}
    check = partial(CHECKS[name], dtypes=[data], quick=True, arithmetic="double", **options)
    function = partial(OPERATIONS[name], **options)
    if data == "float32":
        check(function)
    is_gradient = name in ("backward", "frozen")
    check(partial(function, diff_src_1=True) if is_gradient else function, add=True)


def running(src, *vectors, running_mean, running_variance, factor=0.25, **options):
    tracked = {"running_mean": running_mean.copy(), "running_variance": running_variance.copy()}
    options = {"data_format": "NXC", "correction": 1, **options, **tracked}
    results = bn_ext.batch_norm_training(src, *vectors, exponential_avg_factor=factor, **options)
    return *results, *tracked.values()


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("correction", [0, 1])
def test_running_statistics(correction, data):
    options = {"correction": correction, "dtypes": data, "skip": all_but("two axes", "127 rows")}
    mine = partial(running, correction=correction)
    check_forward(mine, correction=correction, dtypes=data, quick=True, arithmetic="double")
    channels_first = {"data_format": "NCX"}
    check_forward(partial(mine, **channels_first), **options, **channels_first)
    other = partial(running, correction=1 - correction)
    failing(check_forward, other, "two axes", "running_variance", **options)
    for name in ("running_mean", "running_variance"):
        failing(check_forward, partial(mine, factor=1), "127 rows", name, **options)
    with pytest.raises(
        AssertionError, match="expected dst, .*, running_variance, or dst, .* alone, got 4"
    ):
        check_forward(lambda *a, **k: mine(*a, **k)[:-1], **options)


MINE = kernel_of("backward")


def test_data_of_ones_own(rng):
    src, diff_dst = rng.standard_normal((2, 300, 5))
    xhat = (src - src.mean(0)) / src.std(0)
    wide = np.exp2(rng.integers(-30, 30, src.shape))
    with_nan, with_inf = src.copy(), diff_dst.copy()
    with_nan[3, 2], with_inf[3, 2] = np.nan, np.inf
    constant = np.where(np.arange(5) == 1, 7, src)
    gamma = np.array([0, -1, np.inf, 1e-20, 1])
    for data in (np.float32, np.float64):
        data_of_src = src + 1000, wide, with_nan, src * 1e16, src * 1e-40, src[:1], src[:0]
        diffs = xhat, wide, with_inf, diff_dst * 1e-41, diff_dst * 1e-320
        changes = [{"src": array} for array in data_of_src] + [{"diff_dst": a} for a in diffs]
        changes += [{"src": constant, "epsilon": 0}, {"gamma": gamma}, {"mean": np.full(5, 1e4)}]
        for options in changes:
            options = {
                name: a.astype(data) if isinstance(a, np.ndarray) else a
                for name, a in {"src": src, **options}.items()
            }
            with np.errstate(all="raise"):
                report = check_backward(bn_ext.batch_norm_backward, arithmetic="double", **options)
            assert len(report.findings) == 3
    large = (diff_dst * 3000).astype(np.float16)  # results overflow
    check_backward(bn_ext.batch_norm_backward, src.astype(np.float16) / 64, large)
    check_forward(bn_ext.batch_norm_training, src)
    check_forward(bn_ext.batch_norm_training, src[:0])
    check_forward(bn_ext.batch_norm_inference, src, is_training=False)
    check_double_backward(bn_ext.batch_norm_double_backward, src, diff_dst)


def test_a_src_alone(rng):
    """For kernels that take only some shapes: what is missing is drawn, channels as they are."""

    def near(expected, src, *rest, epsilon):
        assert (src.shape, epsilon) == ((4, 3, 8, 8), expected)
        return bn_ext.batch_norm_backward(src, *rest, epsilon=epsilon, data_format="NCX")

    src = rng.standard_normal((4, 3, 8, 8))
    with np.errstate(all="raise"):
        check_backward(partial(near, 1e-5), src, data_format="NCX")
        check_backward(partial(near, 0.3), src, epsilon=0.3, data_format="NCX")
    statistics = []
    for is_training in (True, False):

        def remembering(src, diff_dst, mean, variance, *rest, epsilon, is_training=is_training):
            statistics.append([mean, variance])
            return bn_ext.batch_norm_backward(
                src, diff_dst, mean, variance, *rest, epsilon=epsilon, is_training=is_training
            )

        check_backward(remembering, src[:, :, 0, 0], is_training=is_training)
    assert not np.isclose(*statistics).any()
    failing(check_backward, kernel_of("backward", ("diff_beta + xhat", "xhat")), src=src)


@pytest.mark.parametrize("names", [["gamma"], ["gamma", "mean", "variance"]])
@pytest.mark.parametrize("is_training", [True, False])
def test_dst_is_that_of_ones_own_arrays(rng, names, is_training):
    def remembers(src, diff_dst, mean, variance, gamma, epsilon, dst):
        passed.update(locals())
        raise NotImplementedError

    own = {"gamma": np.array([5.0, -3, 2]), "mean": np.full(3, 0.5), "variance": np.full(3, 4.0)}
    passed, vectors = {}, {name: own[name] for name in names}
    options = {**vectors, "relu": True, "is_training": is_training}
    with pytest.raises(AssertionError):
        check_backward(remembers, rng.standard_normal((40, 3)), **options)
    xhat = (passed["src"] - passed["mean"]) / np.sqrt(passed["variance"] + passed["epsilon"])
    dst = passed["dst"]
    beta = np.where(dst > 0, dst - passed["gamma"] * xhat, np.nan)
    assert np.nanmax(np.nanmax(beta, axis=0) - np.nanmin(beta, axis=0)) < 1e-12


def test_data_that_cannot_be_judged_does_not_pass(rng):
    """Whatever the result: a limit of Inf would let any number pass."""
    backward, src = bn_ext.batch_norm_backward, np.tile([[1.0], [-1.0], [2.0], [-2.0]], (16, 1))
    diff_dst = np.where(np.arange(64) % 4 < 2, 1.2e307, -1.2e307)[:, None]
    noise = rng.standard_normal((8, 3))
    for options in (
        {"src": src, "diff_dst": diff_dst, "gamma": np.ones(1)},
        {"src": (noise * 1e38).astype(np.float32)},
        {"src": (noise * 1e-24).astype(np.float32), "epsilon": 0},
        {"src": noise * 1e-170, "epsilon": 0},
    ):
        for is_training in (True, False)[: 1 + (len(options) < 3)]:
            function = partial(backward, is_training=is_training)
            with pytest.raises(AssertionError, match="cannot be judged: too near to overflow"):
                check_backward(function, **options, is_training=is_training)
    check_backward(backward, noise, variance=np.full(3, np.inf))  # zeros
    check_backward(backward, np.ones((8, 3)), epsilon=0)  # NaN
    src = np.float32([[1e38, 1], [-1e38, 2], [3e38, 5]])
    with pytest.raises(AssertionError, match=r"dst +cannot be judged.* in part\n1 not judged$"):
        check_forward(bn_ext.batch_norm_training, src)
    check_forward(bn_ext.batch_norm_training, src[:0])


def test_infinite_factors_forward(rng):
    src, inf = rng.standard_normal((8, 2)), np.array([np.inf, -1])
    for data in (np.float32, np.float64):
        x = src.astype(data)
        check_forward(bn_ext.batch_norm_training, x, gamma=inf)
        changes = [{"gamma": inf}, {"mean": inf}, {"beta": inf}, {"variance": abs(inf)}]
        changes += [{"variance": -abs(inf)}, {"variance": np.zeros(2), "epsilon": 0}]
        for options in changes:
            check_forward(bn_ext.batch_norm_inference, x, **options, is_training=False)


X = np.ones((4, 3), np.float32)
FLAGS = "quick", "is_training", "relu", "add", "own_statistics"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"src": X.astype(int)}, TypeError, "src: expected .*got int64"),
        ({"src": X, "diff_dst": X.astype(int)}, TypeError, "diff_dst: expected .*got int64"),
        ({"src": X, "diff_dst": np.ma.masked_array(X, True)}, TypeError, "diff_dst: .*mask"),
        ({"src": X, "mean": np.zeros(2)}, ValueError, "mean: expected shape"),
        ({"src": X[:, :0]}, ValueError, r"src: expected at least one channel, got shape \(4, 0\)"),
        ({"gamma": X[0]}, TypeError, "gamma: expected only with src"),
        ({"dtype": "float32"}, TypeError, "check_backward.. got an .*'dtype'"),
        ({"dtypes": "blah"}, ValueError, "dtypes: expected any of float32, .*, got 'blah'"),
        ({"data_format": "nhwc"}, ValueError, "data_format: expected 'NXC' .* such as 'NHWC'"),
        ({"data_format": None}, ValueError, "data_format: expected 'NXC' .*, got None"),
        ({"add": True}, TypeError, "add: expected only with relu=True"),
        ({"src": X, "data_format": "NHWC"}, ValueError, "data_format: .* format for 2 axes"),
        ({"epsilon": 0.3}, TypeError, "epsilon: expected only with src, got 0.3"),
        ({"src": X, "epsilon": -1}, ValueError, "epsilon: expected a finite number"),
        ({"src": X, "dtypes": "float64"}, TypeError, "dtypes: expected only with the standard"),
        ({"src": X, "quick": True}, TypeError, "quick: expected only with the standard cases"),
        ({"src": X, "skip": "NaN"}, TypeError, "skip: expected only with the standard cases"),
        ({"skip": ""}, ValueError, "skip: expected a part of a standard case's name, got ''"),
        ({"skip": [None]}, ValueError, "skip: expected a part .*, got None"),
        ({"dtypes": ()}, ValueError, "dtypes: expected any of float32, .*, got ()"),
        ({"dtypes": np.float32}, ValueError, "dtypes: expected any of float32, .*numpy.float32"),
        ({"arithmetic": "half"}, ValueError, "arithmetic: expected one of double, float32, any, "),
        ({"repeats": 0}, ValueError, "repeats: expected at least 1, got 0"),
        ({"repeats": "2"}, TypeError, "repeats: expected a whole number, 1 or more, got '2'"),
        ({"own_statistics": True, "is_training": False}, TypeError, "own_statistics: expected on"),
        ({"own_statistics": True, "src": X, "mean": X[0]}, TypeError, "mean: expected None if own"),
        *[({flag: "no"}, TypeError, f"{flag}: expected True or False, got 'no'") for flag in FLAGS],
        ({"function": 3}, TypeError, "function: expected a callable, got 3"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    def never(*_, **__):
        pytest.fail("called")

    with pytest.raises(error, match=f"^{message}"):
        check_backward(**{"function": never, **arguments})


class Raising:
    """A tensor on another device, or whatever else cannot be read."""

    def __init__(self, error, text="tensor"):
        self.error, self.text = error, text

    def __array__(self, *_, **__):
        raise self.error

    def __repr__(self):
        return self.text


class Tensor:
    """What as_array asks of torch's tensors, where torch is not installed."""

    __module__ = "torch"

    def __init__(self, array, dtype="torch.float32"):
        self.array, self.dtype = array, dtype

    def float(self):
        return self

    detach = float

    def numpy(self, *, force):
        return self.array


class Duck:
    """A tensor with some of torch's names."""

    dtype = "float32"

    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array


class Exporting(WithDLPack):
    def numpy(self):
        raise RuntimeError("on another device")


def changed(make, places=slice(None)):
    def gradient(*arguments, epsilon):
        results = [*bn_ext.batch_norm_backward(*arguments, epsilon=epsilon)]
        results[places] = [make(a) for a in results[places]]
        return results

    return gradient


ROWS = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", [WithDLPack, Tensor, Duck, Exporting])
def test_results_of_other_packages_are_read(kind):
    check_backward(changed(kind), ROWS)


def test_bfloat16_is_narrower_than_float32():
    pytest.importorskip("ml_dtypes")
    with pytest.raises(AssertionError, match="expected at least float32, .* got bfloat16"):
        check_backward(changed(lambda a: Tensor(a, "torch.bfloat16")), ROWS)


def test_results_of_torch_are_read_or_named():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy
    views = [lambda a: tensor(a).requires_grad_(), lambda a: torch._neg_view(tensor(-a))]
    for make in (tensor, *views, lambda a: tensor(a).double()):
        check_backward(changed(make), ROWS)
    with pytest.raises(AssertionError, match="gamma .2 +expected an array, got tensor.*meta"):
        check_backward(changed(lambda a: tensor(a).to("meta")), ROWS)


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def function(*_, **__):
        raise error

    return function


def returning(*results):
    return lambda *_, **__: results


#: A function, and what is wrong with it.
FAULTY = [
    *((changed(make, slice(place, place + 1)), rf"{name} +expected {text}")
      for place, name in enumerate(("diff_src", "diff_gamma", "diff_beta"))
      for make, text in (
        (lambda a: a.astype(int), "floating-point numbers, got int64"),
        (lambda a: a != 0, "floating-point numbers, got bool"),
        (lambda a: a + 5j, "floating-point numbers, got complex64"),
        (lambda a: a.astype(object), "floating-point numbers, got object"),
        (lambda a: np.ma.masked_array(a, True), "an array, got masked_array"),
        (lambda a: a.tolist(), "an array, got "),
        (lambda a: dict(enumerate(a)), "an array, got .0: "),
        (lambda _: None, "an array, got None"),
        (lambda _: Raising(RuntimeError("on another device")),
         "an array, got tensor: RuntimeError: on another device"),
        (lambda _: Raising(SystemExit(0)), "an array, got tensor: SystemExit: 0"),
        (lambda _: Raising(RuntimeError("no"), "a\nb" * 500),
         r"an array, got a ba b.{30,36}: RuntimeError: no"))),
    *((returning(*[np.zeros((4, 2))] * n), f"function +expected diff_src, .*, got {n} results")
      for n in (0, 2, 4)),
    *((raising(error), rf"function +raised {text}\n1 raised$") for error, text in (
        (SystemExit(0), "SystemExit: 0"), (RuntimeError("no"), "RuntimeError: no"),
        (ValueError("\n on  two\nlines"), "ValueError: on two lines"),
        (ValueError(), "ValueError"), (SilentError(), "SilentError"))),
]  # fmt: skip


def test_bits_of_bfloat16_are_told_how_to_become_numbers():
    function = changed(lambda a: a.view(np.uint16), slice(0, 1))
    with pytest.raises(AssertionError, match=r"got uint16; return result\.view\(src\.dtype\)\n"):
        check_backward(function, dtypes="bfloat16", quick=True)


@pytest.mark.parametrize(("function", "text"), FAULTY)
def test_what_is_wrong_with_a_call_is_said(function, text):
    with pytest.raises(AssertionError, match=text):
        check_backward(function, ROWS)


def test_lines_are_short():
    def shapes(*arguments, epsilon):
        return [a[None] for a in MINE(*arguments, epsilon=epsilon)]

    with pytest.raises(AssertionError) as raised:
        check_backward(shapes, quick=True)
    _, _, verdict, line, legend, summary = str(raised.value).splitlines()
    assert legend == "+1: one more result fails"
    assert verdict == "wrong:"
    assert re.search(r"two axes, float32 and (\d+) more  diff_gamma .2  expected shape \(", line)
    assert re.fullmatch(r"\d+ wrong", summary)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(AssertionError) as raised:
            check_backward(lambda *a, **k: [2 * b for b in MINE(*a, **k)], dtypes=dtype, quick=True)
        report = raised.value.report
        assert len(report.failures) > 80
        assert str(raised.value) == "\n".join(report.lines())
        assert max(map(len, report.lines())) <= 120


def test_the_first_result_alone():
    report = check_backward(lambda *a, epsilon: MINE(*a, epsilon=epsilon)[0], quick=True)
    assert {finding.result for finding in report.findings} == {"diff_src"}


def test_what_a_function_does_not_have_does_not_count():
    def part(src, diff_dst, mean, variance, gamma, epsilon):
        if not src.size:
            raise NotImplementedError("no elements")
        return MINE(src, diff_dst, mean, variance, gamma + 0, epsilon)

    report = check_backward(part, quick=True)
    assert [*report.verdicts.values()].count("refused") == 4
    assert re.fullmatch(r"4 refused, \d+ right", report.summary)
    reasons = {finding.reason.split(":")[0] for finding in report.findings if finding.reason}
    assert reasons == {"raised NotImplementedError", "raised TypeError"}


def test_the_report_shows_the_worst_first_element():
    def off(*arguments, **options):
        results = MINE(*arguments, **options)
        results[0][2, ..., 1:2] += 1
        return results

    skip = all_but("two axes", "three axes", "one channel")
    report = run(off, standard_cases(Kind("backward"), quick=True, skip=skip))
    finding = report.failures[0]
    assert finding[:2] == ("two axes, float32", "diff_src")
    assert finding.element == (2, 1)
    assert abs(finding.got - finding.expected - 1) < 1e-5
    assert report.worst.share >= finding.share > 1e4
    table = "\n".join(report.lines(verbose=True))
    line = next(line for line in table.splitlines() if "two axes" in line)
    assert line.endswith("  1 of 320, in channel 1 of 5")
    assert f"{finding.got:.6g}" in line
    assert f"{finding.expected:.6g}" in line
    assert table.index("right:") < table.index("two axes")
    assert "right:" not in str(report)
    assert "\nerror/limit: up to 1 is rounding" in str(report)


@pytest.mark.parametrize("name", ["c", "torch", "jax"])
def test_examples_in_other_languages(name):
    if name == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    if name != "c":
        pytest.importorskip(name)
    done = python(ROOT / "examples" / f"kernel_in_{name}.py")
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ of \d+ cases fail", done.stdout)
    assert name == "jax" or done.stdout.startswith("0 of")


MODULE = """
import faulthandler, multiprocessing, os, signal, time
from concurrent.futures import ProcessPoolExecutor
import bn_ext
number = 3
def right(*arrays, epsilon):
    return bn_ext.batch_norm_backward(*arrays, epsilon=epsilon, data_format="NXC")
def wrong(*arrays, epsilon):
    return right(*arrays, epsilon=2 * epsilon)
def null(*arrays, epsilon):
    print("called")
    if arrays[4] is None:
        faulthandler._read_null()
    return right(*arrays, epsilon=epsilon)
def ends(*arrays, epsilon):
    os._exit(3)
def slow(*arrays, epsilon):
    time.sleep(1000 * (arrays[4] is None))
    return right(*arrays, epsilon=epsilon)
def signalled(*arrays, epsilon):
    os.kill(os.getpid(), signal.SIGRTMIN + 6)
def pooled(*arrays, epsilon):
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    print("process", pool.submit(os.getpid).result())
    faulthandler._read_null()
"""
MODULES = {"my_kernels": MODULE, "my_exit": "raise SystemExit(0)", "my_fault": "1 / 0"}
MODULES["my_place"] = "import os; os.chdir('/'); f = len"
MODULES["my_end"] = "import os; os._exit(1)"
MODULES["my_short"] = "import sys; sys.modules['ml_dtypes'] = None; f = print"


@pytest.fixture
def modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)


FAULT = "SIGSEGV" if os.name == "posix" else "exit status 0xc0000005"
#: The function, options, the exit status, and what is printed.
COMMANDS = [
    ("my_kernels:right", "", 0, r"^0 of \d cases fail\n"),
    ("my_kernels.py:right", "--repeats 2 --arithmetic double --verbose", 0,
     "\nright:\n(.*\n)+. right\n$"),
    ("my_kernels:right", "--own-statistics --op double-backward --layout NCX", 1, r" cases fail"),
    ("my_kernels:wrong", "--quick", 1, "wrong:\n.* epsilon 2"),
    ("my_kernels.py:null", "", 1,
     rf"crashed:\n +-  without gamma, float32 +function +crashed .{FAULT}.\n1 crashed, \d right"),
    ("my_kernels:ends", "", 1,
     r"further cases +function +not called, after 2 crashes\ncrashed:\n.*two axes, float32 and 1 "
     r"more +function +crashed .exit status 3.\n2 crashed, 1 not judged\n$"),
    ("my_kernels.py:slow", "--timeout 3", 1,
     r"without gamma, float32 +function +did not return within 3 s\n1 crashed, \d right\n$"),
    pytest.param(
        "my_kernels.py:signalled", "", 1, r"crashed .signal \d+.\n", marks=needs_posix),
    ("my_place:f", "", 1, "raised TypeError"),
    ("my_end:f", "", 2, "crashed .exit status 1. before the first call"),
    ("my_exit:f", "", 2, "^bn-ext check: my_exit:f: cannot be imported .SystemExit: 0.\n$"),
    ("my_short.py:f", "--dtypes bfloat16", 2,
     "--dtypes: bfloat16 needs ml_dtypes: python -m pip install ml_dtypes"),
]  # fmt: skip


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("place", "options", "status", "text"), COMMANDS)
def test_a_function_from_the_command_line(capsys, monkeypatch, place, options, status, text):
    monkeypatch.setattr(child, "MOST", 2)
    ended, out, err = command(capsys, "check", place, *FEW, *options.split())
    assert ended == status
    assert re.search(text, err if status == 2 else out), out + err


#: A function that cannot be taken -> what is said of it.
UNKNOWN = {
    "my_kernels": "expected module:function",
    "my_kernels:nothing": "cannot be imported .AttributeError",
    "my_kernels:number": "expected a function, got int",
    "no_such_module:f": "cannot be imported .ModuleNotFoundError",
    "my_fault:f": "cannot be imported .ZeroDivisionError",
    "nowhere.py:right": "cannot be imported .FileNotFoundError: no file nowhere.py.$",
}


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("place", UNKNOWN)
def test_what_cannot_be_imported_is_named(place):
    with pytest.raises(UsageError, match=f"^{place}: {UNKNOWN[place]}"):
        imported(place)


#: Options that would change nothing -> what is said of them.
USELESS = {
    "--skip nan": "skip: expected a part of a standard case's name",
    "--relu --op=double-backward": "--relu: expected only of a forward pass",
    "--own-statistics --op=training": "--own-statistics: expected only of a gradient with is_train",
    "--script no/such/out.py": "--script no/such/out.py: expected a file in a folder that exists",
    "--repeats=0": "expected a whole number, 1 or more, got '0'",
    "--arithmetic=half": "invalid choice: 'half'",
    "--timeout=1e-9": "expected a number of seconds, 0.1 or more, got '1e-9'",
}


@pytest.mark.parametrize("options", USELESS)
def test_options_that_would_change_nothing_are_refused(capsys, options):
    status, out, err = command(capsys, "check", "math:sqrt", *options.split())
    assert (status, out) == (2, "")
    assert USELESS[options] in err.replace(os.sep, "/")


def test_the_number_of_cases_that_the_readme_names():
    counts = re.findall(r"(\d+) (?:hard|standard) cases", (ROOT / "README.md").read_text())
    assert {*map(int, counts)} <= {len([*standard_cases(Kind("backward"))])}


def test_every_recipe_is_a_case_of_some_operation():
    names = {case.name for kind in ("training", "backward") for case in standard_cases(Kind(kind))}
    assert {name.rpartition(",")[0] for name in names} == {*RECIPES}


@needs_posix
@pytest.mark.usefixtures("modules")
def test_processes_that_a_function_has_started_end_with_it(capfd, monkeypatch):
    """One that lives holds the pipe open, so that no end of it is seen."""
    monkeypatch.setattr(child, "MOST", 1)
    status, out, err = command(capfd, "check", "my_kernels.py:pooled", *FEW)
    assert (status, "crashed (SIGSEGV)" in out) == (1, True)
    started = int(re.search(r"process (\d+)", err)[1])
    for _ in range(100):  # init reads its status
        try:
            state = Path(f"/proc/{started}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.1)
    else:
        raise AssertionError(f"process {started} lives")


#: A dataclass looks for its module; a process of its own imports it.
WRONG = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Factor:
    value: float = 7.0
def batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon, **by_name):
    return diff_dst * Factor().value
"""


@pytest.mark.parametrize("name", ["statistics", "norm-v1.2", "beside"])
def test_the_file_that_is_named_is_checked(tmp_path, capsys, monkeypatch, name):
    """Whatever its name: that of a module, that of a package beside it, one with dots."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"{name}.py").write_text(WRONG)
    (tmp_path / "mine" / "beside").mkdir()
    (tmp_path / "mine" / "beside" / "__init__.py").write_text("")
    place = f"mine/{name}.py:batch_norm_backward"
    status, out, _ = command(capsys, "check", place, *FEW)
    assert status == 1
    assert re.search(r"^\d wrong", out.splitlines()[-1])


BY_ROW = ".reshape(-1, src.shape[-1])"
LAST_EIGHT = "[src.shape[-1] // 8 * 8 :] = 0; "


def summed(part):
    return [
        (f"{terms}.sum(axes)", f"{terms}{BY_ROW}[{part}].sum(0)") for terms in ("dy", "(dy * xhat)")
    ]


#: What it is as if, the kernel, and what replaces what in it.
MISTAKES = [
    ("sums miss the last rows after a multiple of 8", "backward", summed("slice(M // 8 * 8)")),
    ("sums miss the last rows after a multiple of 16", "forward", [
        ("x.sum(axes)", f"x{BY_ROW}[:M // 16 * 16].sum(0)"),
        ("((x - mean) ** 2).sum(axes)", f"((x - mean) ** 2){BY_ROW}[:M // 16 * 16].sum(0)")]),
    ("sums miss rows from 1024 on", "backward", summed("slice(1024)")),
    ("sums leave out the last channels after a multiple of 8", "backward", [
        ("through =", f"diff_beta{LAST_EIGHT}diff_gamma{LAST_EIGHT}through =")]),
    ("sums leave out channels from 64 on", "backward", [
        ("through =", "diff_beta[64:] = diff_gamma[64:] = 0; through =")]),
    ("the last channels after a multiple of 4 are 0", "backward", [
        ("return", "diff_src[..., src.shape[-1] // 4 * 4 :] = 0; return")]),
    ("the last channels after a multiple of 2 are 0", "double", [
        ("return", "diff_src[..., src.shape[-1] // 2 * 2 :] = 0; return")]),
    ("the last rows after a multiple of 8 are 0", "backward", [
        ("return", f"diff_src{BY_ROW}[M // 8 * 8 :] = 0; return")]),
    ("channels from 64 on are 0", "backward", [("return", "diff_src[..., 64:] = 0; return")]),
    ("rows from 256 on are 0", "backward", [("return", f"diff_src{BY_ROW}[256:] = 0; return")]),
    ("src and diff_dst are exchanged", "backward", [
        ("dy = diff_dst.astype(wide)", "dy = x; x = diff_dst.astype(wide)")]),
    ("mean and variance are exchanged", "inference", [
        ("rstd =", "mean, variance = variance, mean; rstd =")]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("text", "name", "changes"), MISTAKES)
def test_what_a_wrong_function_is_as_if(text, name, changes):
    """Nothing else fits; large cases are needed where sums are long. Mistakes that formulas have
    are in test_reading.py.
    """
    large = ["000 rows", "70 0", "rows of whole", " channels, planes", "300 x 300", "4100 channels"]
    if not re.search("1024|256|64", text):
        large += ["planes of 1", "257 channels"]
    with pytest.raises(AssertionError, match=f"\nas if {re.escape(text)}\n") as raised:
        CHECKS[name](kernel_of(name, *changes), skip=large)
    assert raised.value.report.as_if == [text]


def confused(src, *vectors, epsilon):
    shape = len(src), src.shape[-1], np.prod(src.shape[1:-1], dtype=int)
    turned = src.reshape(shape).swapaxes(1, 2)
    dst, *statistics = kernel_of("forward")(turned, *vectors, epsilon)
    return dst.swapaxes(1, 2).reshape(src.shape), *statistics


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_layouts_that_are_confused_are_named():
    with pytest.raises(AssertionError, match="\nas if layouts are confused\n"):
        check_forward(confused, quick=True)


def test_all_explanations_are_said_unless_they_are_many(rng):
    zeroes = kernel_of("backward", ("return", "diff_src[8:] = 0; return"))
    text = "as if the last rows after a multiple of {} are 0\n"
    with pytest.raises(AssertionError, match="\n" + "or ".join(map(text.format, (2, 4, 8)))):
        check_backward(zeroes, rng.standard_normal((9, 3)))
    with pytest.raises(AssertionError) as raised:
        check_backward(zeroes, rng.standard_normal((15, 3)))
    assert raised.value.report.as_if == ["the last rows after a multiple of 8 are 0"]
    zeroes = kernel_of("backward", ("return", "diff_src[256:] = 0; return"))
    with pytest.raises(AssertionError) as raised:
        check_backward(zeroes, rng.standard_normal((260, 3)))
    assert len(raised.value.report.as_if) > 3
    assert "as if" not in str(raised.value)


#: Cases of src near both ends of its dtype.
BOTH_ENDS = "large and small src", "large or small src in planes"
CUBED = """
    gamma, dy, M = number.type(1) if gamma is None else gamma, diff_dst, number.type(M)
    rstd = 1 / np.sqrt(variance + number.type(epsilon))
    through_variance = (dy * gamma * (src - mean)).sum(axes) * number.type(-0.5) * rstd**3
    through_mean = -(dy * gamma * rstd).sum(axes)
    diff_src = dy * gamma * rstd + through_variance * 2 * (src - mean) / M + through_mean / M
    return diff_src, (dy * (src - mean) * rstd).sum(axes), dy.sum(axes)
"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", ["float32", "float64"])
def test_what_overflows_on_the_way_is_neither_right_nor_wrong(data):
    """The cube of rstd is 0 where src is large, and Inf where it is small and epsilon 0."""
    report = check_backward(kernel_from(CUBED), dtypes=data, quick=True)
    in_range = {name for name, verdict in report.verdicts.items() if verdict == "range"}
    assert in_range == {f"{name}, {data}" for name in BOTH_ENDS}
    assert re.fullmatch(r"2 range, \d\d right", report.summary)
    assert "a product overflows or underflows on the way:" in str(report)
    with pytest.raises(AssertionError, match="2 wrong"):
        check_backward(kernel_from(CUBED), dtypes=data, quick=True, arithmetic="double")
    clips = CUBED.replace("return diff_src", "return np.clip(diff_src, -1e-20, 1e-20)")
    with pytest.raises(AssertionError) as raised:  # the same mistake everywhere
        check_backward(kernel_from(clips), dtypes=data, quick=True)
    assert "range" not in raised.value.report.summary


def node_by_node(src, diff_dst, mean, variance, gamma, epsilon):
    """What jax.vjp gives of the textbook's forward pass, which makes its own statistics."""
    axes, n = tuple(range(src.ndim - 1)), np.float32(max(1, src[..., 0].size))
    centered = src - src.mean(axes)
    spread = (centered * centered).mean(axes) + np.float32(epsilon)
    rstd = 1 / np.sqrt(spread)
    scaled = diff_dst if gamma is None else diff_dst * gamma
    through = (scaled * centered).sum(axes) * (rstd / spread) * centered / n
    diff_centered = scaled * rstd - through
    diff_src = diff_centered - diff_centered.mean(axes)
    return diff_src, (diff_dst * centered * rstd).sum(axes), diff_dst.sum(axes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_term_that_became_0_is_range_even_within_weak_limits():
    """Those of a kernel's own statistics are so wide that what lacks a term is within them."""
    report = check_backward(node_by_node, own_statistics=True, quick=True)
    in_range = {name for name, verdict in report.verdicts.items() if verdict == "range"}
    assert in_range == {f"{name}, float32" for name in BOTH_ENDS}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e14, 3e14, 1e15, 1e16])
def test_a_term_with_a_subnormal_factor_is_range(rng, scale):
    """Of such data, r / v is about 1e-45: it has one bit, or none."""
    src, diff_dst = rng.standard_normal((2, 150, 1), np.float32)
    src *= np.float32(scale)
    options = {"gamma": np.ones(1, np.float32), "own_statistics": True}
    report = check_backward(node_by_node, src, diff_dst, **options)
    assert {*report.verdicts.values()} <= {"range", "right"}
    wrong = partial(changed_src, lambda diff_src: 5 * diff_src)
    with pytest.raises(AssertionError, match="1 wrong"):
        check_backward(wrong, src, diff_dst, **options)


def changed_src(change, *arrays, **options):
    diff_src, *sums = node_by_node(*arrays, **options)
    return change(diff_src), *sums


POWER = """
    x, dy, M = src.astype(vector), diff_dst.astype(vector), vector(M)
    gamma, spread = vector(1) if gamma is None else gamma, variance + vector(epsilon)
    rstd = 1 / np.sqrt(spread)
    d_variance = (dy * gamma * (x - mean)).sum(axes) * vector(-0.5) * spread ** vector(-1.5)
    diff_mean = (dy * gamma).sum(axes) * rstd
    diff_src = dy * gamma * rstd + d_variance * 2 * (x - mean) / M - diff_mean / M
    return diff_src.astype(number), (dy * (x - mean) * rstd).sum(axes), dy.sum(axes)
"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_power_that_underflows_is_range_in_every_dtype(data):
    """Of 16 bits, what is left without the term was rounded where it lies."""
    report = check_backward(kernel_from(POWER), dtypes=data, quick=True)
    assert ("range" in report.verdicts.values()) == (data != "float16")


def test_range_excuses_no_result_without_such_a_product():
    """A sum of diff_dst has none, whatever src is; nor have mean and variance."""

    def nan_where_far(variance):
        return np.where((variance > 1e20) | ((variance > 0) & (variance < 1e-20)), np.nan, 1)

    def gradient(*arrays, epsilon):
        diff_src, diff_gamma, diff_beta = MINE(*arrays, epsilon=epsilon)
        return diff_src, diff_gamma, diff_beta * nan_where_far(arrays[3])

    for name in BOTH_ENDS:
        failing(check_backward, gradient, name, "diff_beta", quick=True)
    spoiled = "variance = np.where(gamma is None or abs(weight) < 1e-30, np.nan, variance)"
    forward = kernel_of("forward", ("return", f"{spoiled}; return"))
    failing(check_forward, forward, "large and small gamma", "variance", quick=True)


@pytest.mark.whole
def test_a_variance_about_the_first_element_is_weaker_at_most():
    """As fast kernels shift their data; where few rows count, it may be far from the mean."""

    def shifted(src, gamma, beta, epsilon):
        axes, n = tuple(range(src.ndim - 1)), np.float32(max(1, src[..., 0].size))
        pivot = src.reshape(-1, src.shape[-1])[0] if src.size else 0 * src.sum(axes)
        first, second = ((src - pivot).sum(axes) / n, ((src - pivot) ** 2).sum(axes) / n)
        mean, variance = pivot + first, np.maximum(second - first * first, 0)
        scale = (1 if gamma is None else gamma) / np.sqrt(variance + np.float32(epsilon))
        return (src - mean) * scale + (0 if beta is None else beta), mean, variance

    assert check_forward(shifted, arithmetic="any", skip="300 x 300").passed
    src = np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)
    src[0] = 60
    assert check_forward(shifted, src, arithmetic="any").passed


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_sign_of_inf_of_a_centered_gradient(rng):
    """Where src has Inf, semantics.md has Inf of either sign."""
    src, diff_dst = rng.standard_normal((2, 9, 4)).astype(np.float32)
    src[2, 1], diff_dst = np.inf, diff_dst + 3
    diff_dst[2] = 1  # below the mean
    centers = "dy = dy - dy.sum(axes) / M; through = xhat * (dy * xhat).sum(axes) / M"
    kernel = kernel_of("backward", ("through = (diff_beta + xhat * diff_gamma) / M", centers))
    assert check_backward(kernel, quick=True, arithmetic="any").passed
    assert check_backward(kernel, src, diff_dst, arithmetic="any").passed
    (finding,) = failing(check_backward, kernel, src=src, diff_dst=diff_dst, arithmetic="double")
    assert finding.got == -finding.expected == -np.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("power", [-40, 40])
def test_what_overflows_or_underflows_in_other_operations(rng, power):
    src, diff_dst, g = rng.standard_normal((3, 9, 4)).astype(np.float32)
    src *= np.float32(2.0**power)
    single = "np.longdouble", "np.float32"
    gamma = np.full(4, 2.0 ** (95 if power > 0 else -115), np.float32)
    factors = "weight * rstd * (x - mean)", "weight * (x - mean) * rstd"
    options = {"mean": src.mean(0), "variance": src.var(0), "is_training": False}
    for name, arguments in ("forward", {}), ("inference", options):
        kernel = kernel_of(name, single, factors)
        report = check_forward(kernel, src, gamma, gamma, epsilon=0, **arguments)
        assert report.verdicts == {"data": "range"}
    powers = "weight * r**2 * through", "weight * r**4 * (through / r**2)"
    options = {"diff_diff_src": g, "diff_diff_gamma": np.full(4, 2.0**-40), "epsilon": 0}
    report = check_double_backward(kernel_of("double", single, powers), src, diff_dst, **options)
    assert report.verdicts == {"data": "range"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float16_sums_are_named():
    rounds = """
    gamma = number.type(1) if gamma is None else gamma.astype(number)
    mean, variance, dy = mean.astype(number), variance.astype(number), diff_dst
    rstd = 1 / np.sqrt(variance + number.type(epsilon))
    xhat = (src - mean) * rstd
    diff_gamma, diff_beta = (dy * xhat).sum(axes, dtype=number), dy.sum(axes, dtype=number)
    diff_src = gamma * rstd * (dy - (diff_beta + xhat * diff_gamma) / number.type(M))
    return diff_src, diff_gamma.astype(vector), diff_beta.astype(vector)
"""
    options = {"dtypes": "float16", "quick": True}
    with pytest.raises(AssertionError, match=r"^4\d of .*(\n.*)+ float16 sums") as raised:
        check_backward(kernel_from(rounds), **options)
    assert {finding.verdict for finding in raised.value.report.failures} == {"weaker"}
    assert check_backward(kernel_from(rounds), arithmetic="float16", **options).passed
    forgets = rounds.replace("diff_beta + xhat", "xhat")
    with pytest.raises(AssertionError) as raised:
        check_backward(kernel_from(forgets), **options)
    verdicts = {e.verdict for e in raised.value.report.failures if e.result == "diff_src"}
    assert verdicts == {"wrong"}


@pytest.mark.parametrize("relu", [False, True])
def test_an_addition_of_its_own_in_bfloat16_is_named(relu):
    pytest.importorskip("ml_dtypes")

    def twice(src, *vectors, epsilon, src_1, sign=1):
        results = bn_ext.batch_norm_training(src, *vectors, epsilon=epsilon, data_format="NXC")
        dst = results.dst + sign * src_1
        return np.where(dst <= 0, 0 * dst, dst) if relu else dst

    options = {"add": True, "relu": relu, "dtypes": "bfloat16", "quick": True}
    with pytest.raises(AssertionError, match="bfloat16 sums have it:") as raised:
        check_forward(twice, **options)
    assert {finding.verdict for finding in raised.value.report.failures} == {"weaker"}
    assert check_forward(twice, arithmetic="bfloat16", **options).passed
    with pytest.raises(AssertionError, match="wrong"):
        check_forward(partial(twice, sign=-1), arithmetic="bfloat16", **options)


def test_a_flush_on_the_way_may_leave_a_normal_number():
    """Of terms near the smallest normal number: where the right result is subnormal, one that is
    not 0 says nothing of others that are.
    """

    def flush(a):
        return np.where(abs(a) < 2.0**-126, 0, a)

    def kernel(src, diff_dst, mean, variance, gamma, epsilon):
        results = MINE(src, flush(diff_dst), mean, variance, gamma, epsilon=epsilon)
        diff_src = flush(results[0])
        lost = (results[0] != 0) & (abs(results[0]) < 2.0**-126)
        diff_src[lost] = np.copysign(2.0**-125, results[0][lost])  # within limits
        flushed.append(lost.sum())
        return diff_src, *results[1:]

    flushed: list[int] = []
    report = check_backward(kernel, skip=all_but("large and small diff_dst"))
    assert flushed[0] > 0
    assert report.summary.startswith("1 right; subnormal numbers are 0")


def test_zeros_beside_subnormal_numbers_are_no_flush():
    """A channel that is missing, where all that is right is subnormal."""
    zeroes = kernel_of("backward", ("return", "diff_src[..., -1:] = 0; return"))
    report = run(
        zeroes, standard_cases(Kind("backward"), skip=[*{*RECIPES} - {"large and small diff_dst"}])
    )
    assert report.summary == "1 wrong"
    zeroes = kernel_of("forward", ("return", "dst[..., -1:] = 0; return"))
    report = run(zeroes, standard_cases(Kind("training"), quick=True))
    assert report.verdicts["subnormal src, float32"] == "wrong"
    assert "subnormal" not in report.summary


def test_a_row_that_a_double_backward_loses_is_found():
    case = case_of(Kind("double_backward"), "70 002 rows of whole numbers")
    assert not is_wrong(kernel_of("double"), [case])
    sums = "dy", "g", "(dy * g)", "(dy * xhat)", "(g * xhat)"
    for row, terms in zip(itertools.cycle((12_345, 69_999)), sums, strict=False):
        lost = f"{terms}.sum(axes)", f"np.delete({terms}, {row}, 0).sum(0)"
        assert is_wrong(kernel_of("double", lost), [case])


def test_a_row_that_only_diff_src_loses_is_found():
    """Of the sums that are not returned; no case but the longest shows it."""

    def kernel(src, diff_dst, mean, variance, gamma, epsilon, *, lost, of_dy=True):
        rstd = 1 / np.sqrt(variance + np.float64(epsilon))
        xhat = (src - mean) * rstd
        sums = [diff_dst.sum(0, np.float64), (diff_dst * xhat).sum(0)]
        kept = [*sums]
        kept[not of_dy] = kept[not of_dy] - (diff_dst * (1 if of_dy else xhat))[lost].sum(0)
        diff_src = gamma * rstd * (diff_dst - (kept[0] + xhat * kept[1]) / len(src))
        return diff_src.astype(src.dtype), sums[1], sums[0]

    case = case_of(Kind("backward"), "70 002 rows of whole numbers")
    assert not is_wrong(partial(kernel, lost=[]), [case])
    for row, of_dy in itertools.product((8198, 12_345, 69_999), (True, False)):
        assert is_wrong(partial(kernel, lost=[row], of_dy=of_dy), [case])


def test_a_row_that_a_variance_loses_or_has_twice_is_found():
    def kernel(src, gamma, beta, epsilon, *, row=0, factor=1):
        src = src.astype(np.float64)
        squares = (src - src.mean(0)) ** 2
        squares[row] *= factor
        variance = squares.mean(0)
        dst = gamma * (src - src.mean(0)) / np.sqrt(variance + epsilon) + beta
        return dst.astype(np.float32), src.mean(0), variance

    case = case_of(Kind("training"), "each of 70 016 rows in a channel")
    assert not is_wrong(kernel, [case])
    for row, factor in ((9423, 0), (20_000, 2), (47_989, 0)):
        assert is_wrong(partial(kernel, row=row, factor=factor), [case])


SCRIPTED = """
import numpy as np
def tail(src, diff_dst, mean, variance, gamma, epsilon):
    rstd, axes = 1 / np.sqrt(variance + epsilon), tuple(range(src.ndim - 1))
    xhat, rows = (src - mean) * rstd, max(1, src[..., 0].size)
    diff_gamma, diff_beta = (diff_dst * xhat).sum(axes), diff_dst.sum(axes)
    diff_src = (1 if gamma is None else gamma) * rstd * (
        diff_dst - (diff_beta + xhat * diff_gamma) / rows)
    diff_src.reshape(-1, src.shape[-1])[rows // 4 * 4 :] = 0
    return diff_src.astype(src.dtype), diff_gamma, diff_beta
def right(*given, epsilon):
    import bn_ext
    return bn_ext.batch_norm_backward(*given, epsilon=epsilon, data_format="NXC")
def clipped(*given, epsilon):
    diff_src, *sums = right(*given, epsilon=epsilon)
    return np.clip(diff_src, -1e30, 1e30), *sums
"""


NOW_RIGHT = "right: it was mended, or is wrong only after other calls (does it keep a state?)"


def test_the_smallest_program(tmp_path, capsys):
    (tmp_path / "my_tail.py").write_text(SCRIPTED)
    out = tmp_path / "out.py"
    place = f"{tmp_path / 'my_tail.py'}:tail"
    status, _, err = command(capsys, "check", place, "--quick", "--script", str(out))
    assert (status, err) == (1, "")
    text = out.read_text()
    assert len(text.splitlines()) <= 40
    assert re.search(r"\nsrc = np.array\(\[\[-?[\d.]+\], \[-?[\d.]+\]", text), text  # one channel
    assert len(re.search("\nsrc = (.*)", text)[1]) < 80
    done = python(out)
    assert done.returncode == 1
    assert done.stdout.startswith("diff_src, got:\n")
    assert not done.stderr
    (tmp_path / "my_tail.py").write_text(SCRIPTED.replace("[rows // 4 * 4 :] = 0", "[:0] = 0"))
    done = python(out)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, NOW_RIGHT)
    clipped = place.replace(":tail", ":clipped")
    assert command(capsys, "check", clipped, "--skip", "large", "--script", str(out))[0] == 1
    assert ("inf" in out.read_text().split("right = ")[1], python(out).returncode) == (True, 1)
    right = place.replace(":tail", ":right")
    status, _, err = command(capsys, "check", right, *FEW, "--script", str(out))
    assert (status, "no number is wrong" in err) == (0, True)


def test_a_program_of_a_function_that_keeps_a_state_says_what_it_is(tmp_path, capsys):
    """Its first call is right, since it returns sums of the call before."""
    (tmp_path / "keeps.py").write_text("""
import bn_ext
last = []
def gradient(*given, epsilon):
    results = bn_ext.batch_norm_backward(*given, epsilon=epsilon, data_format="NXC")
    before, last[:] = [*last], results[1:]
    stale = [a.shape for a in before] == [a.shape for a in last]
    return results[0], *(before if stale else last)
""")
    out, place = tmp_path / "out.py", f"{tmp_path / 'keeps.py'}:gradient"
    assert command(capsys, "check", place, "--quick", "--script", str(out))[0] == 1
    done = python(out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == NOW_RIGHT


def test_the_smallest_program_of_a_report():
    wrong = kernel_of("forward", ("+ offset", ""))
    with pytest.raises(AssertionError) as raised:
        check_forward(wrong, quick=True)
    start = time.monotonic()
    text = raised.value.report.script()
    assert time.monotonic() - start < 10
    assert "function = ...  # kernel goes here" in text
    assert 'beta = np.array([1.0]).astype("float32")' in text
    with pytest.raises(ValueError, match="^script: expected a report with wrong numbers"):
        check_backward(MINE, quick=True).script()


class Stateful:
    def __call__(self, *arrays, epsilon):
        return 2 * arrays[1]


@pytest.mark.parametrize(("function", "name"), [
    (lambda *arrays, epsilon: 2 * arrays[1], "<lambda>"), (Stateful(), "the function"),
    (changed(lambda a: 2 * a), "changed.<locals>.gradient"),
])  # fmt: skip
def test_the_smallest_program_of_what_cannot_be_imported(tmp_path, function, name):
    """As it is, it says what to do; the status is that of wrong usage."""
    with pytest.raises(AssertionError) as raised:
        check_backward(function, ROWS)
    text = raised.value.report.script()
    assert f"\nfunction = ...  # {name} goes here\n" in text
    assert len(text.splitlines()) <= 40
    (tmp_path / "out.py").write_text(text)
    done = python(tmp_path / "out.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "function = ...: put the function in place of ...\n"


@pytest.mark.parametrize(
    "name", ['"""\nprint("hello")\n"""', "\x1b[31m", "ends in \\", '"', "\ud800", ""]
)
def test_a_name_cannot_change_a_program(tmp_path, name):
    """It is anything that someone assigns to __qualname__."""

    def function(*arrays, epsilon):
        return 2 * arrays[1]

    function.__qualname__ = name
    with pytest.raises(AssertionError) as raised:
        check_backward(function, ROWS)
    text = raised.value.report.script()
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) <= 40
    (tmp_path / "out.py").write_text(text)
    done = python(tmp_path / "out.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert ast.get_docstring(ast.parse(text), clean=False).startswith(name or "function")


def test_the_smallest_program_of_a_function_of_a_package(tmp_path, monkeypatch):
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "mine.py").write_text("""
def batch_alone(src, *vectors, epsilon, **old):
    import bn_ext
    results = bn_ext.batch_norm_training(src, *vectors, epsilon=epsilon, data_format="NXC")
    return *results, *results[1:]
""")
    monkeypatch.syspath_prepend(tmp_path)
    from my_package.mine import batch_alone

    with pytest.raises(AssertionError) as raised:
        check_forward(batch_alone, correction=0, quick=True)
    script = tmp_path / "out.py"
    script.write_text(raised.value.report.script())
    done = python(script)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.match("running_(mean|variance), got:\n", done.stdout)


def run_with(text, function):
    """The exit status of a program with another function in its place."""
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("inf, nan"))
    code = "\n".join(["import sys", "import numpy as np", *lines[start:]])
    with pytest.raises(SystemExit) as raised:
        exec(code, {"function": function})
    return raised.value.code


def with_running(function, correction=1, kept=lambda new: new):
    def kernel(src, gamma, beta, epsilon, running_mean, running_variance):
        results = function(src, gamma, beta, epsilon=epsilon)
        m = src.size // src.shape[-1]
        _, mean, variance = (np.float64(a) for a in results)
        new = kept(variance * m / max(1, m - correction)), running_mean, running_variance
        running = 0.75 * new[1] + mean / 4, 0.75 * new[2] + new[0] / 4
        return *results, *(a.astype(running_mean.dtype) for a in running)

    return kernel


def infinite_mean(*arrays, epsilon, largest=np.inf):
    dst, mean, variance = kernel_of("forward")(*arrays, epsilon)
    return dst, np.clip(mean, -largest, largest), variance


FORWARD = kernel_of("forward")
#: What a program is of: the check, a wrong function, and a right one.
PROGRAMS = {
    "no elements": (
        check_backward,
        kernel_of("backward", ("return", "diff_beta = diff_beta / x[..., 0].size; return")),
        kernel_of("backward"),
    ),
    "one row and a correction": (
        partial(check_forward, correction=1), with_running(FORWARD, 0), with_running(FORWARD)),
    "an infinite mean": (check_forward, partial(infinite_mean, largest=3e38), infinite_mean),
    "Inf of either sign": (
        check_backward,
        kernel_of("backward", ("return", "diff_src[np.isinf(diff_src)] = 7; return")),
        kernel_of("backward", ("return", "diff_src[np.isinf(diff_src)] *= -1; return")),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_right_about_right_functions(name, capsys):
    check, wrong, right = PROGRAMS[name]
    options = {"quick": True}
    if name == "no elements":
        options["skip"] = all_but("empty batch", "two axes")
    if name == "Inf of either sign":
        options["skip"] = all_but("Inf in src", "two axes")
    with pytest.raises(AssertionError) as raised:
        check(wrong, **options)
    text = raised.value.report.script()
    assert (run_with(text, wrong), run_with(text, right)) == (1, 0)


@pytest.mark.parametrize("variance", [0, np.nan])
def test_one_row_of_ones_own_has_no_correction(variance):
    """Packages differ in what 0 / 0 is."""
    kernel = with_running(FORWARD, kept=lambda new: new + variance)
    report = check_forward(kernel, np.ones((1, 3), np.float32), correction=1)
    assert "running_variance" not in {finding.result for finding in report.findings}
    assert "running_mean" in {finding.result for finding in report.findings}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_wrong_numbers_of_an_empty_batch_are_reported():
    kernel = kernel_of("backward", ("return", "diff_gamma = diff_gamma + 3 * (not x.size); return"))
    (finding, *_) = failing(check_backward, kernel, "empty batch", "diff_gamma", quick=True)
    assert finding.got == 3


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_correction_of_many_elements(wrong):
    """There, it is less than rounding of a variance; but that is the same in what is returned."""

    def kernel(*arrays, correction, **options):
        m = arrays[0].size // arrays[0].shape[-1]
        of_many = correction if m < 10_000 else wrong
        return with_running(bn_ext_forward, of_many)(*arrays, **options)

    right = 1 - wrong
    whole = all_but("70 002 rows", "8198 rows")
    for correction, is_right in ((wrong, True), (right, False)):
        check = partial(check_forward, correction=correction, skip=whole)
        if is_right:
            assert check(partial(kernel, correction=correction)).passed
            continue
        (finding,) = failing(check, partial(kernel, correction=correction), "70 002 rows")
        assert finding.reason.startswith(f"the variance is divided by n{' - 1' * wrong}; right: by")


def bn_ext_forward(*arrays, epsilon):
    return bn_ext.batch_norm_training(*arrays, epsilon=epsilon, data_format="NXC")


def test_a_forward_pass_may_return_dst_and_running_statistics():
    def alone(*arrays, **options):
        dst, _, _, *running = with_running(FORWARD)(*arrays, **options)
        return dst, *running

    report = check_forward(alone, correction=1, quick=True)
    assert {finding.result for finding in report.findings} == {
        "dst", "running_mean", "running_variance",
    }  # fmt: skip
    with pytest.raises(AssertionError) as raised:
        check_forward(alone, correction=0, quick=True)
    found = {(finding.case, finding.result) for finding in raised.value.report.failures}
    assert ("two axes, float32", "running_variance") in found
    text = raised.value.report.script()
    right = with_running(FORWARD, 0)
    assert (run_with(text, alone), run_with(text, right)) == (1, 0)


@pytest.mark.parametrize("name", ["by address", "odd elements"])
def test_kernels_that_are_wrong_by_address_are_found(name):
    """What is kept by address and shape is old; and not all arrays are aligned."""
    sums = {}

    def kernel(src, diff_dst, *vectors, epsilon):
        diff_src, *others = MINE(src, diff_dst, *vectors, epsilon=epsilon)
        if name == "by address":
            key = src.ctypes.data, diff_dst.ctypes.data, src.shape
            others = sums.setdefault(key, others)
        elif src.ctypes.data % 16:
            diff_src = diff_src + 1
        return diff_src, *others

    for data_format in ("NXC", "NCX")[: 2 if name == "odd elements" else 1]:
        with pytest.raises(AssertionError, match=" wrong, ") as raised:
            check_backward(kernel, quick=True, data_format=data_format)
        counts = [*raised.value.report.verdicts.values()]
        assert counts.count("wrong") >= 2
        assert counts.count("right") >= 2


def test_results_may_be_arguments():
    """As the gradient of what is added: a later call changes such memory."""
    adds = kernel_of("backward", ('dy = np.where(by_name["dst"] <= 0, 0, dy)', "pass"))

    def kernel(src, diff_dst, *vectors, dst, epsilon):
        gated = diff_dst if (dst > 0).all() else np.where(dst <= 0, 0, diff_dst)
        return *adds(src, gated, *vectors, epsilon=epsilon, dst=dst), gated

    assert check_backward(kernel, relu=True, add=True, quick=True).passed

    def passes_through(src, mean, variance, gamma, beta, epsilon):
        return src

    report = run(passes_through, standard_cases(Kind("inference", is_training=False), quick=True))
    assert not any("overwrites" in finding.reason for finding in report.findings)


#: What a hostile function returns in place of each result.
HOSTILE = {
    "long doubles": lambda shape: np.ones(shape, np.longdouble),
    "complex numbers": lambda shape: np.ones(shape, complex),
    "NaN": lambda shape: np.full(shape, np.nan, np.float32),
    "huge numbers": lambda shape: np.full(shape, 3e38, np.float32),
    "no array": lambda shape: object(),
    "float16": lambda shape: np.ones(shape, np.float16),
}
#: src of one's own, of each of which a formula could divide by 0.
OWN = {
    "no elements": np.ones((3, 0, 2), np.float32), "one element": np.ones((1, 1, 1), np.float32),
    "one row of float64": np.zeros((1, 3)), "Inf": np.full((2, 5, 2), np.inf),
    "the standard cases": None,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("kind", HOSTILE)
def test_the_judge_ends_in_no_error_of_its_own(kind, own):
    options = {"quick": True, "skip": all_but("two axes", "empty batch", "one row")}
    options = options if OWN[own] is None else {"src": OWN[own], "epsilon": 0}
    checks = [
        (partial(check_forward, correction=1), 5), (partial(check_forward, relu=True, add=True), 3),
        (check_backward, 3), (partial(check_backward, relu=True, add=True), 4),
        (check_double_backward, 3),
    ]  # fmt: skip
    for check, count in checks:

        def function(src, *arrays, count=count, **others):
            shapes = [src.shape, *[src.shape[-1:]] * (count - 1)]
            return tuple(HOSTILE[kind](shape) for shape in shapes)

        try:
            report = check(function, **options)
        except AssertionError as error:
            report = error.report
        assert report.summary
        assert report.failures or own in ("no elements", "Inf")  # of which little can be said


def test_a_program_of_float64_data():
    with pytest.raises(AssertionError) as raised:
        check_backward(lambda *arrays, epsilon: 2 * arrays[1], np.array([[1.0, 2], [3, 5], [4, 4]]))
    compile(raised.value.report.script(), "program", "exec")


def test_a_report_of_a_right_kernel_is_its_summary():
    report = check_backward(MINE, quick=True)
    assert repr(report) == report.summary == "45 right"
    assert repr(Report()) == "nothing was judged"


def test_wider_results_are_noted():
    report = check_backward(lambda *a, **k: [np.float64(b) for b in MINE(*a, **k)], quick=True)
    assert report.summary == "45 right; float64 results of float32 data"
    report = check_backward(lambda *a, **k: [np.float32(b) for b in MINE(*a, **k)], quick=True,
                            dtypes="float16")  # fmt: skip
    assert report.summary == "45 right; float32 results of float16 data"


@pytest.mark.parametrize("check", [check_forward, check_backward, check_double_backward])
def test_help_starts_with_the_sentence(check):
    head = pydoc.plain(pydoc.render_doc(check)).partition("Assert that")[0]
    assert len(head) < 1100
    assert "Union" not in head
    assert "numpy._typing" not in head


def test_progress_on_a_terminal(monkeypatch, capsys):
    """Of what takes longer than two seconds, a single call, too."""

    def slow(*arrays, **options):
        time.sleep(0.1)
        return MINE(*arrays, **options)

    def very_slow(*arrays, **options):
        time.sleep(2.5)
        return MINE(*arrays, **options)

    few = [name for name in RECIPES if name not in ("two axes", "three axes")]
    check_backward(slow, quick=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    check_backward(slow, quick=True, skip=few)
    assert capsys.readouterr().err == ""
    for function, skip, count in ((slow, (), r"\d\d"), (very_slow, few, "0")):
        check_backward(function, quick=True, skip=skip)
        err = capsys.readouterr().err
        assert re.match(f"\r\x1b\\[K{count} cases, ", err)
        assert err.endswith("\r\x1b[K")


def test_a_case_can_be_skipped_by_the_name_in_a_report():
    first, *others = (case.name for case in standard_cases(Kind("backward"), quick=True))
    left = standard_cases(Kind("backward"), quick=True, skip=first)
    assert [case.name for case in left] == others
