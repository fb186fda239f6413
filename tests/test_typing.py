"""What editors and type checkers are told agrees with the run time.

.ci/lint gives typical_uses.py to mypy and pyright, and _core.pyi to stubtest.
"""

import importlib
import inspect
import operator
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from processes import printed_by
from tree import ROOT, TESTS

import bn_ext

PACKAGE = ROOT / "bn_ext"
#: Imports that need more than NumPy, and what they need.
ADAPTERS = {"autograd": "autograd", "dask": "dask.array", "torch": "torch"}


@pytest.mark.skipif(not PACKAGE.exists(), reason="needs the sources")
class TestJedi:
    """What an editor sees if it cannot read the compiled module."""

    @pytest.fixture
    def script(self, tmp_path):
        jedi = pytest.importorskip("jedi")
        ignored = shutil.ignore_patterns("_core.*.*", "*.c", "*.pyx", "*.pxi")
        shutil.copytree(PACKAGE, tmp_path / "bn_ext", ignore=ignored)
        numpys = str(Path(np.__file__).parent.parent)
        project = jedi.Project(tmp_path, sys_path=[str(tmp_path), numpys])
        return lambda code: jedi.Script(code, project=project)

    def test_completions(self, script):
        found = {name.name for name in script("import bn_ext\nbn_ext.").complete()}
        assert set(bn_ext.__all__) <= found
        code = "import bn_ext\nbn_ext.batch_norm_backward(a, a, v, v, epsilon=0)."
        found = {name.name for name in script(code).complete()}
        assert set(bn_ext.BatchNormGradients._fields) <= found

    @pytest.mark.parametrize(
        "name", ["batch_norm_backward", "batch_norm_training", "Statistics", "BatchNorm",
                 "specs.ngraph.batch_norm_inference"]
    )  # fmt: skip
    def test_signatures_and_docstrings(self, script, name):
        function = operator.attrgetter(name)(bn_ext)
        call = f"import bn_ext.specs.ngraph\nbn_ext.{name}"
        signatures = script(f"{call}(").get_signatures()
        assert signatures
        for signature in signatures:
            names = [p.name for p in signature.params if p.name not in ("*", "other")]
            assert names == list(inspect.signature(function).parameters)
        shown = [*signatures, *script(call).goto(follow_imports=True)]
        assert any(inspect.getdoc(function) in each.docstring() for each in shown)


def test_specs_needs_no_import_of_its_own():
    """It is imported when it is first used."""
    code = (
        "import sys, bn_ext\n"
        "print('specs' in dir(bn_ext), 'bn_ext.specs' in sys.modules)\n"
        "print(bn_ext.specs.ngraph.batch_norm_training_backprop.__name__)\n"
        "print(bn_ext.specs is sys.modules['bn_ext.specs'], hasattr(bn_ext, 'spec'))\n"
    )
    assert printed_by(code).splitlines() == [
        "True False", "batch_norm_training_backprop", "True False",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_without_their_packages(name):
    """An error says what is missing. test_import.py lists bn_ext's members."""
    code = (
        "import sys\n"
        f"sys.modules['{name}'] = sys.modules['{ADAPTERS[name]}'] = None\n"
        f"try: import bn_ext.{name}\n"
        "except ImportError as error: print(error)\n"
    )
    error = printed_by(code)
    assert re.match(rf"bn_ext\.{name}: expected {name}, got ", error, re.IGNORECASE)
    assert "; python -m pip install " in error


PUBLIC = ["bn_ext", *(f"bn_ext.{name}" for name in ADAPTERS), "bn_ext.specs",
          *(f"bn_ext.specs.{name}" for name in bn_ext.specs.__all__)]  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_modules_list_public_names_alone(name):
    adapter = name.rpartition(".")[2]
    if adapter in ADAPTERS:
        pytest.importorskip(ADAPTERS[adapter])
    module = importlib.import_module(name)
    also = {*ADAPTERS} if name == "bn_ext" else set()
    assert set(module.__all__) <= set(dir(module)) <= set(module.__all__) | also


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'bn_ext' has no attribute 'spec'$"):
        bn_ext.spec  # noqa: B018


def test_typical_uses_run_and_wrong_ones_are_refused():
    """The functions refuse what type checkers must refuse in typical_uses.py."""
    wrong = runpy.run_path(str(TESTS / "typical_uses.py"))["WRONG"]
    assert len(wrong) > 20
    for number, call in enumerate(wrong):
        print(f"WRONG[{number}]")
        with pytest.raises((TypeError, ValueError)):
            call()
