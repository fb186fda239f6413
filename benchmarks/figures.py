"""docs/figures.csv, which has all measured rows, and what is made of it for docs and the README.

The file begins with a line for each run, which tells the machine and the versions. Times are
medians in microseconds, if the run does not say otherwise: of a call, and "in a pair" of a call and
what stands before it. A row that is measured again replaces
the old one, so a run can be split into parts.
"""

import csv
import math
import statistics
import textwrap

import bn_ext

from . import pages
from .peers import FLOOR, OTHER_LAYOUT, PEERS, TWO_PASSES, WITH_OUT, WRITE_TO_OUT

CSV = pages.ROOT / "docs" / "figures.csv"
KEY = ["level", "op", "set", "shape", "layout", "dtype", "threads", "behind"]
TIMES = ["bn_ext", *PEERS]
IN_PAIRS = [f"{name} in a pair" for name in TIMES]
COLUMNS = [*KEY, "run", *TIMES, *IN_PAIRS]


def load():
    """([description of each run], [row])"""
    with CSV.open(newline="") as file:
        lines = file.readlines()
    runs = [line.split(": ", 1)[1].strip() for line in lines if line.startswith("# ")]
    rows = []
    for line in csv.DictReader(line for line in lines if not line.startswith("# ")):
        facts = {name: line[name] for name in KEY}
        facts |= {"threads": int(line["threads"]), "run": int(line["run"])}
        times, pairs = (
            {
                name: 1e-6 * float(line[at])
                for name, at in zip(TIMES, columns, strict=True)
                if line.get(at)
            }
            for columns in (TIMES, IN_PAIRS)
        )
        rows.append({**facts, "medians": times, "pairs": pairs})
    return runs, rows


def save(runs, rows):
    """Write all rows. Runs without a row are dropped."""
    kept = sorted({r["run"] for r in rows})
    with CSV.open("w", newline="") as file:
        for number, run in enumerate(kept):
            file.write(f"# run {number}: {runs[run]}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for r in rows:
            cells = [
                f"{1e6 * r[times][name]:.4g}" if name in r[times] else ""
                for times in ("medians", "pairs")
                for name in TIMES
            ]
            writer.writerow([*(r[name] for name in KEY), kept.index(r["run"]), *cells])


def add(measured):
    """Add the rows of a run; they replace the same rows of earlier runs."""
    runs, rows = load()
    by_key = {tuple(r[name] for name in KEY): r for r in rows}
    run = pages.run([name for name in PEERS if any(name in r["medians"] for r in measured)])
    runs = runs if run in runs else [*runs, run]
    for r in measured:
        r = {
            **r,
            "run": runs.index(run),
            "level": bn_ext.get_isa(),
            "shape": "x".join(map(str, r["shape"])),
        }
        by_key[tuple(r[name] for name in KEY)] = r
    save(runs, list(by_key.values()))


# ---- what is made of it ---------------------------------------------------------------


def floor(r):
    return r["medians"].get(FLOOR, math.nan)


def over_peers(r, times="medians"):
    """{peer on the same data: how many times faster bn_ext is, with outputs of the same kind}."""
    times = r[times]
    others = times.keys() & PEERS.keys() - {FLOOR, TWO_PASSES, WITH_OUT, OTHER_LAYOUT}
    alike = {n: WITH_OUT if n in WRITE_TO_OUT and WITH_OUT in times else "bn_ext" for n in others}
    return {n: times[n] / times[alike[n]] for n in others}


def over_best_peer(r, times="medians"):
    """How many times faster bn_ext is than the fastest peer."""
    return min(over_peers(r, times).values(), default=math.nan)


def compared(rows, level="v4", ops=("backward",), dtypes=("float32", "bfloat16"), **also):
    """The rows of the shapes of ResNet-50 with the most threads."""
    wanted = {"level": level, "set": "resnet", **also}
    mine = [r for r in rows if wanted.items() <= r.items() and r["op"] in ops]
    most = max((r["threads"] for r in mine), default=0)
    return [r for r in mine if r["dtype"] in dtypes and r["threads"] == most]


def summary(rows):
    """Markdown: a line for each level, operation, layout, dtype and work; geometric means."""
    groups = {}
    for r in rows:
        key = tuple(r[name] for name in ("level", "op", "layout", "dtype", "behind"))
        groups.setdefault(key, []).append(r)
    ratios = [f"{package} / bn_ext" for package in ("NumPy", "best peer", "torch")]
    heading = ["level", "op, layout, dtype, behind", *ratios[:2], "worst row", ratios[2]]
    heading += ["x floor", "in pairs", "worst pair"]
    lines = []
    for (level, *words), mine in groups.items():
        best = [over_best_peer(r) for r in mine if over_peers(r)]
        pairs = [over_best_peer(r, "pairs") for r in mine if over_peers(r, "pairs")]
        numpy, torch = (
            [over_peers(r)[name] for r in mine if name in over_peers(r)]
            for name in ("numpy", "torch")
        )
        columns = [
            numpy,
            best,
            [min(best)] if best else [],
            torch,
            [r["medians"]["bn_ext"] / floor(r) for r in mine],
            pairs,
            [min(pairs)] if pairs else [],
        ]
        means = (f"{statistics.geometric_mean(c):.2f}" if c else "" for c in columns)
        lines.append([level, " ".join(words), *means])
    shown = [k for k in range(len(heading)) if any(line[k] for line in lines)]
    first, *rest = ([line[k] for k in shown] for line in [heading, *lines])
    return pages.markdown(first, rest)


#: The work that the README leads with; the page has one more at v4.
LEADING = "pass"


def page(runs, rows):
    """Markdown: what ran on which machine, and one table."""
    machines, shown = [], []
    for level in dict.fromkeys(r["level"] for r in rows):
        ops = dict.fromkeys(r["op"] for r in rows)
        works = [LEADING, "product"] if level == "v4" else [LEADING]
        mine = [r for work in works for r in compared(rows, level, behind=work)]
        mine += [r for r in compared(rows, level, ops, ["float32"]) if r["op"] != "backward"]
        shown += mine
        machines += [f"{r['threads']} threads; {pages.short(runs[r['run']])}" for r in mine]
    where = "\n".join(dict.fromkeys(machines))
    first = textwrap.fill(
        f"NumPy's formula takes {of_numpy(rows):.0f} times as long as bn_ext: the median of the "
        "float32 gradient in these shapes, in both layouts, behind a pass.",
        width=120,
    )
    return f"ResNet-50's shapes, {where}:\n\n{summary(shown)}\n\n{first}\n"


def of_numpy(rows):
    """How many times as long NumPy's formula takes: the one figure of speed in the README."""
    shown = compared(rows, behind=LEADING, dtypes=("float32",))
    return statistics.median(over_peers(r)["numpy"] for r in shown)


def headline(runs, rows):
    """The README's paragraph: medians and ranges over the rows. A test compares them."""
    shown = compared(rows, behind=LEADING, dtypes=("float32",))
    (cpu,) = {runs[r["run"]].partition(",")[0] for r in shown}

    def spread(name):
        times = [over_peers(r)[name] for r in shown]
        return f"{min(times):.2g} to {max(times):.2g}"

    last, first = (
        statistics.median(over_best_peer(r) for r in shown if r["layout"] == layout)
        for layout in ("NXC", "NCX")
    )
    text = (
        "Medians of the float32 gradient in ResNet-50's shapes, behind a pass of NumPy, on two "
        f"threads of an {cpu} with AVX-512. NumPy's formula takes {spread('numpy')} times as long, "
        f"torch {spread('torch')}; the fastest peer of each shape {last:.1f} with channels last, "
        f"{first:.1f} with channels first. [All figures](docs/figures.md); `bn-ext bench` measures "
        "yours."
    )
    return textwrap.fill(text, width=120, break_on_hyphens=False) + "\n"


def draw(rows, path):
    """Draw each peer's time as a multiple of ours: the median of its rows."""
    by_peer = {"bn_ext": [1]}
    for r in rows:
        for name, ratio in over_peers(r).items():
            by_peer.setdefault(name, []).append(ratio)
    times = {name: statistics.median(all) for name, all in by_peer.items()}
    names = sorted(times, key=times.get)
    with pages.picture(path, size=(4, 2), dpi=150) as (_, panels):  # on a phone, half as wide
        (panel,) = panels.flat
        bars = panel.barh(names, [times[n] for n in names], color="#8a9bab")
        bars[names.index("bn_ext")].set_color("#1f6fb2")
        panel.bar_label(bars, [f"{times[n]:.1f}" for n in names], padding=3, fontsize=10)
        panel.invert_yaxis()
        panel.set_xticks([])
        panel.margins(x=0.14)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.tick_params(labelsize=10, length=0)
        panel.set_title("time of the float32 gradient (bn_ext = 1)", fontsize=10)


def draw_rows(rows, path):
    """Draw the multiples of the floor: a panel per layout, a row per package, a dot per shape."""
    layouts, dtypes = (dict.fromkeys(r[name] for r in rows) for name in ("layout", "dtype"))
    measured = {name for r in rows for name in r["medians"]}
    names = [n for n in TIMES if n in measured - {FLOOR, TWO_PASSES, OTHER_LAYOUT}]
    size = 4.3, 2.7 * len(layouts)
    with pages.picture(path, rows=len(layouts), size=size, dpi=150) as (figure, axes):
        for panel, layout in zip(axes[:, 0], layouts, strict=True):
            for shift, dtype in zip((-0.18, 0.18), dtypes, strict=True):
                dots = [
                    (r["medians"][name] / floor(r), at + shift)
                    for r in rows
                    for at, name in enumerate(names)
                    if (r["layout"], r["dtype"]) == (layout, dtype) and name in r["medians"]
                ]
                panel.plot(*zip(*dots, strict=True), "o", markersize=4, alpha=0.6, label=dtype)
            panel.axvline(1, color=pages.GREY, linewidth=0.8)
            panel.set(xscale="log", xlim=(0.25, 500))
            panel.xaxis.set_major_formatter("{x:g}")
            panel.set_yticks(range(len(names)), names)
            panel.invert_yaxis()
            panel.set_title(f"gradient, {layout}: times the floor", fontsize=11)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def report(options):
    """Update the page and the pictures from the file; print the README's paragraph."""
    runs, rows = load()
    pages.put("figures", "docs/figures.md", page(runs, rows))
    print(headline(runs, rows))
    shown = compared(rows, behind=LEADING)
    draw([r for r in shown if r["dtype"] == "float32"], pages.ROOT / "docs" / "headline.png")
    draw_rows(shown, pages.ROOT / "docs" / "figures.png")
