"""Times as multiples of the memory floor, next to peers.

    python -m benchmarks                                   resnet set, float32 and bfloat16
    python -m benchmarks --sets mlp odd --dtypes float16 --peers numpy torch
    python -m benchmarks --op training inference           others than the gradient
    python -m benchmarks --report places --threads 1       wherever arrays lie in their pages
    python -m benchmarks --report sizes                    GB/s over size, 1 KB to 1 GB
    python -m benchmarks --report kernels                  GB/s of each kernel at each level
    python -m benchmarks --report situations               other work around a call; growth
    python -m benchmarks --report ladder                   from the plain loop on, step by step
    python -m benchmarks --report accuracy                 errors of peers, into docs/numerics.md
    python -m benchmarks --report exact                    what exact sums cost, into docs/exact.md
    python -m benchmarks --report ranks                    over MPI ranks, into docs/howto
    python -m benchmarks --report readme                   the README's table, from docs/
    python -m benchmarks --write docs                      JSON, tables and pictures there

Arrays lie where NumPy puts large ones, 16 bytes past a page. The floor is a loop that reads and
writes what the operation must, nothing else, on the same arrays with the same threads. All calls
of a row are interleaved, with a pause before each so that another pool's idle threads have gone to
sleep; the minimum counts.
"""

import argparse
import json
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import bn_ext
from bn_ext._bench.problems import DTYPES, LAYOUTS, OPS, SETS
from bn_ext._bench.timing import cases_of, markdown

from . import (
    accuracy,
    bare_loops,
    exact,
    kernels,
    ladder,
    places,
    ranks,
    readme,
    rows,
    situations,
    sizes,
)


def machine():
    """Facts for the JSON, and the same as a line."""
    config = bn_ext.show_config(mode="dicts")
    facts = {
        "date": str(date.today()),
        "processor": config["processor"],
        "caches": config["cache_sizes"],
        "config": {key: config[key] for key in ("version", "isa", "python", "numpy")},
    }
    l2, last_level = facts["caches"]
    title = (
        f"{facts['processor']}, {config['isa']}, L2 {l2 >> 10} KiB, "
        f"last level {last_level >> 20} MiB; {facts['date']}"
    )
    return facts, title


def save(options, name, content):
    if options.write:
        (options.write / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def show(options, console, name, heading, text):
    """A page by itself: on the console, and where to write."""
    console.print(text, markup=False, soft_wrap=True)
    if options.write:
        (options.write / f"{name}.md").write_text(f"# {heading}\n\n{text}")


@contextmanager
def counted(console, what, total):
    """A bar on the console; gives what moves it on by one."""
    with Progress(console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def cases_asked_for(options):
    named = [(name, shape) for name in options.sets for shape in SETS[name]]
    return cases_of(named, options.op, options.threads, options.dtypes, options.layouts)


def earlier_rows(options, facts):
    """Those of NAME.json, which must be of here and today: rows of two machines make no table."""
    path = options.write / f"{options.name}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    found = kept.pop("rows")
    if kept != json.loads(json.dumps(facts)):
        raise SystemExit(f"{path}: of another machine, day or version; measure all of it")
    return found


def report_rows(options, console, library):
    facts, title = machine()
    names, found = list(options.peers), []
    how = names, library, options.seconds, console.print
    cases = cases_asked_for(options)
    if options.again:
        earlier = earlier_rows(options, facts)
        measured, total = rows.measured_again(earlier, cases, *how), len(earlier)
    else:
        measured, total = (rows.measure(case, *how) for case in cases), len(cases)
    with counted(console, "rows", total) as advance:
        for r in measured:
            found.append(r)
            advance()
    text = rows.sections(found)
    console.print(f"{title}\n\n{text}\n", markup=False, soft_wrap=True)
    save(options, options.name, {**facts, "rows": found})
    if options.write:
        picture = f"![{rows.PICTURE}]({options.name}.png)\n\n" if library else ""
        whole = f"{rows.HEADING}{title}\n\n{picture}{text}\n"
        (options.write / f"{options.name}.md").write_text(whole)
        if library:
            most, first = max(r["threads"] for r in found), found[0]
            shown = [r for r in found if r["set"] == first["set"] and r["threads"] == most]
            shown = [r for r in shown if r["op"] == first["op"]]
            rows.plot(shown, title, options.write / f"{options.name}.png")


def report_places(options, console, library):
    _, title = machine()
    cases = cases_asked_for(options)
    found = []
    with counted(console, "rows", len(cases)) as advance:
        for case in cases:
            found.append((case, places.measure(case, library, options.seconds)))
            advance()
    text = (
        f"{title}. Times at each place of src, diff_dst and diff_src, in bytes past a page, as "
        f"multiples of the best one; shortest of each, interleaved, outputs given.\n\n"
        f"{places.table(found)}\n"
    )
    show(options, console, "places", "Wherever arrays lie", text)


def report_sizes(options, console, library):
    facts, title = machine()
    most, threads = 1 << 30, max(options.threads)
    with counted(console, "sizes", sizes.count(most) * len(options.dtypes)) as advance:
        found = {
            dtype: sizes.measure(dtype, threads, most, options.seconds / 4, library, advance)
            for dtype in options.dtypes
        }
    for dtype, points in found.items():
        names = list(points[0]["gb_per_s"])
        lines = [[p["bytes"], *(f"{p['gb_per_s'][n]:.1f}" for n in names)] for p in points]
        console.print(f"{dtype}, {threads} threads, GB/s", markup=False)
        console.print(markdown(["bytes of a tensor", *names], lines) + "\n", markup=False)
    save(options, "sizes", {**facts, "threads": threads, "points": found})
    if options.write:
        title = f"(N, 64), {threads} threads; {title}"
        sizes.plot(found, facts["caches"], title, options.write / "sizes.png")


def report_kernels(options, console, library):
    _, title = machine()
    with counted(console, "kernels", kernels.count(options.dtypes)) as advance:
        found = kernels.measure(options.dtypes, options.seconds / 10, advance)
    text = f"{title}; GB/s, one thread, in the first-level cache\n\n{kernels.table(found)}\n"
    show(options, console, "kernels", "Kernels", text)


def report_situations(options, console, library):
    facts, title = machine()
    threads, found = max(options.threads), {}
    with counted(console, "situations", len(situations.ALL)) as advance:
        for name, run in situations.ALL.items():
            found[name] = run(threads, options.seconds)
            advance()
    lines = [
        [what, situations.shown(*value)]
        for group in found.values()
        for what, value in group.items()
    ]
    text = f"{title}; {threads} threads\n\n{markdown(['', ''], lines)}\n"
    show(options, console, "situations", "Other situations", text)
    save(options, "situations", {**facts, "threads": threads, "found": found})


def report_ladder(options, console, library):
    _, title = machine()
    threads = max(options.threads)
    with counted(console, "problems", len(ladder.SHAPES) * len(LAYOUTS)) as advance:
        found = ladder.measure(library, threads, options.seconds, advance)
    text = f"{title}; milliseconds, float32\n\n{ladder.table(found)}\n"
    show(options, console, "ladder", "Step by step", text)


def report_readme(options, console, library):
    readme.write(console)


def report_accuracy(options, console, library):
    accuracy.write(console, date.today())


def report_exact(options, console, library):
    _, title = machine()
    with counted(console, "rows", len(exact.measured())) as advance:
        found = exact.measure(options.seconds, advance)
    exact.write(console, title, found)


def report_ranks(options, console, library):
    _, title = machine()
    with counted(console, "numbers of ranks", len(ranks.RANKS)) as advance:
        found = ranks.measure(options.seconds, advance)
    ranks.write(console, title, found)


REPORTS = {
    "accuracy": report_accuracy,
    "exact": report_exact,
    "rows": report_rows,
    "readme": report_readme,
    "ladder": report_ladder,
    "places": report_places,
    "ranks": report_ranks,
    "sizes": report_sizes,
    "kernels": report_kernels,
    "situations": report_situations,
}


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    every = bn_ext.show_config(mode="dicts")["default_threads"]
    parser.add_argument("--report", choices=REPORTS, default="rows")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["resnet"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--threads", nargs="+", type=int, default=[every], help="default: all")
    parser.add_argument("--op", nargs="+", choices=OPS, default=["backward"])
    parser.add_argument("--peers", nargs="*", choices=rows.ALL_PEERS, default=list(rows.ALL_PEERS))
    parser.add_argument("--seconds", type=float, default=1.0, help="per row, about")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="JSON, tables and pictures")
    parser.add_argument("--name", default="benchmarks", help="of the files of report rows")
    parser.add_argument(
        "--again", action="store_true",
        help="report rows: those asked for that are in NAME.json and seem disturbed, once more",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.again and not options.write:
        parser.error("--again: needs --write, the folder of NAME.json")

    console = Console()
    library = bare_loops.load()
    if library is None:
        console.print("no C compiler: no floor, seconds alone")
    REPORTS[options.report](options, console, library)


if __name__ == "__main__":
    main()
