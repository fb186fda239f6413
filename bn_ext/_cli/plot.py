"""Rows as a picture: bars of each peer's time."""

import math
from pathlib import Path

from bn_ext._bench.pictures import picture
from bn_ext._bench.timing import Row
from bn_ext._cli.table import cells

__all__ = ["plot"]


def label(r: Row) -> str:
    """What was timed, and how long it took."""
    c = cells(r, ())
    return (
        f"{c['N, C, ...']} {c['dtype']} {c['layout']}, {c['op']}\n"
        f"threads: {c['used']} of {c['threads']}; {c['ms']} ms, {c['GB/s']} GB/s"
    )


def plot(rows: list[Row], peers: list[str], title: str, path: Path) -> None:
    """Bars: each peer's time as a multiple of bn_ext's."""
    height = 1.2 + len(rows) * (0.2 + 0.2 * max(1, len(peers)))
    thick = 0.8 / max(1, len(peers))
    with picture(path, size=(9, height), dpi=120) as (figure, panels):
        panel = panels[0, 0]
        for k, name in enumerate(peers):
            times = [r["seconds"].get(name, math.nan) / r["seconds"]["bn_ext"] for r in rows]
            places = [i + (k - (len(peers) - 1) / 2) * thick for i in range(len(rows))]
            bars = panel.barh(places, times, thick, label=name)
            labels = [f"{t:.1f}" if t == t else "" for t in times]
            panel.bar_label(bars, labels, padding=2, fontsize=7)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_yticks(range(len(rows)), [label(r) for r in rows], fontsize=7)
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.margins(x=0.1, y=0.01)
        panel.set_xlabel("time as a multiple of bn_ext's")
        panel.set_title(title, fontsize=9)
        if peers:
            # Below, where no bar is.
            figure.legend(loc="outside lower center", ncols=len(peers), fontsize=8)
