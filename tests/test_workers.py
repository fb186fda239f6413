"""bn_ext's own threads, without OpenMP: who takes part, forks, limits, signals, ended callers.

The system decides which threads come in time, so no test expects all of them in a single call.
`.ci/workers` makes such a build and runs these tests.
"""

import threading
import time

import pytest
from cases import LARGE, Problem, all_bits, threads_used
from needs import CPUS, needs_cpus, needs_fork, needs_linux
from processes import CALL, in_new_process
from test_pool import threads_used as threads_of_calls

import bn_ext
from bn_ext import _core

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(_core._has_openmp(), reason="built with OpenMP"),
]

#: The most threads that took part in one of many calls.
MOST = (
    "\ndef most(k, calls=50):\n    return max(call(40_000, num_threads=k) for _ in range(calls))\n"
)


@pytest.mark.parametrize("k", [2, 3])
def test_others_take_part(rng, k):
    p = Problem(rng, LARGE, "NXC")
    found = {threads_used(p, num_threads=k) for _ in range(50)}
    assert max(found) == k
    assert min(found) >= 1


def test_bits_whoever_comes(rng):
    """Workers may be awake, asleep, or arrive just as the caller finishes."""
    p = Problem(rng, (3000, 40), "NXC")
    right = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=1))
    for k in range(300):
        if k % 10 == 0:
            time.sleep(0.01)
        assert all_bits(p.run(bn_ext.batch_norm_backward, num_threads=2 + k % 5)) == right


@needs_linux
def test_callers_share_the_workers():
    """Six callers that want four threads each share three workers."""
    code = """
import threading
call(40_000, num_threads=4)
before, most = threads(), 0
def work():
    global most
    for _ in range(30):
        call(40_000, num_threads=4)
        most = max(most, threads())
callers = [threading.Thread(target=work) for _ in range(6)]
for caller in callers: caller.start()
for caller in callers: caller.join()
print(before, most)
"""
    before, most = map(int, in_new_process(CALL + code, OPENBLAS_NUM_THREADS="1"))
    assert most <= before + 6


@needs_fork
def test_a_forked_child_has_workers_of_its_own():
    code = """
parent = most(2)
child = os.fork()
if child == 0:
    print(parent, most(2), _core._forked(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(most(2))
"""
    parent, child, forked, after = in_new_process(CALL + MOST + code)
    assert (parent, child, forked, after) == ("2", "2", "True", "2")


@needs_cpus
@needs_fork
def test_a_child_does_not_count_its_parents_calls():
    """Concurrent calls share the CPUs; calls that a fork cut off must not be counted."""
    code = """
import threading, warnings
warnings.simplefilter("ignore")
stop = threading.Event()
def work():
    while not stop.is_set():
        call(100_000, num_threads=2)
callers = [threading.Thread(target=work) for _ in range(4)]
for caller in callers: caller.start()
child = os.fork()
if child == 0:
    print(max(call(40_000) for _ in range(50)), flush=True)
    os._exit(0)
os.waitpid(child, 0)
stop.set()
for caller in callers: caller.join()
"""
    assert in_new_process(CALL + code, OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="1") == ["2"]


@needs_linux
def test_no_more_wake_up_than_are_wanted():
    """Sixteen workers sleep, and calls want one. The test counts how often workers sleep again."""
    code = """
import time
def sleeps():
    found = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/status") as status:
                found += [int(line.split()[1]) for line in status if line.startswith("voluntary")]
    return found
call(40_000, num_threads=17)
time.sleep(0.1)
before = sleeps()
for _ in range(50):
    call(1_000, num_threads=2)
    time.sleep(0.005)
print(len(before), sum(sleeps()) - sum(before))
"""
    workers, slept = map(int, in_new_process(CALL + code, OPENBLAS_NUM_THREADS="1"))
    assert workers == 16
    assert slept < 50 * workers / 2


@needs_linux
def test_threads_that_cannot_be_started():
    """Threads that can be started are used, and the caller does the rest."""
    code = "allow({})\nfor k in (8, 8, 2): print(right, *call(k))"
    for more in (2, 1, 0):
        assert max(threads_of_calls(code.format(more))) <= more + 1


@needs_linux
def test_the_systems_stack_is_too_small():
    """Workers have stacks of their own size, whatever size new threads get by default."""
    code = """
import ctypes
libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
libc.pthread_attr_init(attributes)
libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(16 << 10))
assert libc.pthread_setattr_default_np(attributes) == 0
print(most(2))
"""
    assert in_new_process(CALL + MOST + code) == ["2"]


@needs_linux
def test_signals_are_for_the_program():
    """SIGINT, bit 1, is blocked in every worker."""
    code = """
call(40_000, num_threads=3)
for name in os.listdir("/proc/self/task"):
    if int(name) != os.getpid():
        lines = open(f"/proc/self/task/{name}/status").read().splitlines()
        print(next(line.split()[1] for line in lines if line.startswith("SigBlk")))
"""
    blocked = in_new_process(CALL + code, OPENBLAS_NUM_THREADS="1")
    assert len(blocked) == 2
    assert all(int(mask, 16) & 2 for mask in blocked)


def test_a_thread_that_called_may_end(rng):
    p = Problem(rng, (3000, 40), "NXC")
    right = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=1))
    for _ in range(20):
        found = []
        caller = threading.Thread(
            target=lambda found=found: found.append(
                all_bits(p.run(bn_ext.batch_norm_backward, num_threads=3))
            )
        )
        caller.start()
        caller.join()
        assert found == [right]


class TestLimits:
    def test_of_the_environment(self):
        code = "print(_core._default_threads())"
        assert in_new_process(code, OMP_NUM_THREADS="1,4")[0] == "1"
        assert in_new_process(code, OMP_NUM_THREADS="1000")[0] == str(CPUS)
        assert in_new_process(code, OMP_NUM_THREADS="many")[0] == str(CPUS)
        assert in_new_process(code, OMP_NUM_THREADS="9" * 20)[0] == str(CPUS)
