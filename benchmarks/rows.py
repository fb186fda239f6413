"""Times of whole calls: problems of the sets, next to bare loops and to peers."""

import math
import statistics

from bn_ext._bench.peers import PEERS, bn_ext_call
from bn_ext._bench.problems import SETS
from bn_ext._bench.timing import cases_of, markdown, row

from . import bare_loops, onednn, pages, places
from .pictures import picture

#: Bare loops: what moves the bytes that the operation must and computes nothing; the same in two
#: passes, as what sums before it writes must without a cache; and this to fresh arrays.
FLOOR, TWO_PASSES, TWO_PASSES_FRESH = "floor", "two passes", "two passes, fresh"
LOOPS = {FLOOR: {}, TWO_PASSES: {"passes": 2}, TWO_PASSES_FRESH: {"passes": 2, "fresh": True}}
#: Our own call with fresh outputs, as peers return them ...
FRESH = "bn_ext, fresh"
#: ... but for those that write to given ones.
GIVEN_OUTPUTS = {"oneDNN"}
#: A peer in a layout of its own: shown, but no bound for calls on the arrays one has.
OTHER_LAYOUT = "oneDNN blocked"


def onednn_blocked_call(problem, threads):
    """Blocks of 16 channels, oneDNN's own choice: not what an array's owner has."""
    return onednn.call(problem, threads, "blocked")


ALL_PEERS = {**PEERS, "oneDNN": onednn.call, OTHER_LAYOUT: onednn_blocked_call}

HEADING = f"""# Benchmarks

Times are multiples of the memory floor: a loop that reads and writes the tensors that the
operation must (the gradient: src, diff_dst, diff_src; backward-frozen-src: without src), on the
same arrays, with the same threads or with one, whichever is faster. The loop "{TWO_PASSES}" reads
all once before, as two passes must when nothing stays in cache; "{TWO_PASSES_FRESH}" writes to
fresh arrays, whose pages the system clears as they are touched. Arrays lie where NumPy puts large
ones, 16 bytes past a page. The calls of a row are interleaved; the shortest time of each is
shown, of bn_ext the median too. `bn_ext` writes to given arrays
(`out=`), as oneDNN does; with fresh ones, as the other peers return them, it is "{FRESH}". Each
peer is compared with the call that does the same. JAX and TensorFlow read copies that lie where
they put them, and are timed with all CPUs alone, since they take all. "over places" is the worst
time over the best with arrays at seven places of their pages, outputs given, by shortest times or
by medians, whichever is nearer to 1: noise raises both. "oneDNN blocked" needs arrays in a layout
of its own, and is not compared. Written by `python -m benchmarks`.

"""

#: Alternative text of the picture.
PICTURE = "bar chart of times as multiples of the memory floor"


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
    return {**found, "places": {str(place): list(times) for place, times in at.items()}}


def floor(r):
    return r["seconds"].get(FLOOR, math.nan)


def over_peers(r):
    """How many times faster than each peer that has these arrays, with outputs as it has them."""
    times = r["seconds"]
    ours = {name: times["bn_ext" if name in GIVEN_OUTPUTS else FRESH] for name in times}
    others = [name for name in times if name not in ("bn_ext", FRESH, OTHER_LAYOUT, *LOOPS)]
    return {name: times[name] / ours[name] for name in others}


def over_best_peer(r):
    """(how many times faster than the peer of which that is least, its name)."""
    return min(((ratio, name) for name, ratio in over_peers(r).items()), default=(math.nan, ""))


def over_places(r):
    """Worst time over best: of shortest times or of medians, of which noise raises either."""
    return min(max(times) / min(times) for times in zip(*r["places"].values(), strict=True))


def groups(rows):
    """Rows of one set, operation, layout, dtype and number of threads, together."""
    keys = ("op", "set", "layout", "dtype", "threads")
    found = {}
    for r in rows:
        found.setdefault(tuple(r[k] for k in keys), []).append(r)
    return found


def summary(rows):
    """Markdown: a line for each group."""
    heading = [
        "op", "set", "layout", "dtype", "threads", "x floor (geometric mean)", "worst row",
        "best peer / bn_ext (geometric mean)", "worst row", "torch / bn_ext", "over places, worst",
    ]  # fmt: skip
    lines = []
    for key, mine in groups(rows).items():
        ours = [r["seconds"]["bn_ext"] for r in mine]
        floors = [t / floor(r) for t, r in zip(ours, mine, strict=True)]
        peer = [over_best_peer(r)[0] for r in mine if over_peers(r)]
        torch = [over_peers(r)["torch"] for r in mine if "torch" in over_peers(r)]
        cells = [statistics.geometric_mean(floors), max(floors)]
        cells += [statistics.geometric_mean(peer), min(peer)] if peer else [None] * 2
        cells += [statistics.geometric_mean(torch) if torch else None, max(map(over_places, mine))]
        lines.append([*key, *("" if c is None else f"{c:.2f}" for c in cells)])
    return markdown(heading, lines)


def table(rows):
    """Markdown: multiples of the floor, row by row."""
    names = list(dict.fromkeys(name for r in rows for name in r["seconds"]))
    names = [n for n in names if n != FLOOR]
    lines = []
    for r in rows:
        times = r["seconds"]
        cells = [f"{times[n] / floor(r):.2f}" if n in times else "" for n in names]
        cells[1:1] = [f"{r['medians']['bn_ext'] / floor(r):.2f}", f"{over_places(r):.2f}"]
        facts = [r["layout"], r["dtype"], r["threads"], f"{1e3 * floor(r):.3f}"]
        lines.append([" x ".join(map(str, r["shape"])), *facts, *cells])
    heading = ["shape (N, C, ...)", "layout", "dtype", "threads", "floor, ms", *names]
    heading[6:6] = ["median", "over places"]
    return markdown(heading, lines)


def sections(rows):
    """The summary, then a table for each operation and set."""
    text = [f"## Summary\n\n{summary(rows)}"]
    for op, name in dict.fromkeys((r["op"], r["set"]) for r in rows):
        mine = [r for r in rows if (r["op"], r["set"]) == (op, name)]
        text.append(f"## {name}, {op}\n\n{table(mine)}")
    return "\n\n".join(text)


def plot(rows, title, path):
    """Bars of all multiples of the floor, a group for each row, a panel for each kind."""
    kinds = groups(rows)
    names = list(dict.fromkeys(n for r in rows for n in r["seconds"] if n != FLOOR))
    size = 11, 2.6 * len(kinds) + 0.6
    with picture(path, rows=len(kinds), size=size, dpi=110) as (figure, panels):
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
        bars = panels[0, 0].get_legend_handles_labels()
        figure.legend(*bars, loc="outside lower center", ncols=len(names), fontsize=8)
        figure.suptitle(title, fontsize=10)


def report(options, console):
    """Every row that is asked for."""
    library = bare_loops.load()
    if library is None:
        console.print("no C compiler: no floor, seconds alone")
    facts, title = pages.machine()
    named = [(name, shape) for name in options.sets for shape in SETS[name]]
    cases = cases_of(named, options.op, options.threads, options.dtypes, options.layouts)
    names, found = list(options.peers), []
    with pages.counted(console, "rows", len(cases)) as advance:
        for case in cases:
            found.append(measure(case, names, library, options.seconds, console.print))
            advance()
    picture = f"![{PICTURE}]({options.name}.png)\n\n" if library else ""
    text = f"{HEADING}{title}\n\n{picture}{sections(found)}\n"
    pages.show(options, console, options.name, text, {**facts, "rows": found})
    if options.write and library:
        plot(first_group(found), title, options.write / f"{options.name}.png")


def first_group(found):
    """Rows of the first set and operation, with the most threads."""
    first = {**found[0], "threads": max(r["threads"] for r in found)}
    return [r for r in found if all(r[k] == first[k] for k in ("set", "op", "threads"))]
