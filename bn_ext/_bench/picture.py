"""Rows as a picture: a panel for each table, a column of points for each row."""

import math
from collections.abc import Sequence

from bn_ext._bench.problems import shape_text
from bn_ext._bench.table import by_kind
from bn_ext._bench.timing import Row

__all__ = ["draw"]


def draw(rows: Sequence[Row], title: str, path: str) -> None:
    """The medians, in ms; matplotlib chooses the format by the path's ending."""
    from matplotlib.figure import Figure

    kinds = by_kind(rows)
    names = dict.fromkeys(name for r in rows for name in r["medians"])
    size = max(6, 1 + 1.2 * max(map(len, kinds.values()))), 1 + 2.4 * len(kinds)
    figure = Figure(size, layout="constrained")
    figure.suptitle(title, fontsize=9)
    panels = figure.subplots(len(kinds), squeeze=False)[:, 0]
    for panel, (facts, mine) in zip(panels, kinds.items(), strict=True):
        for name in names:
            times = [1e3 * r["medians"].get(name, math.nan) for r in mine]
            panel.plot(range(len(mine)), times, "o", label=name)
        panel.set_yscale("log")
        lowest, highest = (math.log10(at) for at in panel.dataLim.intervaly)
        panel.set_ylim(10 ** math.floor(lowest), 10 ** math.ceil(highest))  # whole decades
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.set_xticks(
            range(len(mine)), [shape_text(r["shape"], r["view"]) for r in mine], fontsize=8
        )
        panel.margins(x=0.1)
        panel.grid(axis="y", alpha=0.4)
        panel.set_ylabel("ms")
        panel.set_title(facts, fontsize=9)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    figure.savefig(path, dpi=120)
