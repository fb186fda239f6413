"""A dry run refuses what the call would, reads no data and writes nothing.

That it refuses the same is asked of every refusal in tests/refusals.py.
"""

import numpy as np
import pytest
from cases import EPSILON, Family, all_bits, as_stats, bits, with_count

import bn_ext
from bn_ext import _core

pytestmark = pytest.mark.quick

SHAPE = (6, 4, 5)


@pytest.fixture
def f(rng):
    """Arguments of the whole family; sums and statistics of all parts among them."""
    f = Family(rng, SHAPE, "NXC")
    f.dst = np.maximum(f.src, 0)
    f.sums = with_count(np.zeros((2, 5)), f.count)
    f.stats = as_stats(np.ones((2, 5)), f.count)
    return f


BACKWARD = ["src", "diff_dst", "mean", "variance", "gamma"]
FORWARD = ["gamma", "beta"]
#: What each function takes, and of what its outputs have the shape.
CALLS = {
    "backward": (BACKWARD, ["src", "mean", "mean"]),
    "backward_apply": ([*BACKWARD, "sums"], ["src", "mean", "mean"]),
    "training": (["src", *FORWARD], ["src", "mean", "mean"]),
    "training_apply": (["src", "stats", *FORWARD], ["src", "mean", "mean"]),
    "inference": (["src", "mean", "variance", *FORWARD], ["src"]),
    "double_backward": ([*BACKWARD, "diff_diff_src"], ["src", "src", "mean"]),
}
EXACT = [("backward", {"exact": True}), ("training", {"exact": True})]
EACH = [*((name, {}) for name in CALLS), *EXACT]


def running(f, factor=0.5, correction=1):
    return {
        "running_mean": f.running_mean,
        "running_variance": f.running_variance,
        "exponential_avg_factor": factor,
        "correction": correction,
    }


def dry(name, *arguments, **options):
    assert _core._dry_run(getattr(bn_ext, f"batch_norm_{name}"), *arguments, **options) is None


@pytest.mark.parametrize(("name", "options"), EACH)
def test_nothing_is_written(f, name, options):
    names, outs = CALLS[name]
    out = [np.full_like(getattr(f, like), 7) for like in outs]
    before = all_bits(out), bits(f.running_mean), bits(f.running_variance)
    if name.startswith("training"):
        options = {**options, **running(f)}
    dry(
        name, *(getattr(f, each) for each in names), epsilon=EPSILON,
        out=out if len(out) > 1 else out[0], **options,
    )  # fmt: skip
    assert (all_bits(out), bits(f.running_mean), bits(f.running_variance)) == before


@pytest.mark.parametrize(("name", "options"), EACH)
def test_data_is_neither_read_nor_copied(f, name, options):
    """There could be no such arrays, nor copies of them."""
    for each in ("src", "diff_dst", "diff_diff_src", "src_1"):
        setattr(f, each, np.broadcast_to(np.float32(0), (2**30, 5, 4)).transpose(0, 2, 1))
    f.sums[2] = f.stats[2] = 2**32
    dry(name, *(getattr(f, each) for each in CALLS[name][0]), epsilon=EPSILON, **options)


@pytest.mark.parametrize("exact", [False, True])
def test_first_halves(f, exact):
    dry("backward_reduce", f.src, f.diff_dst, f.mean, exact=exact)
    dry("training_reduce", f.src, exact=exact)
    many = np.broadcast_to(np.float32(0), (2**53 + 1, 1))
    with pytest.raises(ValueError, match=r"^src: expected less than 2\*\*(39|53) elements"):
        dry("training_reduce", many, exact=exact)


def test_shared_memory(f):
    for out, message in (
        ((None, f.gamma, None), "^out: mean: shares memory with gamma$"),
        ((f.src[::-1], None, None), "^out: dst: shares memory with src"),
    ):
        with pytest.raises(ValueError, match=message):
            dry("training", f.src, f.gamma, f.beta, epsilon=EPSILON, out=out)
    f.running_variance = f.running_mean
    with pytest.raises(ValueError, match="^running_mean: shares memory with running_variance"):
        dry("training", f.src, epsilon=EPSILON, **running(f))


def test_sums_that_are_not_known_yet(f):
    dry("backward_apply", *(getattr(f, name) for name in BACKWARD), None, epsilon=EPSILON)
    dry("training_apply", f.src[:1, :1], None, epsilon=EPSILON, **running(f))
    f.gamma = f.gamma[1:]
    with pytest.raises(ValueError, match="^gamma: expected shape"):
        dry("backward_apply", *(getattr(f, name) for name in BACKWARD), None, epsilon=EPSILON)
    with pytest.raises(TypeError, match="^sums: expected an array"):
        bn_ext.batch_norm_backward_apply(
            *(getattr(f, name) for name in BACKWARD), None, epsilon=EPSILON
        )


@pytest.mark.parametrize("name", ["training", "training_apply"])
def test_one_element_has_no_unbiased_variance(f, name):
    f.src, f.stats[2] = f.src[:1, :1], 1
    for src in (f.src, f.src[:0])[: 1 + (name == "training_apply")]:  # any part of the whole
        given = [src, f.stats] if name == "training_apply" else [src]
        with pytest.raises(ValueError, match="^correction: expected 0"):
            dry(name, *given, epsilon=EPSILON, **running(f))
        with pytest.raises(ValueError, match="^correction: expected 0"):
            getattr(bn_ext, f"batch_norm_{name}")(*given, epsilon=EPSILON, **running(f))


def test_words_of_a_specification(f):
    """What is written has names of its own, too."""
    words = _core._Words("NXC", {"src": "input", "out: mean": "save_mean", "gamma": "weight"})
    for out, message in (
        ((None, f.gamma, None), "^save_mean: shares memory with weight$"),
        ((None, f.gamma.tolist(), None), "^save_mean: expected a numpy.ndarray, got list$"),
        ((None, f.gamma[1:], None), r"^save_mean: expected shape \(5,\), got \(4,\)$"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            dry("training", f.src, f.gamma, epsilon=EPSILON, data_format=words, out=out)


def test_of_bad_options(f):
    for given, message in (
        ({"data_format": "NHWC"}, "^data_format: expected 'NXC' or 'NCX', got 'NHWC'"),
        ({"data_format": "NHWC", "is_training": 2}, "^is_training: expected True or False"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            dry("backward", *(getattr(f, name) for name in BACKWARD), epsilon=EPSILON, **given)
