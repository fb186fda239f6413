"""Same bits, whatever the machine does: equality of every output, never closeness.

The values and the order of src's axes in memory decide the bits. Everything else is
a factor here: instruction set, threads, alignment, outputs given or fresh or in place,
gaps between rows, one call or reduce and apply, the caller's floating-point mode.
Factors are combined pairwise; `-m full` runs a large sample of their whole product.
"""

import itertools

import numpy as np
import pytest
from allpairspy import AllPairs
from cases import (
    DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    all_bits,
    are_expected,
    memory_order,
    placed,
    shape,
)
from fp_modes import FP_MODES, fp_mode

import bn_ext
from bn_ext import _core

# ---- factors --------------------------------------------------------------------

# What the bits may depend on.
PROBLEMS = {
    "types": DTYPES,
    "data_format": list(FORMATS),
    "channels_last": [True, False],
    "is_training": [True, False],
    "values": ["normal", "tiny", "nan", "inf"],
}
# What they must not depend on. The first of each is the reference.
CIRCUMSTANCES = {
    "isa": list(bn_ext.available_isas()),
    "threads": [1, 2, 3, 5, 16],
    "src_offset": ["aligned", "element", "byte"],
    "diff_dst_offset": ["aligned", "element", "byte"],
    "src_memory": ["contiguous", "gaps", "backwards", "spread"],
    "diff_dst_memory": ["contiguous", "gaps", "backwards", "spread"],
    "out": ["fresh", "given", "given with gaps", "over src", "over diff_dst"],
    "calls": ["one", "reduce and apply"],
    "fp": list(FP_MODES),
    # Sizes that make every tile one channel, or all of them, and every store nontemporal.
    "caches": [(0, 0), (1, 1), (1 << 40, 1), (1, 1 << 40)],
}

SHAPES = [
    *((5, c, x) for c in range(1, 65) for x in (1, 3, 8)),
    *((3, c, x) for x in range(1, 65) for c in (1, 4, 33)),
    (1, 6, 7), (1, 1, 1), (70, 1, 1), (1, 70, 1), (1, 1, 70), (9, 130, 1), (16, 5, 64),
    (35, 3, 5), (150, 3, 5), (2, 3, 1030), (1, 2, 2048), (3, 1, 2100), (300, 129, 1), (70, 1024, 1),
]  # fmt: skip
# Enough tasks for 16 threads, in each form of the schedule.
LARGE = [
    ("NXC", 2100, 129, 1),
    ("NXC", 35000, 20, 1),
    ("NXC", 1024, 19, 64),
    ("NCX", 17, 40, 50),
    ("NCX", 4, 9, 20000),
    ("NCX", 1, 1, 600000),
]


def special(problem, values):
    channels = problem.mean.shape[0]
    src, diff_dst = (np.moveaxis(a, problem.axis, 0) for a in (problem.src, problem.diff_dst))
    if values == "tiny":  # results among the subnormals
        scale = np.asarray(2.0**-14 if src.dtype.itemsize == 2 else 1.0, np.float32)
        diff_dst *= np.asarray(np.finfo(np.float32).tiny, src.dtype) / scale.astype(src.dtype)
    elif values == "nan":
        src[0].flat[-1] = np.nan
        diff_dst[channels // 2].flat[0] = -np.float32(np.nan)
    elif values == "inf":
        src[0].flat[0] = np.inf
        diff_dst[channels - 1].flat[-1] = -np.inf
        problem.variance[channels // 2] = np.inf


def make(rng, dims, types, data_format, values):
    problem = Problem(rng, shape(*dims, data_format), data_format, *types)
    special(problem, values)
    return problem


def run(problem, *, channels_last, is_training, isa, threads, src_offset, diff_dst_offset,
        src_memory, diff_dst_memory, out, calls, fp, caches):  # fmt: skip
    """The bits of all outputs under these circumstances."""
    order = memory_order(problem.src.ndim, problem.axis, channels_last)
    bytes_off = {"aligned": 0, "element": problem.src.itemsize, "byte": 1}
    src = placed(problem.src, src_memory, bytes_off[src_offset], order)
    diff_dst = placed(problem.diff_dst, diff_dst_memory, bytes_off[diff_dst_offset], order)
    fresh = [
        np.full_like(problem.src, 7),
        np.full_like(problem.mean, 7),
        np.full_like(problem.mean, 7),
    ]
    outs = {
        "fresh": None,
        "given": (placed(fresh[0], "contiguous", 2, order), fresh[1], fresh[2]),
        "given with gaps": (placed(fresh[0], "gaps", 1, order), None, fresh[2]),
        "over src": (src, fresh[1], None),
        "over diff_dst": (diff_dst, None, None),
    }[out]
    options = {
        "data_format": problem.data_format,
        "num_threads": threads,
    }
    more = {"is_training": is_training, "epsilon": EPSILON, "out": outs}
    _core._use_isa(isa)
    _core._set_cache_sizes(*caches)
    with fp_mode(fp):
        if calls == "one":
            grads = bn_ext.batch_norm_backward(src, diff_dst, *problem.vectors(), **options, **more)
            sums = None
        else:
            sums = bn_ext.batch_norm_backward_reduce(src, diff_dst, problem.mean, **options)
            started = _core._last_call()
            grads = bn_ext.batch_norm_backward_apply(
                src, diff_dst, *problem.vectors(), sums, src.size // max(1, len(problem.mean)),
                **options, **more,
            )  # fmt: skip
            assert are_expected(started[0], threads, started[1])
        started, tasks = _core._last_call()
    assert are_expected(started, threads, tasks)
    for given, returned in zip(outs or (), grads, strict=False):
        assert given is None or given is returned
    return all_bits(grads)


def rows(*tables):
    """Combinations that hold every pair of factor levels."""
    merged = {name: levels for table in tables for name, levels in table.items()}
    for row in AllPairs(list(merged.values())):
        yield dict(zip(merged, row, strict=True))


def first_of(table):
    return {name: levels[0] for name, levels in table.items()}


PAIRS = list(rows(PROBLEMS, CIRCUMSTANCES))


def split(row, rng, dims):
    """The problem of a row, and how to run it: under the row's circumstances or the reference's."""
    fixed = {name: row[name] for name in ("channels_last", "is_training")}
    problem = make(rng, dims, row["types"], row["data_format"], row["values"])
    return problem, fixed, {name: row[name] for name in CIRCUMSTANCES}


@pytest.mark.parametrize("row", range(len(PAIRS)))
def test_every_pair_of_factors(rng, row):
    for dims in SHAPES:
        problem, fixed, circumstances = split(PAIRS[row], rng, dims)
        want = run(problem, **fixed, **first_of(CIRCUMSTANCES))
        assert run(problem, **fixed, **circumstances) == want, dims


@pytest.mark.quick
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("types", DTYPES)
def test_every_residue_at_every_level(rng, types, data_format):
    row = {**first_of(PROBLEMS), **first_of(CIRCUMSTANCES), "types": types}
    row |= {"data_format": data_format, "channels_last": data_format == "NXC"}
    for dims in SHAPES:
        problem, fixed, circumstances = split(row, rng, dims)
        want = run(problem, **fixed, **circumstances)
        for isa in bn_ext.available_isas():
            assert run(problem, **fixed, **{**circumstances, "isa": isa}) == want, (dims, isa)


@pytest.mark.parametrize("threads", CIRCUMSTANCES["threads"])
@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("is_training", [True, False])
def test_any_number_of_threads(rng, threads, large, is_training):
    """Really started, with tasks enough for each."""
    data_format, *dims = large
    for types in DTYPES:
        problem = make(rng, dims, types, data_format, "normal")
        results = []
        for k in (1, threads):
            grads = problem.run(
                bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training,
                num_threads=k,
            )  # fmt: skip
            started, tasks = _core._last_call()
            assert tasks >= k or not _core._has_openmp()
            assert are_expected(started, k, tasks)
            results.append(all_bits(grads))
        assert results[0] == results[1]


#: Of some million for each dtype: enough to hold every combination of any four factors.
SAMPLE = 20_000


@pytest.mark.full
@pytest.mark.parametrize("types", DTYPES)
def test_a_sample_of_the_whole_product(rng, types):
    """Rows drawn at random (minutes)."""
    shapes = [(5, 33, 3), (150, 3, 5), (3, 4, 70), (2, 3, 1030), (300, 129, 1)]
    factors = {**PROBLEMS, **CIRCUMSTANCES, "types": [types]}
    sizes = np.array([len(levels) for levels in factors.values()])
    rows = rng.integers(0, sizes, (SAMPLE, len(sizes)))
    for four in itertools.combinations(range(len(sizes)), 4):
        combinations = np.ravel_multi_index(rows[:, four].T, sizes[[*four]])
        assert np.bincount(combinations, minlength=sizes[[*four]].prod()).all()
    for chosen in rows:
        row = {name: factors[name][k] for name, k in zip(factors, chosen, strict=True)}
        for dims in shapes:
            problem, fixed, circumstances = split(row, rng, dims)
            want = run(problem, **fixed, **first_of(CIRCUMSTANCES))
            assert run(problem, **fixed, **circumstances) == want, (row, dims)
