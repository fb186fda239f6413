"""Statistics of parts, merged."""

import numpy as np
import pytest
from cases import DATA_DTYPES, dtype

import bn_ext

pytestmark = pytest.mark.quick
merge = bn_ext.batch_norm_training_merge


def stats_of(part):
    part = part.astype(np.longdouble)
    mean = part.mean(axis=0)
    return np.array([mean, ((part - mean) ** 2).sum(axis=0)], np.float64)


@pytest.mark.parametrize("mean", [0, 1e6])
def test_parts_are_the_whole(rng, mean):
    src = rng.standard_normal((50, 3)) + mean
    cuts = 5, 5, 6, 30
    parts = np.split(src, cuts)
    found = merge([stats_of(part) if len(part) else np.full((2, 3), np.nan) for part in parts],
                  [len(part) for part in parts])  # fmt: skip
    assert np.allclose(found, stats_of(src), rtol=1e-9 if mean else 1e-13, atol=0)


def test_one_part_is_itself(rng):
    stats = rng.uniform(1, 2, (1, 2, 4))
    assert merge(stats, [7]).tobytes() == stats[0].tobytes()


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_no_elements(counts):
    assert (merge(np.ones((len(counts), 2, 3)), counts) == np.zeros((2, 3))).all()


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_what_reduce_gives(rng, data):
    parts = [rng.standard_normal((n, 4)).astype(dtype(data)) for n in (3, 8)]
    found = merge([bn_ext.batch_norm_training_reduce(part) for part in parts], (3, np.int8(8)))
    assert np.allclose(found, stats_of(np.concatenate(parts)), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "message", "stats", "counts"),
    [
        (TypeError, "^stats: expected float64, got float32$", np.ones((1, 2, 3), np.float32), [1]),
        (ValueError, r"^stats: expected shape \(k, 2, C\), got \(2, 3\)$", np.ones((2, 3)), [1]),
        (ValueError, "^counts: expected 1 of them, one for each of stats, got 2$",
         np.ones((1, 2, 3)), [1, 2]),
        (TypeError, r"^counts: expected integers, got \[1.5\]$", np.ones((1, 2, 3)), [1.5]),
        (TypeError, "^counts: expected integers, got 3$", np.ones((1, 2, 3)), 3),
        (ValueError, "^counts: expected at least 0, got -1$", np.ones((1, 2, 3)), [-1]),
        (ValueError, "^counts: expected less than 2..63, got a number of 64 bits$",
         np.ones((1, 2, 3)), [2**63]),
        (ValueError, r"^stats: .* got parts of shapes \(2, 3\), \(2, 4\)$",
         [np.ones((2, 3)), np.ones((2, 4))], [1, 1]),
        (TypeError, "^stats: masked arrays are not accepted",
         [np.ma.array(np.ones((2, 3)), mask=True)], [1]),
        (TypeError, "^stats: expected an array, got NoneType$", None, [1]),
    ],
)  # fmt: skip
def test_refused(kind, message, stats, counts):
    with pytest.raises(kind, match=message):
        merge(stats, counts)
