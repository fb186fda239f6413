"""Rows as a picture: bars of each peer's time."""

import math
from pathlib import Path

from bn_ext._bench.timing import Row
from bn_ext._cli.table import cells

__all__ = ["plot"]


def plot(rows: list[Row], peers: list[str], title: str, path: Path) -> None:
    """Bars: each peer's time as a multiple of bn_ext's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    height = 1.2 + len(rows) * (0.2 + 0.2 * max(1, len(peers)))
    figure, panel = plt.subplots(figsize=(9, height), layout="constrained")
    thick = 0.8 / max(1, len(peers))
    for k, name in enumerate(peers):
        times = [r["seconds"].get(name, math.nan) / r["seconds"]["bn_ext"] for r in rows]
        places = [i + (k - (len(peers) - 1) / 2) * thick for i in range(len(rows))]
        bars = panel.barh(places, times, thick, label=name)
        panel.bar_label(bars, [f"{t:.1f}" if t == t else "" for t in times], padding=2, fontsize=7)
    panel.axvline(1, color="black", linewidth=0.8)
    labels = []
    for r in rows:
        shape, dtype, layout, mode, threads, ms, _, speed = cells(r, ()).values()
        labels.append(
            f"{shape} {dtype} {layout}, {mode}\nthreads: {threads}; {ms} ms, {speed} GB/s"
        )
    panel.set_yticks(range(len(rows)), labels, fontsize=7)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.margins(x=0.1, y=0.01)
    panel.set_xlabel("time as a multiple of bn_ext's")
    panel.set_title(title, fontsize=9)
    if peers:
        # Below, where no bar is.
        figure.legend(loc="outside lower center", ncols=len(peers), fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
