"""The judge is judged: limits, cases and verdicts of bn_ext.testing."""

import itertools
import re
from functools import cache, partial

import numpy as np
import pytest
from cases import DATA_DTYPES
from needs import LONG_DOUBLE
from remembered import KINDS, _remembered, case_of, is_wrong, long_double, solved  # noqa: F401
from weak_kernels import SUMS, Kernels

import bn_ext
from bn_ext.testing import Report, check_backward
from bn_ext.testing._case import OPERANDS, Case, Kind
from bn_ext.testing._cases import RECIPES, standard_cases
from bn_ext.testing._exact import ARITHMETICS
from bn_ext.testing._report import Finding, call, compared, judged, run

pytestmark = [pytest.mark.fast, pytest.mark.any_level]


def functions(kernels):
    backward = kernels.backward
    functions = {"training": kernels.training, "inference": kernels.inference, "backward": backward}
    functions |= {"frozen": partial(backward, frozen=True), "own": partial(backward, own=True)}
    return functions | {"double": kernels.double_backward}


@cache
def standard(name):
    """All standard cases of one of KINDS in float32, whose right results are computed once."""
    return [*standard_cases(KINDS[name])]


@cache
def right_gradients():
    """{case: what a right kernel returns} of the standard cases: they pass in any arithmetic."""
    kernel, cases = functions(Kernels(SUMS["wide"]))["backward"], standard("backward")
    assert not run(kernel, cases, arithmetic="double").failures
    return {case.name: call(kernel, case) for case in cases}


def failing(kernel, cases, arithmetic="float32"):
    """The names of the standard cases of a gradient in which it fails. Nothing is judged whose bits
    are the right kernel's; and nobody searches for what explains the others.
    """
    for case in cases:
        results, right = call(kernel, case), right_gradients()[case.name]
        if isinstance(results, Finding):
            yield case.name.rpartition(",")[0]
            continue
        bits = (np.asarray(results[name]).tobytes() == right[name].tobytes() for name in right)
        if not all(bits) and {"wrong", "weaker"} & {
            finding.verdict for finding in judged(case, results, arithmetic=arithmetic)
        }:
            yield case.name.rpartition(",")[0]


RIGHT = [
    *({"add": add} for add in SUMS.values()),
    {"add": SUMS["tree"], "fused": True},
    {"add": SUMS["row_after_row"], "moments": "Welford"},
    {"add": SUMS["shuffled"], "moments": "merged"},
]
FOLDED = [
    {"add": SUMS["tree"], "folded": True},
    {"add": SUMS["shuffled"], "folded": True, "fused": True},
    {"add": SUMS["row_after_row"], "folded": True, "moments": "squares"},
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_right_kernels_pass_in_any_order_of_sums(data, rng):
    """In the arithmetic of their data; tried once with 200 orders each and all cases."""
    for styles, kind_of_arithmetic in ((RIGHT, "float32"), (FOLDED, "any")):
        # Others than float32 change the unit, or the last rounding.
        for options in styles[:: {"float32": 1, "float64": 5}.get(data, 8)]:
            seed = int(rng.integers(1000))
            for name, function in functions(Kernels(seed=seed, **options)).items():
                cases = standard_cases(KINDS[name], data, quick=True)
                report = run(function, cases, arithmetic=kind_of_arithmetic)
                assert not report.failures, f"{options} {seed} {name}\n{report}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["training", "inference", "backward", "own"])
def test_folded_kernels_are_named_by_default(name):
    cases = standard_cases(KINDS[name], quick=True)
    report = run(functions(Kernels(**FOLDED[2]))[name], cases)
    assert {finding.verdict for finding in report.failures} == {"weaker"}
    assert "weaker (folded constants or squares)" in report.summary


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_limits_end_where_they_say(name, data):
    """A right result that is moved by a bit less than a limit passes, by a bit more fails."""
    if data == "float64" and not LONG_DOUBLE:
        pytest.skip("doubles hold no bits of a limit of float64")
    for case in standard_cases(KINDS[name], data, skip=[*{*RECIPES} - {"three rows", "two axes"}]):
        for result, pair in solved(case).items():
            right, limits = map(long_double, pair)
            judge_with = partial(compared, case, result, right=pair[0], limits=pair[1])
            assert (limits[:-1] <= limits[1:]).all()
            assert len(limits) == (4 if data == "float16" else 3)
            for kind, limit in zip(ARITHMETICS, limits, strict=False):
                judge = partial(judge_with, arithmetic=kind)
                for sign in (-1, 1):
                    assert judge(right + sign * limit * 0.999).verdict == "right"
                    moved = right.copy()
                    moved.flat[-1] += sign * limit.flat[-1] * 1.001
                    finding = judge(moved)
                    wider = limits[-1].flat[-1] > limit.flat[-1] * 1.001
                    assert finding.verdict == ("weaker" if wider else "wrong")
                    assert 1 < finding.share < 1.01


def spoiled(change, name="backward"):
    """A right kernel whose results, and arguments, `change` may replace."""

    def kernel(src, *arguments, **options):
        function = functions(Kernels(SUMS["wide"]))[name]
        results = [np.array(a) for a in function(src, *arguments, **options)]
        return change(results, src) or results

    return kernel


def test_the_sign_of_inf_and_nan():
    """Sums may give NaN where Inf is right; the other sign is wrong, and so is NaN in bn_ext's."""
    case = case_of(KINDS["backward"], "-Inf in diff_dst")
    right = {name: values for name, (values, _) in solved(case).items()}
    infinite = {name: np.isinf(values) for name, values in right.items()}
    assert infinite["diff_gamma"].any()
    assert infinite["diff_beta"].any()
    for name in ("diff_gamma", "diff_beta"):
        for kind in ARITHMETICS:

            def verdict(value, name=name, kind=kind):
                values = np.where(infinite[name], value, right[name])
                return judged(case, {name: values}, arithmetic=kind)[0].verdict

            assert verdict(right[name]) == "right"
            assert verdict(-right[name]) == "wrong"
            assert verdict(1e30) == "wrong"
            assert verdict(np.nan) == ("weaker" if kind == "double" else "right")


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize(("limit", "verdict"), [(7e4, "right"), (6e4, "wrong")])
def test_results_that_may_overflow_may_be_inf_of_either_sign(value, limit, verdict):
    """bn_ext's own: two rows of float16, where the right value is 0 and its limit beyond 65504."""
    limits, result = np.full((3, 1), limit), np.float16([value])
    case = Case("", Kind("backward"), {"src": result}, 0)
    finding = compared(case, "diff_src", result, np.zeros(1), limits)
    assert finding.verdict == verdict


def test_a_narrower_vector_is_judged_as_what_it_is(rng):
    src = rng.standard_normal((20, 3))
    options = {"gamma": np.ones(3, np.float32), "arithmetic": "double"}
    check_backward(bn_ext.batch_norm_backward, src, **options)
    narrow = spoiled(lambda results, _: [a.astype("f2") for a in results])
    with pytest.raises(AssertionError, match="expected at least float32, .*got float16"):
        check_backward(narrow, src.astype("f4"), gamma=options["gamma"])


FOUR, TWO = (7, 2, 3, 5), (2000, 3)
PLACES = [
    (FOUR, np.s_[:], "all"),
    (FOUR, np.s_[..., 4], "channel 4 of 5"),
    (FOUR, np.s_[..., 2:], "channels 2 to 4 of 5"),
    (FOUR, np.s_[..., ::2], "3 of 5 channels"),
    (FOUR, np.s_[-1], "sample 6 of 7"),
    (FOUR, np.s_[2:6], "samples 2 to 5 of 7"),
    (FOUR, np.s_[:, 1, 1], "position 4 of 6"),
    (FOUR, np.s_[0, 1, 2, 3], "1 of 210, in channel 3 of 5"),
    (FOUR, np.s_[:, 0, 0, :2], "14 of 210, in channels 0 to 1 of 5"),
    (TWO, np.s_[-2:], "rows 1998 to 1999 of 2000"),
    (TWO, np.s_[:, 1], "channel 1 of 3"),
]


@pytest.mark.parametrize(("shape", "place", "text"), PLACES)
@pytest.mark.parametrize("axis", [-1, 1])
def test_which_elements_are_wrong_is_said(shape, place, text, axis):
    wrong = np.zeros(shape)
    wrong[place] = 1
    wrong = np.moveaxis(wrong, -1, axis)
    case = Case("", Kind("backward", "NXC" if axis < 0 else "NCX"), {"src": wrong}, 0)
    finding = compared(case, "diff_src", wrong, 0 * wrong, np.full((3, *wrong.shape), 0.1))
    assert finding.where == text


def test_one_mistake_is_one_row():
    def tail(results, src):
        results[0][..., src.shape[-1] // 4 * 4 :] = 7

    with pytest.raises(AssertionError) as raised:
        check_backward(spoiled(tail), quick=True)
    rows = [line for line in str(raised.value).splitlines() if "channel" in line]
    assert 1 <= len(rows) <= 3, raised.value


def refuses(*_, **__):
    raise ValueError(f"bad tensor at {id(object()):#x}{np.random.default_rng().integers(9)}")


def making(make):
    return spoiled(lambda results, src: [make(results[0]), *results[1:]])


@pytest.mark.parametrize("make", [None, lambda a: dict(enumerate(a)), np.ma.masked_array])
def test_messages_with_addresses_and_numbers_share_a_row(make):
    with pytest.raises(AssertionError) as raised:
        check_backward(making(make) if make else refuses, quick=True)
    assert str(raised.value).count("expected an array, got " if make else "bad tensor") == 1


def test_pointers_that_take_no_none_refuse_it():
    import ctypes

    def kernel(*arguments, epsilon):
        if arguments[4] is None:
            raise ctypes.ArgumentError("argument 5: TypeError: wrong type")
        return spoiled(lambda *_: None)(*arguments, epsilon=epsilon)

    assert "2 refused" in check_backward(kernel, quick=True).summary


def test_a_report_without_results_has_a_worst_finding():
    worst = Report().worst
    assert (worst.verdict, worst.reason) == ("not judged", "nothing was judged")
    assert not Report().passed


SIZES = 4, 8, 16


def has_part(name, is_part, share=0):
    """Is more than this share of the array's elements of this kind?"""
    return lambda case: (
        case.arrays.get(name) is not None
        and is_part(case.arrays[name].astype(np.longdouble)).sum() > share * case.src.size
    )


def are_images(which, src):
    """Has the array a plane, and is it so of the images, the plane and the channels?"""
    images, *plane, channels = src.shape
    return bool(plane) and bool(which(images, int(np.prod(plane)), channels))


def of_images(which):
    return lambda case: are_images(which, case.src)


def of_rows(which):
    return lambda case: case.src.ndim == 2 and bool(which(*case.src.shape))


#: Properties that a kernel may branch on; those of shapes have kernels of their own in ALONE.
PROPERTIES = {"channels and plane both large": of_images(lambda n, p, c: c >= 64 and p >= 64)}
for k in SIZES:
    PROPERTIES |= {
        f"rows in registers of {k}": of_rows(lambda n, c, k=k: n % k == 0),
        f"channels in registers of {k}": of_rows(lambda n, c, k=k: c % k == 0 and n > 4),
        f"images with channels in registers of {k}": of_images(lambda n, p, c, k=k: c % k == 0),
        f"planes in registers of {k}": of_images(lambda n, p, c, k=k: c > 1 and p % k == 0 < p),
    }
#: A kind of elements, the arrays that have it, and what the elements are.
PARTS = [
    ("a negative {}", "src diff_dst gamma beta mean", lambda a: a < 0),
    ("{} over 1", "src diff_dst gamma beta mean variance", lambda a: abs(a) > 1),
    ("a subnormal {}", "src diff_dst gamma mean", lambda a: (a != 0) & (abs(a) < 2.0**-126)),
    ("a NaN in {}", "src diff_dst gamma beta mean variance", np.isnan),
    ("an Inf in {}", "src diff_dst", np.isinf),
]
for title, names, is_part in PARTS:
    PROPERTIES |= {title.format(name): has_part(name, is_part) for name in names.split()}
for name in "src", "diff_dst", "diff_diff_src":
    PROPERTIES[f"{name} with many zeros"] = has_part(name, lambda a: a == 0, 0.3)
#: What a double backward has no limits for.
UNBOUNDED = "a subnormal", "an Inf"


@pytest.mark.parametrize("name", KINDS)
def test_every_property_stands_on_both_sides(name):
    cases, operands = [*standard_cases(KINDS[name])], OPERANDS[KINDS[name].operation]
    arrays = {array for operation in OPERANDS.values() for array in operation}
    for title, has in PROPERTIES.items():
        named = arrays.intersection(title.split())
        unbounded = name.startswith("double") and title.startswith(UNBOUNDED)
        if unbounded or (named and named.isdisjoint(operands)):
            continue
        assert 0 < sum(map(bool, map(has, cases))) < len(cases), title


def vectors_of(name, is_part):
    return lambda case: case.arrays.get(name) is not None and bool(is_part(case.arrays[name]).any())


def is_missing(name):
    return lambda case: name in case.arrays and case.arrays[name] is None


def far(name, side):
    """Numbers at that end of the range that a channel of ordinary numbers does not have."""
    ends = (2.0**40, np.inf) if side > 0 else (0, 2.0**-40)
    return has_part(name, lambda a: (ends[0] < abs(a)) & (abs(a) < ends[1]))


#: What kernels treat apart; each may go wrong in registers of channels or positions alone.
SPECIAL = {
    **{title: has for title, has in PROPERTIES.items() if title.startswith(("a NaN", "an Inf"))},
    **{f"no {name}": is_missing(name) for name in ("gamma", "beta")},
    "gamma 0": vectors_of("gamma", lambda a: a == 0),
    "a variance of 0": lambda case: bool((case.src.std(axis=(*range(case.src.ndim - 1),)) == 0)
                                         .any() if np.isfinite(case.src).all() else False),
    "epsilon 0": lambda case: case.epsilon == 0,
    **{f"{size} {name}": far(name, side) for name in ("src", "diff_dst", "gamma")
       for size, side in (("large", 1), ("small", -1))},
}  # fmt: skip
#: Widths, and layouts; a register has eight numbers.
PLACES = {
    "few channels": lambda case: case.src.shape[-1] < 8,
    "registers of channels": lambda case: case.src.shape[-1] >= 8,
    "no plane": lambda case: case.src.ndim == 2,
    "planes of a register and a rest": of_images(lambda n, p, c: p > 8 and p % 8),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_special_stands_at_each_width_and_in_planes(name):
    """So a kernel that is wrong in registers, and right one by one, or the other way, is found."""
    cases = [case for case in standard_cases(KINDS[name]) if case.src.size]
    arrays = {array for operation in OPERANDS.values() for array in operation}
    for title, has in SPECIAL.items():
        named = arrays.intersection(title.split())
        no_limits = "an Inf", "large", "small", "a variance of 0"
        is_far = name.startswith("double") and title.startswith(no_limits)
        if is_far or (named and named.isdisjoint(OPERANDS[KINDS[name].operation])):
            continue
        special = [case for case in cases if has(case)]
        for place, is_there in PLACES.items():
            assert any(map(is_there, special)), f"{title}: {place}"


def zeroed(where):
    def kernel(*arguments, epsilon):
        function = functions(Kernels(SUMS["wide"]))["backward"]
        results = [np.array(a) for a in function(*arguments, epsilon)]
        results[0][where(*arguments, epsilon) & np.ones(arguments[0].shape, bool)] = 0
        return results

    return kernel


def shape(which):
    """The same where the shape (N, plane, C) says so."""
    return zeroed(lambda x, *_: are_images(which, x))


def rows(which):
    """The same where the number of rows and channels says so."""
    return zeroed(lambda x, *_: x.ndim == 2 and which(*x.shape))


def replaced(change):
    return lambda *arguments, epsilon: functions(Kernels(SUMS["wide"]))["backward"](
        *change(*arguments, epsilon)
    )


def changed(place, change):
    """A kernel that changes one of its arguments first, unless it is None."""

    def all_changed(*arguments):
        arguments = [*arguments]
        if arguments[place] is not None:
            arguments[place] = change(arguments[place])
        return arguments

    return replaced(all_changed)


def flush(a):
    return np.where(abs(a) < 2.0**-126, 0, a)


def without_small(x):
    return np.where((abs(x) < 2.0**-14) & (abs(x).max(initial=0) > 0.1) & (len(x) == 40), 0, x)


def few_added(x, dy, mean, variance, gamma, epsilon):
    def total(a, _):
        parts = [SUMS["row_after_row"](a[k : k + 40], None) for k in range(0, len(a), 40)]
        return np.sum(parts, axis=0, dtype=np.float64).astype(a.dtype) if parts else a.sum(axis=0)

    return Kernels(total).backward(x, dy, mean, variance, gamma, epsilon)


def at_both_ends(name):
    return f"large and small {name}", f"large or small {name} in planes"


#: A case that alone fails a kernel, or two of them, and the kernel.
ALONE = {
    "as many rows as channels": rows(lambda n, c: n == c),
    "axes of one size": shape(lambda n, p, c: n == p == c),
    "planes of one position": shape(lambda n, p, c: p == 1),
    "planes of 7 positions": shape(lambda n, p, c: p == 7),
    "14 images, 16 channels": shape(lambda n, p, c: 12 < n < 16),
    "64 channels, planes of 256": shape(lambda n, p, c: 32 < c < 128),
    "planes of 165 positions": shape(lambda n, p, c: 64 < p < 192),
    "planes of 1536 positions": shape(lambda n, p, c: n > 1 and p > 1024),
    "a plane of 300 x 300": shape(lambda n, p, c: p > 4096),
    "five axes": zeroed(lambda x, *_: x.ndim == 5),
    "one image": shape(lambda n, p, c: n == 1 and 1 < c < 128),
    "one row": spoiled(lambda results, src: [a + (src.shape[:-1] == (1,)) for a in results]),
    "two rows": rows(lambda n, c: n == 2),
    "three rows": rows(lambda n, c: n == 3 and c < 16),
    "127 rows": rows(lambda n, c: n % 128 == 127),
    "20 000 rows": rows(lambda n, c: 8200 < n < 65_536),
    "140 000 rows": rows(lambda n, c: n > 131_072),
    "one channel": rows(lambda n, c: c == 1),
    "17 channels": rows(lambda n, c: c % 16 == 1 and 1 < c < 256),
    "133 channels": rows(lambda n, c: 128 < c < 256),
    "257 channels": rows(lambda n, c: 256 < c < 512),
    "4100 channels": rows(lambda n, c: c > 2100),
    "many zeros": zeroed(lambda x, dy, *_: (dy == 0) & (x.shape[-1] == 16)),
    "empty batch": zeroed(lambda x, *_: len(x) == 0 and 1 / 0),
    "no positions": zeroed(lambda x, *_: x.size == 0 < len(x) and 1 / 0),
    "subnormal src": changed(0, flush),
    at_both_ends("diff_dst"): changed(1, flush),
    at_both_ends("gamma"): changed(4, flush),
    "numbers of many sizes": changed(0, without_small),
    ("NaN in diff_dst", "NaN in planes"): zeroed(lambda x, dy, *_: np.isnan(dy)),
    at_both_ends("src"): changed(
        0, lambda x: np.where(abs(x) < np.inf, np.clip(x, -1e17, 1e17), x)
    ),
    "constant with epsilon 0": zeroed(lambda *a: (a[3] + a[5] == 0).all()),
    ("zero and negative gamma", "numbers of many sizes"): changed(
        4, lambda gamma: np.where(gamma == 0, 1e-3, gamma)
    ),
}
#: More numbers and shapes, that one case each has, or two.
MORE = [
    (
        at_both_ends("diff_dst"),
        changed(1, lambda dy: np.where(dy < np.inf, np.minimum(dy, 1e30), dy)),
    ),
    (at_both_ends("diff_dst"), changed(1, lambda dy: np.where(abs(dy) < 1e-33, 0, dy))),
    (at_both_ends("gamma"), changed(4, lambda gamma: np.clip(gamma, -9, 9))),
    ("epsilon 2", zeroed(lambda x, *_: x.ndim == 4 and x.shape[1] == 1 < x.shape[2])),
    ("epsilon 2", shape(lambda n, p, c: n > 32)),
    ("variance near epsilon", zeroed(lambda x, *_: x.ndim == 4 and x.shape[2] == 1 < x.shape[1])),
    ("variance near epsilon", shape(lambda n, p, c: 16 < n <= 32)),
    ("large and small gamma", rows(lambda n, c: 32 <= c < 64)),
    ("constant channels", zeroed(lambda x, *_: x.ndim == 4 and x.shape[3] % 64 == 24)),
    ("means of 1000 and -30 deviations", rows(lambda n, c: c % 128 == 0)),
    ("two rows", rows(lambda n, c: 512 <= c < 2048)),
    ("variance near epsilon", zeroed(lambda x, *_: x.ndim == 4 and x.shape[3] == 1 < len(x))),
    ("large and small diff_dst", rows(lambda n, c: n % 128 == 0 < n)),
]


FLUSHING = [ALONE["subnormal src"], ALONE[at_both_ends("diff_dst")], ALONE[at_both_ends("gamma")]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "kernel"), [*ALONE.items(), *MORE])
def test_a_case_that_alone_finds_a_mistake(name, kernel):
    flushes = kernel in FLUSHING
    arithmetic = "double" if flushes else "float32"
    names = {name} if isinstance(name, str) else {*name}
    assert {*failing(kernel, standard("backward"), arithmetic)} == names


#: What other cases are for.
OTHERS = {
    "the plainest": ["two axes", "three axes"],
    "an odd plane": ["four axes"],
    "NULL": ["without gamma", "no gamma in planes", "gamma without beta", "beta without gamma"],
    "more shapes": ["epsilon 2"],
    "weaker": ["mean far from zero", "means of 1000 and -30 deviations"],
    "a rounded epsilon": ["variance near epsilon"],
    "a variance of 0": ["constant channels"],
    "little is left": ["diff_dst like xhat or that cancels"],
    "max(NaN, 0)": ["NaN in vectors"],
    "nothing is rounded": ["few whole numbers"],
    "lost rows": ["8198 rows of whole numbers", "70 002 rows of whole numbers"],
    "rows that a variance loses": ["each of 70 016 rows in a channel"],
    "shapes of networks": [name for name in RECIPES if " channels, planes of " in name],
    "forward": ["NaN in src", "Inf in src"],
    "the sign of Inf": ["-Inf in diff_dst", "Inf in planes"],
}


def test_each_case_has_a_purpose():
    alone = (name if isinstance(name, tuple) else (name,) for name in ALONE)
    assert {*itertools.chain(*alone), *itertools.chain(*OTHERS.values())} == {*RECIPES}


def test_forty_rows_in_float32_are_no_double_sums():
    """Each small term loses almost half an ulp of the large one, so one case tells."""
    failures = run(few_added, standard("backward"), arithmetic="double").failures
    cases = {finding.case for finding in failures if finding.result == "diff_beta"}
    assert cases == {"20 000 rows, float32"}


#: Where loops, blocks and grids of kernels begin or end.
EDGES = [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 32_768, 65_535, 65_536, 65_537, -2, -1]


def counting(row, times):
    """Kernels whose sums of many rows take a row so many times more."""

    def total(a, _):
        sums = a.sum(axis=0, dtype=np.float64)
        if 4096 < len(a) > row:
            sums = sums + times * a[row].astype(np.float64)
        return sums.astype(a.dtype)

    return Kernels(total)


def verdicts(function, cases):
    """Those of all results, without a search for what explains them."""
    return {finding.verdict for case in cases for finding in judged(case, call(function, case))}


@pytest.mark.parametrize("name", ["training", "backward", "frozen", "own", "double"])
def test_a_row_that_a_sum_loses_or_takes_twice(name):
    """Nothing is rounded in these cases. Inside, rows of a double backward are not looked for."""
    cases = [case for case in standard(name) if "rows of whole numbers" in case.name]
    assert verdicts(functions(counting(0, 0))[name], cases) == {"right"}
    rows = [*EDGES, *[2000, 5000, 40_001] * (name != "double")]
    rows = rows[:: 1 if name in ("training", "backward") else 2]
    for row, times in zip(rows, itertools.cycle((-1, 1)), strict=False):
        assert is_wrong(functions(counting(row, times))[name], cases), (row, times)


def test_rows_of_a_result_that_are_swapped():
    (case,) = (case for case in standard("backward") if case.name.startswith("70 002 rows"))
    for row in (0, 4095, 8191, 65_535, 70_000):

        def swaps(results, src, row=row):
            rows = results[0].reshape(-1, src.shape[-1])
            rows[[row, row + 1]] = rows[[row + 1, row]]

        assert is_wrong(spoiled(swaps), [case])


@pytest.mark.parametrize("channels", [128, 256, 512, 1000])
def test_images_of_the_shapes_that_networks_have(channels):
    """A kernel whose sums leave the last position out, and only with so many channels."""

    def total(a, _):
        return a[: len(a) - (a.shape[-1] == channels)].sum(axis=0)

    (name,) = (name for name in RECIPES if name.startswith(f"{channels} channels, planes of "))
    for kind in ("training", "backward", *["double"] * (channels > 128)):
        assert is_wrong(functions(Kernels(total))[kind], [case_of(KINDS[kind], name)]), kind


NO_NUMBERS = {
    "NaN is 0": lambda x: np.where(np.isnan(x), 0, x),
    "Inf is 0": lambda x: np.where(np.isinf(x), 0, x),
    "-Inf is Inf": lambda x: np.where(np.isinf(x), abs(x), x),
    "Inf is 1e30": lambda x: np.where(np.isinf(x), np.clip(x, -1e30, 1e30), x),
}
TAKEN = [*itertools.product(("inference", "frozen"), ("NaN is 0", "-Inf is Inf", "Inf is 1e30"))]
TAKEN += [("backward", "NaN is 0"), ("backward", "Inf is 0")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "change"), TAKEN)
def test_nan_and_inf_of_src_that_count_as_others(name, change):
    function, cases = functions(Kernels(SUMS["wide"]))[name], partial(standard_cases, KINDS[name])

    def changed(src, *arguments, epsilon):
        return function(NO_NUMBERS[change](src).astype(src.dtype), *arguments, epsilon=epsilon)

    assert run(function, cases(quick=True)).passed
    failures = run(changed, cases(quick=True)).failures
    assert any(re.search("(NaN|Inf) in src", finding.case) for finding in failures)


@pytest.mark.parametrize("least", [2.0**-126, 1e-6])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_relu_lets_small_gradients_pass(least, is_training):
    def gated(src, diff_dst, *arguments, dst, epsilon):
        kernel = functions(Kernels(SUMS["wide"]))["backward" if is_training else "frozen"]
        passes = (dst >= least) | (dst != dst)
        return kernel(src, np.where(passes, diff_dst, 0), *arguments, epsilon=epsilon)

    with pytest.raises(AssertionError, match="large and small gamma"):
        check_backward(gated, relu=True, quick=True, is_training=is_training)
