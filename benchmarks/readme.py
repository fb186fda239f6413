"""The README's table, from docs/benchmarks.json."""

import json

from bn_ext._bench.timing import markdown

from . import pages, rows


def cell(r):
    """Times the floor, outputs fresh and given; how many times faster than the best peer."""
    floors = [r["seconds"][name] / rows.floor(r) for name in (rows.FRESH, "bn_ext")]
    ratio, name = rows.over_best_peer(r)
    return "{:.2f}, {:.2f}".format(*floors), f"{ratio:.1f} ({name})"


def table(found):
    """Markdown: the first set, all threads; a line for each shape."""
    most = max(r["threads"] for r in found)
    mine = [r for r in found if r["set"] == "resnet" and r["threads"] == most]
    mine = [r for r in mine if r["op"] == "backward"]
    kinds = [(layout, dtype) for dtype in ("float32", "bfloat16") for layout in ("NXC", "NCX")]
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


def write(console):
    """Put the table between its marks in README.md."""
    facts = json.loads((pages.ROOT / "docs" / "benchmarks.json").read_text())
    isa = facts["config"]["isa"]
    text = f"{facts['processor']}, {isa}, {facts['date']}, two threads:\n\n{table(facts['rows'])}\n"
    pages.put("benchmarks", "README.md", text, console)
