"""The tests run against the installed package: the source folder has no compiled core."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not list((ROOT / "bn_ext").glob("_core.*.so")):
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

import numpy as np  # noqa: E402
import pytest  # noqa: E402

import bn_ext  # noqa: E402
from bn_ext import _core  # noqa: E402


@pytest.fixture
def rng(request):
    """A generator whose seed hangs on the test alone, and is printed if it fails."""
    seed = list(request.node.nodeid.rpartition("/")[2].encode())
    print(f"seed: {request.node.nodeid.rpartition('/')[2]!r}")
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _same_isa_afterwards():
    isa = bn_ext.get_isa()
    yield
    _core._use_isa(isa)


@pytest.fixture(params=bn_ext.available_isas())
def isa(request):
    """Every instruction-set level that this CPU has."""
    _core._use_isa(request.param)
    return request.param
