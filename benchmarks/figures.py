"""docs/figures.csv, which has all measured rows, and what is made of it for docs and the README.

The file begins with a line for each run, which tells the machine and the versions. Times are in
microseconds. A row that is measured again replaces the old one, so a run can be split into parts.
"""

import csv
import statistics

from bn_ext._bench.problems import SETS

from . import pages, rows
from .pictures import GREY, picture

CSV = pages.ROOT / "docs" / "figures.csv"
KEY = ["level", "malloc", "op", "set", "shape", "layout", "dtype", "threads"]
MEDIAN, OVER_PLACES = "median", "over places"
TIMES = [*rows.LOOPS, "bn_ext", MEDIAN, rows.FRESH, *rows.ALL_PEERS]
COLUMNS = [*KEY, "run", OVER_PLACES, *TIMES]
#: The shapes that the page and the README compare.
SHAPES = ["x".join(map(str, shape)) for shape in SETS["resnet"]]


def load():
    """([description of each run], [row])"""
    if not CSV.exists():
        return [], []
    with CSV.open(newline="") as file:
        lines = file.readlines()
    runs = [line.split(": ", 1)[1].strip() for line in lines if line.startswith("# ")]
    found = []
    for line in csv.DictReader(line for line in lines if not line.startswith("# ")):
        seconds = {name: 1e-6 * float(line[name]) for name in TIMES if line[name]}
        medians = {"bn_ext": seconds.pop(MEDIAN)}
        facts = {name: line[name] for name in KEY}
        facts |= {"threads": int(line["threads"]), "run": int(line["run"])}
        found.append(
            {**facts, OVER_PLACES: float(line[OVER_PLACES]), "seconds": seconds, "medians": medians}
        )
    return runs, found


def save(runs, found):
    """Write all rows. Runs without a row are dropped."""
    kept = sorted({r["run"] for r in found})
    with CSV.open("w", newline="") as file:
        for number, run in enumerate(kept):
            file.write(f"# run {number}: {runs[run]}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for r in found:
            times = {**r["seconds"], MEDIAN: r["medians"]["bn_ext"]}
            cells = [f"{1e6 * times[name]:.4g}" if name in times else "" for name in TIMES]
            facts = [r[name] for name in KEY]
            writer.writerow([*facts, kept.index(r["run"]), f"{r[OVER_PLACES]:.2f}", *cells])


def add(run, new):
    """Add the rows of a run; they replace the same rows of earlier runs."""
    runs, found = load()
    by_key = {tuple(r[name] for name in KEY): r for r in found}
    runs = runs if run in runs else [*runs, run]
    for r in new:
        by_key[tuple(r[name] for name in KEY)] = {**r, "run": runs.index(run)}
    save(runs, list(by_key.values()))


# ---- what is made of it ---------------------------------------------------------------


def compared(
    found, level="v4", ops=("backward",), dtypes=("float32", "bfloat16"), malloc="default"
):
    """The rows of the shapes of ResNet-50 with the most threads."""
    wanted = {"level": level, "malloc": malloc, "set": "resnet"}
    mine = [r for r in found if wanted.items() <= r.items() and r["op"] in ops]
    most = max((r["threads"] for r in mine), default=0)
    return [r for r in mine if r["dtype"] in dtypes and r["threads"] == most]


def page(runs, found):
    """Markdown: what ran on which machine, and one table."""
    machines, shown = [], []
    for level in dict.fromkeys(r["level"] for r in found):
        ops = dict.fromkeys(r["op"] for r in found)
        mine = compared(found, level)
        mine += [r for r in compared(found, level, ops, ["float32"]) if r["op"] != "backward"]
        kept = compared(found, level, malloc="keeps")
        (threads,) = {r["threads"] for r in mine + kept}
        said = "; ".join(runs[number] for number in sorted({r["run"] for r in mine}))
        machines.append(f"- {level}: {threads} threads; {said}")
        shown += mine + [{**r, "level": f"{level}, kept"} for r in kept]
    parts = "ResNet-50's shapes, measured on:", "\n".join(machines), rows.summary(shown)
    return "\n\n".join(parts) + "\n"


def speed(runs, mine):
    """The CPU; the rows' median and range of how many times faster bn_ext is than the best peer."""
    (cpu,) = {runs[r["run"]].partition(",")[0] for r in mine}
    ratios = [rows.over_best_peer(r)[0] for r in mine]
    return cpu, f"{statistics.median(ratios):.1f}", f"{min(ratios):.2g} to {max(ratios):.2g}"


def headline(runs, found):
    """The README's sentences."""
    shown = compared(found)
    cpu, median, spread = speed(runs, shown)
    other, other_median, other_spread = speed(runs, compared(found, "v3"))
    return (
        f"bn_ext's gradient is **{median} times as fast** as that of the "
        "fastest of NumPy, torch, JAX, TensorFlow and oneDNN on the\n"
        f"same arrays (median of {len(shown)} comparisons; range {spread}), on two "
        f"threads ({cpu}, AVX-512).\n"
        f"On an {other} with AVX2, it is {other_median} times as fast ({other_spread}).\n"
    )


def draw(found, path):
    """Draw each peer's time as a multiple of ours: the median of its rows."""
    mine = compared(found)
    by_peer = {}
    for r in mine:
        for name, ratio in rows.over_peers(r).items():
            by_peer.setdefault(name, []).append(ratio)
    times = {"bn_ext": 1, **{name: statistics.median(all) for name, all in by_peer.items()}}
    names = sorted(times, key=times.get)
    with picture(path, size=(5.2, 1.9), dpi=120) as (_, panels):
        (panel,) = panels.flat
        bars = panel.barh(names, [times[n] for n in names], color="#8a9bab")
        bars[names.index("bn_ext")].set_color("#1f6fb2")
        panel.bar_label(bars, [f"{times[n]:.1f}" for n in names], padding=3, fontsize=8)
        panel.invert_yaxis()
        panel.set_xticks([])
        panel.margins(x=0.1)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.tick_params(labelsize=8, length=0)
        panel.set_title(f"time of the gradient, bn_ext = 1: median of {len(mine)} rows", fontsize=9)


def draw_rows(found, path):
    """Draw the multiples of the floor: a panel per layout and dtype, a group of bars per shape."""
    kinds = {}
    for r in compared(found):
        kinds.setdefault((r["layout"], r["dtype"]), []).append(r)
    seen = {name for r in compared(found) for name in r["seconds"]}
    names = [n for n in TIMES if n in seen and n != rows.FLOOR]
    size = 11, 2.6 * len(kinds) + 0.6
    with picture(path, rows=len(kinds), size=size, dpi=90) as (figure, axes):
        for panel, (kind, mine) in zip(axes[:, 0], kinds.items(), strict=True):
            for k, name in enumerate(names):
                heights = [r["seconds"].get(name, float("nan")) / rows.floor(r) for r in mine]
                places = [i + (k - len(names) / 2) * 0.8 / len(names) for i in range(len(mine))]
                panel.bar(places, heights, 0.8 / len(names), label=name, align="edge")
            panel.axhline(1, color=GREY, linewidth=0.8)
            panel.set_yscale("log")
            panel.set_xticks(range(len(mine)), [r["shape"] for r in mine], fontsize=8)
            panel.set_ylabel("times the floor")
            panel.set_title("gradient, {}, {}".format(*kind), fontsize=10)
        bars = axes[0, 0].get_legend_handles_labels()
        figure.legend(*bars, loc="outside lower center", ncols=len(names), fontsize=8)


def report(options, console):
    """Update the page and the README from the file, with their pictures."""
    runs, found = load()
    pages.put("figures", "docs/figures.md", page(runs, found), console)
    pages.put("benchmarks", "README.md", headline(runs, found), console)
    draw(found, pages.ROOT / "docs" / "headline.png")
    draw_rows(found, pages.ROOT / "docs" / "figures.png")
