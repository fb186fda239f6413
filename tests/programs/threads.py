"""Processes that count the threads of calls. Run by test_threads.py, test_schedule.py and
test_fp_mode.py.
"""

import functools
import multiprocessing
import os
import threading
from importlib import import_module

import numpy as np
from calls import call, in_child, in_thread, main, region
from cases import placed
from fp_modes import fp_mode, fp_mode_in_effect
from members import calls, laid, problem

import bn_ext
from bn_ext import _core


def used(n, num_threads=None):
    return call(n, num_threads=num_threads)


def beside(others):
    """Threads of a call after another library has used OpenMP, in a child and in the parent."""
    library = import_module(others)
    if others == "torch":
        library.ones(1000, 1000) @ library.ones(1000, 1000)
    else:
        library.KMeans(3, n_init=1).fit(np.random.default_rng(0).random((2000, 8)))
    for _ in range(20):
        call(40_000, num_threads=2)
    return in_child(lambda: call(40_000, num_threads=2) == 1), call(40_000, num_threads=2)


def pools():
    """The OpenMP libraries that threadpoolctl knows, and those that bn_ext knows."""
    import threadpoolctl

    known = [p["filepath"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "openmp"]
    reported = bn_ext.show_config(mode="dicts")["openmp_libraries"]
    return [sorted({os.path.realpath(path) for path in paths}) for paths in (known, reported)]


def of_a_forkserver():
    """Threads of a child whose forkserver has imported bn_ext, and whether a fork limits it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bn_ext"])
    with context.Pool(1) as pool:
        return pool.apply(in_a_forkservers_child)


def in_a_forkservers_child():
    return max(call(40_000, num_threads=2) for _ in range(50)), _core.fork_limits()


#: For each order of work in schedule.c (LIST, PHASES and SOLO): shapes, cache sizes.
ORDERS = [
    ((8, 64, 30), (0, 0)),
    ((40_000, 4, 1), (0, 0)),
    ((8, 64, 300), (4096, 4096)),
    ((8, 64, 300), (4096, 1 << 25)),
]


def fewer():
    """The most threads of calls that want four; all have the bits of one thread."""
    rng, most = np.random.default_rng(0), 0
    for shape, caches in ORDERS:
        _core.set_cache_sizes(*caches)
        src, diff_dst = rng.standard_normal((2, *shape), np.float32)
        v = np.ones(shape[1], np.float32)
        results = []
        arguments = src, diff_dst, v, v
        for k in (1, 4):
            for training in (True, False):
                options = {"data_format": "NCX", "is_training": training, "num_threads": k}
                grads = bn_ext.batch_norm_backward(*arguments, epsilon=0.5, **options)
                results.append([a.tobytes() for a in grads])
        assert results[:2] == results[2:]
        most = max(most, _core.last_call()["threads"])
    return most


def fewer_within_a_region():
    most = []
    region(2, lambda: most.append(fewer()))
    return most


def a_million():
    x, v = np.ones((2, 3000, 4), np.float32), np.ones(3000, np.float32)
    bn_ext.batch_norm_backward(x, x, v, v, epsilon=1, data_format="NCX", num_threads=10**6)
    return [*_core.last_call().values()][:2]


def started():
    """By call: how many threads it starts beside a new one if it asks for one, and for three; of
    the operands some are copied, of the gates some are made.
    """
    counts = {}
    for shape, data_format in (((9000, 60), "NXC"), ((60, 40, 200), "NCX")):
        p = problem(np.random.default_rng(0), shape, data_format)
        laid_out = {"dense": p, "gaps": laid(p, lambda a: placed(a, "gaps"))}
        laid_out["order"] = laid(p, lambda a: placed(a, "spread", order=range(a.ndim)[::-1]))
        for memory, q in laid_out.items():
            asked = (calls(q, data_format=data_format, num_threads=k) for k in (1, 3))
            for number, pair in enumerate(zip(*asked, strict=True)):
                name = f"{number}, {pair[0].func.__name__}, {data_format}, {memory}"
                counts[name] = [in_thread(functools.partial(threads_of, work)) for work in pair]
        layer = bn_ext.BatchNorm(shape[1], data_format=data_format, relu=True)
        for name in ("forward", "backward"):
            counts[f"layer, {name}, {data_format}"] = [
                in_thread(functools.partial(of_layer, layer, name, laid_out["order"], k))
                for k in (1, 3)
            ]
    return counts


def of_layer(layer, name, p, num_threads):
    layer.num_threads = num_threads
    if name == "backward":
        in_thread(lambda: layer.forward(p.src))
    return threads_of(lambda: getattr(layer, name)(p.src))


def threads_of(work):
    """How many new threads there are, until this one ends."""
    # Some may be ending; a listing skips others while one ends.
    before = {thread for _ in range(5) for thread in os.listdir("/proc/self/task")}
    work()
    return len({*os.listdir("/proc/self/task")} - before)


def pool_in_another_mode():
    """Calls on the threads of a pool that another made with subnormal numbers flushed: same bits,
    a result other than 0, threads. Then the modes of the caller and of the pool.
    """
    with fp_mode("flush"):
        region(4, lambda: None)
    dy, v = np.full((300_000, 8), 1e-40, np.float32), np.ones(8, np.float32)
    results = []
    for training in (True, False):
        single, four = (
            bn_ext.batch_norm_backward(
                dy, dy, v, v, epsilon=0, is_training=training, num_threads=k
            ).diff_src.tobytes()
            for k in (1, 4)
        )
        results.append((single == four, any(single), _core.last_call()["threads"]))
    modes = {}
    region(4, lambda: modes.update({threading.get_ident(): fp_mode_in_effect()}))
    mode = modes.pop(threading.get_ident())
    return results, mode, sorted(modes.values())


if __name__ == "__main__":
    main(globals())
