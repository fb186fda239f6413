"""Statistics of parts are merged, and never added."""

import itertools
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, FORMATS, as_stats, dtype
from exact_sums import statistics

import bn_ext

pytestmark = pytest.mark.quick
merge = bn_ext.batch_norm_training_merge
reduce = bn_ext.batch_norm_training_reduce


def stats_of(part):
    part = part.astype(np.longdouble)
    if not len(part):
        return as_stats(np.full((2, part.shape[1]), np.nan), 0)
    mean = part.mean(axis=0)
    return as_stats(np.float64([mean, ((part - mean) ** 2).sum(axis=0)]), len(part))


@pytest.mark.parametrize("mean", [0, 1e6])
def test_parts_are_the_whole(rng, mean):
    src = rng.standard_normal((50, 3)) + mean
    parts = [stats_of(part) for part in np.split(src, (5, 5, 6, 30))]
    found = merge(parts)
    assert np.allclose(found, stats_of(src), rtol=1e-9 if mean else 1e-13, atol=0)
    assert (found[2:] == [[50], [1]]).all()
    assert merge(np.array(parts)).tobytes() == found.tobytes()
    assert merge(tuple(part.tolist() for part in parts)).tobytes() == found.tobytes()
    of_merged = merge([merge(parts[:2]), merge(parts[2:])])
    assert np.allclose(of_merged, found, rtol=1e-9 if mean else 1e-13, atol=0)


def test_one_part_is_itself_bit_for_bit(rng):
    """For any values, and beside empty parts."""
    special = [[-0.0, np.inf, -np.inf, np.nan], [0, np.inf, 0, np.nan]]
    for moments in (rng.uniform(1, 2, (2, 4)), special):
        part, none = as_stats(moments, 7), as_stats(np.full((2, 4), np.nan), 0)
        assert merge([part]).tobytes() == part.tobytes()
        assert merge([none, none, part, none]).tobytes() == part.tobytes()
    part = reduce(np.array([[-0.0, np.inf], [-0.0, 1.0]]))
    assert np.isinf(part[0, 1])
    assert merge([part]).tobytes() == part.tobytes()


def test_a_nan_is_the_canonical_one():
    found = merge([reduce([[np.inf]]), reduce([[1.0]])])
    assert found[:2].tobytes() == np.full((2, 1), np.nan).tobytes()


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_no_elements(parts):
    none = as_stats(np.zeros((2, 3)), 0)
    assert merge(np.array([none] * parts).reshape(parts, 4, 3)).tobytes() == none.tobytes()
    assert reduce(np.empty((0, 3))).tobytes() == none.tobytes()


@pytest.mark.parametrize(
    ("off", "counts"),
    [
        (1.6e154, (1, 1)), (1e150, (10**5, 10**5)), (-1e148, (3, 2**40)), (1e148, (2**40, 3)),
        (1.0, (2**52, 2**51)), (1e-155, (2**30, 2**31)),
    ],
)  # fmt: skip
def test_nothing_overflows_that_both_together_do_not(off, counts):
    """What the distance between two means adds to the squares, compared with fractions."""
    found = merge([as_stats([[m], [0.0]], n) for m, n in zip((0.0, off), counts, strict=True)])
    first, second = map(Fraction, counts)
    mean = Fraction(off) * second / (first + second)
    squares = Fraction(off) ** 2 * first * second / (first + second)
    for got, want in zip(found[:, 0], (mean, squares, first + second, 1), strict=True):
        assert abs(Fraction(got) - want) <= abs(want) * Fraction(1, 2**50)


def test_what_fits_a_double_is_right_however_large(rng):
    """Near the largest double, in parts of any size, compared with fractions."""
    largest = np.finfo(float).max
    for _ in range(200):
        parts = []
        for _ in range(int(rng.integers(2, 5))):
            n, scale = int(rng.integers(1, 9)), 10.0 ** rng.choice([153, 154, 307])
            parts.append(rng.uniform(-1.79, 1.79, (n, 20)) * scale)
        found = merge([reduce(part) for part in parts])
        again = merge([merge([reduce(part) for part in parts[:-1]]), reduce(parts[-1])])
        applied = bn_ext.batch_norm_training_apply(parts[0], found, epsilon=1.0)
        assert found.tobytes() == again.tobytes()
        for c, column in enumerate(np.concatenate(parts).T):
            mean, variance = statistics(column)
            assert abs(Fraction(found[0, c]) - mean) <= Fraction(abs(column).max()) / 2**49
            if variance <= Fraction(largest):
                assert abs(Fraction(applied.variance[c]) - variance) <= variance / 2**46
            elif variance > Fraction(largest) * 2:
                assert applied.variance[c] == np.inf


@pytest.mark.parametrize(
    ("means", "counts"),
    [((-1.7e308, 1.7e308), (3, 3)), ((1.7e308, -1.7e308), (1, 7)), ((1.7e308, 1.7e308), (9, 2))],
)
def test_means_as_far_apart_as_doubles_are(means, counts):
    found = merge([as_stats([[m], [0.0]], n) for m, n in zip(means, counts, strict=True)])
    mean = sum(Fraction(m) * n for m, n in zip(means, counts, strict=True)) / sum(counts)
    assert abs(Fraction(found[0, 0]) - mean) <= Fraction(1.7e308) / 2**50


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_what_reduce_gives(rng, data):
    parts = [rng.standard_normal((n, 4)).astype(dtype(data)) for n in (3, 8)]
    found = merge([reduce(part) for part in parts])
    assert np.allclose(found, stats_of(np.concatenate(parts)), rtol=1e-6)


@pytest.mark.parametrize("data_format", FORMATS)
def test_elements_are_counted_not_samples(rng, data_format):
    src = rng.standard_normal((4, 2, 3, 2))
    channels = src.shape[-1 if data_format == "NXC" else 1]
    assert (reduce(src, data_format=data_format)[2] == src.size // channels).all()
    sums = bn_ext.batch_norm_backward_reduce(src, src, [0.0] * channels, data_format=data_format)
    assert (sums[2] == src.size // channels).all()
    state = reduce(src, data_format=data_format, exact=True)
    assert (bn_ext.batch_norm_training_stats(state)[2:] == [[src.size // channels], [1]]).all()


# ---- what is refused ------------------------------------------------------------------


def ways_to_add(parts):
    """Sums as `+`, `sum`, NumPy, MPI and Dask compute them."""
    yield parts[0] + parts[1]
    yield sum(parts)
    yield np.add.reduce(parts)
    yield np.sum(parts, axis=0, keepdims=True)[0]
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    yield total


@pytest.mark.parametrize("sizes", [(5, 3), (5, 0), (4, 4, 4)])
def test_added_statistics_are_refused_by_the_name_of_what_merges(rng, sizes):
    parts = [rng.standard_normal((n, 3)) for n in sizes]
    stats = [reduce(part) for part in parts]
    message = r"^stats: .*, got [23]: were .* added\? batch_norm_training_merge merges"
    for added in ways_to_add(stats):
        with pytest.raises(ValueError, match=message):
            bn_ext.batch_norm_training_apply(parts[0], added, epsilon=EPSILON)
        for given in ([added], [stats[0], added], added[None]):
            with pytest.raises(ValueError, match=message):
                merge(given)
    one = merge(stats)
    one[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"^stats: .*, got nan: .*batch_norm_training_merge"):
        merge([one])


def test_sums_of_gradients_are_no_statistics_and_statistics_no_sums(rng):
    src = rng.standard_normal((6, 3))
    sums, stats = bn_ext.batch_norm_backward_reduce(src, src, src[0]), reduce(src)
    with pytest.raises(ValueError, match=r"^stats: .* \(4, 3\), as .*training_reduce .*\(3, 3\)$"):
        bn_ext.batch_norm_training_apply(src, sums, epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"^sums: .* \(3, 3\), as .*backward_reduce .*\(4, 3\)$"):
        bn_ext.batch_norm_backward_apply(src, src, src[0], src[0], None, stats, epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"^stats: expected shape \(k, 4, C\), got \(1, 3, 3\)$"):
        merge([sums])


def test_counts_that_are_none(rng):
    src = rng.standard_normal((6, 3))
    for wrong in (-1, 6.5, np.nan, np.inf, 2.0**53, [6, 6, 7]):
        stats = as_stats(np.ones((2, 3)), wrong)
        for call in (
            lambda stats=stats: merge([stats]),
            lambda stats=stats: bn_ext.batch_norm_training_apply(src, stats, epsilon=EPSILON),
        ):
            with pytest.raises(
                ValueError, match="^stats: expected row 2 to count the elements per channel, "
            ):
                call()
    with pytest.raises(ValueError, match="^stats: expected at least 6 elements .*, got 5$"):
        bn_ext.batch_norm_training_apply(src, as_stats(np.ones((2, 3)), 5), epsilon=EPSILON)
    half = as_stats(np.ones((2, 3)), 2.0**52)
    with pytest.raises(ValueError, match=r"^stats: expected fewer than 2\*\*53 elements .* all"):
        merge([half, half])
    huge = np.broadcast_to(np.zeros(3), (2**53, 3))
    for call in (reduce, lambda src: bn_ext.batch_norm_backward_reduce(src, src, np.zeros(3))):
        with pytest.raises(
            ValueError, match=r"^src: expected fewer than 2\*\*53 elements per channel"
        ):
            call(huge)


ONE = as_stats(np.ones((2, 3)), 1)


@pytest.mark.parametrize(
    ("kind", "message", "stats"),
    [
        (TypeError, "^stats: expected float64, got float32$", ONE[None].astype(np.float32)),
        (ValueError, r"^stats: expected shape \(k, 4, C\), got \(4, 3\)$", ONE),
        (ValueError, r"^stats: expected shape \(k, 4, C\), got \(0,\)$", []),
        (TypeError, "^stats: expected an array of numbers: .* inhomogeneous", [ONE, ONE[:, :2]]),
        (TypeError, "^stats: masked arrays are not accepted", [np.ma.array(ONE, mask=ONE > 2)]),
        (TypeError, "^stats: expected an array, got None", None),
        (TypeError, "^stats: expected an array, got itertools.repeat$", itertools.repeat(ONE)),
    ],
    ids=str,
)  # fmt: skip
def test_refused(kind, message, stats):
    with pytest.raises(kind, match=message):
        merge(stats)


def test_parts_without_channels_take_no_memory():
    """An array without bytes may hold any number of parts."""
    n = 3_000_000
    tracemalloc.start()
    try:
        assert merge(np.empty((n, 4, 0))).shape == (4, 0)
        assert tracemalloc.get_traced_memory()[1] < n
    finally:
        tracemalloc.stop()
