"""Who passes the standard cases of bn_ext.testing, in float32: docs/who_passes.md, and its picture.

The packages of adapters/ that are installed here are called, each operation in a process of its
own; their rows replace those in results/who_passes.csv, of which page and picture are made. So
every package can have an environment of its own, in which it is measured alone. There, programs of
findings/ are run, too, which show a mistake without bn_ext; what they print stands beside them.

    python -m survey packages paddle
    python -m survey page
"""

import csv
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import textwrap
from collections import namedtuple
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

import bn_ext
from benchmarks import pages
from bn_ext._cli import child
from bn_ext._cli.reference import imported
from bn_ext.testing._cases import Kind, standard_cases

from . import adapters

HERE = pages.ROOT / "survey"
CSV, PICTURE = (HERE / "results" / f"who_passes.{kind}" for kind in ("csv", "svg"))
PAGE = "docs/who_passes.md"
FINDINGS = HERE / "findings"
Row = namedtuple(
    "Row",
    "module operation verdict arithmetic cases case result where element got expected share reason",
)
#: {operation: what pages call it}
OPERATIONS = {"training": "Training", "inference": "Inference", "backward": "Gradient"}
OPERATIONS["double_backward"] = "Gradient of the gradient"


class Cause(NamedTuple):
    """What a mistake is, looked at by hand."""

    #: How "module operation case: got" of its rows begins.
    pattern: str
    text: str
    #: The package decided so, where nobody says what is right.
    own_rule: bool = False
    #: survey/findings/MODULE_PROGRAM.py show it.
    program: str = ""
    #: Where the public knows of it, or of what is alike.
    known: str = ""


TF, TORCH = "https://github.com/tensorflow/tensorflow", "https://github.com/pytorch/pytorch"
CAUSES = [
    Cause(r"\S+ \S+ (sub|large ).*: -?0$", "Subnormal numbers become 0", own_rule=True),
    Cause(r"\S+ \S+ (empty|no pos).*: nan$", "Of an empty batch, diff_gamma is NaN", own_rule=True),
    Cause(r"opencv \S+ (empty|no pos)", "Of an empty batch, there is no result", own_rule=True),
    Cause(
        r"(tensorflow|keras_tensorflow|sonnet|tinygrad) double",
        "the mean in the variance counts as constant", program="moments",
        known=f"TensorFlow's [note]({TF}/pull/19609) says that this changes no gradient, true of "
        f"the first; somebody [asked]({TF}/pull/24508). Keras has "
        "[mended](https://github.com/keras-team/keras/pull/19102) its like on torch.",
    ),
    Cause(
        r"jittor (training|backward|double)", "each term of a mean is divided, and rounded, first",
        program="mean",
        known="Where a result is wrong in one case, zeros for subnormal numbers and products that "
        "leave float32's range are no excuse in another.",
    ),
    Cause(
        r"paddle \S+ one row", "src or diff_dst is returned as it is; other results are 0",
        program="one_row",
        known="Meant so since [#11445](https://github.com/PaddlePaddle/Paddle/issues/11445).",
    ),
    Cause(r"ncnn \S+ NaN in (vec|planes)", "a deviation of NaN counts as 0.0001", program="nan"),
    Cause(
        r"torch\S* backward empty|mindspore double\S+ empty|paddle double\S+ (empty|no pos)|"
        r"ncnn \S+ no pos",
        "an empty batch, or images without positions, end the process", program="empty",
        known="torch's own function does not call the operator then; "
        f"[#95324]({TORCH}/pull/95324) was to mend it.",
    ),
    Cause("", "not looked at yet"),
]  # fmt: skip

# ---- measured ------------------------------------------------------------------------


def modules():
    """The adapters of packages, which have a NAME; others are what several have in common."""
    names = [module.name for module in iter_modules(adapters.__path__)]
    texts = {name: (HERE / "adapters" / f"{name}.py").read_text() for name in names}
    return [name for name, text in texts.items() if re.search("^NAME, ", text, re.MULTILINE)]


def facts(module):
    """What an adapter says of its package; a text that says why if it cannot be imported."""
    try:
        adapter = import_module(f"{adapters.__name__}.{module}")
    except ImportError as error:
        return str(error)
    return {
        "name": adapter.NAME, "layout": adapter.LAYOUT, "own": adapter.OWN,
        "date": str(date.today()), "operations": [op for op in OPERATIONS if hasattr(adapter, op)],
        "versions": pages.versions(adapter.PACKAGES),
        "machine": bn_ext.show_config(mode="dicts")["processor"],
    }  # fmt: skip


def kind_of(operation, layout, own):
    mode = {"is_training": operation != "inference", "own_statistics": operation in own}
    return Kind(operation, layout, **mode)


def rows_of(module, operation, layout, own):
    """A row for each case that is not right, and for those that are right in one arithmetic."""
    kind = kind_of(operation, layout, own)
    load = partial(imported, f"{adapters.__name__}.{module}:{operation}")
    report = child.run(load, partial(standard_cases, kind), timeout=3000)
    right, rows = {}, []
    for findings in report.cases().values():
        worst, name = findings[0], findings[0].case.removesuffix(", float32")
        if worst.verdict == "right":
            kinds = [finding.arithmetic for finding in findings]
            weakest = "float32" if "float32" in kinds else "double"
            right[weakest] = right.get(weakest, 0) + 1
            continue
        numbers = ["", "", ""]
        if not worst.reason:
            numbers = [f"{n:.6g}" for n in (worst.got, worst.expected, worst.share)]
        element = f"[{', '.join(map(str, worst.element))}]" if worst.element else ""
        facts = worst.verdict, worst.arithmetic, 1, name, worst.result, worst.where
        rows.append([module, operation, *facts, element, *numbers, worst.reason])
    rows += [[module, operation, "right", kind, count, *[""] * 8] for kind, count in right.items()]
    return rows


# ---- kept ----------------------------------------------------------------------------


def load():
    """({module: its facts}, in the order of names, and [row])"""
    if not CSV.exists():
        return {}, []
    lines = CSV.read_text(encoding="utf-8").splitlines()
    noted = (line.removeprefix("# ").partition(": ") for line in lines if line.startswith("# "))
    rows = [*csv.reader(line for line in lines if not line.startswith("# "))]
    packages = {module: json.loads(text) for module, _, text in noted}
    return dict(sorted(packages.items(), key=lambda pair: pair[1]["name"].lower())), rows[1:]


def save(packages, rows):
    order = [*packages]
    rows.sort(key=lambda row: (order.index(row[0]), [*OPERATIONS].index(row[1])))
    with CSV.open("w", newline="", encoding="utf-8") as file:
        for module, about in packages.items():
            file.write(f"# {module}: {json.dumps(about)}\n")
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])


def measure(modules):
    """Call the packages of these modules that are installed here."""
    for module in modules:
        # A process of its own: packages do not bear each other.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            about = process.submit(facts, module).result()
        if isinstance(about, str):
            print(f"{module}: not called: {about}", flush=True)
            continue
        measured = []
        for operation in about["operations"]:
            measured += rows_of(module, operation, about["layout"], about["own"])
            print(module, operation, counts(measured, operation), flush=True)
        packages, rows = load()  # others may have written meanwhile
        packages[module] = about
        save(packages, [*(row for row in rows if row[0] != module), *measured])
        for program in sorted(FINDINGS.glob(f"{module}_*.py")):
            program.with_suffix(".txt").write_text(printed(program))


def printed(program):
    """What a program prints, up to the trace of a crash, and how it ends if not well."""
    run = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True)
    text = run.stdout.partition("\n\n")[0].rstrip() + "\n"
    if run.returncode:
        ended = signal.Signals(-run.returncode).name if run.returncode < 0 else run.returncode
        text += f"the process ends: {ended}\n"
    return text


# ---- what is made of it ---------------------------------------------------------------

#: {word of the table: the verdicts that count}, the worst first.
WORDS = {
    "wrong": ["wrong", "crashed"], "range": ["range"], "weaker": ["weaker"],
    "own rule": ["own rule"], "refused": ["refused", "raised"], "right": ["right"],
}  # fmt: skip


def cause_of(row):
    words = f"{row.module} {row.operation} {row.case}: {row.got}"
    return next(cause for cause in CAUSES if re.match(cause.pattern, words))


def counts(rows, operation):
    """{word: how many cases}"""
    numbers = dict.fromkeys(WORDS, 0)
    for row in map(Row._make, rows):
        own_rule = row.verdict == "wrong" and cause_of(row).own_rule
        verdict = "own rule" if own_rule else row.verdict
        for name, verdicts in WORDS.items():
            numbers[name] += int(row.cases) * (operation == row.operation and verdict in verdicts)
    return numbers


def name_of(about):
    return f"**{about['name']}**" if about["name"] == "bn_ext" else about["name"]


def table(packages, rows):
    """Markdown: a row for each package, those with most that is wrong first."""
    lines, wrong = {}, {}
    for module, about in packages.items():
        mine = [row for row in rows if row[0] == module]
        numbers = [counts(mine, operation) for operation in OPERATIONS]
        cells = [", ".join(f"{n} {name}" for name, n in row.items() if n) for row in numbers]
        lines[module] = [name_of(about), *cells]
        wrong[module] = -sum(row["wrong"] for row in numbers)
    heading = ["package", *(title.lower() for title in OPERATIONS.values())]
    lines = [lines[module] for module in sorted(wrong, key=wrong.get)]
    return f"{pages.markdown(heading, lines)}\n"


def grouped(rows, *, own_rule):
    """{cause: {module: its rows}} of what is wrong, or of own rules"""
    groups = {}
    for row in map(Row._make, rows):
        cause = cause_of(row)
        if row.verdict in ("wrong", "crashed") and cause.own_rule == own_rule:
            groups.setdefault(cause, {}).setdefault(row.module, []).append(row)
    return groups


def mistakes(packages, rows):
    """Markdown: what is wrong, and what crashed; what the programs print."""
    parts, groups = [], grouped(rows, own_rule=False)
    for cause in sorted(groups, key=CAUSES.index):
        lines = []
        for module, own in groups[cause].items():
            for operation in dict.fromkeys(row.operation for row in own):
                cases = [row.case for row in own if row.operation == operation]
                total = sum(int(r[4]) for r in rows if r[:2] == [module, operation])
                where = cases[0] if len(cases) == 1 else f"{len(cases)} of {total} cases"
                lines.append(
                    f"{packages[module]['name']}: {OPERATIONS[operation].lower()}, {where}"
                )
        text = f"### {cause.text[0].upper()}{cause.text[1:]}\n\n"
        text += "".join(f"- {line}\n" for line in lines)
        for program in sorted(FINDINGS.glob(f"*_{cause.program}.py")):
            text += f"\n[{program.name}](../survey/findings/{program.name}):\n\n"
            text += f"```text\n{program.with_suffix('.txt').read_text()}```\n"
        parts.append(text + f"\n{textwrap.fill(cause.known, 120)}\n" * bool(cause.known))
    return "\n".join(parts)


def own_rules(packages, rows):
    """Markdown: who has which rule of its own."""
    names = {}
    for cause, by in grouped(rows, own_rule=True).items():
        names[cause.text] = [packages[module]["name"] for module in packages if module in by]
    fill = partial(textwrap.fill, width=120, subsequent_indent="  ")
    return "".join(fill(f"- {text}: {', '.join(who)}.") + "\n" for text, who in names.items())


#: {kind of cases in the picture: what the names of its cases contain}; the last takes all others.
CASES = {
    "one row or none": r"one row|empty|no pos", "no gamma, beta": r"without|no gamma",
    "large mean": r"mean", "small variance": r"epsilon|constant",
    "large or tiny numbers": r"small|subnormal",
    "shapes": r"axes|rows|channel|image|^planes|a plane", "other values": r"",
}  # fmt: skip
#: {what a square of the picture says: its colour}, the worst last.
COLOURS = {"right": "#1f6fb2", "weaker, own rule": "#a9cce8", "refused": "#cfcfcf"}
COLOURS |= {"range": "#e2b23c", "wrong": "#d9534f"}


def worst(packages, rows):
    """{(module, operation, kind of cases): the worst COLOURS of its cases}"""
    squares = {
        (module, operation, kind): "right"
        for module, about in packages.items() for operation in about["operations"] for kind in CASES
    }  # fmt: skip
    names, order = {"raised": "refused", "crashed": "wrong"}, [*COLOURS]
    for row in map(Row._make, rows):
        kind = next(kind for kind, words in CASES.items() if re.search(words, row.case))
        if row.verdict in ("right", "not judged"):
            continue
        weaker = row.verdict == "weaker" or cause_of(row).own_rule
        colour = order[1] if weaker else names.get(row.verdict, row.verdict)
        key = row.module, row.operation, kind
        squares[key] = max(squares[key], colour, key=order.index)
    return squares


def draw(packages, rows, path):
    """Draw a table: a row for each package, bn_ext's first, then those with most that is wrong; a
    column for each kind of cases of each operation, a square for the worst of them.
    """
    squares = worst(packages, rows)
    wrong = [module for (module, *_), colour in squares.items() if colour == "wrong"]
    modules = sorted(
        packages, key=lambda name: (packages[name]["name"] != "bn_ext", -wrong.count(name))
    )
    starts = {operation: k * (len(CASES) + 0.8) for k, operation in enumerate(OPERATIONS)}
    # A little wider than a phone: a larger picture would have larger words than a page elsewhere.
    with pages.picture(path, size=(4.5, 5.0), dpi=100) as (figure, panels):
        (panel,) = panels.flat
        for colour, code in COLOURS.items():
            at = [
                (starts[op] + [*CASES].index(kind), modules.index(module))
                for (module, op, kind), worst_colour in squares.items()
                if worst_colour == colour
            ]
            x, y = zip(*at, strict=True)
            panel.scatter(x, y, 42, code, marker="s", linewidths=0, label=colour)
        titles = "training", "inference", "gradient", "its gradient"
        for start, title in zip(starts.values(), titles, strict=True):
            panel.text(start + len(CASES) / 2 - 0.5, len(modules) + 0.4, title, ha="center", size=8)
        ticks = [start + k for start in starts.values() for k in range(len(CASES))]
        panel.set_xticks(ticks, [*CASES] * len(starts), rotation=90)
        panel.set_yticks(range(len(modules)), [packages[module]["name"] for module in modules])
        panel.get_yticklabels()[0].set_fontweight("bold")
        panel.xaxis.tick_top()
        panel.set_xlim(-0.6, max(starts.values()) + len(CASES) - 0.4)
        panel.set_ylim(len(modules) + 0.4, -0.6)
        panel.spines[:].set_visible(False)
        panel.tick_params(labelsize=7, length=0, pad=2)
        space = {"handletextpad": 0.1, "columnspacing": 1}
        figure.legend(loc="outside lower center", ncols=5, fontsize=7.5, frameon=False, **space)


def versions(packages, rows):
    """Markdown: machines, days and the versions of packages."""
    texts = [about[fact] for fact in ("machine", "date", "versions") for about in packages.values()]
    words = dict.fromkeys(word for text in texts for word in text.split(", "))
    return textwrap.fill(f"On {', '.join(words)}.", width=120, break_on_hyphens=False) + "\n"


#: {mark in the page: what makes its text}
PARTS = {"counts": table, "mistakes": mistakes, "own rules": own_rules, "versions": versions}


def write():
    """Make page and picture of the file."""
    packages, rows = load()
    for mark, text in PARTS.items():
        pages.put(mark, PAGE, text(packages, rows))
    draw(packages, rows, PICTURE)
