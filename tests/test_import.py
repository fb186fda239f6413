"""Importing, whatever else is in the process."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import printed_by, strict

import bn_ext


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
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
    code = (
        "import sys, numpy; before = set(sys.modules); import bn_ext, bn_ext.specs\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    new = {name for name in strict(code).stdout.split() if not name.startswith("_cython_")}
    assert new <= {"bn_ext", "numpy", "cython_runtime"}


def test_import_leaves_the_environment_alone():
    code = "import os; old = dict(os.environ); import numpy, bn_ext; print(old == dict(os.environ))"
    assert strict(code).stdout.split() == ["True"]
