"""Exact sums agree with fractions, whatever the values and the parts."""

import functools
import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from cases import (
    DATA_DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    all_bits,
    dtype,
    in_thread,
    shapes,
    team_of,
)  # fmt: skip
from exact_sums import MOMENTS, are_units, exact_sum, exact_sums, far_from_0, statistics
from members import MEMBERS, problem
from needs import needs_cpus

import bn_ext
from bn_ext import _core
from bn_ext.testing._limits import arithmetic

pytestmark = [pytest.mark.fast, pytest.mark.results]

gradients_of = functools.partial(bn_ext.GradientSums, exact=True)
moments_of = functools.partial(bn_ext.Statistics, exact=True)


def sums_of(part):
    return _core.state_sums(part.array, part._format)


SHAPES = shapes("3x2 50x7 700x5 133x64 20x300 10x4x3x9", "NXC")
SHAPES += shapes("6x9x5x7 3x2x33x31 9x3x2x2 1x2x5000 64x30x3 2x6x17", "NCX")
KINDS = ["normal", "wide", "widest", "lognormal", "rare", "cancelling"]
KINDS += ["subnormal", "tiny", "zeros", "largest", "nonfinite"]


def values(rng, kind, shape, name):
    wide, smallest = (900, 1e-310) if arithmetic(name) == "float64" else (100, 1e-41)
    x = rng.standard_normal(shape)
    mask = rng.random(shape) < 0.5
    if kind == "wide":
        x *= 2.0 ** rng.integers(-wide, wide, shape)
    elif kind == "widest":  # nearly all exponents
        x = np.ldexp(x, rng.integers(-1060, 1000, shape) // (1 if wide == 900 else 8))
    elif kind == "lognormal":
        x *= np.exp(3 * rng.standard_normal(shape))
    elif kind == "rare":  # a few are far smaller than the rest
        x.flat[rng.integers(x.size, size=3)] *= smallest**0.5
    elif kind == "cancelling":
        half = len(x) // 2
        x *= 1e6
        x[:half] = -x[half : 2 * half]
        x.flat[0] += 1e-9
    elif kind == "subnormal":
        x[mask] *= smallest
    elif kind == "tiny":  # squares vanish
        x = np.ldexp(x, -int(rng.integers(40, 140) if wide == 100 else rng.integers(400, 1060)))
    elif kind == "zeros":
        x[mask] = 0
        x *= rng.choice([1, -1], shape)
    elif kind == "largest":
        x[mask] = float(np.finfo(arithmetic(name)).max)
        x *= rng.choice([1, -1], shape)
    elif kind == "nonfinite":
        x[rng.random(shape) < 0.01] = rng.choice([np.nan, np.inf, -np.inf])
    with np.errstate(all="ignore"):
        return x.astype(dtype(name))


def by_columns(a, data_format, name):
    axis = FORMATS[data_format]
    return np.moveaxis(a, axis, -1).reshape(-1, a.shape[axis]).astype(arithmetic(name))


@pytest.mark.parametrize("name", DATA_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_fractions(rng, kind, name):
    chosen = [SHAPES[i] for i in rng.permutation(len(SHAPES))[: len(SHAPES) // 2]]
    for (shape, data_format), threads in zip(chosen, itertools.cycle([1, 2]), strict=False):
        src, diff_dst = values(rng, kind, shape, name), values(rng, kind, shape, name)
        if rng.random() < 0.3:  # another order of axes in memory, for src or both
            src = np.asfortranarray(src)
            diff_dst = np.asfortranarray(diff_dst) if rng.random() < 0.5 else diff_dst
        mean = rng.standard_normal(shape[FORMATS[data_format]]).astype(arithmetic(name))
        x, dy = by_columns(src, data_format, name), by_columns(diff_dst, data_format, name)
        options = {"data_format": data_format, "num_threads": threads}
        with np.errstate(all="ignore"):
            gradients = exact_sums(dy, dy * (x - mean))
        part = gradients_of(src, diff_dst, mean, **options)
        team_of(threads)
        assert np.array_equal(sums_of(part), gradients, equal_nan=True)
        part = moments_of(src, **options)
        moments = [exact_sums(x)[0], [exact_sum(column, squared=True) for column in x.T]]
        assert np.array_equal(sums_of(part), moments, equal_nan=True)
        check_statistics(part, x)


def ulps_between(got, true):
    try:
        unit_of_last = Fraction(math.ulp(float(true)))
    except OverflowError:
        return 0 if got == np.inf else np.inf
    return abs(Fraction(got) - true) / unit_of_last


def check_statistics(batch, x):
    """The mean is within 0.5001 ulp of fractions, the variance within 1.51; small ones: 1 and 2."""
    batch = batch.mean, batch.variance
    for c, column in enumerate(x.T):
        if not np.isfinite(column).all():
            assert not np.isfinite(batch[0][c])
            assert np.isnan(batch[1][c])
            continue
        bounds = (0.5001, 1, 2.0**-1022), (1.51, 2, 2.0**-1020)
        for array, true, (ulps, of_small, small) in zip(
            batch, statistics(column), bounds, strict=True
        ):
            got = float(array[c])
            assert ulps_between(got, true) <= (of_small if abs(true) < small else ulps)
            assert got or not true or abs(true) < 2.0**-1074


def check_terms(terms, channels=(0,)):
    gradients = gradients_of(np.ones_like(terms), terms, np.zeros_like(terms[0]))
    for part, squared in ((gradients, False), (moments_of(terms), True)):
        for c in channels:
            assert are_units(part.array, 0, c, terms[:, c])
            assert are_units(part.array, 1, c, terms[:, c], squared=squared)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_terms_of_every_size(rng, name):
    ends = (-1080, 1023) if name == "float64" else (-155, 127)
    x, number = rng.standard_normal((300, 64)), np.dtype(name).type
    near = (*range(495, 520), *range(1015, 1024)) if name == "float64" else range(120, 128)
    for exponent in (*range(*ends, 17), *near):
        src = np.ldexp(x, exponent - 2).astype(name)
        src[:, 62:] = np.nextafter(np.ldexp(number(1), exponent), number(0))  # mantissas of ones
        check_terms(src, (0, 62))


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("rows", [31, 63])
def test_terms_that_fill_their_anchors(name, rows):
    """Large terms of one sign, whose mantissas are ones down to the bit `last`, and one small term
    with the lowest bit of all: at some exponent, they need another anchor. So do their squares, and
    what rounding takes from these.
    """
    number, eps = np.dtype(name).type, np.finfo(name).eps
    for top in range(52):
        for last in (eps, *np.ldexp(number(1), [-12, -13, -17, -18, -26])):
            x = np.full((rows, 128), np.ldexp(2 - last, top), name)
            x[0] = 1 + last
            check_terms(x)


def test_limbs_are_carried_before_they_overflow():
    """Each 1.99... adds 2^40 - 1 to a limb of 63 bits. Because of a large and a tiny number in each
    portion, terms go to limbs one by one.
    """
    block, times = np.full(1024, np.nextafter(2.0, 0)), (1 << 13) + 64
    block[:2] = 2.0**400, 2.0**-400
    part = moments_of(np.tile(block, times)[None, None], data_format="NCX", num_threads=1)
    for s in (0, 1):
        assert are_units(part.array, s, 0, block, squared=s == 1, times=times)


@needs_cpus
def test_two_threads_add_to_a_state_at_once(rng):
    """The smallest sum that two threads share; they end together, now and then."""
    src = rng.standard_normal((264, 1024), dtype=np.float32)
    alone = moments_of(src, num_threads=1).array
    for _ in range(1000):
        assert np.array_equal(moments_of(src, num_threads=2).array, alone)
        assert team_of(2) == 2


@needs_cpus
@pytest.mark.parametrize("dims", [(40_000, 40), (70_000, 3), (300, 700)])
def test_by_default_exact_sums_have_several_threads_and_the_bits_of_one(rng, dims):
    """In parts and in a whole call."""
    p = Problem(rng, dims, "NXC")
    exactly = functools.partial(p.run, bn_ext.batch_norm_backward, exact=True)
    assert in_thread(lambda: all_bits(exactly())) == all_bits(exactly(num_threads=1))
    for sums in (moments_of, functools.partial(gradients_of, diff_dst=p.diff_dst, mean=p.mean)):
        total, threads = in_thread(lambda sums=sums: (sums(p.src), _core.last_call()["threads"]))
        assert threads > 1
        assert np.array_equal(total.array, sums(p.src, num_threads=1).array)


def test_exact_means_that_round_to_0():
    tiny = np.finfo(float).smallest_subnormal
    for column in ([-tiny, 0], [tiny, 0], [-tiny, 0, 0], [tiny, -tiny], [-0.0]):
        mean = moments_of(np.array(column)[:, None]).mean
        assert (mean, np.signbit(mean)) == (0, False), column


def test_flags_of_tasks_are_not_added():
    """Even one thread has several tasks here; two of them have a NaN."""
    x = np.ones((1, 1, 600_000), np.float32)
    x[..., [0, -1]] = np.nan
    by_one, by_two = (moments_of(x, data_format="NCX", num_threads=threads) for threads in (1, 2))
    assert team_of(2) == 2
    assert np.array_equal(by_one.array, by_two.array)


def patchwork(rng, rows, channels, name):
    """Ranges of rows, each with its own kind of values, so that a way of adding that is exact for
    one range may round in the next. Some columns have a NaN or an Inf.
    """
    x, row, top = np.ones((rows, channels), dtype(name)), 0, np.finfo(arithmetic(name)).max ** 0.45
    while row < rows:
        block = x[row : row + int(rng.integers(20, 500))]
        block[...] = values(rng, rng.choice(KINDS[:-1]), block.shape, name)
        row += len(block)
    x[~(abs(x.astype(float)) < top)] = 1  # products do not overflow
    columns = rng.integers(max(channels // 2, 1), size=2 + channels // 10)
    x[rng.integers(rows, size=len(columns)), columns] = rng.choice([np.nan, np.inf], len(columns))
    return x


#: {name: (channels, elements of a run)}. A run has 1 element with channels last; "one run" is a
#: whole channel.
WALKS = {
    "rows": (130, 1),
    "several positions in a row": (3, 1),
    "short runs": (40, 16),
    "runs": (40, 250),
    "one run": (3, 100_000),
}


@pytest.mark.parametrize("name", DATA_DTYPES)
@pytest.mark.parametrize("walk", WALKS)
def test_exponents_that_change(rng, walk, name):
    channels, run = WALKS[walk]
    rows = 300_000 // channels // run * run
    for num_threads in (1, 2):
        x, dy = (patchwork(rng, rows, channels, name) for _ in "ab")
        mean = rng.standard_normal(channels).astype(arithmetic(name))
        src, diff_dst = x, dy
        if run > 1:
            runs = (a.reshape(-1, run, channels) for a in (x, dy))
            src, diff_dst = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in runs)
        options = {"data_format": "NCX" if run > 1 else "NXC", "num_threads": num_threads}
        with np.errstate(all="ignore"):
            products = dy.astype(arithmetic(name)) * (x.astype(arithmetic(name)) - mean)
        for part, terms in (
            (gradients_of(src, diff_dst, mean, **options), (dy, products)),
            (moments_of(src, **options), (x, x)),
        ):
            assert team_of(num_threads) == num_threads
            state, sums = part.array, sums_of(part)
            assert np.array_equal(state, _core.canonical_state(state, part._format))
            for s, column in enumerate(terms):
                squared = s == 1 and len(state) in MOMENTS
                finite = np.isfinite(column)
                assert finite.all(axis=0).any()
                with np.errstate(invalid="ignore"):
                    beyond = np.where(finite, 0, column.astype(np.float64))
                    special = (beyond**2 if squared else beyond).sum(axis=0)
                wrong = ~finite.all(axis=0)
                np.testing.assert_array_equal(sums[s][wrong], special[wrong])
                for c in range(0, channels, 1 + squared * channels // 3):
                    assert are_units(state, s, c, column[finite[:, c], c], squared=squared)


@pytest.mark.parametrize("shape", [(1057, 40), (8449, 5), (12_673, 3), (16_897, 2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_last_chunk_of_less_than_a_row(rng, shape, threads):
    src, diff_dst = rng.integers(-9, 10, (2, *shape)).astype(np.float32)
    options = {"data_format": "NXC", "num_threads": threads}
    sums = sums_of(gradients_of(src, diff_dst, np.zeros(shape[1], np.float32), **options))
    assert team_of(threads) == threads
    assert np.array_equal(sums, [diff_dst.sum(axis=0), (src * diff_dst).sum(axis=0)])
    assert np.array_equal(sums_of(moments_of(src, **options)), [src.sum(0), (src * src).sum(0)])


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("rest", [0, 1])
def test_a_nan_of_ones_is_a_nan(name, rest):
    src = np.full((500, 3), rest, name)
    src.view(f"int{8 * src.itemsize}")[7, 1] = -1
    assert np.isnan(sums_of(moments_of(src, data_format="NXC"))[:, 1]).all()
    part = gradients_of(np.ones_like(src), src, np.zeros(3, name), data_format="NXC")
    assert np.isnan(sums_of(part)[:, 1]).all()


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("run", [1, 2, 3])
def test_counts_of_the_shortest_runs(rng, run, name):
    """Because of the gaps, each run is a row; all rows are added in the same few lanes. The last
    terms, of one sign and just below a power of two, are the largest for which an anchor
    (exact.inc) works.
    """
    number = np.dtype(name).type
    narrow = rng.uniform(1, 2, 30_000) * 2.0 ** rng.integers(-20, 20, 30_000)
    for top in (32, 33, 34):
        large = np.full(90_000, np.nextafter(number(2.0**top), number(0)))
        dy = np.concatenate((narrow.astype(name), large))
        diff_dst, src = np.zeros((2, len(dy) // run, 2, run + 1), name)[..., :run]
        diff_dst[:, 0] = dy.reshape(-1, run)
        diff_dst[:, 1] = -diff_dst[:, 0]
        mean = np.ones(2, name)
        state = gradients_of(src, diff_dst, mean, data_format="NCX", num_threads=1).array
        for c, sign in enumerate((1, -1)):
            assert are_units(state, 0, c, sign * dy)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_ties(rng, name):
    """Ties are made by hand: random data has no lone bit far below half an ulp. The ties are among
    terms that cancel, so that every way of adding meets them.
    """
    for rows in (3, 41, 701):
        for odd, tiny, sign in itertools.product((0, 1), (-140, -130, 0), (1, -1)):
            terms = np.zeros((rows, 70))
            terms[0] = 1 + odd * 2.0**-23
            terms[1] = 2.0**-53
            terms[2] = -np.sign(tiny) * 2.0**tiny if tiny else 0
            shape = (rows - 3) // 2, 70
            others = np.ldexp(rng.integers(-99, 99, shape), rng.integers(-40, 40, shape))
            terms[3::2], terms[4::2] = others, -others
            terms = rng.permutation(terms)
            src = (sign * terms).astype(name)
            results = sums_of(moments_of(src))
            assert np.array_equal(results[0], exact_sums(src)[0])
            up = sign * (1 + odd * 2.0**-23 + 2.0**-52)
            assert (results[0] == up).all() == (tiny != 0)


def merged(rng, parts):
    parts = list(parts)
    while len(parts) > 1:
        a, b = (parts.pop(int(rng.integers(len(parts)))) for _ in "ab")
        total = a + b
        parts.append(pickle.loads(pickle.dumps(total)) if rng.random() < 0.5 else total)
    return parts[0]


def dealt(rng, samples):
    cuts = np.sort(rng.integers(0, samples + 1, int(rng.integers(0, 5))))
    return np.split(rng.permutation(samples), cuts)


@pytest.mark.parametrize("name", DATA_DTYPES)
@pytest.mark.parametrize("kind", ["normal", "wide", "nonfinite"])
def test_any_parts_give_the_same_bits(rng, kind, name):
    samples, channels = 23, 5
    p = Problem(rng, (samples, 6, channels), "NXC", name)
    p.src, p.diff_dst = (values(rng, kind, p.src.shape, name) for _ in "ab")
    whole = p.run(bn_ext.batch_norm_backward, exact=True)
    batch = bn_ext.batch_norm_training(p.src, epsilon=EPSILON, data_format="NXC", exact=True)
    for data_format in ["NXC", "NCX", "NXC"]:
        axes = (0, 2, 1) if data_format == "NCX" else (0, 1, 2)
        options = {"data_format": data_format}
        laid = [np.ascontiguousarray(a.transpose(axes)) for a in (p.src, p.diff_dst)]
        parts = [(part, *(a[part] for a in laid)) for part in dealt(rng, samples)]
        total = merged(rng, (gradients_of(x, dy, p.mean, **options) for _, x, dy in parts))
        statistics = merged(rng, (moments_of(x, **options) for _, x, _ in parts))
        assert all_bits([statistics.mean, statistics.variance]) == all_bits(batch[1:])
        assert total.count == statistics.count == samples * 6
        diff_src = np.empty_like(p.src)
        for part, x, dy in parts:
            own = p.run(bn_ext.batch_norm_backward, x, dy, sums=total, **options)
            diff_src[part] = own.diff_src.transpose(axes)
            assert all_bits(own[1:]) == all_bits(whole[1:])
        assert diff_src.tobytes() == whole.diff_src.tobytes()


@pytest.mark.parametrize("name", DATA_DTYPES)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("member", [member for member in MEMBERS if member.endswith(", exact")])
def test_one_call_has_the_options_of_the_other(rng, member, data_format, name):
    p = problem(rng, (8, 3, 5), data_format, name)
    for is_training in (True, False):
        exact, plain = (
            itertools.chain(*MEMBERS[way].call(p, is_training=is_training))
            for way in (member, member.removesuffix(", exact"))
        )
        for a, b in zip(exact, plain, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_mean_finer_than_the_data(rng, name):
    p = Problem(rng, (4000, 3), "NXC", name, "float64", ratio=1000.0)
    p.mean = p.mean + 1e-6
    # Large sums of diff_dst show the difference.
    p.diff_dst = (p.diff_dst + np.float32(1)).astype(p.diff_dst.dtype)
    results = p.run(bn_ext.batch_norm_backward, exact=True)
    plain = p.run(bn_ext.batch_norm_backward)
    np.testing.assert_allclose(results.diff_gamma, plain.diff_gamma, rtol=1e-4)
    finer, rounded = (
        sums_of(gradients_of(p.src, p.diff_dst, mean))
        for mean in (p.mean, p.mean.astype(np.float32))
    )
    assert np.array_equal(finer, rounded)


@pytest.mark.parametrize("name", DATA_DTYPES)
def test_the_mean_is_right_and_squares_are_about_it(rng, name):
    """Even if the mean is far from 0, or sums overflow; in one call and in parts."""
    src = far_from_0(rng, name)
    src = src[:, np.isfinite(src.astype(float)).all(axis=0)]
    results = bn_ext.batch_norm_training(src, epsilon=0.0, exact=True)
    total = merged(rng, map(moments_of, np.split(rng.permutation(src), [1, 300])))
    assert all_bits([total.mean, total.variance]) == all_bits(results[1:])
    check_statistics(total, by_columns(src, "NXC", name))
    for c, variance in enumerate(results.variance):
        if statistics(src[:, c])[1] == 0:
            assert variance == 0
            assert np.isnan(results.dst[:, c].astype(float)).all()


@pytest.mark.parametrize("name", DATA_DTYPES)
def test_a_constant_channel_of_any_length(name):
    constants = [0.1, 1 / 3, np.pi, -300.7, 5e-324 * 7]
    constants += [1e300, 1.7e308, np.finfo(float).max] if name == "float64" else []
    src = np.array([constants] * 400).astype(dtype(name))
    for count in (*range(1, 30), 123, 399):
        results = bn_ext.batch_norm_training(src[:count], epsilon=1.0, exact=True)
        assert np.array_equal(results.mean, src[0].astype(float)), count
        assert not results.variance.any()
        assert not results.dst.any()


def test_integers_that_do_not_go_together(rng):
    p = Problem(rng, (40, 3), "NXC")
    nearby = p.mean.copy()
    nearby[1] = np.nextafter(nearby[1], np.float32(9))
    finer = p.mean.astype(float) + 2.0**-40
    short = p.src.astype(np.float16), p.diff_dst.astype(np.float16)
    data = p.src, p.diff_dst
    for arguments, mean, added in (
        (data, nearby, data),
        (data, finer, data),
        (short, p.mean, data),
        (data, p.mean, short),
    ):
        total = gradients_of(*arguments, mean)
        total.array[...] += gradients_of(*added, p.mean).array
        with pytest.raises(ValueError, match="sums: expected parts that were all summed about"):
            p.run(bn_ext.batch_norm_backward, *arguments, mean=mean, sums=total)
    total, wide = moments_of(p.src), moments_of(short[0])
    total.array[...] += wide.array
    for use in (
        lambda: total.mean,
        lambda: total.variance,
        lambda: total.update_running(*np.zeros((2, 3)), 0.1, 0),
    ):
        with pytest.raises(ValueError, match="^array: expected a sum of parts of float32 data"):
            use()


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_means_that_are_no_numbers_are_alike(rng, name):
    """A NaN's bits and a 0's sign do not matter: another machine or sum may give others."""
    p = Problem(rng, (40, 3), "NXC", name)
    several = np.zeros((4, 3), p.mean.dtype)
    several[:, 0] = [np.nan, -np.nan, np.nan, -np.nan]
    several.view(f"i{several.itemsize}")[2:, 0] += [1, 77]
    several[1::2, 1] = -0.0
    total = sum(gradients_of(p.src, p.diff_dst, mean) for mean in several)
    for mean in several:
        results = p.run(bn_ext.batch_norm_backward, mean=mean, sums=total)
        assert np.isnan(results.diff_gamma).tolist() == [True, False, False]
