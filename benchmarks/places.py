"""An operation at every place that arrays may have in their pages, next to the bare loops there."""

import statistics

from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.problems import NUMPYS, PLACES, Problem
from bn_ext._bench.timing import call_seconds, markdown

from . import bare_loops


def measure(case, library, seconds):
    """Shortest and median seconds at each place, interleaved; beside them the two passes."""
    problems = {
        place: Problem(case.shape, case.layout, case.dtype, place, case.op) for place in PLACES
    }
    calls = {
        ("bn_ext", place): bn_ext_call(problem, case.threads) for place, problem in problems.items()
    }
    if library:
        calls |= {
            ("loop", place): bare_loops.loop(library, problem, case.threads, passes=2)
            for place, problem in problems.items()
        }
    times = call_seconds(calls, seconds)
    found = {}
    for (name, place), all_times in times.items():
        found.setdefault(name, {})[place] = min(all_times), statistics.median(all_times)
    return found


def table(rows):
    """Markdown: a line for each case; (case, what measure gives)."""
    heading = [
        "shape (N, C, ...)", "layout", "dtype", "threads", "best, ms", "worst / best",
        *(", ".join(map(str, place)) for place in PLACES), "x two passes, at NumPy's",
    ]  # fmt: skip
    lines = []
    for case, found in rows:
        shortest = {place: least for place, (least, _) in found["bn_ext"].items()}
        best, worst = min(shortest.values()), max(shortest.values())
        at_numpys = shortest[NUMPYS] / found["loop"][NUMPYS][0] if "loop" in found else None
        lines.append([
            " x ".join(map(str, case.shape)), case.layout, case.dtype, case.threads,
            f"{1e3 * best:.4f}", f"{worst / best:.2f}",
            *(f"{shortest[place] / best:.2f}" for place in PLACES),
            f"{at_numpys:.2f}" if at_numpys else "",
        ])  # fmt: skip
    return markdown(heading, lines)
