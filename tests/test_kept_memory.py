"""Large results reuse the memory of earlier ones, within bounds; this changes no bit."""

import mmap
import pickle
import re
import sys
import tracemalloc

import numpy as np
import pytest
from members import MEMBERS, problem
from processes import printed_by, python_code

import bn_ext
from bn_ext import _runtime

MIB = 1 << 20
pytestmark = pytest.mark.skipif(bn_ext.keep_memory() == 0, reason="nothing can be kept here")


@pytest.fixture(autouse=True)
def only_ours():
    """Keep nothing from before a test, and at most 256 MiB in it."""
    bn_ext.keep_memory(0)
    bn_ext.keep_memory(256 * MIB)
    yield
    bn_ext.keep_memory()


def kept():
    return bn_ext.show_config(mode="dicts")["kept_memory"]


def result(mib=16.0):
    """A result of about this size."""
    x = np.zeros((int(mib * MIB) // 256, 64), np.float32)
    return bn_ext.batch_norm_inference(x, x[0], x[0], epsilon=1)


def address(a):
    return a.__array_interface__["data"][0]


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_no_result_shows_what_lay_there(rng, name, data_format):
    member, shape = MEMBERS[name], (37, 1680, 77) if data_format == "NXC" else (37, 77, 1680)
    p = problem(rng, shape, data_format)
    found, bits = member.run(p)
    tensors = [a for a in found if a.ndim > 1]
    assert all(a.base is not None for a in tensors)
    for a in tensors:
        a.view(np.uint32)[...] = 0xFFFFFFFF
    places = {address(a) for a in tensors}
    del found, tensors, a
    again, bits_again = member.run(p)
    assert places >= {address(a) for a in again if a.ndim > 1}
    assert bits_again == bits


def test_memory_is_taken_again_when_the_last_view_is_gone():
    first = result()
    place, part = address(first), first[5:7, ::3]
    del first
    second = result()
    assert address(second) != place
    del part
    assert kept() >= MIB
    assert address(result()) == place


def test_a_block_that_is_far_too_long_is_not_taken():
    place = address(result(30))
    assert address(result(23)) != place
    assert address(result(27)) == place


def test_a_block_that_is_too_short_is_part_of_a_larger_one():
    first = result(20)
    first[...] = 7
    del first
    second = result(30)
    assert kept() == 0
    assert not second.any()


def test_small_results_have_their_own_memory():
    assert result(0.5).flags.owndata
    assert kept() == 0


def test_what_is_kept_has_bounds():
    bn_ext.keep_memory(64 * MIB)
    results = [result(20) for _ in range(5)]
    assert kept() == 0
    del results
    assert 40 * MIB < kept() <= 64 * MIB
    bn_ext.keep_memory(30 * MIB)
    assert 20 * MIB <= kept() <= 30 * MIB
    assert bn_ext.keep_memory(0) == 30 * MIB
    assert kept() == 0
    assert result().flags.owndata


def test_blocks_are_few():
    results = [result() for _ in range(70)]
    bn_ext.keep_memory(1 << 31)
    results.clear()
    assert 64 * 16 * MIB <= kept() < 65 * 16 * MIB


def test_the_limit_itself_may_be_kept():
    result(16)
    one = kept()
    for blocks in (1, 3):
        for missing in (0, 1):
            bn_ext.keep_memory(0)
            bn_ext.keep_memory(blocks * one - missing)
            results = [result(16) for _ in range(blocks + 1)]
            del results
            assert kept() == (blocks - missing) * one


def test_what_nobody_takes_goes():
    result(40)
    for _ in range(512):
        result(16)
    assert kept() > 40 * MIB
    result(16)
    assert kept() < 40 * MIB


def mapped():
    """Bytes of address space in use."""
    return int(_runtime._read("/proc/self/statm").split()[0]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_address_space_is_lost():
    """What is new, reused, part of a larger block, too much or too long is unmapped as a whole."""
    data = np.zeros((50 * MIB // 256, 64), np.float32)

    def call(mib):
        x = data[: mib * MIB // 256]
        return bn_ext.batch_norm_inference(x, x[0], x[0], epsilon=1)

    def take_many(limit):
        bn_ext.keep_memory(limit * MIB)
        for sizes in ((30, 25, 17, 40, 33), (16, 17, 18, 19, 20, 21), (50, 50, 50), (20, 45)):
            results = [call(mib) for mib in sizes]
            assert results
            del results
        call(16)
        bn_ext.keep_memory(0)

    take_many(100)
    before = mapped()
    for limit in [100, 45] * 6:
        take_many(limit)
    assert mapped() < before + MIB


def test_blocks_are_whole_pages_of_any_system():
    """Systems have pages of 4, 16 or 64 KiB; parts of a page cannot be unmapped."""
    result(16.1)
    assert kept() % (64 << 10) == 0


def offered():
    """Bytes that the system may take."""
    found = re.findall("^LazyFree: *([0-9]+)", _runtime._read("/proc/self/smaps"), re.MULTILINE)
    return 1024 * sum(map(int, found))


@pytest.mark.skipif(
    "LazyFree" not in _runtime._read("/proc/self/smaps"), reason="needs Linux's smaps"
)
@pytest.mark.parametrize(
    ("limit", "memory", "youngest"),
    [
        (1 << 40, 400 * MIB, 2),  # more than the memory
        (400 * MIB, 1 << 40, 2),
        (400 * MIB, 200 * MIB, 1),
        (1 << 40, 0, 0),  # unknown
        (1 << 40, 1 << 40, 7),
    ],
)
def test_all_but_the_youngest_blocks_are_offered(monkeypatch, limit, memory, youngest):
    def keep(limit, memory):
        monkeypatch.setattr(_runtime, "_memory", lambda: memory)
        bn_ext.keep_memory(limit)

    def free(n):
        """Free n new results; return how many of the kept blocks are offered then."""
        results = [result(20) for _ in range(n)]
        del results
        return (offered() - before) / (20 * MIB)

    before = offered()
    keep(1 << 40, 1 << 40)
    assert free(6) == pytest.approx(0, abs=0.1)
    keep(limit, memory)
    assert free(0) == pytest.approx(max(0, 6 - youngest), abs=0.1)
    assert free(7) == pytest.approx(7 - youngest, abs=0.1)


@pytest.mark.parametrize(
    ("nbytes", "error", "text"),
    [
        (-1, ValueError, "nbytes: expected a number from 0 to 9223372036854775807, got -1"),
        (1 << 63, ValueError, "nbytes: expected a number from 0 to"),
        pytest.param(10**5000, ValueError, "^nbytes: expected a number from 0", id="huge"),
        (1.5, TypeError, "nbytes: expected an integer or None, got 1.5"),
    ],
)
def test_what_is_refused(nbytes, error, text):
    before = bn_ext.keep_memory(MIB)
    with pytest.raises(error, match=text):
        bn_ext.keep_memory(nbytes)
    assert bn_ext.keep_memory(before) == MIB


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("123456", 123456), ("", None)])
def test_the_environment_sets_the_default(text, expected):
    code = "import bn_ext; bn_ext.keep_memory(5); bn_ext.keep_memory(); print(bn_ext.keep_memory())"
    found = int(printed_by(code, BN_EXT_KEEP_MEMORY=text))
    assert found == expected if expected is not None else found > MIB


@pytest.mark.parametrize("text", ["-1", "1e9", "many", " 5", "\u0663", "9" * 30, "9" * 38])
def test_the_environment_may_be_wrong(text):
    done = python_code("import bn_ext", BN_EXT_KEEP_MEMORY=text)
    assert "ImportError: BN_EXT_KEEP_MEMORY: expected a number of bytes from 0 to" in done.stderr
    assert repr(text) in done.stderr


# ---- what users do with results ---------------------------------------------------------


def test_a_result_is_an_array_like_any_other(tmp_path):
    a = result()
    a[...] = np.arange(a.size).reshape(a.shape)
    assert a.flags.carray
    assert type(a) is np.ndarray
    for copy in (pickle.loads(pickle.dumps(a)), np.from_dlpack(a), np.asarray(memoryview(a))):
        np.testing.assert_array_equal(copy, a)
    np.save(tmp_path / "a.npy", a)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), a)
    a.flags.writeable = False
    a.flags.writeable = True
    with pytest.raises(ValueError, match="does not own its data"):
        a.resize(3, refcheck=False)


def test_torch_keeps_the_memory():
    torch = pytest.importorskip("torch")
    a = result()
    place, t = address(a), torch.from_numpy(a)
    del a
    assert address(result()) != place == t.data_ptr()


def test_tracemalloc_knows():
    tracemalloc.start()
    try:
        a = result(17)
        traced = tracemalloc.get_traced_memory()[0]
        assert 17 * MIB <= traced < 18 * MIB
        (found,) = (t.size for t in tracemalloc.take_snapshot().traces if t.size >= MIB)
        assert found == a.nbytes
        del a
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()


# ---- processes and threads ----------------------------------------------------------------

START = """
import os, sys, threading, numpy as np, bn_ext
x = np.random.default_rng(0).standard_normal((80000, 64), np.float32)
def call():
    return bn_ext.batch_norm_inference(x, x[0], x[1] ** 2, epsilon=1)
def kept():
    return bn_ext.show_config(mode="dicts")["kept_memory"]
right = call().tobytes()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_child_keeps_its_own():
    printed_by(START + """
alive = call()
call()
assert kept() > 0
child = os.fork()
if not child:
    ours = kept()
    a = call()
    a[...] = -1
    alive[...] = -2
    del a, alive
    os._exit(7 if ours else 0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert kept() > 0 and alive.tobytes() == right and call().tobytes() == right
""")  # fmt: skip


def test_many_threads_never_share_a_block():
    found = printed_by(START + """
wrong = []
def work(k):
    for i in range(12):
        a = call()
        if a.tobytes() != right:
            wrong.append(i)
        a[...] = k
        if not (a == k).all():
            wrong.append(i)
threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(wrong))
""")  # fmt: skip
    assert found == "0\n"


@pytest.mark.parametrize("alive", ["", "import builtins; builtins.x = call()"])
def test_the_interpreter_ends_with_results_alive(alive):
    printed_by(START + alive + """
def work():
    while True:
        call()
threading.Thread(target=work, daemon=True).start()
keep = [call() for _ in range(3)]
""")  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of the address space")
def test_without_memory_what_is_kept_goes_first():
    """Kept memory is unmapped before a call raises MemoryError."""
    printed_by(START + """
import resource
bn_ext.keep_memory(1 << 40)
y = np.zeros((200000, 64), np.float32)
wide, ones = np.ones((2, 1 << 20), np.float32), np.ones(1 << 20, np.float32)

def keep_much_and_leave(room):
    parts = [call() for _ in range(20)]
    del parts
    assert kept() > 90 << 20
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, -1))

keep_much_and_leave(20 << 20)
large = bn_ext.batch_norm_inference(y, x[0], x[1] ** 2, epsilon=1)
assert large.nbytes == y.nbytes and kept() == 0
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
del large
keep_much_and_leave(6 << 20)
grads = bn_ext.batch_norm_backward(wide, wide, ones, ones, epsilon=1)  # smaller results
assert (grads.diff_beta == 2).all() and kept() == 0
try:
    large = np.broadcast_to(y, (50, *y.shape)).reshape(-1, 64)
    bn_ext.batch_norm_inference(large, x[0], x[1] ** 2, epsilon=1)
except MemoryError:
    print("refused")
""")  # fmt: skip
