"""Importing, whatever else is in the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bn_ext import _core, _runtime


def test_the_name_of_a_mapped_file_that_is_no_utf_8(tmp_path):
    """Linux's file names are bytes; one such library must not keep ours from loading."""
    maps = tmp_path / "maps"
    maps.write_bytes(
        b"7f00-7f01 r-xp 0 00:00 1 /somewhere/caf\xe9/libgomp.so.1\n7f01-7f02 r--p 0 00:00 0\n"
    )
    (path,) = _runtime._openmp_libraries(str(maps))
    assert path.encode() == rb"/somewhere/caf\xe9/libgomp.so.1"  # can be printed


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


LIBOMP = sorted(
    [*Path("/usr/lib").glob("llvm-*/lib/libomp.so*"), *Path(sys.prefix).glob("lib/libiomp5.so")]
)


@pytest.mark.skipif(not _core._has_openmp(), reason="built without OpenMP")
class TestWhoDecidesHowThreadsWait:
    def test_the_runtime_that_serves_us(self):
        name = _runtime._library_at(_core._openmp_address())
        assert any(path.endswith(name) for path in _runtime._openmp_libraries())
        assert _runtime._library_at(0) == ""

    def test_another_runtime(self, monkeypatch):
        for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(_runtime, "_library_at", lambda address: "libiomp5.so")
        assert _runtime._wait_set_by() == "the default of libiomp5.so; KMP_BLOCKTIME changes it"
        monkeypatch.setenv("KMP_BLOCKTIME", "0")
        assert _runtime._wait_set_by() == "KMP_BLOCKTIME"
        monkeypatch.setattr(_runtime, "_library_at", lambda address: "libgomp-24e2ab19.so.1.0.0")
        assert _runtime._wait_set_by() == _runtime._WAIT_SET_BY

    @pytest.mark.skipif(not LIBOMP, reason="no libomp here")
    def test_libomp_preloaded(self):
        code = (
            "import bn_ext; c = bn_ext.show_config(mode='dicts'); print(c['idle_threads_set_by'])"
        )
        env = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME")}
        # Behind a sanitizer's runtime, which must come first.
        env["LD_PRELOAD"] = f"{env.get('LD_PRELOAD', '')} {LIBOMP[0]}".strip()
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True
        )
        assert "KMP_BLOCKTIME" in done.stdout, done.stderr
