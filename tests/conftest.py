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


#: The files whose fast tests, with their first parameters, are the smoke test: a file or more of
#: each promise about results in docs/checks.md; `bn-ext verify` has the digests.
SMOKE = {
    f"test_{promise}.py"
    for promise in (
        "same_bits", "fp_mode", "walks", "layouts", "numerics", "formulas", "backward",
        "forward", "double_backward", "gates", "coefficients", "rounding", "exact", "sums",
        "machines", "dask", "edges", "specs", "refused", "sharing", "layer", "hostile", "threads",
        "pool",
    )
}  # fmt: skip


#: The files whose fast tests no level of instructions can change: limits, messages, files; what
#: specifications call is tested elsewhere. verify and oracle run each level themselves.
ANY_LEVEL = {
    f"test_{subject}.py"
    for subject in (
        "judge", "testing", "refused", "arguments", "specs", "specs_onednn", "specs_tensorflow",
        "dry_run", "hostile", "verify", "oracle",
    )
}  # fmt: skip

#: Slow tests, of the judge with kernels in NumPy: `-m quick` leaves them to the whole suite.
NOT_QUICK = {
    "test_a_straightforward_kernel_in_long_doubles_passes",
    "test_a_relu_and_an_addition",
    "test_subnormal_numbers_that_count_as_0_are_weak_arithmetic",
    "test_expected_values_are_those_of_fractions",
    "test_files",
}


@pytest.hookimpl(tryfirst=True)  # before -m selects by markers
def pytest_collection_modifyitems(config, items):
    seen = set()
    for item in items:
        if not item.get_closest_marker("quick") or item.get_closest_marker("slow"):
            continue
        if item.path.name in SMOKE and item.function not in seen:
            seen.add(item.function)
            item.add_marker("smoke")
        # In any run, the fixture isa has every level.
        if item.path.name not in ANY_LEVEL and "isa" not in item.fixturenames:
            item.add_marker("level")
    left_out = set()
    if not config.getoption("--slow"):
        left_out |= {item for item in items if item.get_closest_marker("slow")}
    if config.option.markexpr == "quick":
        left_out |= beyond_pairs(items)
        left_out |= {item for item in items if item.originalname in NOT_QUICK}
    items[:], out = (
        [item for item in items if (item in left_out) == which] for which in (False, True)
    )
    config.hook.pytest_deselected(items=out)


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
    isa, caches = bn_ext.get_isa(), _core.cache_sizes()
    yield
    _core.use_isa(isa)
    _core.set_cache_sizes(*caches)


#: A forced level is tested alone; without one, the suite tests all levels.
LEVELS = [bn_ext.get_isa()] if os.environ.get("BN_EXT_ISA") else bn_ext.available_isas()


@pytest.fixture(params=LEVELS)
def isa(request):
    """Every instruction-set level that this CPU has, or the one that is forced."""
    _core.use_isa(request.param)
    return request.param


@pytest.fixture
def ran():
    """Counts the cases of other projects' suites by (suite, dtype): a test that ran none fails."""
    counts = Counter()
    yield counts
    assert counts, "ran no case"
