"""Fixtures for every test, and what is restored after each."""

import numpy as np
import pytest

import bn_ext
from bn_ext import _core


@pytest.fixture
def rng(request):
    """A generator whose seed depends only on the test and is printed if it fails."""
    seed = list(request.node.nodeid.rpartition("/")[2].encode())
    print(f"seed: {request.node.nodeid.rpartition('/')[2]!r}")
    return np.random.default_rng(seed)


@pytest.fixture
def p(rng):
    """A small problem."""
    from cases import Problem  # needs ml_dtypes, without which other tests run

    return Problem(rng, (6, 4, 5), "NXC")


@pytest.fixture(autouse=True)
def _same_machine_afterwards():
    isa = bn_ext.get_isa()
    yield
    _core._use_isa(isa)
    _core._set_cache_sizes(0, 0)


@pytest.fixture(params=bn_ext.available_isas())
def isa(request):
    """Every instruction-set level that this CPU has."""
    _core._use_isa(request.param)
    return request.param
