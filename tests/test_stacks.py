"""A call takes little stack: docs/howto/threads.md says how much."""

import os

import pytest
from needs import needs_linux, needs_openmp
from processes import printed_by, python, python_code
from tree import ROOT, TESTS

import bn_ext

#: The most bytes of stack that a call takes, and those for each thread that it starts.
OF_A_CALL, OF_A_THREAD = 20 << 10, 256

#: on() runs a function on a stack of this size. The last line fails if NumPy needs over 32 KiB.
SMALL = """
import threading, numpy as np, bn_ext
from bn_ext import _core
def on(size, function):
    threading.stack_size(size)
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
on(32 << 10, lambda: np.zeros((9, 9)).sum(axis=0))
"""

asan = "asan" in os.environ.get("LD_PRELOAD", "")
pytestmark = [needs_linux, pytest.mark.skipif(asan, reason="AddressSanitizer makes frames larger")]


@pytest.fixture(autouse=True, scope="module")
def _room():
    if python_code(SMALL).returncode != 0:
        pytest.skip("Python itself needs a larger stack")


def test_the_page_says_so():
    page = (ROOT / "docs" / "howto" / "threads.md").read_text()
    assert all(words in page for words in (f"{OF_A_CALL >> 10} KiB", f"{OF_A_THREAD} bytes"))


@pytest.mark.parametrize(
    "isa",
    [
        bn_ext.get_isa(),
        *(
            pytest.param(isa, marks=pytest.mark.slow)
            for isa in bn_ext.available_isas()
            if isa != bn_ext.get_isa()
        ),
    ],
)
def test_every_function_in_the_smallest_thread(isa):
    pytest.importorskip("ml_dtypes")
    done = python(TESTS / "small_stacks.py", BN_EXT_ISA=isa, timeout=None)
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-3000:])
    found, where = done.stdout.splitlines()[-1].removeprefix("below the caller: ").split(" ", 1)
    assert 0 < int(found) <= OF_A_CALL, where


@needs_openmp
@pytest.mark.parametrize("size", [16, 20, 28])
@pytest.mark.parametrize("who", ["the environment", "libgomp's first user", "the system"])
def test_threads_of_a_pool_with_little_stack(who, size):
    """Those with too little leave the work to others, whoever chose the size."""
    code = f"""
import ctypes, os, sys
if "{who}" == "the system":
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t({size} << 10))
    libc.pthread_setattr_default_np(attributes)
elif "{who}" == "libgomp's first user":
    os.environ["OMP_STACKSIZE"] = "{size}"
    ctypes.CDLL("libgomp.so.1")
    del os.environ["OMP_STACKSIZE"]
sys.path.insert(0, {str(TESTS)!r})
import small_stacks
for name, call in small_stacks.calls(5):
    print(name, flush=True)
    call()
"""
    stack = {"OMP_STACKSIZE": str(size)} if who == "the environment" else {}
    done = python_code(code, BN_EXT_ISA=None, **stack)
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-3000:])


@needs_openmp
def test_a_team_is_as_large_as_the_stack_allows():
    """On a small stack, a call starts fewer threads; on a larger one, all."""
    code = """
x, v = np.ones((4000, 64), np.float32), np.ones(64, np.float32)
used = []
def call():
    bn_ext.batch_norm_backward(x, x, v, v, epsilon=1, num_threads=200)
    used.append(_core._last_call()["threads"])
for size in (32, 40, 48, 64, 1024):
    on(size << 10, call)
print(*used)
"""
    used = [int(n) for n in printed_by(SMALL + code).split()]
    assert used == sorted(used)
    assert used[0] < used[-1] == 200, used
    assert used[0] * OF_A_THREAD + OF_A_CALL < 32 << 10
