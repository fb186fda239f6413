"""OpenMP's threads: if some cannot be started, a call goes on with those that can; forks."""

import pytest
from needs import needs_fork, needs_libgomp, needs_linux, needs_openmp
from processes import run

from bn_ext import _core

pytestmark = [needs_openmp, needs_linux]


@pytest.mark.parametrize(("limit", "used"), [(5, [5, 5, 2]), (1, [1, 1, 1]), (0, [1, 1, 1])])
def test_a_limit_on_threads(limit, used):
    """Besides the caller's, a call uses all but one of the threads that can be started."""
    assert run("pool", "limited", limit, 8, 8, 2) == used


def test_what_a_pool_has_is_not_asked_for_again():
    """A second call uses the first one's threads: no others could be started."""
    assert run("pool", "grown", 4, 0, 4, 6) == [4, 4]


def test_a_limit_on_address_space():
    assert all(1 <= used < 32 for used in run("pool", "little_address_space"))


@pytest.mark.parametrize(
    ("variable", "size", "threads"),
    [
        ("OMP_STACKSIZE", "4000g", 1),
        ("OMP_STACKSIZE", " 4000 G", 1),
        ("OMP_STACKSIZE", "9" * 19, 1),
        ("GOMP_STACKSIZE", "4000000M", 1),
        ("OMP_STACKSIZE", "16", 1),  # KiB; people mean megabytes
        ("OMP_STACKSIZE", "17K", 1),
        ("GOMP_STACKSIZE", "16", 1),
        ("OMP_STACKSIZE", "64", 4),
        ("OMP_STACKSIZE", "1M", 4),
        ("OMP_STACKSIZE", "much", 4),
        ("OMP_STACKSIZE", "0", 4),
        ("KMP_STACKSIZE", "64", 1),  # bytes, not KiB
        ("KMP_STACKSIZE", "65536", 4),
        ("KMP_STACKSIZE", "64k", 4),
        ("KMP_STACKSIZE", "4000g", 1),
    ],
)
def test_the_stack_that_threads_shall_have(variable, size, threads):
    """Threads with less than 64 KiB might not have enough, so they are not asked for."""
    assert run("pool", "limited", 100, 4, **{variable: size}) == [threads]


def test_all_calls_on_the_smallest_stack_in_use():
    pytest.importorskip("ml_dtypes")
    assert run("pool", "every_function", BN_EXT_ISA=None, OMP_STACKSIZE="64") == 4


def test_callers_that_start_together_under_a_limit():
    """Between a call's check for free threads and their start, no other call takes them."""
    for _ in range(4):
        assert all(1 <= used <= 4 for used in run("pool", "started_together", 4))


def test_a_call_that_fails_gives_back_its_share():
    """With results given, a call allocates only working memory, for which too little is left."""
    errors, threads = run("pool", "failed")
    assert errors == ["bn_ext: not enough memory for sums and coefficients"] * 3
    assert threads == min(_core.default_threads(), 34)  # all that the call is worth


@pytest.mark.parametrize("within", [False, True])
def test_regions_of_others_have_threads_of_their_own(within):
    """A call within a region uses no threads of the caller's pool, and the pool gets none of the
    region's. The runtime must not be asked for more threads than allowed: it would end the process.
    """
    found = run("pool", "within_and_without", within)
    assert found == ([4, 1, 4] if within else [2, 4, 2])


@needs_libgomp  # children have one thread with others
@needs_fork
@pytest.mark.parametrize("others", [False, True])
def test_a_child_of_a_process_that_made_no_call(others):
    """It starts threads, also if others had a pool. Its own children then have a team's parent."""
    assert run("pool", "without_a_call", others) == [True, True]


@needs_fork
@pytest.mark.parametrize("how", ["after a call", "after a thread's call", "within a region"])
def test_a_child_of_a_process_with_a_team(how):
    """It keeps to one thread, even if asked for more, and so do its children and threads."""
    found, together = run("pool", "with_a_team", how)
    assert all(found)
    assert together


@needs_libgomp  # LLVM's crashes there, in programs without bn_ext too
@needs_fork
@pytest.mark.parametrize("one", [False, True])
def test_a_thread_that_forks_and_ends_in_both(one):
    """The child lacks the pool's threads. Its own thread would wait for them when it ends."""
    assert run("pool", "thread_that_forks", one) == [True, True]


@needs_fork
def test_a_fork_while_other_threads_are_in_calls():
    right, threads = run("pool", "within_others_calls")
    assert all(right)
    assert threads == 4
