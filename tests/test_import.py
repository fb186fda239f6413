"""Importing, whatever else is in the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bn_ext import _runtime

pytestmark = pytest.mark.quick


def test_the_name_of_a_mapped_file_that_is_no_utf_8(tmp_path):
    """Linux's file names are bytes; one such library must not keep ours from loading."""
    maps = tmp_path / "maps"
    maps.write_bytes(
        b"7f00-7f01 r-xp 0 00:00 1 /somewhere/caf\xe9/libgomp.so.1\n7f01-7f02 r--p 0 00:00 0\n"
    )
    assert len(_runtime._openmp_libraries(str(maps))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_import_next_to_a_library_with_such_a_name(tmp_path):
    library = Path(np._core._multiarray_umath.__file__)
    copy = os.path.join(os.fsencode(tmp_path), b"caf\xe9.so")
    shutil.copy(library, copy)
    code = (
        "import mmap, sys\n"
        f"file = open({copy!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "import bn_ext; bn_ext.show_config()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
