"""show_config, and what it reads: threads, caches, memory, OpenMP libraries, quotas."""

import itertools
import os
import re

import numpy as np
import pytest
from needs import CPUS, needs_cpus, needs_libgomp, needs_openmp, needs_posix
from processes import strict

import bn_ext
from bn_ext import _core, _groups, _runtime

if os.name == "posix":
    import resource

GIB = 1 << 30


def test_show_config(capsys):
    config = bn_ext.show_config(mode="dicts")
    assert bn_ext.show_config() is None
    printed = capsys.readouterr().out
    for key, value in config.items():
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        line = re.search(rf"^{key} +(.*)$", printed, re.MULTILINE)[1]
        assert re.sub(r" \((SSE2|NEON|AVX2|AVX-512)\)", "", line) == shown
        assert (line != shown) == (key in ("isa", "available_isas"))
    assert config["isa"] in config["available_isas"]
    assert config["default_threads"] >= 1
    l2, last_level = config["cache_sizes"]
    assert 2**15 <= l2 <= last_level
    for wrong in ("json", np.array(["a", "b"])):
        with pytest.raises(ValueError, match="^mode: expected 'stdout' or 'dicts', got "):
            bn_ext.show_config(mode=wrong)


ALL = "the number of CPUs that this process may use"
OPENMP = "OpenMP's current limit (omp_set_num_threads, threadpoolctl)"
QUOTA = "bn_ext._core.set_threads_limit(1); bn_ext._runtime._QUOTA = 1"
SET_BY = [
    ("", {}, CPUS, ALL),
    ("", {"OMP_PROC_BIND": "true"}, CPUS, ALL),
    ("", {"OMP_NUM_THREADS": "1,4"}, 1, "OMP_NUM_THREADS"),
    ("", {"OMP_THREAD_LIMIT": "1"}, 1, "OMP_THREAD_LIMIT"),
    ("import threadpoolctl; limit = threadpoolctl.threadpool_limits(1)", {}, 1, OPENMP),
    (QUOTA, {}, 1, "the container's CPU quota"),
]


@needs_openmp
@needs_cpus
@pytest.mark.parametrize(("before", "environment", "threads", "because"), SET_BY)
def test_what_sets_the_number_of_threads(before, environment, threads, because):
    code = f"import bn_ext; {before}; config = bn_ext.show_config(mode='dicts')"
    code = code.replace("; ;", ";") + "; print(config['default_threads'], config['threads_set_by'])"
    assert strict(code, **environment).stdout == f"{threads} {because}\n"


def test_a_machine_without_the_systems_lists(monkeypatch):
    monkeypatch.setattr(_groups, "read", lambda path: "")
    assert _runtime._processor()
    l2, last_level = _runtime._cache_sizes(_runtime._told_caches())
    assert 2**15 <= l2 <= last_level


@pytest.mark.parametrize(("cpus", "mebibytes"), [(2, 32), (128, 480)])
@pytest.mark.parametrize("first", [["1 48K", "1 32K"], ["1 64K"]])
def test_a_cache_that_a_virtual_machine_shares(monkeypatch, cpus, mebibytes, first):
    """Linux numbers caches, not levels: the first level may have one cache or two."""
    caches = [*first, "2 2048K", "3 480M", "4 960M"]
    texts = {
        f"/index{index}/{name}": f"{text}\n"
        for index, cache in enumerate(caches)
        for name, text in zip(("level", "size"), cache.split(), strict=True)
    }
    monkeypatch.setattr(_groups, "read", lambda path: texts.get(path.partition("cache")[2], ""))
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    assert _runtime._cache_sizes(_runtime._told_caches()) == (2 << 20, mebibytes << 20)


@pytest.mark.parametrize(
    ("told", "sizes"),
    [
        ((2 << 20, 8 << 20), (2 << 20, 8 << 20)),
        ((3 << 20, 1 << 30), (3 << 20, 64 << 20)),
        ((0, 0), (1 << 20, 16 << 20)),
    ],
)
def test_caches_of_a_system_that_tells_them_itself(monkeypatch, told, sizes):
    monkeypatch.setattr(_groups, "read", lambda path: "")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(_core, "told_caches", lambda: told)
    assert _runtime._cache_sizes(_runtime._told_caches()) == sizes


@pytest.mark.parametrize(("mebibytes", "far"), [(0, False), (32, False), (96, False), (105, True)])
def test_a_cache_of_many_cores_is_far(monkeypatch, mebibytes, far):
    """However few CPUs of the machine are ours."""
    monkeypatch.setattr(_groups, "read", lambda path: "")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(_core, "told_caches", lambda: (2 << 20, mebibytes << 20))
    assert _runtime._last_level_is_far(_runtime._told_caches()) == far


def test_runtimes_of_openmp_by_their_names(monkeypatch, tmp_path):
    """On every system, also if a tool that repairs wheels has renamed them."""
    known = [
        "/usr/lib/libgomp.so.1.0.0",
        "/a b/bn_ext.libs/libgomp-24e2ab19.so.1.0.0",
        "/opt/homebrew/opt/libomp/lib/libomp.dylib",
        "C:\\a b\\bn_ext.libs\\libiomp5md-0f1e.dll",
        "D:\\libomp140.x86_64.dll",
        "C:\\Windows\\vcomp140.dll",
    ]
    others = ["/usr/lib/libcomp.so", "/usr/lib/libgomp/x.so", "C:\\libomp\\x.dll"]
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f0 r-xp 00 08:02 17 {path}\n" for path in known[:2] + others[:2]))
    monkeypatch.setattr(_core, "told_libraries", lambda: [*known[2:], *others[2:]])
    assert _runtime._openmp_libraries(str(maps)) == known


@needs_libgomp
@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, 5000), ({"GOMP_SPINCOUNT": "7"}, 7), ({"OMP_WAIT_POLICY": "passive"}, 0)],
)
def test_how_often_idle_threads_spin_on_libgomp(environment, spins):
    done = strict("import bn_ext", OMP_DISPLAY_ENV="VERBOSE", **environment)
    assert f" GOMP_SPINCOUNT = '{spins}'\n" in done.stderr


def test_how_long_idle_threads_spin_on_llvms_runtime():
    """It reads its variables when it is first asked, not when it is loaded."""
    code = (
        "import ctypes, bn_ext\n"
        "paths = bn_ext.show_config(mode='dicts')['openmp_libraries']\n"
        "path = next((p for p in paths if 'libomp' in p), None)\n"
        "print(ctypes.CDLL(path).kmp_get_blocktime() if path else None)"
    )
    assert strict(code).stdout.strip() in ("1", "None")


@pytest.mark.parametrize(
    ("files", "membership", "quota"),
    [
        ({}, "", None),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "50000 100000"}, "0::/", 1),
        ({"cpu.max": "250000 100000"}, "0::/", 3),
        ({"cpu.max": "120000 100000"}, "0::/", 1),
        ({"a b/cpu.max": "300000 100000", "a b/c/cpu.max": "max 100000"}, "0::/a b/c", 3),
        ({"cpu.max": "400000 100000"}, "0::/not/mounted/here", 4),
        ({"x/cpu.max": "100000 100000"}, "4:cpu:/\n0::/x", 1),
    ],
)
def test_quota_of_the_container(tmp_path, files, membership, quota):
    assert _groups.cpu_quota(*groups(tmp_path, files, membership)) == quota


def groups(tmp_path, files, membership):
    root = tmp_path / "cgroup"
    root.mkdir()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership + "\n")
    return str(root), str(tmp_path / "membership")


@needs_posix
@pytest.mark.parametrize(
    ("files", "membership", "ulimit", "memory"),
    [
        ({}, "", None, 64 * GIB),
        ({"memory.max": "max"}, "0::/", None, 64 * GIB),
        ({"memory.max": f"{128 * GIB}"}, "0::/", None, 64 * GIB),
        ({"a/memory.max": f"{3 * GIB}", "a/b/memory.max": f"{GIB}"}, "0::/a/b", None, GIB),
        ({"memory.max": f"{2 * GIB}"}, "0::/", GIB, GIB),
    ],
)
@pytest.mark.parametrize("limited", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_memory_that_this_process_may_use(
    tmp_path, monkeypatch, files, membership, ulimit, memory, limited
):
    """On a machine of 64 GiB: the least of what it, a container and `ulimit -v` or `-d` allow."""
    none = resource.RLIM_INFINITY
    limits = {resource.RLIMIT_AS: (none, none), resource.RLIMIT_DATA: (none, none)}
    limits[getattr(resource, limited)] = none if ulimit is None else ulimit, none
    monkeypatch.setattr(_core, "memory_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    assert _runtime._memory(*groups(tmp_path, files, membership)) == memory


@needs_posix
def test_an_eighth_of_the_memory_is_kept():
    memory = _runtime._memory()
    assert 0 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert _core.memory_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name, limit in itertools.product(("AS", "DATA"), (memory, memory // 2)):
        code = (
            f"import resource; resource.setrlimit(resource.RLIMIT_{name}, ({limit}, {limit}))\n"
            "import bn_ext; print(bn_ext.keep_memory())"
        )
        assert strict(code).stdout == f"{limit // 8}\n"
