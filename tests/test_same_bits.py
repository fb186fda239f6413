"""Same bits, whatever the machine does: outputs must be equal, not just close.

A call's values and the order of src's axes in memory decide the bits. All else is a circumstance:
instruction set, threads, alignment, strides, gaps in memory, outputs (new, given or in place), one
call or two, dtypes of vectors, cache sizes, the caller's floating-point mode.
"""

import itertools

import fuzz
import pytest
from cases import DTYPES, FORMATS, shape, shapes, team_of
from members import MEMBERS, problem

import bn_ext
from bn_ext import _core

SHAPES = [(5, c, x) for c in range(1, 65) for x in (1, 3, 8)]
SHAPES += [(3, c, x) for x in range(1, 65) for c in (1, 4, 33)]
SHAPES += shapes("1x6x7 1x1x1 70x1x1 1x70x1 1x1x70 9x130x1 16x5x64 35x3x5 150x3x5 2x3x1030")
SHAPES += shapes("1x2x2048 3x1x2100 300x129x1 70x1024x1")
# Enough tasks for 16 threads, in each form: channels last, short runs, long runs.
LARGE = [("NXC", 2100, 129, 1), ("NXC", 35000, 20, 1), ("NXC", 1024, 19, 64)]
LARGE += [("NCX", 17, 40, 50), ("NCX", 4, 9, 20000), ("NCX", 1, 1, 600000)]


@pytest.mark.fast
@pytest.mark.results
@pytest.mark.any_level
@pytest.mark.parametrize("member", MEMBERS)
def test_any_circumstances(rng, member):
    """Those of a random problem are random, too; the plainest call has the same bits. New results
    lie in memory as src does.
    """
    for _ in range(100):
        fuzz.check(rng, member, alone=True)


@pytest.mark.fast
@pytest.mark.results
@pytest.mark.any_level
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("types", DTYPES)
def test_every_residue_at_every_level(rng, types, data_format):
    """The gradient, and one other member, which changes with the shape and the dtype."""
    others = itertools.cycle([member for member in MEMBERS if member != "backward"])
    others = itertools.islice(others, DTYPES.index(types), None)
    for dims in SHAPES:
        p = problem(rng, shape(*dims, data_format), data_format, *types)
        for member in ("backward", next(others)):
            results = []
            for isa in bn_ext.available_isas():
                _core.use_isa(isa)
                results.append(MEMBERS[member].run(p, num_threads=1)[1])
            assert all(bits == results[0] for bits in results), (member, dims)


@pytest.mark.parametrize("types", DTYPES)
@pytest.mark.parametrize("large", LARGE, ids=str)
def test_any_number_of_threads(rng, types, large):
    """With OpenMP, as many threads as asked for are really started, and each has tasks. Each two of
    member, mode, dtypes and shape meet.
    """
    data_format, *dims = large
    p = problem(rng, shape(*dims, data_format), data_format, *types)
    for place, member in enumerate(MEMBERS.values(), DTYPES.index(types) + LARGE.index(large)):
        results = []
        for k in (1, 2, 3, 5, 16):
            results.append(member.run(p, is_training=place % 2 == 0, num_threads=k)[1])
            assert team_of(k) == k
        assert all(bits == results[0] for bits in results)
