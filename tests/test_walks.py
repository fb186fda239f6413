"""Sums and writes, by columns and by runs, give the bits of a model of the order of sums: in each
form, with any number of rows and columns, anywhere in memory.

The model (order_of_sums.py) handles only dense arrays. Calls run at any level, with any tiles,
threads and stores, and with gaps anywhere in any operand.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from cases import DATA_DTYPES, dtype, team_of
from oracle.dtypes import DTYPES
from oracle.formulas import RESULTS
from order_of_sums import form_of, sums_of

import bn_ext
from bn_ext import _core
from bn_ext._cli import verify
from bn_ext._cli.verify import STARTS, numbers

#: Axes, slowest first: two of positions, the channels, two of a run.
N0, N1, C, X0, X1 = range(5)
#: Axes that end with a gap. Operands with the last kind are copied, and some with the others.
GAPS = {
    "dense": (),
    "positions apart": (C,),
    "channels apart": (X0,),
    "within positions and runs": (N1, X1),
}
#: Which operands have gaps; the others are dense.
WHERE = [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]
#: Cache sizes: stores bypass the cache or not, and tiles are narrow or as wide as they get.
NEVER, ALWAYS = 1 << 40, 1
CACHES = [(1, NEVER), (1, ALWAYS), (1 << 14, ALWAYS), (1 << 40, ALWAYS)]
WAYS = ["backward", "frozen", "sums"]
EPSILON = 0.25
FEW = 7  # the quick test takes one shape in seven
#: Fills memory that belongs to no element, and diff_src before a call.
UNTOUCHED = 0x3333


def split(n):
    """Factor n into two, as equal as possible."""
    first = max(k for k in range(1, int(n**0.5) + 1) if n % k == 0)
    return first, n // first


class Problem:
    """Data whose sums depend on the order of adding, and the right results of each way to call."""

    def __init__(self, name, positions, channels, run):
        self.dtype, self.storage = DTYPES[name], dtype(name)
        number, computed = self.dtype.number, self.dtype.computed
        dense = (positions, channels, run)
        self.shape = (*split(positions), channels, *split(run))
        exponents = verify.EXPONENTS[name]
        src, diff_dst = (
            numbers(self.dtype, positions * channels * run, start, exponents).reshape(dense)
            for start in STARTS
        )
        self.mean, self.gamma = (
            numbers(computed, channels, k << 50, exponents).view(number)
            for k, exponents in ((1, (-20, 24)), (3, (-4, 8)))
        )
        # Every rstd is a power of two, so the arithmetic per channel is easy to repeat here.
        rstd = 2.0 ** -(np.arange(channels) % 3)
        self.variance = (rstd**-2 - EPSILON).astype(number)
        self.sums = sums_of(self.dtype, src, diff_dst, self.mean)
        self.count = positions * run
        self.gradients = [(a.astype(number)) for a in (rstd * self.sums[1], self.sums[0])]
        per_channel = {
            "mean": self.mean,
            "shift": self.sums[0] / self.count,
            "slope": rstd * (rstd * self.sums[1]) / self.count,
            "scale": self.gamma * rstd,
        }
        coefs = {k: v.astype(number)[:, None] for k, v in per_channel.items()}
        wide = {"src": self.dtype.widen(src), "diff_dst": self.dtype.widen(diff_dst)}
        self.operands = [a.reshape(self.shape) for a in (src, diff_dst)]
        self.results = {}
        for formula in ("backward", "frozen"):
            with np.errstate(all="ignore"):
                written = RESULTS[formula](SimpleNamespace(**wide), SimpleNamespace(**coefs))
            self.results[formula] = self.dtype.narrow(written["diff_src"]).reshape(self.shape)

    def laid_out(self, values, gaps, offset):
        """(memory, view): values, gaps after these axes, `offset` elements past a cache line."""
        room = [n + 3 * (axis in gaps) for axis, n in enumerate(self.shape)]
        memory = np.full(int(np.prod(room)) + 64, UNTOUCHED, self.dtype.bits)
        start = -memory.ctypes.data % 64 // self.storage.itemsize + offset
        view = memory[start : start + int(np.prod(room))].reshape(room)
        view = view[tuple(slice(n) for n in self.shape)]
        view[...] = values
        return memory, view

    def as_argument(self, view):
        """The array as functions take it: the channel second, wherever memory has it."""
        return view.view(self.storage).transpose(N0, C, N1, X0, X1)


def assert_right(p, way, gaps, with_gaps, offset, num_threads):
    """Check the bits of a call, or of sums and a call, over operands with this layout."""
    formula = "backward" if way == "sums" else way
    memory = [
        p.laid_out(values, gaps if has_gaps else (), offset)
        for values, has_gaps in zip([*p.operands, UNTOUCHED], with_gaps, strict=True)
    ]
    src, diff_dst, diff_src = (p.as_argument(view) for _, view in memory)
    options = {"data_format": "NCX", "num_threads": num_threads}
    vectors = p.mean, p.variance, p.gamma
    others = {"epsilon": EPSILON, "is_training": formula == "backward"}
    others["out"] = diff_src, None, None
    if way == "sums":
        others["sums"] = sums = bn_ext.GradientSums(src, diff_dst, p.mean, **options)
        assert (sums.count, sums._sums.tobytes()) == (p.count, p.sums.tobytes())
    results = bn_ext.batch_norm_backward(src, diff_dst, *vectors, **options, **others)
    team = team_of(num_threads)
    for gradient, right in zip(results[1:], p.gradients, strict=True):
        assert gradient.tobytes() == right.tobytes()
    around, written = memory[2]
    np.testing.assert_array_equal(written, p.results[formula])
    written[...] = UNTOUCHED
    assert (around == UNTOUCHED).all(), "wrote outside diff_src"
    return team


def around(*sizes):
    return [n + d for n in sizes for d in (-1, 0, 1)]


#: (positions, channels, run) by form: strands of 1 ... 6 rows and more, the last one shorter or
#: not; groups of eight blocks or fewer; widths around the size of each register, and around what is
#: written at a time; one chunk, two, and a last chunk of few rows.
SHAPES = {
    "channels_last": [
        *((n, 130, 1) for n in [*range(1, 26), *around(32, 36, 64)]),
        *((n, 144, 1) for n in (4, 9, 12, 20, 34, 35, 36, 60, 64, 68)),
        *((n, 129, 1) for n in [*around(132, 264), 135, 136, 137, 140, 166]),
        *((5, c, 1) for c in [*around(128, 160, 192, 256, 512), 1030, 4100]),
        *((12, c, 1) for c in [*around(136, 144, 512), 700]),
        *((300, 400, 1), (1201, 96, 1)),  # several tiles if there are many threads
        *((n, c, 1) for n in (36, 40, 70) for c in (256, 512, 1024)),  # several groups, aligned
        (62 * 140 + 133, 128, 1),  # longer strands; the last chunk has three of 34 rows, one of 31
        # Rows of several positions.
        *((n, 3, 1) for n in [2, 5, 8, *around(96, 4 * 96), 9 * 96 + 5]),
        *((n, 3, 1) for n in [*around(32 * 96), 35 * 96, 132 * 96 + 4, 137 * 96]),
        *((n, c, 1) for c in (2, 7, 8, 31, 32, 33, 64, 100, 127) for n in (6, 60, 300, 1100)),
    ],
    "short_runs": [
        *((n, 3, 5) for n in [*range(1, 26), *around(32, 36, 64)]),
        *((n, 2, 32) for n in (4, 9, 12, 20, 34, 35, 60, 64, 68)),
        *((n, 2, 6) for n in [*around(132, 264), 135, 136, 137, 140, 166]),
        *((9, 2 + x % 3, x) for x in [*range(2, 20), *around(32, 48, 64, 96, 128), 143]),
        *((40, 2, x) for x in (40, 128, 144, 145, 224, 255)),
        *((n, 60, 46) for n in (2, 12, 40)),
        *((n, 2, x) for x in (8, 16, 32) for n in (8, 36, 70)),
        *((6, 1000, 9), (40, 300, 9), (5, 2, 79), (13, 2, 207), (70, 2, 255)),
        # Few positions; runs around the lengths from which sums or results are computed by runs.
        *(
            (n, 3, x)
            for n in (1, 2, 3)
            for x in (4 * n - 1, 4 * n, 23 + 8 * n, 24 + 8 * n)
            if x < 48
        ),
        *((n, 3, x) for n in (4, 5, 8, 9) for x in (4 * n - 1, 4 * n, 23 + 8 * n, 24 + 8 * n)),
        *((n, 1, x) for n, x in ((4, 5), (6, 7))),  # one channel: all axes are inner
    ],
    "long_runs": [
        # One position: blocks of stretches, followed by a stretch or more, or by a part of one.
        *((1, 2, x) for x in [*around(64, 96, 128, 256, 288, 512, 768, 1024), 300, 1100]),
        *((1, 3, x) for x in around(2048, 4096, 8192 + 1024)),
        *((1, 2, x) for x in around(16384, 70_000)),
        *((n, 1, x) for n, x in ((300, 1), (7, 60), (5, 900))),  # one channel: all axes are inner
        # Several positions: rows of one stretch, or of groups of stretches, whole or not.
        *((n, 2, 420) for n in range(2, 26)),
        *((n, 2, 512) for n in (3, 4, 8, 12, 16, 20)),
        *((n, 5, x) for n in (2, 3) for x in [*around(49, 64), 100]),
        *((n, 2, x) for n, x in ((5, 80), (13, 208), (70, 256), (70, 257))),
        *((n, 2, 400 + n) for n in [*around(132), 135, 136, 137, 140, 166, 265]),
        *((n, 2, x) for n in (2, 3, 10) for x in [*around(257, 288, 512, 1024, 2048), 700]),
        *((n, 2, x) for n in (4, 14) for x in [*around(4096), 4200, 9000]),
        *((2, 2, x) for x in [*around(8192, 16384), 9000, 20_000, 33_000]),
        *((2, 100, 700), (5, 60, 900)),  # many tiles
        (3, 33, 9000),  # chunks of more than 4096 elements
        (3, 64, 9000),  # and of more than 8192
    ],
}
FORMS = [(form, name) for form in SHAPES for name in DATA_DTYPES]


def any_circumstances(rng, past_the_cache):
    _core.use_isa(rng.choice(bn_ext.available_isas()))
    _core.set_cache_sizes(*CACHES[rng.integers(1, len(CACHES)) if past_the_cache else 0])
    return {
        "with_gaps": WHERE[rng.integers(len(WHERE))],
        "offset": int(rng.choice([0, 0, 1, 5])),
        "num_threads": int(rng.choice([1, 1, 3, 16])),
    }


def check(rng, form, name, shapes):
    teams = set()
    for shape in shapes:
        assert form_of(*shape).__name__ == form
        p = Problem(name, *shape)
        places = [gaps for gaps in GAPS.values() if shape[2] > 1 or not {X0, X1} & {*gaps}]
        for way, past_the_cache, gaps in itertools.product(WAYS, (False, True), places):
            options = any_circumstances(rng, past_the_cache)
            print(shape, way, bn_ext.get_isa(), past_the_cache, gaps, options)
            teams.add(assert_right(p, way, gaps, **options))
    assert max(teams) > 1


@pytest.mark.fast
@pytest.mark.results
@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_few_shapes(rng, form, name):
    check(rng, form, name, SHAPES[form][::FEW])


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), FORMS)
def test_the_other_shapes(rng, form, name):
    check(rng, form, name, [shape for k, shape in enumerate(SHAPES[form]) if k % FEW])
