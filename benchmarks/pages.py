"""What the reports share: the machine's description, progress bars, tables in pages."""

import csv
import platform
import subprocess
import sys
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from rich.progress import Progress

import bn_ext
from bn_ext._bench.timing import markdown

from . import onednn

ROOT = Path(__file__).resolve().parent.parent


def machine():
    """The machine, in a line."""
    config = bn_ext.show_config(mode="dicts")
    l2, last_level = config["cache_sizes"]
    return (
        f"{config['processor']}, {config['isa']}, L2 {l2 >> 10} KiB, "
        f"last level {last_level >> 20} MiB; {date.today()}"
    )


def versions(names):
    """{name: version} of bn_ext, NumPy and the peers that were compared."""
    import numpy

    found = {"bn_ext": bn_ext.__version__, "NumPy": numpy.__version__}
    for name in names:
        module = sys.modules.get(name)
        if module is not None and name != "numpy":
            found[name] = module.__version__
    if any(name.startswith("oneDNN") for name in names):
        found["oneDNN"] = onednn.version()
    return found


def run(names):
    """In one line: the machine, the date and the versions with which rows were measured."""
    said = ", ".join(f"{name} {version}" for name, version in versions(names).items())
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    compiler = compiler.partition("\n")[0]
    return f"{machine()}; {platform.system()} {platform.release()}; {compiler}; {said}"


@contextmanager
def counted(console, what, total):
    """A progress bar on the console; yields a function that advances it by one."""
    with Progress(console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def put(name, page, text, console):
    """Replace the text between the marks "name: begin" and "name: end" of a page, and print it."""
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    path = ROOT / page
    before, rest = path.read_text().split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{text}{end}{after}")
    console.print(text, markup=False, soft_wrap=True)


def put_rows(name, page, said, heading, lines, shown, console):
    """Write all rows to docs/NAME.csv, and put the table of those that are `shown` into a page."""
    with open(ROOT / "docs" / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        file.write(f"# {said}\n")
        csv.writer(file, lineterminator="\n").writerows([heading, *lines])
    table = markdown(heading, [line for line in lines if shown(line)])
    put(name, page, f"{said}:\n\n{table}\n", console)
