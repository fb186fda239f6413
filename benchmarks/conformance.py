"""Who passes the standard cases of bn_ext.testing, in float32: docs/who_passes.md, and its picture.

The packages of benchmarks/adapters that are installed here are called, each operation in a process
of its own; their rows replace those in docs/who_passes.csv, of which page and picture are made. So
every package can have an environment of its own. --packages names modules of adapters.
"""

import csv
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

import bn_ext
from bn_ext._cli import child
from bn_ext._cli.reference import imported
from bn_ext.testing._cases import Kind, standard_cases

from . import adapters, pages

CSV = pages.ROOT / "docs" / "who_passes.csv"
HEADING = [
    "module", "operation", "verdict", "arithmetic", "cases", "case", "result", "where", "element",
    "got", "expected", "error / limit", "reason",
]  # fmt: skip
#: {operation: what pages call it}
OPERATIONS = {
    "training": "Training", "inference": "Inference", "backward": "Gradient",
    "double_backward": "Gradient of the gradient",
}  # fmt: skip


# ---- measured ------------------------------------------------------------------------


def facts(module):
    """What an adapter says of its package; None if that is not installed here."""
    try:
        found = import_module(f"{adapters.__name__}.{module}")
    except ImportError:
        return None
    if not hasattr(found, "NAME"):
        return None  # what several have in common
    return {
        "name": found.NAME, "layout": found.LAYOUT, "own": found.OWN, "date": str(date.today()),
        "operations": [op for op in OPERATIONS if hasattr(found, op)],
        "versions": pages.versions(found.PACKAGES),
        "machine": bn_ext.show_config(mode="dicts")["processor"],
    }  # fmt: skip


def kind_of(operation, layout, own):
    more = {"is_training": operation != "inference", "own_statistics": operation in own}
    return Kind(operation, layout, **more)


def command(module, operation, layout, own):
    """What repeats an operation of a package."""
    words = [f"bn-ext check benchmarks.adapters.{module}:{operation}"]
    words += [f"--op {operation.replace('_', '-')}"]
    words += ["--layout NCX"] * (layout == "NCX")
    words += ["--own-statistics"] * (operation in own)
    return " ".join(words)


def rows_of(module, operation, layout, own):
    """A row for each case that is not right, and for those that are right in one arithmetic."""
    kind = kind_of(operation, layout, own)
    load = partial(imported, f"{adapters.__name__}.{module}:{operation}")
    report = child.run(load, partial(standard_cases, kind), arithmetic="float32",
                       narrow=False, repeats=1, same_bits=False, strided=False)  # fmt: skip
    right, rows = {}, []
    for found in report._cases().values():
        worst, name = found[0], found[0].case.removesuffix(", float32")
        if worst.verdict == "right":
            kinds = [each.arithmetic for each in found]
            weakest = "float32" if "float32" in kinds else "double"
            right[weakest] = right.get(weakest, 0) + 1
            continue
        numbers = ["", "", ""]
        if not worst.reason:
            numbers = [f"{n:.6g}" for n in (worst.got, worst.expected, worst.share)]
        element = f"[{', '.join(map(str, worst.element))}]" if worst.element else ""
        rows.append([module, operation, worst.verdict, worst.arithmetic, 1, name, worst.result,
                     worst.where, element, *numbers, worst.reason])  # fmt: skip
    rows += [
        [module, operation, "right", kind, count, *[""] * 8] for kind, count in right.items()
    ]
    return rows


# ---- kept ----------------------------------------------------------------------------


def load():
    """({module: its facts}, [row])"""
    if not CSV.exists():
        return {}, []
    lines = CSV.read_text(encoding="utf-8").splitlines()
    said = (line.removeprefix("# ").partition(": ") for line in lines if line.startswith("# "))
    rows = [*csv.reader(line for line in lines if not line.startswith("# "))]
    return {module: json.loads(text) for module, _, text in said}, rows[1:]


def save(said, rows):
    order = [*said]
    rows.sort(key=lambda row: (order.index(row[0]), [*OPERATIONS].index(row[1])))
    with CSV.open("w", newline="", encoding="utf-8") as file:
        for module, about in said.items():
            file.write(f"# {module}: {json.dumps(about)}\n")
        csv.writer(file, lineterminator="\n").writerows([HEADING, *rows])


def measure(modules):
    """Call the packages of these modules that are installed here."""
    for module in modules:
        # A process of its own: packages do not bear each other.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            about = process.submit(facts, module).result()
        if about is None:
            print(f"{module}: not installed", flush=True)
            continue
        found = []
        for operation in about["operations"]:
            found += rows_of(module, operation, about["layout"], about["own"])
            print(module, operation, counts(found, operation), flush=True)
        said, rows = load()  # others may have written meanwhile
        said[module] = about
        save(dict(sorted(said.items())), [*(row for row in rows if row[0] != module), *found])


# ---- what is made of it ---------------------------------------------------------------

#: Columns of the tables: what counts for them.
COLUMNS = {
    "right": lambda verdict, arithmetic: verdict == "right" and arithmetic == "double",
    "as float32 sums": lambda verdict, arithmetic: verdict == "right" and arithmetic != "double",
    "as src·scale + shift": lambda verdict, arithmetic: verdict == "weaker",
    "wrong": lambda verdict, arithmetic: verdict == "wrong",
    "refused": lambda verdict, arithmetic: verdict in ("refused", "raised"),
    "crashed": lambda verdict, arithmetic: verdict == "crashed",
}


def counts(rows, operation=None):
    """{column: how many cases}"""
    found = dict.fromkeys(COLUMNS, 0)
    for _, op, verdict, arithmetic, cases, *_ in rows:
        for name, counted in COLUMNS.items():
            if operation in (None, op) and counted(verdict, arithmetic):
                found[name] += int(cases)
    return found


if __name__ == "__main__":
    measure(sys.argv[1:])
