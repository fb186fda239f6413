"""Times of the gradient as multiples of the memory floor, next to its peers.

    python -m benchmarks                                   resnet set, float32 and bfloat16
    python -m benchmarks --sets mlp odd --dtypes float16 --peers numpy torch
    python -m benchmarks --write docs                      benchmarks.json, .md and .png there

The floor is a loop that reads src and diff_dst and writes diff_src, nothing else, on the
same arrays with the same threads. All calls of a row are interleaved, with a pause before
each so that another pool's idle threads have gone to sleep; the minimum counts.
"""

import argparse
import json
import math
import platform
import time
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import bn_ext

from . import peers, sets, streams

HEADING = """# Benchmarks

Times as multiples of the floor: a loop that reads src and diff_dst and writes diff_src, on the
same arrays with the same threads. two: the same without src. five: both read twice, as two passes
must that find nothing in cache. Written by `python -m benchmarks`.

![bars against the floor](benchmarks.png)
"""
# Longer than another OpenMP pool spins before it sleeps.
PAUSE, BURST = 0.01, 0.005
MODES = ("training", "frozen", "frozen-src")


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


def row(shape, layout, dtype, threads, mode, names, library, seconds, say):
    """One line of the table, or None where the shape has no such layout."""
    if sets.dims(shape, layout) is None:
        return None
    problem = sets.Problem(shape, layout, dtype)
    last_level = bn_ext.show_config(mode="dicts")["cache_sizes"][1]
    calls = {"bn_ext": peers.bn_ext_call(problem, threads, mode)}
    if library:
        for name in ("two", "three", "five"):
            calls[name] = streams.loop(library, name, problem, threads, last_level)
    for name in names:
        try:
            call = peers.PEERS[name](problem, threads, mode)
            if call:
                call()
                calls[name] = call
        except ImportError:
            say(f"{name}: not installed, skipped")
            names.remove(name)
        except Exception as error:  # a peer's refusal is a result, not our failure
            say(f"{name}: {dtype} {layout} {shape}: {type(error).__name__}, skipped")
    return {
        "shape": shape, "layout": layout, "dtype": dtype, "threads": threads, "mode": mode,
        "bytes": problem.src.nbytes, "seconds": measure(calls, seconds),
    }  # fmt: skip


def table(rows):
    """Markdown: multiples of the floor."""
    names = list(dict.fromkeys(name for r in rows for name in r["seconds"]))
    names = [n for n in names if n != "three"]
    lines = [
        "| shape (N, C, ...) | layout | dtype | threads | floor, ms | " + " | ".join(names) + " |",
        "|" + "---|" * (5 + len(names)),
    ]
    for r in rows:
        floor = r["seconds"].get("three", math.nan)
        cells = [f"{r['seconds'][n] / floor:.2f}" if n in r["seconds"] else "" for n in names]
        lines.append(
            f"| {' x '.join(map(str, r['shape']))} | {r['layout']} | {r['dtype']} | {r['threads']} "
            f"| {1e3 * floor:.3f} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def plot(rows, title, path):
    """Bars of all multiples of the floor, a group for each row, a panel for each kind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys((r["layout"], r["dtype"], r["threads"]) for r in rows))
    figure, panels = plt.subplots(
        len(kinds), 1, figsize=(11, 2.6 * len(kinds) + 0.6), layout="constrained", squeeze=False
    )
    names = list(dict.fromkeys(n for r in rows for n in r["seconds"] if n not in ("two", "three")))
    for panel, kind in zip(panels[:, 0], kinds, strict=True):
        mine = [r for r in rows if (r["layout"], r["dtype"], r["threads"]) == kind]
        for k, name in enumerate(names):
            heights = [r["seconds"].get(name, math.nan) / r["seconds"]["three"] for r in mine]
            places = [i + (k - len(names) / 2) * 0.8 / len(names) for i in range(len(mine))]
            panel.bar(places, heights, 0.8 / len(names), label=name, align="edge")
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_xticks(
            range(len(mine)), ["x".join(map(str, r["shape"])) for r in mine], fontsize=8
        )
        panel.set_ylabel("times the floor")
        panel.set_title(f"{kind[0]}, {kind[1]}, {kind[2]} threads", fontsize=10)
    panels[0, 0].legend(ncols=len(names), fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def processor():
    """Its name, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sets", nargs="+", choices=sets.SETS, default=["resnet"])
    parser.add_argument("--dtypes", nargs="+", choices=sets.DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--layouts", nargs="+", choices=sets.LAYOUTS, default=list(sets.LAYOUTS))
    parser.add_argument("--threads", nargs="+", type=int, default=None, help="default: all")
    parser.add_argument("--mode", choices=MODES, default="training")
    parser.add_argument("--peers", nargs="*", choices=peers.PEERS, default=list(peers.PEERS))
    parser.add_argument("--seconds", type=float, default=1.0, help="per row")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="JSON, table and picture")
    options = parser.parse_args(arguments)

    config = bn_ext.show_config(mode="dicts")
    threads = options.threads or [config["default_threads"]]
    console = Console()
    library = streams.load()
    if library is None:
        console.print("no C compiler: no floor, seconds alone")
    cases = [
        (shape, layout, dtype, count)
        for count in threads
        for dtype in options.dtypes
        for layout in options.layouts
        for name in options.sets
        for shape in sets.SETS[name]
    ]
    rows, names = [], list(options.peers)
    with Progress(console=console) as progress:
        task = progress.add_task("rows", total=len(cases))
        for case in cases:
            rows.append(
                row(*case, options.mode, names, library, options.seconds, progress.console.print)
            )
            progress.advance(task)
    rows = [r for r in rows if r]

    facts = {
        "date": str(date.today()),
        "processor": processor(),
        "caches": config["cache_sizes"],
        "config": {key: config[key] for key in ("version", "isa", "python", "numpy")},
        "mode": options.mode,
    }
    title = (
        f"{facts['processor']}, {config['isa']}, L2 {config['cache_sizes'][0] >> 10} KiB, "
        f"last level {config['cache_sizes'][1] >> 20} MiB; {options.mode}; {facts['date']}"
    )
    text = f"{title}\n\n{table(rows)}\n"
    console.print(text, markup=False, soft_wrap=True)
    if options.write:
        folder = options.write
        (folder / "benchmarks.json").write_text(
            json.dumps({**facts, "rows": rows}, indent=1) + "\n"
        )
        (folder / "benchmarks.md").write_text(f"{HEADING}\n{text}")
        if library:
            plot(rows, title, folder / "benchmarks.png")


if __name__ == "__main__":
    main()
