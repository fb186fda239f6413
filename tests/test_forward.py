"""The forward pass: statistics, normalized data, fused operations, running statistics."""

from fractions import Fraction

import cases
import hostile_data
import numpy as np
import pytest
from bounds import dst_error, statistics_errors
from cases import DATA_DTYPES, DTYPES, EPSILON, Family, all_bits, dtype, shape, shapes, team_of
from exact_sums import statistics
from needs import needs_long_double

import bn_ext
from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import arithmetic, unit
from bn_ext.testing._wide import wide_of

pytestmark = [pytest.mark.fast, pytest.mark.results]
AFFINE = ("gamma", "beta")
#: Shapes of each form in src_c/call/order.c, divided in several ways.
SHAPES = shapes("1x8 3x5 700x7 300x130", "NXC")
SHAPES += shapes("2x3x5 37x6x7x7 2x3x1500 70x2x256 1x2x20001", "NCX")


def training(p, *names, **options):
    return p.take(bn_ext.batch_norm_training, "src", *names, **options)


def inference(p, **options):
    names = "src", "mean", "variance", *AFFINE
    return p.take(bn_ext.batch_norm_inference, *names, **options)


def wanted(p, *names, **options):
    return p.take(
        reference.batch_norm_training,
        "src",
        *names,
        axis=p.axis,
        wide=wide_of(p.src.dtype.name),
        **options,
    )


@pytest.mark.parametrize("ratio", [0, 1, 1e3])
@pytest.mark.parametrize(("dims", "data_format"), SHAPES, ids=str)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_statistics_of_random_data_are_nearly_exact(rng, data, dims, data_format, ratio):
    """The errors are a few u, although the bounds allow far more."""
    p = Family(rng, dims, data_format, data, ratio=ratio)
    batch = bn_ext.Statistics(p.src, data_format=data_format)
    errors = statistics_errors(batch.mean, batch.variance, wanted(p), data)
    u = unit(arithmetic(data))
    assert (errors["mean"].off <= 4 * u * wanted(p).deviation + u * abs(batch.mean)).all()
    assert (errors["variance"].off <= 4 * u * wanted(p).variance).all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("data_format", cases.FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_inference(rng, data, vector, data_format, added, relu):
    for dims in (shape(6, 5, 7, data_format), shape(3, 2, 900, data_format)):
        p = Family(rng, dims, data_format, data, vector)
        src_1 = p.src_1 if added else None
        dst = inference(p, src_1=src_1, relu=relu)
        names = ["src", "mean", "variance", *AFFINE]
        options = {"axis": p.axis, "src_1": src_1, "relu": relu, "wide": wide_of(data)}
        want = p.take(reference.batch_norm_inference, *names, **options)
        assert dst.dtype == dtype(data)
        assert dst_error(dst, want, data, p.axis, from_batch=False, added=added).holds()
        assert not relu or (dst >= 0).all()


SCALES = [("float32", -70), ("float32", -100), ("bfloat16", 100), ("bfloat16", -100)]
SCALES += [("float64", 500), ("float64", -500)]


@pytest.mark.parametrize("ratio", [0, 1, 1e4])
@pytest.mark.parametrize(("dims", "data_format"), SHAPES, ids=str)
@pytest.mark.parametrize(("data", "power"), SCALES)
def test_statistics_of_data_times_a_power_of_two(rng, data, power, dims, data_format, ratio):
    """If squares underflow, elements and pivot are scaled alike, which changes no bit."""
    p = Family(rng, dims, data_format, data, ratio=ratio)
    scaled = (p.src.astype(np.float64) * 2.0**power).astype(p.src.dtype)
    as_it_is, larger = (bn_ext.Statistics(a, data_format=data_format) for a in (p.src, scaled))
    want = np.ldexp(as_it_is.mean, power), np.ldexp(as_it_is.variance, 2 * power)
    if power < 0:
        assert all_bits([larger.mean, larger.variance]) == all_bits(want)
    else:  # if squares overflow, the pivot is reset to 0
        np.testing.assert_allclose([larger.mean, larger.variance], want, rtol=1e-6)


def test_squares_that_vanish_where_none_is_sampled():
    src = np.full((100, 3), 3e-30, np.float32)
    src[30:40] = 5e-30
    results = bn_ext.batch_norm_training(src, epsilon=0.0)
    assert np.allclose(results.dst[30], 3, rtol=1e-6)
    assert np.allclose(results.dst[0], -1 / 3, rtol=1e-6)


@pytest.mark.parametrize(
    "data", ["float32", "bfloat16", pytest.param("float64", marks=needs_long_double)]
)
def test_deviations_that_count_as_none(data):
    """A channel counts as constant if no square is above 0, the sum is 0 and all sampled elements
    are equal (docs/forward.md). If one condition just fails, it does not. The bounds hold either
    way.
    """
    kind, number = dtype(data), np.float64 if data == "float64" else np.float32
    d = kind.type(2.0 ** (-537.5 if data == "float64" else -75))
    while number(d) * number(d) > 0:
        d = np.nextafter(d, kind.type(0))
    next_number = np.nextafter(d, kind.type(1))
    src = np.zeros((4096, 4), kind)
    src[11, :3], src[12, :3] = [d, next_number, d], [-d, -next_number, d]
    src[212, 3], src[886, 3] = d, -d  # sampled, and balanced: the pivot stays 0
    results = bn_ext.batch_norm_training(src, epsilon=0.0)
    # A variance of float64 data is then below the smallest double.
    assert (results.variance > 0).tolist() == [False, *[data != "float64"] * 3]
    want = reference.batch_norm_training(src, epsilon=0.0, wide=wide_of(data))
    for error in statistics_errors(*results[1:], want, data).values():
        assert (error.off <= error.bound).all()
    assert not np.isfinite(results.dst[:, 0].astype(np.float64)).any()  # as in a constant channel
    assert abs(bn_ext.batch_norm_training(src, epsilon=1e-5).dst.astype(np.float64)).max() < 1e-15


@pytest.mark.parametrize("value", [0.0, 3.1, -1e30, 1e-42])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_constant_channel_has_no_variance(data, value):
    for dims, data_format in SHAPES:
        with np.errstate(over="ignore"):
            src = np.full(dims, value, np.float32).astype(dtype(data))
        batch = bn_ext.Statistics(src, data_format=data_format)
        constant = src.flat[0].astype(np.float64)
        if np.isfinite(constant):
            assert (batch.mean == constant).all()
            assert (batch.variance == 0).all()


#: Data of few bits, in sixteenths.
GRIDS = {
    "multiples of 1/16": lambda rng, dims: rng.integers(-8, 9, dims),
    "about 5": lambda rng, dims: rng.integers(80, 97, dims),
    "0 and 1": lambda rng, dims: 16 * rng.integers(0, 2, dims),
    "seldom above 0": lambda rng, dims: (rng.random(dims) < 0.05) * rng.integers(0, 9, dims),
}


def exact_statistics(sixteenths):
    sums = [(int(row.sum()), int((row * row).sum()), len(row)) for row in sixteenths]
    mean = [float(Fraction(s, 16 * m)) for s, _, m in sums]
    return np.array(mean), np.array(
        [float(Fraction(q * m - s * s, (16 * m) ** 2)) for s, q, m in sums]
    )


def check_exact_statistics(src, data_format, sixteenths, powers=0, **options):
    """They are exact values, rounded to float32, or to float64 if the mean has few bits. Channels
    are scaled by 2 to these powers.
    """
    want, m = exact_statistics(sixteenths), sixteenths.shape[1]
    options = {"data_format": data_format, **options}
    batch = bn_ext.Statistics(src, **options)
    whole = bn_ext.batch_norm_training(src, epsilon=EPSILON, **options)
    assert all_bits(whole[1:]) == all_bits([batch.mean, batch.variance])
    for got, exact, power in zip((batch.mean, batch.variance), want, (1, 2), strict=True):
        got = np.ldexp(got, -power * powers)
        if m & (m - 1) == 0:
            np.testing.assert_array_equal(got, exact, src.shape)
        else:
            spread = np.sqrt(want[1]) ** power + abs(want[0])
            assert (abs(got - exact) <= 1e-14 * spread).all(), src.shape
        if src.dtype != np.float64:
            np.testing.assert_array_equal(got.astype("f4"), exact.astype("f4"), src.shape)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_statistics_of_data_of_few_bits_are_exact(rng, data, grid):
    """At every length, even the shortest: distances from the pivot have few bits, too."""
    short = [(n, 5, x) for n in range(1, 21) for x in (1, 2, 3, 4, 5, 7, 8, 9, 16)]
    long = [(4096, 7, 1), (300, 130, 1), (35, 6, 49), (2, 3, 1500), (70, 2, 256), (1, 2, 20_001)]
    for dims in short + long:
        sixteenths = GRIDS[grid](rng, dims)
        src = (sixteenths / 16).astype(dtype(data))
        rows = reference.by_channel(sixteenths, 1)
        check_exact_statistics(src, "NCX", rows)
        check_exact_statistics(np.ascontiguousarray(np.moveaxis(src, 1, -1)), "NXC", rows)


@pytest.mark.parametrize("form", [f for f in hostile_data.FORMS if "position" not in f])
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_so_they_are_where_the_pivot_is_far_off(rng, data, form):
    sixteenths = rng.integers(-8, 9, hostile_data.size_of(form, data))
    sixteenths[:, hostile_data.sampled(form, data)] += 48
    src = hostile_data.laid_out((sixteenths / 16).astype(dtype(data)), form)
    check_exact_statistics(src, hostile_data.FORMS[form][0], sixteenths)


#: (positions, channels, run): rows of several positions (below 128 channels) and of one; short and
#: long runs; one chunk and several, one part of a tile and several.
WIDTHS = (2, 16, 17, 63, 64, 65, 66, 100, 127, 128, 129, 200)
AGAIN = [(n, c, 1) for n in (40, 700) for c in WIDTHS]
AGAIN += shapes("1100x100x1 4300x65x1 5000x30x1 19500x96x1 2700x200x1 20x1100x1 9000x1x1")
AGAIN += shapes("20x3x5 6x200x7 40x70x9 140x66x3 300x129x2 10x1100x2 2x130x50 9x66x200")
AGAIN += shapes("140x3x256 2x65x8300 1x2x40000")
#: Powers by which a channel is scaled so that squares vanish or overflow.
BEYOND = {"float32": (-80, 80), "bfloat16": (-80, 80), "float64": (-500, 510), "float16": (0, 0)}


@pytest.mark.parametrize("dims", AGAIN, ids=str)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_so_they_are_where_channels_are_summed_again(rng, data, dims):
    """All channels or one, for one reason or two, beside channels that are summed once."""
    positions, channels, run = dims
    sampled = hostile_data.sampled_of(*((1, positions * run) if channels == 1 else dims[::2]))
    for chosen in (np.full(channels, True), np.arange(channels) == rng.integers(channels)):
        sixteenths = rng.integers(-8, 9, (channels, positions * run))
        powers = np.where(chosen, rng.choice([0, *BEYOND[data]], channels), 0)
        far = np.flatnonzero(chosen & ((powers == 0) | (rng.random(channels) < 0.5)))
        sixteenths[far[:, None], sampled] += 48
        rows = np.ldexp(sixteenths / 16, powers[:, None]).astype(dtype(data))
        src = np.moveaxis(rows.reshape(channels, positions, run), 0, 1)
        for num_threads in (1, 3):
            check_exact_statistics(
                np.ascontiguousarray(src), "NCX", sixteenths, powers, num_threads=num_threads
            )
            team_of(num_threads)


@pytest.mark.parametrize("data_format", cases.FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_pivot_that_is_far_off(rng, data, data_format):
    """Each channel has its own element far off; it may be sampled."""
    m = 600
    far = 0.01 * rng.standard_normal((m, m)) + 1000 * np.eye(m)
    part = far[:: 3 if data_format == "NXC" else 1]
    src = np.ascontiguousarray(part.T if data_format == "NXC" else part[None]).astype(dtype(data))
    batch = bn_ext.Statistics(src, data_format=data_format)
    want = reference.batch_norm_training(
        src, epsilon=EPSILON, axis=cases.FORMATS[data_format], wide=wide_of(data)
    )
    errors = statistics_errors(batch.mean, batch.variance, want, data)
    assert all((error.off <= error.bound).all() for error in errors.values())
    assert (errors["variance"].off <= 8 * unit(arithmetic(data)) * want.variance).all()


def test_gates_of_what_is_no_number(rng):
    src = np.array([[np.nan], [-1.0], [-0.0], [2.0], [np.inf], [-np.inf]])
    ones, zeros = np.ones(1), np.zeros(1)
    dst = bn_ext.batch_norm_inference(src, zeros, ones, epsilon=0.0, relu=True).ravel()
    assert np.array_equal(dst, [np.nan, 0, 0, 2, np.inf, 0], equal_nan=True)
    assert not np.signbit(dst).any()


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("factor", [0, 0.3, 1, 2])
@pytest.mark.parametrize("running", DATA_DTYPES)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_running_statistics(rng, data, running, factor, correction):
    """They are (1 - factor) * old + factor * new in doubles, rounded once: an infinite one stays
    infinite, a factor of 0 hides no NaN, as in torch and TensorFlow. Only a factor of 1 does not
    read what was there.
    """
    p = Family(rng, (6, 5, 7), "NXC", data)
    p.src[0, 0, 2] = np.nan
    old = [a.astype(dtype(running)) for a in (p.running_mean, p.running_variance)]
    old[0][:2], old[0][3], old[1][4] = (np.inf, -np.inf), np.nan, np.nan
    new = [a.copy() for a in old]
    options = {"exponential_avg_factor": factor, "correction": correction}
    results = training(p, running_mean=new[0], running_variance=new[1], **options)
    assert all_bits(results) == all_bits(training(p))
    batch = bn_ext.Statistics(p.src, data_format="NXC")
    variance = batch.unbiased_variance if correction else batch.variance
    for got, before, statistic in zip(new, old, (batch.mean, variance), strict=True):
        want = (
            (1 - factor) * before.astype(float) + factor * statistic if factor != 1 else statistic
        )
        rounded = want.astype(dtype(running))
        np.testing.assert_array_equal(got.astype(float), rounded.astype(float))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("ratio", [0, 1000])
@pytest.mark.parametrize(("dims", "data_format"), SHAPES, ids=str)
def test_a_variance_that_fits_although_squares_do_not(rng, dims, data_format, ratio, exact):
    src = np.ldexp(rng.standard_normal(dims) + ratio, 510)
    axis = cases.FORMATS[data_format]
    channels, m = dims[axis], src.size // dims[axis]
    options = {"data_format": data_format, "epsilon": 0.0}
    running = {name: np.zeros(channels) for name in ("running_mean", "running_variance")}
    results = bn_ext.batch_norm_training(
        src, exact=exact, exponential_avg_factor=1, correction=int(m > 1), **running, **options
    )
    cuts = 0, 1, len(src) // 2, len(src) // 2
    merged = sum(
        bn_ext.Statistics(part, data_format=data_format, exact=exact)
        for part in np.split(src, cuts)
    )
    assert np.array_equal(results.mean, running["running_mean"])
    if exact:
        assert all_bits([merged.mean, merged.variance]) == all_bits(results[1:])
    columns = reference.by_channel(src, axis)
    for c, (mean, variance) in enumerate(map(statistics, columns)):
        deviation = float(variance) ** 0.5
        most = 4 if exact else 30
        for got, want, u in (
            (results.variance, variance, most),
            (running["running_variance"], variance * m / max(m - 1, 1), most),
            (merged.variance, variance, most if exact else most * (1 + ratio**2)),
        ):
            assert abs(Fraction(got[c]) - want) <= u * unit("float64") * want
        assert abs(Fraction(results.mean[c]) - mean) <= 30 * unit("float64") * deviation * (
            1 + ratio
        )
        if variance:
            true = (columns[c] - float(mean)) / deviation
            got = reference.by_channel(results.dst, axis)[c]
            assert abs(got - true).max() <= 1e-14 * (1 + ratio) * max(1, abs(true).max())


@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_training_is_inference_with_its_statistics(rng, data, vector):
    for dims, data_format in SHAPES:
        p = Family(rng, dims, data_format, data, vector, ratio=100)
        whole = training(p, *AFFINE)
        p.mean, p.variance = whole.mean, whole.variance
        assert inference(p).tobytes() == whole.dst.tobytes()


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_a_constant_channel_is_beta_within_the_range(data):
    """Where rstd or gamma * rstd leaves the arithmetic's range, and only there, dst is NaN."""
    src, wide = np.full((4, 2), 3, dtype(data)), data == "float64"
    cases = [(1e-5, 1, True), (9e-78, 1, True), (8e-78, 1, wide), (1e-320, 1, wide)]
    cases += [(0, 1, False), (1e-40, 1e20, wide)]
    for epsilon, gamma, finite in cases:
        beta, gamma = np.array([2.0, -1.0]), np.array([gamma, 1.0])
        dst, mean, variance = bn_ext.batch_norm_training(src, gamma, beta, epsilon=epsilon)
        assert (mean.tolist(), variance.tolist()) == ([3, 3], [0, 0])
        expected = 2 if finite else np.nan
        np.testing.assert_array_equal(dst[:, 0].astype(float), np.full(4, expected))
