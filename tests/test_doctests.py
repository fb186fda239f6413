"""Examples in public docstrings, in the README and in docs/ run, except most "pycon" blocks."""

import csv
import doctest
import importlib.util
import json
import re
import statistics
import sys

import pytest
from needs import needs_openmp
from processes import printed, python
from tree import ROOT

import bn_ext.testing
from bn_ext.specs import ngraph, onednn_graph, tensorflow

MODULES = [bn_ext, bn_ext.testing, ngraph, onednn_graph, tensorflow]
#: {name: the package that the module and the page of this name need, besides NumPy}
NEEDS = {"autograd": "autograd", "dask": "dask", "torch": "torch"}
MODULES += [
    importlib.import_module(f"bn_ext.{name}")
    for name, what in NEEDS.items()
    if importlib.util.find_spec(what)
]
OBJECTS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if callable(getattr(module, name))
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def run(text, name):
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    results = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test)
    assert results.failed == 0
    return results.attempted


@pytest.mark.parametrize("name", OBJECTS)
def test_docstrings(name):
    doc = OBJECTS[name].__doc__
    assert doc
    assert not re.search(r"\w -{3}", doc), "a heading that is not on a line of its own"
    examples = run(doc, name)
    if not isinstance(OBJECTS[name], type):
        assert examples, "a public function without an example"
        assert re.search("^ *(Returns|Raises)\n", doc, re.MULTILINE)
        assert "Examples\n" in doc


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLAIN = re.compile(r"^```python\n((?!>>> ).*?)^```$", re.MULTILINE | re.DOTALL)
PYCON = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^ *>>> ", re.MULTILINE)
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_pages(path):
    """Run all examples with prompts, except "pycon" ones, which may need other packages."""
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    text = PYCON.sub("", path.read_text())
    assert run(text.replace("```\n", "\n"), path.name) == len(PROMPT.findall(text))


def test_the_reference_lists_what_is_public():
    """If it fails: python docs/make_reference.py, and new names of bn_ext in its GROUPS."""
    pytest.importorskip("autograd")
    pytest.importorskip("dask")
    page = (ROOT / "docs" / "reference.md").read_text()
    code = "import json, make_reference as m; print(json.dumps([m.with_tables(m.PAGE.read_text()),"
    code += "[full for _, lines in m.rows().values() for full, *_ in lines], [*m.WORDS]]))"
    # In a process of its own: torch may be a stand-in.
    found, names, with_words = json.loads(printed(python("-c", code, cwd=ROOT / "docs")))
    assert page == found
    assert {f"bn_ext.{name}" for name in {*bn_ext.__all__} - {"__version__", "specs"}} <= {*names}
    assert {*with_words} <= {*names}


@needs_openmp
def test_limits_by_threadpoolctl():
    pytest.importorskip("threadpoolctl")
    (block,) = PYCON.findall((ROOT / "docs" / "howto" / "threads.md").read_text())
    assert run(block, "threads.md")


def test_lengths():
    """What people write in the docs is read in an evening, the README in five minutes."""
    readme, *others = (path.read_text() for path in [*PAGES, ROOT / "CONTRIBUTING.md"])
    assert readme.count("\n") <= 100
    written = re.sub(
        r"<!-- (.+): begin -->.*?<!-- \1: end -->", "", " ".join([readme, *others]), flags=re.S
    )
    assert len(written.split()) <= 22_500


@pytest.mark.parametrize(
    "path", [p for p in PAGES if CELL.search(p.read_text())], ids=lambda p: p.stem
)
def test_notebooks(path, monkeypatch):
    """The cells that run when the site is built also run here, and their assertions hold."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("sklearn")
    names = {"__name__": "__main__"}
    for cell in CELL.findall(path.read_text()):
        exec(compile(cell, str(path), "exec"), names)
    pyplot.close("all")


def test_the_step_of_the_readme(capsys):
    """It runs as pasted, learns, and normalizes with the running statistics at the end."""
    (step,) = PLAIN.findall((ROOT / "README.md").read_text())
    names = {}
    exec(step, names)
    first, last = names["wanted"].var(), float(capsys.readouterr().out.removeprefix("error: "))
    assert last < first / 2
    assert not names["norm"].training


def test_the_cheat_sheet():
    """The column of bn_ext runs from top to bottom."""
    text = (ROOT / "docs" / "cheat_sheet.md").read_text()
    names = {}
    for line in re.findall(r"^>>> (.*)|^\| [^|]+ \| `(.*?)` \|", text, re.MULTILINE):
        exec("".join(line), names)
    assert {"diff_src", "state", "twice", "sums"} <= names.keys()


#: Peers in docs/figures.csv that return new arrays, and one that writes to given ones.
FRESH_PEERS, GIVEN_PEERS = ["numpy", "torch", "jax", "tensorflow"], ["oneDNN"]


def over_peers(row):
    found = {n: float(row[n]) / float(row["bn_ext"]) for n in FRESH_PEERS if row[n]}
    given = {n: float(row[n]) / float(row["bn_ext, out="]) for n in GIVEN_PEERS if row[n]}
    return found | given


def rows_of(name):
    lines = (ROOT / "docs" / name).read_text().splitlines()
    return csv.DictReader(line for line in lines if not line.startswith("# "))


def test_the_numbers_of_the_readme():
    """They are medians of rows, as in the picture; ranges stand beside those that vary."""
    times = []
    for row in rows_of("figures.csv"):
        chosen = [row[name] for name in ("level", "malloc", "op", "set", "threads", "behind")]
        if chosen == ["v4", "default", "backward", "resnet", "2", "pass"] and row["dtype"] in (
            "float32",
            "bfloat16",
        ):
            times.append(over_peers(row))
    best = [min(each.values()) for each in times]
    steps = [float(row["numpy / bn_ext"]) for row in rows_of("numpy_networks.csv")]
    numpy, torch = (statistics.median(each[n] for each in times) for n in ("numpy", "torch"))
    text = " ".join((ROOT / "README.md").read_text().split())
    for said in (
        f"**{numpy:.0f} times as fast as NumPy's formula**",
        f"of a NumPy network is {min(steps):.2f} to {max(steps):.2f} times as fast",
        f"Medians of {len(times)} cases",
        f"torch takes {torch:.1f} times as long",
        f"is fastest in a case takes {statistics.median(best):.1f} times as long "
        f"(range {min(best):.2g} to {max(best):.2g})",
    ):
        assert said in text


def test_who_passes(monkeypatch):
    """The page says what the file says, and somebody looked at all that is wrong."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks import conformance

    page, (said, rows) = (ROOT / conformance.PAGE).read_text(), conformance.load()
    for mark, made in conformance.PARTS.items():
        text = made(said, rows)
        assert f"<!-- {mark}: begin -->\n{text}<!-- {mark}: end -->" in page
        assert "not looked at" not in text
