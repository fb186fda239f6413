"""Marks that skip a test where the machine or the build lacks what it needs."""

import os
import sys

import numpy as np
import pytest

from bn_ext import _core, _runtime

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

needs_openmp = pytest.mark.skipif(not _core.has_openmp(), reason="built without OpenMP")
needs_libgomp = pytest.mark.skipif(
    not any("libgomp" in path for path in _runtime._openmp_libraries()), reason="no libgomp"
)
needs_cpus = pytest.mark.skipif(CPUS < 2, reason="one CPU")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs fork, signals and limits")
#: np.longdouble is a dtype of its own, not float64 by another name.
LONG_DOUBLE = np.finfo(np.longdouble).nmant >= 63
needs_long_double = pytest.mark.skipif(
    not LONG_DOUBLE, reason="long double is no wider than double here"
)
