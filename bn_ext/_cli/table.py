"""Rows as text: a table for each kind of call, below a line that says what its rows share."""

import io
import statistics
from collections.abc import Collection
from typing import Any

from bn_ext._bench.timing import Row

__all__ = ["cells", "table"]

#: What makes a kind.
FACTS = ("op", "dtype", "layout", "threads")


def cells(r: Row, peers: Collection[str]) -> dict[str, str]:
    """What is shown of a row: {name: text}."""
    ours = r["seconds"]["bn_ext"]
    return {
        **{name: str(r[name]) for name in FACTS},
        "N, C, ...": "x".join(map(str, r["shape"])),
        "used": str(r["threads_used"]),
        "ms": f"{1e3 * ours:.4f}",
        "median": f"{1e3 * r['medians']['bn_ext']:.4f}",
        "GB/s": f"{1e-9 * r['bytes_moved'] / ours:.1f}",
        **{n: f"{r['seconds'][n] / ours:.1f}x" if n in r["seconds"] else "" for n in peers},
    }


def mean(rows: list[Row], name: str) -> str:
    """The geometric mean of a peer's column."""
    ratios = [r["seconds"][name] / r["seconds"]["bn_ext"] for r in rows if name in r["seconds"]]
    return f"{statistics.geometric_mean(ratios):.1f}x" if ratios else ""


def table(rows: list[Row], peers: Collection[str]) -> list[str]:
    """Lines of text, which fit a terminal of 80 columns with every peer."""
    from rich.console import Console
    from rich.table import Table

    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        kinds.setdefault(tuple(r[name] for name in FACTS), []).append(r)
    text = io.StringIO()
    console = Console(file=text, width=1000, highlight=False)
    for kind, mine in kinds.items():
        facts = ", ".join(f"{name}: {value}" for name, value in zip(FACTS, kind, strict=True))
        lines = [{k: v for k, v in cells(r, peers).items() if k not in FACTS} for r in mine]
        shape, *numbers = lines[0]
        found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_footer=bool(peers))
        found.add_column(shape, "geometric mean")
        for name in numbers:
            found.add_column(name, mean(mine, name) if name in peers else "", justify="right")
        for line in lines:
            found.add_row(*line.values())
        console.print(*[""] * (kind is not next(iter(kinds))), facts, found, sep="\n")
    return [line.rstrip() for line in text.getvalue().splitlines()]
