"""Same bits, whatever the machine does: equality of every output, never closeness.

The values and the order of src's axes in memory decide the bits. Everything else is
a factor here: instruction set, threads, alignment, outputs given or fresh or in place,
gaps between rows, one call or reduce and apply, the caller's floating-point mode.
Factors are combined pairwise; `-m full` runs a large sample of their whole product.
"""

import contextlib
import ctypes
import itertools
import platform
import sys

import numpy as np
import pytest
from allpairspy import AllPairs
from cases import (
    DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    all_bits,
    dtype,
    memory_order,
    placed,
    shape,
)

import bn_ext
from bn_ext import _core

# ---- the caller's floating-point mode -------------------------------------------

X86 = platform.machine().lower() in ("x86_64", "amd64")
ARM = platform.machine().lower() in ("aarch64", "arm64")
# name -> (control bits for x86's MXCSR, for Arm's FPCR, for Windows's _controlfp_s)
FP_MODES = {
    "default": (0, 0, 0),
    "flush": (0x8040, 1 << 24, 0x1000000),  # FTZ and DAZ; FZ
    "up": (0x4000, 0x400000, 0x200),
    "down": (0x2000, 0x800000, 0x100),
    "zero": (0x6000, 0xC00000, 0x300),
}
# Where fenv_t holds MXCSR or FPCR: glibc and musl, Apple.
FENV_PLACE = {("linux", X86): 28, ("linux", ARM): 0, ("darwin", X86): 4, ("darwin", ARM): 8}
FENV_AT = FENV_PLACE.get((sys.platform, True))
if sys.platform != "win32" and FENV_AT is None:
    FP_MODES = {"default": FP_MODES["default"]}


# FE_INVALID, FE_DIVBYZERO and FE_OVERFLOW.
SERIOUS = 0b11100 if sys.platform == "win32" else 0b1101 if X86 else 0b111


def math_library():
    return ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)


@contextlib.contextmanager
def fp_mode(name):
    """Run with these control bits, where it is known how they are set."""
    if sys.platform == "win32":
        control = math_library()._controlfp_s
        before = ctypes.c_uint()
        control(ctypes.byref(before), 0, 0)
        mask = 0x03000300  # subnormals and rounding
        control(ctypes.byref(ctypes.c_uint()), FP_MODES[name][2], mask)
        try:
            yield
        finally:
            control(ctypes.byref(ctypes.c_uint()), before, mask)
        return
    libm = math_library()
    env, changed = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    libm.fegetenv(env)
    libm.fegetenv(changed)
    if FENV_AT is not None:
        place = slice(FENV_AT, FENV_AT + 4)
        word = int.from_bytes(changed.raw[place], "little") | FP_MODES[name][0 if X86 else 1]
        changed[place] = word.to_bytes(4, "little")
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(env)


def fp_mode_in_effect():
    """Name of the mode that this thread computes in."""
    tiny, one, step = np.float32(2e-38), np.float32(1), np.float32(2**-26)
    flushed, up, down = tiny * np.float32(0.1) == 0, one + step > 1, one - step < 1
    if flushed or up:
        return "flush" if flushed else "up"
    return "default" if not down else "down" if -one - step < -1 else "zero"


@pytest.mark.parametrize("name", FP_MODES)
def test_fp_modes_take_effect(name):
    """Without this, the factor below would test nothing."""
    with fp_mode(name):
        found = fp_mode_in_effect()
    assert (found, fp_mode_in_effect()) == (name, "default")


@pytest.mark.quick
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", FP_MODES)
def test_the_callers_fp_mode_is_back_afterwards(rng, name, threads):
    """And no operation of ours has raised an exception flag there."""
    problem = Problem(rng, (300, 70), "NXC")
    problem.variance[0], problem.diff_dst[5] = -1, np.inf  # invalid; divisions by zero below
    sums = bn_ext.batch_norm_backward_reduce(problem.src, problem.diff_dst, problem.mean)
    out = [np.empty_like(a) for a in (problem.src, problem.mean, problem.mean)]
    data = (problem.src, problem.diff_dst)
    calls = {
        "backward": lambda: problem.run(
            bn_ext.batch_norm_backward, epsilon=0.0, out=out, num_threads=threads
        ),
        "reduce": lambda: bn_ext.batch_norm_backward_reduce(
            *data, problem.mean, num_threads=threads
        ),
        "apply": lambda: bn_ext.batch_norm_backward_apply(
            *data, *problem.vectors(), sums, 300, epsilon=0.0, out=out, num_threads=threads
        ),
    }
    problem.variance[1] = 0
    libm = math_library()
    for what, call in calls.items():
        with fp_mode(name):
            libm.feclearexcept(SERIOUS)
            call()
            flags = libm.fetestexcept(SERIOUS)
            found = fp_mode_in_effect()
        assert (found, flags) == (name, 0), what


@pytest.fixture(autouse=True)
def _real_caches_afterwards():
    yield
    _core._set_cache_sizes(0, 0)


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
    # Sizes that make every tile one channel, or all of them, and stream every store.
    "caches": [(0, 0), (1, 1), (1 << 40, 1), (1, 1 << 40)],
}

SHAPES = [
    *((5, c, x) for c in range(1, 65) for x in (1, 3, 8)),
    *((3, c, x) for x in range(1, 65) for c in (1, 4, 33)),
    (1, 6, 7), (1, 1, 1), (70, 1, 1), (1, 70, 1), (1, 1, 70), (9, 130, 1), (16, 5, 64),
    (150, 3, 5), (2, 3, 1030), (1, 2, 2048), (3, 1, 2100), (300, 129, 1),
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
            assert started[0] == expected_threads(threads, started[1])
        started, tasks = _core._last_call()
    assert started == expected_threads(threads, tasks)
    for given, returned in zip(outs or (), grads, strict=False):
        assert given is None or given is returned
    return all_bits(grads)


IN_PLACE = [("NXC", 300, 40, 1), ("NXC", 50, 3, 9), ("NCX", 40, 6, 9), ("NCX", 9, 3, 900),
            ("NCX", 2, 3, 9000)]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("over", ["src", "diff_dst"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("data_format", "outer", "channels", "inner"), IN_PLACE)
def test_in_place(rng, data_format, outer, channels, inner, is_training, over):
    """What is overwritten has been read by then: one pass reads and writes, if frozen."""
    for types in DTYPES:
        problem = make(rng, (outer, channels, inner), types, data_format, "normal")
        options = {"data_format": data_format, "is_training": is_training}
        want = all_bits(problem.run(bn_ext.batch_norm_backward, **options))
        target = getattr(problem, over)
        grads = problem.run(bn_ext.batch_norm_backward, out=(target, None, None), **options)
        assert grads.diff_src is target
        assert all_bits(grads) == want


def expected_threads(asked, tasks):
    """How many a call takes that may have so many."""
    return min(asked, tasks) if _core._has_openmp() else 1


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
            assert started == expected_threads(k, tasks)
            results.append(all_bits(grads))
        assert results[0] == results[1]


def test_layout_is_read_from_strides(rng):
    """The name of an axis is nothing to the bits: its place in memory is."""
    for types in DTYPES:
        problem = make(rng, (6, 10, 21), types, "NXC", "normal")
        want = all_bits(problem.run(bn_ext.batch_norm_backward))
        moved = bn_ext.batch_norm_backward(
            np.moveaxis(problem.src, -1, 1), np.moveaxis(problem.diff_dst, -1, 1),
            *problem.vectors(), epsilon=EPSILON, data_format="NCX",
        )  # fmt: skip
        assert np.moveaxis(moved.diff_src, 1, -1).flags.c_contiguous
        assert all_bits((np.moveaxis(moved.diff_src, 1, -1), *moved[1:])) == want


def test_nan_has_one_pattern(rng, isa):
    """x86 and Arm make NaNs of different sign: every one that is written is the same."""
    pattern = {
        "float32": 0x7FC00000,
        "float64": 0x7FF8 << 48,
        "float16": 0x7E00,
        "bfloat16": 0x7FC0,
    }
    for data, vector in DTYPES:
        for data_format in FORMATS:
            problem = Problem(rng, shape(9, 5, 7, data_format), data_format, data, vector)
            problem.src[0] = -np.asarray(np.nan, problem.src.dtype)
            grads = problem.run(bn_ext.batch_norm_backward, data_format=data_format)
            for array, name in zip(grads[:2], (data, vector), strict=True):
                found = np.ascontiguousarray(array)[np.isnan(array.astype(float))]
                assert found.size
                assert (found.view(f"u{dtype(name).itemsize}") == pattern[name]).all()


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
