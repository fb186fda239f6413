"""The error bounds of docs/numerics.md, checked with exact results and a search for violations."""

import functools
import itertools
from fractions import Fraction

import cases
import hostile_data
import numpy as np
import pytest
from bounds import MERGED_MEAN, errors, reference_of, second_errors, statistics_errors
from cases import DATA_DTYPES, DTYPES, INPUTS, SHORT, Problem, shape
from exact_sums import gradient

import bn_ext
from bn_ext import BatchNormGradients, _core
from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import MEAN, arithmetic, unit
from bn_ext.testing._wide import Wide, wide_of

#: {(member of the family, output whose error the search increases): the share of its bound that the
#: search must reach, per dtype}. A bound that nothing comes near would prove nothing. Shares are
#: small where half an ulp of 16 bits hides most of an error (diff_src, dst), and for statistics,
#: whose bounds allow a pivot two standard deviations from the mean.
GRADIENT_AIMS = {
    ("backward", "diff_src"): (0.35, 0.35, 0.05, 0.1),
    ("backward", "diff_gamma"): (0.55, 0.4, 0.65, 0.65),
    ("backward, frozen", "diff_src"): (0.6, 0.6, 0, 0),
    ("GradientSums", "diff_gamma"): (0.45, 0.6, 0.68, 0.68),
    ("GradientSums", "diff_beta"): (0.5, 0.45, 0.68, 0.68),
}
FAMILY_AIMS = {
    ("Statistics", "mean"): (0.1, 0.15, 0.08, 0.1),
    ("Statistics", "variance"): (0.08, 0.08, 0.08, 0.04),
    ("training", "dst"): (0.7, 0.8, 0.01, 0.01),
    ("inference", "dst"): (0.8, 0.8, 0.3, 0.25),
    ("double_backward", "diff_src"): (0.25, 0.2, 0.03, 0.04),
    ("double_backward", "diff_diff_dst"): (0.2, 0.15, 0.02, 0.01),
    ("double_backward", "diff_gamma"): (0.15, 0.15, 0.2, 0.2),
    ("double_backward, frozen", "diff_gamma"): (0.12, 0.12, 0.18, 0.14),
}


def searched(rng, form, data, vector, generations, aims):
    """{aim: the largest share of its bound that was found}; no bound may be broken."""
    worst = {}
    for member, output in aims:
        worst[member, output] = 0.0
        search = hostile_data.search(rng, form, data, vector, member, output, generations)
        for shares, broken in search:
            assert not broken, (form, member, broken)
            worst[member, output] = max(worst[member, output], float(shares[output].max()))
    print(form, *(f"{' '.join(aim)} {100 * share:.0f} %" for aim, share in worst.items()))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("form", hostile_data.FORMS)
@pytest.mark.parametrize(
    ("data", "vector"), [*DTYPES, *((name, "float64") for name in DATA_DTYPES if name != "float64")]
)
def test_no_search_breaks_a_bound(rng, data, vector, form):
    searched(rng, form, data, vector, 4, GRADIENT_AIMS)
    searched(rng, form, data, vector, 2, FAMILY_AIMS)


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_bounds_are_near(rng, data):
    vector = arithmetic(data)
    for aims, generations in ((GRADIENT_AIMS, 25), (FAMILY_AIMS, 14)):
        least = {aim: shares[DATA_DTYPES.index(data)] for aim, shares in aims.items()}
        for _ in range(4):
            worst = searched(rng, "channels last", data, vector, generations, least)
            least = {aim: share for aim, share in least.items() if worst[aim] < share}
        assert least == {}


def fractions(array):
    """The exact values of a Wide, or of doubles."""
    wide = Wide(array).ravel()
    exponents = np.zeros(wide.shape, int) if wide.exponent is None else wide.exponent
    parts = wide.hi, np.broadcast_to(0.0 if wide.lo is None else wide.lo, wide.shape)
    return [
        (Fraction(hi) + Fraction(lo)) * Fraction(2) ** int(exponent)
        for hi, lo, exponent in zip(*parts, exponents, strict=True)
    ]


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_reference_is_exact_enough(rng, data):
    """The reference's errors, measured with fractions, are at most a hundredth of every bound."""
    for form in ("few positions", "channels last"):
        p = hostile_data.population(rng, form, data, "float64")
        with np.errstate(all="ignore"):
            arrays = p.src, p.diff_dst, p.mean, p.variance, p.gamma
            options = {"axis": 0, "epsilon": p.epsilon, "wide": wide_of(data)}
            want = reference.batch_norm_backward(*arrays, **options)
            good = hostile_data.fits(p, want, data, "float64")
            results = BatchNormGradients(want.diff_src, want.diff_gamma, want.diff_beta)
            bounds = errors(results, want, data, "float64")
        channels = np.flatnonzero(good)[: 60 if form == "few positions" else 8]
        assert len(channels) >= 8
        for channel in channels:
            x, dy, *vectors = (
                np.atleast_1d(a.astype(np.float64)).tolist() for a in p.take(channel).arrays(INPUTS)
            )
            exact = gradient(x, dy, *(v for (v,) in vectors), p.epsilon)
            for got, true, error in zip(results, exact, bounds.values(), strict=True):
                arrays = fractions(got[channel]), np.ravel(true), fractions(error.bound[channel])
                for value, wanted, bound in zip(*arrays, strict=True):
                    assert 100 * abs(value - wanted) <= bound


def test_a_mean_between_two_elements():
    """Kernels see a difference twice as large as src - mean. The rounding errors of its sum and of
    what makes up for it add up.
    """
    u = 2.0**-24
    src, diff_dst = np.ones((4, 2, 256), np.float32), np.zeros((4, 2, 256), np.float32)
    src[0, :, ::32] += 2 * u
    diff_dst[0, :, 0] = 1
    diff_dst[0, :, 32::32] = u * (1 + 2**-6)  # rounds up
    diff_dst[1, :, 32::32] = -u * 2**-5  # with these, rounds down
    for variance in (1.0, 2.0**-70, 2.0**-72):
        arguments = src, diff_dst, np.full(2, 1 + 0.99999982 * u), np.full(2, variance), None
        options = {"epsilon": 0.0, "data_format": "NCX"}
        wide = {"epsilon": 0.0, "axis": 1, "wide": np.float64}
        results = bn_ext.batch_norm_backward(*arguments, **options)
        right = reference.batch_norm_backward(*arguments, **wide)
        twice = bn_ext.batch_norm_double_backward(*arguments, diff_dst, **options)
        again = reference.batch_norm_double_backward(*arguments, diff_dst, **wide)
        for error in (
            *errors(results, right, "float32", "float64").values(),
            *second_errors(twice, again, "float32", "float64").values(),
        ):
            assert error.holds()


def in_parts(parts):
    """Return a gradient function that adds sums of parts, then computes each part's gradient."""

    def gradient(src, diff_dst, mean, *vectors, data_format, **options):
        pieces = [np.array_split(a, parts) for a in (src, diff_dst)]
        pieces = list(zip(*pieces, strict=True))
        settings = {"data_format": data_format}
        total = sum(bn_ext.GradientSums(*piece, mean, **settings) for piece in pieces)
        results = [
            bn_ext.batch_norm_backward(*piece, mean, *vectors, sums=total, **settings, **options)
            for piece in pieces
        ]
        return results[0]._replace(diff_src=np.concatenate([result.diff_src for result in results]))

    return gradient


@pytest.mark.parametrize("parts", [2, 3, 17])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_parts(rng, data, parts):
    for form in ("channels last", "short runs"):
        p = hostile_data.population(rng, form, data, "float64")
        _, broken = hostile_data.measured(
            p, form, data, "float64", function=in_parts(parts), parts=parts
        )
        assert not broken, form


def dims_of(m, data_format, channels=64):
    channels = max(1, min(channels, 200_000 // m))
    n = next(n for n in (32, 10, 7, 3, 2, 1) if m % n == 0)
    return shape(n, channels, m // n, data_format)


def ran(problem, is_training):
    grads = problem.run(bn_ext.batch_norm_backward, is_training=is_training)
    return grads, reference_of(problem, is_training)


def neighbors(array):
    patterns = array.view(np.uint16)
    below = np.where(patterns & 0x7FFF, patterns - 1, patterns).astype(np.uint16)
    above = (patterns + 1).astype(np.uint16)
    return (p.view(array.dtype).astype(np.float64) for p in (below, above))


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2, 3, 5, 9, 31, 100, 1000])
@pytest.mark.parametrize(("data", "vector"), [types for types in DTYPES if types[0] in SHORT])
def test_almost_every_16_bit_result_is_correctly_rounded(rng, data, vector, m):
    """If it is not small against its terms: in each kind of problem, not only on average."""
    kinds = itertools.product((0, 10, 1000), ("batch", "given"), (True, False))
    for ratio, statistics, is_training in kinds:
        problem = Problem(
            rng, (m, 300_000 // m), "NXC", data, vector, ratio=ratio, statistics=statistics
        )
        grads, want = ran(problem, is_training)
        exact = want.diff_src.astype(np.float64)
        error = abs(grads.diff_src.astype(np.float64) - exact)
        below, above = neighbors(grads.diff_src)
        nearest = (error <= abs(below - exact)) & (error <= abs(above - exact))
        nearest = nearest[abs(exact) >= want.diff_src_terms / 10]
        wrong = np.count_nonzero(~nearest)
        assert wrong <= 3e-4 * nearest.size, (ratio, statistics, is_training)


@pytest.mark.parametrize("kind", ["xhat", *hostile_data.KINDS])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_many_elements(rng, data, kind):
    for m, data_format, is_training, ratio in (
        (10_000, "NCX", True, 0),
        (10_000, "NXC", True, 1000),
        (300_000, "NXC", True, 10),
        (300_000, "NCX", False, 10),
    ):
        dims = dims_of(m, data_format, 16)
        p = Problem(rng, dims, data_format, data, ratio=ratio, statistics="batch")
        channels = np.moveaxis(p.diff_dst, p.axis, 0)
        if kind == "xhat":  # little is left of diff_src
            arguments = p.src, p.mean, p.variance
            p.diff_dst[...] = reference.batch_norm_inference(*arguments, epsilon=0, axis=p.axis).dst
        for channel in channels if kind != "xhat" else ():
            channel[...] = hostile_data.elements(rng, kind, m, 8).reshape(channel.shape)
        grads, want = ran(p, is_training)
        vector = p.mean.dtype.name
        for name, error in errors(grads, want, data, vector, is_training=is_training).items():
            assert error.holds(), (m, data_format, name)


# Broadcast data takes little memory: with two channels or more, a stride of 0 is not copied.


def test_sum_of_a_hundred_million(rng):
    row = rng.standard_normal((1, 2, 100_000)).astype(np.float32)
    mean = np.array([0.25, -0.5], np.float32)
    src = np.broadcast_to(row, (1000, 2, 100_000))
    sums = bn_ext.GradientSums(src, src, mean, data_format="NCX")
    ones = np.ones(2)  # a gamma of float64, for gradients of float64
    none = np.ones((0, 2, 1), np.float32)
    results = bn_ext.batch_norm_backward(
        none, none, mean, ones, ones, epsilon=0, data_format="NCX", sums=sums
    )
    wide = row[0].astype(np.float64)
    for got, terms in zip(results[:0:-1], (wide, wide * (wide - mean[:, None])), strict=True):
        exact, norm = 1000 * terms.sum(axis=1), np.sqrt(1000 * (terms**2).sum(axis=1))
        # Terms that are repeated 1000 times have 1000 times the error, not sqrt(1000) times.
        assert (abs(got - exact) <= 6 * unit("float32") * norm * np.sqrt(1000)).all()


def added_in_pairs(parts):
    while len(parts) > 1:
        parts = [sum(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


ADDED = {
    "from the first": sum,
    "from the last": lambda parts: functools.reduce(lambda so_far, part: part + so_far, parts),
    "in pairs": added_in_pairs,
}
#: Where 3000 elements are cut.
CUTS = {
    "two parts": [1500],
    "many": range(30, 3000, 30),
    "single elements": range(1, 3000),
    "one, then all others": [1],
    "some, one by one, then all others": range(1, 700),
    "of every size": [1, 3, 4, 5, 900, 901, 2500, 2600, 2999],
}


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_statistics_of_parts(rng, data, cuts, added):
    """However data is cut and added, and however far its mean is from 0. A third of the channels
    begin with an element that is far off; the next third are sorted.
    """
    far = (0, 1e6, 1e9, 1e12, 1e14, 1e15) if data == "float64" else (0, 10, 100)
    x = np.concatenate([m + rng.uniform(0, 1, (3000, 3)) for m in far], axis=1)
    x[0, ::3] += np.maximum(100, abs(x[0, ::3]) / 3)
    x[1:, 1::3] = np.sort(x[1:, 1::3], axis=0)
    if data == "float64":
        x = np.concatenate([x, x * 2.0**-490], axis=1)  # whose squares vanish
    src = x.astype(cases.dtype(data))
    parts = [bn_ext.Statistics(part) for part in np.split(src, CUTS[cuts])]
    total = ADDED[added](parts)
    want = reference.batch_norm_training(src, epsilon=0.0, wide=wide_of(data))
    results = statistics_errors(total.mean, total.variance, want, data, parts=len(parts))
    for name, error in results.items():
        assert error.holds(), (name, error)


def test_a_first_part_that_is_far_off(rng):
    """One element, a thousand deviations from the mean of all: a step from it would be rounded too
    coarsely.
    """
    src = rng.uniform(0, 1, (1_000_000, 8))
    src[0] *= 1e6
    first, rest = bn_ext.Statistics(src[:1]), bn_ext.Statistics(src[1:])
    want = bn_ext.Statistics(src, exact=True)
    bound = MERGED_MEAN * MEAN * unit("float64") * np.sqrt(want.variance)
    for total in (first + rest, rest + first):
        assert (abs(total.mean - want.mean) <= bound).all()


def test_more_elements_than_32_bits_count():
    row = np.zeros((1, 2, 2**16), np.float32)
    row[..., ::2] = 2
    row[:, 1] *= 3
    src = np.broadcast_to(row, (2**16 + 1, 2, 2**16))
    for exact in (False, True):
        results = bn_ext.Statistics(src, exact=exact, data_format="NCX")
        assert (results.mean.tolist(), results.variance.tolist()) == ([1, 3], [1, 9])
        assert results.count == 2**32 + 2**16


#: Shapes of many chunks; each form of src_c/call/order.c.
OF_CHUNKS = [((40_000, 10), "NXC"), ((20_000, 130), "NXC"), ((30_000, 3, 20), "NCX")]
OF_CHUNKS += [((3000, 2, 200), "NCX"), ((2, 2, 400_000), "NCX")]


@pytest.mark.fast
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dims", "data_format"), OF_CHUNKS)
def test_sums_of_float64_lose_nothing_between_chunks(rng, dims, data_format, threads):
    """Each chunk's sums are whole numbers that doubles hold. Totals on the way are larger; what
    rounding takes from these comes back.
    """
    axis = cases.FORMATS[data_format]
    channels, src = dims[axis], np.ones(dims)
    mean, options = np.zeros(channels), {"data_format": data_format, "num_threads": threads}
    bn_ext.GradientSums(src, src, mean, data_format=data_format, num_threads=1)
    chunks, count = _core.last_call()["tasks"], src.size // channels
    assert chunks >= 8
    most = int(2**52 * chunks / count)
    half = rng.integers(most // 2, most, (channels, count // 2)) | 1
    numbers = np.concatenate([half, -rng.permuted(half, axis=1)], axis=1).astype(float)
    numbers[:, :5] += 1
    others = [n for k, n in enumerate(dims) if k != axis % len(dims)]
    diff_dst = np.ascontiguousarray(np.moveaxis(numbers.reshape(channels, *others), 0, axis))
    sums = bn_ext.GradientSums(src, diff_dst, mean, **options)
    cases.team_of(threads)
    results = bn_ext.batch_norm_backward(
        src, diff_dst, mean, mean + 1, None, epsilon=0.0, sums=sums, **options
    )
    for name in ("diff_gamma", "diff_beta"):
        assert getattr(results, name).tolist() == [5.0] * channels, name
