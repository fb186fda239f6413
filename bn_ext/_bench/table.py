"""Rows as text: a table for each kind of call, below a line that says what its rows share."""

import statistics
from collections.abc import Collection, Iterable, Iterator

from bn_ext._bench.problems import shape_text
from bn_ext._bench.timing import Row

__all__ = ["by_kind", "cells", "noise", "table"]

#: What the rows of one table have in common.
FACTS = ("op", "dtype", "layout", "threads", "behind")
#: A median of more than this many times the shortest time: other programs are running.
BUSY = 2


def by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """{what these rows have in common: rows}"""
    kinds: dict[str, list[Row]] = {}
    for r in rows:
        facts = ", ".join(f"{name}: {r[name]}" for name in FACTS)
        kinds.setdefault(facts.removeprefix("op: "), []).append(r)
    return kinds


def cells(r: Row, peers: Collection[str]) -> dict[str, str]:
    """The cells of a row: {name: text}."""
    times, pairs, alone = r["medians"], r["pairs"], r["behind"] == "nothing"
    columns = {
        "N, C, ...": shape_text(r["shape"], r["view"]),
        "used": str(r["threads_used"]),
        "ms": f"{1e3 * times['bn_ext']:.4f}",
        "shortest": f"{1e3 * r['shortest']['bn_ext']:.4f}",
        "GB/s": f"{1e-9 * r['bytes_moved'] / times['bn_ext']:.1f}",
        "pair": f"{1e3 * pairs['bn_ext']:.4f}",
        **{n: multiples([r], n, alone) for n in peers},
    }
    if alone:
        del columns["pair"]
    return columns


def multiples(rows: list[Row], name: str, alone: bool) -> str:
    """A peer's time as a multiple of ours, of a call and, unless it stands alone, of a pair: the
    geometric mean of the rows that it has.
    """
    found = []
    for times in ["medians"] if alone else ["medians", "pairs"]:
        ratios = [r[times][name] / r[times]["bn_ext"] for r in rows if name in r[times]]
        if not ratios:
            return ""
        mean = statistics.geometric_mean(ratios)
        found.append(f"{mean:.1f}" if mean >= 1 else f"{mean:.2f}")
    return "/".join(found) + "x"


def table(rows: list[Row], peers: Collection[str]) -> Iterator[str]:
    """Lines of text, which fit a terminal of 80 columns with NumPy and torch."""
    for number, (facts, mine) in enumerate(by_kind(rows).items()):
        yield from [""] * (number > 0)
        yield facts
        found = [cells(r, peers) for r in mine]
        lines = [list(found[0]), *(list(line.values()) for line in found)]
        if peers:
            alone = mine[0]["behind"] == "nothing"
            names = lines[0][1:]
            means = [multiples(mine, name, alone) if name in peers else "" for name in names]
            lines.append(["geometric mean", *means])
        first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
        for shape, *numbers in lines:
            cut = (f"{text:>{width}}" for text, width in zip(numbers, widths, strict=True))
            yield f"{shape:<{first}}  {'  '.join(cut)}".rstrip()


def noise(rows: Collection[Row]) -> str:
    """What to say of rows whose medians tell of other programs; "" if there are none.

    Behind a product, BLAS's idle threads do the same.
    """
    worst = [
        max(r["medians"][name] / r["shortest"][name] for name in r["medians"])
        for r in rows
        if r["behind"] != "product"
    ]
    busy = [ratio for ratio in worst if ratio > BUSY]
    if not busy:
        return ""
    return (
        f"BUSY: in {len(busy)} of {len(rows)} rows a median is over {BUSY} times the shortest "
        f"time, {max(busy):.1f} times at most. Other programs are running: measure again without "
        "them."
    )
