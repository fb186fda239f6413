"""Rows as text: one table, or in a narrow terminal several, which say the same."""

import statistics
import sys
from collections.abc import Collection

from bn_ext._bench.timing import Row

__all__ = ["cells", "table"]

#: What was timed. If the terminal is too narrow, these leave the table, in this order.
FACTS = ("threads", "dtype", "layout", "op")


def cells(r: Row, peers: Collection[str]) -> dict[str, str]:
    """A line of the table: {column: text}."""
    ours = r["seconds"]["bn_ext"]
    asked, used = r["threads"], r["threads_used"]
    return {
        "N, C, ...": "x".join(map(str, r["shape"])),
        "dtype": r["dtype"],
        "layout": r["layout"],
        "op": r["op"],
        "threads": f"{used}" if used == asked else f"{used} of {asked}",
        "ms": f"{1e3 * ours:.4f}",
        "median": f"{1e3 * r['medians']['bn_ext']:.4f}",
        "GB/s": f"{1e-9 * r['bytes_moved'] / ours:.1f}",
        **{n: f"{r['seconds'][n] / ours:.1f}x" if n in r["seconds"] else "" for n in peers},
    }


def means(rows: list[Row], peers: Collection[str]) -> dict[str, str]:
    """The last line of the table: each peer's geometric mean."""
    found = {}
    for name in peers:
        ratios = [r["seconds"][name] / r["seconds"]["bn_ext"] for r in rows if name in r["seconds"]]
        found[name] = f"{statistics.geometric_mean(ratios):.1f}x" if ratios else ""
    return found


def text_of(lines: list[dict[str, str]], last: dict[str, str]) -> list[str]:
    """Columns below their names, text to the left and numbers to the right; nothing is cut."""
    widths = {
        name: max(len(name), len(last.get(name, "")), *(len(line[name]) for line in lines))
        for name in lines[0]
    }

    def joined(line: dict[str, str]) -> str:
        words = [
            line[name].ljust(width) if name in FACTS or name == "N, C, ..." else
            line[name].rjust(width)
            for name, width in widths.items()
        ]  # fmt: skip
        return "  ".join(words).rstrip()

    text = [
        joined({name: name for name in widths}),
        joined({n: "-" * w for n, w in widths.items()}),
    ]
    text += map(joined, lines)
    if any(last.values()):
        end = joined({name: last.get(name, "") for name in widths})
        label = "geometric mean"
        text += [text[1], label + end[len(label) :]]
    return text


def table(rows: list[Row], peers: Collection[str], width: int = sys.maxsize) -> list[str]:
    """Lines of text; in a narrow terminal several tables, with facts in headings instead."""
    lines = [cells(r, peers) for r in rows]
    # What all rows have in common goes first: it needs no further table.
    leaving = sorted(FACTS, key=lambda name: len({line[name] for line in lines}) > 1)
    above: list[str] = []
    while len(text_of(lines, means(rows, peers))[1]) > width and leaving:
        above.append(leaving.pop(0))
        lines = [{k: v for k, v in line.items() if k != above[-1]} for line in lines]
    kinds: dict[tuple[str, ...], list[int]] = {}
    for i, r in enumerate(rows):
        facts = cells(r, ())
        kinds.setdefault(tuple(facts[name] for name in above), []).append(i)
    text: list[str] = []
    for kind, places in kinds.items():
        if above:
            named = zip(above, kind, strict=True)
            text += [""] * bool(text) + [", ".join(f"{name}: {value}" for name, value in named)]
        text += text_of([lines[i] for i in places], means([rows[i] for i in places], peers))
    return text
