"""Every example in a public docstring, in the README and in docs/ runs."""

import doctest
import importlib.util
import json
import re
import statistics

import pytest
from tree import ROOT

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, pytorch, tensorflow

MODULES = [bn_ext, ngraph, onednn_graph, pytorch, tensorflow]
#: Modules that need more than NumPy, and pages whose examples do: {name: what}.
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
    examples = run(doc, name)
    if not isinstance(OBJECTS[name], type):
        assert examples, "a public function without an example"
        for section in ("Returns", "Examples"):
            assert f"{section}\n" in doc


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_pages(path):
    """Examples with prompts; "pycon" marks those that need what is not installed here."""
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    text = re.sub(r"^```pycon\n.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    run(text.replace("```\n", "\n"), path.name)


@pytest.mark.parametrize(
    "path", [p for p in PAGES if CELL.search(p.read_text())], ids=lambda p: p.stem
)
def test_notebooks(path, monkeypatch):
    """Pages whose cells run when the site is built; their assertions hold."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("sklearn")
    names = {"__name__": "__main__"}
    for cell in CELL.findall(path.read_text()):
        exec(compile(cell, str(path), "exec"), names)
    pyplot.close("all")


#: What is timed beside the peers; oneDNN writes to given outputs, as bn_ext can.
NO_PEERS = {"bn_ext", "bn_ext, fresh", "oneDNN blocked", "floor", "two passes", "two passes, fresh"}


def over_best_peer(seconds):
    return min(
        time / seconds["bn_ext" if name == "oneDNN" else "bn_ext, fresh"]
        for name, time in seconds.items()
        if name not in NO_PEERS
    )


def test_the_one_number():
    """The README's is the median of its comparisons, of which it tells the ends too."""
    found = json.loads((ROOT / "docs" / "benchmarks.json").read_text())["rows"]
    most = max(r["threads"] for r in found)
    times = []
    for r in found:
        chosen = r["op"], r["set"], r["threads"]
        if chosen == ("backward", "resnet", most) and r["dtype"] in ("float32", "bfloat16"):
            times.append(over_best_peer(r["seconds"]))
    said = re.search(
        r"\*\*(\S+) times as fast.*median over the (\d+) comparisons.*from (\S+) to (\S+)\.",
        (ROOT / "README.md").read_text(),
        re.DOTALL,
    )
    ends = [len(times), round(min(times), 1), round(max(times), 1)]
    assert [float(x) for x in said.groups()] == [round(statistics.median(times), 1), *ends]
