"""The README's table and first picture, from docs/benchmarks.json."""

import json
import statistics

from bn_ext._bench.timing import markdown

from . import pages, rows
from .pictures import picture

DTYPES = ("float32", "bfloat16")


def cell(r):
    """Times the floor, outputs fresh and given; how many times faster than the best peer."""
    floors = [r["seconds"][name] / rows.floor(r) for name in (rows.FRESH, "bn_ext")]
    ratio, name = rows.over_best_peer(r)
    return "{:.2f}, {:.2f}".format(*floors), f"{ratio:.1f} ({name})"


def compared(found):
    """Of the gradient: the first set, all threads, two dtypes."""
    most = max(r["threads"] for r in found)
    mine = [r for r in found if r["set"] == "resnet" and r["threads"] == most]
    return [r for r in mine if r["op"] == "backward" and r["dtype"] in DTYPES]


def table(found):
    """Markdown: a line for each shape."""
    mine = compared(found)
    kinds = [(layout, dtype) for dtype in DTYPES for layout in ("NXC", "NCX")]
    by = {(tuple(r["shape"]), r["layout"], r["dtype"]): r for r in mine}
    heading = ["shape (N, C, H, W)"]
    for layout, dtype in kinds:
        heading += [f"{layout} {dtype}", "faster than the best peer"]
    lines = []
    for shape in dict.fromkeys(tuple(r["shape"]) for r in mine):
        line = [" x ".join(map(str, shape))]
        for layout, dtype in kinds:
            line += cell(by[shape, layout, dtype])
        lines.append(line)
    return markdown(heading, lines)


def draw(found, path):
    """Each peer's time next to ours: the median over all rows that it has."""
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


def report(options, console):
    """Put the table between its marks in README.md, and draw the picture beside it."""
    facts = json.loads((pages.ROOT / "docs" / "benchmarks.json").read_text())
    isa = facts["config"]["isa"]
    text = f"{facts['processor']}, {isa}, {facts['date']}, two threads:\n\n{table(facts['rows'])}\n"
    pages.put("benchmarks", "README.md", text, console)
    draw(facts["rows"], pages.ROOT / "docs" / "headline.png")
