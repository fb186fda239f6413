"""Every example in a public docstring, in the README and in docs/ runs."""

import doctest
import runpy
from pathlib import Path

import pytest

import bn_ext
from bn_ext.specs import ngraph, onednn_graph, tensorflow

ROOT = Path(__file__).resolve().parent.parent
OBJECTS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (bn_ext, ngraph, onednn_graph, tensorflow)
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


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_pages(path):
    run(path.read_text().replace("```\n", "\n"), path.name)


def test_typical_uses():
    runpy.run_path(str(ROOT / "tests" / "typical_uses.py"))
