"""An operation, timed with arrays at several offsets in their pages."""

import statistics

from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.problems import NUMPYS, Problem
from bn_ext._bench.timing import call_seconds

#: NumPy's offsets, and others that are good or bad for caches and for loads that follow stores.
PLACES = (
    NUMPYS, (0, 1536, 2560), (0, 0, 0), (0, 64, 128), (16, 16, 80), (16, 1040, 2064),
    (48, 4000, 16),
)  # fmt: skip


def measure(case, seconds):
    """{place: (shortest seconds, median seconds)}, from interleaved calls."""
    calls = {}
    for place in PLACES:
        problem = Problem(case.shape, case.layout, case.dtype, place, case.op)
        calls[place] = bn_ext_call(problem, case.threads)
    times = call_seconds(calls, seconds)
    return {place: (min(found), statistics.median(found)) for place, found in times.items()}
