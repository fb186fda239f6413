"""bn_ext's own threads, without OpenMP: who takes part, forks, limits, signals.

The system decides which threads come in time, so no test expects all of them in a single call.
`.ci/run workers` makes such a build and runs these tests.
"""

import threading
import time

import pytest
from cases import LARGE, Problem, all_bits, threads_used
from needs import CPUS, needs_cpus, needs_fork, needs_linux
from processes import run

import bn_ext
from bn_ext import _core

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(_core._has_openmp(), reason="built with OpenMP"),
]


@pytest.mark.parametrize("k", [2, 3])
def test_others_take_part(rng, k):
    p = Problem(rng, LARGE, "NXC")
    found = {threads_used(p, num_threads=k) for _ in range(50)}
    assert max(found) == k
    assert min(found) >= 1


def test_bits_whoever_comes(rng):
    """Workers may be awake, asleep, or arrive just as the caller finishes; callers may end."""
    p = Problem(rng, (3000, 40), "NXC")
    right = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=1))

    def call(k):
        assert all_bits(p.run(bn_ext.batch_norm_backward, num_threads=2 + k % 5)) == right
        done.append(k)

    done = []
    for k in range(300):
        if k % 10 == 0:
            time.sleep(0.01)
        if k % 15 == 0:
            caller = threading.Thread(target=call, args=(k,))
            caller.start()
            caller.join()
        else:
            call(k)
    assert len(done) == 300


@needs_linux
def test_callers_share_the_workers():
    """Six callers that want four threads each share three workers."""
    before, most = run("workers", "shared")
    assert most <= before + 6


@needs_fork
def test_a_forked_child_has_workers_of_its_own():
    assert run("workers", "forked") == [2, True, 2]


@needs_cpus
@needs_fork
def test_a_child_does_not_count_its_parents_calls():
    """Concurrent calls share the CPUs; calls that a fork cut off must not be counted."""
    assert run("workers", "forked_within_calls", OMP_NUM_THREADS="2")


@needs_linux
@pytest.mark.parametrize("limit", [2, 1, 0])
def test_threads_that_cannot_be_started(limit):
    """Threads that can be started are used, and the caller does the rest."""
    assert max(run("workers", "limited", limit)) <= limit + 1


@needs_linux
def test_signals_are_for_the_program():
    """SIGINT, bit 1, is blocked in every worker."""
    blocked = run("workers", "blocked")
    assert len(blocked) == 2
    assert all(mask & 2 for mask in blocked)


@pytest.mark.parametrize(
    ("text", "threads"), [("1,4", 1), ("1000", CPUS), ("many", CPUS), ("9" * 20, CPUS)]
)
def test_the_environments_limit(text, threads):
    assert run("workers", "by_default", OMP_NUM_THREADS=text) == threads
