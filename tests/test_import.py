"""Importing, whatever else is in the process."""

import inspect
import itertools
import modulefinder
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import printed, printed_by, python, strict

import bn_ext


def test_import_next_to_a_library_with_such_a_name(tmp_path):
    library = Path(np._core._multiarray_umath.__file__)
    copy = os.path.join(os.fsencode(tmp_path), b"caf\xe9.so")
    shutil.copy(library, copy)
    code = (
        "import mmap\n"
        f"file = open({copy!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "import bn_ext; bn_ext.show_config()"
    )
    printed_by(code)


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?(\.dev\d+)?", bn_ext.__version__)


def test_import_needs_numpy_alone():
    """And of that, of Python and of itself, nothing for annotations or checks of kernels alone."""
    code = (
        "import sys, numpy; before = set(sys.modules); import bn_ext\n"
        "print(*{'array', 'copy', 'numpy.typing', 'signal', 'bn_ext.testing'}"
        " & (set(sys.modules) - before))\n"
        "import bn_ext.specs\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    of_types, new = strict(code).stdout.split("\n")[:2]
    assert of_types == ""
    names = {name for name in new.split() if not name.startswith("_cython_")}
    assert names <= {"bn_ext", "numpy", "cython_runtime"}


def test_import_while_others_change_the_environment():
    """They restore it, or set what bn_ext sets for OpenMP. Their last word is what stays."""
    code = """
import ctypes, os, sys, threading, unittest.mock
changes, going = {}, True
def others():
    while going:
        with unittest.mock.patch.dict(os.environ, changes):
            copies.append(dict(os.environ))
copies = []
thread = threading.Thread(target=others)
sys.setswitchinterval(1e-5)
thread.start()
try:
    import bn_ext
finally:
    going = False
    thread.join()
assert not any("GOMP_SPINCOUNT" in copy for copy in copies)
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
assert libc.getenv(b"GOMP_SPINCOUNT") is None
"""
    printed_by(code.replace("{}", '{"APP_MODE": "test"}'), GOMP_SPINCOUNT=None)
    code = """
import ctypes, importlib, os
from unittest import mock
load = importlib.import_module
def set_meanwhile(name):
    os.environ["GOMP_SPINCOUNT"] = "7"
    return load(name)
with mock.patch("importlib.import_module", set_meanwhile):
    import bn_ext
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(os.environ["GOMP_SPINCOUNT"], libc.getenv(b"GOMP_SPINCOUNT"))
"""
    assert printed_by(code, GOMP_SPINCOUNT=None, OMP_WAIT_POLICY=None).split() == ["7", "b'7'"]


def test_import_leaves_the_environment_alone():
    code = "import os; old = dict(os.environ); import numpy, bn_ext; print(old == dict(os.environ))"
    assert strict(code).stdout.split() == ["True"]


class Finder(modulefinder.ModuleFinder):
    """Follows imports as tools do that freeze programs, but only into bn_ext."""

    def __init__(self):
        super().__init__([str(Path(bn_ext.__file__).parent.parent)])
        self.others = set()

    def import_hook(self, name, caller=None, fromlist=None, level=-1):
        root = name.partition(".")[0]
        if level > 0 or root == "bn_ext":
            return super().import_hook(name, caller, fromlist, level)
        self.others.add(root)
        return None


def test_a_frozen_program_takes_what_it_uses(tmp_path):
    """Such tools read bytecode: imports that are never executed count too."""
    program = tmp_path / "program.py"
    program.write_text("import bn_ext")
    finder = Finder()
    finder.run_script(str(program))
    assert finder.others - set(sys.stdlib_module_names) == {"numpy"}
    code = (
        "import sys, bn_ext\n"
        "bn_ext.BatchNorm(2)([[1.0, 2.0], [3.0, 4.0]]); bn_ext.specs\n"
        "print(*(m for m in sys.modules if m.partition('.')[0] == 'bn_ext'))"
    )
    used = set(printed_by(code).split())
    assert "bn_ext.specs.ngraph" in used
    assert used <= finder.modules.keys()


BROKEN = {
    "old": "class Tensor: pass",
    "without its libraries": "raise OSError('libcudart.so.12: cannot open shared object file')",
    "absent": "raise ModuleNotFoundError(name=__name__)",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_optional_packages_do_not_matter_until_they_are_imported(tmp_path, text):
    for name in ("autograd", "dask", "torch"):
        (tmp_path / f"{name}.py").write_text(text)
    code = (
        "import inspect, pydoc, sys, unittest.mock, bn_ext\n"
        "pydoc.render_doc(bn_ext)\n"
        "print(dict(inspect.getmembers(bn_ext)).keys() == {*bn_ext.__all__})\n"
        "unittest.mock.create_autospec(bn_ext).batch_norm_training\n"
        "from bn_ext import *\n"
        "for name in 'autograd', 'dask', 'torch':\n"
        "    print(hasattr(bn_ext, name), name in dir(bn_ext), f'bn_ext.{name}' in sys.modules)\n"
        "    try: getattr(bn_ext, name)\n"
        "    except AttributeError as error: print(error)\n"
    )
    printed = printed_by(code, PYTHONPATH=str(tmp_path)).splitlines()
    wanted = ["True"]
    for name in ("autograd", "dask", "torch"):
        wanted += [
            "False False False",
            f"module 'bn_ext' has no attribute '{name}'; import bn_ext.{name}",
        ]
    assert printed == wanted


#: The command without its digests, which take long and open no file.
VERIFY = """
from bn_ext._cli import main, verify
verify.digests = lambda *_: verify.known()
assert main(["verify"]) == 0
"""


def test_every_file_is_opened_with_an_encoding(tmp_path):
    """Python can warn of open() without one: none at the import, and none in the commands."""
    modules = "bn_ext, bn_ext.specs, bn_ext.testing"
    printed(strict(f"import {modules}", PYTHONWARNDEFAULTENCODING="1"))
    (tmp_path / "mine.py").write_text("""
import functools, bn_ext
backward = functools.partial(bn_ext.batch_norm_backward, data_format="NXC")
""")
    for command in (
        ["info"],
        ["check", "mine.py:backward", "--quick", "--skip", "a"],  # which most names have
        ["bench", "--shapes", "2x3", "--seconds", "1e-9"],
    ):
        done = python(
            "-W", "error", "-m", "bn_ext", *command, cwd=tmp_path, PYTHONWARNDEFAULTENCODING="1"
        )
        assert "Warning" not in done.stdout + done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
    printed(strict(VERIFY, PYTHONWARNDEFAULTENCODING="1"))


def test_public_classes_are_of_the_public_module():
    """Named tuples, too. So pickles do not depend on where a class is defined."""
    public = {name: getattr(bn_ext, name) for name in bn_ext.__all__}
    classes = {name: kind for name, kind in public.items() if inspect.isclass(kind)}
    assert len(classes) == 7
    assert {name: kind.__module__ for name, kind in classes.items()} == dict.fromkeys(
        classes, "bn_ext"
    )
    src, vector = np.ones((4, 3)), np.ones(3)
    options = {"epsilon": 1.0}
    objects = [
        bn_ext.BatchNorm(3),
        bn_ext.Statistics(src),
        bn_ext.Statistics(src, exact=True),
        bn_ext.GradientSums(src, src, vector),
        bn_ext.batch_norm_training(src, **options),
        bn_ext.batch_norm_backward(src, src, vector, vector, **options),
        bn_ext.batch_norm_backward(
            src, src, vector, vector, relu=True, dst=src, diff_src_1=True, **options
        ),
        bn_ext.batch_norm_double_backward(src, src, vector, vector, vector, src, **options),
    ]
    assert {type(each) for each in objects} == {*classes.values()}
    for each, protocol in itertools.product(objects, range(2, pickle.HIGHEST_PROTOCOL + 1)):
        assert b"bn_ext._" not in pickle.dumps(each, protocol)
