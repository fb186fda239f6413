"""One fault among many: in the first, a middle or the last channel, axis, element or word."""

import itertools
from importlib.util import find_spec

import numpy as np
import pytest
from members import problem

import bn_ext
from bn_ext import GradientSums, Statistics
from bn_ext.testing import check_backward

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

COUNT = 150  # channels: more than any loop takes at a time
PLACES = 0, 64, COUNT - 1
X = np.random.default_rng(0).standard_normal((5, COUNT), np.float32)
ONES, MEAN = np.ones(COUNT), np.zeros(COUNT)


def changed(array, place, value):
    array = np.array(array)
    array[..., place] = value
    return array


def statistics(src=X):
    return Statistics(src, exact=True)


def gradient_sums(mean=MEAN, exact=True):
    return GradientSums(X, X, mean, exact=exact)


def gradient(sums, mean=MEAN):
    return bn_ext.batch_norm_backward(X, X, mean, ONES, epsilon=1, sums=sums)


def with_integer(sums, at, value):
    sums.array[at] = value
    return sums


def both(at, value):
    """What is made of either kind of sums with another integer in a channel."""
    return {
        "Statistics": lambda c: with_integer(statistics(), (*at, c), value).mean,
        "GradientSums": lambda c: gradient(with_integer(gradient_sums(), (*at, c), value)),
    }


IMPOSSIBLE = "^(array|sums): the integers of channel {} are impossible"
#: What is refused of a channel: the message; ways to be refused.
OF_CHANNELS = {
    "another mean": ("^sums: expected .* in channel {}, got sums about ", {
        str(exact): lambda c, exact=exact: gradient(gradient_sums(exact=exact), changed(MEAN, c, 1))
        for exact in (False, True)}),
    "parts about two means": (r"^GradientSums: .* with mean\[{}\]=0.0 and one with mean\[{}\]=1", {
        str(exact): lambda c, exact=exact: (
            gradient_sums(exact=exact) + gradient_sums(changed(MEAN, c, 1), exact))
        for exact in (False, True)}),
    "a count": (r"^(array|sums): .* in all channels, got \d in channel {2}$", both(
        (-2, 0), 4)),
    "parts": ("^(array|sums): expected integers of at most .* got a sum of 1048576;", both(
        (-1, 0), 2**20)),
    "fewer parts than none": ("^(array|sums): .* 1 parts, got a sum of -1", both((-1, 0), -1)),
    "a stamp": ("^(array: .*channel {} is not such a sum|sums: .* in channel {}, some were)", both(
        (-2, 1), 3)),
    "a limb": (IMPOSSIBLE, both((2, 0), -1)),
    "a limb of the second sum": (IMPOSSIBLE, both((2, 1), -1)),
    "the sign of squares": (IMPOSSIBLE, {
        str(limb): lambda c, limb=limb: with_integer(statistics(), (-4, 1, c), limb).mean
        for limb in (-1, -3)}),
    "a flag": (IMPOSSIBLE, {
        "mean": lambda c: with_integer(statistics(), (-3, 1, c), 1).mean}),
}  # fmt: skip

DIMS = 4, 3, 6, 5
SRC = np.random.default_rng(0).standard_normal(DIMS)
VECTORS = {"mean": np.zeros(5), "variance": np.ones(5), "epsilon": 1, "data_format": "NHWC"}


def backward(**arguments):
    arrays = {"src": SRC, "diff_dst": SRC, **VECTORS, **arguments}
    return bn_ext.batch_norm_backward(**arrays)


def longer(k):
    return np.ones([n + (axis == k) for axis, n in enumerate(DIMS)])


def overlapping(k):
    strides = [s * (axis != k) for axis, s in enumerate(SRC.strides)]
    return np.lib.stride_tricks.as_strided(SRC.copy(), DIMS, strides)


def listed(k, value):
    """Three rows of three numbers, of which one is something else."""
    rows = [[1.0, 2.0, 4.0] for _ in range(3)]
    rows[k // 3][k % 3] = value
    return rows


def with_bit(k):
    """A gradient with a workspace of which a byte behind the bits is another."""
    p = problem(np.random.default_rng(0), (6, 4, 5), "NXC")
    p.workspace[len(p.workspace) - 1 - k] ^= 1
    options = {"relu": True, "workspace": p.workspace, "epsilon": 1, "data_format": "NXC"}
    return bn_ext.batch_norm_backward(p.src, p.diff_dst, p.mean, p.variance, **options)


def words(k, *good):
    return [*good[:k], "bad", *good[k:]]


def in_chunk(k):
    import dask.array as da

    from bn_ext.dask import batch_norm_training

    def lie(block, block_info):
        return block.astype("f4") if block_info[0]["chunk-location"][0] == k else block

    src = da.from_array(SRC[..., 0, :], chunks=(1, 3, 5)).map_blocks(lie, dtype=float)
    return batch_norm_training(src, epsilon=1, data_format="NXC").dst.compute()


STATE = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
#: What is refused of one of many: the message, how many there are, the call.
OF_OTHERS = {
    "an axis of diff_dst": ("^diff_dst: expected shape ", 4, lambda k: backward(
        diff_dst=longer(k))),
    "an axis of out": (
        "^diff_src in out: expected shape ", 4, lambda k: backward(out=(longer(k), None, None))),
    "an axis without a stride": ("^diff_src in out: .*do not share memory", 4, lambda k: backward(
        out=(overlapping(k), None, None))),
    "an element that is a word": ("^src: ", 9, lambda k: bn_ext.batch_norm_training(
        listed(k, "a"), epsilon=1)),
    "an element that is a list": ("^src: ", 9, lambda k: bn_ext.batch_norm_training(
        listed(k, [1.0]), epsilon=1)),
    "a masked element": ("^src: masked arrays are not", 9, lambda k: bn_ext.batch_norm_training(
        np.ma.masked_array(np.ones(9), np.arange(9) == k).reshape(3, 3), epsilon=1)),
    "a byte of a workspace": ("^workspace: expected what a forward pass wrote", 11, with_bit),
    "a dtype to check": ("^dtypes: expected any of .*, got 'bad'$", 3, lambda k: check_backward(
        print, dtypes=words(k, "float32", "float64"))),
    "a case to skip": ("^skip: expected a part of .*, got 'bad'$", 3, lambda k: check_backward(
        print, skip=words(k, "Inf", "NaN"))),
    "a name of a state": ("^bad: expected |'bad'|bad", 6, lambda k: bn_ext.BatchNorm(5)
        .load_state_dict(dict.fromkeys(words(k, *STATE), np.ones(5)))),
}  # fmt: skip
if find_spec("dask"):
    OF_OTHERS["a chunk's dtype"] = "float32", 4, in_chunk

CASES = []
for name, (message, ways) in OF_CHANNELS.items():
    for (way, call), c in itertools.product(ways.items(), PLACES):
        CASES += [(f"{name}: {way}", message.format(c, c, c or 1), call, c)]
for name, (message, count, call) in OF_OTHERS.items():
    CASES += [(name, message, call, k) for k in range(count)]


@pytest.mark.parametrize(
    ("message", "call", "place"),
    [pytest.param(*case, id=f"{name}-{case[-1]}") for name, *case in CASES],
)
def test_a_fault_anywhere_is_refused(message, call, place):
    with pytest.raises((TypeError, ValueError), match=message):
        call(place)
