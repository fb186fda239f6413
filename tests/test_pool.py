"""If threads cannot be started, a call goes on with those that can; many callers share the CPUs."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import Problem, all_bits
from needs import needs_fork, needs_linux, needs_openmp
from processes import printed_by, with_libgomp

import bn_ext
from bn_ext import _core

pytestmark = [needs_openmp, needs_linux]

SETUP = """
import hashlib, os, resource
import numpy as np, bn_ext
from bn_ext import _core

x = np.random.default_rng(0).standard_normal((4000, 64), np.float32)
v = np.ones(64, np.float32)

def call(threads):
    grads = bn_ext.batch_norm_backward(x, x, v, v, epsilon=1, num_threads=threads)
    digest = hashlib.sha256(b"".join(a.tobytes() for a in grads)).hexdigest()[:8]
    return digest, _core._last_call()["threads"]

def tasks_of(user):
    '''Threads that the kernel counts against this user's limit.'''
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            pass
    return count

def allow(more):
    '''Allow this many threads beyond those that exist. Root has no limit, so a process of root
    first becomes a user without other processes.'''
    user = os.getuid() or 60000 + os.getpid() % 5000
    if os.getuid() == 0:
        os.setuid(user)
    limit = tasks_of(user) + more
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, resource.getrlimit(resource.RLIMIT_NPROC)[1]))

def allow_bytes(more):
    '''Allow this much address space beyond what is used.'''
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

right = call(1)[0]
"""


def threads_used(code, **environment):
    """How many threads each call of a fresh process used; all results must be right."""
    printed = printed_by(SETUP + code, OPENBLAS_NUM_THREADS="1", **environment)
    found = [line.split() for line in printed.splitlines()]
    assert all(right == wanted for right, wanted, _ in found)
    return [int(threads) for _, _, threads in found]


def test_a_limit_on_threads():
    """Besides the caller's, a call uses all but one of the threads that can be started."""
    code = "allow({})\nfor k in (8, 8, 2): print(right, *call(k))"
    assert threads_used(code.format(5)) == [5, 5, 2]
    assert threads_used(code.format(1)) == [1, 1, 1]
    assert threads_used(code.format(0)) == [1, 1, 1]


def test_what_a_pool_has_is_not_asked_for_again():
    """A second call uses the first one's threads: no others could be started."""
    code = "print(right, *call(4)); allow(0); print(right, *call(4)); print(right, *call(6))"
    assert threads_used(code) == [4, 4, 4]


def test_a_limit_on_address_space():
    code = "allow_bytes(40 << 20); print(right, *call(32)); print(right, *call(32))"
    for used in threads_used(code):
        assert 1 <= used < 32


@pytest.mark.parametrize("variable", ["OMP_STACKSIZE", "GOMP_STACKSIZE"])
@pytest.mark.parametrize(
    ("size", "threads"),
    [("4000g", 1), ("4000 G", 1), ("4000\tg", 1), ("4000\vG", 1), (" 4000g", 1), ("4t", 1),
     ("4TB", 1), ("4000000M", 1), ("9999999999999999999", 1),
     ("16", 1), ("17K", 1), ("20k", 1), ("64k", 4),
     ("512", 4), ("4096", 4), ("1M", 4), ("300 k", 4), ("much", 4), ("0", 4), ("1x", 4)],
)  # fmt: skip
def test_the_stack_that_threads_shall_have(variable, size, threads):
    found = threads_used("print(right, *call(4))", **{variable: size})
    assert found == [threads]


def test_many_callers_share_the_processors(rng):
    """By default, overlapping calls share the CPUs; with num_threads, each gets that many."""
    if _core._default_threads() < 2:
        pytest.skip("one CPU")
    p = Problem(rng, (400_000, 8), "NXC")
    want = all_bits(p.run(bn_ext.batch_norm_backward, num_threads=1))
    together = threading.Barrier(16)
    used = []

    def calls(num_threads):
        together.wait()
        for _ in range(4):
            assert all_bits(p.run(bn_ext.batch_norm_backward, num_threads=num_threads)) == want
            used.append(_core._last_call()["threads"])

    def used_by(num_threads):
        used.clear()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(calls, [num_threads] * 16))
        assert len(used) == 64
        return used

    assert min(used_by(None)) < _core._default_threads()
    assert set(used_by(2)) == {2}
    # A call that is alone again has all threads.
    p.run(bn_ext.batch_norm_backward)
    assert _core._last_call()["threads"] == min(_core._default_threads(), p.src.size // 49152)


@pytest.mark.parametrize(
    ("shape", "data_format", "worth"),
    [
        ((3_990, 49), "NXC", 1),
        ((4_010, 49), "NXC", 4),
        ((1, 20_000), "NXC", 1),  # a channel counts as eight more elements
        ((1, 22_000), "NXC", 4),
        ((1, 1_024, 6, 6), "NCX", 1),  # and with channels first, as 150
        ((1, 1_024, 7, 7), "NCX", 4),
        ((16_384, 49), "NXC", 16),
    ],
)
def test_threads_that_a_call_is_worth(rng, shape, data_format, worth):
    p = Problem(rng, shape, data_format)
    p.run(bn_ext.batch_norm_backward, data_format=data_format)
    assert _core._last_call()["threads"] == min(_core._default_threads(), worth)
    bn_ext.batch_norm_inference(p.src, p.mean, p.variance, epsilon=1, data_format=data_format)
    # Inference has two streams, a gradient five.
    assert _core._last_call()["threads"] == min(_core._default_threads(), 6 if worth == 16 else 1)


def test_two_callers_have_all_the_processors(rng):
    """If a team shrank whenever another call began, it would later have to start threads anew."""
    most = _core._default_threads()
    if most < 2:
        pytest.skip("one CPU")
    small = Problem(rng, (16 * most * 49152, 1), "NXC")
    # 2^30 elements, in runs that overlap: this call takes far longer than the small ones.
    memory, mean = np.ones(1 << 21, np.float32), np.ones(1, np.float32)
    large = np.lib.stride_tricks.as_strided(memory, (1 << 20, 1, 1 << 10), (4, 4, 4))
    used = []
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(
            bn_ext.GradientSums, large, large, mean, data_format="NCX", num_threads=2
        )
        # Whether the other call has begun or not, there is no third.
        while not other.done():
            small.run(bn_ext.batch_norm_backward)
            used.append(_core._last_call()["threads"])
    assert other.result().count == 1 << 30
    assert set(used) == {most}


def test_a_call_that_fails_gives_back_its_share():
    """With results given, a call allocates only working memory, for which too little is left."""
    code = """
src = np.ones((1, 2**22), np.float32)
ones, out = src[0], (np.empty_like(src), np.empty_like(src[0]), np.empty_like(src[0]))
allow_bytes(8 << 20)
for _ in range(3):
    try:
        bn_ext.batch_norm_backward(src, src, ones, ones, epsilon=1, out=out)
    except MemoryError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
bn_ext.GradientSums(src.reshape(-1, 64), src.reshape(-1, 64), v)
print(_core._last_call()["threads"])
"""
    *errors, threads = printed_by(SETUP + code).splitlines()
    assert errors == ["bn_ext: not enough memory for sums and coefficients"] * 3
    assert int(threads) == min(_core._default_threads(), 34)  # all that the call is worth


def test_callers_that_start_together_under_a_limit():
    """Between a call's check for free threads and their start, no other call takes them."""
    code = """
import threading
together = threading.Barrier(4)
found = []
def first():
    together.wait()
    for k in (4, 2, 4, 3, 4):
        found.append(call(k))
callers = [threading.Thread(target=first) for _ in range(3)]
for caller in callers: caller.start()
allow(4)
first()
for caller in callers: caller.join()
for one in found: print(right, *one)
"""
    for _ in range(4):
        assert all(1 <= used <= 4 for used in threads_used(code))


@pytest.mark.parametrize("cpus", ["100000", "0 100000", "0-3000"])
def test_processors_that_are_not_there(cpus):
    assert set(threads_used("print(right, *call(4))", GOMP_CPU_AFFINITY=cpus)) <= {1, 4}


@pytest.mark.parametrize("within", [False, True])
def test_regions_of_others_have_threads_of_their_own(within):
    """A call within a region uses no threads of the caller's pool, and the pool gets none of the
    region's. The runtime must not be asked for more threads than allowed: it would end the process.
    """
    steps = [f"outside({4 if within else 2})", "region(1, lambda data: inside(4))", "outside(4)"]
    steps.insert(1 if within else 2, "allow(0)")
    code = f"""
gomp.omp_set_max_active_levels(2)
used = []
def outside(threads):
    digest, n = call(threads)
    assert digest == right
    used.append(n)
inside = outside
{"; ".join(steps)}
print(*used)
"""
    used = [int(n) for n in with_libgomp(SETUP + code, OPENBLAS_NUM_THREADS="1")]
    assert used == ([4, 1, 4] if within else [2, 4, 2])


#: in_child(): is a function true in a forked child, which has a minute? in_thread(): in a thread.
FORKS = """
import time, threading, warnings
warnings.simplefilter("ignore")  # CPython warns of forking with threads: that is the point
def in_child(function):
    child = os.fork()
    if child == 0:
        try:
            os._exit(not function())
        finally:
            os._exit(2)
    for _ in range(6000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False
def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found == [True]
def together():
    return call(3) == (right, 3)
def alone():
    config = bn_ext.show_config("dicts")
    because = config["default_threads"], config["threads_set_by"].partition(" (")[0]
    return because == (1, "the fork of this process") and call(3) == (right, 1)
"""


@needs_fork
@pytest.mark.parametrize("before", ["", "region(2, lambda data: None)"])
def test_a_child_of_a_process_that_made_no_call(before):
    """It starts threads, also if others had a pool. Its own children then have a team's parent."""
    code = f"""
def family():
    return in_child(together) and together() and in_thread(together) and in_child(alone)
{before}
print(in_child(family))
{before}
print(in_thread(lambda: in_child(family)))
"""
    assert with_libgomp(SETUP + FORKS + code) == ["True"] * 2


@needs_fork
@pytest.mark.parametrize(
    "within",
    [
        "call(2); fork()",
        "in_thread(lambda: call(2)); fork()",
        "call(2); in_thread(fork)",
        "region(1, lambda data: fork())",
        "region(2, lambda data: None); region(1, lambda data: fork())",
    ],
)
def test_a_child_of_a_process_with_a_team(within):
    """It keeps to one thread, even if asked for more, and so do its children and threads."""
    code = f"""
def fork():
    print(in_child(lambda: alone() and in_child(alone) and in_thread(alone)))
{within}
print(together())
"""
    assert with_libgomp(SETUP + FORKS + code) == ["True"] * 2


@needs_fork
@pytest.mark.parametrize("one", [False, True])
def test_a_thread_that_forks_and_ends_in_both(one):
    """The child lacks the pool's threads. Its own thread would wait for them when it ends."""
    code = """
import threading, warnings
warnings.simplefilter("ignore")  # CPython warns of forking with threads: that is the point
status = []
def work():
    call(4)
    gomp = next((p for p in bn_ext.show_config("dicts")["openmp_libraries"] if "gomp" in p), None)
    if {one} and gomp:  # a team of one, which leaves the pool as it is
        import ctypes
        ctypes.CDLL(gomp).omp_set_max_active_levels(0)
        assert call(4) == (right, 1)
        ctypes.CDLL(gomp).omp_set_max_active_levels(1)
    child = os.fork()
    if child:
        for _ in range(600):
            pid, ended = os.waitpid(child, os.WNOHANG)
            if pid:
                status.append(ended)
                break
            import time; time.sleep(0.05)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            status.append("hangs")
        status.append(call(4))
    else:
        global in_child
        in_child = call(4) == (right, 1)
in_child = None
thread = threading.Thread(target=work)
thread.start()
thread.join()
if in_child is not None:
    os._exit(not in_child)
assert status[0] == 0, status
print(right, *status[1])
"""
    assert threads_used(code.replace("{one}", str(one))) == [4]
