"""Same bits, whatever the machine does: outputs must be equal, not just close.

A call's values and the order of src's axes in memory decide the bits. All else is a factor here:
instruction set, threads, alignment, outputs (new, given or in place), gaps in memory, one call or
two, dtypes of vectors, cache sizes, the caller's floating-point mode. Every member of the family is
run with pairwise combinations of the factors.
"""

import copy
import itertools

import members
import numpy as np
import pytest
from allpairspy import AllPairs
from cases import DTYPES, FORMATS, are_expected, memory_order, placed, shape
from fp_modes import FP_MODES, fp_mode
from members import MEMBERS

import bn_ext
from bn_ext import _core

# ---- factors --------------------------------------------------------------------

# What the bits may depend on.
PROBLEMS = {
    "member": list(MEMBERS),
    "types": DTYPES,
    "data_format": list(FORMATS),
    "channels_last": [True, False],
    "is_training": [True, False],
    "values": ["normal", "tiny", "nan", "inf", "squares vanish", "squares overflow"],
}
# What they must not depend on. The first of each list is the reference.
CIRCUMSTANCES = {
    "isa": list(bn_ext.available_isas()),
    "threads": [1, 2, 3, 5, 16],
    "src_offset": ["aligned", "element", "byte"],
    "other_offset": ["aligned", "element", "byte"],
    "src_memory": ["contiguous", "gaps", "backwards", "spread"],
    "other_memory": ["contiguous", "gaps", "backwards", "spread"],
    "out": ["fresh", "given", "given with gaps", "over src", "over another"],
    "summed": [False, True],
    "vectors": ["alike", "in doubles", "of several dtypes"],
    "fp": list(FP_MODES),
    # Also sizes for the narrowest or the widest tiles, with non-temporal stores or without.
    "caches": [_core.cache_sizes(), (1, 1), (1 << 40, 1), (1, 1 << 40)],
}

SHAPES = [
    *((5, c, x) for c in range(1, 65) for x in (1, 3, 8)),
    *((3, c, x) for x in range(1, 65) for c in (1, 4, 33)),
    (1, 6, 7), (1, 1, 1), (70, 1, 1), (1, 70, 1), (1, 1, 70), (9, 130, 1), (16, 5, 64),
    (35, 3, 5), (150, 3, 5), (2, 3, 1030), (1, 2, 2048), (3, 1, 2100), (300, 129, 1), (70, 1024, 1),
]  # fmt: skip
# Enough tasks for 16 threads, in each form: channels last, short runs, long runs.
LARGE = [
    ("NXC", 2100, 129, 1), ("NXC", 35000, 20, 1), ("NXC", 1024, 19, 64), ("NCX", 17, 40, 50),
    ("NCX", 4, 9, 20000), ("NCX", 1, 1, 600000),
]  # fmt: skip


#: src is scaled by 2 to these powers. Only float16's squares still fit the arithmetic.
SCALES = {
    "squares vanish": {"float32": -80, "float64": -600, "float16": -14, "bfloat16": -80},
    "squares overflow": {"float32": 80, "float64": 600, "float16": 10, "bfloat16": 80},
}


def special(problem, values):
    channels = problem.mean.shape[0]
    names = ("src", "diff_dst", "src_1", "diff_diff_src", "dst")
    src, *others = (np.moveaxis(getattr(problem, name), problem.axis, 0) for name in names)
    if values == "tiny":  # results among the subnormals
        scale = np.asarray(2.0**-14 if src.dtype.itemsize == 2 else 1.0, np.float32)
        others[0][...] *= np.asarray(np.finfo(np.float32).tiny, src.dtype) / scale.astype(src.dtype)
    elif values == "nan":
        src[0].flat[-1] = np.nan
        for other in others:
            other[channels // 2].flat[0] = -np.float32(np.nan)
    elif values == "inf":
        src[0].flat[0] = np.inf
        for other in others:
            other[channels - 1].flat[-1] = -np.inf
        problem.variance[channels // 2] = np.inf
    elif values in SCALES:
        src[...] *= np.asarray(2.0 ** SCALES[values][src.dtype.name], src.dtype)


def make(rng, dims, types, data_format, values):
    """A problem whose values are of this kind."""
    problem = members.problem(rng, shape(*dims, data_format), data_format, *types)
    special(problem, values)
    return problem


def recast(problem, vectors):
    """The problem with vectors in other dtypes that hold their values. Results have gamma's dtype,
    so it keeps its own.
    """
    results = copy.copy(problem)
    others = {"alike": [], "in doubles": ["f8"], "of several dtypes": ["f4", "f8"]}[vectors]
    names = ("mean", "variance", "beta", "diff_diff_gamma", "diff_diff_beta")
    for name, other in zip(names, itertools.cycle(others), strict=False):
        vector = getattr(problem, name)
        setattr(results, name, vector.astype(np.promote_types(vector.dtype, other)))
    return results


def outputs(kind, tensors, like, order):
    """The argument `out`: None, or arrays and None; for "over ...", operands of the same call."""
    fresh = np.full_like(tensors[0], 7)
    arguments = {
        "fresh": None,
        "given": lambda: placed(fresh, "contiguous", 2, order),
        "given with gaps": lambda: placed(fresh, "gaps", 1, order),
        "over src": iter(tensors).__next__,
        "over another": iter([*tensors[1:2], tensors[0]]).__next__,
    }[kind]
    if arguments is None:
        return None
    out = []
    for k, array in enumerate(like):
        given_vector = np.full_like(array, 7) if kind == "given" or k % 2 else None
        out.append(arguments() if array.ndim > 1 else given_vector)
    return out


def run(problem, *, member, channels_last, is_training, isa, threads, src_offset, other_offset,
        src_memory, other_memory, out, summed, vectors, fp, caches):  # fmt: skip
    """The bits of all outputs under these circumstances."""
    order = memory_order(problem.src.ndim, problem.axis, channels_last)
    bytes_off = {"aligned": 0, "element": problem.src.itemsize, "byte": 1}
    src = placed(problem.src, src_memory, bytes_off[src_offset], order)
    tensors = {"src": src}
    for name in MEMBERS[member].reads[1:]:
        other = getattr(problem, name)
        tensors[name] = placed(other, other_memory, bytes_off[other_offset], order)
    outs = outputs(out, list(tensors.values()), MEMBERS[member].like(problem), order)
    _core.use_isa(isa)
    _core.set_cache_sizes(*caches)
    with fp_mode(fp):
        results, bits = MEMBERS[member].run(
            recast(problem, vectors), tensors, is_training=is_training, summed=summed, out=outs,
            num_threads=threads,
        )  # fmt: skip
        started, tasks, _ = _core.last_call().values()
    assert are_expected(started, threads, tasks)
    for arguments, returned in zip(outs or (), results, strict=False):
        assert arguments is None or arguments is returned
    return bits


def rows(*tables):
    """Combinations in which every pair of values of any two factors occurs."""
    merged = {name: levels for table in tables for name, levels in table.items()}
    for row in AllPairs(list(merged.values())):
        yield dict(zip(merged, row, strict=True))


def first_of(table):
    return {name: levels[0] for name, levels in table.items()}


PAIRS = list(rows(PROBLEMS, CIRCUMSTANCES))


def split(row, rng, dims):
    """A row's problem, the options that both runs share, and the row's circumstances."""
    fixed = {name: row[name] for name in ("member", "channels_last", "is_training")}
    problem = make(rng, dims, row["types"], row["data_format"], row["values"])
    return problem, fixed, {name: row[name] for name in CIRCUMSTANCES}


@pytest.mark.parametrize(
    "shapes",
    [SHAPES[::5], pytest.param([s for k, s in enumerate(SHAPES) if k % 5], marks=pytest.mark.slow)],
    ids=len,
)
@pytest.mark.parametrize("row", range(len(PAIRS)))
def test_every_pair_of_factors(rng, row, shapes):
    for dims in shapes:
        problem, fixed, circumstances = split(PAIRS[row], rng, dims)
        want = run(problem, **fixed, **first_of(CIRCUMSTANCES))
        assert run(problem, **fixed, **circumstances) == want, dims


@pytest.mark.fast
@pytest.mark.results
@pytest.mark.any_level
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("types", DTYPES)
def test_every_residue_at_every_level(rng, types, data_format):
    """The gradient, and one other member, which changes with the shape and the dtype."""
    others = itertools.cycle([member for member in MEMBERS if member != "backward"])
    others = itertools.islice(others, DTYPES.index(types), None)
    row = {**first_of(PROBLEMS), **first_of(CIRCUMSTANCES), "types": types}
    row |= {"data_format": data_format, "channels_last": data_format == "NXC"}
    for dims in SHAPES:
        problem, fixed, circumstances = split(row, rng, dims)
        for member in ("backward", next(others)):
            fixed["member"] = member
            want = run(problem, **fixed, **circumstances)
            for isa in bn_ext.available_isas():
                results = run(problem, **fixed, **{**circumstances, "isa": isa})
                assert results == want, (member, dims, isa)


@pytest.mark.parametrize("types", DTYPES)
@pytest.mark.parametrize("large", LARGE, ids=str)
def test_any_number_of_threads(rng, types, large):
    """With OpenMP, as many threads as asked for are really started, and each has tasks. Each two of
    member, mode, dtypes and shape meet.
    """
    data_format, *dims = large
    problem = make(rng, dims, types, data_format, "normal")
    for place, member in enumerate(MEMBERS.values(), DTYPES.index(types) + LARGE.index(large)):
        is_training = place % 2 == 0
        results = []
        for k in CIRCUMSTANCES["threads"]:
            results.append(member.run(problem, is_training=is_training, num_threads=k)[1])
            started, tasks, _ = _core.last_call().values()
            assert tasks >= k or not _core.has_openmp()
            assert are_expected(started, k, tasks)
        assert all(result == results[0] for result in results)
