"""Times of whole calls on the problems of the sets, next to bare loops and peers."""

import math
import os
import statistics

import bn_ext
from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.problems import SETS
from bn_ext._bench.timing import cases_of, markdown, row

from . import bare_loops, onednn, pages, places
from .peers import PEERS

#: Bare loops. The first moves the bytes that the operation must, and computes nothing. The second
#: reads the operands twice: an operation that sums before it writes has to, if no cache helps. The
#: third is like the second, but writes to fresh arrays.
FLOOR, TWO_PASSES, TWO_PASSES_FRESH = "floor", "two passes", "two passes, fresh"
LOOPS = {FLOOR: {}, TWO_PASSES: {"passes": 2}, TWO_PASSES_FRESH: {"passes": 2, "fresh": True}}
#: Our own call with fresh outputs, as most peers return them.
FRESH = "bn_ext, fresh"
#: Peers that write to given outputs.
GIVEN_OUTPUTS = {"oneDNN"}
#: A peer in its own layout: shown, but not compared with calls on ordinary arrays.
OTHER_LAYOUT = "oneDNN blocked"


def onednn_blocked_call(problem, threads):
    """A call of oneDNN in its own layout, blocks of 16 channels; no NumPy array has it."""
    return onednn.call(problem, threads, "blocked")


ALL_PEERS = {**PEERS, "oneDNN": onednn.call, OTHER_LAYOUT: onednn_blocked_call}


def measure(case, names, library, seconds, say):
    """One row: bn_ext, the bare loops, and peers."""
    counts = {1, case.threads}

    def more(problem, threads):
        calls = {FRESH: bn_ext_call(problem, threads, fresh=True)}
        for name, options in LOOPS.items() if library else ():
            for n in counts:
                calls[f"{name} {n}"] = bare_loops.loop(library, problem, n, **options)
        return calls

    chosen = {name: ALL_PEERS[name] for name in names}
    found = row(case, seconds, lambda name, why: say(f"{name}: {why}, skipped"), chosen, more)
    for times in (found["seconds"], found["medians"]) if library else ():
        times |= {name: min(times.pop(f"{name} {n}") for n in counts) for name in LOOPS}
    names[:] = chosen
    at = places.measure(case, seconds)
    # The smaller ratio, of shortest times or of medians, since noise can raise either.
    over = min(max(times) / min(times) for times in zip(*at.values(), strict=True))
    return {
        **found,
        "shape": "x".join(map(str, case.shape)),
        "level": bn_ext.get_isa(),
        "malloc": "keeps" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else "default",
        "over places": over,
    }


def floor(r):
    return r["seconds"].get(FLOOR, math.nan)


def over_peers(r):
    """{peer on the same arrays: how many times faster bn_ext is, with outputs of the same kind}."""
    times = r["seconds"]
    ours = {name: times["bn_ext" if name in GIVEN_OUTPUTS else FRESH] for name in times}
    others = [name for name in times if name not in ("bn_ext", FRESH, OTHER_LAYOUT, *LOOPS)]
    return {name: times[name] / ours[name] for name in others}


def over_best_peer(r):
    """(how many times faster bn_ext is than the fastest peer, the name of that peer)."""
    return min(((ratio, name) for name, ratio in over_peers(r).items()), default=(math.nan, ""))


def groups(rows):
    """Rows of one level, operation, layout and dtype, together."""
    found = {}
    for r in rows:
        key = tuple(r[name] for name in ("level", "op", "layout", "dtype"))
        found.setdefault(key, []).append(r)
    return found


def summary(rows):
    """Markdown: a line for each group; geometric means."""
    heading = [
        "level", "op", "layout", "dtype", "x floor", "fresh, x floor", "best peer / bn_ext",
        "worst row", "torch / bn_ext",
    ]  # fmt: skip
    lines = []
    for key, mine in groups(rows).items():
        floors = [r["seconds"]["bn_ext"] / floor(r) for r in mine]
        fresh = [r["seconds"][FRESH] / floor(r) for r in mine]
        peer = [over_best_peer(r)[0] for r in mine if over_peers(r)]
        torch = [over_peers(r)["torch"] for r in mine if "torch" in over_peers(r)]
        mean = statistics.geometric_mean
        cells = [mean(floors), mean(fresh)]
        cells += [mean(peer), min(peer)] if peer else [None] * 2
        cells.append(mean(torch) if torch else None)
        lines.append([*key, *("" if c is None else f"{c:.2f}" for c in cells)])
    return markdown(heading, lines)


def table(rows):
    """Markdown: multiples of the floor, row by row."""
    names = [n for n in dict.fromkeys(n for r in rows for n in r["seconds"]) if n != FLOOR]
    heading = ["op", "shape", "layout", "dtype", "threads", "floor, ms", "median", *names]
    lines = []
    for r in rows:
        times = r["seconds"]
        cells = [f"{r['medians']['bn_ext'] / floor(r):.2f}"]
        cells += [f"{times[n] / floor(r):.2f}" if n in times else "" for n in names]
        lines.append([*(r[name] for name in heading[:5]), f"{1e3 * floor(r):.3f}", *cells])
    return markdown(heading, lines)


def report(options, console):
    """Measure every row that is asked for, and print them."""
    from . import figures

    library = bare_loops.load()
    if library is None:
        console.print("no C compiler: no floor, only seconds")
    named = [(name, shape) for name in options.sets for shape in SETS[name]]
    cases = cases_of(named, options.op, options.threads, options.dtypes, options.layouts)
    names, found = list(options.peers), []
    with pages.counted(console, "rows", len(cases)) as advance:
        for case in cases:
            found.append(measure(case, names, library, options.seconds, console.print))
            advance()
    run = pages.run(names)
    console.print(f"{run}\n\n{summary(found)}\n\n{table(found)}", markup=False, soft_wrap=True)
    if options.write:
        figures.add(run, found)
