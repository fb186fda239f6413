"""The option --slow, fixtures, and a reset of machine settings after each test."""

import itertools
import os
import signal
from collections import Counter, defaultdict

import pytest

# On a busy machine, OpenBLAS's threads make a product take 20 times as long. NumPy reads this when
# it is imported, as do the processes that tests start.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

import bn_ext
from bn_ext import _core


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")


def pytest_configure():
    # What a shell runs in the background ignores Ctrl-C; some tests, and what they start, must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m selects by markers
def pytest_collection_modifyitems(config, items):
    """Mark what `-m quick`, `-m level` and `-m smoke` run, from the markers that tests have."""
    slow = {item for item in items if item.get_closest_marker("slow")}
    fast = [item for item in items if item.get_closest_marker("fast") and item not in slow]
    fast = [item for item in fast if not item.get_closest_marker("whole")]
    beyond, functions = beyond_pairs(fast), set()
    for item in fast:
        if item in beyond:
            continue
        item.add_marker("quick")
        # In any run, the fixture isa has every level.
        if not item.get_closest_marker("any_level") and "isa" not in item.fixturenames:
            item.add_marker("level")
        if item.get_closest_marker("results") and item.function not in functions:
            functions.add(item.function)
            item.add_marker("smoke")
    if not config.getoption("--slow"):
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=[*slow])


def beyond_pairs(items):
    """The tests without which each two values of a test's parameters still meet: what depends on
    three values at once, the whole suite finds.
    """
    by_function = defaultdict(list)
    for item in items:
        if len(getattr(getattr(item, "callspec", None), "params", ())) > 2:
            by_function[item.nodeid.partition("[")[0]].append(item)
    beyond = set()
    for tests in by_function.values():
        pairs = {}
        for test in tests:
            values = sorted((name, id(value)) for name, value in test.callspec.params.items())
            pairs[test] = {*itertools.combinations(values, 2)}
        missing = set().union(*pairs.values())
        while missing:
            missing -= pairs.pop(max(pairs, key=lambda test: len(pairs[test] & missing)))
        beyond |= pairs.keys()
    return beyond


@pytest.fixture
def rng(request):
    """A generator seeded by the test's name, which is printed if the test fails."""
    seed = list(request.node.nodeid.rpartition("/")[2].encode())
    print(f"seed: {request.node.nodeid.rpartition('/')[2]!r}")
    return np.random.default_rng(seed)


@pytest.fixture
def p(rng):
    """A small problem with arguments for every function: 24 elements in each of 5 channels."""
    from members import problem  # here, because some tests run without ml_dtypes

    return problem(rng, (6, 4, 5), "NXC")


@pytest.fixture(autouse=True)
def _same_machine_afterwards():
    isa, caches, far = bn_ext.get_isa(), _core.cache_sizes(), _core.last_level_is_far()
    yield
    _core.use_isa(isa)
    _core.set_cache_sizes(*caches)
    _core.set_last_level_far(far)


#: A forced level is tested alone; without one, the suite tests all levels.
LEVELS = [bn_ext.get_isa()] if os.environ.get("BN_EXT_ISA") else bn_ext.available_isas()


@pytest.fixture(params=LEVELS)
def isa(request):
    """Every instruction-set level that this CPU has, or the one that is forced."""
    _core.use_isa(request.param)
    assert bn_ext.get_isa() == request.param
    return request.param


@pytest.fixture
def ran():
    """Counts the cases of other projects' suites by (suite, dtype): a test that ran none fails."""
    counts = Counter()
    yield counts
    assert counts, "ran no case"
