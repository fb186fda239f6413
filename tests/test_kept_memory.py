"""Large results reuse the memory of earlier ones, within bounds; this changes no bit."""

import mmap
import pickle
import re
import tracemalloc

import numpy as np
import pytest
from members import MEMBERS, problem
from processes import run

import bn_ext
from bn_ext import _core, _groups, _runtime

MIB = 1 << 20
pytestmark = pytest.mark.skipif(bn_ext.keep_memory() == 0, reason="nothing can be kept here")


@pytest.fixture(autouse=True)
def only_ours():
    """Keep nothing from before a test, and at most 256 MiB in it."""
    bn_ext.keep_memory(0)
    bn_ext.keep_memory(256 * MIB)
    yield
    bn_ext.keep_memory()
    assert bn_ext.keep_memory() == _runtime._memory() // 8  # the default


def kept():
    return _core.kept_bytes()


def result(mib=16.0):
    x = np.zeros((int(mib * MIB) // 256, 64), np.float32)
    return bn_ext.batch_norm_inference(x, x[0], x[0], epsilon=1)


def address(a):
    return a.__array_interface__["data"][0]


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_no_result_shows_what_lay_there(rng, name, data_format):
    member, shape = MEMBERS[name], (37, 1680, 77) if data_format == "NXC" else (37, 77, 1680)
    p = problem(rng, shape, data_format)
    results, bits = member.run(p)
    tensors = [a for a in results if a.ndim > 1]
    assert all(a.base is not None for a in tensors)
    for a in tensors:
        a.view(np.uint32)[...] = 0xFFFFFFFF
    places = {address(a) for a in tensors}
    del results, tensors, a
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


@pytest.mark.parametrize(("mib", "taken"), [(23, False), (27, True), (30, True), (31, False)])
def test_a_block_of_about_the_size_is_taken(mib, taken):
    place = address(result(30))
    assert (address(result(mib)) == place) == taken


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


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("missing", [0, 1])
def test_the_limit_itself_may_be_kept(blocks, missing):
    result(16)
    block = kept()
    bn_ext.keep_memory(0)
    bn_ext.keep_memory(blocks * block - missing)
    results = [result(16) for _ in range(blocks + 1)]
    del results
    assert kept() == (blocks - missing) * block


def mapped():
    return int(_groups.read("/proc/self/statm").split()[0]) * mmap.PAGESIZE


def test_no_address_space_is_lost():
    """What is new, reused, too much or too long is unmapped as a whole."""

    def take_many(limit):
        bn_ext.keep_memory(limit * MIB)
        for sizes in ((30, 25, 17, 40, 33), (16, 17, 18, 19, 20, 21), (50, 50, 50), (20, 45)):
            results = [result(mib) for mib in sizes]
            del results
        bn_ext.keep_memory(0)

    take_many(100)
    before = mapped()
    for limit in [100, 45] * 6:
        take_many(limit)
    assert mapped() < before + MIB


def offered():
    results = re.findall("^LazyFree: *([0-9]+)", _groups.read("/proc/self/smaps"), re.MULTILINE)
    return 1024 * sum(map(int, results))


@pytest.mark.skipif(
    "LazyFree" not in _groups.read("/proc/self/smaps"), reason="needs Linux's smaps"
)
def test_all_blocks_are_offered():
    before = offered()
    results = [result(20) for _ in range(6)]
    del results
    assert (offered() - before) / (20 * MIB) == pytest.approx(6, abs=0.1)
    a = result(20)
    a[...] = 1
    assert (offered() - before) / (20 * MIB) == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize(
    ("nbytes", "error", "text"),
    [
        (-1, ValueError, "nbytes: expected at least 0, got -1"),
        pytest.param(10**5000, ValueError, "^nbytes: expected at most 92233720", id="huge"),
        (1.5, TypeError, "nbytes: expected an integer or None, got 1.5"),
    ],
)
def test_what_is_refused(nbytes, error, text):
    with pytest.raises(error, match=text):
        bn_ext.keep_memory(nbytes)
    assert bn_ext.keep_memory() == 256 * MIB


TAKERS = ["a result", "a small result", "vectors", "sums", "exact sums", "memory of a call"]


@pytest.mark.parametrize("taker", [*TAKERS, "bits of a gate", "a result, RLIMIT_AS"])
def test_what_is_kept_gives_way(taker):
    taker, _, limit = taker.partition(", ")
    assert run("kept", "gives_way", limit or "RLIMIT_DATA", taker) == [True, 0, False]


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


def test_tracemalloc_knows():
    tracemalloc.start()
    try:
        a = result(17)
        traced = tracemalloc.get_traced_memory()[0]
        assert 17 * MIB <= traced < 18 * MIB
        (results,) = (t.size for t in tracemalloc.take_snapshot().traces if t.size >= MIB)
        assert results == a.nbytes
        del a
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()


def test_a_child_keeps_its_own():
    assert run("kept", "child")


def test_many_threads_never_share_a_block():
    assert run("kept", "many_threads") == []


@pytest.mark.parametrize("alive", [False, True])
def test_the_interpreter_ends_with_results_alive(alive):
    run("kept", "at_exit", alive)
