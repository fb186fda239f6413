"""Times of whole calls: problems of the sets, next to bare loops and to peers."""

import math
import statistics
import time

import bn_ext

from . import peers, sets, streams

# Longer than another OpenMP pool spins before it sleeps.
PAUSE, BURST = 0.01, 0.005
MODES = ("training", "frozen", "frozen-src")
#: Bytes of a tensor below which calls are short, and easily disturbed: more rounds.
SHORT = 8 << 20
#: What reads and writes as many bytes as it must and computes nothing.
FLOORS = {"training": "three", "frozen": "three", "frozen-src": "two"}
LOOPS = ("two", "three", "five")
#: A peer in a layout of its own: shown, but no bound for calls on the arrays one has.
OTHER_LAYOUT = "oneDNN blocked"

HEADING = """# Benchmarks

Times as multiples of the floor: a loop that reads src and diff_dst and writes diff_src, on the
same arrays with the same threads (for frozen-src, where src is not read: one that reads diff_dst
and writes diff_src). five: both read twice, as two passes must that find nothing in cache. Calls of
a row are interleaved; the least time of each counts. Written by `python -m benchmarks`.

"""


def measure(calls, seconds):
    """Least seconds of each call, in turn until the time is up, five rounds at least."""
    best = dict.fromkeys(calls, math.inf)
    start, rounds = time.perf_counter(), 0
    while rounds < 5 or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            time.sleep(PAUSE)
            # A burst: its first calls wake threads and clock, and warm the cache.
            end = time.perf_counter() + BURST
            while (before := time.perf_counter()) < end:
                call()
                best[name] = min(best[name], time.perf_counter() - before)
        rounds += 1
    return best


def row(case, names, library, seconds, say):
    """One line of the table, or None where the shape has no such layout."""
    name_of_set, mode, shape, layout, dtype, threads = case
    if sets.dims(shape, layout) is None:
        return None
    problem = sets.Problem(shape, layout, dtype)
    last_level = bn_ext.show_config(mode="dicts")["cache_sizes"][1]
    calls = {"bn_ext": peers.bn_ext_call(problem, threads, mode)}
    if library:
        for name in LOOPS:
            calls[name] = streams.loop(library, name, problem, threads, last_level)
    for name in list(names):
        try:
            call = peers.PEERS[name](problem, threads, mode)
            if call:
                call()
                calls[name] = call
        except ImportError as error:
            say(f"{name}: not installed, skipped ({error})")
            names.remove(name)
        except Exception as error:  # a peer's refusal is a result, not our failure
            say(f"{name}: {dtype} {layout} {shape}: {type(error).__name__}, skipped")
    return {
        "set": name_of_set, "mode": mode, "shape": shape, "layout": layout, "dtype": dtype,
        "threads": threads, "bytes": problem.src.nbytes,
        "seconds": measure(calls, seconds if problem.src.nbytes > SHORT else 3 * seconds),
    }  # fmt: skip


def floor(r):
    return r["seconds"].get(FLOORS[r["mode"]], math.nan)


def best_peer(r):
    """(seconds, name) of the fastest call in this layout that is not ours."""
    others = [
        (seconds, name)
        for name, seconds in r["seconds"].items()
        if name not in ("bn_ext", *LOOPS, OTHER_LAYOUT)
    ]
    return min(others, default=(math.nan, ""))


def markdown(heading, lines):
    return "\n".join(
        ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
        + ["| " + " | ".join(map(str, cells)) + " |" for cells in lines]
    )


def groups(rows):
    """Rows of one set, mode, layout, dtype and number of threads, together."""
    keys = ("mode", "set", "layout", "dtype", "threads")
    found = {}
    for r in rows:
        found.setdefault(tuple(r[k] for k in keys), []).append(r)
    return found


def summary(rows):
    """Markdown: a line for each group."""
    heading = [
        "mode", "set", "layout", "dtype", "threads", "x floor (geometric mean)", "worst row",
        "best peer / bn_ext (geometric mean)", "worst row",
    ]  # fmt: skip
    lines = []
    for key, mine in groups(rows).items():
        ours = [r["seconds"]["bn_ext"] for r in mine]
        floors = [t / floor(r) for t, r in zip(ours, mine, strict=True)]
        peer = [best_peer(r)[0] / t for t, r in zip(ours, mine, strict=True) if best_peer(r)[1]]
        cells = [statistics.geometric_mean(floors), max(floors)]
        cells += [statistics.geometric_mean(peer), min(peer)] if peer else []
        lines.append([*key, *(f"{c:.2f}" for c in cells)] + [""] * (4 - len(cells)))
    return markdown(heading, lines)


def table(rows):
    """Markdown: multiples of the floor, row by row."""
    names = list(dict.fromkeys(name for r in rows for name in r["seconds"]))
    names = [n for n in names if n not in FLOORS.values()]
    lines = []
    for r in rows:
        times = r["seconds"]
        cells = [f"{times[n] / floor(r):.2f}" if n in times else "" for n in names]
        facts = [r["layout"], r["dtype"], r["threads"], f"{1e3 * floor(r):.3f}"]
        lines.append([" x ".join(map(str, r["shape"])), *facts, *cells])
    heading = ["shape (N, C, ...)", "layout", "dtype", "threads", "floor, ms", *names]
    return markdown(heading, lines)


def sections(rows):
    """The summary, then a table for each mode and set."""
    text = [f"## In short\n\n{summary(rows)}"]
    for mode, name in dict.fromkeys((r["mode"], r["set"]) for r in rows):
        mine = [r for r in rows if (r["mode"], r["set"]) == (mode, name)]
        text.append(f"## {name}, {mode}\n\n{table(mine)}")
    return "\n\n".join(text)


def plot(rows, title, path):
    """Bars of all multiples of the floor, a group for each row, a panel for each kind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = groups(rows)
    figure, panels = plt.subplots(
        len(kinds), 1, figsize=(11, 2.6 * len(kinds) + 0.6), layout="constrained", squeeze=False
    )
    names = list(dict.fromkeys(n for r in rows for n in r["seconds"] if n not in FLOORS.values()))
    for panel, (kind, mine) in zip(panels[:, 0], kinds.items(), strict=True):
        for k, name in enumerate(names):
            heights = [r["seconds"].get(name, math.nan) / floor(r) for r in mine]
            places = [i + (k - len(names) / 2) * 0.8 / len(names) for i in range(len(mine))]
            panel.bar(places, heights, 0.8 / len(names), label=name, align="edge")
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_xticks(
            range(len(mine)), ["x".join(map(str, r["shape"])) for r in mine], fontsize=8
        )
        panel.set_ylabel("times the floor")
        panel.set_title("{0}, {2}, {3}, {4} threads".format(*kind), fontsize=10)
    panels[0, 0].legend(ncols=len(names), fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
