"""Sums of parts, as objects: what `+` gives, and the integers of exact ones."""

import copy
import functools
import itertools
import operator
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
from cases import COPIES, DATA_DTYPES, EPSILON, FORMATS, Problem, all_bits, dtype, shape
from exact_sums import (
    BEYOND,
    BITS,
    LIMB,
    MOMENTS,
    MOST_PARTS,
    STATE_FORMATS,
    STATES,
    integer_of,
    rounded,
    state_of,
    statistics,
)
from fp_modes import fp_mode

import bn_ext
from bn_ext import GradientSums, Statistics, _core

pytestmark = [pytest.mark.fast, pytest.mark.results]
of_both_kinds = pytest.mark.parametrize("exact", [False, True])


def statistics_of(parts, **options):
    return [Statistics(part, **options) for part in parts]


def gradient_sums_of(p, cuts=(), **options):
    options = {"data_format": p.data_format, **options}
    parts = zip(np.split(p.src, cuts), np.split(p.diff_dst, cuts), strict=True)
    return [GradientSums(*part, p.mean, **options) for part in parts]


def contents(sums):
    known = [sums.mean] if isinstance(sums, GradientSums) else [sums.mean, sums.variance]
    return [*all_bits(known), sums.count, sums.channels, sums.dtype, sums.exact]


@of_both_kinds
@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize("mean", [0, 1e3])
def test_parts_are_the_whole(rng, mean, data, exact):
    src = (rng.standard_normal((50, 3)) + mean).astype(dtype(data))
    parts = statistics_of(np.split(src, (0, 5, 5, 6, 30)), exact=exact)
    total = sum(parts)
    whole = Statistics(src, exact=exact)
    assert (total.count, total.channels, total.dtype, total.exact) == (50, 3, data, exact)
    close = {"rtol": 1e-6, "atol": 1e-6 * (mean == 0)}
    np.testing.assert_allclose(total.mean, whole.mean, **close)
    np.testing.assert_allclose(total.variance, whole.variance, **close)
    before = [contents(part) for part in parts]
    onto = parts[0]
    for part in parts[1:]:
        onto += part
    for same in (functools.reduce(operator.add, parts), sum(parts, parts[0] + 0), onto):
        assert same == total or not exact
        assert np.allclose(same.mean, total.mean)
    assert contents(onto) == contents(total)
    assert [contents(part) for part in parts] == before
    if exact:
        assert sum(parts[i] for i in rng.permutation(len(parts))) == whole == total


def test_one_part_is_itself_bit_for_bit(rng):
    none = Statistics(np.empty((0, 4)))
    special = np.array([[-0.0, np.inf, np.nan, 1.0], [-0.0, 1.0, 0.0, np.inf]])
    for src in (rng.uniform(1, 2, (5, 4)), special):
        part = Statistics(src)
        for total in (sum([part]), none + none + part + none, 0 + part, part + 0):
            assert contents(total) == contents(part)
            assert total == part


def test_a_nan_is_the_canonical_one():
    total = sum(statistics_of([[[np.inf]], [[1.0]]]))
    for array in (total.mean, total.variance, total._sums[:2]):
        assert array.tobytes() == np.full(array.shape, np.nan).tobytes()


@of_both_kinds
@pytest.mark.parametrize("kind", [Statistics, GradientSums])
def test_elements_are_counted_without_channels(kind, exact):
    """As with channels, whatever becomes of the sums; the layer counts its batch."""

    def part(n):
        others = () if kind is Statistics else (np.empty((n, 0)), np.empty(0))
        return kind(np.empty((n, 0)), *others, exact=exact)

    first, second = part(6), part(3)
    total = first + second
    counted = [(first, 6), (total, 9), (sum([first, second, part(0)]), 9), (part(0), 0)]
    for (sums, n), again in itertools.product(counted, (lambda a: a, *COPIES.values())):
        assert again(sums).count == n
    assert first != second
    assert total == second + first


def plain(mean, count):
    """Statistics of `count` elements that all have this value."""
    return Statistics(np.zeros((0, 1)))._with(np.array([[mean], [0.0], [0.0]]), count)


#: A distance of two means, and numbers of elements; means, and the same.
DISTANCES = [(1.6e154, (1, 1)), (1e150, (10**5, 10**5)), (-1e148, (3, 2**40)), (1e148, (2**40, 3))]
DISTANCES += [(1.0, (2**52, 2**51)), (1e-155, (2**30, 2**31))]
FAR_APART = [((-1.7e308, 1.7e308), (3, 3)), ((1.7e308, -1.7e308), (1, 7))]
FAR_APART += [((1.7e308, 1.7e308), (9, 2)), ((1.7e308, -1.7e308, 0.0, 1.0, 2.0), (1,) * 5)]


@pytest.mark.parametrize(("off", "counts"), DISTANCES)
def test_nothing_overflows_that_both_together_do_not(off, counts):
    """What the distance between two means adds to the variance, compared with fractions."""
    total = sum(plain(m, n) for m, n in zip((0.0, off), counts, strict=True))
    first, second = map(Fraction, counts)
    mean = Fraction(off) * second / (first + second)
    variance = Fraction(off) ** 2 * first * second / (first + second) ** 2
    for got, want in ((total.mean[0], mean), (total.variance[0], variance)):
        assert abs(Fraction(got) - want) <= abs(want) / 2**50 + Fraction(2**-1073)
    assert total.count == first + second


def test_what_fits_a_double_is_right_however_large(rng):
    """Near the largest double, in parts whose variances fit one; compared with fractions."""
    largest = float(np.finfo(float).max)
    for _ in range(200):
        parts = []
        for _ in range(int(rng.integers(2, 5))):
            n, scale = int(rng.integers(1, 9)), 10.0 ** rng.choice([153, 154, 307])
            parts.append(rng.uniform(-1.79, 1.79, (n, 20)) * scale)
        total = sum(statistics_of(parts))
        for c, column in enumerate(np.concatenate(parts).T):
            mean, variance = statistics(column)
            assert abs(Fraction(total.mean[c]) - mean) <= Fraction(abs(column).max()) / 2**49
            if max(variance, *(statistics(part[:, c])[1] for part in parts)) <= Fraction(largest):
                assert abs(Fraction(total.variance[c]) - variance) <= variance / 2**46
            elif variance > Fraction(largest) * 2:
                assert total.variance[c] == np.inf


@pytest.mark.parametrize(("means", "counts"), FAR_APART)
def test_means_as_far_apart_as_doubles_are(means, counts):
    """A distance of Inf makes the variance Inf, which stays so; the mean stays a number."""
    total = sum(map(plain, means, counts))
    mean = sum(Fraction(m) * n for m, n in zip(means, counts, strict=True)) / sum(counts)
    assert abs(Fraction(total.mean[0]) - mean) <= Fraction(1.7e308) / 2**50
    assert total.variance[0] == (np.inf if len({*means}) > 1 else 0)


@of_both_kinds
@pytest.mark.parametrize("data_format", FORMATS)
def test_elements_are_counted_not_samples(rng, data_format, exact):
    src = rng.standard_normal((4, 2, 3, 5))
    channels = src.shape[FORMATS[data_format]]
    options = {"data_format": data_format, "exact": exact}
    for sums in (Statistics(src, **options), GradientSums(src, src, [0.0] * channels, **options)):
        assert (sums.count, sums.channels) == (src.size // channels, channels)
        assert f": {sums.count} elements in each of {channels} channels, float64" in repr(sums)
        assert repr(sums).endswith(", exact>") == exact


@of_both_kinds
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_every_part_has_the_gradients_of_the_whole(rng, data, data_format, is_training, exact):
    """Those of the parameters, even without elements; exact sums give the bits of one call."""
    p = Problem(rng, shape(12, 5, 7, data_format), data_format, data)
    cuts = 5, 5
    total = sum(gradient_sums_of(p, cuts, exact=exact))
    options = {"is_training": is_training, "sums": total}
    parts = [*zip(np.split(p.src, cuts), np.split(p.diff_dst, cuts), strict=True)]
    grads = [p.run(bn_ext.batch_norm_backward, *part, **options) for part in parts]
    assert [len(g.diff_src) for g in grads] == [5, 0, 7]
    assert all_bits(grads[1][1:]) == all_bits(grads[0][1:]) == all_bits(grads[2][1:])
    whole = p.run(bn_ext.batch_norm_backward, is_training=is_training, exact=exact)
    joined = np.concatenate([g.diff_src for g in grads]), *grads[1][1:]
    if exact:
        assert all_bits(joined) == all_bits(whole)
    for got, want in zip(joined, whole, strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-2, atol=1e-5)
    out = (np.empty_like(parts[1][0]), *(np.full_like(p.mean, 7) for _ in range(2)))
    gradients = p.run(bn_ext.batch_norm_backward, *parts[1], out=out, **options)
    assert all(a is b for a, b in zip(gradients, out, strict=True))
    assert all_bits(gradients) == all_bits(grads[1])


@of_both_kinds
@pytest.mark.parametrize("number", [1, 2])
def test_the_shortest_whole(rng, number, exact):
    """It may have one element a channel, beside an empty part."""
    p = Problem(rng, (number, 5), "NXC", "float64")
    empty, every = gradient_sums_of(p, (0,), exact=exact)
    for total in (empty + every, every + empty):
        assert total == every
        assert all_bits(p.run(bn_ext.batch_norm_backward, sums=total)) == all_bits(
            p.run(bn_ext.batch_norm_backward, exact=exact)
        )


@pytest.mark.parametrize("data", ["float32", "float64", "float16"])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("x", [1, 5, 1100])
def test_sums_that_are_nan_have_one_pattern(rng, isa, data, data_format, x):
    """Otherwise a NaN's sign would depend on the CPU and the order of additions."""
    p = Problem(rng, shape(9, 4, x, data_format), data_format, data)
    for array, sign in ((p.src, -1), (p.diff_dst, 1)):
        np.moveaxis(array, p.axis, 0)[2].flat[::4] = np.copysign(np.nan, sign)
        np.moveaxis(array, p.axis, 0)[1].flat[:2] = np.inf, -np.inf
    for sums in (*gradient_sums_of(p), sum(gradient_sums_of(p, (2, 5)))):
        assert np.isnan(sums._sums[[0, 0, 1], [1, 2, 2]]).all()
        assert set(sums._sums[np.isnan(sums._sums)].view(np.uint64)) == {0x7FF8 << 48}


@of_both_kinds
@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("running", DATA_DTYPES)
def test_running_statistics_are_updated_as_by_training(rng, running, correction, exact):
    src = rng.standard_normal((9, 4)).astype(np.float32)
    start = [a.astype(dtype(running)) for a in rng.uniform(1, 2, (2, 4))]
    from_sums, in_a_call = ([a.copy() for a in start] for _ in "ab")
    update = {"exponential_avg_factor": 0.3, "correction": correction}
    Statistics(src, exact=exact).update_running(*from_sums, **update)
    update |= dict(zip(("running_mean", "running_variance"), in_a_call, strict=True))
    bn_ext.batch_norm_training(src, epsilon=EPSILON, exact=exact, **update)
    assert all_bits(from_sums) == all_bits(in_a_call)
    assert all_bits(from_sums) != all_bits(start)


@of_both_kinds
def test_running_statistics_that_cannot_be_updated(exact):
    sums = Statistics(np.ones((1, 2)), exact=exact)
    mean, variance = np.zeros(2), np.zeros(2)
    for changed, error, message in (
        ((mean, variance, 0.1, 1), ValueError, "correction=1"),
        ((mean, variance[:1], 0.1, 0), ValueError, r"^running_variance: expected shape \(2,\)"),
        ((None, None, 0.1, 0), (TypeError, ValueError), "^running_mean"),
        ((mean, mean, 0.1, 0), ValueError, "shares memory"),
    ):
        with pytest.raises(error, match=message):
            sums.update_running(*changed)
    assert not mean.any()
    assert not variance.any()
    (sums + sums).update_running(mean, variance, 1, 1)
    assert (mean == 1).all()


def numbers(rng, data):
    """Of either sign, over many exponents."""
    values = rng.standard_normal((8, 5)) * 2.0 ** rng.integers(-9, 9, (8, 5))
    return values.astype(dtype(data))


@of_both_kinds
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_copies_and_pickles(rng, data, exact):
    src, mean = numbers(rng, data), rng.standard_normal(5)
    for data_of_part in (src, src[:0]):
        for kind, rest in ((Statistics, ()), (GradientSums, (data_of_part, mean))):
            sums = kind(data_of_part, *rest, exact=exact)
            for make, original in itertools.product(COPIES.values(), (sums, sums + sums)):
                again = make(original)
                assert again == original
                assert contents(again) == contents(original)
                assert again + sums == sums + original
                assert pickle.dumps(again) == pickle.dumps(original)


class NamedStatistics(Statistics):
    __slots__ = ("name",)


class NamedGradientSums(GradientSums):
    __slots__ = ("name",)


@of_both_kinds
@pytest.mark.parametrize("kind", [NamedStatistics, NamedGradientSums])
def test_attributes_and_slots_of_a_subclass(kind, exact):
    """Copies and pickles keep them; `+` gives those of its left operand."""
    arrays = [np.eye(3)] if kind is NamedStatistics else [np.eye(3), np.eye(3), np.zeros(3)]
    part, other = (kind(*arrays, exact=exact) for _ in range(2))
    part.name, part.rank, other.name, other.rank = "left", 1, "right", 2
    made = [make(part) for make in COPIES.values()]
    for sums in (*made, part + other, sum([part, other]), functools.reduce(operator.add, made)):
        assert type(sums) is kind
        assert (sums.name, sums.rank) == ("left", 1)


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_pickles_of_exact_sums_are_canonical_and_small(rng, data):
    """They do not show how parts were added; rows of zeros are left out."""
    src = numbers(rng, data)
    parts = statistics_of(np.split(src, (3, 4)), exact=True)
    in_place = copy.deepcopy(parts[0])
    for part in parts[1:]:
        in_place.array[...] += part.array
    whole = Statistics(src, exact=True)
    for total in (sum(parts), parts[2] + parts[0] + parts[1], in_place):
        assert pickle.dumps(total) == pickle.dumps(whole)
    negative = Statistics(-abs(src), exact=True)
    for sums in (whole, negative, sum([negative] * 3)):
        assert len(pickle.dumps(sums)) - 700 < sums.array.nbytes * (
            0.3 if data == "float64" else 0.6
        )
        assert pickle.loads(pickle.dumps(sums)) == sums


def test_equality_in_any_mode():
    """Subnormal numbers that differ are not flushed to the same 0."""
    subnormal, zeros = (Statistics(np.full((4, 2), value)) for value in (1e-310, 0.0))
    with fp_mode("flush"):
        assert subnormal != zeros


@of_both_kinds
def test_equality_is_of_values(rng, exact):
    src = rng.standard_normal((6, 3))
    mean = np.array([1.0, np.nan, -2.0])
    sums = Statistics(src, exact=exact)
    of_gradient = GradientSums(src, src, mean, exact=exact)
    assert sums == Statistics(src.copy(), exact=exact)
    assert of_gradient == GradientSums(src, src, mean, exact=exact)
    changed = np.where(np.arange(3) == 1, src + 1, src)
    data = changed, src[:, :2], src[:5], src.astype(np.float32)
    different = [Statistics(array, exact=exact) for array in data]
    for result in (*different, Statistics(src, exact=not exact), of_gradient, 0, None):
        assert sums != result
    assert of_gradient != GradientSums(src, src, mean + 1, exact=exact)
    assert of_gradient != GradientSums(src, changed, mean, exact=exact)
    nothing = [GradientSums(src, 0 * src, about, exact=exact) for about in (mean, mean + 1)]
    assert nothing[0] != nothing[1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(sums)


def test_sums_that_were_changed_from_outside():
    """C reads nothing past the end of what it is given."""
    part = Statistics(np.ones((4, 3), np.float32))
    gradient = GradientSums(*np.ones((2, 4, 3)), np.zeros(3))
    arguments = [*np.ones((2, 4, 3)), np.zeros(3), np.ones(3)]
    wrong_dtypes = [np.zeros((2, 3), kind) for kind in ("f4", "M8[s]", object, ">f8")]
    for wrong in (*wrong_dtypes, np.zeros((1, 3)), np.zeros((2, 3, 1)), np.zeros(3)):
        with pytest.raises(ValueError, match="^statistics: expected float64 of shape"):
            part._with(wrong, 4).update_running(*np.zeros((2, 3)), 0.1, 0)
        with pytest.raises(ValueError, match="^sums: expected "):
            bn_ext.batch_norm_backward(*arguments, epsilon=1, sums=gradient._with(wrong, 4))


def test_a_copy_of_an_exact_sum_shares_no_memory():
    x = np.ones((4, 3))
    for sums in (Statistics(x, exact=True), GradientSums(x, x, x[0], exact=True)):
        assert not np.shares_memory(copy.copy(sums).array, sums.array)


@of_both_kinds
def test_the_unbiased_variance(rng, exact):
    x = rng.standard_normal((9, 3))
    for n in (0, 1, 2, 9):
        batch, total = Statistics(x[:n], exact=exact), n / max(n - 1, 1)
        want = batch.variance * total if n > 1 else np.full(3, np.nan)
        np.testing.assert_allclose(batch.unbiased_variance, want, rtol=2**-51)
    made_up = Statistics(x)._with(np.ones((3, 3)), 1)
    assert np.isnan(made_up.unbiased_variance).all()


@pytest.mark.parametrize("data", DATA_DTYPES)
@pytest.mark.parametrize(("added", "taken"), [(2, 2), (2, 1), (1, 3)])
def test_sums_that_no_single_element_has(data, added, taken):
    parts = [Statistics(np.array([[x]]).astype(dtype(data)), exact=True) for x in (0, 1, 2, 3)]
    left = parts[0] + parts[added]
    left.array[...] -= parts[taken].array
    if taken == added:
        assert left == parts[0]
        return
    with pytest.raises(ValueError, match="the integers of channel 0 are impossible"):
        left.variance  # noqa: B018


@of_both_kinds
def test_parts_that_do_not_belong_together(rng, exact):
    src = rng.standard_normal((6, 3))
    short, mean = src.astype(np.float32), np.zeros(3)
    sums, gradient = Statistics(src, exact=exact), GradientSums(src, src, mean, exact=exact)
    fewer = GradientSums(src[:, 1:], src[:, 1:], mean[1:], exact=exact)
    for a, b, first, second in (
        (sums, Statistics(src, exact=not exact), f"exact={exact}", f"exact={not exact}"),
        (sums, Statistics(short, exact=exact), "dtype=float64", "dtype=float32"),
        (sums, Statistics(src[:, :2], exact=exact), "channels=3", "channels=2"),
        (gradient, GradientSums(src, src, mean + 1, exact=exact), "mean[0]=0.0", "mean[0]=1.0"),
        (gradient, fewer, "channels=3", "channels=2"),
    ):
        for left, right, names in ((a, b, (first, second)), (b, a, (second, first))):
            message = "expected parts of one whole, got one with {}.* and one with {}"
            with pytest.raises(ValueError, match=message.format(*map(re.escape, names))):
                left + right
    for left, right in itertools.permutations((sums, gradient, 3, src, None, 0.0), 2):
        if isinstance(left, Statistics) or isinstance(right, Statistics):
            with pytest.raises(TypeError):
                left + right
    with pytest.raises(AttributeError):
        sums.count = 3


def test_more_elements_than_are_counted():
    half = plain(1.0, 2**52)
    with pytest.raises(ValueError, match=r"^Statistics: expected fewer than 2\*\*53 elements"):
        half + half
    row, ones = np.zeros(3, np.float32), np.ones(3)
    for exact, most in ((False, 53), (True, 39)):
        huge = np.broadcast_to(row, (2**most, 3))
        calls = [(Statistics, huge), (GradientSums, huge, huge, ones)]
        if exact:
            calls += [(functools.partial(bn_ext.batch_norm_training, epsilon=1), huge)]
            backward = functools.partial(bn_ext.batch_norm_backward, epsilon=1)
            calls += [(backward, huge, huge, ones, ones)]
        for call, *arrays in calls:
            with pytest.raises(ValueError, match=rf"^src: expected fewer than 2\*\*{most} elem"):
                call(*arrays, exact=exact)


def data_of(rows):
    return np.float64 if rows in (57, 111) else np.float32


def exact_part(rows, channels, samples=2):
    zeros = np.zeros((samples, channels), data_of(rows))
    return (
        Statistics(zeros, exact=True)
        if rows in MOMENTS
        else GradientSums(zeros, zeros, np.zeros(channels), exact=True)
    )


@pytest.mark.parametrize("rows", STATES)
def test_an_engine_adds_integers(rng, rows):
    zeros = exact_part(rows, 3)
    assert zeros.array.shape == (rows, 2, 3)
    assert zeros.array.dtype == np.int64
    src = [rng.standard_normal((4, 3)).astype(data_of(rows)) for _ in range(4)]
    if rows in MOMENTS:
        parts = statistics_of(src, exact=True)
    else:
        parts = [GradientSums(x, x[::-1], np.zeros(3), exact=True) for x in src]
    total = sum(parts)
    parts[0].array[...] += sum(part.array for part in parts[:0:-1])
    assert parts[0] == total
    assert contents(parts[0]) == contents(total)


def kinds_of_sums(channels=3):
    for data, exact in itertools.product(("float32", "float64"), (False, True)):
        src = -np.ones((4, channels), data)
        yield Statistics(src, exact=exact)
        yield GradientSums(src, src, np.zeros(channels), exact=exact)


def test_integers_are_added_in_place_by_name():
    """`a.array += b.array` adds once; no other array takes the place of this one."""
    for sums in kinds_of_sums():
        if not sums.exact:
            with pytest.raises(AttributeError, match=r"^array: expected .*exact=True"):
                sums.array += 1
            continue
        twice, array = sums + sums, sums.array
        copied = copy.deepcopy(sums)
        sums.array += copied.array
        assert sums == twice
        for wrong in (copied.array, array.copy(), array[:], None):
            with pytest.raises(AttributeError, match=r"^array: expected .*write to array\[...\]"):
                sums.array = wrong
        assert sums.array is array
        assert sums == twice


def test_parts_are_counted():
    """An engine may add 2**20 - 1 parts; `+` takes any number."""
    part = Statistics(np.ones((3, 2)), exact=True)
    most = copy.deepcopy(part)
    most.array[...] *= MOST_PARTS
    assert most.count == 3 * MOST_PARTS
    assert (most.mean == 1).all()
    assert (most + part).count == (part + most).count == 3 * 2**20
    assert (most + part).mean.tolist() == [1, 1]
    beyond = copy.deepcopy(most)
    beyond.array[...] = most.array + part.array
    expected = r"^array: expected integers of at most 2\*\*20 - 1 parts, got a sum of 1048576"
    with pytest.raises(ValueError, match=expected):
        beyond.mean  # noqa: B018
    for k in (0, 19, 20, 30):
        assert (sum([part] * k) + part).count == 3 * (k + 1)


@pytest.mark.parametrize("data", ["float32", "float64"])
def test_statistics_of_trillions(data):
    total = Statistics(np.arange(8, dtype=data)[:, None], exact=True)
    for k in range(3, 43):
        assert (total.count, total.mean, total.variance) == (2**k, 3.5, 5.25)
        total = total + total
    with pytest.raises(ValueError, match=r"^array: expected fewer than 2\*\*43 elements"):
        total.count  # noqa: B018


@pytest.mark.parametrize("rows", STATES)
def test_channels_that_were_added_alone(rows):
    """An engine adds all channels or none."""
    part, single = (exact_part(rows, 3, samples) for samples in (2, 1))
    for channel in (1, [0, 2]):
        sums = copy.deepcopy(part)
        sums.array[:, :, channel] += single.array[:, :, channel]
        for use in (used, pickle.dumps, lambda a: a.count, lambda a: a == a):
            with pytest.raises(ValueError, match=r"^(array|sums): .* same number in all channels"):
                use(sums)


def value(integer, rows):
    return rounded(Fraction(integer) * Fraction(2) ** STATES[rows][1])


def sums_of(integers, rows, rng=None):
    return _core.state_sums(state_of(integers, rows, rng), STATE_FORMATS[rows])[:, 0]


@pytest.mark.parametrize("rows", STATES)
def test_integers_of_every_size(rng, rows):
    for _ in range(600):
        size = int(rng.integers(1, BITS[rows] - 8))
        integers = [int.from_bytes(rng.bytes(size // 8 + 1)) >> int(rng.integers(8)) for _ in "ab"]
        integers = [i * int(sign) for i, sign in zip(integers, rng.choice([1, -1], 2), strict=True)]
        expected = [value(i, rows) for i in integers]
        assert sums_of(integers, rows).tolist() == expected
        assert sums_of(integers, rows, rng).tolist() == expected
    assert not np.signbit(sums_of([0, 0], rows)).any()


@pytest.mark.parametrize("rows", STATES)
def test_ties(rows):
    """Ties round to even; lower bits break ties. Random data never comes so near to a tie."""
    for top in range(54, BITS[rows] - 2, 7):
        for odd in (0, 1):
            kept = (1 << 52 | odd) << (top - 52)
            half = 1 << (top - 53)
            for beside in (0, 1, -1, half >> 1, -(half >> 1)):
                for sign in (1, -1):
                    integer = sign * (kept + half + beside)
                    expected = value(integer, rows)
                    assert sums_of([integer, -integer], rows).tolist() == [expected, -expected]


@pytest.mark.parametrize("rows", [57, 111])
def test_the_ends_of_float64(rows):
    _, lowest = STATES[rows]
    largest, half = ((2**53 - 1) << (971 - lowest)), 1 << (970 - lowest)
    most, tiny = np.finfo(float).max, 1 << (-1074 - lowest)
    assert sums_of([largest, -largest], rows).tolist() == [most, -most]
    assert sums_of([largest + half - 1, -largest - half], rows).tolist() == [most, -np.inf]
    ends = sums_of([tiny, -(2**52 - 1) * tiny], rows).tolist()
    assert ends == [2.0**-1074, -(2.0**-1022) + 2.0**-1074]
    # Odd multiples of half the smallest number are rounded to even, unless lower bits decide.
    for units, expected in ((1, 0), (3, 2), (5, 2), (2**53 - 1, 2**52), (2**53 + 1, 2**52)):
        for below, up in ((0, 0), (1, units % 4 == 1), (-1, -(units % 4 == 3))):
            got = sums_of([units * tiny // 2 + below, 0], rows)[0]
            assert got == (expected + up) * 2.0**-1074, (units, below)


@pytest.mark.parametrize("rows", STATES)
@pytest.mark.parametrize("flags", range(8))
def test_flags(rows, flags):
    """NaN wins, both infinities make a NaN, and all of a sum's 2**20 - 1 parts may have flags."""
    state = state_of([7, -7], rows)
    state[-3, 0] = sum(MOST_PARTS << 20 * i for i in range(3) if flags >> i & 1)
    expected = {0: value(7, rows), 2: np.inf, 4: -np.inf}.get(flags, np.nan)
    got = _core.state_sums(state, STATE_FORMATS[rows])
    assert np.array_equal(got[:, 0], [expected, value(-7, rows)], equal_nan=True)
    canonical = _core.canonical_state(state, STATE_FORMATS[rows])
    assert canonical[-3, 0, 0] == sum(1 << 20 * i for i in range(3) if flags >> i & 1)


@pytest.mark.parametrize("rows", STATES)
def test_canonical_limbs(rng, rows):
    for integer in (-1, 5, -(2**200) + 3, 2**300 - 1):
        loose, own = state_of([integer, -integer], rows, rng), state_of([integer, -integer], rows)
        before = loose.copy()
        assert np.array_equal(_core.canonical_state(loose, STATE_FORMATS[rows]), own)
        assert np.array_equal(loose, before)


def used(sums):
    if isinstance(sums, Statistics):
        return sums.mean, sums.variance
    zeros = np.zeros((1, sums.channels), sums.dtype)
    return bn_ext.batch_norm_backward(zeros, zeros, *[zeros[0]] * 2, epsilon=1.0, sums=sums)


def may_be_moments(state, count):
    """Are squares as large as the sums demand?"""
    _, lowest = STATES[len(state)]
    sums = ([integer_of(state, s, c) for s in (0, 1)] for c in range(state.shape[2]))
    return all(q >= 0 and count * q << -lowest >= s * s for s, q in sums)


def refused_or_right(sums):
    """Do all uses of the integers refuse them? If not, the sums must be those of the limbs."""
    state, count, results = sums.array, sums.count, []
    for call in (_core.state_sums, _core.canonical_state, used):
        try:
            results.append(call(sums) if call is used else call(state, STATE_FORMATS[len(state)]))
        except ValueError as error:
            expected = r"(array|sums): the integers of channel \d+ are impossible"
            assert re.search(expected, str(error))  # noqa: PT017
    if not results:
        return True
    doubles, canonical, *_ = results
    assert len(results) == 2 + (len(state) not in MOMENTS or may_be_moments(state, count))
    for c, s in np.ndindex(sums.channels, 2):
        integer = integer_of(state, s, c)
        assert integer_of(canonical, s, c) == integer
        assert doubles[s, c] == value(integer, len(state))
    return False


def test_flags_that_no_parts_have():
    numbers, squares = (Statistics(np.ones((3, 2)), exact=True) for _ in "ab")
    empty = exact_part(111, 2, 0)
    numbers.array[-3, 0, 0] = squares.array[-3, 1, 0] = empty.array[-3, 0, 0] = 1
    for sums, use in ((numbers, used), (squares, used), (empty, used), (empty, pickle.dumps)):
        with pytest.raises(ValueError, match=r"array: the integers of channel \d+ are impossible"):
            use(sums)


@pytest.mark.parametrize("channel", [0, 20, 40])
@pytest.mark.parametrize("rows", STATES)
def test_sums_of_no_terms_are_0(rows, channel):
    array = exact_part(rows, 41, 0).array
    array[-1, 0] = 1
    assert not _core.state_sums(array, STATE_FORMATS[rows]).any()
    for limb in range(len(array) - 3):
        array[limb, 0, channel] = 1
        for call in (_core.state_sums, _core.canonical_state):
            with pytest.raises(ValueError, match=f"integers of channel {channel} are impossible"):
                call(array, STATE_FORMATS[rows])
        array[limb] = 0


@pytest.mark.parametrize("channel", [0, 20, 40])
@pytest.mark.parametrize("rows", STATES)
def test_the_unused_half_of_the_numbers_of_parts_tells_nothing(rows, channel):
    sums, marked = exact_part(rows, 41), exact_part(rows, 41)
    marked.array[-1, 1, channel] = 7
    assert sums == marked
    assert pickle.dumps(sums) == pickle.dumps(marked)
    canonical = [_core.canonical_state(each.array, each._format) for each in (sums, marked)]
    assert np.array_equal(*canonical)


@pytest.mark.parametrize("rows", STATES)
def test_limbs_of_any_size_are_refused_or_summed(rng, rows):
    """Sums never overflow, and never change their sign."""
    limbs, _ = STATES[rows]
    refused = set()
    for _ in range(300):
        channels, parts = (int(rng.integers(1, n)) for n in (40, 2 ** int(rng.integers(1, 21))))
        sums = exact_part(rows, channels)
        sums.array[...] *= parts
        for _ in range(3):
            at = tuple(int(rng.integers(n)) for n in (limbs, 2, channels))
            size = 2 ** int(rng.integers(64))
            sums.array[at] = int(rng.integers(-size if rng.random() < 0.1 else 0, size))
        refused.add(refused_or_right(sums))
    assert refused == {True, False}


@pytest.mark.parametrize("rows", STATES)
def test_the_largest_limbs(rows):
    """A sum of `parts` states can have limbs from `least` to `most`; others are refused."""
    limbs, lowest = STATES[rows]
    for parts in (1, 5, MOST_PARTS):
        highest = (2 * parts << BEYOND[rows] - lowest) >> LIMB * (limbs - 1)
        for k, least, most in (
            (0, 0, parts * (2**LIMB - 1)),
            (limbs - 2, 0, parts * (2**LIMB - 1)),
            (limbs - 1, -highest - parts, highest),
        ):
            for limb in (least, most, least - 1, most + 1, -(2**63), 2**63 - 1):
                sums = exact_part(rows, 33)
                sums.array[...] *= parts
                sums.array[k, :, 32] = limb
                assert refused_or_right(sums) == (limb not in (least, most)), (parts, k, limb)


@pytest.mark.parametrize("rows", STATES)
def test_an_array_that_was_reshaped(rows):
    for channels, other_rows in itertools.product((1, 10), STATES):
        sums, part = (exact_part(rows, channels * each) for each in (rows, other_rows))
        part.array.shape = other_rows, 2, channels * rows
        whole = functools.partial(operator.add, sums)
        uses = str, pickle.dumps, used, copy.copy, lambda a: a == a, whole
        for use in uses if other_rows != rows else []:
            with pytest.raises(ValueError, match=r"^(array|sums): expected "):
                use(part)


STATE = np.zeros((20, 2, 3), np.int64)
CALLS = [
    functools.partial(call, format=STATE_FORMATS[20])
    for call in (_core.state_sums, _core.state_count, _core.canonical_state, _core.state_statistics)
]


WRONG_STATES = [STATE.astype(kind) for kind in (float, STATE.dtype.newbyteorder())]
WRONG_STATES += [STATE[1:], STATE[:, :1], STATE[0], STATE - 1]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", WRONG_STATES)
def test_what_is_no_state(call, state):
    with pytest.raises(ValueError, match="^array: expected "):
        call(state)


def test_any_strides_and_alignment(rng):
    p = Problem(rng, (40, 3), "NXC")
    for sums in (Statistics(p.src, exact=True), *gradient_sums_of(p, exact=True)):
        state = sums.array
        spread = np.zeros((len(state), 4, 6), np.int64)[:, ::2, ::2]
        unaligned = np.zeros(state.nbytes + 1, np.uint8)[1:].view(np.int64).reshape(state.shape)
        for state_view in (spread, unaligned):
            state_view[...] = state
            viewed = sums._with(state_view, 0)
            assert viewed == sums
            assert viewed + sums == sums + viewed == sums + sums
            assert contents(viewed) == contents(sums)
            assert np.array_equal(state_view, state)
    want, got = (p.run(bn_ext.batch_norm_backward, sums=each) for each in (sums, viewed))
    assert all_bits(want) == all_bits(got)


@of_both_kinds
def test_a_mean_that_is_nan_on_one_side(rng, exact):
    p = Problem(rng, (6, 2), "NXC", "float64")
    nan = np.where([True, False], np.nan, p.mean)
    a, b = (GradientSums(p.src, p.diff_dst, mean, exact=exact) for mean in (p.mean, nan))
    for sums, other, mean in ((a, b, nan), (b, a, p.mean)):
        with pytest.raises(ValueError, match=r"^GradientSums: .*mean\[0\]=.*nan"):
            sums + other
        with pytest.raises(ValueError, match="^sums: expected .*mean.*nan"):
            p.run(bn_ext.batch_norm_backward, mean=mean, sums=sums)
        assert sums != other


def test_the_sign_of_a_mean_of_0_does_not_matter(rng):
    x, zeros = rng.standard_normal((5, 3)), np.zeros(3)
    plus, minus = (bn_ext.GradientSums(x, x, each, exact=True) for each in (zeros, -zeros))
    assert plus == minus
    assert pickle.dumps(plus) == pickle.dumps(minus)
    assert pickle.dumps(plus + minus) == pickle.dumps(minus + plus)


def test_a_total_of_one_part_is_not_the_part(rng):
    part = bn_ext.Statistics(rng.standard_normal((5, 3)), exact=True)
    before = part.array.copy()
    total = sum([part])
    total.array[...] += part.array
    assert np.array_equal(part.array, before)
    assert total.count == 10


def test_a_mean_cannot_be_changed(rng):
    x, mean = rng.standard_normal((5, 3)), np.zeros(3)
    sums = bn_ext.GradientSums(x, x, mean)
    sums.mean[:] = 5
    mean[:] = 5
    with pytest.raises(ValueError, match="sums about 0.0"):
        bn_ext.batch_norm_backward(x, x, mean, mean, epsilon=1, sums=sums)
