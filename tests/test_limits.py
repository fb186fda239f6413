"""Limits of bn_ext.testing are those of docs/numerics.md, for each dtype and kind of case."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from cases import DATA_DTYPES
from needs import needs_long_double
from remembered import KINDS as ALL, case_of
from weak_kernels import SUMS, Kernels

from bn_ext.testing import _formulas as formulas, _limits as limits
from bn_ext.testing._case import TENSORS, Kind
from bn_ext.testing._cases import EXPONENTS, as_set, random_case, standard_cases
from bn_ext.testing._exact import _formula, exact, judged_arrays
from bn_ext.testing._report import run
from bn_ext.testing._wide import wide_of

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

KINDS = ALL | {
    "training, add": Kind("training", add=True, relu=True),
    "inference, add": Kind("inference", is_training=False, add=True),
    "backward, relu": Kind("backward", relu=True, add=True),
}
#: By dtype: u and the smallest number, as powers of two.
POWERS = {"float32": (-24, -149), "float64": (-53, -1074)}
POWERS |= {"float16": (-11, -24), "bfloat16": (-8, -133)}


def number_of(data):
    return "float64" if data == "float64" else "float32"


def power(data, which):
    return wide_of(data)(2.0 ** POWERS[data][which])


def half_ulp(values, data):
    return np.maximum(abs(values) * power(data, 0), power(data, 1) / 2)


def derived(case):
    """{result: bn_ext's own bound, "double"}, each constant as a count of roundings."""
    kind, is_double = case.kind, case.data == "float64"
    u, s = (power(number_of(case.data), which) for which in (0, 1))
    want = _formula(case, judged_arrays(case))()
    fours = 2 + 7  # additions in a four, and of further fours
    if kind.operation == "double_backward":
        sums = 2 * (1 + 1 + fours + 1 + is_double)  # two: differences, products, ...
        factor, rest = (16 if is_double else 1), 1 + 1 + 2  # xc, their product, two additions
        roundings = sums + factor + rest + (2 if is_double else 1)
        return {n: roundings * (u * a + s) for n, a in zip(want._fields, want[3:], strict=False)}
    if kind.operation == "backward":
        of_sums = 1 + 1 + fours + is_double + 1
        of_element = (7 if kind.is_training else 2) + 1
        bound = u * (of_element * want.diff_src_terms + of_sums * want.diff_src_sums)
        gamma, beta = (abs(a).sum(axis=1) for a in (want.gamma_terms, want.beta_terms))
        return {
            "diff_src": bound + 8 * s * want.diff_src_tiny,
            "diff_gamma": of_sums * u * gamma + s * (8 + want.gamma_tiny),
            "diff_beta": of_sums * u * beta,
            "diff_src_1": 0,
        }
    of_mean, of_squares, is_added = 1 + fours, 3 + fours, kind.add
    # The pivot is two deviations from the mean at most: sqrt(1 + 2**2).
    mean = of_mean * np.sqrt(5) + 1
    variance = 5 * of_squares + 2 * 2 * of_mean * np.sqrt(5) + 1
    dst = (4 + is_added) * want.product_terms + (2 + is_added) * want.shift_terms
    dst = u * (1 + 8 * u) * dst

    def like_dst(vector):
        return np.moveaxis(vector.reshape(-1, *[1] * (want.dst.ndim - 1)), 0, case.axis)

    if kind.operation == "training":
        dst = dst + mean * u * like_dst(want.scale * want.deviation)
        dst = dst + variance / 2 * u * like_dst(want.spread) * want.product_terms
        dst = dst + is_double * u * like_dst(want.scale * abs(want.mean))
    return {
        "dst": dst + 8 * s * (1 + like_dst(want.scale) + want.distances),
        "mean": mean * u * want.deviation + 8 * s,
        "variance": variance * u * want.variance + 8 * s,
    }


def beyond_rounding(case):
    """{result: (its right values, its limits without the last rounding)}"""
    with np.errstate(all="ignore"):
        for result, (right, bounds) in exact(case).items():
            kind = case.data if result in TENSORS else number_of(case.data)
            rounded = result not in TENSORS or case.data in ("float16", "bfloat16")
            yield result, right, bounds - (half_ulp(right, kind) if rounded else 0)


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_limits_are_as_derived(name, data):
    """In the standard cases, every second one of each dtype."""
    count, cases = 0, standard_cases(KINDS[name], data, quick=True)
    for case in itertools.islice(cases, DATA_DTYPES.index(data) % 2, None, 2):
        with np.errstate(all="ignore"):
            bounds = derived(case)
        for result, right, (limit, *_) in beyond_rounding(case):
            says = np.isfinite(limit) & np.isfinite(right)
            off = abs(limit - bounds[result])[says]
            room = 1e-9 * limit[says] + 1e-6 * half_ulp(right[says], case.data)
            assert (off <= room).all(), (case.name, result)
            count += says.any()
    assert count >= 12


#: At the largest right value of "three axes": the limits of float32 and of any, in units of u times
#: that value.
WEAKER = {
    "training": {"dst": (150.7, 205.1), "mean": (44.65, 80.72), "variance": (263.1, 289.9)},
    "inference": {"dst": (15.35, 15.35)},
    "backward": {"diff_src": (90.6, 218.7), "diff_gamma": (59.71, 233.9)},
    "frozen": {"diff_src": (24, 24), "diff_gamma": (82.85, 365.4)},
    "own": {"diff_src": (612.9, 1740), "diff_gamma": (315.6, 1476)},
    "double": {"diff_src": (469.3, 2521), "diff_diff_dst": (291.9, 620.9)},
    "double, frozen": {"diff_src": (161.2, 161.2), "diff_diff_dst": (211.6, 211.6)},
}
WEAKER["double"]["diff_gamma"], WEAKER["double, frozen"]["diff_gamma"] = (1445, 2923), (290, 290)
for name in "backward", "frozen", "own":
    WEAKER[name]["diff_beta"] = 53.81, 53.81


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize(("name", "result"), [(n, r) for n, row in WEAKER.items() for r in row])
def test_weaker_limits_are_as_wide_as_once_derived(name, result, data):
    """Of every dtype: in units of u, they are those of float32. Those of float16's arithmetic are
    those of any, but for products of two errors.
    """
    case = case_of(KINDS[name], "three axes", data)
    ((right, bounds),) = ((r, f) for n, r, f in beyond_rounding(case) if n == result)
    at = np.asarray(abs(right)).argmax()
    shares = [float(a.ravel()[at] / abs(right.ravel()[at])) for a in bounds[1:]]
    u = float(power(number_of(data), 0))
    assert shares[:2] == pytest.approx([u * n for n in WEAKER[name][result]], rel=0.01)
    assert len(shares) == 2 + (data == "float16")
    assert all(0.8 < n / shares[1] * u / power("float16", 0) < 1.3 for n in shares[2:])


#: At the smallest right value of small diff_dst: the limits, in units of the smallest number
#: (weaker arithmetic: the smallest normal one).
LOST = {
    ("backward", "diff_src"): (19.06, 38.98, 91.43),
    ("backward", "diff_gamma"): (37.27, 104.2, 139.7),
    ("frozen", "diff_src"): (8, 16, 16),
    ("frozen", "diff_gamma"): (34.23, 100.9, 139.9),
}


def small_case(kind, data):
    exponents = np.array([4, 3, 4]) * EXPONENTS[data]["diff_dst"][1] // 4
    scaled = as_set(diff_dst=lambda draw: np.ldexp(draw.diff_dst, exponents))
    return random_case(kind, "small diff_dst", (33, 3), np.dtype(data), scaled)


@pytest.mark.parametrize("data", ["float32", "float64"])
@pytest.mark.parametrize("key", LOST)
def test_limits_of_what_underflow_takes(key, data):
    right, bounds = exact(small_case(KINDS[key[0]], data))[key[1]]
    at, units = np.asarray(abs(right)).argmin(), [power(data, 1), *[np.finfo(data).tiny] * 2]
    shares = [float(a.ravel()[at] / unit) for a, unit in zip(bounds, units, strict=True)]
    assert shares == pytest.approx(LOST[key], rel=0.01)


ZERO, ONE = np.zeros(1, np.longdouble), np.ones(1, np.longdouble)


def operands(**changed):
    tensors = {n: ZERO[None] for n in ("src", "diff_dst", "diff_diff_src")}
    vectors = {"mean": ZERO, "variance": ONE, "gamma": ONE / 32, "diff_diff_gamma": ZERO}
    return SimpleNamespace(**{**tensors, **vectors, "beta": ZERO, "epsilon": 0.0, **changed})


def holds(kind, data, p):
    options = {"epsilon": p.epsilon, "axis": 0, "wide": np.longdouble}
    p.src = p.src.astype(np.float64) if data == "float64" else p.src
    with np.errstate(all="ignore"):
        if kind == "backward":
            arrays = p.src, p.diff_dst, p.mean, p.variance, p.gamma
            want = formulas.batch_norm_backward(*arrays, **options)
            return limits.gradient_holds(p, want, data)[0]
        if kind == "double":
            return limits.second_holds(p, None, data)[0]
        arrays = p.src, p.mean, p.variance, p.gamma, p.beta
        want = formulas.batch_norm_inference(*arrays, **options)
        return limits.forward_holds(p, want, 0, data)[0]


#: (kind, what becomes 2**k, the first k, of float32 and of float64, at which nothing holds); down:
#: from 0 downwards.
ENDS = [
    ("backward", lambda a: {"src": a[None]}, 127, 996),
    ("backward", lambda a: {"mean": a}, 127, 996),
    ("backward", lambda a: {"diff_dst": a[None]}, 127, 996),
    ("backward", lambda a: {"gamma": a}, 127, 996),
    ("backward", lambda a: {"variance": a**-2, "gamma": ZERO}, 127, 498),
    ("backward", lambda a: {"variance": a**2}, None, 498),
    ("backward", lambda a: {"src": a[None], "diff_dst": a[None], "gamma": ZERO}, 43, 332),
    ("inference", lambda a: {"src": a[None]}, 127, 996),
    ("inference", lambda a: {"gamma": a}, 127, 996),
    ("inference", lambda a: {"beta": a}, 127, 996),
    ("inference", lambda a: {"variance": a}, 127, 996),
    ("inference", lambda a: {"variance": 1 / a, "gamma": ZERO}, 109, 1005),
    ("double", lambda a: {"src": a[None]}, 126, 900),
    ("double", lambda a: {"diff_dst": a[None]}, 126, 900),
    ("double", lambda a: {"diff_diff_src": a[None]}, 126, 900),
    ("double", lambda a: {"diff_diff_src": 1 / a[None]}, 121, 895),
    ("double", lambda a: {"variance": a**-2, "gamma": ZERO}, 63, 450),
    ("double", lambda a: {"gamma": a}, 126, 900),
    ("double", lambda a: {"diff_diff_gamma": a}, 126, 900),
]


@needs_long_double
@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end[0])
def test_where_limits_end(end, data):
    kind, changes, single, double = end
    expected = double if data == "float64" else single

    def is_held(k):
        return holds(kind, data, operands(**changes(np.ldexp(ONE, k))))

    assert is_held(expected - 1 if expected else 1000)
    assert not (expected and is_held(expected))


#: By dtype, of src, diff_dst and gamma: powers of two; one case has numbers beyond the first,
#: another below the second.
FAR = {
    "float32": ((55, -45), (100, -135), (95, -127)),
    "float64": ((475, -475), (890, -1055), (790, -1035)),
    "bfloat16": ((55, -45), (100, -127), (95, -127)),
    "float16": ((11, -9), (9, -16), (7, -16)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize(("place", "name"), [(0, "src"), (1, "diff_dst"), (4, "gamma")])
def test_numbers_near_the_ends_of_each_dtype(place, name, data):
    """A kernel that reads them as others, or as 0, fails."""
    large, small = (np.ldexp(1.0, k) for k in FAR[data][min(place, 2)])
    changes = {
        "large": lambda a: np.where(np.isfinite(a), np.clip(a, -large, large), a),
        "small": lambda a: np.where(abs(a) < small, 0, a),
    }
    for size, change in changes.items():

        def kernel(*arrays, epsilon, change=change):
            arrays = [*arrays]
            if arrays[place] is not None:
                arrays[place] = change(arrays[place]).astype(arrays[place].dtype)
            return Kernels(SUMS["wide"]).backward(*arrays, epsilon)

        names = "two axes", f"large and small {name}"
        cases = [case_of(KINDS["backward"], case, data) for case in names]
        report = run(kernel, cases, arithmetic="double" if size == "small" else "float32")
        assert {finding.case for finding in report.failures} == {f"{names[1]}, {data}"}
