"""Other packages judged: python -m survey, its programs, its results and what is made of them."""

import ast
import csv
import re
import shutil
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from tree import ROOT

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from benchmarks import pages
from survey import __main__ as command, accuracy, conformance, practices

# ---- the folder and its command --------------------------------------------------------

README = (conformance.HERE / "README.md").read_text()


def test_the_readme_has_every_file_and_every_package():
    """So that each can be run anew; `python -m survey` has the commands that it names."""
    files = {path.name + "/" * path.is_dir() for path in conformance.HERE.glob("[!_]*")}
    assert {*re.findall(r"^\| `([\w./]+)` \|", README, re.MULTILINE)} >= files - {"README.md"}
    _, _, table = README.partition("| module |")
    first = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(first))) == sorted(conformance.modules())
    assert {*conformance.load()[0]} <= {*conformance.modules()}
    commands = re.findall(r"python -m survey (\w+)", README)
    assert {*commands} == {*re.findall(r"python -m survey (\w+)", command.__doc__)}


def test_benchmarks_need_nothing_of_the_survey():
    for path in (ROOT / "benchmarks").glob("*.py"):
        assert not re.search(r"^ *(?:from|import) survey\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("words", [[], ["who"], ["packages", "numpy_formula", "none"]])
def test_a_wrong_word_is_named(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    _, _, error = capsys.readouterr().err.rpartition("error: ")
    if len(words) > 1:
        known = ", ".join(conformance.modules())
        assert error == f"MODULE: expected any of {known}, got 'none'\n"
    else:
        assert error.endswith("COMMAND\n") or "'who' (choose from" in error


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Results, what programs print and pages are written to copies in this folder."""
    for folder in ("docs", "survey/results", "survey/findings"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    results = tmp_path / "survey" / "results"
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(conformance, "FINDINGS", tmp_path / "survey" / "findings")
    for module, name in [
        (conformance, "CSV"), (conformance, "PICTURE"), (accuracy, "CSV"),
        (accuracy, "RESULTS"), (practices, "RESULTS"),
    ]:  # fmt: skip
        path = getattr(module, name)
        monkeypatch.setattr(module, name, results if name == "RESULTS" else results / path.name)
    return tmp_path


def test_a_package_is_called_anew(capsys, elsewhere):
    """Its rows replace the old ones, and its programs are run; one that is not here keeps them."""
    absent = next((name for name in conformance.modules() if not find_spec(name)), None)
    packages, rows = conformance.load()
    packages["numpy_formula"]["date"] = "long ago"
    kept = [row for row in rows if row[0] != "numpy_formula"]
    conformance.save(packages, [*kept, ["numpy_formula", "training", "right", "double", "1"]])
    (conformance.FINDINGS / "numpy_formula_new.py").write_text("print(1)")
    command.main(["packages", "numpy_formula", *[absent] * bool(absent)])
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out[:3]] == [
        ["numpy_formula", operation] for operation in ("training", "inference", "backward")
    ]
    assert out[3:] == [f"{absent}: not called: No module named {absent!r}"] * bool(absent)
    packages, new = conformance.load()
    assert packages["numpy_formula"]["date"] != "long ago"
    assert [row for row in new if row[0] != "numpy_formula"] == kept
    mine = [row for row in new if row[0] == "numpy_formula"]
    for operation in ("training", "inference", "backward"):
        counts = conformance.counts(mine, operation)
        assert counts["right"] > 50
        assert counts["refused"]  # without gamma or beta
        assert not counts["wrong"]
    assert (conformance.FINDINGS / "numpy_formula_new.txt").read_text() == "1\n"


def test_what_a_package_needs_besides_is_named(monkeypatch):
    """Without it, the command would count every case as refused."""
    monkeypatch.setenv("DEV", "CPU")
    monkeypatch.setenv("PATH", "")
    need = "tinygrad compiles with clang, which is not on PATH; DEV=PYTHON needs none"
    assert conformance.facts("tinygrad") == need


def test_the_page_is_made_of_the_results(elsewhere):
    pytest.importorskip("matplotlib")
    page = elsewhere / conformance.PAGE
    text = page.read_text()
    page.write_text(re.sub("begin -->\n.*?<!--", "begin -->\n<!--", text, flags=re.DOTALL))
    conformance.PICTURE.unlink()
    command.main(["page"])
    assert page.read_text() == text
    picture = conformance.PICTURE.read_text()
    for about in conformance.load()[0].values():
        assert f">{about['name']}<" in picture


def test_practices_are_tried_anew(capsys, monkeypatch, elsewhere):
    """Table, file and picture have them; one needs no package, and finds what it found before."""
    pytest.importorskip("matplotlib")
    names = "one random comparison, rtol 1e-4", "ONNX's backend cases"
    file = practices.RESULTS / "practices.csv"
    (before,) = (line for line in file.read_text().splitlines() if line.startswith(f'"{names[0]}"'))
    *_, finds, wrong = before.split(",")
    chosen = {name: practices.PRACTICES[name] for name in names}
    monkeypatch.setattr(practices, "PRACTICES", chosen)
    monkeypatch.setitem(sys.modules, "onnx", None)
    command.main(["practices"])
    *_, first, second = file.read_text().splitlines()
    assert first == before
    assert second == f"{names[1]}: no onnx here,,,,,,"
    page = (elsewhere / "docs" / "howto" / "reference_for_kernels.md").read_text()
    assert f"| {names[0]} | {finds} | {wrong} |\n| {names[1]}: no onnx here |  |  |\n\n" in page
    assert names[0] in (practices.RESULTS / "practices.svg").read_text()
    assert f"{finds} {wrong}\n" in capsys.readouterr().out


def test_errors_are_measured_anew(monkeypatch, elsewhere):
    """bn_ext's are within their bounds; NumPy's are larger where small terms follow a large one."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(accuracy, "SHAPES", [(16, 3, 16, 16)])
    # torch may not be here; its place in the picture is NumPy's.
    peers = {**accuracy.PEERS, "torch": accuracy.PEERS["numpy"]}
    monkeypatch.setattr(accuracy, "PEERS", peers)
    for name in ("accuracy.png", "rows.png"):
        (accuracy.RESULTS / name).unlink()
    command.main(["accuracy"])
    with accuracy.CSV.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(list(file)[1:]))
    assert [row["data"] for row in rows] == [kind for kind, *_ in accuracy.KINDS] * 2
    assert all(float(row["bn_ext"]) <= 1 for row in rows)
    for row in rows:
        if row["data"] == "one large dy among small":
            assert float(row["numpy"]) > 2 * float(row["bn_ext"])
    for name in ("accuracy.png", "rows.png"):
        assert (accuracy.RESULTS / name).is_file()


# ---- packages ------------------------------------------------------------------------


def test_a_square_is_the_worst_of_its_cases():
    """Of each operation of a package; what a package decides is no mistake."""
    verdicts = {"right": "two axes", "raised": "two axes", "crashed": "a new name"}
    verdicts |= {"wrong": "large and small gamma", "weaker": "one row", "not judged": "large mean"}
    rows = []
    for verdict, case in verdicts.items():
        got = "0" if verdict == "wrong" else ""  # as of subnormal numbers that become 0
        rows.append(["one", "backward", verdict, "", 1, case, "", "", "", got, "", "", ""])
    squares = conformance.worst({"one": {"operations": ["backward"]}}, rows)
    assert len(squares) == len(conformance.CASES)
    right = dict.fromkeys(("large or tiny numbers", "one row or none"), "weaker, own rule")
    right |= {"shapes": "refused", "other values": "wrong"}
    assert {kind: colour for (*_, kind), colour in squares.items() if colour != "right"} == right


def test_the_page_has_the_rows_of_the_file():
    page, (packages, rows) = (ROOT / conformance.PAGE).read_text(), conformance.load()
    for mark, made in conformance.PARTS.items():
        text = made(packages, rows)
        assert f"<!-- {mark}: begin -->\n{text}<!-- {mark}: end -->" in page
        assert "not looked at" not in text.lower()
    squares = conformance.worst(packages, rows).items()
    colours = {colour for (module, *_), colour in squares if packages[module]["name"] == "bn_ext"}
    assert colours == {"right"}


# ---- programs that show mistakes -------------------------------------------------------


@pytest.mark.parametrize("path", sorted(conformance.FINDINGS.glob("*.py")), ids=lambda p: p.stem)
def test_a_finding_is_a_small_program_of_its_package(path):
    """It does without bn_ext; what it prints is beside it, the package's version first."""
    text = path.read_text()
    assert len(text.splitlines()) <= 25
    ast.parse(text)
    package, printed = path.stem.partition("_")[0], path.with_suffix(".txt").read_text()
    assert re.search(rf"^ *(?:from|import) {package}\b", text, re.M)
    assert not re.search("bn_ext|benchmarks|survey", text)
    assert re.match(rf"{package} [\d.]+", printed)
    assert printed.endswith("\n")
    assert "Traceback" not in printed


def test_every_mistake_of_a_package_has_its_program():
    packages, rows = conformance.load()
    for cause, modules in conformance.grouped(rows, own_rule=False).items():
        for module in modules:
            package = module.removesuffix("_channels_last")
            assert (conformance.FINDINGS / f"{package}_{cause.program}.py").is_file(), cause
            assert f"[{package}_{cause.program}.py]" in conformance.mistakes(packages, rows)


def test_a_program_that_crashes_keeps_what_it_printed(tmp_path):
    program = tmp_path / "one.py"
    program.write_text(
        "import os\nprint('a', flush=True)\nprint('\\n\\ntrace', flush=True)\nos.abort()"
    )
    assert conformance.printed(program) == "a\nthe process ends: SIGABRT\n"
    program.write_text("print(1)\nprint(2)")
    assert conformance.printed(program) == "1\n2\n"


# ---- planted mistakes ---------------------------------------------------------------


def test_every_change_of_a_kernel_makes_another_that_runs():
    """Of 80 mistakes and 20 right styles, no two are the same."""
    assert sum(map(len, practices.MISTAKES.values())) >= 80
    assert sum(map(len, practices.STYLES.values())) >= 20
    for operation, text in practices.KERNELS.items():
        changes = practices.MISTAKES[operation] + practices.STYLES[operation]
        assert len({*map(str, changes)}) == len(changes)
        arrays, wanted = practices.problem(operation, (6, 5), np.random.Generator.random, 1, 1e-5)
        for each in changes:
            kernel = practices.kernel_with(text, each)
            results = practices.call_kernel(operation, kernel, arrays, 1e-5)
            assert [a.shape for a in results] == [a.shape for a in wanted[: len(results)]]


@pytest.mark.parametrize(
    "practice",
    [name for name in practices.PRACTICES if re.search("one random|five shapes|benchdnn", name)],
)
def test_practices_tell_a_mistake_from_a_right_kernel(practice):
    finds, text = practices.PRACTICES[practice], practices.KERNELS["backward"]
    assert not finds("backward", practices.kernel_with(text, []))
    assert finds("backward", practices.kernel_with(text, practices.MISTAKES["backward"][0]))


def test_the_page_has_the_practices_of_the_file():
    with (practices.RESULTS / "practices.csv").open(newline="", encoding="utf-8") as file:
        heading, *rows = csv.reader(line for line in file if not line.startswith("#"))
    page = (ROOT / "docs" / "howto" / "reference_for_kernels.md").read_text()
    picture = (practices.RESULTS / "practices.svg").read_text()
    assert [row[0] for row in rows] == [*practices.PRACTICES]
    for name, *of_operations, finds, wrong in rows:
        assert sum(map(int, of_operations)) == int(finds)
        assert f"| {name} | {finds} | {wrong} |" in page
        assert name.replace("`", "") in picture
    total, styles = (sum(map(len, t.values())) for t in (practices.MISTAKES, practices.STYLES))
    assert heading[-2:] == [f"finds, of {total}", f"calls wrong, of {styles} right"]
    assert rows[-1][0] == "bn_ext.testing"
    assert rows[-1][-1] == "0"
