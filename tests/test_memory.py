"""No byte outside the arrays is read or written."""

import subprocess
import sys
from pathlib import Path

import pytest

import bn_ext

GUARDED = Path(__file__).with_name("guarded.py")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect of anonymous pages")
@pytest.mark.parametrize("caches", ["0 0", "4096 4096"], ids=["real caches", "tiny caches"])
@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_guard_pages(isa, caches):
    pytest.importorskip("ml_dtypes")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(GUARDED), isa, *caches.split()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("calls\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect of anonymous pages")
def test_the_guards_are_there():
    program = f"""
import sys
sys.path.insert(0, {str(GUARDED.parent)!r})
import guarded
guarded.Region(1).memory[guarded.PAGE * 2]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode < 0  # killed by a signal
