"""Rows as text: a table for each kind of call, below a line that says what its rows share."""

import statistics
from collections.abc import Collection, Iterator
from typing import Any

from bn_ext._bench.timing import Row

__all__ = ["cells", "table"]

#: What the rows of one table have in common.
FACTS = ("op", "dtype", "layout", "threads")


def cells(r: Row, peers: Collection[str]) -> dict[str, str]:
    """The cells of a row: {name: text}."""
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


def table(rows: list[Row], peers: Collection[str]) -> Iterator[str]:
    """Lines of text, which fit a terminal of 80 columns with every peer."""
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        kinds.setdefault(tuple(r[name] for name in FACTS), []).append(r)
    for kind, mine in kinds.items():
        if kind is not next(iter(kinds)):
            yield ""
        yield ", ".join(f"{name}: {value}" for name, value in zip(FACTS, kind, strict=True))
        found = [{k: v for k, v in cells(r, peers).items() if k not in FACTS} for r in mine]
        lines = [list(found[0]), *(list(line.values()) for line in found)]
        if peers:
            means = [mean(mine, name) if name in peers else "" for name in lines[0][1:]]
            lines.append(["geometric mean", *means])
        first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
        for shape, *numbers in lines:
            cut = (f"{text:>{width}}" for text, width in zip(numbers, widths, strict=True))
            yield f"{shape:<{first}}  {'  '.join(cut)}".rstrip()
