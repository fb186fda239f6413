"""What editors and type checkers are told agrees with the run time.

.ci/run lint gives typical_uses.py to mypy and pyright, and _core.pyi to stubtest.
"""

import importlib
import inspect
import pydoc
import re
import runpy

import pytest
from processes import printed_by
from tree import PROGRAMS, ROOT

import bn_ext

PACKAGE = ROOT / "bn_ext"
#: Imports that need more than NumPy, and what they need.
ADAPTERS = {"autograd": "autograd", "dask": "dask.array", "torch": "torch"}


def test_specs_needs_no_import_of_its_own():
    code = (
        "import sys, bn_ext\n"
        "print('specs' in dir(bn_ext), 'bn_ext.specs' in sys.modules)\n"
        "print(bn_ext.specs.ngraph.batch_norm_training_backprop.__name__)\n"
        "print(bn_ext.specs is sys.modules['bn_ext.specs'], hasattr(bn_ext, 'spec'))\n"
    )
    wanted = ["True False", "batch_norm_training_backprop", "True False"]
    assert printed_by(code).splitlines() == wanted


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


PUBLIC = ["bn_ext", *(f"bn_ext.{name}" for name in [*ADAPTERS, "specs", "testing"])]
PUBLIC += [f"bn_ext.specs.{name}" for name in bn_ext.specs.__all__]


@pytest.mark.parametrize("name", PUBLIC)
def test_modules_list_public_names_alone(name):
    adapter = name.rpartition(".")[2]
    if adapter in ADAPTERS:
        pytest.importorskip(ADAPTERS[adapter])
    module = importlib.import_module(name)
    also = {*ADAPTERS, "testing"} if name == "bn_ext" else set()
    assert set(module.__all__) <= set(dir(module)) <= set(module.__all__) | also


@pytest.mark.parametrize("name", PUBLIC)
def test_the_source_of_what_is_public_is_found(name):
    """By inspect, and so by editors and IPython's `??`."""
    adapter = name.rpartition(".")[2]
    if adapter in ADAPTERS:
        pytest.importorskip(ADAPTERS[adapter])
    module = importlib.import_module(name)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert re.search(rf"^(class|def) {public}\b", inspect.getsource(value), re.MULTILINE)


def test_help_has_names_of_types():
    text = pydoc.render_doc(bn_ext.BatchNorm, renderer=pydoc.plaintext)
    assert "freeze(self, mode: 'bool' = True) -> 'Self'" in text
    assert "state_dict(self) -> 'dict[str, NDArray[Any]]'" in text


def test_typical_uses_run_and_wrong_ones_are_refused():
    wrong = runpy.run_path(str(PROGRAMS / "typical_uses.py"))["WRONG"]
    assert len(wrong) > 20
    for number, call in enumerate(wrong):
        print(f"WRONG[{number}]")
        with pytest.raises((TypeError, ValueError)):
            call()
