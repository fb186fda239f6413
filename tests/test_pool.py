"""OpenMP's threads: a call goes on with those that can be started; late teams; forks."""

import shutil
import subprocess

import pytest
from needs import needs_cpus, needs_libgomp, needs_openmp
from processes import run
from tree import PROGRAMS, ROOT

from bn_ext import _core

pytestmark = needs_openmp


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    library = str(tmp_path_factory.mktemp("teams") / "teams.so")
    source = ROOT / "src_c"
    names = "threads/pool.c", "threads/openmp.c", "base/machine.c", "base/posix.c"
    parts = [source / name for name in names]
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fopenmp"]
    flags += ["-Wl,--wrap=pthread_create", "-Wl,--wrap=bn_seconds"]
    command = [compiler, *flags, f"-I{source}", PROGRAMS / "teams.c", *parts, "-o", library]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(
    ("limit", "used"), [(14, [8, 8, 2]), (7, [4, 4, 2]), (1, [1, 1, 1]), (0, [1, 1, 1])]
)
def test_a_limit_on_threads(limit, used):
    """Besides the caller's, a call uses at most half of the threads that can be started."""
    assert run("pool", "limited", limit, 8, 8, 2) == used


@pytest.mark.parametrize(
    ("environment", "arguments", "most"),
    [
        ({}, [8], 14),  # as many as shall be started, and as many as a reserve
        ({"OMP_DYNAMIC": "true"}, [8], 14),
        ({"OMP_THREAD_LIMIT": "1"}, [8], 0),
        ({"OMP_THREAD_LIMIT": "2"}, [8], 2),
        ({"OMP_MAX_ACTIVE_LEVELS": "0"}, [8], 0),
        ({}, [8, "within a region"], 0),
        ({}, [8, None, 3], 4),  # of which the last fails
        ({}, [8, None, 0], 1),
    ],
)
def test_threads_are_tried_once(teams, environment, arguments, most):
    """Also if the runtime then delivers fewer, or the system refuses some."""
    assert run("teams", "started", teams, *arguments, **environment) == most


def test_a_team_that_could_not_grow_tries_again_in_ten_seconds(teams):
    assert run("teams", "refused", teams) == [1, 1, 2]


def test_what_a_pool_has_is_not_asked_for_again():
    assert run("pool", "grown", 4, 0, 4, 6) == [4, 4]


def test_a_limit_on_address_space():
    assert all(1 <= used < 32 for used in run("pool", "little_address_space"))


@needs_libgomp
def test_all_calls_on_the_smallest_stack_in_use():
    pytest.importorskip("ml_dtypes")
    assert run("pool", "every_function", BN_EXT_ISA=None, OMP_STACKSIZE="40") == 4


def test_callers_that_start_together_under_a_limit():
    """Between a call's check for free threads and their start, no other call takes them."""
    for _ in range(4):
        assert all(1 <= used <= 4 for used in run("pool", "started_together", 4))


def test_a_call_that_fails_gives_back_its_share():
    """With results given, a call allocates only working memory, for which too little is left."""
    errors, threads = run("pool", "failed")
    assert errors == ["bn_ext: not enough memory for sums and coefficients"] * 3
    assert threads == min(_core.default_threads(), 34)  # all that the call is worth


def test_a_pool_that_has_shrunk_asks_again():
    assert run("pool", "shrunk") == [4, 2, 2]


def test_a_call_in_a_region_of_others_uses_one_thread():
    """It would have no threads of the caller's pool, but new ones. The pool stays as it was."""
    assert run("pool", "around_a_region") == [4, 1, 4]


@pytest.mark.parametrize(
    ("patience", "times", "learnt"),
    [
        # start, now, worked and came: two threads would have taken as long one after the other
        (4, (8, 10, 1, 2), (0, 4)),
        (16, (8, 10, 1.5, 2), (0, 8)),
        (4, (8, 10, 2, 1), (0, 4)),
        # late by 1/32 s and 1/64 s
        (4, (8, 8.0625, 0.03125, 1), (0.125, 8)),
        (32, (8, 8.03125, 0.015625, 1), (0.5, 64)),
        (64, (8, 8.03125, 0.0234375, 1), (0.5, 64)),
        # a process that was stopped, or a machine that slept
        (4, (8, 1008, 1, 2), (1, 8)),
    ],
)
def test_what_a_thread_learns_of_a_team(teams, patience, times, learnt):
    assert run("teams", "learnt", teams, patience, *times) == [*learnt]


@needs_cpus
def test_calls_run_alone_after_a_late_team(teams):
    """For a second at most, unless they name a number of threads."""
    before, alone, two, later = run("teams", "after_a_late_team", teams)
    assert before > 1
    assert (alone, two) == (1, 2)
    assert later == before


def test_time_does_not_go_back(teams):
    """It is not the wall clock's, which NTP or a resumed machine sets."""
    before, measured, after = run("teams", "clocks", teams)
    assert before <= measured <= after


@needs_libgomp  # children have one thread with others
@pytest.mark.parametrize("others", [False, True])
def test_a_child_of_a_process_that_made_no_call(others):
    """It starts threads, also if others had a pool. Its own children then have a team's parent."""
    assert run("pool", "without_a_call", others) == [True, True]


@pytest.mark.parametrize("start", ["after a call", "after a thread's call", "within a region"])
def test_a_child_of_a_process_with_a_team(start):
    """It keeps to one thread, even if asked for more, and so do its children and threads."""
    results, together = run("pool", "with_a_team", start)
    assert all(results)
    assert together


@needs_libgomp  # LLVM's crashes there, in programs without bn_ext too
@pytest.mark.parametrize("solo", [False, True])
def test_a_thread_that_forks_and_ends_in_both(solo):
    """The child lacks the pool's threads. Its own thread would wait for them when it ends."""
    assert run("pool", "thread_that_forks", solo) == [True, True]


def test_a_fork_while_other_threads_are_in_calls():
    right, threads = run("pool", "within_others_calls")
    assert all(right)
    assert threads == 4
