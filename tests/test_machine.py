"""The machine: caches, CPUs, forks."""

import os
import re
from pathlib import Path

import pytest
from cases import LARGE, Problem, threads_used
from needs import needs_fork, needs_linux
from processes import CALL, in_new_process

from bn_ext import _core, _runtime

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@pytest.mark.skipif(not CACHES.is_dir(), reason="reads Linux's /sys")
@pytest.mark.parametrize(("k", "level"), [(0, 2), (1, 3)])
def test_cache_sizes_are_those_of_the_system(k, level):
    path = CACHES / f"index{level}" / "size"
    if not path.is_file():
        pytest.skip(f"no {path}")
    number, unit = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip()).groups()
    size = int(number) * {"": 1, "K": 1 << 10, "M": 1 << 20}[unit]
    # Virtual machines share the last-level cache, so at most 16 MiB per CPU is counted.
    most = size if level == 2 else max(_core._cache_sizes()[0], os.cpu_count() * (16 << 20))
    assert _core._cache_sizes()[k] == min(size, most)


@needs_linux
def test_one_cpu_alone():
    printed = in_new_process(
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
        + CALL
        + "\nprint(call(40000), call(40000, num_threads=8))"
    )
    assert printed[0] == "1"
    assert printed[1] == "8" or not _core._has_openmp()


@needs_fork
def test_fork_while_another_thread_is_inside_a_call():
    """The child of a team has no OpenMP threads to use; bn_ext's own workers start anew."""
    code = """
import threading, warnings
warnings.simplefilter("ignore")  # CPython warns of forking with threads: that is the point
stop = threading.Event()
def work():
    while not stop.is_set():
        call(40000, num_threads=4)
callers = [threading.Thread(target=work) for _ in range(3)]
call(40000, num_threads=4)
for caller in callers: caller.start()
right = 0
for _ in range(30):
    child = os.fork()
    if child == 0:
        used = call(4000, num_threads=4)
        os._exit(used > 1 and _core._has_openmp())
    right += os.waitpid(child, 0)[1] == 0
stop.set()
for caller in callers: caller.join()
print(right, call(40000, num_threads=4))
"""
    assert in_new_process(CALL + code)[0] == "30"


def test_quota_of_the_container(rng):
    p = Problem(rng, LARGE, "NXC")
    try:
        _core._set_threads_limit(1)
        assert threads_used(p) == 1
    finally:
        _core._set_threads_limit(_runtime._threads_limit())
