"""Examples in public docstrings, in the README and in docs/ run, except most "pycon" blocks."""

import csv
import doctest
import importlib
import inspect
import json
import math
import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from processes import printed, python
from tree import ROOT

import bn_ext.testing
from bn_ext.specs import ngraph, onednn_graph, tensorflow

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from benchmarks import figures

MODULES = [bn_ext, bn_ext.testing, ngraph, onednn_graph, tensorflow]
#: Packages that the module and the page of their name need, besides NumPy.
NEEDS = ["autograd", "dask", "torch"]
MODULES += [importlib.import_module(f"bn_ext.{name}") for name in NEEDS if find_spec(name)]
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


README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLAIN = re.compile(r"^```python\n((?!>>> ).*?)^```$", re.MULTILINE | re.DOTALL)
PYCON = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^ *>>> ", re.MULTILINE)
#: A block of a page that is a notebook, and what it prints.
CELL = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
NOTEBOOKS = [path for path in PAGES if path.read_text().startswith("<!-- notebook -->")]
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_pages(path):
    """Run all examples with prompts, except "pycon" ones, which may need other packages."""
    if path.stem in NEEDS:
        pytest.importorskip(path.stem)
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
    listed, names, with_words = json.loads(printed(python("-c", code, cwd=ROOT / "docs")))
    assert page == listed
    assert {f"bn_ext.{name}" for name in {*bn_ext.__all__} - {"__version__", "specs"}} <= {*names}
    assert {*with_words} <= {*names}


def test_limits_by_threadpoolctl():
    pytest.importorskip("threadpoolctl")
    (block,) = PYCON.findall((ROOT / "docs" / "howto" / "threads.md").read_text())
    assert run(block, "threads.md")


def test_the_readme_can_be_read_in_five_minutes():
    assert PAGES[0].read_text().count("\n") <= 100


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_pages_are_whole_as_plain_markdown(path):
    """What only the site understands, a code host shows as it is written; conf.py adds it."""
    assert not re.search(r"^---$|^ *(```|:::+)\{|\{[a-z:-]+\}`\w", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks(path, monkeypatch, tmp_path, capsys):
    """Cells print what the page shows, but for rounding and other BLAS; their assertions hold."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for cell, shown in CELL.findall(path.read_text()):
        exec(compile(cell, str(path), "exec"), names)
        printed_text = capsys.readouterr().out
        assert NUMBER.sub("", printed_text) == NUMBER.sub("", shown)
        for a, b in zip(NUMBER.findall(printed_text), NUMBER.findall(shown), strict=True):
            assert math.isclose(float(a), float(b), rel_tol=0.05, abs_tol=1e-6)
    for picture in tmp_path.iterdir():
        assert (path.parent / picture.name).exists()


def test_the_page_on_kernels_has_the_example_in_c():
    example = (ROOT / "examples" / "kernel_in_c.py").read_text()
    (shown,) = PLAIN.findall((ROOT / "docs" / "howto" / "reference_for_kernels.md").read_text())
    assert shown == example[example.index("SOURCE =") :]


def test_the_programs_of_the_readme(capsys):
    """As pasted, one after the other, they print what the README shows behind each."""
    names, blocks = {"__name__": "__main__"}, CELL.findall(README)
    assert len(blocks) == 3
    for program, shown in blocks:
        try:
            exec(program, names)
            printed = capsys.readouterr().out
        except AssertionError as error:
            printed = f"AssertionError: {error}\n"
        assert printed == shown


FROM_OTHERS = (ROOT / "docs" / "howto" / "coming_from.md").read_text()


def test_a_layer_gives_what_cs231n_has():
    names = {}
    for line in re.findall(r"^>>> (.*)", FROM_OTHERS, re.MULTILINE)[:9]:
        exec(line, names)
    x, dout = names["x"], names["dout"]
    mean, var = x.mean(axis=0), x.var(axis=0)
    xhat = (x - mean) / np.sqrt(var + 1e-5)
    dgamma, dbeta = (dout * xhat).sum(axis=0), dout.sum(axis=0)
    dx = (dout - dbeta / len(x) - xhat * dgamma / len(x)) / np.sqrt(var + 1e-5)
    tested = (x - 0.1 * mean) / np.sqrt(0.1 * var + 1e-5)  # running = 0.9 * 0 + 0.1 * batch
    wanted = {"out": xhat, "dx": dx, "dgamma": dgamma, "dbeta": dbeta, "tested": tested}
    for name, array in wanted.items():
        np.testing.assert_allclose(names[name], array, rtol=1e-10, atol=1e-10, err_msg=name)


def test_the_calls_of_a_layer_beside_torchs():
    rows = re.findall(r"^\| [a-zA-Z; ]+ \| `(.*?)` \| `(.*?)`", FROM_OTHERS, re.MULTILINE)
    src, diff_dst = np.random.default_rng(0).standard_normal((2, 8, 10, 5, 5), np.float32)
    names = {"bn_ext": bn_ext, "src": src, "diff_dst": diff_dst}
    for line, _ in rows:
        exec(line, names)
    assert {"diff_src", "state"} <= names.keys()
    assert names["norm"].relu
    torch = pytest.importorskip("torch")
    torch_names = {"nn": torch.nn, "src": torch.tensor(src, requires_grad=True)}
    torch_names["diff_dst"] = torch.tensor(diff_dst)
    for _, line in rows:
        exec(line, torch_names)
    for name in ("dst", "diff_src"):
        np.testing.assert_allclose(names[name], torch_names[name].detach(), atol=1e-5)
    for name in ("values", "grads"):
        for a, b in zip(names[name], torch_names[name], strict=True):
            np.testing.assert_allclose(a, b.detach(), rtol=1e-4, atol=1e-4)
    assert names["state"].keys() == torch_names["state"].keys()
    for name, array in names["state"].items():
        np.testing.assert_allclose(array, torch_names["state"][name], atol=1e-6)


def rows_of(name):
    lines = (ROOT / "docs" / name).read_text().splitlines()
    return csv.DictReader(line for line in lines if not line.startswith("# "))


def test_the_numbers_of_the_readme():
    """They are medians of rows, as in the picture; ranges stand beside those that vary."""
    runs, rows = figures.load()
    assert figures.headline(runs, rows) in README
    steps = [float(row["numpy / bn_ext"]) for row in rows_of("numpy_networks.csv")]
    for claim in (
        f"takes about 1/{figures.of_numpy(rows):.0f} of the time of the usual NumPy formula",
        f"training step is {min(steps):.1f} to {max(steps):.1f} times as fast",
    ):
        assert claim in " ".join(README.split())


@pytest.mark.parametrize("call", [bn_ext.batch_norm_backward, bn_ext.batch_norm_training])
def test_the_factors_of_exact_sums(call):
    """Docstrings and the README say what docs/exact.csv has."""
    many, few = [], []
    for row in rows_of("exact.csv"):
        if row["call"] == call.__name__:
            times = [float(row[name]) for name in ("float32", "bfloat16", "float64") if row[name]]
            (few if row["shape (N, C, ...)"] == "2 x 4096" else many).extend(times)
    claim = f"{min(many):.2g} to {max(many):.0f} times as long"
    doc = " ".join(inspect.getdoc(call).split())
    assert f"takes {claim}, with few elements per channel about {round(max(few), -1):.0f}" in doc
    if call is bn_ext.batch_norm_backward:
        assert f"takes {claim}" in " ".join(PAGES[0].read_text().split())
