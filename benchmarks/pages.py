"""What reports share, also those of survey/: the machine in words, tables, pictures in pages."""

import csv
import platform
import subprocess
from contextlib import contextmanager
from datetime import date
from importlib.metadata import packages_distributions, version
from pathlib import Path

import bn_ext

from .compiled import onednn_version

ROOT = Path(__file__).resolve().parent.parent
#: Can be read on white and on black.
GREY = "#7a7a7a"
INK = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"


def versions(names):
    """The versions of bn_ext, of NumPy and of these peers, in words."""
    installed = packages_distributions()
    others = [name for name in dict.fromkeys(["numpy", *names]) if name in installed]
    packages = [f"{name} {version(installed[name][0])}" for name in others if name != "bn_ext"]
    if "oneDNN" in names:
        packages.append(f"oneDNN {onednn_version()}")
    return ", ".join([f"bn_ext {bn_ext.__version__}", *packages])


def run(names):
    """In one line: the machine, the date and the versions with which rows were measured."""
    config = bn_ext.show_config(mode="dicts")
    l2, last_level = config["cache_sizes"]
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    return "; ".join([
        f"{config['processor']}, {config['isa']}, L2 {l2 >> 10} KiB, "
        f"last level {last_level >> 20} MiB",
        str(date.today()),
        f"{platform.system()} {platform.release()}",
        compiler.partition("\n")[0],
        versions(names),
    ])  # fmt: skip


def short(run):
    """What a page says of a run: processor, date, packages; the rest stands in the CSV file."""
    machine, day, *_, packages = run.split("; ")
    return "; ".join([machine.partition(",")[0], day, packages])


def markdown(heading, lines):
    """A table in Markdown."""
    return "\n".join(
        ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
        + ["| " + " | ".join(map(str, cells)) + " |" for cells in lines]
    )


def put(name, page, text):
    """Replace the text between the marks "name: begin" and "name: end" of a page, and print it."""
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    path = ROOT / page
    before, rest = path.read_text().split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{text}{end}{after}")
    print(text)


def write_rows(path, run, heading, lines):
    """Write rows to a CSV file."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.write(f"# {run}\n")
        csv.writer(file, lineterminator="\n").writerows([heading, *lines])


def put_rows(name, page, heading, lines):
    """Write rows of this machine to docs/NAME.csv, and put a table of them into a page."""
    measured_by = run([])
    write_rows(ROOT / "docs" / f"{name}.csv", measured_by, heading, lines)
    put(name, page, f"{short(measured_by)}:\n\n{markdown(heading, lines)}\n")


@contextmanager
def picture(path, rows=1, columns=1, *, size, dpi):
    """The figure and its (rows, columns) panels, without a screen; written to `path` at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(dict.fromkeys(INK, GREY))
    # In an SVG file, text is text, and the same picture has the same bytes.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bn_ext"})
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    yield figure, panels
    dated = {"metadata": {"Date": None}} if str(path).endswith(".svg") else {}
    figure.savefig(path, dpi=dpi, transparent=True, **dated)
    plt.close(figure)
