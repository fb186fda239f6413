"""torch's six halves, on parts of a batch, give what the whole gives."""

import numpy as np
import pytest
import reference
from bounds import distance, dst_error
from cases import DTYPES, EPSILON, Family, arithmetic, bits, dtype, half_ulp, unit

from bn_ext.specs import pytorch

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(
        np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
    ),
]

WIDE = {"epsilon": EPSILON, "axis": 1, "wide": np.longdouble}
#: Where a batch of ten is cut.
CUTS = {
    "one": [],
    "halves": [5],
    "uneven": [1, 2, 9],
    "an empty part": [3, 3],
    "each": range(1, 10),
}
every_cut = pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
every_type = pytest.mark.parametrize(("data", "vector"), DTYPES)


def problem(rng, data="float32", vector=None):
    p = Family(rng, (10, 5, 3, 4), "NCX", data, vector, ratio=3.0)
    p.running_mean, p.running_variance = p.mean.copy(), p.variance.copy()
    return p


def parts_of(p, cuts):
    """[(src, diff_dst)]"""
    return list(zip(*(np.split(a, list(cuts)) for a in (p.src, p.diff_dst)), strict=True))


def gathered(p, parts, counts=None):
    stats = [pytorch.batch_norm_stats(src, EPSILON) for src, _ in parts]
    mean, invstd = (np.stack(some) for some in zip(*stats, strict=True))
    counts = np.array([src[:, 0].size for src, _ in parts]) if counts is None else counts
    return pytorch.batch_norm_gather_stats_with_counts(
        p.src, mean, invstd, p.running_mean, p.running_variance, 0.25, EPSILON, counts
    )


def close(got, exact, sizes, data, kind, units):
    """Within some units of what its terms are, and half an ulp."""
    u = np.longdouble(unit(arithmetic(data)))
    assert (distance(got, exact) <= half_ulp(exact, kind) + units * u * sizes).all()


@every_cut
@every_type
def test_forward(rng, data, vector, cuts):
    p, number = problem(rng, data, vector), arithmetic(data)
    parts = parts_of(p, cuts)
    want = reference.batch_norm_training(p.src, p.gamma, p.beta, **WIDE)
    found = gathered(p, parts)
    assert {a.dtype for a in found} == {dtype(number)}
    close(found.mean, want.mean, abs(want.mean) + want.farthest, data, number, 4)
    invstd = 1 / np.sqrt(want.variance + EPSILON)
    close(found.invstd, invstd, invstd, data, number, 12)

    output = np.concatenate(
        [pytorch.batch_norm_elemt(src, p.gamma, p.beta, *found, EPSILON) for src, _ in parts]
    )
    assert output.dtype == dtype(data)
    given = reference.batch_norm_inference(
        p.src, found.mean, 1 / found.invstd.astype(np.longdouble) ** 2, p.gamma, p.beta,
        **{**WIDE, "epsilon": 0},
    )  # fmt: skip
    assert dst_error(output, given, data, 1, from_batch=False).holds()

    corrected = want.variance * p.count / (p.count - 1)
    for old, new, got in (
        (p.mean, want.mean, p.running_mean),
        (p.variance, corrected, p.running_variance),
    ):
        exact = reference.running(old, new, 0.25, wide=np.longdouble)
        assert got.dtype == dtype(vector)
        close(got, exact, want.farthest + want.farthest**2 + abs(new), data, vector, 12)


@every_cut
@every_type
def test_backward(rng, data, vector, cuts):
    p, number = problem(rng, data, vector), dtype(arithmetic(data))
    parts = parts_of(p, cuts)
    mean, invstd = p.mean.astype(number), (1 / np.sqrt(p.variance.astype(float))).astype(number)
    want = reference.batch_norm_backward(
        p.src, p.diff_dst, mean, 1 / invstd.astype(np.longdouble) ** 2, p.gamma,
        **{**WIDE, "epsilon": 0},
    )  # fmt: skip
    reduced = [
        pytorch.batch_norm_backward_reduce(dy, src, mean, invstd, p.gamma, True, True, True)
        for src, dy in parts
    ]
    assert [a.dtype for a in reduced[0]] == [number, number, dtype(vector), dtype(vector)]
    sums = [sum(r[i].astype(np.float64) for r in reduced) for i in range(4)]
    sizes = [abs(terms).sum(axis=1) for terms in (want.beta_terms, want.gamma_terms)]
    rounded = sum(half_ulp(r.grad_weight.astype(float), vector) for r in reduced)
    assert (distance(sums[2], want.diff_gamma) <= rounded + 16 * unit(number.name) * sizes[1]).all()
    close(sums[0], want.diff_beta, sizes[0], data, number.name, 16)
    total = np.array([src[:, 0].size for src, _ in parts])
    some = [sums[i].astype(number) for i in range(2)]
    grad_input = np.concatenate([
        pytorch.batch_norm_backward_elemt(dy, src, mean, invstd, p.gamma, *some, total)
        for src, dy in parts
    ])  # fmt: skip
    assert grad_input.dtype == dtype(data)
    sizes = want.diff_src_terms + want.diff_src_sums
    close(grad_input, want.diff_src, sizes, data, data, 20)


def test_one_count_for_all(rng):
    p, q = problem(rng), problem(rng)
    q.src, q.running_mean, q.running_variance = (
        p.src,
        p.running_mean.copy(),
        p.running_variance.copy(),
    )
    parts = parts_of(p, [5])
    several = gathered(p, parts)
    stats = [pytorch.batch_norm_stats(src, EPSILON) for src, _ in parts]
    mean, invstd = (np.stack(some) for some in zip(*stats, strict=True))
    one = pytorch.batch_norm_gather_stats(
        q.src, mean, invstd, q.running_mean, q.running_variance, 0.25, EPSILON, 60
    )
    assert [bits(a) for a in one] == [bits(a) for a in several]
    assert bits(p.running_mean) == bits(q.running_mean)
    assert bits(p.running_variance) == bits(q.running_variance)
    for count, kind, message in (
        (2.5, TypeError, "expected an integer, got 2.5"),
        (0, ValueError, "expected at least 1, got 0"),
    ):
        with pytest.raises(kind, match=f"^count: {message}$"):
            pytorch.batch_norm_gather_stats(p.src, mean, invstd, None, None, 0.1, EPSILON, count)


def test_counts_of_every_type(rng):
    p = problem(rng)
    parts = parts_of(p, [4, 7])
    want = gathered(p, parts)
    for kind in (np.int32, np.int64, np.uint8, np.float32, np.float64):
        for dims in ((3,), (3, 1)):
            found = gathered(p, parts, np.array([48, 36, 36], kind).reshape(dims))
            assert [bits(a) for a in found] == [bits(a) for a in want]


@pytest.mark.parametrize(
    ("counts", "kind", "message"),
    [
        ([48, 36], ValueError, "counts: expected one for each of 3 parts, got 2"),
        ([48, 36, 0.5], ValueError, "counts: expected whole numbers >= 0, got "),
        ([48, 36, -1], ValueError, "counts: expected whole numbers >= 0, got "),
        ([48, 36, np.nan], ValueError, "counts: expected whole numbers >= 0, got "),
        ([48, 36, np.inf], ValueError, "counts: expected whole numbers >= 0, got "),
        (["a", "b", "c"], TypeError, "counts: expected real numbers, got "),
        ([0, 0, 0], ValueError, "counts: expected at least one element"),
        ([2**52, 0, 2**52], ValueError, r"counts: expected fewer than 2\*\*53 elements"),
        (None, TypeError, "counts: expected an array, got None"),
    ],
)
def test_counts_that_are_none(rng, counts, kind, message):
    p = problem(rng)
    stats = [pytorch.batch_norm_stats(src, EPSILON) for src, _ in parts_of(p, [4, 7])]
    mean, invstd = (np.stack(some) for some in zip(*stats, strict=True))
    before = bits(p.running_mean), bits(p.running_variance)
    with pytest.raises(kind, match=f"^{message}"):
        pytorch.batch_norm_gather_stats_with_counts(
            p.src, mean, invstd, p.running_mean, p.running_variance, 0.1, EPSILON, counts
        )
    assert (bits(p.running_mean), bits(p.running_variance)) == before


@pytest.mark.parametrize(
    ("count", "message"),
    [(119, "at least 120 elements .*, got 119"), (2**53, r"fewer than 2\*\*53 elements")],
)
def test_counts_that_are_not_of_the_whole(rng, count, message):
    p = problem(rng)
    sums = np.zeros((2, len(p.mean)), p.mean.dtype)
    with pytest.raises(ValueError, match=f"^count: expected {message}$"):
        pytorch.batch_norm_backward_elemt(
            p.diff_dst, p.src, p.mean, p.variance, None, *sums, np.array([count])
        )


def test_what_is_not_wanted_is_none(rng):
    p = problem(rng)
    some = p.diff_dst, p.src, p.mean, p.variance, p.gamma
    whole = pytorch.batch_norm_backward_reduce(*some, True, True, True)
    for flags in np.ndindex(2, 2, 2):
        found = pytorch.batch_norm_backward_reduce(*some, *flags)
        for flag, a, b in zip((flags[0], *flags), found, whole, strict=True):
            assert (a is None) == (not flag)
            assert not flag or bits(a) == bits(b)


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1e25, 1e30])
def test_inverse_deviations_whose_squares_are_no_float32(rng, scale):
    p = problem(rng)
    p.src = (p.src * np.float32(scale)).astype(np.float32)
    mean, invstd = pytorch.batch_norm_stats(p.src, 0)
    output = pytorch.batch_norm_elemt(p.src, None, None, mean, invstd, 0)
    unscaled = p.src.astype(np.longdouble) / np.longdouble(scale)
    want = reference.batch_norm_training(unscaled, **{**WIDE, "epsilon": 0})
    assert (distance(output, want.dst) <= 1e-5).all()
    sums = pytorch.batch_norm_backward_reduce(
        p.diff_dst, p.src, mean, invstd, None, True, True, True
    )
    grad_input = pytorch.batch_norm_backward_elemt(
        p.diff_dst, p.src, mean, invstd, None, *sums[:2], np.array([p.count])
    )
    want = reference.batch_norm_backward(
        unscaled, p.diff_dst, want.mean, want.variance, **{**WIDE, "epsilon": 0}
    )
    size = abs(want.diff_src).max()
    assert (distance(grad_input * scale, want.diff_src) <= 1e-5 * size).all()


def test_a_constant_channel_without_eps(rng):
    p = problem(rng)
    p.src[:, 2] = 3
    parts = parts_of(p, [4])
    stats = [pytorch.batch_norm_stats(src, 0) for src, _ in parts]
    assert all(invstd[2] == 0 for _, invstd in stats)
    mean, invstd = (np.stack(some) for some in zip(*stats, strict=True))
    found = pytorch.batch_norm_gather_stats_with_counts(
        p.src, mean, invstd, None, None, 0.1, 0, np.array([48, 72])
    )
    assert found.mean[2] == 3
    assert found.invstd[2] == 0
    assert np.isfinite(found.invstd).all()
    output = pytorch.batch_norm_elemt(p.src, p.gamma, p.beta, *found, 0)
    assert (output[:, 2] == p.beta[2]).all()


def test_no_variance_is_below_0(rng):
    """Invstd is rounded: of constant data, some give 1 / invstd**2 < eps."""
    below = 0
    for eps in rng.uniform(1e-6, 1e-2, 50):
        x = np.full((4, 1), 3, np.float32)
        mean, invstd = (a[None] for a in pytorch.batch_norm_stats(x, eps))
        running = np.zeros(1, np.float32), np.ones(1, np.float32)
        pytorch.batch_norm_gather_stats(x, mean, invstd, *running, 1.0, eps, 4)
        below += 1 / invstd[0, 0].astype(np.float64) ** 2 < eps
        assert running[1] >= 0
    assert below


def test_more_elements_than_are_counted():
    x, two = np.zeros((4, 1)), np.ones((2, 1))
    for gather, counts in (
        (pytorch.batch_norm_gather_stats, 2**62),
        (pytorch.batch_norm_gather_stats_with_counts, np.full(2, 2.0**62)),
    ):
        with pytest.raises(ValueError, match=r"^counts: expected fewer than 2\*\*53 elements$"):
            gather(x, two, two, None, None, 0.1, 0.0, counts)


@pytest.mark.parametrize("name", ["bfloat16", "int8", "float16", "float64"])
def test_counts_in_any_real_dtype(name):
    x = np.array([[1.0], [3.0], [8.0]])
    counts = np.array([2, 1]).astype(dtype(name))
    mean, invstd = np.array([[2.0], [8.0]]), np.ones((2, 1))
    found = pytorch.batch_norm_gather_stats_with_counts(
        x, mean, invstd, None, None, 0.1, 0.0, counts
    )
    assert found.mean == 4
    sums = np.array([12.0]), np.array([0.0])
    pytorch.batch_norm_backward_elemt(x, x, mean[0], invstd[0], None, *sums, counts)
    with pytest.raises(TypeError, match="^counts: expected real numbers, got complex128$"):
        pytorch.batch_norm_gather_stats_with_counts(
            x, mean, invstd, None, None, 0.1, 0.0, counts.astype(complex)
        )
