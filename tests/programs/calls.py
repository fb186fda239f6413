"""What the programs in this folder share. `processes.run` runs one of their functions by name."""

import contextlib
import ctypes
import functools
import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

import bn_ext
from bn_ext import _core

if os.name == "posix":
    import resource

sys.path.append(str(Path(__file__).parent.parent / "shared"))
warnings.simplefilter("ignore")  # CPython warns of forking with threads: that is the point


def main(functions):
    """Run the function and print as JSON what it returns."""
    name, arguments = sys.argv[1:]
    print(json.dumps(functions[name](*json.loads(arguments))))


def call(n, **options):
    """The number of threads of a gradient with n rows of 64 channels, whose bits must be right."""
    x, v, right = problem(n)
    assert bits(bn_ext.batch_norm_backward(x, x, v, v, epsilon=1e-3, **options)) == right
    return _core.last_call()["threads"]


@functools.cache
def problem(n):
    x, v = np.random.default_rng(0).standard_normal((n, 64), np.float32), np.ones(64, np.float32)
    return x, v, bits(bn_ext.batch_norm_backward(x, x, v, v, epsilon=1e-3, num_threads=1))


def bits(arrays):
    return [a.tobytes() for a in arrays]


@contextlib.contextmanager
def callers(work, count, forever=False):
    """Run work() in `count` more threads: once, or until the block ends."""
    stop = threading.Event()

    def repeat():
        work()
        while forever and not stop.is_set():
            work()

    started = [threading.Thread(target=repeat) for _ in range(count)]
    for thread in started:
        thread.start()
    yield
    stop.set()
    for thread in started:
        thread.join()


def allow(bytes_more):
    """Allow this many threads beyond those that exist. Root has no limit, so a process of root
    first becomes a user without other processes.
    """
    user = os.getuid() or 60000 + os.getpid() % 5000
    if os.getuid() == 0:
        os.setuid(user)
    count = bytes_more
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    resource.setrlimit(resource.RLIMIT_NPROC, (count, resource.getrlimit(resource.RLIMIT_NPROC)[1]))


def mapped():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def allow_bytes(bytes_more):
    """Allow this much address space beyond what is used; None: any."""
    limit = resource.RLIM_INFINITY if bytes_more is None else mapped() + bytes_more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def in_child(function):
    """Does a function return something true in a forked child?"""
    child = os.fork()
    if child == 0:
        try:
            os._exit(not function())
        finally:
            os._exit(2)
    return succeeds(child)


def succeeds(child):
    """Does a child end well, within a minute?"""
    for _ in range(6000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def in_thread(function):
    results = []
    with callers(lambda: results.append(function()), 1):
        pass
    return results[0]


def libgomp():
    """The runtime that bn_ext has loaded, if it is libgomp; else the program ends."""
    paths = bn_ext.show_config(mode="dicts")["openmp_libraries"]
    library = ctypes.CDLL(next((path for path in paths if "libgomp" in path), None))
    if not hasattr(library, "GOMP_parallel"):
        print(json.dumps("no libgomp"))
        sys.exit()
    return library


def region(threads, function):
    """Run a function in each thread of an OpenMP region that is not bn_ext's."""
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: function())
    libgomp().GOMP_parallel(body, None, threads, 0)
