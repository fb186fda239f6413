"""No byte outside the arrays is read or written."""

import os
import shutil
import subprocess
import sysconfig

import numpy as np
import pytest
from processes import python, python_code
from tree import PROGRAMS

import bn_ext

BEST = bn_ext.get_isa()
#: Levels and cache sizes, but for the quick ones.
OTHERS = [(BEST, "4096 4096"), *((isa, "0 0") for isa in bn_ext.available_isas() if isa != BEST)]
SLOW = [pytest.param(*machine, marks=pytest.mark.slow) for machine in OTHERS]


@pytest.mark.parametrize(("isa", "caches"), [(BEST, "0 0"), *SLOW])
def test_guard_pages(isa, caches):
    pytest.importorskip("ml_dtypes")
    done = python("-X", "faulthandler", PROGRAMS / "guarded.py", isa, *caches.split(), timeout=None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("calls\n")


def test_the_guards_are_there():
    program = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import guarded
guarded.np.frombuffer(guarded.Region(1).memory, "u1")[guarded.PAGE * 2]
"""
    status = python_code(program).returncode
    assert status == 0xC0000005 if os.name == "nt" else status < 0  # killed by a signal


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="free-threaded Python does not support PYTHONMALLOC=malloc",
)
def test_every_allocation_may_fail(tmp_path):
    pytest.importorskip("ml_dtypes")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library, source = str(tmp_path / "fail_malloc.so"), str(PROGRAMS / "fail_malloc.c")
    flags = ["-O1", "-shared", "-fPIC"]
    if subprocess.run([compiler, *flags, source, "-o", library], capture_output=True).returncode:
        pytest.skip("no glibc to build against")
    done = python(
        PROGRAMS / "no_memory.py", timeout=None, PYTHONMALLOC="malloc", LD_PRELOAD=library
    )
    assert done.returncode == 0, done.stderr
    assert "allocations failed" in done.stdout


@pytest.mark.huge
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_more_than_2_to_the_31_elements(data_format):
    """Two tensors of 4 GB: offsets beyond 32 bits, in walks over rows and over runs."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    n, channels = 2**31 // 64 + 5, 64
    shape = (n, channels) if data_format == "NXC" else (1, channels, n)
    src = np.ones(shape, ml_dtypes.bfloat16)
    diff_dst = np.full(shape, 0.5, ml_dtypes.bfloat16)
    positions = diff_dst if data_format == "NXC" else diff_dst[0].T
    positions[-1] = 1
    ones = np.ones(channels, np.float32)
    arguments = src, diff_dst, 0 * ones, ones, 2 * ones
    options = {"data_format": data_format, "is_training": False, "out": (diff_dst, None, None)}
    results = bn_ext.batch_norm_backward(*arguments, epsilon=0.0, **options)
    assert (results.diff_beta == np.float32(0.5 * n + 0.5)).all()
    assert (results.diff_gamma == np.float32(0.5 * n + 0.5)).all()
    assert (positions[-1].astype(np.float32) == 2).all()
    assert (positions[:-1:1009].astype(np.float32) == 1).all()
